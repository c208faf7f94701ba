//! The owner of one shard as the roster names it, and the one that is here.

use super::Parts;
use super::lease::RunLease;
use super::peers::Peers;
use client::{HoldUp, NearOwner, OwnerWay, Owners};
use coordination::Roster;
use futures::future::BoxFuture;
use metanode::Metanode;
use model::owner::{NearAnswer, OwnerCall, OwnerRequest, Tenure};
use model::{CommitNumber, NodeRun, Result, ShardId};
use std::sync::{Arc, Weak};
use tokio::sync::watch;
use world::call::Asked;
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

    fn held_up_since(&self, since: Instant) -> Option<HoldUp> {
        self.lease.held_up_since(since)
    }

    fn owner(&self) -> Option<OwnerWay> {
        let assigned = self.assigned();
        if let Some(run) = assigned.filter(|run| run.node != self.own.node) {
            return Some(OwnerWay::Far(self.peers.to_needed(run.node)));
        }
        // The record may name an earlier run of this node, which is over.
        if assigned.is_some_and(|run| run != self.own) {
            return None;
        }
        match self.parts.upgrade()?.services.hosted(self.shard) {
            // Also if nobody is named: who gives the shard up serves the clients here until they have given back what
            // they have.
            Some(metanode) => {
                let run = self.own;
                Some(OwnerWay::Near(Arc::new(Hosted { metanode, run })))
            }
            // It says that it isn't the owner yet.
            None => assigned.map(|_| OwnerWay::Far(self.peers.own())),
        }
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

    fn replaced(&self) -> BoxFuture<'_, ()> {
        let before = self.assigned();
        Box::pin(async move {
            let mut roster = self.roster.clone();
            let is_other = |roster: &Arc<Roster>| {
                let now = roster.assigned(self.shard);
                now.is_some() && now != before
            };
            // The roster's lock, which a successful wait returns, isn't kept.
            let is_replaced = async { roster.wait_for(is_other).await.is_ok() };
            if !is_replaced.await {
                std::future::pending().await
            }
        })
    }
}

/// The owner that is here, for clients of this node.
struct Hosted {
    metanode: Arc<Metanode>,
    run: NodeRun,
}

impl NearOwner for Hosted {
    fn tenure(&self) -> Tenure {
        self.metanode.tenure()
    }

    fn ask(&self, request: &OwnerRequest) -> Option<Asked<'static, NearAnswer>> {
        self.metanode.ask_near(request)
    }

    fn call<'a>(&'a self, call: &'a OwnerCall, deadline: Deadline) -> BoxFuture<'a, NearAnswer> {
        Box::pin(self.metanode.call_near(self.run, call, deadline))
    }

    fn has_durable(&self, commit: CommitNumber) -> bool {
        self.metanode.has_durable(commit)
    }

    fn sync(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.metanode.sync())
    }
}
