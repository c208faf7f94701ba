//! Whether some order of operations explains all their answers, where each took effect at one moment between its begin
//! and its end: the search of Wing and Gong, which remembers where it was (Lowe).

use rustix::time::{ClockId, clock_gettime};
use std::hash::Hash;
use world::Set;

/// Most places that a search visits before it gives up.
const VISITS_MAX: usize = 2_000_000;

/// Nanoseconds of a clock that all processes of this machine share.
pub(super) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// An operation with its answer, and when it was under way.
#[derive(Clone, Debug)]
pub(super) struct Step<W> {
    pub(super) begun: u64,
    pub(super) ended: u64,
    pub(super) what: W,
}

/// Why there is no order, or none was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Failed<S> {
    /// When everything before was explained, there was this state, and none of these steps could come next.
    At(S, Vec<usize>),
    /// Too many orders were possible.
    GivenUp,
}

/// Where the search is.
#[derive(Clone, PartialEq, Eq, Hash)]
struct At<S> {
    /// All steps before this one are done.
    first: usize,
    /// Steps from there on that are done.
    done: Vec<bool>,
    state: S,
}

impl<S> At<S> {
    fn is_done(&self, step: usize) -> bool {
        step < self.first || self.done.get(step - self.first).copied().unwrap_or(false)
    }

    fn do_it(&mut self, step: usize, state: S) {
        let at = step - self.first;
        if self.done.len() <= at {
            self.done.resize(at + 1, false);
        }
        self.done[at] = true;
        self.state = state;
        let ready = self.done.iter().take_while(|done| **done).count();
        self.first += ready;
        self.done.drain(..ready);
    }

    fn count(&self) -> usize {
        self.first + self.done.iter().filter(|done| **done).count()
    }

    /// The steps that may come next: none that isn't done has ended before they began.
    fn open<W>(&self, steps: &[Step<W>]) -> Vec<usize> {
        let (mut open, mut first_end) = (Vec::new(), u64::MAX);
        for (number, step) in steps.iter().enumerate().skip(self.first) {
            if step.begun > first_end {
                break;
            }
            if !self.is_done(number) {
                first_end = first_end.min(step.ended);
                open.push(number);
            }
        }
        open
    }
}

/// Searches an order of the steps, which are sorted by their begins, on an object that begins with a state. `after` says
/// what a step makes of a state; `None` if it can't have been answered so there.
pub(super) fn explain<W, S: Clone + Eq + Hash>(
    steps: &[Step<W>],
    state: S,
    after: impl Fn(&S, &W) -> Option<S>,
) -> Result<(), Failed<S>> {
    assert!(steps.is_sorted_by_key(|step| step.begun));
    let first = At {
        first: 0,
        done: Vec::new(),
        state,
    };
    let mut furthest = (0, first.state.clone(), Vec::new());
    let (mut stack, mut seen, mut visits) = (vec![first], Set::default(), 0);
    while let Some(mut at) = stack.pop() {
        visits += 1;
        if visits > VISITS_MAX {
            return Err(Failed::GivenUp);
        }
        // What changes nothing shuts nothing out: it can come as early as it is true.
        let leaves = |at: &At<S>, step: &usize| {
            after(&at.state, &steps[*step].what).is_some_and(|state| state == at.state)
        };
        let mut open = at.open(steps);
        loop {
            let look = open.iter().copied().find(|step| leaves(&at, step));
            let Some(look) = look else { break };
            let state = at.state.clone();
            at.do_it(look, state);
            open = at.open(steps);
        }
        if open.is_empty() {
            return Ok(());
        }
        if !seen.insert(at.clone()) {
            continue;
        }
        if at.count() >= furthest.0 {
            furthest = (at.count(), at.state.clone(), open.clone());
        }
        // The one that began first is tried first.
        for step in open.into_iter().rev() {
            if let Some(state) = after(&at.state, &steps[step].what) {
                let mut next = at.clone();
                next.do_it(step, state);
                stack.push(next);
            }
        }
    }
    Err(Failed::At(furthest.1, furthest.2))
}

/// What programs do with a number that they share.
#[derive(Clone, Copy, Debug)]
enum Number {
    Becomes(u32),
    Is(u32),
    /// It was the first, and is the second.
    Changes(u32, u32),
}

fn after(state: &u32, what: &Number) -> Option<u32> {
    match *what {
        Number::Becomes(to) => Some(to),
        Number::Is(it) => (it == *state).then_some(it),
        Number::Changes(from, to) => (from == *state).then_some(to),
    }
}

fn explained(all: &[(u64, u64, Number)]) -> Result<(), Failed<u32>> {
    let step = |(begun, ended, what): &(u64, u64, Number)| Step {
        begun: *begun,
        ended: *ended,
        what: *what,
    };
    let mut steps: Vec<_> = all.iter().map(step).collect();
    steps.sort_by_key(|step| step.begun);
    explain(&steps, 0, after)
}

#[test]
fn what_overlaps_may_come_in_any_order_that_explains_the_answers() {
    use Number::{Becomes, Changes, Is};
    let honest = [
        (0, 100, Becomes(1)),
        (10, 20, Is(0)),
        (30, 40, Is(1)),
        (50, 90, Changes(2, 3)),
        (55, 95, Changes(1, 2)),
        (60, 70, Is(2)),
        (80, 85, Is(3)),
    ];
    assert_eq!(explained(&honest), Ok(()));
    assert_eq!(explained(&[]), Ok(()));
}

#[test]
fn an_answer_that_no_order_explains_is_found() {
    use Number::{Becomes, Changes, Is};
    let stale = [(0, 10, Becomes(1)), (20, 30, Is(0))];
    assert_eq!(explained(&stale), Err(Failed::At(1, vec![1])));
    let back = [(0, 100, Becomes(1)), (10, 20, Is(1)), (30, 40, Is(0))];
    assert!(explained(&back).is_err());
    // Only one of two finds what both replace.
    let twice = [(0, 10, Changes(0, 1)), (5, 15, Changes(0, 2))];
    assert!(explained(&twice).is_err());
}
