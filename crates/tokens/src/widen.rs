//! What a session gives back beside what it is asked for.

use crate::pieces::joined;
use model::TokenRange;
use model::token::TOKEN_RANGES_MAX;

/// The required ranges, each with so many bytes on both sides as far as nothing `spared` lies in between: in order, without
/// overlaps, and no more than a message holds.
#[must_use]
pub fn widened(required: &[TokenRange], more: u64, spared: Option<TokenRange>) -> Vec<TokenRange> {
    let widen = |range: &TokenRange| {
        let wide = TokenRange {
            start: range.start.saturating_sub(more),
            end: range.end.saturating_add(more),
        };
        let Some(spared) = spared else {
            return wide;
        };
        // What is required goes all the same.
        let start = match spared.start < range.start {
            true => wide.start.max(spared.end.min(range.start)),
            false => wide.start,
        };
        let end = match spared.end > range.end {
            true => wide.end.min(spared.start.max(range.end)),
            false => wide.end,
        };
        TokenRange { start, end }
    };
    let all = joined(required.iter().map(widen).collect());
    match all.len() <= TOKEN_RANGES_MAX {
        true => all,
        false => required.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> TokenRange {
        TokenRange { start, end }
    }

    #[test]
    fn more_goes_on_both_sides_up_to_what_is_spared() {
        let required = [range(100, 110), range(200, 210)];
        assert_eq!(widened(&required, 0, None), required);
        assert_eq!(
            widened(&required, 20, None),
            [range(80, 130), range(180, 230)]
        );
        assert_eq!(widened(&required, 50, None), [range(50, 260)]);
        assert_eq!(widened(&required, u64::MAX, None), [TokenRange::ALL]);
        let spared = Some(range(120, 150));
        assert_eq!(
            widened(&required, 90, spared),
            [range(10, 120), range(150, 300)]
        );
        // Nor what lies behind it.
        let tail = Some(range(205, 300));
        assert_eq!(
            widened(&required, u64::MAX, tail),
            [range(0, 210)],
            "what is required goes all the same"
        );
        let all = Some(TokenRange::ALL);
        assert_eq!(widened(&required, 50, all), required);
        assert!(widened(&[], 50, None).is_empty());
    }

    #[test]
    fn what_is_required_is_always_among_it_and_never_more_than_what_is_spared_allows() {
        let sizes = [0, 1, 7, 64, u64::MAX];
        for spared in (0..40).map(|at| range(at * 3, at * 3 + 1 + at % 5)) {
            for more in sizes {
                let required = [range(20, 24), range(60, 61)];
                let out = widened(&required, more, Some(spared));
                let has = |byte| out.iter().any(|it| it.start <= byte && byte < it.end);
                for byte in 0..200 {
                    let is_required = required.iter().any(|it| it.start <= byte && byte < it.end);
                    let is_spared = spared.start <= byte && byte < spared.end;
                    assert!(has(byte) || !is_required, "{byte} of {spared:?}");
                    assert!(
                        !has(byte) || is_required || !is_spared,
                        "{byte} of {spared:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn no_more_ranges_come_out_than_a_message_holds() {
        let many: Vec<_> = (0..256)
            .map(|at| range(100 + at * 4, 102 + at * 4))
            .collect();
        assert_eq!(widened(&many, 1, None).len(), 1);
        assert_eq!(widened(&many, 0, None), many);
    }
}
