//! Placement groups: which NSD holds which slot.
//!
//! A generation of a pool has [`GROUPS_PER_NSD`] groups for each NSD that it was drawn from, so with
//! schemes of width w every NSD has about 32 × w slots of it. The groups are drawn from the seed in one
//! pass: each takes, from different failure groups, the NSDs with the fewest slots for their
//! weight, choosing randomly among equals. Any run of consecutive groups is thus spread evenly over
//! the NSDs, and every NSD shares groups with all others. The draw is part of the format: a golden
//! test pins it.

use crate::random::Random;
use model::map::{GROUPS_MAX, Generation, GroupStanding, NsdEntry, NsdState, PoolMap};
use model::{FailureGroupId, GroupId, NsdId, Scheme};
use std::collections::{BTreeMap, BTreeSet};

/// Groups per NSD of a new generation.
pub const GROUPS_PER_NSD: u32 = 32;

/// The NSDs of one slot of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotMembers {
    /// The NSD that holds the slot's pieces; [`NsdId::NONE`] if the slot never had one.
    pub current: NsdId,
    /// The NSD that receives them while the slot moves: writers put to both, readers try it first.
    pub next: Option<NsdId>,
}

impl SlotMembers {
    /// The slot's NSDs in the order in which a reader asks them: next, then current.
    pub fn in_reading_order(self) -> impl Iterator<Item = NsdId> {
        self.next
            .into_iter()
            .chain((self.current != NsdId::NONE).then_some(self.current))
    }

    /// The NSD that holds the slot once it has stopped moving.
    #[must_use]
    pub fn target(self) -> NsdId {
        self.next.unwrap_or(self.current)
    }
}

/// The drawn slots of one generation.
struct Drawn {
    first: GroupId,
    end: GroupId,
    scheme: Scheme,
    slots: Vec<SlotMembers>,
}

impl Drawn {
    fn new(generation: &Generation) -> Self {
        let width = generation.scheme.width();
        let still = |current| SlotMembers {
            current,
            next: None,
        };
        let mut slots: Vec<_> = draw(generation).into_iter().map(still).collect();
        for ((group, slot), exception) in &generation.exceptions {
            let index = group
                .checked_sub(generation.first_group.0)
                .map(|group| group as usize * width + usize::from(*slot));
            if let Some(members) = index.and_then(|index| slots.get_mut(index)) {
                *members = SlotMembers {
                    current: exception.current,
                    next: exception.next,
                };
            }
        }
        Self {
            first: generation.first_group,
            end: generation.end(),
            scheme: generation.scheme,
            slots,
        }
    }

    fn members(&self, group: GroupId) -> &[SlotMembers] {
        let width = self.scheme.width();
        let from = (group.0 - self.first.0) as usize * width;
        &self.slots[from..from + width]
    }

    fn position(&self, index: usize) -> (GroupId, u8) {
        let width = self.scheme.width();
        let group = u32::try_from(index / width).expect("group numbers have 32 bits");
        let slot = u8::try_from(index % width).expect("a group has at most 20 slots");
        (GroupId(self.first.0 + group), slot)
    }
}

/// All groups of a pool, drawn from its map. Immutable; a changed map needs new `Groups`.
pub struct Groups {
    map: PoolMap,
    /// Of each generation, in the map's order.
    drawn: Vec<Drawn>,
    degraded_allowed: bool,
}

impl Groups {
    /// Draws the groups. Costs about 0.2 µs per slot.
    #[must_use]
    pub fn new(map: &PoolMap) -> Self {
        assert!(
            !map.generations.is_empty(),
            "a pool has at least one generation"
        );
        // NSDs that were given up stay in the map. They count with schemes that no pool of two can have.
        let is_for_two = map.scheme().tolerance() <= 1;
        let counts = |entry: &&NsdEntry| !is_for_two || entry.state != NsdState::Lost;
        let counted = map.nsds.iter().filter(counts);
        let failure_groups: BTreeSet<_> = counted.map(|entry| entry.failure_group).collect();
        Self {
            map: map.clone(),
            drawn: map.generations.iter().map(Drawn::new).collect(),
            degraded_allowed: failure_groups.len() <= 2,
        }
    }

    /// The map that the groups were drawn from.
    #[must_use]
    pub fn map(&self) -> &PoolMap {
        &self.map
    }

    /// All groups, in order. Their numbers may have gaps.
    pub fn all(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.map.all_groups()
    }

    /// Groups that take new segments.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.map.newest().groups
    }

    /// Slots of each group that takes new segments: the width of the pool's scheme.
    #[must_use]
    pub fn width(&self) -> usize {
        self.map.scheme().width()
    }

    /// The scheme of a group's whole segments; `None` if the pool has no such group.
    #[must_use]
    pub fn scheme_of(&self, group: GroupId) -> Option<Scheme> {
        self.drawn_of(group).map(|drawn| drawn.scheme)
    }

    /// The slots of a group; none if the pool has no such group.
    #[must_use]
    pub fn members(&self, group: GroupId) -> &[SlotMembers] {
        self.drawn_of(group)
            .map_or(&[], |drawn| drawn.members(group))
    }

    fn drawn_of(&self, group: GroupId) -> Option<&Drawn> {
        // Nearly all groups are of the newest generation.
        let mut newest_first = self.drawn.iter().rev();
        newest_first.find(|drawn| drawn.first <= group && group < drawn.end)
    }

    /// Whether the NSD is current or next of a slot of the group.
    #[must_use]
    pub fn is_member(&self, nsd: NsdId, group: GroupId) -> bool {
        let mut members = self
            .members(group)
            .iter()
            .flat_map(|slot| slot.in_reading_order());
        members.any(|member| member == nsd)
    }

    /// Whether the pool has the group.
    #[must_use]
    pub fn contains(&self, group: GroupId) -> bool {
        self.map.standing(group) == GroupStanding::Known
    }

    /// Whether segments may be written without any redundancy while NSDs are missing: only in pools
    /// of at most two failure groups, which could otherwise not write at all. With a scheme that two can carry, those of
    /// NSDs that were given up don't count.
    #[must_use]
    pub fn allows_degraded_writes(&self) -> bool {
        self.degraded_allowed
    }

    /// Slots per NSD in groups that take new segments, with moving slots counted at their
    /// destination. Leaves out [`NsdId::NONE`].
    #[must_use]
    pub fn load(&self) -> BTreeMap<NsdId, u64> {
        self.load_of(self.drawn.len() - 1)
    }

    /// As [`Groups::load`], of a generation by its place in the map.
    pub(crate) fn load_of(&self, generation: usize) -> BTreeMap<NsdId, u64> {
        let mut load: BTreeMap<NsdId, u64> =
            self.map.nsds.iter().map(|entry| (entry.nsd, 0)).collect();
        for slot in &self.drawn[generation].slots {
            if slot.target() != NsdId::NONE {
                *load.entry(slot.target()).or_default() += 1;
            }
        }
        load
    }

    /// Slots that an NSD is current or next of, as (group, slot), in order.
    #[must_use]
    pub fn slots_of(&self, nsd: NsdId) -> Vec<(GroupId, u8)> {
        let holds = |slot: &SlotMembers| slot.current == nsd || slot.next == Some(nsd);
        self.positions(holds)
    }

    /// Whether an NSD is current or next of a slot that takes new segments.
    #[must_use]
    pub fn takes_new(&self, nsd: NsdId) -> bool {
        let slots = self.slots_of(nsd).into_iter();
        slots
            .map(|(group, _)| group)
            .any(|group| !self.map.is_closed(group))
    }

    /// How many slots that take new segments an NSD has which aren't moving to another one.
    #[must_use]
    pub fn staying_on(&self, nsd: NsdId) -> usize {
        let newest = self.drawn.last();
        let slots = newest.into_iter().flat_map(|drawn| &drawn.slots);
        let stays = |slot: &&SlotMembers| slot.current == nsd && slot.next.is_none();
        slots.filter(stays).count()
    }

    /// Slots that are moving, in order.
    #[must_use]
    pub fn moving(&self) -> Vec<(GroupId, u8)> {
        self.positions(|slot| slot.next.is_some())
    }

    fn positions(&self, wanted: impl Fn(&SlotMembers) -> bool) -> Vec<(GroupId, u8)> {
        let mut out = Vec::new();
        for drawn in &self.drawn {
            let slots = drawn.slots.iter().enumerate();
            let found = slots.filter(|(_, slot)| wanted(slot));
            out.extend(found.map(|(index, _)| drawn.position(index)));
        }
        out
    }
}

/// Groups of a generation that is drawn from `nsds` NSDs.
pub(crate) fn group_count(nsds: usize) -> u32 {
    u32::try_from(nsds)
        .unwrap_or(u32::MAX)
        .saturating_mul(GROUPS_PER_NSD)
        .clamp(1, GROUPS_MAX)
}

/// The members of all slots, group by group, as drawn from the seed.
fn draw(generation: &Generation) -> Vec<NsdId> {
    let width = generation.scheme.width();
    let mut random = Random::new(generation.seed);
    let mut taken = vec![0u64; generation.seeded.len()];
    // The NSDs by slots for their weight; the first one is taken next.
    let mut queue: BTreeSet<(u128, usize)> = BTreeSet::new();
    for (index, entry) in generation.seeded.iter().enumerate() {
        queue.insert((fullness(entry, 0, &mut random), index));
    }
    let mut out = Vec::with_capacity(generation.groups as usize * width);
    for _ in 0..generation.groups {
        let chosen = choose(&generation.seeded, &queue, width);
        let mut members = vec![NsdId::NONE; width];
        for (member, key) in members.iter_mut().zip(&chosen) {
            let entry = &generation.seeded[key.1];
            taken[key.1] += 1;
            queue.remove(key);
            queue.insert((fullness(entry, taken[key.1], &mut random), key.1));
            *member = entry.nsd;
        }
        random.shuffle(&mut members);
        out.extend(members);
    }
    out
}

/// The first `width` NSDs of the queue that are in different failure groups.
fn choose(
    seeded: &[NsdEntry],
    queue: &BTreeSet<(u128, usize)>,
    width: usize,
) -> Vec<(u128, usize)> {
    let mut failure_groups: Vec<FailureGroupId> = Vec::with_capacity(width);
    let mut chosen = Vec::with_capacity(width);
    for key in queue {
        let failure_group = seeded[key.1].failure_group;
        if !failure_groups.contains(&failure_group) {
            failure_groups.push(failure_group);
            chosen.push(*key);
            if chosen.len() == width {
                break;
            }
        }
    }
    chosen
}

/// Slots for the weight, plus a random fraction of a slot, so that equals are in random order.
fn fullness(entry: &NsdEntry, taken: u64, random: &mut Random) -> u128 {
    let slots = (u128::from(taken) << 32) | u128::from(random.next() >> 32);
    (slots << 32) / u128::from(entry.weight.max(1))
}

#[cfg(test)]
mod tests;
