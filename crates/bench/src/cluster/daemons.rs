//! Daemons of the installed program: one alone, or several that make a cluster on this machine, each at a loopback
//! address of its own.

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

    /// Resident bytes of the daemon, without its etcd.
    ///
    /// # Errors
    /// `Unavailable` if it has ended.
    pub fn resident(&self) -> Result<f64> {
        let status = self.ask(&["status"])?;
        let path = format!("/proc/{}/status", status["pid"]);
        let text = std::fs::read_to_string(&path)
            .map_err(|e| Error::new(ErrorKind::Unavailable, format!("reading {path}: {e}")))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let kib = kib.and_then(|kib| kib.trim().parse::<f64>().ok());
        Ok(kib.unwrap_or_default() * 1024.0)
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

/// A cluster of real daemons. The first three are quorum nodes, if there are so many.
pub struct Cluster {
    nodes: Vec<Daemon>,
}

impl Cluster {
    /// So many nodes with an NSD each, all data in the given scheme.
    ///
    /// # Errors
    /// What a command said; `Unavailable` if the scheme's change doesn't come to its end.
    pub fn of(dir: &Path, count: u8, scheme: &str, nsd_size: &str) -> Result<Self> {
        let net = free_net();
        let address = |number: u8| Ipv4Addr::new(net[0], net[1], net[2], number).to_string();
        let first = Daemon::alone(&dir.join("n1"), "replicate(1)", 1, nsd_size)?;
        first.run(&["cluster", "create", "--address", &address(1)])?;
        let mut nodes = vec![first];
        for number in 2..=count {
            let is_quorum = count >= 3 && number <= 3;
            let mut make = vec!["cluster", "join-token"];
            make.extend(is_quorum.then_some("--quorum"));
            let token = nodes[0].run(&make)?;
            let node = Daemon::new(&dir.join(format!("n{number}")));
            let at = address(number);
            let mut join = vec![
                "node",
                "join",
                token.trim(),
                "--address",
                &at,
                "--nsd-size",
                nsd_size,
            ];
            join.extend(is_quorum.then_some("--quorum"));
            node.run(&join)?;
            nodes.push(node);
        }
        let cluster = Self { nodes };
        if scheme != "replicate(1)" {
            cluster
                .first()
                .run(&["pool", "change", "--scheme", scheme])?;
        }
        // One generation: new data lies on all NSDs.
        cluster.wait(|cluster| {
            let pools = cluster.first().ask(&["pool", "list"])?;
            Ok(pools.as_array().is_some_and(|all| all.len() == 1))
        })?;
        Ok(cluster)
    }

    /// The node that began the cluster.
    pub fn first(&self) -> &Daemon {
        &self.nodes[0]
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Daemon] {
        &self.nodes
    }

    /// The node that owns the file system's metadata, and those that don't.
    ///
    /// # Errors
    /// `Unavailable` if none does.
    pub fn owner_and_others(&self) -> Result<(&Daemon, Vec<&Daemon>)> {
        let view = self.first().ask(&["cluster", "show"])?;
        let owner = view["file_systems"][0]["owner"].as_u64();
        let at = owner
            .and_then(|owner| owner.checked_sub(1))
            .map(|at| at as usize);
        let Some(at) = at.filter(|at| *at < self.nodes.len()) else {
            let text = format!("nobody owns the file system: {view}");
            return Err(Error::new(ErrorKind::Unavailable, text));
        };
        let others = self.nodes.iter().enumerate();
        let others = others.filter(|(other, _)| *other != at);
        Ok((&self.nodes[at], others.map(|(_, node)| node).collect()))
    }

    fn wait(&self, is_so: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while !is_so(self)? {
            if Instant::now() > until {
                let text = format!("the pool's change isn't over after {PATIENCE:?}");
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
