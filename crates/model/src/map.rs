//! Who is in which placement group. Small enough to live in coordination: the NSD list, a
//! seed, and the exceptions.

use crate::{FailureGroupId, GroupId, GroupVersion, MapEpoch, NsdId, Scheme};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Whether an NSD takes part.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum NsdState {
    /// Reads and writes.
    Active,
    /// Its pieces move away; no new ones come.
    Draining,
    /// Gone for good; its pieces are rebuilt elsewhere.
    Lost,
}

/// An NSD in the map.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NsdEntry {
    /// Its id.
    pub nsd: NsdId,
    /// NSDs with the same number may fail together.
    pub failure_group: FailureGroupId,
    /// Capacity in GiB, at least 1: how many slots it should get.
    pub weight: u32,
    /// Whether it takes part.
    pub state: NsdState,
}

/// A slot of a group that isn't where the seed says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SlotException {
    /// Holds the slot's pieces.
    pub current: NsdId,
    /// Receives them while the slot moves; writers put to both, readers try it first.
    pub next: Option<NsdId>,
}

/// The map of one storage pool.
///
/// `seeded` is the NSD list that the groups were drawn from; NSDs added later take part
/// through `exceptions`, which the planner writes, so that adding one moves as little as
/// needed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolMap {
    /// Counts the changes of this map.
    pub epoch: MapEpoch,
    /// The pool's scheme.
    pub scheme: Scheme,
    /// Where the groups were drawn from.
    pub seed: u64,
    /// Groups in the pool.
    pub groups: u32,
    /// The NSDs that the groups were drawn from, in order.
    pub seeded: Vec<NsdEntry>,
    /// All NSDs now.
    pub nsds: Vec<NsdEntry>,
    /// Slots that aren't where the seed says, by (group, slot).
    pub exceptions: BTreeMap<(u32, u8), SlotException>,
    /// Versions of the groups that have changed; others are at 1.
    pub versions: BTreeMap<u32, GroupVersion>,
}

impl PoolMap {
    /// The version of a group.
    #[must_use]
    pub fn version(&self, group: GroupId) -> GroupVersion {
        self.versions
            .get(&group.0)
            .copied()
            .unwrap_or(GroupVersion(1))
    }

    /// The entry of an NSD.
    #[must_use]
    pub fn nsd(&self, nsd: NsdId) -> Option<&NsdEntry> {
        self.nsds.iter().find(|entry| entry.nsd == nsd)
    }
}
