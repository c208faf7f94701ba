//! How the nodes of a lab are, as the kernel knows it: no daemon is asked, so none can hold the
//! answer up.

use super::{super::machine::names::NodeNumber, Lab, slow_disk::SlowDisk};
use crate::daemon::config::NodeConfig;
use model::Result;
use serde::Serialize;
use std::{collections::BTreeMap, net::Ipv4Addr, path::PathBuf};

/// What a node's daemon does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DaemonState {
    /// It runs.
    Running,
    /// It is stopped, and gets no time.
    Silent,
    /// There is none.
    Dead,
}

/// How one node is.
#[derive(Debug, Serialize)]
pub struct NodeState {
    /// Its name.
    pub node: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Its directory, as for `shale --dir`.
    pub dir: PathBuf,
    /// What its daemon does.
    pub state: DaemonState,
    /// The daemon's process id.
    pub pid: Option<i32>,
    /// For how long the daemon has run, in seconds.
    pub up_seconds: Option<u64>,
    /// If it is cut off: the other nodes that it still reaches.
    pub cut_off_with: Option<Vec<String>>,
    /// How slow its disks are made.
    pub slow_disk: Option<SlowDisk>,
    /// Where it mounts the file system.
    pub mount: PathBuf,
    /// Whether something is mounted there, also if nobody serves it.
    pub mounted: bool,
    /// How many NSDs it has.
    pub nsds: usize,
}

impl Lab {
    /// How the nodes are, in their order.
    ///
    /// # Errors
    /// `Unavailable` if the kernel doesn't tell.
    pub fn state(&self) -> Result<Vec<NodeState>> {
        let cut_off: BTreeMap<_, _> = match self.machines.exist()? {
            true => self.machines.cut_off()?.into_iter().collect(),
            false => BTreeMap::new(),
        };
        let mounts: Vec<_> = fuse::mounted_shales()?
            .into_iter()
            .map(|it| it.mountpoint)
            .collect();
        let state = |node: NodeNumber| -> Result<NodeState> {
            let daemon = self.daemon(node)?;
            let dir = self.node_dir(node);
            let mount = self.mount(node);
            let slow_disk = SlowDisk::load(&self.faults(node))?;
            let config = NodeConfig::load(&dir).ok().flatten();
            Ok(NodeState {
                node: node.to_string(),
                address: node.address(),
                state: match &daemon {
                    None => DaemonState::Dead,
                    Some(process) if process.is_frozen() => DaemonState::Silent,
                    Some(_) => DaemonState::Running,
                },
                pid: daemon.as_ref().map(|process| process.pid),
                up_seconds: daemon.as_ref().map(|process| process.age().as_secs()),
                cut_off_with: cut_off
                    .get(&node)
                    .map(|others| others.iter().map(ToString::to_string).collect()),
                slow_disk: Some(slow_disk).filter(|it| !it.is_none()),
                mounted: mounts.contains(&mount),
                mount,
                nsds: config.map_or(0, |config| config.nsds.len()),
                dir,
            })
        };
        self.machines.nodes().map(state).collect()
    }
}
