//! Finds the held locks that conflict with a new one.
//!
//! If an inode has few locks, one pass visits all owners; if it has many, the spans of each kind
//! are searched.

use super::held::{Held, KINDS, Key, Piece, Place};
use model::lock::{HeldLock, LockOwner, LockRequest};
use model::{LockKind, LockRange};
use std::collections::btree_map::Range;
use std::ops::Bound;

/// Most locks of one owner examined one after another before searching for the relevant ones: most
/// owners have one.
const PASSED_MAX: usize = 8;
/// Most neighbours that F_GETLK merges with a lock.
const NEIGHBOURS_MAX: usize = 1024;

/// The kinds of locks that conflict with one of this kind.
pub(super) fn kinds_that_stop(kind: LockKind) -> &'static [LockKind] {
    match kind {
        LockKind::Shared => &KINDS[1..],
        LockKind::Exclusive => &KINDS,
    }
}

impl Held {
    /// Whether another owner's lock conflicts with this request.
    pub(super) fn is_stopped(&self, request: &LockRequest, kind: LockKind) -> bool {
        let kinds = kinds_that_stop(kind);
        let mut stoppers = self.stoppers(Place::of(request), request.range, kinds);
        stoppers.next().is_some()
    }

    /// The first conflicting lock of another owner, by start. Its neighbours that look the same to
    /// others are merged with it.
    pub(super) fn conflict(
        &self,
        place: Place,
        range: LockRange,
        kind: LockKind,
    ) -> Option<HeldLock> {
        let crowd = self.crowds.get(&(place.space, place.inode));
        let is_ordered = crowd.is_some_and(|crowd| crowd.spans.is_some());
        let enough = if is_ordered { 1 } else { usize::MAX };
        let stoppers = kinds_that_stop(kind).chunks(1).flat_map(|kind| {
            let of_kind = self.stoppers(place, range, kind);
            of_kind.take(enough)
        });
        let first = stoppers.min_by_key(|held| held.range.start)?;
        let owner = first.owner;
        Some(self.with_neighbours(Place { owner, ..place }, first))
    }

    /// Locks of other owners and of these kinds that overlap the range; for an inode with few locks
    /// only the first of each owner, for one with many those of each kind by start.
    pub(super) fn stoppers(
        &self,
        place: Place,
        range: LockRange,
        kinds: &'static [LockKind],
    ) -> impl Iterator<Item = HeldLock> {
        let crowd = self.crowds.get(&(place.space, place.inode));
        let spans = crowd.and_then(|crowd| crowd.spans.as_deref());
        let few = spans
            .is_none()
            .then(|| self.first_of_each(place, range, kinds));
        let by_kind = spans.into_iter().flat_map(move |spans| {
            let kinds = kinds.iter();
            kinds.map(move |kind| (*kind, &spans[*kind as usize]))
        });
        let many = by_kind.flat_map(move |(kind, spans)| {
            let others = spans.others(range, place.owner);
            others.map(move |span| {
                let owner = span.owner;
                Place { owner, ..place }.at(kind, span.start)
            })
        });
        few.into_iter()
            .flatten()
            .chain(many.map(|key| key.shown(&self.locks[&key])))
    }

    /// For each other owner the first of its locks of these kinds that overlaps the range.
    fn first_of_each(
        &self,
        place: Place,
        range: LockRange,
        stoppers: &'static [LockKind],
    ) -> impl Iterator<Item = HeldLock> {
        let Place { space, inode, .. } = place;
        let first = move |owner| {
            let other = Place { owner, ..place };
            let firsts = stoppers
                .iter()
                .filter_map(move |kind| self.first_overlap(other, *kind, range));
            firsts.min_by_key(|(key, _)| key.start)
        };
        let mut rest = self.locks.range(Place::first_of(space, inode).first()..);
        let mut passed = 0;
        let mut last: Option<LockOwner> = None;
        std::iter::from_fn(move || {
            loop {
                let (key, piece) = rest.next()?;
                if (key.space, key.inode) != (space, inode) {
                    return None;
                }
                if last != Some(key.owner) {
                    (last, passed) = (Some(key.owner), 0);
                }
                passed += 1;
                let stops = stoppers.contains(&key.kind)
                    && key.start <= range.end
                    && range.start <= piece.end;
                if key.owner == place.owner {
                    rest = self.behind(key);
                } else if stops || passed > PASSED_MAX {
                    rest = self.behind(key);
                    if let Some((key, piece)) = first(key.owner) {
                        return Some(key.shown(piece));
                    }
                }
            }
        })
    }

    /// The locks after those of the same owner on the same inode.
    fn behind(&self, key: &Key) -> Range<'_, Key, Piece> {
        let last = key.place().last();
        self.locks.range((Bound::Excluded(last), Bound::Unbounded))
    }

    fn with_neighbours(&self, place: Place, lock: HeldLock) -> HeldLock {
        let at = |start| place.at(lock.kind, start);
        let mut range = lock.range;
        let before = self.locks.range(at(0)..at(range.start)).rev();
        for (key, piece) in before.take(NEIGHBOURS_MAX) {
            if piece.end.checked_add(1) != Some(range.start) {
                break;
            }
            range.start = key.start;
        }
        for _ in 0..NEIGHBOURS_MAX {
            let next = range.end.checked_add(1);
            let Some(piece) = next.and_then(|next| self.locks.get(&at(next))) else {
                break;
            };
            range.end = piece.end;
        }
        HeldLock { range, ..lock }
    }
}
