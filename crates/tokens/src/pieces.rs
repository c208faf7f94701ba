//! What one session holds of one object: pieces that don't overlap, each with its mode and the
//! newest grant that it is part of.

use model::token::GrantNumber;
use model::{TokenMode, TokenRange};
use std::collections::BTreeMap;

/// A held range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    /// Where.
    pub range: TokenRange,
    /// How.
    pub mode: TokenMode,
    /// The newest grant of it.
    pub number: GrantNumber,
}

/// The same bytes in order and without overlaps.
pub(crate) fn joined(mut ranges: Vec<TokenRange>) -> Vec<TokenRange> {
    ranges.sort_unstable();
    let mut out: Vec<TokenRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}

/// Whether lists of ranges, each in order, have a byte in common.
pub(crate) fn overlap(one: &[TokenRange], other: &[TokenRange]) -> bool {
    let (mut a, mut b) = (0, 0);
    while let (Some(x), Some(y)) = (one.get(a), other.get(b)) {
        if x.overlaps(*y) {
            return true;
        }
        if x.end <= y.end {
            a += 1;
        } else {
            b += 1;
        }
    }
    false
}

/// Whether one of these contains the range.
pub(crate) fn contain(ranges: &[TokenRange], range: TokenRange) -> bool {
    let mut ranges = ranges.iter();
    ranges.any(|own| own.common(range) == Some(range))
}

/// The end, mode and grant of the piece that begins at the key.
type Rest = (u64, TokenMode, GrantNumber);

/// Pieces in order of their ranges.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Pieces(BTreeMap<u64, Rest>);

impl Pieces {
    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All pieces.
    pub fn iter(&self) -> impl Iterator<Item = Piece> + '_ {
        self.0.iter().map(piece)
    }

    /// The parts of pieces that lie in a range.
    pub fn within(&self, range: TokenRange) -> impl Iterator<Item = Piece> + '_ {
        self.touching(range).filter_map(move |piece| {
            let range = piece.range.common(range)?;
            Some(Piece { range, ..piece })
        })
    }

    /// The pieces that have a part in a range, as they are.
    fn touching(&self, range: TokenRange) -> impl Iterator<Item = Piece> + '_ {
        let first = self.0.range(..range.start).next_back();
        let later = self.0.range(range.start..range.end);
        let near = first.into_iter().chain(later).map(piece);
        near.filter(move |piece| piece.range.overlaps(range))
    }

    /// Whether all of a range is held in a mode that covers this one.
    #[must_use]
    pub fn cover(&self, range: TokenRange, mode: TokenMode) -> bool {
        let mut at = range.start;
        for piece in self.within(range) {
            if piece.range.start != at || !piece.mode.covers(mode) {
                return false;
            }
            at = piece.range.end;
        }
        at == range.end
    }

    /// Takes down a grant. What is held of the range already is held in both modes afterwards.
    pub fn grant(&mut self, range: TokenRange, mode: TokenMode, number: GrantNumber) {
        let held: Vec<Piece> = self.within(range).collect();
        self.replace(range, Some((mode, number)));
        for piece in held {
            let both = (piece.mode.or(mode), piece.number.max(number));
            self.replace(piece.range, Some(both));
        }
    }

    /// Takes down that no more than `keep` is held of a range by grants up to a number. True if that
    /// changed anything.
    pub fn reduce(
        &mut self,
        range: TokenRange,
        keep: Option<TokenMode>,
        up_to: GrantNumber,
    ) -> bool {
        let old: Vec<Piece> = self
            .within(range)
            .filter(|piece| piece.number <= up_to && piece.mode.at_most(keep) != Some(piece.mode))
            .collect();
        for piece in &old {
            let kept = piece.mode.at_most(keep);
            self.replace(piece.range, kept.map(|mode| (mode, piece.number)));
        }
        !old.is_empty()
    }

    /// What is held of a range is part of this grant from now on.
    pub fn renumber(&mut self, range: TokenRange, number: GrantNumber) {
        let held: Vec<Piece> = self.within(range).collect();
        for piece in held {
            self.replace(piece.range, Some((piece.mode, piece.number.max(number))));
        }
    }

    /// Cuts a range out of all pieces and puts this in its place.
    fn replace(&mut self, range: TokenRange, by: Option<(TokenMode, GrantNumber)>) {
        let old: Vec<Piece> = self.touching(range).collect();
        for piece in &old {
            self.0.remove(&piece.range.start);
        }
        for piece in old {
            let rest = (piece.mode, piece.number);
            if let Some(before) = TokenRange::new(piece.range.start, range.start) {
                self.insert(before, rest);
            }
            if let Some(behind) = TokenRange::new(range.end, piece.range.end) {
                self.insert(behind, rest);
            }
        }
        if let Some(by) = by {
            self.insert(range, by);
        }
    }

    /// Adds a piece where nothing is held, as one with its neighbours if they are alike.
    fn insert(&mut self, range: TokenRange, (mode, number): (TokenMode, GrantNumber)) {
        let mut range = range;
        if let Some((start, (end, m, n))) = self.0.range(..range.start).next_back()
            && (*end, *m, *n) == (range.start, mode, number)
        {
            range.start = *start;
        }
        if let Some((end, m, n)) = self.0.get(&range.end)
            && (*m, *n) == (mode, number)
        {
            let end = *end;
            self.0.remove(&range.end);
            range.end = end;
        }
        self.0.insert(range.start, (range.end, mode, number));
    }
}

fn piece((start, (end, mode, number)): (&u64, &Rest)) -> Piece {
    Piece {
        range: TokenRange {
            start: *start,
            end: *end,
        },
        mode: *mode,
        number: *number,
    }
}
