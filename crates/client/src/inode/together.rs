//! Which batches are published by one operation: all of them become part of their file, or none does. Pure.
//!
//! An owner on another node answers when its commit is durable, and only then the memory of what was published is free
//! for writers. So whatever became ready meanwhile goes together:
//!
//! * *From the front*, without gaps: what is published is always what was written first.
//! * *Without overlaps*: which bytes would be the last ones, an operation doesn't say. The extents needn't follow each
//!   other: several programs write to one file, each at its own place.
//! * *At most as many extents* as a publish carries. A batch that has more goes by itself, in several operations.
//! * *No data in packs of several files*: it may have to be stored once more when it is its turn. *Nothing inline*: that
//!   travels in the owner's log.
//! * *Of one session*, as its segments are, and *of one generation* of the attributes: times count only in theirs.
//!
//! A stream's blocks are stored one soon after the other, and a commit for each costs its owner and the NSDs of its log much
//! beside the block itself. So what is ready there waits until `GATHERED` are, as long as the next one is being stored:
//! its end is followed by another look. Nobody waits for that but who waits for the next one as well, and the client's task,
//! which looks four times a second, publishes what it finds.

use super::batch::{Batch, Batches};
use model::{Extent, ExtentKind, limits};
use std::collections::BTreeMap;

/// So many batches wait for no further one: a commit costs little beside 16 MiB.
const GATHERED: usize = 4;

/// The ranges of the extents that are published together: start and end.
#[derive(Default)]
struct Taken(BTreeMap<u64, u64>);

impl Batches {
    /// The batches that are published next, in the order of their numbers; several by one operation. None if the front
    /// one isn't ready.
    pub(crate) fn together(&self) -> Vec<&Batch> {
        let mut all = self.iter();
        let Some(front) = all.next().filter(|front| front.ready().is_some()) else {
            return Vec::new();
        };
        let mut together = vec![front];
        let mut taken = Taken::default();
        if !self.is_apart(front) && taken.take(front) {
            together.extend(all.take_while(|batch| is_like(batch, front) && taken.take(batch)));
        }
        together
    }

    /// Whether what is published next may wait until the one after it is stored, to go together with it.
    pub(crate) fn may_gather(&self) -> bool {
        let Some(front) = self.iter().next() else {
            return false;
        };
        let mut taken = Taken::default();
        let fits =
            |batch: &&Batch| batch.runs().len() <= 1 && is_like(batch, front) && taken.take(batch);
        let ready = self.iter().take(GATHERED).take_while(fits).count();
        let Some(next) = self.iter().nth(ready) else {
            return false;
        };
        let mut runs = next.runs().iter();
        (1..GATHERED).contains(&ready)
            && !self.is_apart(front)
            && next.is_being_stored()
            && is_like(next, front)
            && runs.all(|run| taken.is_free(run.offset, run.end()))
            && self.is_awaited_by_all(next)
    }
}

/// Whether a batch is of the same session and generation as the front one.
fn is_like(batch: &Batch, front: &Batch) -> bool {
    batch.mark().session() == front.mark().session()
        && batch.pending().generation == front.pending().generation
}

impl Taken {
    /// Takes a batch along. False if it isn't ready, or can't go together with those before; then nothing more is taken.
    fn take(&mut self, batch: &Batch) -> bool {
        let Some(stored) = batch.ready() else {
            return false;
        };
        let count = self.0.len() + stored.extents.len();
        !stored.in_pack
            && count <= limits::PUBLISH_EXTENTS_MAX
            && stored.extents.iter().all(|extent| self.add(extent))
    }

    /// Whether nothing between `start` and `end` was taken.
    fn is_free(&self, start: u64, end: u64) -> bool {
        let before = self.0.range(..end).next_back();
        before.is_none_or(|(_, end)| *end <= start)
    }

    fn add(&mut self, extent: &Extent) -> bool {
        let is_stored = matches!(extent.kind, ExtentKind::Data { .. });
        let fits = is_stored && self.is_free(extent.offset, extent.end());
        if fits {
            self.0.insert(extent.offset, extent.end());
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::super::batch::{Pending, Stored};
    use super::*;
    use crate::pages::dirty::Frozen;
    use crate::session::Mark;
    use bytes::Bytes;
    use model::{Error, ErrorKind, GroupId, Scheme, SegmentId, SegmentPlace, SessionId, Timestamp};
    use world::Instant;
    use world::sim::Simulation;

    const SESSION: SessionId = SessionId(1);

    /// Batches of a file, and the moment when they are stored.
    struct Queue {
        batches: Batches,
        now: Instant,
    }

    fn data((offset, length): (u64, u32)) -> Extent {
        let place = SegmentPlace {
            segment: SegmentId {
                session: SESSION,
                counter: offset + 1,
            },
            group: GroupId(0),
            scheme: Scheme::Replicate(1),
            skipped_slots: 0,
            missing: 0,
            length,
            crc: 0,
        };
        Extent::of_segment(offset, place)
    }

    impl Queue {
        fn new() -> Self {
            let now = Simulation::new(1).run(|world| async move { world.now() });
            Self {
                batches: Batches::default(),
                now: now.finished(),
            }
        }

        /// A batch that is on its way, written in this generation by this session.
        fn add(&mut self, generation: u32, session: SessionId) {
            self.add_runs(generation, session, &[]);
        }

        fn add_runs(&mut self, generation: u32, session: SessionId, ranges: &[(u64, u32)]) {
            let pending = Pending {
                size: 0,
                written: Timestamp(0),
                generation,
            };
            let run = |(offset, length): &(u64, u32)| Frozen {
                offset: *offset,
                bytes: Bytes::from(vec![0; *length as usize]),
                memory: 0,
            };
            let runs = ranges.iter().map(run).collect();
            self.batches.add(runs, pending, Mark::of(session));
        }

        /// One that is on its way, of 10 bytes.
        fn under_way(&mut self, offset: u64) {
            self.add_runs(0, SESSION, &[(offset, 10)]);
        }

        fn stored(&mut self, extents: Vec<Extent>, in_pack: bool) {
            let stored = Stored {
                extents,
                at: self.now,
                in_pack,
            };
            let batch = self.batches.newest().expect("there is one");
            batch.place(stored);
        }

        /// One that is stored.
        fn write(&mut self, ranges: &[(u64, u32)]) {
            self.add(0, SESSION);
            self.stored(ranges.iter().copied().map(data).collect(), false);
        }

        fn together(&self) -> Vec<u64> {
            let together = self.batches.together();
            together.into_iter().map(Batch::number).collect()
        }

        fn publish(&mut self) -> Vec<u64> {
            let together = self.together();
            if let Some(last) = together.last() {
                self.batches.published(*last);
            }
            together
        }
    }

    #[test]
    fn all_that_is_ready_from_the_front_on_goes_together_in_whatever_order_of_places() {
        let mut queue = Queue::new();
        assert_eq!(queue.together(), [0; 0]);
        queue.write(&[(40, 10)]);
        queue.write(&[(0, 10), (60, 10)]);
        queue.write(&[(50, 10), (10, 10)]);
        queue.add(0, SESSION);
        queue.write(&[(100, 10)]);
        assert_eq!(queue.publish(), [1, 2, 3]);
        assert_eq!(queue.together(), [0; 0], "the fourth is on its way");
    }

    #[test]
    fn what_overwrites_something_goes_after_it() {
        let mut queue = Queue::new();
        queue.write(&[(0, 10), (20, 10)]);
        queue.write(&[(10, 10)]);
        queue.write(&[(29, 1)]);
        queue.write(&[(0, 100)]);
        queue.write(&[(5, 1)]);
        assert_eq!(queue.publish(), [1, 2]);
        assert_eq!(queue.publish(), [3]);
        assert_eq!(queue.publish(), [4]);
        assert_eq!(queue.publish(), [5]);
    }

    #[test]
    fn no_more_extents_go_together_than_a_publish_carries() {
        let most = limits::PUBLISH_EXTENTS_MAX as u64;
        let mut queue = Queue::new();
        for number in 0..=most {
            queue.write(&[(number * 10, 10)]);
        }
        let many: Vec<_> = (0..=most).map(|number| (number * 20, 10)).collect();
        queue.write(&many);
        queue.write(&[(10, 10)]);
        assert_eq!(queue.publish().len() as u64, most);
        assert_eq!(queue.publish(), [most + 1]);
        assert_eq!(queue.publish(), [most + 2], "by itself, in two operations");
        assert_eq!(queue.publish(), [most + 3]);
    }

    #[test]
    fn what_is_in_a_pack_of_several_files_or_inline_goes_by_itself() {
        let mut queue = Queue::new();
        queue.write(&[(0, 10)]);
        queue.add(0, SESSION);
        queue.stored(vec![data((10, 10))], true);
        queue.write(&[(20, 10)]);
        queue.add(0, SESSION);
        let inline = Extent {
            kind: ExtentKind::Inline(Bytes::from_static(&[7; 10])),
            ..data((30, 10))
        };
        queue.stored(vec![inline], false);
        queue.write(&[(40, 10)]);
        for number in 1..=5 {
            assert_eq!(queue.publish(), [number]);
        }
    }

    #[test]
    fn batches_of_other_sessions_and_generations_do_not_go_together() {
        let mut queue = Queue::new();
        queue.write(&[(0, 10)]);
        queue.add(1, SESSION);
        queue.stored(vec![data((10, 10))], false);
        queue.add(1, SessionId(2));
        queue.stored(vec![data((20, 10))], false);
        for number in 1..=3 {
            assert_eq!(queue.publish(), [number]);
        }
    }

    #[test]
    fn what_is_ready_waits_for_the_next_one_until_they_are_enough() {
        let mut queue = Queue::new();
        assert!(!queue.batches.may_gather(), "nothing is ready");
        for number in 0..GATHERED as u64 {
            assert!(!queue.batches.may_gather(), "nothing is on its way");
            queue.under_way(number * 10);
            assert_eq!(queue.batches.may_gather(), number > 0);
            queue.stored(vec![data((number * 10, 10))], false);
        }
        queue.under_way(100);
        assert!(!queue.batches.may_gather(), "they are enough");
        assert_eq!(queue.publish().len(), GATHERED);
    }

    #[test]
    fn who_waits_for_what_is_ready_waits_for_nothing_else() {
        let mut queue = Queue::new();
        queue.write(&[(0, 10)]);
        queue.under_way(10);
        queue.batches.add_waiter(2);
        assert!(queue.batches.may_gather());
        queue.batches.add_waiter(1);
        assert!(!queue.batches.may_gather());
        queue.batches.remove_waiter(1);
        assert!(queue.batches.may_gather());
        queue.batches.remove_waiter(2);
        assert!(queue.batches.may_gather());
    }

    #[test]
    fn nothing_waits_for_what_cannot_go_together_with_it() {
        fn waits(prepare: impl FnOnce(&mut Queue)) -> bool {
            let mut queue = Queue::new();
            prepare(&mut queue);
            queue.batches.may_gather()
        }
        fn first(queue: &mut Queue) {
            queue.write(&[(0, 10)]);
        }
        assert!(waits(|queue| {
            first(queue);
            queue.under_way(10);
        }));
        // It overwrites some of it.
        assert!(!waits(|queue| {
            first(queue);
            queue.under_way(5);
        }));
        // It has failed, and may be tried for long.
        assert!(!waits(|queue| {
            first(queue);
            queue.under_way(10);
            let error = Error::new(ErrorKind::Unavailable, "the NSDs are away");
            queue.batches.newest().expect("there is one").fail(error);
        }));
        // It is of another generation, or another session.
        for (generation, session) in [(1, SESSION), (0, SessionId(2))] {
            assert!(!waits(|queue| {
                first(queue);
                queue.add(generation, session);
            }));
        }
        // What is ready goes by itself.
        assert!(!waits(|queue| {
            first(queue);
            queue.under_way(10);
            queue.batches.set_apart(1);
        }));
        assert!(!waits(|queue| {
            queue.add(0, SESSION);
            queue.stored(vec![data((0, 10))], true);
            queue.under_way(10);
        }));
        // It isn't a stream's block.
        assert!(!waits(|queue| {
            queue.add_runs(0, SESSION, &[(0, 10), (50, 10)]);
            queue.stored(vec![data((0, 10)), data((50, 10))], false);
            queue.under_way(100);
        }));
    }

    #[test]
    fn what_could_not_be_published_together_goes_apart_and_the_rest_together_again() {
        let mut queue = Queue::new();
        for number in 0..3 {
            queue.write(&[(number * 10, 10)]);
        }
        assert_eq!(queue.together(), [1, 2, 3]);
        queue.batches.set_apart(3);
        queue.write(&[(30, 10)]);
        queue.write(&[(40, 10)]);
        for number in 1..=3 {
            assert_eq!(queue.publish(), [number]);
        }
        assert_eq!(queue.publish(), [4, 5]);
    }
}
