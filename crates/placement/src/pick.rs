//! Chooses the group of a new segment.

use crate::groups::Groups;
use crate::layout;
use crate::random::mix;
use model::{FailureGroupId, GroupId, GroupVersion, NsdId, Scheme};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Most groups that one pick looks at.
const LOOK_MAX: u32 = 256;
/// Most whole groups that one pick passes over because others have more free space.
const PASS_MAX: u32 = 8;
/// Whole groups among which one pick takes the one whose NSDs got the fewest bytes.
const CHOICE: u32 = 8;

/// An NSD's state as far as the picker needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Availability {
    /// Whether it takes new pieces now.
    pub writable: bool,
    /// Free share of its capacity in 1/65,536.
    pub free: u32,
    /// Bytes for its weight that it lately got more than others, in any unit.
    pub put: u64,
}

/// Where a new segment goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The group.
    pub group: GroupId,
    /// Its version, for the fence of the puts.
    pub version: GroupVersion,
    /// The segment's scheme.
    pub scheme: Scheme,
    /// Slots that hold no piece of it.
    pub skipped_slots: u32,
}

/// No group has enough slots that can take pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoGroup {
    /// Most slots of any one group that can take pieces.
    pub live: usize,
    /// Minimum number of slots that the segment needs.
    pub needed: usize,
}

/// A group's live slots and free space.
struct Candidate {
    group: GroupId,
    live: u32,
    /// Free share of the fullest live member.
    free: u32,
    /// What its live members lately got more than others.
    put: u64,
}

impl Groups {
    /// Chooses a group of the newest generation for a segment of `length` bytes. Consecutive counters
    /// cycle through all its groups and therefore all NSDs. Whole groups come first; among them, those whose fullest
    /// member has more free space are taken more often, and of a few next to each other the one whose
    /// NSDs got the fewest bytes, because segments are of different sizes. Without a whole group, the one with the
    /// most live slots is taken with a narrower scheme.
    pub fn pick(
        &self,
        counter: u64,
        length: u32,
        availability: &dyn Fn(NsdId) -> Availability,
    ) -> Result<Placement, NoGroup> {
        let most_free = self
            .map()
            .nsds
            .iter()
            .map(|entry| availability(entry.nsd))
            .filter(|availability| availability.writable)
            .map(|availability| availability.free)
            .max()
            .unwrap_or(0);
        let mut best: Option<Candidate> = None;
        let mut chosen: Option<Candidate> = None;
        let (mut passed, mut taken) = (0, 0);
        for step in 0..self.count().min(LOOK_MAX) {
            let group = ((counter % u64::from(self.count())) as u32 + step) % self.count();
            let group = GroupId(self.map().newest().first_group.0 + group);
            let candidate = self.candidate(group, availability);
            let whole = candidate.live.count_ones() as usize == self.width();
            if whole && (passed >= PASS_MAX || is_taken(counter, &candidate, most_free)) {
                taken += 1;
                if chosen
                    .as_ref()
                    .is_none_or(|chosen| candidate.put < chosen.put)
                {
                    chosen = Some(candidate);
                }
                if taken == CHOICE {
                    break;
                }
                continue;
            }
            passed += u32::from(whole);
            let rank = |candidate: &Candidate| (candidate.live.count_ones(), candidate.free);
            if best
                .as_ref()
                .is_none_or(|best| rank(&candidate) > rank(best))
            {
                best = Some(candidate);
            }
        }
        let best = chosen.or(best).expect("a pool has at least one group");
        self.place(counter, length, &best, availability)
    }

    /// The scheme that a segment of `length` bytes has when no NSD of the pool is missing: repair
    /// widens segments that were written narrower.
    #[must_use]
    pub fn whole_scheme(&self, length: u32) -> Option<Scheme> {
        let failure_groups: BTreeSet<FailureGroupId> = self
            .map()
            .nsds
            .iter()
            .filter(|entry| entry.state == model::map::NsdState::Active)
            .map(|entry| entry.failure_group)
            .collect();
        layout::scheme_for(
            self.map().scheme(),
            length,
            failure_groups.len().min(self.width()),
            self.allows_degraded_writes(),
        )
    }

    fn candidate(&self, group: GroupId, availability: &dyn Fn(NsdId) -> Availability) -> Candidate {
        let mut out = Candidate {
            group,
            live: 0,
            free: u32::MAX,
            put: 0,
        };
        for (slot, members) in self.members(group).iter().enumerate() {
            // A moving slot can take pieces as long as one of its two NSDs can.
            let writable = members.in_reading_order().map(availability);
            let emptiest = writable.filter(|it| it.writable).max_by_key(|it| it.free);
            if let Some(emptiest) = emptiest {
                out.live |= 1 << slot;
                out.free = out.free.min(emptiest.free);
                out.put = out.put.saturating_add(emptiest.put);
            }
        }
        out
    }

    fn place(
        &self,
        counter: u64,
        length: u32,
        candidate: &Candidate,
        availability: &dyn Fn(NsdId) -> Availability,
    ) -> Result<Placement, NoGroup> {
        let live = candidate.live.count_ones() as usize;
        let pool = self.map().scheme();
        let scheme = layout::scheme_for(pool, length, live, self.allows_degraded_writes()).ok_or(
            NoGroup {
                live,
                needed: if let Scheme::Erasure { m, .. } = pool {
                    usize::from(m) + 1
                } else {
                    pool.width().min(2)
                },
            },
        )?;
        let surplus = live - scheme.width();
        let skipped = self.skip(counter, candidate, surplus, availability);
        let all = (1u32 << self.width()) - 1;
        Ok(Placement {
            group: candidate.group,
            version: self.map().version(candidate.group),
            scheme,
            skipped_slots: (all & !candidate.live) | skipped,
        })
    }

    /// Which `surplus` live slots stay empty: those with the least free space, and of those with about the
    /// same space, those that got the most bytes. Others are chosen at random, so that every slot gets its share of
    /// short segments.
    fn skip(
        &self,
        counter: u64,
        candidate: &Candidate,
        surplus: usize,
        availability: &dyn Fn(NsdId) -> Availability,
    ) -> u32 {
        if surplus == 0 {
            return 0;
        }
        let mut ranked: Vec<(u32, Reverse<u64>, u64, usize)> = self
            .members(candidate.group)
            .iter()
            .enumerate()
            .filter(|(slot, _)| candidate.live & (1 << slot) != 0)
            .map(|(slot, members)| {
                let nsds = members.in_reading_order().map(availability);
                let emptiest = nsds.max_by_key(|it| it.free);
                let (free, put) = emptiest.map_or((0, 0), |it| (it.free, it.put));
                let chance = mix(counter ^ mix(slot as u64 + 1));
                (free / 8192, Reverse(put), chance, slot)
            })
            .collect();
        ranked.sort_unstable();
        ranked
            .iter()
            .take(surplus)
            .fold(0, |bits, (_, _, _, slot)| bits | 1 << slot)
    }
}

/// Whether a whole group is taken in its turn: always if the free share of its fullest member is at
/// least nine tenths of that of the emptiest NSD, else in proportion.
fn is_taken(counter: u64, candidate: &Candidate, most_free: u32) -> bool {
    let most = u64::from(most_free);
    let free = u64::from(candidate.free) * 10 / 9;
    free >= most || mix(counter ^ mix(u64::from(candidate.group.0))) % most < free
}
