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

use super::batch::{Batch, Batches};
use model::{Extent, ExtentKind, limits};
use std::collections::BTreeMap;

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

    fn add(&mut self, extent: &Extent) -> bool {
        let is_stored = matches!(extent.kind, ExtentKind::Data { .. });
        let before = self.0.range(..extent.end()).next_back();
        let is_free = before.is_none_or(|(_, end)| *end <= extent.offset);
        let fits = is_stored && is_free;
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
    use crate::session::Mark;
    use bytes::Bytes;
    use model::{GroupId, Scheme, SegmentId, SegmentPlace, SessionId, Timestamp};
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
            let pending = Pending {
                size: 0,
                written: Timestamp(0),
                generation,
            };
            self.batches.add(Vec::new(), pending, Mark::of(session));
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
