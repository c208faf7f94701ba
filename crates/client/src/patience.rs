//! How long waits may last: for the client's patience, which doesn't count while the node is held up.
//!
//! *Held up* is a node that is up and whose lease nobody renews, without having said that its run is expelled: most of all
//! while coordination has no quorum. Nothing is answered and nothing cached is used then, so waiting on can do no harm, and an
//! error might be a program's end. Who waits meanwhile waits on, and has the whole patience again once there is a lease.
//!
//! What ends such a wait: the lease is renewed; the run is expelled, or has left; the client is about to be closed.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use world::{Deadline, Elapsed, Instant, World};

/// How often a wait that has lasted for its patience looks whether it may last longer.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// When a wait ends that should end at `deadline`, by a client of this patience whose node was held up until then last
/// ([`crate::Owners::held_up_until`]).
pub(crate) fn prolonged(
    deadline: Deadline,
    patience: Duration,
    held_up_until: Option<Instant>,
) -> Deadline {
    let again = held_up_until.map(|until| Deadline::at(until + patience));
    again.map_or(deadline, |again| deadline.max(again))
}

/// Drives `future` until the deadline at most, then drops it. `prolonged` says when that is by now; it is asked only when the
/// deadline has passed.
///
/// # Errors
/// [`Elapsed`] if it wasn't ready in time.
pub(crate) async fn bound<F: Future>(
    world: &World,
    deadline: Deadline,
    prolonged: impl Fn() -> Deadline,
    future: F,
) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut until = deadline;
    loop {
        if let Ok(done) = until.bound(world, future.as_mut()).await {
            return Ok(done);
        }
        let end = prolonged();
        if end.has_passed(world) {
            return Err(Elapsed);
        }
        until = end.min(Deadline::after(world, LOOK_EVERY));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use world::sim::Simulation;

    const SECOND: Duration = Duration::from_secs(1);

    /// Would be broken if a wait ended while the node is held up, had no patience left when that is over, or never ended.
    #[test]
    fn a_wait_lasts_for_the_patience_after_the_node_was_held_up() {
        let ran = Simulation::new(1).run(|world| async move {
            let (begun, patience) = (world.now(), SECOND * 60);
            let (from, to) = (begun + SECOND * 50, begun + SECOND * 500);
            let held_up_until = |now: Instant| (now >= from).then(|| now.min(to));
            let wait = async |since: Instant| {
                let deadline = Deadline::at(since + patience);
                let later = || prolonged(deadline, patience, held_up_until(world.now()));
                let ended = bound(&world, deadline, later, std::future::pending::<()>()).await;
                assert_eq!(ended, Err(Elapsed));
                world.now()
            };
            assert_eq!(wait(begun).await, to + patience);
            // One that begins later has heard nothing of it.
            let since = world.now();
            assert_eq!(wait(since).await, since + patience);
        });
        ran.finished();
    }

    /// Would be broken if what comes while the node is held up weren't taken.
    #[test]
    fn what_comes_while_the_node_is_held_up_ends_the_wait() {
        let ran = Simulation::new(2).run(|world| async move {
            let patience = SECOND * 60;
            let deadline = Deadline::after(&world, patience);
            let later = || prolonged(deadline, patience, Some(world.now()));
            let comes = world.sleep(SECOND * 1_000);
            assert_eq!(bound(&world, deadline, later, comes).await, Ok(()));
        });
        ran.finished();
    }
}
