//! The arithmetic of pieces: their length, which piece holds a byte, and which scheme a segment of
//! a given length gets.

use model::{Scheme, limits};
use std::ops::Range;

/// Bytes of each piece of a segment of `length` plain bytes.
///
/// Copies are exactly the plain data. A data piece is 1/k of it, rounded up to 4 KiB; the last ones
/// are padded with zeros, so that all data and parity pieces are equally long.
#[must_use]
pub fn piece_length(scheme: Scheme, length: u32) -> u32 {
    match scheme {
        Scheme::Replicate(_) => length,
        Scheme::Erasure { k, .. } => length
            .div_ceil(u32::from(k))
            .next_multiple_of(limits::UNIT_BYTES),
    }
}

/// A byte range of one data piece.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PieceRange {
    /// The data piece; 0 for copies, where any copy will do.
    pub piece: u8,
    /// Bytes inside the piece.
    pub range: Range<u32>,
}

/// The parts of data pieces that hold `at..at + length` of the plain data, in order. Panics if the
/// range ends after the segment.
#[must_use]
pub fn data_ranges(scheme: Scheme, segment_bytes: u32, at: u32, length: u32) -> Vec<PieceRange> {
    let end = at
        .checked_add(length)
        .filter(|end| *end <= segment_bytes)
        .expect("a read ends inside its segment");
    let piece_bytes = piece_length(scheme, segment_bytes).max(1);
    let mut out = Vec::new();
    let mut from = at;
    while from < end {
        let piece = from / piece_bytes;
        let start = piece * piece_bytes;
        let to = end.min(start + piece_bytes);
        let piece = u8::try_from(piece).expect("a segment has at most 16 data pieces");
        out.push(PieceRange {
            piece,
            range: from - start..to - start,
        });
        from = to;
    }
    out
}

/// The scheme of a segment of `length` bytes when `live` slots of its group can take pieces.
///
/// Erasure-coded segments become narrower (same m, k = live - m), copies fewer. Short segments, and
/// those for which one data piece is enough, become m + 1 copies. `None` if redundancy would be
/// lost: erasure coding needs m + 1 slots, copies need two (one for `replicate(1)`). If `degraded`
/// is set, any slots that are left will do, down to one copy.
#[must_use]
pub fn scheme_for(pool: Scheme, length: u32, live: usize, degraded: bool) -> Option<Scheme> {
    let copies = |n: usize| {
        let n = u8::try_from(n).ok().filter(|n| *n <= Scheme::COPIES_MAX);
        Scheme::Replicate(n.expect("a pool has at most four parity pieces"))
    };
    match pool {
        Scheme::Replicate(n) => {
            let least = if degraded { 1 } else { usize::from(n).min(2) };
            (live >= least).then(|| copies(live.min(usize::from(n))))
        }
        Scheme::Erasure { k, m } => {
            let parity = usize::from(m);
            if live <= parity {
                return (degraded && live > 0).then(|| copies(live));
            }
            let widest = usize::from(k).min(live - parity);
            let unit = limits::UNIT_BYTES;
            if length < limits::ERASURE_BYTES_MIN.max(u32::from(k) * unit) || widest == 1 {
                return Some(copies(parity + 1));
            }
            // Rounding to units can leave the last pieces empty: use fewer pieces of the same
            // length.
            let whole = Scheme::Erasure {
                k: u8::try_from(widest).expect("k is at most 16"),
                m,
            };
            let k = length.div_ceil(piece_length(whole, length));
            Some(Scheme::Erasure {
                k: u8::try_from(k).expect("k only shrinks"),
                m,
            })
        }
    }
}

/// Bytes that all pieces of a segment occupy, in whole units.
#[must_use]
pub fn stored_bytes(scheme: Scheme, length: u32) -> u64 {
    let piece =
        u64::from(piece_length(scheme, length)).next_multiple_of(u64::from(limits::UNIT_BYTES));
    piece * scheme.width() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: Scheme = Scheme::Erasure { k: 4, m: 2 };

    #[test]
    fn pieces_are_whole_units_and_cover_the_segment() {
        assert_eq!(piece_length(WIDE, 4 << 20), 1 << 20);
        assert_eq!(piece_length(WIDE, (4 << 20) + 1), (1 << 20) + 4096);
        assert_eq!(piece_length(Scheme::Replicate(3), 77), 77);
    }

    #[test]
    fn a_small_read_touches_one_piece() {
        let ranges = data_ranges(WIDE, 4 << 20, (1 << 20) + 8192, 4096);
        assert_eq!(
            ranges,
            vec![PieceRange {
                piece: 1,
                range: 8192..12288
            }]
        );
    }

    #[test]
    fn a_read_over_piece_borders_comes_in_order_and_whole() {
        let ranges = data_ranges(WIDE, 4 << 20, (1 << 20) - 10, (1 << 20) + 20);
        assert_eq!(
            ranges.iter().map(|part| part.piece).collect::<Vec<_>>(),
            [0, 1, 2]
        );
        assert_eq!(
            ranges.iter().map(|part| part.range.len()).sum::<usize>(),
            (1 << 20) + 20
        );
    }

    #[test]
    fn fewer_live_slots_make_segments_narrower_but_never_less_redundant() {
        let length = 4 << 20;
        let scheme = |live| scheme_for(WIDE, length, live, false);
        assert_eq!(scheme(6), Some(WIDE));
        assert_eq!(scheme(5), Some(Scheme::Erasure { k: 3, m: 2 }));
        assert_eq!(scheme(4), Some(Scheme::Erasure { k: 2, m: 2 }));
        assert_eq!(scheme(3), Some(Scheme::Replicate(3)));
        assert_eq!(scheme(2), None);
    }

    #[test]
    fn copies_go_down_to_two_and_to_one_only_where_it_is_allowed() {
        let pool = Scheme::Replicate(3);
        assert_eq!(scheme_for(pool, 9, 2, false), Some(Scheme::Replicate(2)));
        assert_eq!(scheme_for(pool, 9, 1, false), None);
        assert_eq!(
            scheme_for(Scheme::Replicate(2), 9, 1, true),
            Some(Scheme::Replicate(1))
        );
        assert_eq!(
            scheme_for(Scheme::Replicate(1), 9, 1, false),
            Some(Scheme::Replicate(1))
        );
        assert_eq!(scheme_for(Scheme::Replicate(1), 9, 0, true), None);
    }

    #[test]
    fn short_segments_of_an_erasure_pool_are_copies() {
        assert_eq!(
            scheme_for(WIDE, 65_535, 6, false),
            Some(Scheme::Replicate(3))
        );
        assert_eq!(scheme_for(WIDE, 65_536, 6, false), Some(WIDE));
    }

    /// Would be broken if a segment got a scheme that no decoder takes.
    #[test]
    fn short_segments_have_as_many_copies_as_survive_what_long_ones_do() {
        for m in 1..=4 {
            let pool = Scheme::Erasure { k: 2, m };
            let short = scheme_for(pool, 10, usize::from(m) + 2, false);
            assert_eq!(short, Some(Scheme::Replicate(m + 1)));
            assert_eq!(short.map(Scheme::tolerance), Some(pool.tolerance()));
        }
    }

    #[test]
    fn no_piece_is_padding_only() {
        let pool = Scheme::Erasure { k: 16, m: 3 };
        for length in (65_536..400_000).step_by(1023) {
            let Some(Scheme::Erasure { k, m: 3 }) = scheme_for(pool, length, 19, false) else {
                panic!("erasure")
            };
            let piece = piece_length(Scheme::Erasure { k, m: 3 }, length);
            assert!(
                piece * (u32::from(k) - 1) < length && piece * u32::from(k) >= length,
                "{length}"
            );
        }
    }
}
