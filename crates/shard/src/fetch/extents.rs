//! Fetches ranges of files' extents: many small ones of one file at a time.
//!
//! A publish of random writes needs the extents that each piece replaces: hundreds of ranges, each
//! with one or two extents. Starting a scan of the tree costs as much as reading dozens of rows. So
//! one scan serves all ranges that its rows cover, and the number of rows depends on how many
//! ranges the previous scans served. The rows stay known ([`Records`](crate::records::Records)), so
//! the next publish in the same part of the file doesn't need the tree.

use super::Pinned;
use crate::records::successor;
use model::Result;
use namespace::Key;

/// Rows of one scan: fewest, at first, most.
const ROWS_MIN: usize = 16;
const ROWS_FIRST: usize = 128;
const ROWS_MAX: usize = 2048;

/// A range, and how many of its records are needed.
pub(super) type Range = (Key, Key, usize);

/// Whether a range consists of a single file's extents.
pub(super) fn is_of_one_file(from: &Key, to: &Key) -> bool {
    match (from, to) {
        (
            Key::Extent { fileset, data, .. },
            Key::Extent {
                fileset: other,
                data: last,
                ..
            },
        ) => fileset == other && data == last,
        _ => false,
    }
}

impl Pinned<'_> {
    /// Fetches as many records of each range as are needed. Removed ones don't count: the walk
    /// continues until enough exist.
    pub(super) async fn fetch_extents(&self, mut ranges: Vec<Range>) -> Result<()> {
        ranges.sort_unstable();
        let mut rows = ROWS_FIRST;
        // Ranges since the last scan that needed no scan.
        let mut served = 0;
        for (from, to, limit) in &ranges {
            let mut scans = 0;
            // Bounded: each scan continues after the last one, with more rows.
            while let Some(begin) = self.unknown_from(from, to, *limit) {
                rows = match (scans, served) {
                    (0, 0) => rows / 2,
                    (0, 1..=3) => rows,
                    (0, _) => rows * 2,
                    // Not before: a publish asks each range for many more than there are.
                    _ => (rows * 2).max(*limit),
                };
                rows = rows.clamp(ROWS_MIN, ROWS_MAX);
                self.scan_extents(&begin, rows).await?;
                (scans, served) = (scans + 1, 0);
            }
            served += 1;
        }
        Ok(())
    }

    /// The first key of the range that must be read from the tree, if any.
    fn unknown_from(&self, from: &Key, to: &Key, limit: usize) -> Option<Key> {
        let state = self.shard.state.lock();
        state.records.answers(from, to, limit).err()
    }

    /// Reads rows of a file's extents, starting at a key.
    async fn scan_extents(&self, from: &Key, limit: usize) -> Result<()> {
        let Key::Extent { fileset, data, .. } = *from else {
            unreachable!("only extents are fetched here")
        };
        let last = Key::Extent {
            fileset,
            data,
            end: u64::MAX,
        };
        let begin = self.shard.state.lock().records.begin_of_walk(from);
        let rows = self.shard.tree_rows(&begin, &last, limit).await?;
        let end = match rows.last() {
            Some((key, _)) if rows.len() == limit => successor(key),
            _ => last,
        };
        let mut state = self.shard.state.lock();
        for (key, value) in rows {
            state.records.offer(key, Some(value));
        }
        state.records.offered_all(self.pin, (from.clone(), end));
        Ok(())
    }
}
