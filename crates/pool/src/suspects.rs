//! The bounded queue of segments that reads or writes found incomplete or damaged.

use crate::Pool;
use model::{FamilyId, SegmentId, SegmentPlace};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use world::Instant;

/// Most segments in the queue; surveys find those that did not fit.
const SUSPECTS_MAX: usize = 4096;
/// Failed repairs after which a suspect is dropped; surveys, scrubs and readers will find it again.
const TRIES_MAX: u32 = 8;
/// Delay before the first retry; doubled each time, about two minutes in total.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long a suspect waits for the shard of its family, which may be opened in this process or not.
const OTHERS_FOR: Duration = Duration::from_secs(600);

/// Why a segment should be examined, in order of increasing severity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SuspectCause {
    /// Published before all pieces were durable.
    Unfinished,
    /// A piece is absent from its NSD.
    Absent,
    /// A piece didn't match its checksum.
    Damaged,
    /// A read got too few pieces.
    Unreadable,
}

/// A segment to be examined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suspect {
    /// The segment.
    pub place: SegmentPlace,
    /// The family whose shard decides about it, once that is known.
    pub family: Option<FamilyId>,
    /// Its suspicious pieces (bit i = piece i).
    pub pieces: u32,
    /// The reason.
    pub cause: SuspectCause,
    /// When it was first found.
    pub since: Instant,
    /// Failed repairs.
    tries: u32,
    /// Earliest time of the next repair.
    not_before: Instant,
}

#[derive(Default)]
pub(crate) struct Suspects {
    queue: Mutex<BTreeMap<SegmentId, Suspect>>,
    overflowed: AtomicU64,
}

impl Suspects {
    pub(crate) fn add(&self, suspect: Suspect) {
        let mut queue = self.queue.lock();
        let segment = suspect.place.segment;
        if queue.len() >= SUSPECTS_MAX && !queue.contains_key(&segment) {
            self.overflowed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let known = queue.entry(segment).or_insert(suspect);
        known.pieces |= suspect.pieces;
        known.family = known.family.or(suspect.family);
        known.cause = known.cause.max(suspect.cause);
        known.since = known.since.min(suspect.since);
        known.tries = known.tries.max(suspect.tries);
        known.not_before = known.not_before.max(suspect.not_before);
    }

    /// Requeues a suspect whose repair failed, unless that was the last try.
    fn retry(&self, mut suspect: Suspect, now: Instant) {
        suspect.tries += 1;
        if suspect.tries < TRIES_MAX {
            suspect.not_before = now + RETRY_AFTER * (1 << (suspect.tries - 1));
            self.add(suspect);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.lock().len()
    }

    /// How many may be of families for which `is_own` holds.
    fn count(&self, is_own: impl Fn(FamilyId) -> bool) -> usize {
        let queue = self.queue.lock();
        let mine = queue.values();
        mine.filter(|suspect| suspect.family.is_none_or(&is_own))
            .count()
    }

    pub(crate) fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    pub(crate) fn forget(&self, segment: SegmentId) {
        self.queue.lock().remove(&segment);
    }

    /// Removes and returns the worst suspects that are due and not of another family: those that can
    /// lose the fewest further pieces. Drops those that waited too long for the shard of theirs.
    pub(crate) fn take(
        &self,
        limit: usize,
        now: Instant,
        is_own: impl Fn(FamilyId) -> bool,
    ) -> Vec<Suspect> {
        let mut queue = self.queue.lock();
        let is_mine = |suspect: &Suspect| suspect.family.is_none_or(&is_own);
        queue.retain(|_, suspect| is_mine(suspect) || now - suspect.since < OTHERS_FOR);
        let mut order: Vec<(i64, SegmentId)> = queue
            .values()
            .filter(|suspect| suspect.not_before <= now && is_mine(suspect))
            .map(|suspect| (slack(suspect), suspect.place.segment))
            .collect();
        order.sort_unstable();
        order.truncate(limit);
        order
            .iter()
            .filter_map(|(_, segment)| queue.remove(segment))
            .collect()
    }
}

/// How many more pieces may be lost.
fn slack(suspect: &Suspect) -> i64 {
    suspect.place.scheme.tolerance() as i64 - i64::from(suspect.pieces.count_ones())
}

impl Pool {
    /// Removes up to `limit` due segments from the queue, the most endangered first, except those
    /// that are known to be of families for which `is_own` doesn't hold. The caller asks the shard
    /// whether they are live and calls [`Pool::repair_segment`].
    #[must_use]
    pub fn take_suspects(&self, limit: usize, is_own: impl Fn(FamilyId) -> bool) -> Vec<Suspect> {
        self.suspects.take(limit, self.world.now(), is_own)
    }

    /// How many there are, due or not, except those that are known to be of families for which
    /// `is_own` doesn't hold.
    #[must_use]
    pub fn count_suspects(&self, is_own: impl Fn(FamilyId) -> bool) -> usize {
        self.suspects.count(is_own)
    }

    /// Requeues a suspect that wasn't tried, or whose family has become known.
    pub fn return_suspect(&self, suspect: &Suspect) {
        self.suspects.add(*suspect);
    }

    /// Requeues a suspect whose repair failed, to be retried later a few times.
    pub fn retry_suspect(&self, suspect: &Suspect) {
        self.suspects.retry(*suspect, self.world.now());
    }

    /// Records that a piece is damaged and wasn't replaced; with the segment's family, if it is
    /// known.
    pub fn suspect_damage(&self, place: &SegmentPlace, family: Option<FamilyId>, piece: u8) {
        self.suspect(place, family, 1 << piece, SuspectCause::Damaged);
    }

    /// Records that a segment should be examined.
    pub(crate) fn suspect(
        &self,
        place: &SegmentPlace,
        family: Option<FamilyId>,
        pieces: u32,
        cause: SuspectCause,
    ) {
        let now = self.world.now();
        self.suspects.add(Suspect {
            place: *place,
            family,
            pieces,
            cause,
            since: now,
            tries: 0,
            not_before: now,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{GroupId, Scheme, SessionId};
    use world::sim::Simulation;

    fn now() -> Instant {
        Simulation::new(1)
            .run(|world| async move { world.now() })
            .finished()
    }

    fn suspect(counter: u64, pieces: u32, cause: SuspectCause) -> Suspect {
        let place = SegmentPlace {
            segment: SegmentId {
                session: SessionId(1),
                counter,
            },
            group: GroupId(0),
            scheme: Scheme::Erasure { k: 4, m: 2 },
            skipped_slots: 0,
            missing: 0,
            length: 1,
            crc: 0,
        };
        Suspect {
            place,
            family: None,
            pieces,
            cause,
            since: now(),
            tries: 0,
            not_before: now(),
        }
    }

    #[test]
    fn the_most_endangered_come_first_and_none_twice() {
        let suspects = Suspects::default();
        suspects.add(suspect(1, 0b1, SuspectCause::Unfinished));
        suspects.add(suspect(2, 0b1, SuspectCause::Absent));
        suspects.add(suspect(2, 0b10, SuspectCause::Damaged));
        let taken = suspects.take(10, now(), |_| true);
        assert_eq!(
            taken
                .iter()
                .map(|suspect| suspect.place.segment.counter)
                .collect::<Vec<_>>(),
            [2, 1]
        );
        assert_eq!(
            (taken[0].pieces, taken[0].cause),
            (0b11, SuspectCause::Damaged)
        );
        assert_eq!(suspects.len(), 0);
    }

    #[test]
    fn a_suspect_is_left_to_the_shard_of_its_family_but_not_for_ever() {
        let suspects = Suspects::default();
        let of = |family| Suspect {
            family: Some(FamilyId(family)),
            ..suspect(u64::from(family), 1, SuspectCause::Damaged)
        };
        (1..=2).for_each(|family| suspects.add(of(family)));
        // A reader doesn't know the family; what is known stays.
        suspects.add(Suspect {
            family: None,
            ..of(2)
        });
        let first = |family: FamilyId| family == FamilyId(1);
        assert_eq!(suspects.count(first), 1);
        assert_eq!(suspects.take(10, now(), first), [of(1)]);
        assert_eq!(suspects.take(10, now(), first), []);
        assert_eq!(suspects.len(), 1);
        assert_eq!(suspects.take(10, now() + OTHERS_FOR, first), []);
        assert_eq!(suspects.len(), 0, "its shard isn't here");
    }

    #[test]
    fn the_queue_is_bounded_and_counts_overflows() {
        let suspects = Suspects::default();
        (0..5000).for_each(|counter| suspects.add(suspect(counter, 1, SuspectCause::Absent)));
        assert_eq!((suspects.len(), suspects.overflowed()), (SUSPECTS_MAX, 904));
    }

    #[test]
    fn a_failed_repair_is_tried_again_later_and_not_for_ever() {
        let suspects = Suspects::default();
        suspects.add(suspect(1, 1, SuspectCause::Damaged));
        let mut now = now();
        let mut tries = 0;
        while let Some(suspect) = suspects.take(10, now, |_| true).pop() {
            tries += 1;
            suspects.retry(suspect, now);
            assert!(suspects.take(10, now, |_| true).is_empty(), "not at once");
            // Found again in the meantime: the number of tries stays.
            if suspects.len() > 0 {
                suspects.add(Suspect {
                    tries: 0,
                    not_before: now,
                    ..suspect
                });
            }
            now = now + RETRY_AFTER * (1 << (tries - 1));
        }
        assert_eq!((tries, suspects.len()), (TRIES_MAX, 0));
    }
}
