//! Whether some order of the operations on one small object explains all answers: the search of Wing and
//! Gong, which remembers where it was (Lowe).

use super::{NEVER, Tick};
use std::rc::Rc;
use world::Set;

/// Most places that a search visits before it gives up.
const VISITS_MAX: usize = 300_000;

/// Why there is no such order, or none was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failed {
    /// The answer of this event was the hardest to explain.
    At(usize),
    /// Too many orders were possible.
    GivenUp,
}

/// An operation on an object whose states are numbers.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) begun: Tick,
    /// [`NEVER`] for one that may happen at any later time.
    pub(super) ended: Tick,
    /// It may also have never happened. Never true of a look.
    pub(super) is_optional: bool,
    pub(super) what: What,
    /// The event that it is a part of.
    pub(super) event: usize,
}

/// What it does to the object, or says of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum What {
    /// The state is this.
    Is(u64),
    /// It becomes this.
    Set(u64),
    /// It becomes one of these.
    OneOf(Rc<[u64]>),
    /// It becomes at least this.
    Raise(u64),
    /// It is the first, and becomes the second.
    Move(u64, u64),
    /// It grows by this, from what nobody knows.
    Grow(u64),
    /// It is at most this.
    AtMost(u64),
    /// It is at least this.
    AtLeast(u64),
}

impl What {
    /// Whether it changes nothing.
    pub(super) fn is_look(&self) -> bool {
        matches!(self, Self::Is(_) | Self::AtMost(_) | Self::AtLeast(_))
    }

    /// Whether a look is true; false of a change.
    fn is_true(&self, state: u64) -> bool {
        match self {
            Self::Is(it) => state == *it,
            Self::AtMost(it) => state <= *it,
            Self::AtLeast(it) => state >= *it,
            _ => false,
        }
    }

    /// What a change may make of a state; nothing of a look.
    fn after(&self, state: u64, mut each: impl FnMut(u64)) {
        match self {
            Self::Set(it) => each(*it),
            Self::OneOf(all) => all.iter().copied().for_each(each),
            Self::Raise(it) => each(state.max(*it)),
            Self::Move(from, to) if state == *from => each(*to),
            Self::Grow(by) => each(state + by),
            Self::Move(..) | Self::Is(_) | Self::AtMost(_) | Self::AtLeast(_) => {}
        }
    }
}

/// Where the search is.
#[derive(Clone, PartialEq, Eq, Hash)]
struct At {
    /// All steps before this one are done.
    first: usize,
    /// Steps from there on that are done.
    done: Vec<bool>,
    /// When the last of them began: what ended before comes too late. It follows from what is done.
    newest: Tick,
    state: u64,
}

impl At {
    fn is_done(&self, step: usize) -> bool {
        step < self.first || self.done.get(step - self.first).copied().unwrap_or(false)
    }

    fn do_it(&mut self, step: usize, begun: Tick, state: u64) {
        self.newest = self.newest.max(begun);
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
}

/// Searches an order, beginning with a state.
///
/// # Errors
/// What can't be explained.
pub(super) fn explain(mut steps: Vec<Step>, state: u64) -> Result<(), Failed> {
    // Optional ones last: they would keep `first` back.
    steps.sort_by_key(|step| (step.is_optional, step.begun));
    let wanted = steps.iter().filter(|step| !step.is_optional).count();
    let first = At {
        first: 0,
        done: Vec::new(),
        newest: 0,
        state,
    };
    let (mut stack, mut seen) = (vec![(first, 0)], Set::default());
    let mut hardest = (0, steps.first().map_or(0, |step| step.event));
    let mut visits = 0;
    while let Some((mut at, mut done)) = stack.pop() {
        visits += 1;
        if visits > VISITS_MAX {
            return Err(Failed::GivenUp);
        }
        // A look changes nothing: it can come as early as it is true, unless something may have to come before.
        while let Some(look) = early_look(&steps, &at) {
            let state = at.state;
            at.do_it(look, steps[look].begun, state);
            done += 1;
        }
        if done == wanted {
            return Ok(());
        }
        if !seen.insert(at.clone()) {
            continue;
        }
        if done >= hardest.0
            && let Some(step) = open(&steps, &at).min_by_key(|step| steps[*step].ended)
        {
            hardest = (done, steps[step].event);
        }
        let looks = true_look(&steps, &at).map(|look| (look, at.state));
        let mut next: Vec<_> = looks.collect();
        let mut late: Vec<&What> = Vec::new();
        for step in open(&steps, &at) {
            let Step { what, ended, .. } = &steps[step];
            // Of those that can come at any later time and do the same, the first is as good as the others.
            if *ended == NEVER {
                if late.contains(&what) {
                    continue;
                }
                late.push(what);
            }
            what.after(at.state, |state| next.push((step, state)));
        }
        // The last one is tried first: those that must come before those that may.
        for (step, state) in next.into_iter().rev() {
            let mut after = at.clone();
            after.do_it(step, steps[step].begun, state);
            stack.push((after, done + usize::from(!steps[step].is_optional)));
        }
    }
    Err(Failed::At(hardest.1))
}

/// The looks that may come next and are true.
fn true_look<'a>(steps: &'a [Step], at: &'a At) -> impl Iterator<Item = usize> + 'a {
    open(steps, at).filter(|step| steps[*step].what.is_true(at.state))
}

/// A look that may come at once.
fn early_look(steps: &[Step], at: &At) -> Option<usize> {
    true_look(steps, at).find(|look| shuts_out_nothing(steps, at, *look))
}

/// Whether no step that may never happen would come too late after this one.
fn shuts_out_nothing(steps: &[Step], at: &At, next: usize) -> bool {
    let begun = steps[next].begun;
    let mut may = open(steps, at).filter(|step| steps[*step].is_optional);
    may.all(|step| steps[step].ended >= begun)
}

/// The steps that may come next: none that must be done has ended before they began, and none that is done began
/// after they had ended.
fn open<'a>(steps: &'a [Step], at: &'a At) -> impl Iterator<Item = usize> + 'a {
    let waiting = move || (at.first..steps.len()).filter(|step| !at.is_done(*step));
    let must = waiting().filter(|step| !steps[*step].is_optional);
    let first_end = must.map(|step| steps[step].ended).min().unwrap_or(NEVER);
    let is_open = move |step: &Step| step.begun <= first_end && step.ended >= at.newest;
    waiting().filter(move |step| is_open(&steps[*step]))
}
