//! Decides when records are read ahead of the operations that miss them.
//!
//! One get from the tree costs as much as some twenty rows of a scan. So after a few gets in one
//! part of the tree (a directory's names, or inodes with neighbouring numbers, which one directory
//! took in a run) the part is read in growing stretches, each costing at most as much as the gets
//! before it. Later operations find the rest in memory; if there are none, the cost has at most
//! doubled. Which records were used needn't be known.

use model::InodeId;
use namespace::{Key, POSITION_END};
use world::Map;

/// Gets in a part before the first stretch is read.
const GETS_FIRST: u32 = 4;
/// Rows of names and inodes that cost as much as one get. Inodes may hold their file's content.
const NAMES_PER_GET: u32 = 32;
const INODES_PER_GET: u32 = 16;
/// Most rows of one stretch, because an operation waits for them; up to 4 MiB with content.
const ROWS_MAX: usize = 1024;
/// Most memory that a row takes.
const ROW_BYTES_MAX: usize = 4608;
/// A stretch takes at most one part in this many of the memory for records.
const MEMORY_PART: usize = 16;
/// Inodes in a part: the longest run of numbers that a directory takes.
const INODES: u64 = 1024;
/// Most parts remembered; if there are more, all are forgotten.
const PARTS_MAX: usize = 4096;

/// Neighbouring records that are often wanted together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Part {
    /// A directory's names.
    Names(InodeId),
    /// [`INODES`] inodes; the number is the first one's, divided by [`INODES`].
    Inodes(u64),
}

impl Part {
    fn of(key: &Key) -> Option<Self> {
        match key {
            Key::Name { directory, .. } => Some(Self::Names(*directory)),
            Key::Inode(inode) => Some(Self::Inodes(inode.0 / INODES)),
            _ => None,
        }
    }

    fn first(self) -> Key {
        match self {
            Self::Names(directory) => Key::Name {
                directory,
                position: 0,
            },
            Self::Inodes(block) => Key::Inode(InodeId(block * INODES)),
        }
    }

    /// Exclusive.
    fn end(self) -> Key {
        match self {
            Self::Names(directory) => Key::Name {
                directory,
                position: POSITION_END,
            },
            Self::Inodes(block) => Key::Inode(InodeId((block + 1) * INODES)),
        }
    }

    fn rows_per_get(self) -> u32 {
        match self {
            Self::Names(_) => NAMES_PER_GET,
            Self::Inodes(_) => INODES_PER_GET,
        }
    }
}

/// What to read ahead now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stretch {
    pub(crate) part: Part,
    /// Inclusive.
    pub(crate) from: Key,
    /// Exclusive.
    pub(crate) to: Key,
    /// At most this many rows.
    pub(crate) rows: usize,
}

struct Progress {
    /// Gets since the part was last read to its end.
    gets: u32,
    /// Those among them that earlier stretches have used up.
    spent: u32,
    /// Where the next stretch begins.
    next: Key,
    /// A stretch is being read.
    is_reading: bool,
}

/// The parts in which records were missing.
pub(crate) struct Ahead {
    parts: Map<Part, Progress>,
    rows_max: usize,
}

impl Ahead {
    /// For a table of records that may take this much memory.
    pub(crate) fn new(memory_bytes: usize) -> Self {
        Self {
            parts: Map::default(),
            rows_max: ROWS_MAX.min(memory_bytes / MEMORY_PART / ROW_BYTES_MAX),
        }
    }

    /// Notes a record found in the tree. Returns the stretch to read now, if any; the caller must
    /// then call [`Ahead::done`].
    pub(crate) fn got(&mut self, key: &Key) -> Option<Stretch> {
        let part = Part::of(key)?;
        if self.parts.len() >= PARTS_MAX && !self.parts.contains_key(&part) {
            self.parts.clear();
        }
        let progress = self.parts.entry(part).or_insert_with(|| Progress {
            gets: 0,
            spent: 0,
            next: part.first(),
            is_reading: false,
        });
        progress.gets += 1;
        // Each stretch is twice as long as the last one, up to the maximum.
        let most = (self.rows_max as u32).div_ceil(part.rows_per_get());
        let unspent = progress.gets - progress.spent;
        let wanted = progress.spent.clamp(GETS_FIRST, most.max(GETS_FIRST));
        if self.rows_max == 0 || progress.is_reading || unspent < wanted {
            return None;
        }
        progress.spent = progress.gets;
        progress.is_reading = true;
        Some(Stretch {
            part,
            from: progress.next.clone(),
            to: part.end(),
            rows: self.rows_max.min((unspent * part.rows_per_get()) as usize),
        })
    }

    /// The stretch was read up to `next`, or to the end of the part.
    pub(crate) fn done(&mut self, part: Part, next: Option<Key>) {
        let Some(progress) = self.parts.get_mut(&part) else {
            return;
        };
        match next {
            Some(next) => {
                progress.next = next;
                progress.is_reading = false;
            }
            // Records missed from now on were forgotten since: start again.
            None => drop(self.parts.remove(&part)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: usize = 384 << 20;

    fn name(position: u64) -> Key {
        Key::Name {
            directory: InodeId(9),
            position,
        }
    }

    /// Gets the records that no stretch has read ahead, in order; returns the number of gets, and
    /// of rows read ahead.
    fn walk(ahead: &mut Ahead, keys: impl Iterator<Item = u64>, key: fn(u64) -> Key) -> (u64, u64) {
        let (mut gets, mut read, mut covered) = (0, 0, 0);
        for number in keys {
            if number < covered {
                continue;
            }
            gets += 1;
            if let Some(stretch) = ahead.got(&key(number)) {
                assert_eq!(stretch.from, key(covered));
                read += stretch.rows as u64;
                covered += stretch.rows as u64;
                ahead.done(stretch.part, Some(key(covered)));
            }
        }
        (gets, read)
    }

    #[test]
    fn a_walk_over_a_directory_gets_few_names_one_by_one() {
        let mut ahead = Ahead::new(MEMORY);
        let (gets, _) = walk(&mut ahead, 0..20_000, name);
        assert!(gets < 1000, "{gets}");
        let mut ahead = Ahead::new(MEMORY);
        let (gets, _) = walk(&mut ahead, 0..1024, |number| Key::Inode(InodeId(number)));
        assert!(gets <= 64, "{gets}");
    }

    #[test]
    fn a_few_lookups_in_a_large_directory_read_little_ahead() {
        for looks in [1, 3, 4, 10, 100, 1000] {
            let mut ahead = Ahead::new(MEMORY);
            let far = (0..looks).map(|number| 1_000_000_000 + number);
            let (gets, read) = walk(&mut ahead, far, name);
            assert_eq!(gets, looks);
            assert!(read <= gets * u64::from(NAMES_PER_GET), "{looks}: {read}");
            assert!(looks >= u64::from(GETS_FIRST) || read == 0);
        }
    }

    #[test]
    fn one_stretch_of_a_part_is_read_at_a_time() {
        let mut ahead = Ahead::new(MEMORY);
        let mut stretches = (0..100).filter_map(|number| ahead.got(&name(number)));
        let first = stretches.next().expect("read after a few");
        assert_eq!(stretches.next(), None);
        drop(stretches);
        ahead.done(first.part, Some(name(5)));
        assert_eq!(ahead.got(&name(7)).expect("continues").from, name(5));
    }

    #[test]
    fn a_part_that_was_read_to_its_end_begins_again() {
        let mut ahead = Ahead::new(MEMORY);
        let part = Part::Names(InodeId(9));
        for _ in 0..3 {
            let read = (0..GETS_FIRST).find_map(|number| ahead.got(&name(number.into())));
            assert_eq!(read.expect("read after a few").from, part.first());
            ahead.done(part, None);
        }
        assert!(ahead.parts.is_empty());
    }

    #[test]
    fn little_memory_and_many_parts_are_no_reason_to_take_more() {
        let mut ahead = Ahead::new(MEMORY_PART * ROW_BYTES_MAX * 10);
        for number in 0..10_000 {
            if let Some(stretch) = ahead.got(&name(number)) {
                assert!(stretch.rows <= 10);
                ahead.done(stretch.part, Some(name(number)));
            }
        }
        let mut none = Ahead::new(1000);
        assert!((0..1000).all(|number| none.got(&name(number)).is_none()));
        for block in 0..3 * PARTS_MAX as u64 {
            ahead.got(&Key::Inode(InodeId(block * INODES)));
            assert!(ahead.parts.len() <= PARTS_MAX);
        }
    }
}
