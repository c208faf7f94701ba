//! The map of a pool: which NSDs hold which placement group. Small enough to be kept in
//! coordination, because it is only the NSD list, a seed, and the exceptions.

use crate::{FailureGroupId, GroupId, GroupVersion, MapEpoch, NsdId, Scheme};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An NSD's part in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum NsdState {
    /// Reads and writes.
    Active,
    /// Its pieces are being moved away; it gets no new ones.
    Draining,
    /// Permanently gone; its pieces are rebuilt elsewhere.
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
    /// Its part in the pool.
    pub state: NsdState,
}

/// A slot of a group whose NSD differs from the one the seed gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SlotException {
    /// The NSD that holds the slot's pieces.
    pub current: NsdId,
    /// The NSD that receives them while the slot moves; writers put to both, readers try it first.
    pub next: Option<NsdId>,
}

/// The map of one storage pool.
///
/// The groups were drawn from the NSD list `seeded`. NSDs added later take part through
/// `exceptions`, which the planner writes so that adding an NSD moves as little as possible.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolMap {
    /// Counts the changes of this map.
    pub epoch: MapEpoch,
    /// The pool's scheme.
    pub scheme: Scheme,
    /// The seed that the groups were drawn with.
    pub seed: u64,
    /// Groups in the pool.
    pub groups: u32,
    /// The NSDs that the groups were drawn from, in order.
    pub seeded: Vec<NsdEntry>,
    /// All NSDs now.
    pub nsds: Vec<NsdEntry>,
    /// Slots whose NSD differs from the one the seed gives, by (group, slot).
    pub exceptions: BTreeMap<(u32, u8), SlotException>,
    /// Versions of the groups that have changed; all others are at 1.
    pub versions: BTreeMap<u32, GroupVersion>,
}

impl PoolMap {
    /// The version of a group.
    #[must_use]
    pub fn version(&self, group: GroupId) -> GroupVersion {
        self.versions
            .get(&group.0)
            .copied()
            .unwrap_or(GroupVersion::FIRST)
    }

    /// The entry of an NSD.
    #[must_use]
    pub fn nsd(&self, nsd: NsdId) -> Option<&NsdEntry> {
        self.nsds.iter().find(|entry| entry.nsd == nsd)
    }
}
