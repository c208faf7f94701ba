//! How connections to other nodes are opened.

use crate::channel::Channel;
use crate::lanes::Lane;
use futures::future::BoxFuture;
use model::NodeId;
use std::io;
use world::Deadline;

/// Which connection of a pair of nodes one is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its lane.
    pub lane: Lane,
    /// Its number among the lane's, from 0. A connection that replaces one that broke has its number.
    pub number: usize,
}

/// Opens connections.
pub trait Dial: Send + Sync {
    /// A new connection to the node, for this place; waits until the deadline at most. It is polled
    /// by tasks of the runtime that the lane is on, and so is the connection.
    ///
    /// # Errors
    /// The network's.
    fn dial(
        &self,
        node: NodeId,
        place: Place,
        deadline: Deadline,
    ) -> BoxFuture<'_, io::Result<Channel>>;
}
