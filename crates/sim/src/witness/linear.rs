//! Whether some order of the operations on one small object explains all answers: the search of Wing and
//! Gong, which remembers where it was (Lowe).

use super::{NEVER, Tick};
use world::Set;

/// Most places that a search visits before it gives up.
const VISITS_MAX: usize = 300_000;

/// An operation on an object whose states are numbers.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) begun: Tick,
    /// [`NEVER`] for one that may happen at any time.
    pub(super) ended: Tick,
    /// It may also have never happened.
    pub(super) is_optional: bool,
    pub(super) what: What,
    /// The event that it is a part of.
    pub(super) event: usize,
}

/// What it does to the object, or says of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    /// The state is this.
    Is(u64),
    /// It becomes this.
    Set(u64),
    /// It becomes at least this.
    Raise(u64),
    /// It is the first, and becomes the second.
    Move(u64, u64),
    /// It grows by this, from what nobody knows.
    Grow(u64),
    /// It is at most this.
    AtMost(u64),
}

impl What {
    fn after(self, state: u64) -> Option<u64> {
        match self {
            Self::Is(it) => (state == it).then_some(state),
            Self::AtMost(it) => (state <= it).then_some(state),
            Self::Set(it) => Some(it),
            Self::Raise(it) => Some(state.max(it)),
            Self::Move(from, to) => (state == from).then_some(to),
            Self::Grow(by) => Some(state + by),
        }
    }

    fn is_look(self) -> bool {
        matches!(self, Self::Is(_) | Self::AtMost(_))
    }
}

/// Where the search is.
#[derive(Clone, PartialEq, Eq, Hash)]
struct At {
    /// All steps before this one are done.
    first: usize,
    /// Steps from there on that are done.
    done: Vec<bool>,
    state: u64,
}

impl At {
    fn is_done(&self, step: usize) -> bool {
        step < self.first || self.done.get(step - self.first).copied().unwrap_or(false)
    }

    fn do_it(&mut self, step: usize, state: u64) {
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
/// The event whose answer was the hardest to explain.
pub(super) fn explain(mut steps: Vec<Step>, state: u64) -> Result<(), usize> {
    // Optional ones last: they would keep `first` back.
    steps.sort_by_key(|step| (step.ended == NEVER, step.begun));
    let wanted = steps.iter().filter(|step| !step.is_optional).count();
    let first = At {
        first: 0,
        done: Vec::new(),
        state,
    };
    let (mut stack, mut seen) = (vec![(first, 0)], Set::default());
    let mut hardest = (0, steps.first().map_or(0, |step| step.event));
    let mut visits = 0;
    while let Some((mut at, mut done)) = stack.pop() {
        visits += 1;
        if visits > VISITS_MAX {
            break;
        }
        // A look changes nothing: it can always come as early as it is true.
        while let Some(look) = true_look(&steps, &at) {
            let state = at.state;
            at.do_it(look, state);
            done += usize::from(!steps[look].is_optional);
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
        for step in open(&steps, &at) {
            let what = steps[step].what;
            if what.is_look() {
                continue;
            }
            if let Some(state) = what.after(at.state) {
                let mut after = at.clone();
                after.do_it(step, state);
                stack.push((after, done + usize::from(!steps[step].is_optional)));
            }
        }
    }
    Err(hardest.1)
}

/// A look that may come next and is true.
fn true_look(steps: &[Step], at: &At) -> Option<usize> {
    open(steps, at).find(|step| {
        let what = steps[*step].what;
        what.is_look() && what.after(at.state).is_some()
    })
}

/// The steps that may come next: none that isn't done has ended before they began.
fn open<'a>(steps: &'a [Step], at: &'a At) -> impl Iterator<Item = usize> + 'a {
    let waiting = move || (at.first..steps.len()).filter(|step| !at.is_done(*step));
    let must = waiting().filter(|step| !steps[*step].is_optional);
    let first_end = must.map(|step| steps[step].ended).min().unwrap_or(NEVER);
    waiting().filter(move |step| steps[*step].begun <= first_end)
}
