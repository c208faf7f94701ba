//! Remembers ranges of a file's extents known to be removed, so that removing a large file step by
//! step doesn't scan in each step over everything that earlier steps removed.

use super::known::{Line, stretch_of};
use model::{DataId, FilesetId};
use namespace::Key;
use std::cell::RefCell;
use world::Map;

/// A walk notes a range of removed records after passing this many. Few in tests.
pub(super) const NOTED_MIN: usize = if cfg!(test) { 2 } else { 64 };
/// Most files with a range; beyond that the table starts empty.
const FILES_MAX: usize = 1024;

/// Skipping removed records doesn't hide the commits that removed them from an operation: they also
/// changed the inode, which counts its extents.
///
/// For each data id, one range of extent ends, from (inclusive) to (exclusive), in which there is
/// no record: neither here nor in the tree, once the removals have been applied.
#[derive(Default)]
pub(super) struct Absent {
    stretches: RefCell<Map<(FilesetId, DataId), (u64, u64)>>,
}

impl Absent {
    /// Where to continue instead of at `from`, if `from` lies in a noted range.
    pub(super) fn skip(&self, from: &Key) -> Option<Key> {
        let Key::Extent { fileset, data, end } = *from else {
            return None;
        };
        let (first, behind) = *self.stretches.borrow().get(&(fileset, data))?;
        (first <= end && end < behind).then_some(Key::Extent {
            fileset,
            data,
            end: behind,
        })
    }

    /// Notes that there is no record from one key up to another.
    pub(super) fn note(&self, from: &Key, to: &Key) {
        let Some((Line::Extents(fileset, data), from, to)) = stretch_of(from, to) else {
            return;
        };
        let mut stretches = self.stretches.borrow_mut();
        if stretches.len() >= FILES_MAX {
            stretches.clear();
        }
        let stretch = stretches.entry((fileset, data)).or_insert((from, to));
        if stretch.0 <= from && from <= stretch.1 {
            stretch.1 = stretch.1.max(to);
        } else {
            *stretch = (from, to);
        }
    }

    /// Notes that a record was added.
    pub(super) fn put(&mut self, key: &Key) {
        let stretches = self.stretches.get_mut();
        if stretches.is_empty() {
            return;
        }
        if let Key::Extent { fileset, data, end } = *key {
            let hit = stretches.get(&(fileset, data));
            if hit.is_some_and(|(first, behind)| *first <= end && end < *behind) {
                stretches.remove(&(fileset, data));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(data: u64, end: u64) -> Key {
        Key::Extent {
            fileset: FilesetId(0),
            data: DataId(data),
            end,
        }
    }

    #[test]
    fn a_stretch_grows_with_each_step_and_ends_with_a_record_in_it() {
        let mut absent = Absent::default();
        assert_eq!(absent.skip(&at(1, 0)), None);
        absent.note(&at(1, 10), &at(1, 100));
        absent.note(&at(1, 100), &at(1, 200));
        assert_eq!(absent.skip(&at(1, 9)), None);
        assert_eq!(absent.skip(&at(1, 10)), Some(at(1, 200)));
        assert_eq!(absent.skip(&at(1, 200)), None);
        assert_eq!(absent.skip(&at(2, 50)), None);
        absent.put(&at(1, 200));
        absent.put(&at(2, 50));
        assert_eq!(absent.skip(&at(1, 150)), Some(at(1, 200)));
        absent.put(&at(1, 199));
        assert_eq!(absent.skip(&at(1, 150)), None);
        absent.note(&at(1, 10), &at(2, 0));
        assert_eq!(absent.skip(&at(1, 10)), Some(at(1, u64::MAX)));
    }
}
