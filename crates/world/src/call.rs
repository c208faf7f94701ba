//! Calls between nodes: who can be called, who answers, and until when.
//!
//! `rpc` carries the calls. Those who call (`pool`, `client`) and those who answer (`nsd`,
//! `metanode`) know only these traits, so that a function call can take the network's place.
//!
//! A read from another node's NSD: `pool` asks its handle of the NSD with a [`Deadline`]; the handle
//! encodes a `model::call::Call` and awaits [`Remote::call`]; on the other node [`Service::serve`]
//! decodes it, reads, and gives a reply. When the connection breaks after the request left, the
//! caller gets `NoAnswer::Unknown` at once, and at its deadline if nothing breaks visibly. Nothing
//! below the caller asks again.

use crate::{Elapsed, Instant, World};
use futures::future::BoxFuture;
use model::NodeRun;
use model::call::{Answer, Call, NoAnswer, Reply};
use std::future::Future;
use std::time::Duration;

/// When waiting for something ends. Made once, where the wait begins, and handed down, so that the
/// steps below share one budget.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// Ends when `patience` has passed.
    #[must_use]
    pub fn after(world: &World, patience: Duration) -> Self {
        Self(world.now() + patience)
    }

    /// Ends at this time.
    #[must_use]
    pub fn at(time: Instant) -> Self {
        Self(time)
    }

    /// When it ends.
    #[must_use]
    pub fn time(self) -> Instant {
        self.0
    }

    /// Time until then; zero afterwards.
    #[must_use]
    pub fn rest(self, world: &World) -> Duration {
        self.0.since(world.now())
    }

    /// Whether it is over.
    #[must_use]
    pub fn has_passed(self, world: &World) -> bool {
        self.0 <= world.now()
    }

    /// Drives `future` until the deadline at most, then drops it.
    ///
    /// # Errors
    /// [`Elapsed`] if it wasn't ready in time.
    pub async fn bound<F: Future>(self, world: &World, future: F) -> Result<F::Output, Elapsed> {
        world.timeout(self.rest(world), future).await
    }
}

/// Another node, as callers see it.
pub trait Remote: Send + Sync {
    /// Asks the node, and waits until the deadline at most. Never asks twice. Dropping the future
    /// gives up the reply; the request may run all the same.
    ///
    /// # Errors
    /// Says whether the request can have run.
    fn call(&self, call: Call, deadline: Deadline) -> BoxFuture<'_, Result<Answer, NoAnswer>>;
}

/// A part of the same process that answers requests `Q` with `A`, as its callers see it: asking is a
/// function call.
pub trait Local<Q, A>: Send + Sync {
    /// Does what the request asks on this thread, at once unless something must be waited for.
    fn ask<'a>(&'a self, request: &'a Q) -> Asked<'a, A>;
}

/// The answer of a [`Local`] part, or what is left to do for it. Most answers are ready, and cost no
/// allocation.
#[must_use]
pub enum Asked<'a, A> {
    /// The answer.
    Ready(A),
    /// The rest of the work, which must be driven to its end unless the part says otherwise.
    Waits(BoxFuture<'a, A>),
}

impl<A> Asked<'_, A> {
    /// Waits for the answer if it isn't ready.
    pub async fn answer(self) -> A {
        match self {
            Self::Ready(answer) => answer,
            Self::Waits(rest) => rest.await,
        }
    }
}

/// What a node does for others.
pub trait Service: Send + Sync {
    /// Does what `call` asks. `from`: the daemon that asks. After the deadline nobody waits for the
    /// reply, so work that only serves the reply may stop. Dropping the future ends the work at its
    /// next wait.
    fn serve(&self, from: NodeRun, call: Call, deadline: Deadline) -> BoxFuture<'_, Reply>;

    /// Whether the call is short work: it computes for microseconds only between its waits, and never blocks its thread.
    /// Whoever has received it may run it between others, instead of giving it a task. Decided when it comes.
    fn is_short(&self, _call: &Call) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Outcome, Simulation};

    #[test]
    fn steps_below_share_one_budget() {
        let outcome = Simulation::new(1).run(|world| async move {
            let deadline = Deadline::after(&world, Duration::from_millis(100));
            world.sleep(Duration::from_millis(60)).await;
            assert_eq!(deadline.rest(&world), Duration::from_millis(40));
            let late = world.sleep(Duration::from_millis(50));
            assert_eq!(deadline.bound(&world, late).await, Err(Elapsed));
            assert!(deadline.has_passed(&world));
            assert_eq!(deadline.rest(&world), Duration::ZERO);
        });
        assert_eq!(outcome, Outcome::Finished(()));
    }
}
