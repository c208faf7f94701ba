//! A simulated etcd for tests, with its faults: no I/O, all chance from one seed.
//!
//! The store is one object outside all nodes ([`Simulated`], which the judge of a test holds); each
//! process of a simulated node has a [`Coordination`] of its own to it. A request travels for some
//! milliseconds, is applied in one moment, and its answer travels back. What is lost, late or
//! refused on the way, the judge decides: by chance for each request ([`Chances`]), or at a moment
//! of its choice (the methods of [`Simulated`]).
//!
//! As with etcd:
//! * A request that was sent happens even if its sender is killed or gives up waiting: it may be
//!   applied seconds later.
//! * A change of the leader takes up to 2 s in which nothing is answered (as with the times that our daemons give etcd,
//!   unless an election needs a second vote), and 0.9 s at least if it has fallen silent. Requests on their way are
//!   dropped, fail with an unknown outcome, or are applied afterwards; some that were applied fail
//!   all the same. Every lease has its full TTL again, and an election time more. Without a quorum
//!   no lease ends.
//! * A node whose member is cut off gets no answers, and its watches say nothing.
//! * Its members may run on nodes of the cluster ([`Simulated::put_members_on`]): then most of them must be heard by
//!   each other, and when the one that leads isn't heard any more another is elected.
//! * A compaction ends watches that are behind it. History is kept for 1,024 changes at most.
//! * Watches are late, by up to 20 ms without a fault.
//! * Leases can end early ([`Simulated::end_leases_early`]), by no chance: see `etcd.rs`.
//!
//! Unlike etcd, revisions count on by one only because nothing else uses the store: don't rely on
//! it.

mod chance;
mod handle;
mod server;
#[cfg(test)]
mod tests;

pub(crate) use handle::Handle;

use crate::{Backend, Coordination, Event};
use model::NodeId;
use parking_lot::Mutex;
use server::Server;
use std::{sync::Arc, time::Duration};
use world::{Instant, World};

/// How often something goes wrong by itself, in requests of 1,000.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chances {
    /// A request never arrives.
    pub lost_request: u16,
    /// A request is applied, but its answer never arrives.
    pub lost_reply: u16,
    /// A request or its answer takes up to 8 s: longer than its sender waits.
    pub slow: u16,
    /// The leader changes before a request is applied.
    pub leader_change: u16,
    /// The history is compacted up to now.
    pub compaction: u16,
    /// The watches of the node that asks say nothing for up to 10 s.
    pub silent_watches: u16,
}

impl Chances {
    /// Nothing goes wrong.
    pub const NONE: Self = Self {
        lost_request: 0,
        lost_reply: 0,
        slow: 0,
        leader_change: 0,
        compaction: 0,
        silent_watches: 0,
    };
    /// Much more than any cluster has to bear.
    pub const HARSH: Self = Self {
        lost_request: 40,
        lost_reply: 40,
        slow: 40,
        leader_change: 10,
        compaction: 20,
        silent_watches: 20,
    };
}

/// What was changed, as the judge of a test sees it: nothing is missing or late.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// When.
    pub at: Instant,
    /// Under which revision.
    pub revision: u64,
    /// The changes.
    pub events: Vec<Event>,
}

/// A simulated etcd, from the outside. Clones are the same one.
#[derive(Clone)]
pub struct Simulated {
    server: Arc<Mutex<Server>>,
}

impl Simulated {
    /// A new, empty store. `clock` is a simulated machine whose clock counts the leases; it needs no
    /// tasks. Equal seeds and equal requests at equal times give equal runs.
    #[must_use]
    pub fn new(clock: &World, seed: u64) -> Self {
        assert!(
            clock.is_simulated(),
            "a simulation has no place in a daemon"
        );
        Self {
            server: Arc::new(Mutex::new(Server::new(clock.clone(), seed))),
        }
    }

    /// The store as a new process on `node` sees it, which waits by the clock of `world`.
    #[must_use]
    pub fn connect(&self, node: NodeId, world: &World) -> Coordination {
        let handle = Handle::new(self.server.clone(), node, world.clone());
        Coordination::new(Backend::Simulated(handle))
    }

    /// What goes wrong by itself from now on.
    pub fn set_chances(&self, chances: Chances) {
        self.server.lock().set_chances(chances);
    }

    /// Ends the leader's time: another is elected.
    pub fn change_leader(&self) {
        self.server.lock().change_leader();
    }

    /// Stops most members: nothing is answered until [`Simulated::regain_quorum`].
    pub fn lose_quorum(&self) {
        self.server.lock().lose_quorum();
    }

    /// The members are back, and elect a leader.
    pub fn regain_quorum(&self) {
        self.server.lock().regain_quorum();
    }

    /// The members run on these nodes; the first one leads.
    pub fn put_members_on(&self, nodes: impl IntoIterator<Item = NodeId>) {
        let nodes = nodes.into_iter().collect();
        self.server.lock().put_members_on(nodes);
    }

    /// The member on this node leads from now on, as if it always had.
    ///
    /// # Panics
    /// If there is none, or it has stopped.
    pub fn lead_from(&self, node: NodeId) {
        self.server.lock().lead_from(node);
    }

    /// The member on this node isn't heard any more by the others; nothing if there is none.
    pub fn stop_member(&self, node: NodeId) {
        self.server.lock().stop_member(node);
    }

    /// It is heard again.
    pub fn start_member(&self, node: NodeId) {
        self.server.lock().start_member(node);
    }

    /// Cuts the node's link to the store: what is on its way to the node is lost as well.
    pub fn cut_off(&self, node: NodeId) {
        self.server.lock().cut_off(node);
    }

    /// The node's link works again.
    pub fn reconnect(&self, node: NodeId) {
        self.server.lock().reconnect(node);
    }

    /// The node's watches say nothing for a while, although its requests are answered.
    pub fn silence_watches(&self, node: NodeId, time: Duration) {
        self.server.lock().silence_watches(node, time);
    }

    /// Ends all leases, also those that are kept alive, with their keys: what a leader of etcd before 3.4.31
    /// can do that was stopped for longer than they last, and goes on. Nothing while there is no leader.
    pub fn end_leases_early(&self) {
        self.server.lock().end_leases_early();
    }

    /// Forgets the history: watches that are behind are lost.
    pub fn compact(&self) {
        self.server.lock().compact();
    }

    /// Ends all faults and chances. A leader is there within 2 s.
    pub fn heal(&self) {
        self.server.lock().heal();
    }

    /// All changes after `revision`, as they happened.
    #[must_use]
    pub fn record(&self, revision: u64) -> Vec<Recorded> {
        self.server.lock().record(revision)
    }

    /// Hash of everything that was applied so far: which request, when, with which outcome.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.server.lock().trace_hash()
    }
}
