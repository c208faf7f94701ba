//! How many files a client asks about at once for a program that looks at one file of a directory after the other. Pure.
//!
//! Whoever removes, opens or lists by itself what a directory has looks each name up, and would wait for a message each time. So
//! once a program has looked at some files that nobody had asked about, others are asked about together with the next one. In
//! which order programs go on nobody knows: what is asked for in all is a share of what they have looked at, so that who looks
//! at a few files costs little, and who looks at all of them waits a few times.

use model::owner::KNOWN_MAX;

/// For each file that programs have looked at, so many are asked about in all.
const SHARE: usize = 8;
/// So many are asked about the first time: for four files.
const ASKED_MIN: usize = 32;

/// What programs have looked at in a directory.
#[derive(Default)]
pub(super) struct Looks {
    /// Files, each for the first time.
    looked_at: usize,
    /// Files that were asked about, as many as might be found each time.
    asked: usize,
    /// How many of them the last time.
    last: usize,
}

impl Looks {
    /// A program looks at a file for the first time.
    pub(super) fn note(&mut self) {
        self.looked_at = self.looked_at.saturating_add(1);
    }

    /// The owner must be asked about a file: how many are to be asked about now, if that is worthwhile. They count as asked
    /// about, also those that aren't found: to look for them again costs something, too.
    pub(super) fn ask(&mut self) -> Option<usize> {
        let next = (self.last * 2).clamp(ASKED_MIN, KNOWN_MAX);
        let most = self.looked_at.saturating_mul(SHARE);
        let is_worthwhile = most.saturating_sub(self.asked) >= next;
        is_worthwhile.then(|| {
            self.last = next;
            self.asked = self.asked.saturating_add(next);
            next
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_looks_at_all_files_waits_a_few_times_and_who_looks_at_a_few_asks_for_few() {
        let mut looks = Looks::default();
        let (mut ahead, mut waits, mut asked) = (0, 0, Vec::new());
        for number in 1..=10_000_usize {
            looks.note();
            if ahead > 0 {
                ahead -= 1;
                continue;
            }
            waits += 1;
            if let Some(count) = looks.ask() {
                asked.push((number, count));
                ahead = count - 1;
            }
        }
        assert_eq!(asked[..4], [(4, 32), (36, 64), (100, 128), (228, 256)]);
        assert!(waits < 50, "{waits}");
    }

    /// Would be broken if programs that look at files here and there had the owner asked about all others.
    #[test]
    fn no_more_is_asked_for_than_a_share_of_what_is_looked_at() {
        let (mut looks, mut asked) = (Looks::default(), 0);
        for number in 1..1_000_usize {
            looks.note();
            asked += looks.ask().unwrap_or_default();
            assert!(asked <= SHARE * number, "{asked} for {number}");
        }
        assert!(asked > SHARE * 900, "{asked}");
    }
}
