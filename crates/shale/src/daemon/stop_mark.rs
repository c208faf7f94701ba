//! What a node knows of a stop of its whole cluster that is under way, and what it is to undo if the cluster goes on.

use crate::options::Options;
use model::{Error, ErrorKind, NodeRun, Result};
use parking_lot::Mutex;
use std::path::PathBuf;
use tokio::sync::watch;

/// A stop that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stop {
    /// Whose people stop the cluster.
    pub by: NodeRun,
    /// The node's clients are closed, or about to be: it can't go on any more.
    pub is_final: bool,
}

/// Whether the cluster is being stopped, as far as this node was asked.
#[derive(Default)]
pub struct StopMark {
    now: watch::Sender<Option<Stop>>,
    /// The mounts that were ended for it.
    unmounted: Mutex<Vec<(PathBuf, Options)>>,
    /// Held while mounts are ended for it, or made again: whoever wants them back waits until all have ended.
    pub mounting: tokio::sync::Mutex<()>,
    /// Held while this node's people stop the cluster.
    pub driving: tokio::sync::Mutex<()>,
}

impl StopMark {
    /// The stop that is under way.
    pub fn now(&self) -> Option<Stop> {
        *self.now.borrow()
    }

    /// The node can't go on any more: it ends, whatever becomes of the cluster.
    pub fn is_final(&self) -> bool {
        self.now().is_some_and(|stop| stop.is_final)
    }

    /// Whether a step of this node's people may be taken. One who has begun to stop the cluster is alone with it as long as
    /// `is_member` holds for its run.
    ///
    /// # Errors
    /// `Busy`: another one stops the cluster.
    pub fn check(&self, by: NodeRun, is_member: impl Fn(NodeRun) -> bool) -> Result<()> {
        let other = self
            .now()
            .filter(|stop| stop.by != by && is_member(stop.by));
        let Some(other) = other else {
            return Ok(());
        };
        let node = other.by.node;
        let text = format!(
            "node {node} stops the cluster already: wait until that is done, or repeat `shale cluster stop` there"
        );
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// The cluster is being stopped.
    pub fn begin(&self, by: NodeRun) {
        let is_final = self.is_final();
        self.now.send_replace(Some(Stop { by, is_final }));
    }

    /// These mounts were ended for it.
    pub fn note_unmounted(&self, mounts: Vec<(PathBuf, Options)>) {
        self.unmounted.lock().extend(mounts);
    }

    /// From here on there is no way back.
    pub fn finish(&self, by: NodeRun) {
        let is_final = true;
        self.now.send_replace(Some(Stop { by, is_final }));
    }

    /// The mounts that are to be made again, because the cluster goes on; [`StopMark::over`] says that they were.
    ///
    /// # Errors
    /// `ShuttingDown`: the node can't go on.
    pub fn take_unmounted(&self) -> Result<Vec<(PathBuf, Options)>> {
        if self.is_final() {
            let text = "the node has begun to end with its cluster, and can't go on";
            return Err(Error::new(ErrorKind::ShuttingDown, text));
        }
        Ok(std::mem::take(&mut *self.unmounted.lock()))
    }

    /// The cluster goes on.
    pub fn over(&self) {
        self.now.send_replace(None);
    }

    /// Returns once no stop is under way.
    pub async fn until_over(&self) {
        // The sender is here.
        let _ = self.now.subscribe().wait_for(Option::is_none).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::NodeId;

    fn run(node: u32, incarnation: u64) -> NodeRun {
        NodeRun {
            node: NodeId(node),
            incarnation,
        }
    }

    #[test]
    fn only_one_node_stops_the_cluster_as_long_as_it_is_a_member() {
        let mark = StopMark::default();
        mark.check(run(1, 1), |_| true).unwrap();
        mark.begin(run(1, 1));
        mark.check(run(1, 1), |_| true).unwrap();
        let refused = mark.check(run(2, 1), |_| true).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert!(refused.to_string().contains("node 1 stops"), "{refused}");
        // Its daemon has died; its next one begins anew.
        for next in [run(2, 1), run(1, 2)] {
            mark.check(next, |run| run.incarnation == 2).unwrap();
        }
        mark.over();
        assert_eq!(mark.now(), None);
        mark.check(run(2, 1), |_| true).unwrap();
    }

    #[test]
    fn a_node_whose_clients_are_closed_does_not_go_on() {
        let mark = StopMark::default();
        let mount = || vec![(PathBuf::from("/mnt"), Options::default())];
        mark.begin(run(1, 1));
        mark.note_unmounted(mount());
        assert_eq!(mark.take_unmounted().unwrap(), mount());
        mark.over();
        mark.begin(run(1, 1));
        mark.note_unmounted(mount());
        mark.finish(run(1, 1));
        // Another attempt to stop it changes nothing about that.
        mark.begin(run(1, 1));
        let refused = mark.take_unmounted().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ShuttingDown);
        assert!(mark.is_final());
    }
}
