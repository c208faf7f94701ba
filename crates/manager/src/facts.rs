//! What a manager knows beside the membership: shards, what nodes said last, and proofs of death.

use crate::apart::Apart;
use model::member::{Cause, Heartbeat};
use model::{Moment, NodeId, NodeRun, ShardId};
use std::collections::BTreeMap;

/// A shard as its record in coordination says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ShardFact {
    pub(crate) assigned: Option<NodeRun>,
    /// The revision of coordination that wrote it.
    pub(crate) version: u64,
    /// Since when nobody is assigned.
    pub(crate) released: Option<Released>,
}

/// Nobody is assigned a shard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Released {
    /// When this manager learned of it.
    pub(crate) at: Moment,
    /// The first revision known to say so. Its last owner may have written later ones when it closed the shard.
    pub(crate) version: u64,
}

/// An attempt to prove that a node is dead.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Proof {
    /// Attempts in a row that were refused.
    pub(crate) refused: u8,
}

/// Everything but the membership and the leases.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) shards: BTreeMap<ShardId, ShardFact>,
    /// What this manager heard last of each run.
    pub(crate) heard: BTreeMap<NodeRun, Heartbeat>,
    pub(crate) proofs: BTreeMap<NodeRun, Proof>,
    /// Runs with an attempt under way, and whether they were heard since it was wanted: then it proves nothing.
    pub(crate) probing: BTreeMap<NodeRun, bool>,
    /// The newest run of each node that appeared.
    pub(crate) newest: BTreeMap<NodeId, NodeRun>,
    /// Runs that this manager has decided to expel: never renewed again.
    pub(crate) condemned: BTreeMap<NodeRun, Cause>,
    /// Members that can't reach each other, and which of them goes.
    pub(crate) apart: Apart,
}

/// Who says this has the shard.
pub(crate) fn hosts(heartbeat: &Heartbeat, shard: ShardId) -> bool {
    heartbeat.hosts.iter().any(|(hosted, _)| *hosted == shard)
}

impl Facts {
    /// Takes note of a shard's record, unless a newer one is known.
    pub(crate) fn learn_shard(
        &mut self,
        shard: ShardId,
        assigned: Option<NodeRun>,
        version: u64,
        now: Moment,
    ) {
        let known = self.shards.get(&shard);
        if known.is_some_and(|known| known.version > version) {
            return;
        }
        let before = known.and_then(|known| known.released);
        let released = match assigned {
            Some(_) => None,
            None => Some(before.unwrap_or(Released { at: now, version })),
        };
        let fact = ShardFact {
            assigned,
            version,
            released,
        };
        self.shards.insert(shard, fact);
    }

    /// The run said, knowing that nobody is assigned the shard, that it doesn't have it.
    pub(crate) fn has_given_up(&self, run: NodeRun, shard: ShardId) -> bool {
        let heard = self.heard.get(&run);
        heard.is_some_and(|heard| !hosts(heard, shard)) && self.knows(run, shard)
    }

    /// The run knows that nobody is assigned the shard, or who is.
    pub(crate) fn knows(&self, run: NodeRun, shard: ShardId) -> bool {
        let fact = self.shards.get(&shard);
        let version = fact.map_or(0, |fact| match fact.released {
            Some(released) => released.version,
            None => fact.version,
        });
        let heard = self.heard.get(&run);
        heard.is_some_and(|heard| heard.knows >= version)
    }
}
