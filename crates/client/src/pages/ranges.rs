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
pub(crate) struct Gaps(Vec<(u64, u64)>);

impl Gaps {
    /// All of `from..to` is a gap.
    pub(crate) fn new(from: u64, to: u64) -> Self {
        Self(if from < to {
            vec![(from, to)]
        } else {
            Vec::new()
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    /// Fills gaps from a source: `offer(from, to, found)` calls `found(start, end)` for each part
    /// that the source has, in order.
    pub(crate) fn fill(&mut self, mut offer: impl FnMut(u64, u64, &mut dyn FnMut(u64, u64))) {
        let mut open = Vec::new();
        for (from, to) in self.0.drain(..) {
            let mut at = from;
            offer(from, to, &mut |start, end| {
                debug_assert!(start >= at && end <= to, "parts come in order and inside");
                if start > at {
                    open.push((at, start));
                }
                at = end;
            });
            if at < to {
                open.push((at, to));
            }
        }
        self.0 = open;
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
}
