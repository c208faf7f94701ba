//! How a lab comes up: network, one node, a cluster of it, the other nodes, the scheme. A lab that
//! was up before starts again from what it has.

use super::{
    super::machine::names::{Names, NodeNumber},
    Hears, Lab, Step,
    daemons::at_once,
    ending::clear,
    lock,
    record::{FILE, Record, Settings, Wanted},
    refuse_others_than_root,
};
use crate::{directory::private, output::bytes};
use model::{Error, ErrorKind, Result};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// A node makes its NSDs and joins, beside others on few cores.
const JOIN_MAX: Duration = Duration::from_secs(600);
/// Other commands that change the cluster.
const CHANGE_MAX: Duration = Duration::from_secs(300);
/// The quorum nodes of a lab with enough nodes.
const QUORUM: u32 = 3;
/// Space that a node needs besides its NSDs: coordination, logs.
const NODE_BYTES: u64 = 128 << 20;

/// What `up` has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Brought {
    /// The lab is new.
    Made,
    /// It was down, or some of its nodes were.
    Started,
    /// All nodes served already.
    Was,
}

/// Brings the lab in a directory up; makes it if there is none. Blocks until all nodes serve.
///
/// # Errors
/// What is wrong with the arguments or the machine, or the step that failed. What was made stays,
/// for a look at it, until [`super::down`].
pub fn up(dir: &Path, wanted: &Wanted, hears: Hears<'_>) -> Result<(Lab, Brought)> {
    refuse_others_than_root()?;
    let dir = make_directory(dir)?;
    let lock = lock(&dir)?;
    let (record, is_new) = match Record::load(&dir)? {
        Some(record) => (record, false),
        None => (Record::new(&Names::of(&dir), wanted.settings()?), true),
    };
    wanted.refuse_other(&record.settings)?;
    let lab = Lab::of(dir, record, Some(lock))?;
    if !is_new {
        return lab.start_again(hears);
    }
    lab.refuse_lack_of_space()?;
    lab.record.store(&lab.dir)?;
    let shown = lab.dir.display().to_string();
    let lab = lab.make(hears).map_err(|error| {
        let text = format!(
            "{error}; the lab isn't finished; look at what there is, then remove it with `shale lab \
             down --purge --dir {shown}`"
        );
        Error::new(error.kind(), text)
    })?;
    Ok((lab, Brought::Made))
}

/// The directory without symbolic links; empty, or a lab's.
fn make_directory(dir: &Path) -> Result<PathBuf> {
    let failed = |error: io::Error| {
        Error::new(ErrorKind::Unavailable, error.to_string())
            .while_doing(format!("making the lab's directory {}", dir.display()))
    };
    let dir = std::path::absolute(dir).map_err(failed)?;
    private::make_node_directory(&dir, &dir.join("mnt")).map_err(failed)?;
    let dir = dir.canonicalize().map_err(failed)?;
    private::check(&dir)?;
    let mut names = Vec::new();
    for entry in fs::read_dir(&dir).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name());
    }
    let is_lab = names.iter().any(|name| name == FILE);
    match names.iter().find(|name| *name != super::LOCK) {
        Some(other) if !is_lab => {
            let text = format!(
                "{} isn't empty ({} is there), and no lab; use another --dir",
                dir.display(),
                Path::new(other).display()
            );
            Err(Error::new(ErrorKind::Exists, text))
        }
        _ => Ok(dir),
    }
}

/// Counts steps.
struct Steps<'a> {
    hears: Hears<'a>,
    done: AtomicU32,
    total: u32,
}

impl<'a> Steps<'a> {
    fn new(hears: Hears<'a>, total: u32) -> Self {
        Self {
            hears,
            done: AtomicU32::new(0),
            total,
        }
    }

    fn done(&self, what: String) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        (self.hears)(Step {
            done,
            total: self.total,
            what,
        });
    }
}

impl Lab {
    /// Makes all of a new lab.
    fn make(mut self, hears: Hears<'_>) -> Result<Self> {
        let Settings { nodes, .. } = self.record.settings;
        // Network, first node, cluster, scheme, and each other node.
        let steps = Steps::new(hears, nodes + 3);
        // Those of a lab whose directory was removed while it was up.
        clear(&self.dir)?;
        self.build()?;
        steps.done(format!("network of {nodes} nodes"));
        self.make_first(&steps)?;
        // One after the other, so that the cluster numbers them as the lab does.
        for node in self.machines.nodes().skip(1) {
            self.add(node, nodes >= QUORUM && node.0 <= QUORUM, &steps)?;
        }
        self.change_scheme()?;
        for node in self.machines.nodes() {
            self.wait_until_served(node)?;
        }
        steps.done(format!("scheme {}", self.record.settings.scheme));
        self.record.complete = true;
        self.record.store(&self.dir)?;
        Ok(self)
    }

    fn build(&self) -> Result<()> {
        let link_mbit = self.record.settings.link_mbit;
        let built = self.machines.build(link_mbit);
        built.map_err(|error| error.while_doing("making the lab's network"))
    }

    /// The node that the cluster begins with.
    fn make_first(&self, steps: &Steps<'_>) -> Result<()> {
        let first = NodeNumber(1);
        let mount = self.mount(first).display().to_string();
        let nsds = self.nsds();
        let arguments = [&["up", "--mount", &mount][..], &nsds.as_words()].concat();
        self.shale(first, &arguments, JOIN_MAX)?;
        steps.done(format!("{first} is up"));
        let address = first.address().to_string();
        let create = ["cluster", "create", "--address", &address];
        self.shale(first, &create, CHANGE_MAX)?;
        steps.done(format!("{first} is a cluster of one node"));
        Ok(())
    }

    /// Makes a node and joins it to the cluster.
    fn add(&self, node: NodeNumber, is_quorum: bool, steps: &Steps<'_>) -> Result<()> {
        let mut make = vec!["cluster", "join-token", "--json"];
        make.extend(is_quorum.then_some("--quorum"));
        let said = self.shale(NodeNumber(1), &make, CHANGE_MAX)?;
        let answer: serde_json::Value = serde_json::from_str(&said).unwrap_or_default();
        let token = answer["token"].as_str().ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("no token is in {said:?}"))
                .while_doing(format!("asking n1 for a token for {node}"))
        })?;
        let mount = self.mount(node).display().to_string();
        let address = node.address().to_string();
        let name = node.to_string();
        let mut arguments = vec!["node", "join", token, "--address", &address];
        arguments.extend(["--name", &name, "--mount", &mount]);
        let nsds = self.nsds();
        arguments.extend(nsds.as_words());
        arguments.extend(is_quorum.then_some("--quorum"));
        self.shale(node, &arguments, JOIN_MAX)?;
        let role = if is_quorum { ", a quorum node," } else { "" };
        steps.done(format!("{node}{role} has joined"));
        Ok(())
    }

    fn change_scheme(&self) -> Result<()> {
        let scheme = &self.record.settings.scheme;
        if scheme == "replicate(1)" {
            // That of every new file system.
            return Ok(());
        }
        let change = ["pool", "change", "--scheme", scheme];
        self.shale(NodeNumber(1), &change, CHANGE_MAX).map(drop)
    }

    fn nsds(&self) -> NsdWords {
        let settings = &self.record.settings;
        NsdWords {
            size: settings.nsd_bytes.to_string(),
            count: settings.nsds_per_node.to_string(),
        }
    }

    /// Brings a lab up that has been up before.
    fn start_again(self, hears: Hears<'_>) -> Result<(Self, Brought)> {
        let shown = self.dir.display();
        if !self.record.complete {
            let text = format!(
                "the lab in {shown} was never finished; remove it with `shale lab down --purge \
                 --dir {shown}` and make it anew"
            );
            return Err(Error::new(ErrorKind::Exists, text));
        }
        let nodes: Vec<_> = self.machines.nodes().collect();
        if self.machines.are_linked()? && nodes.iter().all(|node| self.serves(*node)) {
            return Ok((self, Brought::Was));
        }
        let steps = Steps::new(hears, nodes.len() as u32 + 1);
        if !self.machines.are_linked()? {
            clear(&self.dir)?;
            self.build()?;
        }
        steps.done(format!("network of {} nodes", nodes.len()));
        // A quorum is needed before any of them serves.
        at_once(&nodes, |node| {
            self.bring_up(node)?;
            steps.done(format!("{node} is up"));
            Ok(())
        })?;
        Ok((self, Brought::Started))
    }

    /// What NSDs have is allocated when they are made.
    fn refuse_lack_of_space(&self) -> Result<()> {
        let settings = &self.record.settings;
        let nodes = u64::from(settings.nodes);
        let nsds = nodes * u64::from(settings.nsds_per_node);
        let needed = nsds
            .saturating_mul(settings.nsd_bytes)
            .saturating_add(nodes * NODE_BYTES);
        let found = rustix::fs::statvfs(&self.dir).map_err(|error| {
            Error::new(ErrorKind::Unavailable, error.to_string())
                .while_doing(format!("looking for space in {}", self.dir.display()))
        })?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        if needed <= free {
            return Ok(());
        }
        let text = format!(
            "{nsds} NSDs of {} and {nodes} nodes need {}, and {} has {} left; use a smaller \
             --nsd-size, fewer nodes, or a --dir elsewhere",
            bytes(settings.nsd_bytes),
            bytes(needed),
            self.dir.display(),
            bytes(free)
        );
        Err(Error::new(ErrorKind::NoSpace, text))
    }
}

/// The words that say which NSDs a node makes.
struct NsdWords {
    size: String,
    count: String,
}

impl NsdWords {
    fn as_words(&self) -> [&str; 4] {
        ["--nsd-size", &self.size, "--nsds", &self.count]
    }
}
