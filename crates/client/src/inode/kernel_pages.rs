//! Which pages of an open file kernels may have, and how they drop them. Pure.
//!
//! A kernel asks for pages when a program touches a mapping ([`KernelPages::begin_fill`]), keeps them as long as it
//! likes, and changes them without a word. So bytes that others want go back only when the kernels have dropped their
//! pages of them ([`KernelPages::begin_drop`]), and written back what was changed: meanwhile the tokens still hold.
//!
//! *Locks.* A kernel locks the pages that it asks for until it has the answer, and who tells it to drop a page waits
//! for that. Two things keep telling and answering from waiting for each other:
//!
//! * Pages that a kernel asks for aren't there: it isn't told to drop them while it waits for tokens.
//! * Who asks for pages that are just being dropped waits for that, but not for long ([`HOLD`]): telling may be
//!   waiting for the pages that it has locked. What it is answered then is dropped in another round.
//!
//! Circles that remain, through other clients and through a kernel's own locks, end with the time that a drop may
//! take (`tokens/pages.rs`).

use crate::pages::ranges::Ranges;
use model::{Moment, TokenMode, TokenRange};
use std::time::Duration;

/// Bytes of a kernel's page.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Most ranges that are told apart; with more of them everything between the first and the last counts.
const RANGES_MAX: usize = 32;
/// How long a request for pages waits while such pages are being told to go: many times as long as that takes if
/// no page is locked.
pub(crate) const HOLD: Duration = Duration::from_millis(10);

/// Some bytes of a file: from the first, to the one behind the last.
pub(crate) type Span = (u64, u64);

/// The pages of one file.
#[derive(Debug, Default)]
pub(crate) struct KernelPages {
    /// What kernels may have. At most [`RANGES_MAX`].
    filled: Ranges,
    /// Programs may change some of it.
    may_change: bool,
    /// They may have more.
    is_unknown: bool,
    /// Requests for pages that are under way; as many as kernels send.
    fills: Vec<Fill>,
    drops: Vec<Drop>,
    last: u64,
}

#[derive(Debug)]
struct Fill {
    number: u64,
    pages: Span,
    /// It has what it needs, and is answered soon.
    goes: bool,
}

#[derive(Debug)]
struct Drop {
    number: u64,
    pages: Vec<Span>,
    /// The round's begin.
    began: Moment,
    /// What this round still has to tell.
    tells: Vec<Span>,
    /// Pages were filled since the round began.
    refilled: bool,
}

/// How pages go on going.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Kernels have none.
    Done,
    /// These must be dropped by all kernels.
    Tell(Span),
    /// A request that is being answered must end first.
    Wait,
}

/// The pages that contain these bytes.
pub(crate) fn pages_of(from: u64, to: u64) -> Span {
    let from = from - from % PAGE_BYTES;
    (
        from,
        to.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX),
    )
}

fn overlap(one: Span, other: Span) -> bool {
    one.0 < other.1 && other.0 < one.1
}

impl Drop {
    fn concerns(&self, pages: Span) -> bool {
        self.pages.iter().any(|it| overlap(*it, pages))
    }
}

impl KernelPages {
    // Requests for pages.

    /// Until when a request for these pages waits.
    pub(crate) fn held_until(&self, pages: Span) -> Option<Moment> {
        let drops = self.drops.iter().filter(|it| it.concerns(pages));
        drops.map(|it| it.began.plus(HOLD)).max()
    }

    /// A kernel asks for pages, which it doesn't have; nobody has if it is the only one. Returns the request's number;
    /// [`KernelPages::end_fill`] follows.
    pub(crate) fn begin_fill(&mut self, pages: Span, is_only: bool) -> u64 {
        if is_only {
            self.filled.remove(pages.0, pages.1);
        }
        self.last += 1;
        self.fills.push(Fill {
            number: self.last,
            pages,
            goes: false,
        });
        self.last
    }

    /// Kernels may have pages, changed ones too, of which nobody has kept account; or they have dropped these.
    pub(crate) fn set_unknown(&mut self, is_unknown: bool) {
        self.is_unknown = is_unknown;
    }

    /// Programs may have changed bytes that aren't written back.
    pub(crate) fn may_be_changed(&self) -> bool {
        self.is_unknown || (self.may_change && self.filled.len() > 0)
    }

    /// The request has all the tokens that it needs, or waits for them.
    pub(crate) fn note_fill(&mut self, number: u64, goes: bool) {
        self.fill(number).goes = goes;
    }

    /// The request is about to be answered, under a token of this mode.
    pub(crate) fn filled(&mut self, number: u64, mode: TokenMode) {
        let pages = self.fill(number).pages;
        self.filled.add(pages.0, pages.1);
        if self.filled.len() > RANGES_MAX {
            let (from, to) = self.filled.hull();
            self.filled.add(from, to);
        }
        self.may_change |= mode == TokenMode::Exclusive;
        for drop in self.drops.iter_mut().filter(|it| it.concerns(pages)) {
            drop.refilled = true;
        }
    }

    /// The request was answered, or given up.
    pub(crate) fn end_fill(&mut self, number: u64) {
        self.fills.retain(|fill| fill.number != number);
    }

    fn fill(&mut self, number: u64) -> &mut Fill {
        let mut fills = self.fills.iter_mut();
        fills
            .find(|fill| fill.number == number)
            .expect("it has begun")
    }

    // Giving back.

    /// Whether kernels must drop pages before these bytes go back and `keep` of them stays.
    pub(crate) fn must_drop(&self, ranges: &[TokenRange], keep: Option<TokenMode>) -> bool {
        if self.is_unknown {
            return true;
        }
        if keep == Some(TokenMode::Shared) && !self.may_change {
            return false;
        }
        let mut spans = ranges.iter().map(|range| pages_of(range.start, range.end));
        spans.any(|(from, to)| {
            let next = self.filled.next_start(from);
            let mut fills = self.fills.iter();
            next.is_some_and(|next| next < to)
                || self.drops.iter().any(|drop| drop.concerns((from, to)))
                || fills.any(|fill| fill.goes && overlap(fill.pages, (from, to)))
        })
    }

    /// Pages of these bytes begin to go. Returns a number for [`KernelPages::end_drop`].
    pub(crate) fn begin_drop(&mut self, ranges: &[TokenRange], now: Moment) -> u64 {
        self.last += 1;
        let pages = ranges.iter().map(|range| pages_of(range.start, range.end));
        self.drops.push(Drop {
            number: self.last,
            pages: pages.collect(),
            began: now,
            tells: Vec::new(),
            refilled: true,
        });
        self.last
    }

    /// What comes next until kernels have none.
    pub(crate) fn step(&mut self, number: u64, now: Moment) -> Step {
        let Self {
            filled,
            drops,
            fills,
            is_unknown,
            ..
        } = self;
        let at = drops.iter().position(|it| it.number == number);
        let at = at.expect("it has begun");
        let is_before = |it: &Drop| {
            it.number < number && drops[at].pages.iter().any(|pages| it.concerns(*pages))
        };
        // What that one is telling isn't in the account any more.
        if drops.iter().any(is_before) {
            return Step::Wait;
        }
        let drop = &mut drops[at];
        if let Some(tell) = drop.tells.pop() {
            return Step::Tell(tell);
        }
        if !drop.refilled {
            return Step::Done;
        }
        if fills
            .iter()
            .any(|fill| fill.goes && drop.concerns(fill.pages))
        {
            return Step::Wait;
        }
        (drop.refilled, drop.began) = (false, now);
        let mut going = Ranges::default();
        for pages in &drop.pages {
            let mut at = pages.0;
            while let Some(from) = filled.next_start(at).filter(|from| *from < pages.1) {
                at = filled.covered_to(from).min(pages.1);
                going.add(from, at);
            }
            filled.remove(pages.0, pages.1);
            if *is_unknown {
                going.add(pages.0, pages.1);
            }
        }
        // They are locked, and aren't there.
        for fill in fills.iter().filter(|fill| !fill.goes) {
            going.remove(fill.pages.0, fill.pages.1);
        }
        let mut at = 0;
        while let Some(from) = going.next_start(at) {
            at = going.covered_to(from);
            drop.tells.push((from, at));
        }
        match drop.tells.pop() {
            Some(tell) => Step::Tell(tell),
            None => Step::Done,
        }
    }

    /// Whether pages of all these bytes are going: what was changed in them may still be written back.
    pub(crate) fn are_dropping(&self, (from, to): Span) -> bool {
        let mut at = from;
        while at < to {
            let dropping = self.drops.iter().flat_map(|it| &it.pages);
            let here = dropping.filter(|it| it.0 <= at && at < it.1);
            match here.map(|it| it.1).max() {
                Some(end) => at = end,
                None => return false,
            }
        }
        true
    }

    /// The pages have gone, or nobody waits for it any more.
    pub(crate) fn end_drop(&mut self, number: u64) {
        let ended = self.drops.iter().position(|it| it.number == number);
        self.drops.swap_remove(ended.expect("it has begun"));
        self.may_change &= self.filled.len() > 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TokenMode::{Exclusive, Shared};

    fn at(milliseconds: u64) -> Moment {
        Moment(Duration::from_millis(milliseconds))
    }

    fn bytes(from: u64, to: u64) -> [TokenRange; 1] {
        [TokenRange::new(from, to).expect("not empty")]
    }

    const PAGE: u64 = PAGE_BYTES;

    fn with(pages: Span, mode: TokenMode) -> KernelPages {
        let mut kernel = KernelPages::default();
        let fill = kernel.begin_fill(pages, true);
        kernel.note_fill(fill, true);
        kernel.filled(fill, mode);
        kernel.end_fill(fill);
        kernel
    }

    #[test]
    fn whole_pages_of_what_goes_back_are_dropped_and_no_others() {
        let mut kernel = with((0, 4 * PAGE), Shared);
        assert!(!kernel.must_drop(&bytes(4 * PAGE, 5 * PAGE), None));
        let range = bytes(PAGE + 7, PAGE + 8);
        assert!(kernel.must_drop(&range, None));
        let drop = kernel.begin_drop(&range, at(0));
        assert_eq!(kernel.step(drop, at(0)), Step::Tell((PAGE, 2 * PAGE)));
        assert_eq!(kernel.step(drop, at(1)), Step::Done);
        kernel.end_drop(drop);
        assert!(!kernel.must_drop(&range, None));
        assert!(kernel.must_drop(&bytes(0, 1), None));
    }

    #[test]
    fn pages_that_nobody_changes_stay_where_others_only_read() {
        let kernel = with((0, PAGE), Shared);
        assert!(!kernel.must_drop(&bytes(0, 1), Some(Shared)));
        let kernel = with((0, PAGE), Exclusive);
        assert!(kernel.must_drop(&bytes(0, 1), Some(Shared)));
    }

    #[test]
    fn pages_that_wait_for_a_token_are_not_dropped() {
        let mut kernel = with((0, 4 * PAGE), Shared);
        // The kernel has dropped these by itself, and asks for them again.
        let fill = kernel.begin_fill((PAGE, 3 * PAGE), true);
        let drop = kernel.begin_drop(&bytes(0, 4 * PAGE), at(0));
        assert_eq!(kernel.step(drop, at(0)), Step::Tell((3 * PAGE, 4 * PAGE)));
        assert_eq!(kernel.step(drop, at(0)), Step::Tell((0, PAGE)));
        assert_eq!(kernel.step(drop, at(0)), Step::Done);
        kernel.end_drop(drop);
        kernel.end_fill(fill);
    }

    #[test]
    fn what_was_answered_meanwhile_goes_in_another_round() {
        let mut kernel = with((0, PAGE), Shared);
        let range = bytes(0, 2 * PAGE);
        let drop = kernel.begin_drop(&range, at(0));
        assert_eq!(kernel.step(drop, at(0)), Step::Tell((0, PAGE)));
        assert_eq!(kernel.held_until((PAGE, 2 * PAGE)), Some(at(0).plus(HOLD)));
        assert_eq!(kernel.held_until((2 * PAGE, 3 * PAGE)), None);
        let fill = kernel.begin_fill((0, PAGE), true);
        kernel.note_fill(fill, true);
        kernel.filled(fill, Shared);
        assert_eq!(
            kernel.step(drop, at(11)),
            Step::Wait,
            "the answer isn't out"
        );
        kernel.end_fill(fill);
        assert_eq!(kernel.step(drop, at(12)), Step::Tell((0, PAGE)));
        assert_eq!(kernel.held_until((0, PAGE)), Some(at(12).plus(HOLD)));
        assert_eq!(kernel.step(drop, at(12)), Step::Done);
        kernel.end_drop(drop);
        assert_eq!(kernel.held_until((0, PAGE)), None);
    }

    #[test]
    fn a_drop_waits_for_the_one_before_of_the_same_pages() {
        let mut kernel = with((0, 2 * PAGE), Shared);
        let first = kernel.begin_drop(&bytes(0, PAGE), at(0));
        assert_eq!(kernel.step(first, at(0)), Step::Tell((0, PAGE)));
        assert!(kernel.must_drop(&bytes(0, 1), None), "it isn't gone yet");
        let second = kernel.begin_drop(&bytes(0, 2 * PAGE), at(0));
        assert_eq!(kernel.step(second, at(0)), Step::Wait);
        let other = kernel.begin_drop(&bytes(4 * PAGE, 5 * PAGE), at(0));
        assert_eq!(kernel.step(other, at(0)), Step::Done);
        assert_eq!(kernel.step(first, at(0)), Step::Done);
        kernel.end_drop(first);
        assert_eq!(kernel.step(second, at(1)), Step::Tell((PAGE, 2 * PAGE)));
    }

    #[test]
    fn what_another_kernel_has_goes_also_while_one_asks_for_it() {
        let mut kernel = with((0, PAGE), Shared);
        kernel.begin_fill((0, PAGE), false);
        assert!(kernel.must_drop(&bytes(0, 1), None));
    }

    #[test]
    fn what_is_filled_while_a_drop_ends_stays_in_the_account() {
        let mut kernel = with((0, PAGE), Shared);
        let drop = kernel.begin_drop(&bytes(0, PAGE), at(0));
        assert_eq!(kernel.step(drop, at(0)), Step::Tell((0, PAGE)));
        assert_eq!(kernel.step(drop, at(0)), Step::Done);
        let fill = kernel.begin_fill((0, PAGE), true);
        kernel.filled(fill, Shared);
        kernel.end_drop(drop);
        kernel.end_fill(fill);
        assert!(kernel.must_drop(&bytes(0, 1), None));
    }

    #[test]
    fn what_is_going_may_be_written_back_until_it_is_gone() {
        let mut kernel = with((0, 4 * PAGE), Exclusive);
        let ranges = [bytes(0, PAGE), bytes(PAGE, 2 * PAGE)].concat();
        let drop = kernel.begin_drop(&ranges, at(0));
        assert!(kernel.are_dropping((7, 2 * PAGE)));
        assert!(!kernel.are_dropping((PAGE, 2 * PAGE + 1)));
        kernel.end_drop(drop);
        assert!(!kernel.are_dropping((0, 1)));
    }

    #[test]
    fn a_request_that_goes_is_waited_for_before_the_first_round() {
        let mut kernel = KernelPages::default();
        let fill = kernel.begin_fill((0, PAGE), true);
        kernel.note_fill(fill, true);
        let range = bytes(0, 1);
        assert!(kernel.must_drop(&range, None));
        let drop = kernel.begin_drop(&range, at(0));
        assert_eq!(kernel.step(drop, at(0)), Step::Wait);
        // It turns out to need another token.
        kernel.note_fill(fill, false);
        assert_eq!(kernel.step(drop, at(1)), Step::Done);
        kernel.end_drop(drop);
    }

    #[test]
    fn far_more_ranges_than_are_told_apart_become_one() {
        let mut kernel = KernelPages::default();
        for page in 0..100 {
            let fill = kernel.begin_fill((page * 2 * PAGE, (page * 2 + 1) * PAGE), true);
            kernel.filled(fill, Shared);
            kernel.end_fill(fill);
            assert!(kernel.filled.len() <= RANGES_MAX);
        }
        for page in 0..100 {
            assert!(kernel.must_drop(&bytes(page * 2 * PAGE, page * 2 * PAGE + 1), None));
        }
    }
}
