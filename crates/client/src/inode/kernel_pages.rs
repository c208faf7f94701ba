//! Which pages of an open file kernels may have, and how they drop them. Pure.
//!
//! A kernel asks for pages when a program touches a mapping ([`KernelPages::begin_fill`]), keeps them as long as it
//! likes, and changes them without a word. So bytes that others want go back only when the kernels have dropped their
//! pages of them ([`KernelPages::begin_drop`]), and written back what was changed: meanwhile the tokens still hold.
//!
//! *Locks.* A kernel locks the pages that it asks for until it has the answer. Who tells it to drop a range goes from
//! page to page and waits for each of these locks, while the answer may need tokens that others have, and these may wait
//! for this drop. But a page that is asked for isn't there: no program sees its bytes. So
//!
//! * who asks for pages that are just going isn't answered before they have gone;
//! * such pages count as gone. A kernel isn't told to drop them; one that is just being told may stop at such a lock, so
//!   it isn't waited for any longer, and what lies before and behind is told anew ([`KernelPages::pass_locked`]).
//!
//! Circles that remain, through other locks of a kernel, end with the time that a drop may take (`tokens/pages.rs`).

use crate::kernels::KernelNumber;
use crate::pages::ranges::Ranges;
use model::{TokenMode, TokenRange};

/// Bytes of a kernel's page.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Most ranges that are told apart; with more of them everything between the first and the last counts.
const RANGES_MAX: usize = 32;
/// Most bytes that a kernel is told to drop at a time: of what it locks elsewhere meanwhile nothing has to be told anew.
const TOLD_MAX: u64 = 16 * PAGE_BYTES;
/// How often a drop goes on without waiting for what a kernel is being told: each time a thread may wait there.
const PASSED_MAX: u32 = 16;

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
    kernel: KernelNumber,
    pages: Span,
    /// It has what it needs, and is answered soon.
    goes: bool,
}

#[derive(Debug)]
struct Drop {
    number: u64,
    pages: Vec<Span>,
    why: Why,
    /// What this round still has to tell.
    tells: Vec<Tell>,
    /// What is just being told.
    telling: Option<Tell>,
    /// How often that wasn't waited for.
    passed: u32,
    /// A round has begun.
    began: bool,
    /// Pages were filled since the round began, or weren't told yet.
    refilled: bool,
}

/// Why kernels drop pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    /// Their bytes go back. What was changed in them is written back meanwhile.
    Recalled,
    /// Others have their bytes already: nothing may be written back, and nobody looks into the account.
    Lost,
}

/// A kernel, and which pages it must drop.
type Tell = (KernelNumber, Span);

/// How pages go on going.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Kernels have none.
    Done,
    /// This kernel must drop these: [`KernelPages::told`] or [`KernelPages::pass_locked`] follows.
    Tell(KernelNumber, Span),
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

fn spans(ranges: &Ranges) -> Vec<Span> {
    let (mut at, mut spans) = (0, Vec::new());
    while let Some(from) = ranges.next_start(at) {
        at = ranges.covered_to(from);
        spans.push((from, at));
    }
    spans
}

impl Drop {
    fn concerns(&self, pages: Span) -> bool {
        self.pages.iter().any(|it| overlap(*it, pages))
    }
}

impl KernelPages {
    // Requests for pages.

    /// Whether some of these pages are just being dropped: a request for them waits for that.
    pub(crate) fn are_going(&self, pages: Span) -> bool {
        self.drops.iter().any(|it| it.concerns(pages))
    }

    /// A kernel asks for pages, which it doesn't have; nobody has if it is the only one. Returns the request's number;
    /// [`KernelPages::end_fill`] follows.
    pub(crate) fn begin_fill(&mut self, kernel: KernelNumber, pages: Span, is_only: bool) -> u64 {
        if is_only {
            self.filled.remove(pages.0, pages.1);
        }
        self.last += 1;
        self.fills.push(Fill {
            number: self.last,
            kernel,
            pages,
            goes: false,
        });
        self.last
    }

    /// Kernels may have pages, changed ones too, of which nobody has kept account; or they have dropped these.
    pub(crate) fn set_unknown(&mut self, is_unknown: bool) {
        self.is_unknown = is_unknown;
    }

    /// Whether nobody knows what they have.
    pub(crate) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Programs may have changed bytes that aren't written back.
    pub(crate) fn may_be_changed(&self) -> bool {
        self.is_unknown || (self.may_change && self.may_be_some())
    }

    /// Whether kernels may have pages, those that are just going included.
    fn may_be_some(&self) -> bool {
        self.filled.len() > 0 || !self.drops.is_empty()
    }

    /// The request has all the tokens that it needs, or waits for them.
    pub(crate) fn note_fill(&mut self, number: u64, goes: bool) {
        self.fill(number).goes = goes;
    }

    /// The request is about to be answered, under a token of this mode.
    pub(crate) fn filled(&mut self, number: u64, mode: TokenMode) {
        let pages = self.fill(number).pages;
        self.add_filled(pages);
        self.may_change |= mode == TokenMode::Exclusive;
        for drop in self.drops.iter_mut().filter(|it| it.concerns(pages)) {
            drop.refilled = true;
        }
    }

    fn add_filled(&mut self, pages: Span) {
        self.filled.add(pages.0, pages.1);
        if self.filled.len() > RANGES_MAX {
            let (from, to) = self.filled.hull();
            self.filled.add(from, to);
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
                || self.are_going((from, to))
                || fills.any(|fill| fill.goes && overlap(fill.pages, (from, to)))
        })
    }

    /// Pages of these bytes begin to go. Returns a number for [`KernelPages::end_drop`].
    pub(crate) fn begin_drop(&mut self, ranges: &[TokenRange], why: Why) -> u64 {
        self.last += 1;
        let pages = ranges.iter().map(|range| pages_of(range.start, range.end));
        self.drops.push(Drop {
            number: self.last,
            pages: pages.collect(),
            why,
            tells: Vec::new(),
            telling: None,
            passed: 0,
            began: false,
            refilled: true,
        });
        self.last
    }

    /// What comes next until these kernels have none.
    pub(crate) fn step(&mut self, number: u64, kernels: &[KernelNumber]) -> Step {
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
        loop {
            if let Some(mut tell) = drop.tells.pop() {
                let (from, to) = tell.1;
                // Nobody knows how much all that follows is.
                if to < u64::MAX && to - from > TOLD_MAX {
                    drop.tells.push((tell.0, (from + TOLD_MAX, to)));
                    tell.1 = (from, from + TOLD_MAX);
                }
                let unlocked = unlocked(fills, tell);
                if unlocked == [tell] {
                    drop.telling = Some(tell);
                    return Step::Tell(tell.0, tell.1);
                }
                drop.tells.extend(unlocked);
                continue;
            }
            if !drop.refilled {
                return Step::Done;
            }
            let mut going = Ranges::default();
            for pages in &drop.pages {
                let mut at = pages.0;
                while let Some(from) = filled.next_start(at).filter(|from| *from < pages.1) {
                    at = filled.covered_to(from).min(pages.1);
                    going.add(from, at);
                }
                if !drop.began && (*is_unknown || drop.why == Why::Lost) {
                    going.add(pages.0, pages.1);
                }
            }
            // What is just being answered goes in another round.
            drop.refilled = false;
            for fill in fills.iter().filter(|fill| fill.goes) {
                drop.refilled |= drop.concerns(fill.pages);
                going.remove(fill.pages.0, fill.pages.1);
            }
            let going = spans(&going);
            if going.is_empty() && drop.refilled {
                return Step::Wait;
            }
            drop.began = true;
            going.iter().for_each(|span| filled.remove(span.0, span.1));
            let tells = |kernel: &KernelNumber| {
                let kernel = *kernel;
                going.iter().map(move |span| (kernel, *span))
            };
            drop.tells = kernels.iter().flat_map(tells).collect();
        }
    }

    /// The kernel has dropped what it was told to.
    pub(crate) fn told(&mut self, number: u64) {
        self.drop(number).telling = None;
    }

    /// Whether the kernel has locked some of what it is being told to drop, because it asks for it.
    pub(crate) fn is_locked(&self, number: u64) -> bool {
        let drop = self.drops.iter().find(|it| it.number == number);
        let tell = drop.and_then(|it| it.telling);
        tell.is_some_and(|tell| unlocked(&self.fills, tell) != [tell])
    }

    /// Then it isn't waited for any longer, and the rest is told anew: returns true. Not too often.
    pub(crate) fn pass_locked(&mut self, number: u64) -> bool {
        let Some(tell) = self.drop(number).telling else {
            return false;
        };
        let unlocked = unlocked(&self.fills, tell);
        let drop = self.drop(number);
        let passes = unlocked != [tell] && drop.passed < PASSED_MAX;
        if passes {
            drop.passed += 1;
            drop.telling = None;
            drop.tells.extend(unlocked);
        }
        passes
    }

    /// Others have the bytes of all that is just going.
    pub(crate) fn lose_drops(&mut self) {
        self.drops.iter_mut().for_each(|drop| drop.why = Why::Lost);
    }

    fn drop(&mut self, number: u64) -> &mut Drop {
        let mut drops = self.drops.iter_mut();
        drops.find(|it| it.number == number).expect("it has begun")
    }

    /// Whether pages of all these bytes are going: what was changed in them may still be written back.
    pub(crate) fn are_dropping(&self, (from, to): Span) -> bool {
        let mut at = from;
        while at < to {
            let drops = self.drops.iter().filter(|it| it.why == Why::Recalled);
            let pages = drops.flat_map(|it| &it.pages);
            let here = pages.filter(|it| it.0 <= at && at < it.1);
            match here.map(|it| it.1).max() {
                Some(end) => at = end,
                None => return false,
            }
        }
        true
    }

    /// The pages have gone, or nobody waits for it any more: then kernels may still have those of which they weren't
    /// told, or haven't heard.
    pub(crate) fn end_drop(&mut self, number: u64) {
        let ended = self.drops.iter().position(|it| it.number == number);
        let ended = self.drops.swap_remove(ended.expect("it has begun"));
        for (_, pages) in ended.tells.into_iter().chain(ended.telling) {
            self.add_filled(pages);
        }
        self.may_change &= self.may_be_some();
    }
}

/// What the kernel hasn't locked of that, because it waits for an answer.
fn unlocked(fills: &[Fill], (kernel, pages): Tell) -> Vec<Tell> {
    let mut rest = Ranges::default();
    rest.add(pages.0, pages.1);
    let waiting = fills.iter().filter(|it| !it.goes && it.kernel == kernel);
    for fill in waiting {
        rest.remove(fill.pages.0, fill.pages.1);
    }
    spans(&rest)
        .into_iter()
        .map(|span| (kernel, span))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::tests::kernels;
    use TokenMode::{Exclusive, Shared};

    fn bytes(from: u64, to: u64) -> [TokenRange; 1] {
        [TokenRange::new(from, to).expect("not empty")]
    }

    const PAGE: u64 = PAGE_BYTES;

    /// The pages of one kernel.
    struct One {
        pages: KernelPages,
        all: Vec<KernelNumber>,
    }

    impl One {
        fn new() -> Self {
            Self {
                pages: KernelPages::default(),
                all: kernels(1),
            }
        }

        fn with(pages: Span, mode: TokenMode) -> Self {
            let mut one = Self::new();
            one.fill(pages, mode);
            one
        }

        fn ask(&mut self, pages: Span) -> u64 {
            self.pages.begin_fill(self.all[0], pages, true)
        }

        fn fill(&mut self, pages: Span, mode: TokenMode) {
            let fill = self.ask(pages);
            self.pages.note_fill(fill, true);
            self.pages.filled(fill, mode);
            self.pages.end_fill(fill);
        }

        fn drop(&mut self, from: u64, to: u64) -> u64 {
            self.pages.begin_drop(&bytes(from, to), Why::Recalled)
        }

        /// The next step; what is to be told.
        fn step(&mut self, drop: u64) -> Step {
            self.pages.step(drop, &self.all)
        }

        #[track_caller]
        fn tells(&mut self, drop: u64, from: u64, to: u64) {
            assert_eq!(self.step(drop), Step::Tell(self.all[0], (from, to)));
        }

        #[track_caller]
        fn told(&mut self, drop: u64, from: u64, to: u64) {
            self.tells(drop, from, to);
            self.pages.told(drop);
        }

        #[track_caller]
        fn ends(&mut self, drop: u64) {
            assert_eq!(self.step(drop), Step::Done);
            self.pages.end_drop(drop);
        }

        fn must_drop(&self, from: u64, to: u64) -> bool {
            self.pages.must_drop(&bytes(from, to), None)
        }
    }

    #[test]
    fn whole_pages_of_what_goes_back_are_dropped_and_no_others() {
        let mut one = One::with((0, 4 * PAGE), Shared);
        assert!(!one.must_drop(4 * PAGE, 5 * PAGE));
        assert!(one.must_drop(PAGE + 7, PAGE + 8));
        let drop = one.drop(PAGE + 7, PAGE + 8);
        one.told(drop, PAGE, 2 * PAGE);
        one.ends(drop);
        assert!(!one.must_drop(PAGE + 7, PAGE + 8));
        assert!(one.must_drop(0, 1));
    }

    #[test]
    fn pages_that_nobody_changes_stay_where_others_only_read() {
        let one = One::with((0, PAGE), Shared);
        assert!(!one.pages.must_drop(&bytes(0, 1), Some(Shared)));
        let one = One::with((0, PAGE), Exclusive);
        assert!(one.pages.must_drop(&bytes(0, 1), Some(Shared)));
    }

    #[test]
    fn pages_that_wait_for_a_token_are_not_told_although_the_account_has_them() {
        let all = kernels(1);
        let mut pages = KernelPages::default();
        let fill = pages.begin_fill(all[0], (0, 4 * PAGE), false);
        pages.filled(fill, Shared);
        pages.end_fill(fill);
        // The kernel has dropped these by itself, and asks for them again.
        pages.begin_fill(all[0], (PAGE, 3 * PAGE), false);
        let drop = pages.begin_drop(&bytes(0, 4 * PAGE), Why::Recalled);
        for span in [(3 * PAGE, 4 * PAGE), (0, PAGE)] {
            assert_eq!(pages.step(drop, &all), Step::Tell(all[0], span));
            pages.told(drop);
        }
        assert_eq!(pages.step(drop, &all), Step::Done);
    }

    #[test]
    fn pages_that_are_just_going_may_have_been_changed_until_they_have_gone() {
        let mut one = One::with((0, PAGE), Exclusive);
        let first = one.drop(0, PAGE);
        one.tells(first, 0, PAGE);
        assert!(one.pages.may_be_changed(), "it isn't written back yet");
        assert!(one.pages.must_drop(&bytes(0, 1), Some(Shared)));
        let other = one.drop(4 * PAGE, 5 * PAGE);
        one.ends(other);
        one.pages.end_drop(first);
        assert!(one.pages.may_be_changed(), "nobody knows");
        assert!(one.pages.must_drop(&bytes(0, 1), Some(Shared)));
        let last = one.drop(0, PAGE);
        one.told(last, 0, PAGE);
        one.ends(last);
        assert!(!one.pages.may_be_changed());
    }

    #[test]
    fn what_is_being_answered_delays_no_other_page() {
        let mut one = One::with((4 * PAGE, 5 * PAGE), Shared);
        let fill = one.ask((0, PAGE));
        one.pages.note_fill(fill, true);
        let drop = one.drop(0, 8 * PAGE);
        one.told(drop, 4 * PAGE, 5 * PAGE);
        assert_eq!(one.step(drop), Step::Wait);
        one.pages.filled(fill, Shared);
        one.pages.end_fill(fill);
        one.told(drop, 0, PAGE);
        one.ends(drop);
    }

    #[test]
    fn much_is_told_in_parts_and_not_all_of_them_are_passed() {
        let mut one = One::with((0, 4 * TOLD_MAX), Shared);
        let drop = one.drop(0, 4 * TOLD_MAX);
        one.tells(drop, 0, TOLD_MAX);
        one.ask((TOLD_MAX, 2 * TOLD_MAX));
        assert!(!one.pages.is_locked(drop), "it isn't among these");
        one.pages.told(drop);
        one.tells(drop, 2 * TOLD_MAX, 3 * TOLD_MAX);
        let pages = (2 * TOLD_MAX..).step_by(PAGE as usize);
        for page in pages.take(PASSED_MAX as usize - 1) {
            one.ask((page, page + PAGE));
            assert!(one.pages.is_locked(drop) && one.pages.pass_locked(drop));
            one.tells(drop, page + PAGE, 3 * TOLD_MAX);
        }
        one.pages.told(drop);
        one.tells(drop, 3 * TOLD_MAX, 4 * TOLD_MAX);
        one.ask((3 * TOLD_MAX, 3 * TOLD_MAX + PAGE));
        assert!(one.pages.pass_locked(drop));
        one.tells(drop, 3 * TOLD_MAX + PAGE, 4 * TOLD_MAX);
        one.ask((4 * TOLD_MAX - PAGE, 4 * TOLD_MAX));
        assert!(one.pages.is_locked(drop));
        assert!(!one.pages.pass_locked(drop), "its threads are too many");
        one.pages.told(drop);
        one.ends(drop);
    }

    #[test]
    fn a_page_that_the_kernel_locks_meanwhile_is_passed_and_the_rest_told_anew() {
        let mut one = One::with((0, 8 * PAGE), Exclusive);
        let drop = one.drop(0, 8 * PAGE);
        one.tells(drop, 0, 8 * PAGE);
        assert!(!one.pages.pass_locked(drop), "nothing is locked");
        let other = one.ask((9 * PAGE, 10 * PAGE));
        assert!(!one.pages.pass_locked(drop), "it isn't among them");
        one.pages.end_fill(other);

        one.ask((2 * PAGE, 3 * PAGE));
        assert!(one.pages.pass_locked(drop));
        one.tells(drop, 3 * PAGE, 8 * PAGE);
        // It stops once more, before it has come to what it was told first.
        one.ask((6 * PAGE, 8 * PAGE));
        assert!(one.pages.pass_locked(drop));
        one.told(drop, 3 * PAGE, 6 * PAGE);
        one.ask((0, PAGE));
        one.told(drop, PAGE, 2 * PAGE);
        one.ends(drop);
        assert!(!one.must_drop(0, 8 * PAGE));
    }

    #[test]
    fn a_page_that_is_just_being_answered_is_waited_for() {
        let mut one = One::with((0, 2 * PAGE), Shared);
        let fill = one.ask((0, PAGE));
        let drop = one.drop(0, 2 * PAGE);
        one.tells(drop, PAGE, 2 * PAGE);
        // It had asked before, and gets its token now.
        one.pages.note_fill(fill, true);
        assert!(!one.pages.pass_locked(drop));
        one.pages.filled(fill, Shared);
        one.pages.told(drop);
        assert_eq!(one.step(drop), Step::Wait, "the answer isn't out");
        one.pages.end_fill(fill);
        one.told(drop, 0, PAGE);
        one.ends(drop);
    }

    #[test]
    fn what_another_kernel_has_goes_also_while_one_asks_for_it() {
        let all = kernels(2);
        let mut pages = KernelPages::default();
        for kernel in &all {
            let fill = pages.begin_fill(*kernel, (0, 2 * PAGE), false);
            pages.filled(fill, Shared);
            pages.end_fill(fill);
        }
        pages.begin_fill(all[0], (0, PAGE), false);
        assert!(pages.must_drop(&bytes(0, 1), None));
        let drop = pages.begin_drop(&bytes(0, 2 * PAGE), Why::Recalled);
        assert_eq!(
            pages.step(drop, &all),
            Step::Tell(all[1], (0, 2 * PAGE)),
            "this one hasn't locked it"
        );
        assert!(!pages.pass_locked(drop));
        pages.told(drop);
        assert_eq!(pages.step(drop, &all), Step::Tell(all[0], (PAGE, 2 * PAGE)));
        pages.told(drop);
        assert_eq!(pages.step(drop, &all), Step::Done);
    }

    #[test]
    fn a_drop_waits_for_the_one_before_of_the_same_pages() {
        let mut one = One::with((0, 2 * PAGE), Shared);
        let first = one.drop(0, PAGE);
        one.tells(first, 0, PAGE);
        assert!(one.must_drop(0, 1), "it isn't gone yet");
        let second = one.drop(0, 2 * PAGE);
        assert_eq!(one.step(second), Step::Wait);
        let other = one.drop(4 * PAGE, 5 * PAGE);
        assert_eq!(one.step(other), Step::Done);
        one.pages.told(first);
        one.ends(first);
        one.tells(second, PAGE, 2 * PAGE);
    }

    #[test]
    fn requests_for_what_is_going_wait_until_it_has_gone() {
        let mut one = One::with((0, 2 * PAGE), Shared);
        let drop = one.drop(PAGE, PAGE + 1);
        assert!(one.pages.are_going((0, 4 * PAGE)));
        assert!(!one.pages.are_going((0, PAGE)));
        one.told(drop, PAGE, 2 * PAGE);
        assert!(one.pages.are_going((PAGE, 2 * PAGE)));
        one.ends(drop);
        assert!(!one.pages.are_going((0, 4 * PAGE)));
    }

    #[test]
    fn what_kernels_havent_dropped_in_time_stays_in_the_account() {
        let mut one = One::with((0, PAGE), Exclusive);
        one.fill((2 * PAGE, 3 * PAGE), Exclusive);
        let drop = one.drop(0, 4 * PAGE);
        one.tells(drop, 2 * PAGE, 3 * PAGE);
        one.pages.end_drop(drop);
        assert!(one.must_drop(0, 1), "it wasn't told");
        assert!(one.must_drop(2 * PAGE, 3 * PAGE), "nobody knows");
        assert!(one.pages.may_be_changed());
    }

    #[test]
    fn what_is_filled_while_a_drop_ends_stays_in_the_account() {
        let mut one = One::with((0, PAGE), Shared);
        let fill = one.ask((PAGE, 2 * PAGE));
        let drop = one.drop(0, 2 * PAGE);
        one.told(drop, 0, PAGE);
        assert_eq!(one.step(drop), Step::Done);
        one.pages.filled(fill, Shared);
        one.pages.end_drop(drop);
        one.pages.end_fill(fill);
        assert!(one.must_drop(PAGE, PAGE + 1));
    }

    #[test]
    fn what_is_going_may_be_written_back_until_it_is_gone() {
        let mut one = One::with((0, 4 * PAGE), Exclusive);
        let ranges = [bytes(0, PAGE), bytes(PAGE, 2 * PAGE)].concat();
        let drop = one.pages.begin_drop(&ranges, Why::Recalled);
        assert!(one.pages.are_dropping((7, 2 * PAGE)));
        assert!(!one.pages.are_dropping((PAGE, 2 * PAGE + 1)));
        one.pages.end_drop(drop);
        assert!(!one.pages.are_dropping((0, 1)));
    }

    #[test]
    fn a_request_that_goes_is_waited_for_before_the_first_round() {
        let mut one = One::new();
        let fill = one.ask((0, PAGE));
        one.pages.note_fill(fill, true);
        assert!(one.must_drop(0, 1));
        let drop = one.drop(0, 1);
        assert_eq!(one.step(drop), Step::Wait);
        // It turns out to need another token.
        one.pages.note_fill(fill, false);
        one.ends(drop);
    }

    #[test]
    fn all_pages_are_told_where_nobody_has_kept_account() {
        let mut one = One::new();
        one.pages.set_unknown(true);
        assert!(one.pages.may_be_changed() && one.must_drop(5 * PAGE, 6 * PAGE));
        let drop = one.pages.begin_drop(&[TokenRange::ALL], Why::Recalled);
        one.tells(drop, 0, u64::MAX);
        one.ask((PAGE, 2 * PAGE));
        assert!(one.pages.pass_locked(drop));
        one.told(drop, 2 * PAGE, u64::MAX);
        one.told(drop, 0, PAGE);
        one.ends(drop);
        one.pages.set_unknown(false);
        assert!(!one.must_drop(0, 1));
    }

    #[test]
    fn all_pages_of_lost_bytes_go_and_nothing_of_them_is_written_back() {
        let mut one = One::with((0, PAGE), Exclusive);
        let drop = one.pages.begin_drop(&bytes(0, 8 * PAGE), Why::Lost);
        assert!(!one.pages.are_dropping((0, PAGE)));
        assert!(one.pages.are_going((2 * PAGE, 3 * PAGE)));
        one.told(drop, 0, 8 * PAGE);
        one.ends(drop);
        assert!(!one.must_drop(0, 8 * PAGE) && !one.pages.may_be_changed());
    }

    #[test]
    fn far_more_ranges_than_are_told_apart_become_one() {
        let mut one = One::new();
        for page in 0..100 {
            one.fill((page * 2 * PAGE, (page * 2 + 1) * PAGE), Shared);
            assert!(one.pages.filled.len() <= RANGES_MAX);
        }
        for page in 0..100 {
            assert!(one.must_drop(page * 2 * PAGE, page * 2 * PAGE + 1));
        }
    }
}
