//! How the client finds the owner of its shard, and calls one that is in its process.

use crate::patience::HoldUp;
use futures::future::BoxFuture;
use model::owner::{NearAnswer, OwnerCall, OwnerRequest, Tenure};
use model::{CommitNumber, Result};
use std::sync::Arc;
use world::call::{Asked, Remote};
use world::{Deadline, Instant};

/// An owner in the client's process. Its answers may be lost with it as long as they aren't durable.
pub trait NearOwner: Send + Sync {
    /// Which owner it is.
    fn tenure(&self) -> Tenure;

    /// Does at once what a session asks that this owner knows. `None` if it would have to wait: then nothing was done. What
    /// is left to wait for must be driven to its end for the answer to be known; it needs no driving to be done. For a
    /// request in order something is left only if it was done and counts as soon as the owner may answer again.
    fn ask(&self, request: &OwnerRequest) -> Option<Asked<'static, NearAnswer>>;

    /// As a message, until the deadline. Dropped, it may or may not be done.
    fn call<'a>(&'a self, call: &'a OwnerCall, deadline: Deadline) -> BoxFuture<'a, NearAnswer>;

    /// Whether this commit is durable with all before it. Also if the owner is over: false then if it doesn't know.
    fn has_durable(&self, commit: CommitNumber) -> bool;

    /// Waits until all that was answered is durable.
    ///
    /// # Errors
    /// Why nobody will ever know that it is: the owner is over.
    fn sync(&self) -> BoxFuture<'_, Result<()>>;
}

/// The way to an owner.
#[derive(Clone)]
pub enum OwnerWay {
    /// It is in this process.
    Near(Arc<dyn NearOwner>),
    /// Messages to its node.
    Far(Arc<dyn Remote>),
}

/// Finds the owner of the shard, as coordination names it.
pub trait Owners: Send + Sync {
    /// The way to the owner of the shard when last heard of.
    fn owner(&self) -> Option<OwnerWay>;

    /// Asks again who owns the shard. Returns when another node does, at the deadline at the latest.
    fn refresh(&self, deadline: Deadline) -> BoxFuture<'_, ()>;

    /// Returns when another node owns the shard than when this was called: what waits for the answer of that one waits in
    /// vain. Never if nothing more is heard of owners.
    fn replaced(&self) -> BoxFuture<'_, ()>;

    /// Until when the node of this client may use what owners promise: the end of its own lease. Once the
    /// cluster has expelled a silent node, its clients therefore use no tokens. `None`: as long as owners
    /// say.
    fn usable_until(&self) -> Option<Instant>;

    /// How the node of this client was held up since then, by a lease that nobody renewed although nobody said that its run is
    /// expelled. `None`: it wasn't.
    fn held_up_since(&self, _since: Instant) -> Option<HoldUp> {
        None
    }
}
