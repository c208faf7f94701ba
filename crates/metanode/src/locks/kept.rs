//! What a session says that it holds, of all that it has said to this owner: the rest ends.
//!
//! Bounded by what the session says; ranges that touch each other are joined.

use super::held::{Key, Piece, Place};
use model::lock::LockDoor;
use model::owner::Reclaimed;
use model::{LockKind, LockRange, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// The doors and locks that stay.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    doors: BTreeSet<LockDoor>,
    /// The first and last bytes of ranges without overlaps.
    ranges: BTreeMap<(Place, LockKind), BTreeMap<u64, u64>>,
}

impl Kept {
    /// A part of what the session says.
    pub(crate) fn add(&mut self, session: SessionId, part: &Reclaimed) {
        let doors = part.doors.iter().filter(|door| door.session == session);
        self.doors.extend(doors);
        for lock in &part.locks {
            if let Some(kind) = lock.kind
                && lock.range.start <= lock.range.end
            {
                let ranges = self.ranges.entry((Place::of(lock), kind)).or_default();
                join(ranges, lock.range);
            }
        }
    }

    pub(super) fn has_door(&self, door: LockDoor) -> bool {
        self.doors.contains(&door)
    }

    /// The parts of a lock that don't stay.
    pub(super) fn ending(&self, key: &Key, piece: &Piece) -> Vec<LockRange> {
        let none = BTreeMap::new();
        let ranges = self.ranges.get(&(key.place(), key.kind)).unwrap_or(&none);
        let first = ranges.range(..=key.start).next_back();
        let later = ranges.range(key.start..=piece.end);
        let mut ending = Vec::new();
        let mut start = key.start;
        for (kept_start, kept_end) in first.into_iter().chain(later) {
            if *kept_end < start {
                continue;
            }
            if *kept_start > start {
                let end = kept_start - 1;
                ending.push(LockRange { start, end });
            }
            match kept_end.checked_add(1) {
                Some(next) if next <= piece.end => start = next,
                _ => return ending,
            }
        }
        let end = piece.end;
        ending.push(LockRange { start, end });
        ending
    }
}

/// Adds a range, as one with those that it touches.
fn join(ranges: &mut BTreeMap<u64, u64>, LockRange { mut start, mut end }: LockRange) {
    let reach = end.saturating_add(1);
    while let Some((other_start, other_end)) = ranges.range(..=reach).next_back()
        && other_end.saturating_add(1) >= start
    {
        (start, end) = (start.min(*other_start), end.max(*other_end));
        let known = *other_start;
        ranges.remove(&known);
    }
    ranges.insert(start, end);
}
