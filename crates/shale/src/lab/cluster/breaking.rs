//! What can be done to a lab's nodes. Each returns once it has come true.

use super::{
    super::machine::{names::NodeNumber, processes},
    Lab,
    daemons::at_once,
    roles::Role,
    slow_disk::SlowDisk,
};
use model::{Error, ErrorKind, Result};

impl Lab {
    /// Kills the daemons of nodes, with what they supervise; users' programs there live on. Returns
    /// the nodes on which there was something to kill.
    ///
    /// # Errors
    /// `NotFound` if the lab is down; `Unavailable` if a process stays.
    pub fn kill(&self, nodes: &[NodeNumber]) -> Result<Vec<NodeNumber>> {
        self.refuse_down()?;
        let mut killed = Vec::new();
        for node in nodes {
            if processes::kill(|| self.with_role(*node, Role::is_shale))? > 0 {
                killed.push(*node);
            }
        }
        Ok(killed)
    }

    /// Makes nodes silent: their daemons and what these supervise, all but the watchdogs, get no
    /// more time.
    ///
    /// # Errors
    /// `NotFound` if the lab is down, or one of the nodes is; then none is stopped.
    pub fn stop(&self, nodes: &[NodeNumber]) -> Result<()> {
        self.refuse_down()?;
        let mut found = Vec::new();
        for node in nodes {
            if self.daemon(*node)?.is_none() {
                let text = format!("{node} is dead, so there is nothing to stop");
                return Err(Error::new(ErrorKind::NotFound, text));
            }
            found.extend(self.with_role(*node, Role::falls_silent)?);
        }
        processes::freeze(&found)
    }

    /// Lets stopped nodes go on and starts dead ones, all at the same time. Blocks until they serve.
    ///
    /// # Errors
    /// `NotFound` if the lab is down; `Unavailable` with the reason why one doesn't serve.
    pub fn start(&self, nodes: &[NodeNumber]) -> Result<()> {
        self.refuse_down()?;
        at_once(nodes, |node| self.bring_up(node))
    }

    /// Cuts nodes off from all others. Those named together still reach each other.
    ///
    /// # Errors
    /// `NotFound` if the lab is down; `InvalidArgument` if nobody would be left.
    pub fn partition(&self, nodes: &[NodeNumber]) -> Result<()> {
        self.refuse_down()?;
        if nodes.len() as u32 == self.record.settings.nodes {
            let text = "these are all nodes of the lab, which would still reach each other; name \
                        those of one side";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        self.machines.cut(nodes)
    }

    /// Brings nodes back that were cut off; no nodes: all that are. Returns them.
    ///
    /// # Errors
    /// `NotFound` if the lab is down.
    pub fn heal(&self, nodes: &[NodeNumber]) -> Result<Vec<NodeNumber>> {
        self.refuse_down()?;
        let mut apart: Vec<_> = self
            .machines
            .cut_off()?
            .into_iter()
            .map(|it| it.0)
            .collect();
        apart.retain(|node| nodes.is_empty() || nodes.contains(node));
        if !apart.is_empty() {
            self.machines.join(&apart)?;
        }
        Ok(apart)
    }

    /// Makes the disks of nodes as slow as said, or as quick as they are; also of nodes that are
    /// down, for when they start.
    ///
    /// # Errors
    /// `Unavailable` if that can't be written down.
    pub fn slow_disk(&self, nodes: &[NodeNumber], how: SlowDisk) -> Result<()> {
        nodes
            .iter()
            .try_for_each(|node| how.store(&self.faults(*node)))
    }
}
