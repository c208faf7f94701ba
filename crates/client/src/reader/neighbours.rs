//! Groups the pieces of a read: those that are close together in one segment need one request. Pure.
//!
//! A file with random overwrites is spread over many packs, a few KiB in each place. Writers put
//! neighbouring pieces of a file into one pack, in their order. So the pieces that a reader of such
//! a file needs from a pack are close together, separated by pieces that were overwritten since.
//! Reading those too costs less than a request for each piece.

use crate::pages::extents::{Located, Source};
use bytes::{Bytes, BytesMut};
use model::{Error, ErrorKind, Result, SegmentPlace, limits};

/// Most unneeded bytes read between two pieces: a disk transfers them in less time than a request
/// takes.
const GAP_BYTES_MAX: u32 = 8 * limits::UNIT_BYTES;
/// Most bytes of one request, unless one piece is larger.
const TOGETHER_BYTES_MAX: u32 = 1024 * 1024;

/// Pieces of one segment, and the range of it that they span.
#[derive(Debug)]
pub(super) struct Together<'a> {
    place: SegmentPlace,
    at: u32,
    end: u32,
    pieces: Vec<&'a Located>,
}

/// A piece's segment, and its range in it.
fn in_segment(piece: &Located) -> Option<(SegmentPlace, u32, u32)> {
    let Source::Segment(place, at) = piece.source else {
        return None;
    };
    let length = u32::try_from(piece.to - piece.from);
    let length = length.expect("an extent lies in one segment");
    Some((place, at, at + length))
}

/// Groups the pieces that are in segments; the others are left out. The groups have no order.
pub(super) fn together(wanted: &[Located]) -> Vec<Together<'_>> {
    let parts = wanted.iter();
    let mut parts: Vec<_> = parts
        .filter_map(|piece| Some((in_segment(piece)?, piece)))
        .collect();
    parts.sort_unstable_by_key(|((place, at, _), _)| (place.segment, *at));
    let mut out: Vec<Together<'_>> = Vec::new();
    for ((place, at, end), piece) in parts {
        if let Some(last) = out.last_mut()
            && last.place == place
            && at.saturating_sub(last.end) <= GAP_BYTES_MAX
            && end.max(last.end) - last.at <= TOGETHER_BYTES_MAX
        {
            last.end = last.end.max(end);
            last.pieces.push(piece);
            continue;
        }
        out.push(Together {
            place,
            at,
            end,
            pieces: vec![piece],
        });
    }
    out
}

impl<'a> Together<'a> {
    pub(super) fn place(&self) -> &SegmentPlace {
        &self.place
    }

    /// Where its bytes begin in the segment.
    pub(super) fn at(&self) -> u32 {
        self.at
    }

    /// Its piece, if there is only one.
    pub(super) fn single(&self) -> Option<&'a Located> {
        match self.pieces[..] {
            [piece] => Some(piece),
            _ => None,
        }
    }

    /// Bytes read with it.
    pub(super) fn bytes(&self) -> u32 {
        self.end - self.at
    }

    /// Each piece by itself.
    pub(super) fn apart(self) -> Vec<Together<'a>> {
        let pieces = self.pieces.into_iter();
        pieces
            .filter_map(|piece| {
                let (place, at, end) = in_segment(piece)?;
                Some(Together {
                    place,
                    at,
                    end,
                    pieces: vec![piece],
                })
            })
            .collect()
    }

    /// Cuts the pieces out of the bytes read. Those to be kept are copied, and small ones: a slice
    /// would keep all the bytes in memory.
    pub(super) fn cut(&self, chunks: Vec<Bytes>, is_kept: bool) -> Result<Vec<(u64, Bytes)>> {
        let bytes = joined(chunks);
        if bytes.len() != self.bytes() as usize {
            let text = format!(
                "segment {} answered {} bytes instead of {}",
                self.place.segment,
                bytes.len(),
                self.bytes()
            );
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        let piece = |piece: &&Located| {
            let Source::Segment(_, at) = piece.source else {
                return None;
            };
            let from = (at - self.at) as usize;
            let part = bytes.slice(from..from + (piece.to - piece.from) as usize);
            // A slice of little keeps all that was read in memory.
            let part = if !is_kept && part.len() * 2 >= bytes.len() {
                part
            } else {
                Bytes::copy_from_slice(&part)
            };
            Some((piece.from, part))
        };
        Ok(self.pieces.iter().filter_map(piece).collect())
    }
}

fn joined(mut chunks: Vec<Bytes>) -> Bytes {
    if chunks.len() == 1 {
        return chunks.remove(0);
    }
    let mut out = BytesMut::with_capacity(chunks.iter().map(Bytes::len).sum());
    chunks.iter().for_each(|chunk| out.extend_from_slice(chunk));
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{GroupId, Scheme, SegmentId, SessionId};

    fn place(counter: u64) -> SegmentPlace {
        let session = SessionId(1);
        SegmentPlace {
            segment: SegmentId { session, counter },
            group: GroupId(0),
            scheme: Scheme::Replicate(1),
            skipped_slots: 0,
            missing: 0,
            length: 4 << 20,
            crc: 0,
        }
    }

    fn piece(from: u64, length: u64, segment: u64, at: u32) -> Located {
        let to = from + length;
        let source = Source::Segment(place(segment), at);
        Located { from, to, source }
    }

    #[test]
    fn neighbours_in_a_segment_are_read_together_and_cut_apart() {
        let wanted = [
            piece(0, 100, 1, 200),
            piece(100, 50, 2, 0),
            piece(150, 10, 1, 150),
            piece(160, 40, 1, 300 + GAP_BYTES_MAX),
            piece(200, 40, 1, 341 + 2 * GAP_BYTES_MAX),
        ];
        let read = together(&wanted);
        let parts: Vec<_> = read
            .iter()
            .map(|it| (it.at, it.end, it.pieces.len()))
            .collect();
        let gap = GAP_BYTES_MAX;
        assert_eq!(
            parts,
            [
                (150, 340 + gap, 3),
                (341 + 2 * gap, 381 + 2 * gap, 1),
                (0, 50, 1)
            ]
        );
        let byte = |at: u32| (at ^ (at >> 8)) as u8;
        let bytes: Bytes = (0..read[0].end - read[0].at).map(byte).collect();
        let cut = read[0].cut(vec![bytes.clone()], true).unwrap();
        let expected = [(150, 0..10), (0, 50..150), (160, 150 + gap..190 + gap)];
        assert_eq!(cut.len(), expected.len());
        for ((offset, piece), (at, range)) in cut.iter().zip(expected) {
            assert_eq!(*offset, at);
            assert!(piece.iter().copied().eq(range.map(byte)));
        }
        assert!(read[0].cut(vec![bytes.slice(1..)], false).is_err());
    }

    #[test]
    fn not_more_is_read_at_once_than_memory_is_meant_for() {
        let step = u64::from(GAP_BYTES_MAX);
        let wanted: Vec<_> = (0..100)
            .map(|number| piece(number * 10, 10, 1, (number * step) as u32))
            .collect();
        let read = together(&wanted);
        assert!(read.iter().all(|it| it.end - it.at <= TOGETHER_BYTES_MAX));
        assert_eq!(read.iter().map(|it| it.pieces.len()).sum::<usize>(), 100);
        assert_eq!(read.len(), 4);
    }
}
