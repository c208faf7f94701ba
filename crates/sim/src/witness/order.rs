//! Whether some order of the operations on an object explains all their answers, where each took effect at one moment
//! between its begin and its end: the search of Wing and Gong, which remembers where it was (Lowe).

use super::{NEVER, Tick};
use std::hash::Hash;
use world::Set;

/// What an operation with its answer does to an object, or says of it.
pub trait Operation: PartialEq {
    /// A state of the object.
    type State: Clone + Eq + Hash;

    /// Whether it can have been answered so in this state, and leaves it as it is. It then comes as early as it can,
    /// because nothing is shut out by it. False of a change that may also be tried later.
    fn leaves(&self, state: &Self::State) -> bool;

    /// Calls `each` with the states that it may make of this one; with none if it can't have been answered so there, or
    /// if it leaves it.
    fn changes(&self, state: &Self::State, each: impl FnMut(Self::State));
}

/// An operation, and when it was under way.
#[derive(Clone, Debug)]
pub struct Step<O> {
    /// When it was asked for.
    pub begun: Tick,
    /// When it was answered: not before it was asked for. [`NEVER`] for one that may happen at any later time.
    pub ended: Tick,
    /// It may also have never happened. Not for one that may leave a state.
    pub is_optional: bool,
    /// What it is.
    pub what: O,
    /// The event that it is a part of; the search only tells it.
    pub event: usize,
}

/// Why there is no order, or none was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failed<S> {
    /// When most was explained there was this state, and no order of the rest began with any of these events. The first
    /// of them ended first.
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
    /// When the last of them began: what ended before comes too late. It follows from what is done.
    newest: Tick,
    state: S,
}

impl<S> At<S> {
    fn is_done(&self, step: usize) -> bool {
        step < self.first || self.done.get(step - self.first).copied().unwrap_or(false)
    }

    fn note_done(&mut self, step: usize, begun: Tick) {
        self.newest = self.newest.max(begun);
        let at = step - self.first;
        if self.done.len() <= at {
            self.done.resize(at + 1, false);
        }
        self.done[at] = true;
        let ready = self.done.iter().take_while(|done| **done).count();
        self.first += ready;
        self.done.drain(..ready);
    }
}

/// All steps: first those that must be done, then the optional ones (they would keep `At::first` back), each by their
/// begins.
struct Steps<O> {
    all: Vec<Step<O>>,
    /// How many must be done.
    wanted: usize,
}

impl<O: Operation> Steps<O> {
    /// The steps that may come next: none that must be done has ended before they began, and none that is done began
    /// after they had ended.
    fn open(&self, at: &At<O::State>) -> Vec<usize> {
        let (mut open, mut first_end) = (Vec::new(), NEVER);
        for step in at.first..self.wanted {
            // Nor does a later one end before.
            if self.all[step].begun > first_end {
                break;
            }
            if !at.is_done(step) {
                first_end = first_end.min(self.all[step].ended);
                open.push(step);
            }
        }
        let optional = at.first.max(self.wanted)..self.all.len();
        open.extend(optional.filter(|step| {
            let Step { begun, ended, .. } = self.all[*step];
            !at.is_done(*step) && begun <= first_end && ended >= at.newest
        }));
        open
    }

    /// Of the open steps, one that leaves the state and shuts nothing out: no optional one would come too late after it.
    fn early(&self, at: &At<O::State>, open: &[usize]) -> Option<usize> {
        let shuts_out_nothing = |next: usize| {
            let mut optional = open.iter().filter(|step| self.all[**step].is_optional);
            optional.all(|step| self.all[*step].ended >= self.all[next].begun)
        };
        let mut open = open.iter().copied();
        open.find(|step| self.all[*step].what.leaves(&at.state) && shuts_out_nothing(*step))
    }

    /// The open steps that can be answered so here, each with a state that it makes of this one.
    fn next(&self, at: &At<O::State>, open: &[usize]) -> Vec<(usize, O::State)> {
        let leaves = |step: &usize| self.all[*step].what.leaves(&at.state);
        let looks = open.iter().copied().filter(leaves);
        let mut next: Vec<_> = looks.map(|step| (step, at.state.clone())).collect();
        let mut late: Vec<&O> = Vec::new();
        for step in open {
            let Step { what, ended, .. } = &self.all[*step];
            // Of those that can come at any later time and do the same, the first is as good as the others.
            if *ended == NEVER {
                if late.contains(&what) {
                    continue;
                }
                late.push(what);
            }
            what.changes(&at.state, |state| next.push((*step, state)));
        }
        next
    }

    /// The events of these steps, the one that ended first in front.
    fn events(&self, mut steps: Vec<usize>) -> Vec<usize> {
        steps.sort_by_key(|step| self.all[*step].ended);
        steps.iter().map(|step| self.all[*step].event).collect()
    }
}

/// Searches an order of the steps, on an object that begins with a state. Looks at so many places at most.
///
/// # Errors
/// What can't be explained.
pub fn explain<O: Operation>(
    mut all: Vec<Step<O>>,
    state: O::State,
    visits_max: usize,
) -> Result<(), Failed<O::State>> {
    all.sort_by_key(|step| (step.is_optional, step.begun));
    let wanted = all.iter().filter(|step| !step.is_optional).count();
    let steps = Steps { all, wanted };
    let mut furthest = (0, state.clone(), Vec::new());
    let first = At {
        first: 0,
        done: Vec::new(),
        newest: 0,
        state,
    };
    let (mut stack, mut seen, mut visits) = (vec![(first, 0)], Set::default(), 0);
    while let Some((mut at, mut done)) = stack.pop() {
        visits += 1;
        if visits > visits_max {
            return Err(Failed::GivenUp);
        }
        let mut open = steps.open(&at);
        while let Some(step) = steps.early(&at, &open) {
            at.note_done(step, steps.all[step].begun);
            done += 1;
            open = steps.open(&at);
        }
        if done == wanted {
            return Ok(());
        }
        if !seen.insert(at.clone()) {
            continue;
        }
        // The last one is tried first: those that must come before those that may.
        for (step, state) in steps.next(&at, &open).into_iter().rev() {
            let mut after = at.clone();
            after.note_done(step, steps.all[step].begun);
            after.state = state;
            stack.push((after, done + usize::from(!steps.all[step].is_optional)));
        }
        if done >= furthest.0 {
            furthest = (done, at.state, open);
        }
    }
    let (_, state, open) = furthest;
    Err(Failed::At(state, steps.events(open)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What programs do with a number that they share.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Number {
        Becomes(u32),
        Is(u32),
        /// It was the first, and is the second.
        Changes(u32, u32),
    }

    impl Operation for Number {
        type State = u32;

        fn leaves(&self, state: &u32) -> bool {
            matches!(self, Self::Is(it) if it == state)
        }

        fn changes(&self, state: &u32, mut each: impl FnMut(u32)) {
            match *self {
                Self::Becomes(to) => each(to),
                Self::Changes(from, to) if from == *state => each(to),
                Self::Is(_) | Self::Changes(..) => {}
            }
        }
    }

    use Number::{Becomes, Changes, Is};

    fn step(event: usize, (begun, ended, what): (Tick, Tick, Number)) -> Step<Number> {
        Step {
            begun,
            ended,
            is_optional: false,
            what,
            event,
        }
    }

    fn explained(all: &[(Tick, Tick, Number)]) -> Result<(), Failed<u32>> {
        let steps = all.iter().enumerate();
        let steps = steps.map(|(event, it)| step(event, *it));
        explain(steps.collect(), 0, 10_000)
    }

    #[test]
    fn what_overlaps_may_come_in_any_order_that_explains_the_answers() {
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
        let stale = [(0, 10, Becomes(1)), (20, 30, Is(0))];
        assert_eq!(explained(&stale), Err(Failed::At(1, vec![1])));
        let back = [(0, 100, Becomes(1)), (10, 20, Is(1)), (30, 40, Is(0))];
        assert!(explained(&back).is_err());
        // Only one of two finds what both replace.
        let twice = [(0, 10, Changes(0, 1)), (5, 15, Changes(0, 2))];
        assert!(explained(&twice).is_err());
    }

    #[test]
    fn what_may_never_have_happened_may_also_have_happened_in_its_time() {
        let optional = |ended| Step {
            is_optional: true,
            ..step(0, (0, ended, Becomes(1)))
        };
        let seen = |value| step(1, (20, 30, Is(value)));
        for value in [0, 1] {
            let late = vec![optional(NEVER), seen(value)];
            assert_eq!(explain(late, 0, 10_000), Ok(()), "{value}");
        }
        // Nobody has made it 0 again.
        let back = vec![optional(NEVER), seen(1), step(2, (40, 50, Is(0)))];
        let failed = explain(back, 0, 10_000);
        assert_eq!(failed, Err(Failed::At(1, vec![2])));
    }

    #[test]
    fn a_search_that_takes_too_long_is_given_up() {
        let all = (0..12).map(|number| step(number, (0, 100, Changes(0, number as u32 + 1))));
        let all = all.chain([step(12, (0, 100, Is(99)))]);
        let failed = explain(all.clone().collect(), 0, 5);
        assert_eq!(failed, Err(Failed::GivenUp));
        let Err(Failed::At(..)) = explain(all.collect(), 0, 1_000) else {
            panic!("nothing explains it");
        };
    }
}
