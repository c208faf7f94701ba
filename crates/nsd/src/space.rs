//! Free units of the data area, and units promised to journal records that will move there.

use crate::entry::{RUNS_MAX, Run};
use std::collections::{BTreeMap, BTreeSet};

/// Free runs and promises. Pure bookkeeping; the caller does the locking.
#[derive(Debug)]
pub(crate) struct RegionSpace {
    /// Start to length; adjacent runs are always joined.
    free: BTreeMap<u64, u64>,
    /// The same runs by length, for best fit.
    by_length: BTreeSet<(u64, u64)>,
    free_units: u64,
    promised: u64,
    total: u64,
    reserve: u64,
}

/// The purpose of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Blob puts can't use the reserve.
    Blob,
    /// Log puts can use it.
    Log,
    /// Units that were promised earlier.
    Promised,
}

impl RegionSpace {
    /// An area of `total` units, all free. The reserve is 1/16 of it, at most 64 MiB.
    pub(crate) fn new(total: u64) -> Self {
        Self {
            free: BTreeMap::from([(0, total)]),
            by_length: BTreeSet::from([(total, 0)]),
            free_units: total,
            promised: 0,
            total,
            reserve: (total / 16).min(16 * 1024),
        }
    }

    /// An area with `used` runs and `promised` units. `None` if runs overlap or exceed the area.
    pub(crate) fn with_used(total: u64, mut used: Vec<Run>, promised: u64) -> Option<Self> {
        used.sort_unstable();
        let mut space = Self::new(total);
        space.free.clear();
        space.by_length.clear();
        space.free_units = 0;
        space.promised = promised;
        let mut end = 0;
        let behind = Run {
            unit: total,
            count: 0,
        };
        for run in used.iter().chain([&behind]) {
            let gap = run.unit.checked_sub(end)?;
            if gap > 0 {
                space.free.insert(end, gap);
                space.by_length.insert((gap, end));
                space.free_units += gap;
            }
            end = run.unit + u64::from(run.count);
        }
        (promised <= space.free_units).then_some(space)
    }

    pub(crate) fn used_units(&self) -> u64 {
        self.total - self.free_units + self.promised
    }

    /// Units that blob puts may still use once `more` are free.
    pub(crate) fn available_with(&self, more: u64) -> u64 {
        (self.free_units + more).saturating_sub(self.promised + self.reserve)
    }

    fn available_to(&self, purpose: Purpose) -> u64 {
        let kept = match purpose {
            Purpose::Blob => self.promised + self.reserve,
            Purpose::Log => self.promised,
            Purpose::Promised => 0,
        };
        // Logs and promises may use the reserve when blobs no longer may.
        self.free_units.saturating_sub(kept)
    }

    /// Allocates `units`, with a first run of at least `first`. `None` if there isn't enough space
    /// or it is too fragmented.
    pub(crate) fn allocate(
        &mut self,
        units: u64,
        first: u32,
        purpose: Purpose,
    ) -> Option<Vec<Run>> {
        if units == 0 || units > self.available_to(purpose) {
            return None;
        }
        let mut chosen = Vec::new();
        if let Some(&(_, start)) = self.by_length.range((units, 0)..).next() {
            chosen.push((start, units));
        } else {
            let mut left = units;
            for &(length, start) in self.by_length.iter().rev().take(RUNS_MAX) {
                let take = length.min(left);
                chosen.push((start, take));
                left -= take;
                if left == 0 {
                    break;
                }
            }
            if left > 0 || chosen[0].1 < u64::from(first) {
                return None;
            }
        }
        Some(
            chosen
                .into_iter()
                .map(|(unit, count)| {
                    self.cut(unit, count);
                    let count = u32::try_from(count).expect("an extent is small");
                    Run { unit, count }
                })
                .collect(),
        )
    }

    /// Marks runs as used that the index or the journal refers to. `false` if they aren't free.
    #[must_use]
    pub(crate) fn take(&mut self, runs: &[Run]) -> bool {
        for run in runs {
            if !self.is_free(*run) {
                return false;
            }
            self.cut(run.unit, u64::from(run.count));
        }
        true
    }

    /// Whether a whole run is free.
    pub(crate) fn is_free(&self, run: Run) -> bool {
        let holder = self.free.range(..=run.unit).next_back();
        holder.is_some_and(|(start, length)| start + length >= run.unit + u64::from(run.count))
    }

    /// Whether any unit of a run is free.
    pub(crate) fn touches_free(&self, run: Run) -> bool {
        let end = run.unit + u64::from(run.count);
        let holder = self.free.range(..end).next_back();
        holder.is_some_and(|(start, length)| start + length > run.unit)
    }

    /// Frees runs.
    pub(crate) fn release(&mut self, runs: &[Run]) {
        for run in runs {
            assert!(!self.touches_free(*run), "units are freed once");
            let (mut start, mut length) = (run.unit, u64::from(run.count));
            self.free_units += length;
            if let Some((&before, &size)) = self.free.range(..start).next_back()
                && before + size == start
            {
                self.remove(before, size);
                start = before;
                length += size;
            }
            if let Some((&behind, &size)) = self.free.range(start + length..).next()
                && behind == start + length
            {
                self.remove(behind, size);
                length += size;
            }
            self.free.insert(start, length);
            self.by_length.insert((length, start));
        }
    }

    /// Reserves `units` for a journal record that will move. `false` if there isn't enough space.
    #[must_use]
    pub(crate) fn promise(&mut self, units: u64, purpose: Purpose) -> bool {
        let enough = units <= self.available_to(purpose);
        if enough {
            self.promised += units;
        }
        enough
    }

    /// Cancels a promise.
    pub(crate) fn cancel_promise(&mut self, units: u64) {
        self.promised = self
            .promised
            .checked_sub(units)
            .expect("units are promised before");
    }

    fn cut(&mut self, start: u64, length: u64) {
        let (&holder, &size) = self
            .free
            .range(..=start)
            .next_back()
            .expect("only free units are taken");
        assert!(holder + size >= start + length, "only free units are taken");
        self.remove(holder, size);
        if holder < start {
            self.free.insert(holder, start - holder);
            self.by_length.insert((start - holder, holder));
        }
        let (end, holder_end) = (start + length, holder + size);
        if end < holder_end {
            self.free.insert(end, holder_end - end);
            self.by_length.insert((holder_end - end, end));
        }
        self.free_units -= length;
    }

    fn remove(&mut self, start: u64, length: u64) {
        self.free.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_unit_is_ever_given_to_two(steps in prop::collection::vec((0u8..3, 1u64..40), 1..200)) {
            let mut space = RegionSpace::new(500);
            let mut held: Vec<Vec<Run>> = Vec::new();
            let mut used = BTreeSet::new();
            for (kind, number) in steps {
                if kind > 0 {
                    let Some(runs) = space.allocate(number, 1, Purpose::Blob) else { continue };
                    prop_assert_eq!(runs.iter().map(|r| u64::from(r.count)).sum::<u64>(), number);
                    for run in &runs {
                        for unit in run.unit..run.unit + u64::from(run.count) {
                            prop_assert!(used.insert(unit));
                        }
                    }
                    held.push(runs);
                } else if !held.is_empty() {
                    let runs = held.swap_remove(number as usize % held.len());
                    for run in &runs {
                        for unit in run.unit..run.unit + u64::from(run.count) {
                            used.remove(&unit);
                        }
                    }
                    space.release(&runs);
                }
                prop_assert_eq!(space.used_units(), used.len() as u64);
            }
            for runs in held {
                space.release(&runs);
            }
            prop_assert_eq!(space.allocate(469, 1, Purpose::Blob).map(|r| r.len()), Some(1));
        }
    }

    #[test]
    fn the_reserve_is_for_the_log_and_promises_are_kept() {
        let mut space = RegionSpace::new(160);
        assert_eq!(space.available_with(0), 150);
        assert!(space.promise(100, Purpose::Blob));
        assert!(!space.promise(51, Purpose::Blob));
        assert!(space.allocate(51, 1, Purpose::Blob).is_none());
        assert!(space.allocate(60, 1, Purpose::Log).is_some());
        assert!(space.allocate(1, 1, Purpose::Log).is_none());
        let moved = space.allocate(100, 1, Purpose::Promised).unwrap();
        space.cancel_promise(100);
        assert_eq!(space.used_units(), 160);
        space.release(&moved);
        assert_eq!(space.used_units(), 60);
    }

    #[test]
    fn journal_entries_find_units_however_fragmented_the_space_is() {
        let mut space = RegionSpace::new(160);
        let held = space
            .allocate(150, 1, Purpose::Blob)
            .expect("all that blobs get");
        let mut rest = held[0];
        // Free every second unit again.
        while rest.count >= 2 {
            space.release(&[Run {
                unit: rest.unit,
                count: 1,
            }]);
            rest.unit += 2;
            rest.count -= 2;
        }
        let units = RUNS_MAX as u64;
        let mut promised = 0;
        while space.promise(units, Purpose::Log) {
            promised += 1;
        }
        assert!(promised > 8);
        for _ in 0..promised {
            assert!(space.allocate(units, 1, Purpose::Promised).is_some());
            space.cancel_promise(units);
        }
    }

    #[test]
    fn taken_runs_are_checked() {
        let mut space = RegionSpace::new(100);
        assert!(space.take(&[Run { unit: 10, count: 5 }]));
        assert!(!space.take(&[Run { unit: 14, count: 2 }]));
        assert!(space.touches_free(Run { unit: 14, count: 2 }));
        assert!(!space.touches_free(Run { unit: 11, count: 3 }));
        assert!(!space.take(&[Run { unit: 99, count: 2 }]));
    }
}
