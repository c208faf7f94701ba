//! Remembers stretches of files' extents and of directories' names whose records are all in the
//! table, so that random writes to a file that doesn't fit into memory read each part of its extents
//! only once, and the pages of a listing stay in memory.

use model::{DataId, FilesetId, InodeId};
use namespace::Key;
use std::collections::BTreeMap;
use world::Map;

/// Most stretches together. At the limit, a stretch is forgotten instead of being cut, and a new one
/// replaces those of another file or directory, or else of its own.
const STRETCHES_MAX: usize = if cfg!(test) { 8 } else { 1 << 20 };
/// Memory of a stretch.
const STRETCH_BYTES: usize = 32;

/// Records of a kind that lie one after the other in the tree, in the order of a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Line {
    /// Extents of data, by their ends.
    Extents(FilesetId, DataId),
    /// A directory's names, by their positions.
    Names(InodeId),
}

impl Line {
    /// The line that a record belongs to, and its place there.
    fn of(key: &Key) -> Option<(Self, u64)> {
        match *key {
            Key::Extent { fileset, data, end } => Some((Self::Extents(fileset, data), end)),
            Key::Name {
                directory,
                position,
            } => Some((Self::Names(directory), position)),
            _ => None,
        }
    }

    fn key(self, at: u64) -> Key {
        match self {
            Self::Extents(fileset, data) => Key::Extent {
                fileset,
                data,
                end: at,
            },
            Self::Names(directory) => Key::Name {
                directory,
                position: at,
            },
        }
    }

    /// The first key after the line.
    fn end(self) -> Key {
        match self {
            Self::Extents(fileset, data) => Self::Extents(fileset, data.next()).key(0),
            Self::Names(directory) => Self::Names(InodeId(directory.0.saturating_add(1))).key(0),
        }
    }
}

/// For each line: stretches from (inclusive) to (exclusive), which don't touch each other. A record
/// that leaves the table cuts the stretch that contains it.
#[derive(Default)]
pub(super) struct Known {
    lines: Map<Line, BTreeMap<u64, u64>>,
    stretches: usize,
}

impl Known {
    /// Notes that all records from one key to another (exclusive) are in the table.
    pub(super) fn note(&mut self, from: &Key, to: &Key) {
        let Some((line, from, to)) = stretch_of(from, to) else {
            return;
        };
        if from >= to {
            return;
        }
        while self.stretches >= STRETCHES_MAX {
            let other = self.lines.keys().find(|other| **other != line);
            let other = other.copied().unwrap_or(line);
            self.forget(other);
        }
        let known = self.lines.entry(line).or_default();
        let (mut first, mut end) = (from, to);
        while let Some((begin, until)) = known.range(..=end).next_back().map(|(a, b)| (*a, *b)) {
            if until < first {
                break;
            }
            known.remove(&begin);
            self.stretches -= 1;
            first = first.min(begin);
            end = end.max(until);
        }
        known.insert(first, end);
        self.stretches += 1;
    }

    /// The key (exclusive) up to which all records from `from` on are in the table.
    pub(super) fn until(&self, from: &Key) -> Option<Key> {
        let (line, at) = Line::of(from)?;
        let (_, until) = self.stretch(line, at)?;
        Some(line.key(until))
    }

    /// Whether all records from one key to another (exclusive) are in the table.
    pub(super) fn covers(&self, from: &Key, to: &Key) -> bool {
        let Some((line, at)) = Line::of(from) else {
            return false;
        };
        let Some((_, until)) = self.stretch(line, at) else {
            return false;
        };
        *to <= line.key(until) || (*to == line.end() && until == u64::MAX)
    }

    /// Whether the record under a key would be in the table if there were one.
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.until(key).is_some()
    }

    /// The memory of all stretches.
    pub(super) fn bytes(&self) -> usize {
        self.stretches * STRETCH_BYTES
    }

    /// Notes that a record leaves the table. Keeps the parts of its stretch before and after it that
    /// have records: as neighbours leave one after the other, each would leave an empty stretch.
    pub(super) fn cut(&mut self, key: &Key, mut has_records: impl FnMut(&Key, &Key) -> bool) {
        let Some((line, at)) = Line::of(key) else {
            return;
        };
        let Some((begin, until)) = self.stretch(line, at) else {
            return;
        };
        let known = self.lines.get_mut(&line).expect("it has a stretch");
        known.remove(&begin);
        self.stretches -= 1;
        if self.stretches + 2 <= STRETCHES_MAX {
            for (from, to) in [(begin, at), (at.saturating_add(1), until)] {
                if from < to && has_records(&line.key(from), &line.key(to)) {
                    known.insert(from, to);
                    self.stretches += 1;
                }
            }
        }
        if known.is_empty() {
            self.lines.remove(&line);
        }
    }

    /// Forgets the stretches of a line.
    pub(super) fn forget(&mut self, line: Line) {
        if let Some(known) = self.lines.remove(&line) {
            self.stretches -= known.len();
        }
    }

    fn stretch(&self, line: Line, at: u64) -> Option<(u64, u64)> {
        let known = self.lines.get(&line)?;
        let (begin, until) = known.range(..=at).next_back()?;
        (at < *until).then_some((*begin, *until))
    }
}

/// The part of a range that belongs to its first key's line.
pub(super) fn stretch_of(from: &Key, to: &Key) -> Option<(Line, u64, u64)> {
    let (line, first) = Line::of(from)?;
    let end = match Line::of(to) {
        Some((same, end)) if same == line => end,
        _ => u64::MAX,
    };
    Some((line, first, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(data: u64, end: u64) -> Key {
        Key::Extent {
            fileset: FilesetId(0),
            data: DataId(data),
            end,
        }
    }

    proptest! {
        /// Compared with a set of ends: never more than was noted, and all of it while there are
        /// few stretches.
        #[test]
        fn what_is_known_is_what_was_noted_and_not_cut(
            steps in proptest::collection::vec((0..5_u8, 0..2_u64, 0..40_u64, 1..12_u64), 1..60)
        ) {
            let mut known = Known::default();
            let mut model = std::collections::BTreeSet::new();
            let mut has_forgotten = false;
            for (what, data, from, length) in steps {
                match what {
                    0..=1 => {
                        known.note(&at(data, from), &at(data, from + length));
                        model.extend((from..from + length).map(|end| (data, end)));
                    }
                    2..=3 => {
                        known.cut(&at(data, from), |_, _| true);
                        model.remove(&(data, from));
                    }
                    _ => {
                        known.forget(Line::Extents(FilesetId(0), DataId(data)));
                        model.retain(|(other, _)| *other != data);
                    }
                }
                let counted: usize = known.lines.values().map(BTreeMap::len).sum();
                prop_assert_eq!(counted, known.stretches);
                prop_assert!(counted <= STRETCHES_MAX);
                has_forgotten |= counted + 2 > STRETCHES_MAX;
                for (data, end) in (0..2).flat_map(|data| (0..60).map(move |end| (data, end))) {
                    let is_known = known.contains(&at(data, end));
                    prop_assert!(!is_known || model.contains(&(data, end)));
                    prop_assert!(has_forgotten || is_known == model.contains(&(data, end)));
                }
            }
        }
    }

    #[test]
    fn neighbours_become_one_and_a_walk_to_the_end_of_a_file_is_known_to_its_end() {
        let mut known = Known::default();
        known.note(&at(1, 10), &at(1, 20));
        known.note(&at(1, 20), &at(1, 30));
        known.note(&at(1, 40), &at(2, 0));
        assert_eq!(known.until(&at(1, 10)), Some(at(1, 30)));
        assert_eq!(known.until(&at(1, 30)), None);
        assert_eq!(known.until(&at(1, 40)), Some(at(1, u64::MAX)));
        assert!(known.covers(&at(1, 50), &at(2, 0)) && !known.covers(&at(1, 50), &at(2, 1)));
        assert!(known.covers(&at(1, 10), &at(1, 30)) && !known.covers(&at(1, 10), &at(1, 31)));
        known.cut(&at(1, 15), |_, _| true);
        assert_eq!(known.until(&at(1, 10)), Some(at(1, 15)));
        assert_eq!(known.until(&at(1, 15)), None);
        assert_eq!(known.until(&at(1, 16)), Some(at(1, 30)));
    }

    #[test]
    fn names_of_directories_are_known_as_extents_are() {
        let name = |directory, position| Key::Name {
            directory: InodeId(directory),
            position,
        };
        let mut known = Known::default();
        known.note(&name(7, 10), &name(7, 20));
        known.note(&name(7, 20), &name(8, 0));
        assert!(known.covers(&name(7, 15), &name(8, 0)) && !known.covers(&name(7, 9), &name(8, 0)));
        assert!(!known.contains(&name(8, 15)) && !known.contains(&at(7, 15)));
        known.cut(&name(7, 12), |_, _| true);
        assert_eq!(known.until(&name(7, 10)), Some(name(7, 12)));
        assert_eq!(known.until(&name(7, 13)), Some(name(7, u64::MAX)));
        known.forget(Line::Names(InodeId(7)));
        assert_eq!((known.until(&name(7, 13)), known.bytes()), (None, 0));
    }

    #[test]
    fn of_a_stretch_that_is_cut_only_parts_with_records_stay() {
        let mut known = Known::default();
        known.note(&at(1, 0), &at(1, u64::MAX));
        for end in 1..1000 {
            // Everything before the one that leaves has left already.
            known.cut(&at(1, end), |from, _| *from > at(1, end));
        }
        assert_eq!(known.stretches, 1);
        assert_eq!(known.until(&at(1, 1000)), Some(at(1, u64::MAX)));
    }

    #[test]
    fn at_the_limit_another_file_is_forgotten_first() {
        let mut known = Known::default();
        for number in 0..STRETCHES_MAX as u64 - 1 {
            known.note(&at(1, number * 10), &at(1, number * 10 + 5));
        }
        known.note(&at(2, 0), &at(2, 5));
        known.note(&at(2, 10), &at(2, 15));
        assert_eq!(known.until(&at(1, 0)), None);
        assert!(known.contains(&at(2, 0)) && known.contains(&at(2, 10)));
    }
}
