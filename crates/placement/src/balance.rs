//! Which segments move so that every NSD holds its share of a pool's bytes.
//!
//! Slots are spread evenly, but segments are not always: while an NSD is away, they are written to
//! groups without it. [`Uses`] is how much each NSD holds. A segment is worth moving if that lowers
//! the sum of the squares of all uses, each for its weight, by enough: so moving ends, because that sum
//! can't fall for ever, and because the least that is enough grows with the greatest difference.

use crate::groups::Groups;
use crate::layout;
use crate::random::mix;
use model::map::{NsdState, PoolMap};
use model::{GroupId, NsdId, SegmentPlace};
use std::collections::BTreeMap;

/// Data begins to move when an NSD's use differs from its share by more than this, in thousandths.
const UNEVEN_FROM: u64 = 60;
/// And by more than these bytes.
const UNEVEN_BYTES: u128 = 256 * 1024;
/// Data stops moving when no NSD's use differs by more than this, in thousandths.
pub const EVEN_BELOW: u64 = 20;
/// Most groups that are looked at for one segment.
const LOOK_MAX: u32 = 256;
/// Bytes for a weight are counted in 1/1,024.
const FINE: u128 = 1024;

/// How many bytes of pieces each NSD of a pool holds that may get new ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uses {
    /// Of each NSD: its weight, and its bytes.
    nsds: BTreeMap<NsdId, (u64, u64)>,
}

impl Uses {
    /// No NSD holds anything.
    #[must_use]
    pub fn new(map: &PoolMap) -> Self {
        let active = map.nsds.iter();
        let active = active.filter(|entry| entry.state == NsdState::Active);
        let empty = active.map(|entry| (entry.nsd, (u64::from(entry.weight.max(1)), 0)));
        Self {
            nsds: empty.collect(),
        }
    }

    /// Counts the pieces of a segment where they are, or are going.
    pub fn add(&mut self, groups: &Groups, place: &SegmentPlace) {
        let bytes = u64::from(layout::piece_length(place.scheme, place.length));
        for nsd in holders(groups, place) {
            if let Some((_, held)) = self.nsds.get_mut(&nsd) {
                *held = held.saturating_add(bytes);
            }
        }
    }

    /// Each NSD's bytes.
    pub fn bytes(&self) -> impl Iterator<Item = (NsdId, u64)> + '_ {
        self.nsds.iter().map(|(nsd, (_, bytes))| (*nsd, *bytes))
    }

    /// The greatest difference of an NSD's bytes from its share, in thousandths of it.
    #[must_use]
    pub fn unevenness(&self) -> u64 {
        let share = self.share().max(1);
        u64::try_from(self.worst() * 1000 / share).unwrap_or(u64::MAX)
    }

    /// Whether data should begin to move.
    #[must_use]
    pub fn is_uneven(&self) -> bool {
        let weights: u128 = self.nsds.values().map(|it| u128::from(it.0)).sum();
        let bytes = self.worst() * weights / self.nsds.len().max(1) as u128 / FINE;
        self.unevenness() > UNEVEN_FROM && bytes > UNEVEN_BYTES
    }

    /// Notes that a segment moves to another group if that makes the uses more equal. `chance`
    /// chooses the groups that are looked at if there are many.
    pub fn move_if_better(&mut self, groups: &Groups, place: &SegmentPlace, chance: u64) -> bool {
        let from = holders(groups, place);
        let bytes = u64::from(layout::piece_length(place.scheme, place.length));
        if from.iter().any(|nsd| !self.nsds.contains_key(nsd)) {
            return false;
        }
        let newest = groups.map().newest();
        let start = mix(chance) % u64::from(newest.groups);
        let candidates = (0..newest.groups.min(LOOK_MAX)).map(|step| {
            let at = (start + u64::from(step)) % u64::from(newest.groups);
            GroupId(newest.first_group.0 + at as u32)
        });
        let best = candidates
            .filter_map(|group| self.emptiest(groups, group, from.len()))
            .min_by_key(|to| to.iter().map(|nsd| self.fullness(*nsd)).sum::<u128>());
        let Some(to) = best else { return false };
        let enough = self.worst() * u128::from(bytes);
        if self.gain(&from, &to, bytes) < i128::try_from(enough.max(1)).unwrap_or(i128::MAX) {
            return false;
        }
        for nsd in &from {
            self.nsds
                .entry(*nsd)
                .and_modify(|it| it.1 -= bytes.min(it.1));
        }
        for nsd in &to {
            self.nsds.entry(*nsd).and_modify(|it| it.1 += bytes);
        }
        true
    }

    /// By how much the sum of the squares falls when pieces move.
    fn gain(&self, from: &[NsdId], to: &[NsdId], bytes: u64) -> i128 {
        let square = |nsd: &NsdId, change: i128| {
            let (weight, held) = self.nsds[nsd];
            let held = i128::from(held);
            let now = (held + change).max(0);
            (held * held - now * now) * FINE as i128 / i128::from(weight)
        };
        let bytes = i128::from(bytes);
        let leaves = from.iter().filter(|nsd| !to.contains(nsd));
        let comes = to.iter().filter(|nsd| !from.contains(nsd));
        let left: i128 = leaves.map(|nsd| square(nsd, -bytes)).sum();
        left + comes.map(|nsd| square(nsd, bytes)).sum::<i128>()
    }

    /// The emptiest NSDs of a group, for as many pieces; `None` if it hasn't so many.
    fn emptiest(&self, groups: &Groups, group: GroupId, pieces: usize) -> Option<Vec<NsdId>> {
        let members = groups.members(group).iter().map(|slot| slot.target());
        let mut usable: Vec<NsdId> = members.filter(|nsd| self.nsds.contains_key(nsd)).collect();
        // A group that lacks a member isn't written as a whole.
        if usable.len() < groups.width().min(self.nsds.len()).max(pieces) {
            return None;
        }
        usable.sort_by_key(|nsd| self.fullness(*nsd));
        usable.truncate(pieces);
        Some(usable)
    }

    fn fullness(&self, nsd: NsdId) -> u128 {
        let (weight, bytes) = self.nsds.get(&nsd).copied().unwrap_or((1, 0));
        u128::from(bytes) * FINE / u128::from(weight)
    }

    /// The greatest difference of an NSD's bytes for its weight from the others'.
    fn worst(&self) -> u128 {
        let share = self.share();
        let all = self.nsds.keys();
        let differences = all.map(|nsd| self.fullness(*nsd).abs_diff(share));
        differences.max().unwrap_or(0)
    }

    /// The bytes for a weight that all should hold.
    fn share(&self) -> u128 {
        let weights: u128 = self.nsds.values().map(|it| u128::from(it.0)).sum();
        let bytes: u128 = self.nsds.values().map(|it| u128::from(it.1)).sum();
        bytes * FINE / weights.max(1)
    }
}

/// The NSDs that hold, or will hold, a segment's pieces.
fn holders(groups: &Groups, place: &SegmentPlace) -> Vec<NsdId> {
    let slots = groups.members(place.group);
    let pieces = 0..place.scheme.width() as u8;
    let held = pieces.filter_map(|piece| slots.get(usize::from(place.slot_of(piece))));
    held.map(|slot| slot.target()).collect()
}

#[cfg(test)]
mod tests;
