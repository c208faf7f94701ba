//! Pages of kernels by themselves.

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
        self.pages.told(drop, false);
    }

    #[track_caller]
    fn ends(&mut self, drop: u64) {
        assert_eq!(self.step(drop), Step::Done);
        self.pages.end_drop(drop);
    }

    fn may_be_changed(&self) -> bool {
        self.pages.may_be_changed_in(&[TokenRange::ALL])
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
        pages.told(drop, false);
    }
    assert_eq!(pages.step(drop, &all), Step::Done);
}

#[test]
fn pages_that_are_just_going_may_have_been_changed_until_they_have_gone() {
    let mut one = One::with((0, PAGE), Exclusive);
    let first = one.drop(0, PAGE);
    one.tells(first, 0, PAGE);
    assert!(one.may_be_changed(), "it isn't written back yet");
    assert!(one.pages.must_drop(&bytes(0, 1), Some(Shared)));
    let other = one.drop(4 * PAGE, 5 * PAGE);
    one.ends(other);
    one.pages.end_drop(first);
    assert!(one.may_be_changed(), "nobody knows");
    assert!(one.pages.must_drop(&bytes(0, 1), Some(Shared)));
    let last = one.drop(0, PAGE);
    one.told(last, 0, PAGE);
    one.ends(last);
    assert!(!one.may_be_changed());
}

#[test]
fn what_is_being_answered_delays_no_other_page() {
    let mut one = One::with((4 * PAGE, 5 * PAGE), Shared);
    let fill = one.ask((0, PAGE));
    one.pages.filled(fill, Shared);
    let drop = one.drop(0, 8 * PAGE);
    one.told(drop, 4 * PAGE, 5 * PAGE);
    assert_eq!(one.step(drop), Step::Wait);
    one.pages.end_fill(fill);
    one.told(drop, 0, PAGE);
    one.ends(drop);
}

#[test]
fn much_is_told_in_parts_and_not_all_of_them_are_passed() {
    let mut one = One::with((0, 4 * TOLD_MIN), Shared);
    let drop = one.drop(0, 4 * TOLD_MIN);
    one.tells(drop, 0, TOLD_MIN);
    one.ask((TOLD_MIN, 2 * TOLD_MIN));
    assert!(!one.pages.is_locked(drop), "it isn't among these");
    one.pages.told(drop, false);
    one.tells(drop, 2 * TOLD_MIN, 3 * TOLD_MIN);
    let pages = (2 * TOLD_MIN..).step_by(PAGE as usize);
    for page in pages.take(PASSED_MAX as usize - 1) {
        one.ask((page, page + PAGE));
        assert!(one.pages.is_locked(drop) && one.pages.pass_locked(drop));
        one.tells(drop, page + PAGE, 3 * TOLD_MIN);
    }
    one.pages.told(drop, false);
    one.tells(drop, 3 * TOLD_MIN, 4 * TOLD_MIN);
    one.ask((3 * TOLD_MIN, 3 * TOLD_MIN + PAGE));
    assert!(one.pages.pass_locked(drop));
    one.tells(drop, 3 * TOLD_MIN + PAGE, 4 * TOLD_MIN);
    one.ask((4 * TOLD_MIN - PAGE, 4 * TOLD_MIN));
    assert!(one.pages.is_locked(drop));
    assert!(!one.pages.pass_locked(drop), "too many are out");
    let last = (4 * TOLD_MIN - PAGE, 4 * TOLD_MIN);
    assert!(!one.pages.must_wait(last), "it is answered");
    one.pages.passed_ended(drop);
    assert!(one.pages.must_wait(last) && one.pages.pass_locked(drop));
    one.told(drop, 3 * TOLD_MIN + PAGE, 4 * TOLD_MIN - PAGE);
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
    // It had asked before, and is answered now.
    one.pages.filled(fill, Shared);
    assert!(!one.pages.pass_locked(drop));
    one.pages.told(drop, false);
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
    pages.told(drop, false);
    assert_eq!(pages.step(drop, &all), Step::Tell(all[0], (PAGE, 2 * PAGE)));
    pages.told(drop, false);
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
    one.pages.told(first, false);
    one.ends(first);
    one.tells(second, PAGE, 2 * PAGE);
}

#[test]
fn requests_for_what_is_going_wait_until_it_has_gone() {
    let mut one = One::with((0, 2 * PAGE), Shared);
    let drop = one.drop(PAGE, PAGE + 1);
    assert!(one.pages.must_wait((0, 4 * PAGE)));
    assert!(!one.pages.must_wait((0, PAGE)));
    one.told(drop, PAGE, 2 * PAGE);
    assert!(one.pages.must_wait((PAGE, 2 * PAGE)));
    one.ends(drop);
    assert!(!one.pages.must_wait((0, 4 * PAGE)));
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
    assert!(one.may_be_changed());
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
    one.pages.filled(fill, Shared);
    assert!(one.must_drop(0, 1));
    let drop = one.drop(0, 1);
    assert_eq!(one.step(drop), Step::Wait);
    // It turns out that its token was lost: it asks again.
    assert!(one.pages.waits(fill) && !one.pages.waits(fill));
    one.ends(drop);
}

#[test]
fn all_pages_are_told_where_nobody_has_kept_account() {
    let mut one = One::new();
    one.pages.set_unknown(true);
    assert!(one.must_drop(5 * PAGE, 6 * PAGE));
    assert!(!one.may_be_changed(), "nobody had it open for that");
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
    assert!(one.pages.must_wait((2 * PAGE, 3 * PAGE)));
    one.told(drop, 0, 8 * PAGE);
    one.ends(drop);
    assert!(!one.must_drop(0, 8 * PAGE) && !one.may_be_changed());
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

#[test]
fn a_few_pages_far_apart_go_with_a_few_notices() {
    let mut one = One::with((0, 1 << 40), Exclusive);
    let drop = one.drop(0, u64::MAX);
    let mut tells = 0;
    while let Step::Tell(..) = one.step(drop) {
        one.pages.told(drop, true);
        tells += 1;
    }
    assert!(tells < 64, "{tells}");
}

#[test]
fn what_was_answered_without_account_goes_with_the_rest() {
    let mut one = One::new();
    let fill = one.ask((PAGE, 2 * PAGE));
    one.pages.answered(fill, Exclusive);
    one.pages.set_unknown(true);
    assert!(one.may_be_changed());
    let drop = one.pages.begin_drop(&[TokenRange::ALL], Why::Recalled);
    one.told(drop, 2 * PAGE, u64::MAX);
    one.told(drop, 0, PAGE);
    assert_eq!(one.step(drop), Step::Wait);
    one.pages.end_fill(fill);
    one.told(drop, PAGE, 2 * PAGE);
    one.ends(drop);
    one.pages.set_unknown(false);
    assert!(!one.may_be_changed());
}

#[test]
fn only_what_was_changed_among_late_pages_is_lost() {
    let mut one = One::with((0, PAGE), Exclusive);
    one.fill((8 * PAGE, 9 * PAGE), Exclusive);
    let drop = one.drop(8 * PAGE, 9 * PAGE);
    one.told(drop, 8 * PAGE, 9 * PAGE);
    one.pages.end_drop(drop);
    assert!(one.may_be_changed());
    assert!(!one.pages.may_be_changed_in(&bytes(8 * PAGE, 9 * PAGE)));
    assert!(one.pages.may_be_changed_in(&bytes(0, 9 * PAGE)));
}

#[test]
fn who_holds_up_one_of_several_drops_waits_for_none() {
    let mut one = One::with((0, 2 * TOLD_MIN), Shared);
    let first = one.drop(0, 2 * TOLD_MIN);
    for page in 0..u64::from(PASSED_MAX) {
        let Step::Tell(_, (from, _)) = one.step(first) else {
            panic!("{page} were passed");
        };
        one.ask((from, from + PAGE));
        assert!(one.pages.pass_locked(first));
    }
    one.drop(0, PAGE);
    assert!(!one.pages.must_wait((0, PAGE)));
}
