//! A cache of an inode's extents; it may be partial and can be dropped at any time.

use super::memory::{Blocks, ExtentsCharge};
use super::ranges::Ranges;
use bytes::Bytes;
use model::{Extent, ExtentKind, SegmentPlace};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most extents remembered per inode.
const EXTENTS_MAX: usize = 16_384;
/// Most extents while the page pool is over its budget.
const EXTENTS_MAX_WHEN_FULL: usize = 512;
/// Memory taken by one.
const RECORD_BYTES: usize = 160;
/// Most inline bytes.
const INLINE_BYTES_MAX: usize = 1024 * 1024;

/// Place of the bytes of a piece of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Zeros: a hole, or reserved space.
    Zeros,
    /// In the record.
    Inline(Bytes),
    /// In a segment, from this byte on.
    Segment(SegmentPlace, u32),
    /// Unknown: the owner must be asked.
    Unknown,
}

/// A piece of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) source: Source,
}

/// Known extents of one inode.
#[derive(Debug)]
pub(crate) struct Extents {
    /// By offset; disjoint.
    map: BTreeMap<u64, Extent>,
    /// Ranges in which `map` is complete; gaps there are holes.
    known: Ranges,
    /// Inline bytes added since the last `forget_all`.
    inline_bytes: usize,
    /// The page pool memory that all this takes.
    charge: ExtentsCharge,
}

impl Extents {
    pub(crate) fn new(blocks: &Arc<Blocks>) -> Self {
        Self {
            map: BTreeMap::new(),
            known: Ranges::default(),
            inline_bytes: 0,
            charge: ExtentsCharge::new(blocks),
        }
    }

    fn count(&mut self) {
        let records = self.map.len() + self.known.len();
        let bytes = records * RECORD_BYTES + self.inline_bytes;
        self.charge.set(bytes as u64);
    }

    /// Takes in an answer: all extents of `from..known_to`.
    pub(crate) fn learn(&mut self, from: u64, known_to: u64, extents: &[Extent]) {
        let blocks = self.charge.home();
        let most = if blocks.held() > blocks.budget() {
            EXTENTS_MAX_WHEN_FULL
        } else {
            EXTENTS_MAX
        };
        if self.map.len() + extents.len() > most || self.inline_bytes > INLINE_BYTES_MAX {
            self.forget_all();
        }
        let inline = extents
            .iter()
            .filter(|extent| matches!(extent.kind, ExtentKind::Inline(_)));
        self.inline_bytes += inline.map(|extent| extent.length as usize).sum::<usize>();
        self.cut(from, known_to);
        for extent in extents
            .iter()
            .filter_map(|extent| extent.clip(from, known_to))
        {
            self.map.insert(extent.offset, extent);
        }
        self.known.add(from, known_to);
        self.count();
    }

    /// Adds an extent that this client has published.
    pub(crate) fn put(&mut self, extent: &Extent) {
        self.learn(extent.offset, extent.end(), std::slice::from_ref(extent));
    }

    /// `from..to` is a hole now.
    pub(crate) fn punch(&mut self, from: u64, to: u64) {
        self.cut(from, to);
        self.known.add(from, to);
        self.count();
    }

    /// Makes `from..to` unknown.
    pub(crate) fn forget(&mut self, from: u64, to: u64) {
        self.cut(from, to);
        self.known.remove(from, to);
        self.count();
    }

    pub(crate) fn forget_all(&mut self) {
        self.map.clear();
        self.known.clear();
        self.inline_bytes = 0;
        self.count();
    }

    fn cut(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let first = self.map.range(..from).next_back().map(|(start, _)| *start);
        let inside = self.map.range(from..to).map(|(start, _)| *start);
        let touched: Vec<u64> = first.into_iter().chain(inside).collect();
        for start in touched {
            if self.map[&start].end() <= from {
                continue;
            }
            let extent = self.map.remove(&start).expect("just seen");
            for part in [extent.clip(0, from), extent.clip(to, u64::MAX)]
                .into_iter()
                .flatten()
            {
                self.map.insert(part.offset, part);
            }
        }
    }

    /// The first piece of `locate` for `from..to`, which isn't empty; the next piece may be of the
    /// same kind.
    pub(crate) fn first(&self, from: u64, to: u64) -> Located {
        let piece = |to, source| Located { from, to, source };
        let known_to = self.known.covered_to(from).min(to);
        if known_to <= from {
            let next = self.known.next_start(from).unwrap_or(to);
            return piece(next.min(to), Source::Unknown);
        }
        let before = self.map.range(..=from).next_back();
        if let Some(part) = before.and_then(|(_, extent)| extent.clip(from, known_to)) {
            return piece(part.end(), source_of(part.kind));
        }
        let next = self.map.range(from..known_to).next();
        piece(next.map_or(known_to, |(start, _)| *start), Source::Zeros)
    }

    /// The places of the bytes of `from..to`, without gaps, in order.
    pub(crate) fn locate(&self, from: u64, to: u64) -> Vec<Located> {
        let mut out = Vec::new();
        let mut at = from;
        while at < to {
            let known_to = self.known.covered_to(at).min(to);
            if known_to <= at {
                let next = self.known.next_start(at).unwrap_or(to).min(to);
                out.push(Located {
                    from: at,
                    to: next,
                    source: Source::Unknown,
                });
                at = next;
                continue;
            }
            self.locate_known(at, known_to, &mut out);
            at = known_to;
        }
        out
    }

    fn locate_known(&self, from: u64, to: u64, out: &mut Vec<Located>) {
        let mut at = from;
        let first = self.map.range(..from).next_back();
        for (_, extent) in first.into_iter().chain(self.map.range(from..to)) {
            let Some(part) = extent.clip(from, to) else {
                continue;
            };
            if part.offset > at {
                out.push(Located {
                    from: at,
                    to: part.offset,
                    source: Source::Zeros,
                });
            }
            at = part.end();
            let from = part.offset;
            out.push(Located {
                from,
                to: at,
                source: source_of(part.kind),
            });
        }
        if at < to {
            out.push(Located {
                from: at,
                to,
                source: Source::Zeros,
            });
        }
    }
}

fn source_of(kind: ExtentKind) -> Source {
    match kind {
        ExtentKind::Data { place, at, .. } => Source::Segment(place, at),
        ExtentKind::Inline(bytes) => Source::Inline(bytes),
        ExtentKind::Reserved => Source::Zeros,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::CommitNumber;
    use proptest::prelude::*;

    fn inline(offset: u64, byte: u8, length: usize) -> Extent {
        let kind = ExtentKind::Inline(Bytes::from(vec![byte; length]));
        Extent {
            offset,
            length: length as u64,
            kind,
            birth: CommitNumber(0),
        }
    }

    /// 255 stands for unknown.
    fn paint(extents: &Extents) -> Vec<u8> {
        let mut out = vec![254; 100];
        let mut at = 0;
        for piece in extents.locate(0, 100) {
            assert_eq!(piece.from, at);
            at = piece.to;
            let range = piece.from as usize..piece.to as usize;
            match piece.source {
                Source::Zeros => out[range].fill(0),
                Source::Inline(bytes) => out[range].copy_from_slice(&bytes),
                Source::Segment(..) => unreachable!("there are none"),
                Source::Unknown => out[range].fill(255),
            }
        }
        assert_eq!(at, 100);
        out
    }

    proptest! {
        #[test]
        fn the_cache_says_what_it_was_told_last_or_that_it_does_not_know(
            steps in prop::collection::vec((0u8..3, 0u64..70, 1usize..30, 1u8..200), 1..60),
        ) {
            let mut extents = Extents::new(&Blocks::new(1 << 16, 16 << 20));
            let mut model = vec![255u8; 100];
            for (what, from, length, byte) in steps {
                let to = from + length as u64;
                let range = from as usize..to as usize;
                match what {
                    0 => {
                        extents.put(&inline(from, byte, length));
                        model[range].fill(byte);
                    }
                    1 => {
                        extents.punch(from, to);
                        model[range].fill(0);
                    }
                    _ => {
                        extents.forget(from, to);
                        model[range].fill(255);
                    }
                }
                prop_assert_eq!(&paint(&extents), &model);
                for at in 0..100u64 {
                    let first = extents.first(at, 100);
                    let mut located = extents.locate(at, 100);
                    prop_assert_eq!(first, located.swap_remove(0));
                }
            }
        }
    }

    #[test]
    fn an_answer_replaces_what_was_known_of_its_range() {
        let mut extents = Extents::new(&Blocks::new(1 << 16, 16 << 20));
        extents.put(&inline(0, 1, 50));
        extents.learn(10, 40, &[inline(5, 2, 10), inline(30, 3, 20)]);
        let paint = paint(&extents);
        assert_eq!(
            (paint[9], paint[10], paint[14], paint[15], paint[29]),
            (1, 2, 2, 0, 0)
        );
        assert_eq!(
            (paint[30], paint[39], paint[40], paint[49], paint[50]),
            (3, 3, 1, 1, 255)
        );
    }
}
