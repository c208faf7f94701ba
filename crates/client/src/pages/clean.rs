//! Cached bytes of one inode that match its extents.

use bytes::Bytes;
use std::collections::BTreeMap;

#[derive(Debug)]
struct Cached {
    bytes: Bytes,
    /// Memory that they keep alive, shared with others.
    memory: u64,
    /// Distinguishes entries of the same offset in the pool's ring.
    stamp: u64,
    /// Read since the ring's last visit.
    referenced: bool,
    /// Read ahead and not used yet.
    ahead: bool,
}

/// Result of the ring's visit to an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Visit {
    /// It was read since the last visit and gets another round.
    Keep,
    /// It was evicted, with the number of its bytes and of those read ahead but never used.
    Dropped {
        /// All bytes.
        bytes: u64,
        /// Bytes read ahead that were never used.
        wasted: u64,
    },
    /// It was replaced or cut earlier.
    Unknown,
}

/// Clean cached bytes, sorted, not overlapping.
#[derive(Debug, Default)]
pub(crate) struct Clean {
    entries: BTreeMap<u64, Cached>,
    bytes: u64,
    /// Entries that the ring doesn't know yet: offset, stamp.
    fresh: Vec<(u64, u64)>,
}

impl Clean {
    /// Takes the entries that the ring doesn't know yet, as (offset, stamp).
    pub(crate) fn take_fresh(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.fresh)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Cached bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Caches bytes, replacing those cached there.
    pub(crate) fn insert(
        &mut self,
        offset: u64,
        (bytes, memory): (Bytes, u64),
        stamp: u64,
        ahead: bool,
    ) {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len() as u64;
        self.cut(offset, offset + length);
        self.bytes += length;
        self.entries.insert(
            offset,
            Cached {
                bytes,
                memory,
                stamp,
                referenced: false,
                ahead,
            },
        );
        self.fresh.push((offset, stamp));
    }

    /// Drops `from..to`.
    pub(crate) fn cut(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let first = self
            .entries
            .range(..from)
            .next_back()
            .map(|(start, _)| *start);
        let inside = self.entries.range(from..to).map(|(start, _)| *start);
        let touched: Vec<u64> = first.into_iter().chain(inside).collect();
        for start in touched {
            let end = start + self.entries[&start].bytes.len() as u64;
            let (cut_from, cut_to) = (from.max(start), to.min(end));
            if cut_from >= cut_to {
                continue;
            }
            let old = self.entries.remove(&start).expect("just seen");
            self.bytes -= cut_to - cut_from;
            let part = |a: u64, b: u64| Cached {
                bytes: old.bytes.slice((a - start) as usize..(b - start) as usize),
                memory: old.memory,
                stamp: old.stamp,
                referenced: old.referenced,
                ahead: old.ahead,
            };
            if cut_from > start {
                self.entries.insert(start, part(start, cut_from));
            }
            if cut_to < end {
                self.entries.insert(cut_to, part(cut_to, end));
                self.fresh.push((cut_to, old.stamp));
            }
        }
    }

    /// Calls `found(start, bytes)` for each cached piece in `from..to`, in order, and marks it as
    /// used. Returns the number of read-ahead bytes used for the first time.
    pub(crate) fn visit(&mut self, from: u64, to: u64, mut found: impl FnMut(u64, Bytes)) -> u64 {
        let mut used_ahead = 0;
        let first = self
            .entries
            .range(..from)
            .next_back()
            .map(|(start, _)| *start);
        for (start, cached) in self.entries.range_mut(first.unwrap_or(from)..to) {
            let end = start + cached.bytes.len() as u64;
            let (a, b) = (from.max(*start), to.min(end));
            if a >= b {
                continue;
            }
            cached.referenced = true;
            if std::mem::take(&mut cached.ahead) {
                used_ahead += cached.bytes.len() as u64;
            }
            found(
                a,
                cached
                    .bytes
                    .slice((a - start) as usize..(b - start) as usize),
            );
        }
        used_ahead
    }

    /// The end of the gapless cached range that starts at `from`.
    pub(crate) fn covered_to(&self, from: u64) -> u64 {
        let mut at = from;
        let first = self
            .entries
            .range(..=from)
            .next_back()
            .map(|(start, _)| *start);
        for (start, cached) in self.entries.range(first.unwrap_or(from)..) {
            if *start > at {
                break;
            }
            at = at.max(start + cached.bytes.len() as u64);
        }
        at
    }

    /// The ring visits an entry: used ones stay for one more round, others are evicted. One that
    /// keeps much more memory alive than its own bytes is copied.
    pub(crate) fn come_by(
        &mut self,
        offset: u64,
        stamp: u64,
        copy: impl FnOnce(&[u8]) -> Bytes,
    ) -> Visit {
        let Some(cached) = self
            .entries
            .get_mut(&offset)
            .filter(|entry| entry.stamp == stamp)
        else {
            return Visit::Unknown;
        };
        if std::mem::take(&mut cached.referenced) {
            if is_wasteful(&cached.bytes, cached.memory) {
                cached.bytes = copy(&cached.bytes);
                cached.memory = cached.bytes.len() as u64;
            }
            return Visit::Keep;
        }
        let cached = self.entries.remove(&offset).expect("just seen");
        let bytes = cached.bytes.len() as u64;
        self.bytes -= bytes;
        Visit::Dropped {
            bytes,
            wasted: if cached.ahead { bytes } else { 0 },
        }
    }
}

/// Whether bytes keep at least twice the memory alive that a copy would take.
pub(crate) fn is_wasteful(bytes: &Bytes, memory: u64) -> bool {
    bytes.len() as u64 <= memory / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn cached_bytes_are_those_inserted_last_and_not_cut(
            steps in prop::collection::vec((any::<bool>(), 0u64..80, 0usize..30, any::<u8>()), 1..60),
        ) {
            let mut clean = Clean::default();
            let mut model = vec![None; 128];
            for (insert, from, length, seed) in steps {
                let range = from as usize..from as usize + length;
                if insert {
                    clean.insert(from, (Bytes::from(vec![seed; length]), 0), 1, false);
                    model[range].fill(Some(seed));
                } else {
                    clean.cut(from, from + length as u64);
                    model[range].fill(None);
                }
                let mut seen = vec![None; 128];
                clean.visit(0, 128, |start, bytes| {
                    for (at, byte) in bytes.iter().enumerate() {
                        seen[start as usize + at] = Some(*byte);
                    }
                });
                prop_assert_eq!(&seen, &model);
                prop_assert_eq!(clean.bytes(), model.iter().flatten().count() as u64);
                for at in 0..128usize {
                    let run = model[at..].iter().take_while(|byte| byte.is_some()).count();
                    prop_assert_eq!(clean.covered_to(at as u64), (at + run) as u64);
                }
            }
        }
    }

    #[test]
    fn what_was_read_survives_one_round_and_the_rest_goes() {
        let mut clean = Clean::default();
        clean.insert(0, (Bytes::from_static(b"read"), 4), 1, true);
        clean.insert(10, (Bytes::from_static(b"unread"), 6), 2, true);
        assert_eq!(clean.visit(1, 2, |_, _| ()), 4);
        assert_eq!(clean.visit(1, 2, |_, _| ()), 0);
        assert_eq!(clean.come_by(0, 1, Bytes::copy_from_slice), Visit::Keep);
        assert_eq!(
            clean.come_by(0, 1, Bytes::copy_from_slice),
            Visit::Dropped {
                bytes: 4,
                wasted: 0
            }
        );
        assert_eq!(clean.come_by(10, 1, Bytes::copy_from_slice), Visit::Unknown);
        assert_eq!(
            clean.come_by(10, 2, Bytes::copy_from_slice),
            Visit::Dropped {
                bytes: 6,
                wasted: 6
            }
        );
        assert!(clean.is_empty());
    }

    #[test]
    fn a_small_rest_that_is_read_leaves_the_memory_of_the_whole() {
        let mut clean = Clean::default();
        let whole = Bytes::from(vec![7; 1000]);
        clean.insert(0, (whole.clone(), 1000), 1, false);
        clean.cut(100, 1000);
        clean.visit(0, 100, |_, _| ());
        let mut copies = 0;
        let visit = clean.come_by(0, 1, |bytes| {
            copies += 1;
            Bytes::copy_from_slice(bytes)
        });
        assert_eq!((visit, copies), (Visit::Keep, 1));
        assert!(whole.is_unique());
        clean.visit(0, 100, |at, bytes| {
            assert_eq!((at, &bytes[..]), (0, &[7; 100][..]))
        });
    }
}
