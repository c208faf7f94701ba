//! A set of byte ranges, and the gaps that a read still has to fill.

use std::collections::BTreeMap;

/// Sorted, merged byte ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges {
    /// Start → end (exclusive); neither overlapping nor touching.
    map: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds `from..to`.
    pub(crate) fn add(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let (mut start, mut end) = (from, to);
        if let Some((s, e)) = self.map.range(..=from).next_back().map(|(s, e)| (*s, *e))
            && e >= from
        {
            start = s;
            end = end.max(e);
        }
        while let Some((s, e)) = self.map.range(start..=end).next().map(|(s, e)| (*s, *e)) {
            end = end.max(e);
            self.map.remove(&s);
        }
        self.map.insert(start, end);
    }

    /// Removes `from..to`.
    pub(crate) fn remove(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        if let Some((s, e)) = self.map.range(..from).next_back().map(|(s, e)| (*s, *e))
            && e > from
        {
            self.map.insert(s, from);
            if e > to {
                self.map.insert(to, e);
            }
        }
        while let Some((s, e)) = self.map.range(from..to).next().map(|(s, e)| (*s, *e)) {
            self.map.remove(&s);
            if e > to {
                self.map.insert(to, e);
            }
        }
    }

    /// The end of the gapless range that starts at `from`; `from` itself if it isn't in the set.
    pub(crate) fn covered_to(&self, from: u64) -> u64 {
        match self.map.range(..=from).next_back() {
            Some((_, end)) if *end > from => *end,
            _ => from,
        }
    }

    /// The first byte of the set at or after `from`.
    pub(crate) fn next_start(&self, from: u64) -> Option<u64> {
        if self.covered_to(from) > from {
            return Some(from);
        }
        self.map.range(from..).next().map(|(start, _)| *start)
    }

    /// From the first byte to the one behind the last; empty if there are none.
    pub(crate) fn hull(&self) -> (u64, u64) {
        let first = self.map.first_key_value().map_or(0, |(from, _)| *from);
        let last = self.map.last_key_value().map_or(0, |(_, to)| *to);
        (first, last)
    }

    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn clear(&mut self) {
        self.map.clear();
    }
}

/// The parts of a range that no source has filled yet.
#[derive(Debug)]
pub(crate) struct Gaps {
    /// Start → end (exclusive); they don't overlap.
    map: BTreeMap<u64, u64>,
    #[cfg(test)]
    visits: u64,
}

impl Gaps {
    /// All of `from..to` is a gap.
    pub(crate) fn new(from: u64, to: u64) -> Self {
        Self {
            map: (from < to).then_some((from, to)).into_iter().collect(),
            #[cfg(test)]
            visits: 0,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.map.iter().map(|(from, to)| (*from, *to))
    }

    /// Fills gaps from a source that visits ranges: `offer(from, to, found)` calls `found(start,
    /// end)` for each part that the source has of the gap, in order. Costs a visit for each gap.
    pub(crate) fn fill(&mut self, mut offer: impl FnMut(u64, u64, &mut dyn FnMut(u64, u64))) {
        let gaps: Vec<(u64, u64)> = self.iter().collect();
        for (from, to) in gaps {
            let mut at = from;
            let mut open = Vec::new();
            offer(from, to, &mut |start, end| {
                debug_assert!(start >= at && end <= to, "parts come in order and inside");
                if start > at {
                    open.push((at, start));
                }
                at = end;
            });
            if at == from {
                continue;
            }
            self.map.remove(&from);
            if at < to {
                open.push((at, to));
            }
            self.map.extend(open);
        }
    }

    /// Fills gaps from a source of sorted, disjoint runs, of which there may be very many:
    /// `run_after(at)` returns the first run that ends after `at`, and `take(start, end, run)` gets
    /// each part of a run that fills a gap. Skips from runs to gaps and back, so it costs what the
    /// runs and the gaps have in common, however many of both lie elsewhere: a read may have
    /// thousands of such sources, and their runs may be far apart.
    pub(crate) fn fill_from_runs<R>(
        &mut self,
        run_after: impl Fn(u64) -> Option<(u64, u64, R)>,
        mut take: impl FnMut(u64, u64, R),
    ) {
        let mut at = 0;
        while let Some((from, to)) = self.gap_after(at) {
            let Some((first, end, run)) = run_after(from.max(at)) else {
                return;
            };
            if to <= first {
                // On to the gap that the run may fill.
                at = first;
                continue;
            }
            let (start, end) = (from.max(first), to.min(end));
            take(start, end, run);
            self.map.remove(&from);
            if from < start {
                self.map.insert(from, start);
            }
            if end < to {
                self.map.insert(end, to);
            }
            at = end;
        }
    }

    /// The first gap that ends after `at`.
    fn gap_after(&mut self, at: u64) -> Option<(u64, u64)> {
        #[cfg(test)]
        {
            self.visits += 1;
        }
        let before = self.map.range(..at).next_back();
        let before = before.filter(|(_, to)| **to > at);
        let gap = before.or_else(|| self.map.range(at..).next())?;
        Some((*gap.0, *gap.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_set_of_ranges_is_a_set_of_bytes(
            steps in prop::collection::vec((any::<bool>(), 0u64..64, 0u64..20), 1..60),
        ) {
            let mut ranges = Ranges::default();
            let mut model = [false; 96];
            for (add, from, length) in steps {
                let to = from + length;
                if add { ranges.add(from, to) } else { ranges.remove(from, to) }
                model[from as usize..to as usize].fill(add);
                for at in 0..90u64 {
                    let run = model[at as usize..].iter().take_while(|set| **set).count() as u64;
                    prop_assert_eq!(ranges.covered_to(at), at + run);
                    let next = model[at as usize..].iter().position(|set| *set);
                    prop_assert_eq!(ranges.next_start(at), next.map(|n| at + n as u64));
                }
                let touching = ranges.map.iter().zip(ranges.map.iter().skip(1));
                for ((_, end), (start, _)) in touching {
                    prop_assert!(end < start);
                }
            }
        }
    }

    /// Fills gaps from a source of single bytes; `byte_from(at)` is its first at or after `at`.
    fn fill_from(gaps: &mut Gaps, byte_from: impl Fn(u64) -> Option<u64>) {
        gaps.fill_from_runs(
            |at| byte_from(at).map(|byte| (byte, byte + 1, ())),
            |from, to, ()| assert_eq!(from + 1, to),
        );
    }

    /// Every second byte of 100 kB, in sources of 256 bytes each, as one freeze of many small writes
    /// leaves them.
    #[test]
    fn many_sources_of_one_read_cost_what_they_fill() {
        const BYTES: u64 = 100_000;
        let mut gaps = Gaps::new(0, BYTES);
        for number in (0..BYTES.div_ceil(512)).rev() {
            let source = number * 512;
            let end = (source + 512).min(BYTES);
            fill_from(&mut gaps, |at| {
                let run = at.max(source).next_multiple_of(2);
                (run < end).then_some(run)
            });
        }
        assert!(
            gaps.iter()
                .all(|(from, to)| to - from == 1 && from % 2 == 1)
        );
        assert_eq!(gaps.iter().count() as u64, BYTES / 2);
        // Each of the bytes, and each source to see that it has no more.
        let most = BYTES / 2 + 2 * BYTES.div_ceil(512);
        assert!(gaps.visits <= most, "{} visits", gaps.visits);
    }

    /// Sources that span everything and have little.
    #[test]
    fn sources_of_a_few_bytes_far_apart_cost_no_visit_for_the_gaps_between() {
        const BYTES: u64 = 100_000;
        let mut gaps = Gaps::new(0, BYTES);
        fill_from(&mut gaps, |at| Some(at.next_multiple_of(2)));
        let before = gaps.visits;
        for number in 0..1000 {
            let own = [number * 2 + 1, BYTES - 1 - number * 2];
            fill_from(&mut gaps, |at| own.into_iter().find(|own| *own >= at));
        }
        assert_eq!(gaps.iter().count() as u64, BYTES / 2 - 2000);
        let visits = gaps.visits - before;
        assert!(visits <= 5 * 1000, "{visits} visits");
    }

    proptest! {
        #[test]
        fn gaps_are_the_bytes_that_no_source_had(
            sources in prop::collection::vec((0u64..60, 1u64..20, 1u64..4, any::<bool>()), 0..12),
        ) {
            let mut gaps = Gaps::new(5, 70);
            let mut open: std::collections::BTreeSet<u64> = (5..70).collect();
            for (first, length, step, by_visits) in sources {
                let end = first + length;
                let has = move |at: &u64| (first..end).contains(at) && (at - first).is_multiple_of(step);
                if by_visits {
                    gaps.fill(|from, to, found| {
                        (from..to).filter(has).for_each(|at| found(at, at + 1));
                    });
                } else {
                    let after = |at: u64| (at..end).find(has);
                    let mut taken = Vec::new();
                    gaps.fill_from_runs(
                        |at| {
                            // Whole runs; with `step` 1 there is one.
                            let (run, to) = if step == 1 { (first, end) } else { (after(at)?, after(at)? + 1) };
                            (to > at).then_some((run, to, ()))
                        },
                        |from, to, ()| taken.extend(from..to),
                    );
                    prop_assert!(taken.iter().eq(open.iter().filter(|at| has(at))));
                }
                open.retain(|at| !has(at));
                let left: Vec<u64> = gaps.iter().flat_map(|(from, to)| from..to).collect();
                prop_assert!(left.iter().eq(open.iter()));
            }
        }
    }
}
