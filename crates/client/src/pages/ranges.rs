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

    /// Fills gaps from a source that has bytes between `first` and `end` only: `offer(from, to,
    /// found)` calls `found(start, end)` for each part that the source has, in order. Costs what lies
    /// there, however many gaps there are elsewhere: a read may have thousands of sources.
    pub(crate) fn fill(
        &mut self,
        (first, end): (u64, u64),
        mut offer: impl FnMut(u64, u64, &mut dyn FnMut(u64, u64)),
    ) {
        if first >= end {
            return;
        }
        let before = self.map.range(..first).next_back();
        let before = before.filter(|(_, to)| **to > first);
        let touched = before.into_iter().chain(self.map.range(first..end));
        let touched: Vec<(u64, u64)> = touched.map(|(from, to)| (*from, *to)).collect();
        for (from, to) in touched {
            #[cfg(test)]
            {
                self.visits += 1;
            }
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

    /// Every second byte of 100 kB, in sources of 256 bytes each, as one freeze of many small writes
    /// leaves them.
    #[test]
    fn many_sources_of_one_read_cost_what_they_fill() {
        const BYTES: u64 = 100_000;
        let mut gaps = Gaps::new(0, BYTES);
        for number in (0..BYTES.div_ceil(512)).rev() {
            let source = number * 512;
            let end = (source + 512).min(BYTES);
            gaps.fill((source, end), |from, to, found| {
                let own = (source..end).step_by(2);
                own.filter(|at| (from..to).contains(at))
                    .for_each(|at| found(at, at + 1));
            });
        }
        assert!(
            gaps.iter()
                .all(|(from, to)| to - from == 1 && from % 2 == 1)
        );
        assert_eq!(gaps.iter().count() as u64, BYTES / 2);
        assert!(gaps.visits < 1000, "{} visits", gaps.visits);
    }

    proptest! {
        #[test]
        fn gaps_are_the_bytes_that_no_source_had(
            sources in prop::collection::vec((0u64..60, 1u64..20, 1u64..4), 0..12),
        ) {
            let mut gaps = Gaps::new(5, 70);
            let mut open: std::collections::BTreeSet<u64> = (5..70).collect();
            for (first, length, step) in sources {
                let end = first + length;
                let has = move |at: &u64| (first..end).contains(at) && (at - first).is_multiple_of(step);
                gaps.fill((first, end), |from, to, found| {
                    (from..to).filter(has).for_each(|at| found(at, at + 1));
                });
                open.retain(|at| !has(at));
                let left: Vec<u64> = gaps.iter().flat_map(|(from, to)| from..to).collect();
                prop_assert!(left.iter().eq(open.iter()));
            }
        }
    }
}
