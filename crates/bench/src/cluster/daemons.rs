//! Daemons of the installed program: one alone, or several that make a cluster on this machine, each at a loopback
//! address of its own.

use super::processes;
use model::{Error, ErrorKind, Result};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Ports that a node listens at: its own, and two of etcd.
const PORTS: std::ops::RangeInclusive<u16> = 7311..=7313;
/// How long something may take that a command doesn't wait for.
const PATIENCE: Duration = Duration::from_secs(300);

/// A running daemon; killed when dropped.
pub struct Daemon {
    dir: PathBuf,
}

impl Daemon {
    fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
        }
    }

    /// A file system on one node, with `count` NSDs.
    ///
    /// # Errors
    /// What `shale up` said.
    pub fn alone(dir: &Path, scheme: &str, count: u32, nsd_size: &str) -> Result<Self> {
        let daemon = Self::new(dir);
        let count = count.to_string();
        daemon.run(&[
            "up",
            "--scheme",
            scheme,
            "--nsds",
            &count,
            "--nsd-size",
            nsd_size,
        ])?;
        Ok(daemon)
    }

    /// Where it is mounted.
    pub fn mount(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    /// Ends its mount; the daemon runs on.
    ///
    /// # Errors
    /// As [`Daemon::run`].
    pub fn unmount(&self) -> Result<()> {
        let mount = self.mount().display().to_string();
        self.run(&["umount", &mount]).map(drop)
    }

    /// Runs `shale ARGS --dir DIR`; returns what it printed.
    ///
    /// # Errors
    /// `Unavailable` with what it said.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let failed = |what: String| {
            Error::new(ErrorKind::Unavailable, what).while_doing(format!("shale {arguments:?}"))
        };
        let own = std::env::current_exe().map_err(|e| failed(e.to_string()))?;
        let output = Command::new(own.with_file_name("shale"))
            .args(arguments)
            .arg("--dir")
            .arg(&self.dir)
            .stdin(Stdio::null())
            .output()
            .map_err(|e| failed(e.to_string()))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(failed(String::from_utf8_lossy(&output.stderr).into_owned())),
        }
    }

    /// The answer of a command with `--json`.
    ///
    /// # Errors
    /// As [`Daemon::run`].
    pub fn ask(&self, arguments: &[&str]) -> Result<Value> {
        let said = self.run(&[arguments, &["--json"]].concat())?;
        // Long commands print their progress first.
        let answer = |line: &&str| !line.starts_with("{\"progress\":");
        let said: Vec<&str> = said.lines().filter(answer).collect();
        serde_json::from_str(&said.join("\n"))
            .map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()))
    }

    /// The daemon's process.
    ///
    /// # Errors
    /// `Unavailable` if it doesn't answer.
    pub fn pid(&self) -> Result<u32> {
        let status = self.ask(&["status"])?;
        let pid = status["pid"].as_u64().and_then(|pid| pid.try_into().ok());
        pid.ok_or_else(|| {
            Error::new(
                ErrorKind::Unavailable,
                format!("no process is named in {status}"),
            )
        })
    }

    /// Who uses CPU time while programs use this node alone: they, and the daemon.
    ///
    /// # Errors
    /// As [`Daemon::pid`].
    pub fn processes(&self) -> Result<Vec<(String, u32)>> {
        let all = [("programs", std::process::id()), ("daemon", self.pid()?)];
        Ok(all.map(|(name, pid)| (name.to_owned(), pid)).into())
    }

    /// Resident bytes of the daemon, without its etcd.
    ///
    /// # Errors
    /// `Unavailable` if it has ended.
    pub fn resident(&self) -> Result<f64> {
        processes::resident(self.pid()?)
    }

    /// The processes that the daemon has started and that have this name.
    ///
    /// # Errors
    /// `Unavailable` if it has ended.
    pub fn children(&self, name: &str) -> Result<Vec<u32>> {
        processes::children(self.pid()?, name)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.run(&["down", "--kill"]);
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Ends daemons that an interrupted run left in `dir`, so that it can be removed.
pub fn end_stale(dir: &Path) {
    let inside = |dir: &Path| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    for node in inside(dir).iter().flat_map(|part| inside(part)) {
        drop(Daemon::new(&node));
    }
}

/// A cluster of real daemons. The first three are quorum nodes, if it begins with so many.
pub struct Cluster {
    nodes: Vec<Daemon>,
    dir: PathBuf,
    /// The first three bytes of the nodes' addresses.
    net: [u8; 3],
    nsd_size: String,
}

impl Cluster {
    /// So many nodes with an NSD each, all data in the given scheme.
    ///
    /// # Errors
    /// What a command said; `Unavailable` if the scheme's change doesn't come to its end.
    pub fn of(dir: &Path, count: u8, scheme: &str, nsd_size: &str) -> Result<Self> {
        Self::with(dir, &vec![1; count.into()], scheme, nsd_size)
    }

    /// Nodes with so many NSDs each, at least one in front, all data in the given scheme.
    ///
    /// # Errors
    /// As [`Cluster::of`].
    pub fn with(dir: &Path, nsds: &[u32], scheme: &str, nsd_size: &str) -> Result<Self> {
        let first = Daemon::alone(&dir.join("n1"), "replicate(1)", nsds[0], nsd_size)?;
        let mut cluster = Self {
            nodes: vec![first],
            dir: dir.to_owned(),
            net: free_net(),
            nsd_size: nsd_size.to_owned(),
        };
        let address = cluster.address(1);
        let create = ["cluster", "create", "--address", &address];
        cluster.first().run(&create)?;
        for (at, count) in nsds.iter().enumerate().skip(1) {
            cluster.join_as(*count, nsds.len() >= 3 && at < 3)?;
        }
        if scheme != "replicate(1)" {
            cluster
                .first()
                .run(&["pool", "change", "--scheme", scheme])?;
        }
        // One generation: new data lies on all NSDs.
        cluster.wait("the pool's change isn't over", |cluster| {
            let pools = cluster.first().ask(&["pool", "list"])?;
            Ok(pools.as_array().is_some_and(|all| all.len() == 1))
        })?;
        Ok(cluster)
    }

    /// One more node, which isn't a quorum node, with so many NSDs.
    ///
    /// # Errors
    /// What a command said.
    pub fn join(&mut self, nsds: u32) -> Result<()> {
        self.join_as(nsds, false)
    }

    fn join_as(&mut self, nsds: u32, is_quorum: bool) -> Result<()> {
        let mut make = vec!["cluster", "join-token"];
        make.extend(is_quorum.then_some("--quorum"));
        let token = self.first().run(&make)?;
        let number = self.nodes.len() + 1;
        let node = Daemon::new(&self.dir.join(format!("n{number}")));
        let (address, nsds) = (self.address(number), nsds.to_string());
        let mut join = vec!["node", "join", token.trim(), "--address", &address];
        join.extend(["--nsds", &nsds, "--nsd-size", &self.nsd_size]);
        join.extend(is_quorum.then_some("--quorum"));
        node.run(&join)?;
        self.nodes.push(node);
        Ok(())
    }

    fn address(&self, number: usize) -> String {
        let [a, b, c] = self.net;
        let last = u8::try_from(number).expect("a cluster of this bench is small");
        Ipv4Addr::new(a, b, c, last).to_string()
    }

    /// Has connections between nodes protected in this way, and waits until all nodes have it so.
    ///
    /// # Errors
    /// What a command said; `Unavailable` if a node doesn't follow.
    pub fn protect(&self, cipher_list: &str) -> Result<()> {
        let set = ["config", "set", "cipher_list", cipher_list];
        self.first().run(&set)?;
        self.wait(
            "connections aren't protected as they should be",
            |cluster| {
                for node in &cluster.nodes {
                    if node.ask(&["status"])?["cluster"]["cipher_list"] != cipher_list {
                        return Ok(false);
                    }
                }
                Ok(true)
            },
        )
    }

    /// The node that began the cluster.
    pub fn first(&self) -> &Daemon {
        &self.nodes[0]
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Daemon] {
        &self.nodes
    }

    /// Where the node that owns the file system's metadata is among the nodes, and where the manager is.
    ///
    /// # Errors
    /// `Unavailable` if there is none.
    pub fn owner_and_manager(&self) -> Result<(usize, usize)> {
        let view = self.first().ask(&["cluster", "show"])?;
        let place = |node: &Value| {
            let at = usize::try_from(node.as_u64()?).ok()?.checked_sub(1)?;
            (at < self.nodes.len()).then_some(at)
        };
        let owner = place(&view["file_systems"][0]["owner"]);
        owner.zip(place(&view["manager"])).ok_or_else(|| {
            let text = format!("nobody owns the file system, or is the manager: {view}");
            Error::new(ErrorKind::Unavailable, text)
        })
    }

    /// The same once there are both, for instance after one of them has ended.
    ///
    /// # Errors
    /// `Unavailable` if there aren't in time.
    pub fn until_owner_and_manager(&self) -> Result<(usize, usize)> {
        self.wait("somebody is missing", |cluster| {
            Ok(cluster.owner_and_manager().is_ok())
        })?;
        self.owner_and_manager()
    }

    /// The node that owns the file system's metadata, and those that don't.
    ///
    /// # Errors
    /// `Unavailable` if none does.
    pub fn owner_and_others(&self) -> Result<(&Daemon, Vec<&Daemon>)> {
        let (at, _) = self.until_owner_and_manager()?;
        let others = self.nodes.iter().enumerate();
        let others = others.filter(|(other, _)| *other != at);
        Ok((&self.nodes[at], others.map(|(_, node)| node).collect()))
    }

    /// Looks again and again until it is so; `if_not` says what isn't.
    ///
    /// # Errors
    /// `Unavailable` if it isn't so in time; those of the look.
    pub fn wait(&self, if_not: &str, is_so: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while !is_so(self)? {
            if Instant::now() > until {
                let text = format!("{if_not} after {PATIENCE:?}");
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }
}

/// Loopback addresses at which nobody listens: the first three bytes; the last one is the node's number.
fn free_net() -> [u8; 3] {
    (1..=254)
        .map(|number| [127, 77, number])
        .find(|net| {
            let first = IpAddr::V4(Ipv4Addr::new(net[0], net[1], net[2], 1));
            PORTS
                .clone()
                .all(|port| TcpListener::bind((first, port)).is_ok())
        })
        .unwrap_or([127, 77, 255])
}
