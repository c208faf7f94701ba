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

#[cfg(test)]
mod tests;

/// Bytes of a kernel's page.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Most ranges that are told apart; with more of them everything between the first and the last counts.
const RANGES_MAX: usize = 32;
/// Fewest bytes that a kernel is told to drop at a time: of what it locks elsewhere meanwhile nothing is told anew.
const TOLD_MIN: u64 = 16 * PAGE_BYTES;
/// Most notices of a drop that aren't waited for at the same time: a thread may wait in the kernel for each.
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
    drops: Vec<Going>,
    /// How often kernels have written back.
    written_back: u64,
    last: u64,
}

#[derive(Debug)]
struct Fill {
    number: u64,
    kernel: KernelNumber,
    pages: Span,
    /// Its answer is on the way.
    goes: bool,
}

/// Pages that kernels are dropping.
#[derive(Debug)]
struct Going {
    number: u64,
    pages: Vec<Span>,
    why: Why,
    /// What this round still has to tell.
    tells: Vec<Tell>,
    /// What is just being told.
    telling: Option<Tell>,
    /// Notices that aren't waited for, and are still out.
    passed: u32,
    /// Bytes that are told next: twice as many after each part that the kernel drops quickly.
    part: u64,
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

impl Going {
    fn concerns(&self, pages: Span) -> bool {
        self.pages.iter().any(|it| overlap(*it, pages))
    }
}

impl KernelPages {
    // Requests for pages.

    /// Whether some of these pages are just being dropped.
    fn are_going(&self, pages: Span) -> bool {
        self.drops.iter().any(|it| it.concerns(pages))
    }

    /// Whether a request for these pages waits until they have gone. Not if the drop waits for such requests itself.
    pub(crate) fn must_wait(&self, pages: Span) -> bool {
        let mut concerned = self.drops.iter().filter(|it| it.concerns(pages));
        let may_wait = |it: &Going| it.passed < PASSED_MAX;
        concerned.next().is_some_and(may_wait) && concerned.all(may_wait)
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

    /// Kernels may have pages of which nobody has kept account; or they have dropped these.
    pub(crate) fn set_unknown(&mut self, is_unknown: bool) {
        self.is_unknown = is_unknown;
        self.may_change &= self.may_be_some();
    }

    /// Whether nobody knows what they have.
    pub(crate) fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Whether programs may have changed some of these bytes that aren't written back.
    pub(crate) fn may_be_changed_in(&self, ranges: &[TokenRange]) -> bool {
        let mut spans = ranges.iter().map(|it| pages_of(it.start, it.end));
        self.may_change && (self.is_unknown || spans.any(|pages| self.may_have(pages)))
    }

    /// Whether the account has some of these pages, those that are just going included.
    fn may_have(&self, pages: Span) -> bool {
        let next = self.filled.next_start(pages.0);
        next.is_some_and(|next| next < pages.1) || self.are_going(pages)
    }

    /// Whether kernels may have pages, those that are just going included.
    pub(crate) fn may_be_some(&self) -> bool {
        self.is_unknown || self.filled.len() > 0 || !self.drops.is_empty()
    }

    /// The request's answer isn't on the way, or not any more. Returns whether it was.
    pub(crate) fn waits(&mut self, number: u64) -> bool {
        std::mem::take(&mut self.fill(number).goes)
    }

    /// The request is about to be answered, of which nobody keeps account.
    pub(crate) fn answered(&mut self, number: u64, mode: TokenMode) {
        self.fill(number).goes = true;
        self.may_change |= mode == TokenMode::Exclusive;
    }

    /// The request is about to be answered, under a token of this mode.
    pub(crate) fn filled(&mut self, number: u64, mode: TokenMode) {
        self.answered(number, mode);
        let pages = self.fill(number).pages;
        self.add_filled(pages);
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
        spans.any(|pages| {
            let mut fills = self.fills.iter();
            self.may_have(pages) || fills.any(|fill| fill.goes && overlap(fill.pages, pages))
        })
    }

    /// Pages of these bytes begin to go. Returns a number for [`KernelPages::end_drop`].
    pub(crate) fn begin_drop(&mut self, ranges: &[TokenRange], why: Why) -> u64 {
        self.last += 1;
        let pages = ranges.iter().map(|range| pages_of(range.start, range.end));
        self.drops.push(Going {
            number: self.last,
            pages: pages.collect(),
            why,
            tells: Vec::new(),
            telling: None,
            passed: 0,
            part: TOLD_MIN,
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
        let is_before = |it: &Going| {
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
                if to < u64::MAX && to - from > drop.part {
                    drop.tells.push((tell.0, (from + drop.part, to)));
                    tell.1 = (from, from + drop.part);
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
            going.iter().for_each(|span| filled.remove(span.0, span.1));
            if !drop.began && *is_unknown {
                // These may be answered without account.
                for fill in fills.iter().filter(|it| it.goes && drop.concerns(it.pages)) {
                    filled.add(fill.pages.0, fill.pages.1);
                }
            }
            drop.began = true;
            let tells = |kernel: &KernelNumber| {
                let kernel = *kernel;
                going.iter().map(move |span| (kernel, *span))
            };
            drop.tells = kernels.iter().flat_map(tells).collect();
        }
    }

    /// The kernel has dropped what it was told to.
    pub(crate) fn told(&mut self, number: u64, was_quick: bool) {
        let drop = self.going(number);
        drop.telling = None;
        drop.part = match was_quick {
            true => drop.part.saturating_mul(2),
            false => TOLD_MIN,
        };
    }

    /// Whether the kernel has locked some of what it is being told to drop, because it asks for it.
    pub(crate) fn is_locked(&self, number: u64) -> bool {
        let drop = self.drops.iter().find(|it| it.number == number);
        let tell = drop.and_then(|it| it.telling);
        tell.is_some_and(|tell| unlocked(&self.fills, tell) != [tell])
    }

    /// Then this notice isn't waited for any longer, and the rest is told anew: returns true. Not if too many are out:
    /// then the requests that hold it up are answered ([`KernelPages::must_wait`]).
    pub(crate) fn pass_locked(&mut self, number: u64) -> bool {
        let Some(tell) = self.going(number).telling else {
            return false;
        };
        let unlocked = unlocked(&self.fills, tell);
        let drop = self.going(number);
        let passes = unlocked != [tell] && drop.passed < PASSED_MAX;
        if passes {
            drop.passed += 1;
            drop.part = TOLD_MIN;
            drop.telling = None;
            drop.tells.extend(unlocked);
        }
        passes
    }

    /// The kernel is done with a notice that wasn't waited for.
    pub(crate) fn passed_ended(&mut self, number: u64) {
        self.going(number).passed -= 1;
    }

    /// Others have these bytes: what is just going of them is lost.
    pub(crate) fn lose_drops(&mut self, ranges: &[TokenRange]) {
        for range in ranges {
            let pages = pages_of(range.start, range.end);
            for drop in self.drops.iter_mut().filter(|it| it.concerns(pages)) {
                drop.why = Why::Lost;
            }
        }
    }

    fn going(&mut self, number: u64) -> &mut Going {
        let mut drops = self.drops.iter_mut();
        drops.find(|it| it.number == number).expect("it has begun")
    }

    /// These bytes by their pages if some are going; as they are if none is.
    pub(crate) fn page_by_page(&self, bytes: Span) -> Vec<Span> {
        if !self.are_going(bytes) {
            return vec![bytes];
        }
        let (mut at, mut pages) = (bytes.0, Vec::new());
        while at < bytes.1 {
            let to = pages_of(at, at + 1).1.min(bytes.1);
            pages.push((at, to));
            at = to;
        }
        pages
    }

    /// A kernel has written some bytes back.
    pub(crate) fn note_written_back(&mut self) {
        self.written_back += 1;
    }

    /// How often kernels have.
    pub(crate) fn written_back(&self) -> u64 {
        self.written_back
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
