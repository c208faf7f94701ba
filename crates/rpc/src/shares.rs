//! How many of the requests that may run at the same time one node may have: so few that a node out of order, whose requests
//! take as long as they may, leaves room for those of others. No I/O.

use model::NodeId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// What all nodes may have running is as much as so many may have. With the 64 of a member's leases one has 16, which are the
/// credits of a connection: a node that keeps to the rules never waits for its share.
const NODES: usize = 4;

/// The shares of nodes that have requests.
pub(crate) struct Shares {
    each: usize,
    nodes: Mutex<BTreeMap<NodeId, Arc<Semaphore>>>,
}

impl Shares {
    /// Shares of so many requests.
    pub(crate) fn of(running: usize) -> Self {
        Self {
            each: (running / NODES).max(1),
            nodes: Mutex::default(),
        }
    }

    /// The room of a node. It is kept by whoever has something of it or waits for that.
    pub(crate) fn room_of(&self, node: NodeId) -> Arc<Semaphore> {
        let mut nodes = self.nodes.lock();
        if let Some(room) = nodes.get(&node) {
            return room.clone();
        }
        // Those of which nothing is taken; so never more stay than there are requests, and one.
        nodes.retain(|_, room| Arc::strong_count(room) > 1);
        let room = Arc::new(Semaphore::new(self.each));
        nodes.insert(node, room.clone());
        room
    }
}
