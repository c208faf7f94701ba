//! Reading many small entries with few reads of the disk: those that lie side by side are read together.
//!
//! A take-over reads thousands of small log entries, which were put one after the other: in the journal as well as in the data
//! area neighbours are a few units apart. Each read of the disk costs as much as proving a dozen of them.

use crate::checksum::{UNIT, first_mismatch};
use crate::core::Core;
use crate::entry::{IndexEntry, Place, header_units};
use crate::extent::pieces;
use crate::key::Key;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use std::sync::Arc;

/// Larger entries are read one by one.
const SMALL_BYTES_MAX: u32 = 64 * 1024;
/// Bytes that nobody has asked for, between two entries that are read together.
const GAP_BYTES_MAX: u64 = 16 * 1024;
/// Largest read.
const SPAN_BYTES_MAX: u64 = 1 << 20;
/// Reads at the same time.
const SPANS_AT_ONCE: usize = 8;

/// Where an entry's payload is on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    /// Which of the entries.
    index: usize,
    /// Offset of its first byte.
    at: u64,
    /// Bytes.
    length: u32,
}

impl Part {
    /// Offset of the first unit that has bytes of it.
    fn start(&self) -> u64 {
        self.at / UNIT as u64 * UNIT as u64
    }

    /// Offset after the last unit that has bytes of it.
    fn end(&self) -> u64 {
        (self.at + u64::from(self.length)).next_multiple_of(UNIT as u64)
    }
}

/// What one read fetches.
#[derive(PartialEq, Eq, Debug)]
struct Span {
    start: u64,
    end: u64,
    parts: Vec<Part>,
}

impl Core {
    /// The bytes of those of the entries that lie near others, proven by their checksums. `None`: it must be read by itself;
    /// it is large, has no neighbour, is damaged, or was moved or deleted during the read.
    pub(crate) async fn read_near(&self, found: &[(Key, Arc<IndexEntry>)]) -> Vec<Option<Bytes>> {
        let parts = found.iter().enumerate();
        let parts = parts.filter_map(|(index, (_, entry))| self.part(index, entry));
        let mut reads = Vec::new();
        for span in spans(parts.collect()) {
            if span.parts.len() > 1 {
                reads.push(self.read_stretch(span));
            }
        }
        let mut near: Vec<Option<Bytes>> = vec![None; found.len()];
        let mut reads = stream::iter(reads).buffered(SPANS_AT_ONCE);
        while let Some((span, bytes)) = reads.next().await {
            let Some(bytes) = bytes else { continue };
            for part in &span.parts {
                let (key, entry) = &found[part.index];
                let skip = usize::try_from(part.at - span.start).expect("a span is small");
                let payload = &bytes[skip..skip + part.length as usize];
                let table = entry.checksums.as_deref().unwrap_or_default();
                let is_whole = payload.len().div_ceil(UNIT) == table.len();
                if is_whole && first_mismatch(key, 0, payload, table).is_none() {
                    // Copied: a few entries shall not keep what was read around them.
                    near[part.index] = Some(Bytes::copy_from_slice(payload));
                }
            }
        }
        near
    }

    /// The bytes of a span; `None` if some can't be read.
    async fn read_stretch(&self, span: Span) -> (Span, Option<Bytes>) {
        let length = usize::try_from(span.end - span.start).expect("a span is small");
        let bytes = self.disk.read(span.start, length).await;
        (span, bytes.ok())
    }

    /// Where an entry is, if it is small, in one piece, and its checksums are at hand.
    fn part(&self, index: usize, entry: &IndexEntry) -> Option<Part> {
        let length = entry.length;
        if length == 0 || length > SMALL_BYTES_MAX || entry.checksums.is_none() {
            return None;
        }
        let at = match &entry.place {
            Place::Journal(position) => self.ring.offset(*position),
            Place::Runs(runs) => {
                let head = header_units(entry.units()) as usize * UNIT;
                match pieces(runs, head, entry.units() as usize * UNIT)[..] {
                    [(unit, _)] => self.unit_offset(unit),
                    _ => return None,
                }
            }
        };
        Some(Part { index, at, length })
    }
}

/// Puts parts together that lie near each other.
fn spans(mut parts: Vec<Part>) -> Vec<Span> {
    parts.sort_by_key(|part| part.at);
    let mut spans: Vec<Span> = Vec::new();
    for part in parts {
        match spans.last_mut() {
            Some(span)
                if part.start() <= span.end + GAP_BYTES_MAX
                    && part.end() <= span.start + SPAN_BYTES_MAX =>
            {
                span.end = span.end.max(part.end());
                span.parts.push(part);
            }
            _ => spans.push(Span {
                start: part.start(),
                end: part.end(),
                parts: vec![part],
            }),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_read_together_in_whole_units() {
        let part = |index, at, length| Part { index, at, length };
        let unit = UNIT as u64;
        let parts = vec![
            part(0, 10 * unit + 7, 100),
            part(2, 9 * unit + 4000, 200),
            part(1, 14 * unit, 1),
            part(3, 19 * unit, 1),
        ];
        let found = spans(parts.clone());
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].start, found[0].end), (9 * unit, 20 * unit));
        assert_eq!(found[0].parts, [parts[1], parts[0], parts[2], parts[3]]);
        // One unit further is too far.
        let far = spans(vec![part(0, 0, 1), part(1, unit + GAP_BYTES_MAX + unit, 1)]);
        assert_eq!(far.len(), 2, "{far:?}");
        let many: Vec<Part> = (0..1000)
            .map(|index| part(index, index as u64 * unit, 500))
            .collect();
        let found = spans(many);
        assert!(
            found
                .iter()
                .all(|span| span.end - span.start <= SPAN_BYTES_MAX)
        );
        assert_eq!(found.len(), 4);
    }
}
