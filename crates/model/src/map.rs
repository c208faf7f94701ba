//! The map of a pool: which NSDs hold which placement group. Small enough to be kept in
//! coordination, because it is only the NSD list, and for each generation a seed, the list that it
//! was drawn from, and the exceptions.
//!
//! # Generations
//!
//! The groups of a pool belong to *generations*. Each has its own scheme, seed, NSD list and groups.
//! The newest one takes all new segments; the others are *closed*: they are only read, repaired and
//! emptied. A pool changes its scheme or block size, or grows far beyond the NSDs that it began
//! with, by getting a new generation. Slots of a generation move from NSD to NSD without one.
//!
//! *A write* picks a group of the newest generation of the map that its process knows, and its puts
//! carry the group's version. Closing a generation raises the versions of all its groups
//! ([`Generation::CLOSED`]), so NSDs that know refuse puts by an older map, and the write goes into
//! the newest generation. *A read* finds the generation by the group's number in the extent. Numbers
//! of groups are given once, so a group that is in no generation was emptied (the extent is stale)
//! or is newer than the reader's map. *A failure* of an NSD concerns its slots in all generations:
//! each is rebuilt elsewhere, whether the generation is closed or not.
//!
//! A closed generation leaves the map when no shard can name a segment in it any more and no NSD
//! holds a blob of it; see `docs/protocols/generations.md`.

use crate::{
    Error, ErrorKind, FailureGroupId, GroupId, GroupVersion, MapEpoch, NsdId, Result, Scheme,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most generations of a pool at a time.
pub const GENERATIONS_MAX: usize = 4;
/// Most groups of a generation.
pub const GROUPS_MAX: u32 = 65_536;
/// Most named failure groups of a pool.
pub const FAILURE_GROUP_NAMES_MAX: usize = 1024;
/// Most bytes of the name of a failure group.
pub const FAILURE_GROUP_NAME_BYTES_MAX: usize = 64;

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

/// Groups that were drawn together.
///
/// They were drawn from the NSD list `seeded`. NSDs added later take part through `exceptions`,
/// which the planner writes so that adding an NSD moves as little as possible.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Generation {
    /// Its first group. The others follow; no other generation of the pool has or had them.
    pub first_group: GroupId,
    /// Number of groups, at least 1.
    pub groups: u32,
    /// The scheme of whole segments in it.
    pub scheme: Scheme,
    /// Most plain bytes of a new segment of a file; `None`: as the setting `block_bytes` says.
    pub block_bytes: Option<u32>,
    /// The seed that the groups were drawn with.
    pub seed: u64,
    /// The NSDs that the groups were drawn from, in order.
    pub seeded: Vec<NsdEntry>,
    /// Slots whose NSD differs from the one the seed gives, by (group, slot).
    pub exceptions: BTreeMap<(u32, u8), SlotException>,
    /// Versions of the groups whose slots have changed; all others are at 1.
    pub versions: BTreeMap<u32, GroupVersion>,
}

impl Generation {
    /// Is set in the versions of all groups of a closed generation.
    pub const CLOSED: u32 = 1 << 31;

    /// The first group number after it.
    #[must_use]
    pub fn end(&self) -> GroupId {
        let end = self.first_group.0.checked_add(self.groups);
        GroupId(end.expect("a generation's groups have numbers of 32 bits"))
    }

    /// Whether the group is one of it.
    #[must_use]
    pub fn contains(&self, group: GroupId) -> bool {
        (self.first_group..self.end()).contains(&group)
    }

    /// Its groups, in order.
    pub fn all_groups(&self) -> impl Iterator<Item = GroupId> + use<> {
        (self.first_group.0..self.end().0).map(GroupId)
    }
}

/// A name that administrators gave to a failure group, for instance that of a rack.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FailureGroupName {
    /// The failure group.
    pub failure_group: FailureGroupId,
    /// Its name.
    pub name: String,
}

/// The map of one storage pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolMap {
    /// Counts the changes of this map.
    pub epoch: MapEpoch,
    /// All NSDs now.
    pub nsds: Vec<NsdEntry>,
    /// Failure groups with names. Others are nodes, or NSDs of a node that is alone.
    pub names: Vec<FailureGroupName>,
    /// Oldest first, 1 to [`GENERATIONS_MAX`] of them. The last takes new segments.
    pub generations: Vec<Generation>,
}

/// Whether a map has a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupStanding {
    /// A generation has it.
    Known,
    /// Its generation was emptied and left the map.
    Gone,
    /// A newer map may have it.
    Future,
}

impl PoolMap {
    /// The generation that takes new segments.
    #[must_use]
    pub fn newest(&self) -> &Generation {
        self.generations
            .last()
            .expect("a pool has at least one generation")
    }

    /// Refuses what no sound daemon stores: generations that aren't 1 to [`GENERATIONS_MAX`], that have
    /// no groups or more than [`GROUPS_MAX`], or whose group numbers aren't in order.
    ///
    /// # Errors
    /// `Corrupt` that says what is wrong.
    pub fn check(&self) -> Result<()> {
        let wrong = |why: String| Err(Error::new(ErrorKind::Corrupt, why));
        let count = self.generations.len();
        if !(1..=GENERATIONS_MAX).contains(&count) {
            return wrong(format!(
                "{count} generations of groups, not 1 to {GENERATIONS_MAX}"
            ));
        }
        let mut end = 0;
        for generation in &self.generations {
            let (first, groups) = (generation.first_group.0, generation.groups);
            let after = first.checked_add(groups).filter(|_| first >= end);
            let fits = (1..=GROUPS_MAX).contains(&groups);
            let Some(after) = after.filter(|_| fits) else {
                return wrong(format!(
                    "a generation of {groups} groups from number {first} on"
                ));
            };
            end = after;
        }
        Ok(())
    }

    /// The scheme of new segments.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.newest().scheme
    }

    /// The generations that take no new segments, oldest first.
    #[must_use]
    pub fn closed(&self) -> &[Generation] {
        &self.generations[..self.generations.len().saturating_sub(1)]
    }

    /// The generation of a group.
    #[must_use]
    pub fn generation_of(&self, group: GroupId) -> Option<&Generation> {
        self.generations
            .iter()
            .find(|generation| generation.contains(group))
    }

    /// Whether the map has a group.
    #[must_use]
    pub fn standing(&self, group: GroupId) -> GroupStanding {
        if self.generation_of(group).is_some() {
            GroupStanding::Known
        } else if group < self.newest().end() {
            GroupStanding::Gone
        } else {
            GroupStanding::Future
        }
    }

    /// Whether a group is of a closed generation, or of one that left the map.
    #[must_use]
    pub fn is_closed(&self, group: GroupId) -> bool {
        group < self.newest().first_group
    }

    /// The version of a group. No put has a higher one than that of a group which is
    /// [`GroupStanding::Gone`].
    #[must_use]
    pub fn version(&self, group: GroupId) -> GroupVersion {
        let generation = self.generation_of(group);
        if generation.is_none() && self.is_closed(group) {
            return GroupVersion(u32::MAX);
        }
        let versions = generation.map(|generation| &generation.versions);
        let changes = versions.and_then(|versions| versions.get(&group.0));
        let version = changes.copied().unwrap_or(GroupVersion::FIRST);
        match self.is_closed(group) {
            true => GroupVersion(version.0 | Generation::CLOSED),
            false => version,
        }
    }

    /// The groups of all generations, in order.
    pub fn all_groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.generations.iter().flat_map(Generation::all_groups)
    }

    /// The entry of an NSD.
    #[must_use]
    pub fn nsd(&self, nsd: NsdId) -> Option<&NsdEntry> {
        self.nsds.iter().find(|entry| entry.nsd == nsd)
    }

    /// The name of a failure group, if it was given one.
    #[must_use]
    pub fn name_of(&self, failure_group: FailureGroupId) -> Option<&str> {
        let mut names = self.names.iter();
        let found = names.find(|it| it.failure_group == failure_group)?;
        Some(&found.name)
    }
}

/// A map as it was stored before there were generations.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MapWithoutGenerations {
    /// As [`PoolMap::epoch`].
    pub epoch: MapEpoch,
    /// As [`Generation::scheme`].
    pub scheme: Scheme,
    /// As [`Generation::seed`].
    pub seed: u64,
    /// As [`Generation::groups`].
    pub groups: u32,
    /// As [`Generation::seeded`].
    pub seeded: Vec<NsdEntry>,
    /// As [`PoolMap::nsds`].
    pub nsds: Vec<NsdEntry>,
    /// As [`Generation::exceptions`].
    pub exceptions: BTreeMap<(u32, u8), SlotException>,
    /// As [`Generation::versions`].
    pub versions: BTreeMap<u32, GroupVersion>,
}

impl From<MapWithoutGenerations> for PoolMap {
    fn from(old: MapWithoutGenerations) -> Self {
        Self {
            epoch: old.epoch,
            nsds: old.nsds,
            names: Vec::new(),
            generations: vec![Generation {
                first_group: GroupId(0),
                groups: old.groups,
                scheme: old.scheme,
                block_bytes: None,
                seed: old.seed,
                seeded: old.seeded,
                exceptions: old.exceptions,
                versions: old.versions,
            }],
        }
    }
}
