//! Finds a file's unpublished pieces in ascending order.

use super::batch::Batches;
use crate::pages::dirty::Dirty;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A walk over the dirty runs and the batches in flight. Thousands of batches may be in flight and a
/// walk may take thousands of steps, so a step visits only batches that have a run before it ends.
pub(crate) struct Unpublished<'a> {
    dirty: &'a Dirty,
    batches: &'a Batches,
    /// For each batch with runs left: a run (start, end), after which all its other runs lie that
    /// may still matter; and the batch's position.
    next: BinaryHeap<Reverse<(u64, u64, usize)>>,
    #[cfg(test)]
    visits: usize,
}

impl<'a> Unpublished<'a> {
    pub(super) fn new(dirty: &'a Dirty, batches: &'a Batches) -> Self {
        let all = batches.iter().enumerate();
        let first = all.filter_map(|(position, batch)| {
            let run = batch.runs().first()?;
            Some(Reverse((run.offset, run.end(), position)))
        });
        Self {
            dirty,
            batches,
            next: first.collect(),
            #[cfg(test)]
            visits: 0,
        }
    }

    /// The first unpublished piece at or after `at`, clipped to start at `at`. `at` never decreases
    /// from call to call.
    pub(crate) fn from(&mut self, at: u64) -> Option<(u64, u64)> {
        let batch = self.in_batches(at);
        let dirty = self.dirty.next(at);
        batch.into_iter().chain(dirty).min_by_key(|(from, _)| *from)
    }

    fn in_batches(&mut self, at: u64) -> Option<(u64, u64)> {
        while let Some(Reverse((from, end, position))) = self.next.peek().copied() {
            #[cfg(test)]
            {
                self.visits += 1;
            }
            if end > at {
                return Some((from.max(at), end));
            }
            self.next.pop();
            if let Some(run) = self.batches.at(position).runs_from(at).first() {
                self.next.push(Reverse((run.offset, run.end(), position)));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::batch::Pending;
    use crate::pages::dirty::Frozen;
    use crate::pages::memory::Blocks;
    use crate::session::Mark;
    use bytes::Bytes;
    use model::Timestamp;
    use proptest::prelude::*;
    use world::sim::Simulation;

    fn add(batches: &mut Batches, runs: impl Iterator<Item = (u64, usize)>) {
        let run = |(offset, length)| Frozen {
            offset,
            bytes: Bytes::from(vec![0; length]),
            memory: 0,
        };
        let pending = Pending {
            size: 0,
            written: Timestamp(0),
            generation: 0,
        };
        batches.add(runs.map(run).collect(), pending, Mark::of_none());
    }

    fn nothing_dirty() -> Dirty {
        Dirty::new(Blocks::new(1 << 16, 16 << 20))
    }

    #[test]
    fn a_walk_visits_each_of_many_batches_only_where_it_has_runs() {
        const BATCHES: u64 = 1000;
        let dirty = nothing_dirty();
        let mut batches = Batches::default();
        for number in 0..BATCHES {
            add(&mut batches, [(number * 10, 4)].into_iter());
        }
        let mut walk = Unpublished::new(&dirty, &batches);
        let mut at = 0;
        let mut found = 0;
        while let Some((from, to)) = walk.from(at) {
            assert_eq!((from, to), (found * 10, found * 10 + 4));
            found += 1;
            at = to;
        }
        assert_eq!(found, BATCHES);
        assert!(walk.visits < 3 * 1000, "{} visits", walk.visits);
    }

    proptest! {
        #[test]
        fn a_walk_finds_every_unpublished_byte(
            batches in prop::collection::vec((0u64..60, 1u64..12, 1u64..6), 0..8),
            written in prop::collection::vec((0u64..80, 1usize..6), 0..4),
            skips in prop::collection::vec(0u64..5, 1..8),
        ) {
            let mut model = [false; 160];
            let mut dirty = nothing_dirty();
            let now = Simulation::new(1).run(|world| async move { world.now() }).finished();
            for (offset, length) in written {
                dirty.write(offset, &vec![0; length], now);
                model[offset as usize..offset as usize + length].fill(true);
            }
            let mut flushing = Batches::default();
            for (first, count, step) in batches {
                let runs = (0..count).map(|number| (first + number * (step + 1), step as usize));
                for (offset, length) in runs.clone() {
                    model[offset as usize..offset as usize + length].fill(true);
                }
                add(&mut flushing, runs);
            }
            let mut walk = Unpublished::new(&dirty, &flushing);
            let mut at = 0;
            for skip in skips.iter().cycle() {
                let next = (at..160).find(|at| model[*at as usize]);
                let Some((from, to)) = walk.from(at) else {
                    prop_assert_eq!(next, None);
                    break;
                };
                prop_assert_eq!(Some(from), next);
                prop_assert!(from < to && (from..to).all(|at| model[at as usize]));
                // Also to places inside a piece.
                at = (from + skip).min(to);
                if *skip == 0 {
                    at = to;
                }
            }
        }
    }
}
