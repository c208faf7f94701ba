//! How the client finds the owner of its shard.

use futures::future::BoxFuture;
use std::sync::Arc;
use world::Deadline;
use world::call::Remote;

/// Finds the owner of the shard, as coordination names it.
pub trait Owners: Send + Sync {
    /// The node that owned the shard when last heard of.
    fn owner(&self) -> Option<Arc<dyn Remote>>;

    /// Asks again who owns the shard. Returns when another node does, at the deadline at the latest.
    fn refresh(&self, deadline: Deadline) -> BoxFuture<'_, ()>;
}
