//! The owner of one shard as the roster names it.

use super::Parts;
use super::lease::RunLease;
use super::peers::Peers;
use client::Owners;
use coordination::Roster;
use futures::future::BoxFuture;
use model::{NodeRun, ShardId};
use std::sync::{Arc, Weak};
use tokio::sync::watch;
use world::call::Remote;
use world::{Deadline, Instant, World};

/// Finds the owner of a shard for a client of this node.
pub(super) struct ShardOwners {
    shard: ShardId,
    world: World,
    own: NodeRun,
    peers: Arc<Peers>,
    roster: watch::Receiver<Arc<Roster>>,
    lease: Arc<RunLease>,
    parts: Weak<Parts>,
}

impl ShardOwners {
    pub(super) fn new(parts: &Arc<Parts>, shard: ShardId) -> Arc<Self> {
        Arc::new(Self {
            shard,
            world: parts.world.clone(),
            own: parts.run,
            peers: parts.peers.clone(),
            roster: parts.roster.subscribe(),
            lease: parts.lease.clone(),
            parts: Arc::downgrade(parts),
        })
    }

    fn assigned(&self) -> Option<NodeRun> {
        self.roster.borrow().assigned(self.shard)
    }
}

impl Owners for ShardOwners {
    fn usable_until(&self) -> Option<Instant> {
        Some(self.lease.ends())
    }

    fn owner(&self) -> Option<Arc<dyn Remote>> {
        let run = self.assigned()?;
        if run.node != self.own.node {
            return Some(self.peers.to(run.node));
        }
        // The record may name an earlier run of this node, which is over.
        (run == self.own).then(|| self.peers.own())
    }

    fn refresh(&self, deadline: Deadline) -> BoxFuture<'_, ()> {
        let before = self.assigned();
        if let Some(parts) = self.parts.upgrade() {
            parts.ask.notify_one();
        }
        Box::pin(async move {
            let mut roster = self.roster.clone();
            // The roster's lock, which a successful wait returns, isn't kept.
            let moved = async {
                let moved = |roster: &Arc<Roster>| roster.assigned(self.shard) != before;
                roster.wait_for(moved).await.is_ok()
            };
            // Nothing new by the deadline: the caller asks the same owner again.
            if deadline.bound(&self.world, moved).await == Ok(false) {
                // The node ends, and nobody will tell anything new.
                self.world.sleep(deadline.rest(&self.world)).await;
            }
        })
    }
}
