//! How the client finds the owner of its shard.

use futures::future::BoxFuture;
use std::sync::Arc;
use world::call::Remote;
use world::{Deadline, Instant};

/// Finds the owner of the shard, as coordination names it.
pub trait Owners: Send + Sync {
    /// The node that owned the shard when last heard of.
    fn owner(&self) -> Option<Arc<dyn Remote>>;

    /// Asks again who owns the shard. Returns when another node does, at the deadline at the latest.
    fn refresh(&self, deadline: Deadline) -> BoxFuture<'_, ()>;

    /// Until when the node of this client may use what owners promise: the end of its own lease. Once the
    /// cluster has expelled a silent node, its clients therefore use no tokens. `None`: as long as owners
    /// say.
    fn usable_until(&self) -> Option<Instant>;
}
