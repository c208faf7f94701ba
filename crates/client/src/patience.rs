//! How long waits may last: for the client's patience, which doesn't count while the node is held up.
//!
//! *Held up* is a node that is up and has no lease, because nobody renews it, and that hasn't been told that its run is expelled:
//! most of all while coordination has no quorum. Nothing is answered and nothing cached is used then, so waiting on can do no
//! harm, and an error might be a program's end. Who waits meanwhile waits on, and has the whole patience again once there is a
//! lease; of time with a lease no wait takes more than twice the patience: one that is lost again and again prolongs nothing
//! without end.
//!
//! What ends such a wait: the lease is renewed; the run is expelled, or has left; the client is about to be closed; or the
//! program that waits is killed ([`World::is_given_up`]). That is the end of its patience, however long it has waited: what was
//! asked and isn't decided goes on as after any other wait that was too long (`owner/calls.rs`).

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;
use world::{Deadline, Elapsed, Instant, World};

/// How often a wait that has lasted for its patience looks whether it may last longer.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How a node was held up since some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HoldUp {
    /// Until when it was last: now, as long as it is.
    pub until: Instant,
    /// For how long since then, all of it together.
    pub lasted: Duration,
}

/// When a wait ends that should end at `deadline`, as long after its beginning as this patience. `held_up` says how the node was
/// held up since a time ([`crate::Owners::held_up_since`]).
pub(crate) fn prolonged(
    deadline: Deadline,
    patience: Duration,
    held_up: impl FnOnce(Instant) -> Option<HoldUp>,
) -> Deadline {
    let begun = deadline.time() - patience;
    let Some(held_up) = held_up(begun) else {
        return deadline;
    };
    let whole = held_up.until + patience;
    let most = deadline.time() + held_up.lasted + patience;
    deadline.max(Deadline::at(whole.min(most)))
}

/// Drives `future` until its program is killed: `None` then, unless it is ready all the same.
pub(crate) fn while_wanted<F: Future>(
    world: &World,
    mut future: Pin<&mut F>,
) -> impl Future<Output = Option<F::Output>> {
    poll_fn(move |context| match future.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending if world.is_given_up() => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
}

/// Drives `future` until the deadline at most, then drops it; or until its program is killed. `prolonged` says when the deadline
/// is by now; it is asked only when it has passed.
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
        let waiting = pin!(until.bound(world, future.as_mut()));
        match while_wanted(world, waiting).await {
            Some(Ok(done)) => return Ok(done),
            Some(Err(_)) => {}
            None => return Err(Elapsed),
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
    use futures::future::join;
    use testkit::errands::killed_after;
    use world::errand;
    use world::sim::Simulation;

    const SECOND: Duration = Duration::from_secs(1);

    /// How a node was held up since a time and until now, if it is held up in these spans of time.
    fn held_up(spans: &[(Instant, Instant)], since: Instant, now: Instant) -> Option<HoldUp> {
        let begun = spans
            .iter()
            .filter(|(from, to)| *from <= now && *to >= since);
        begun.fold(None, |before: Option<HoldUp>, (from, to)| {
            let (from, until) = ((*from).max(since), (*to).min(now));
            let lasted = before.map_or(Duration::ZERO, |it| it.lasted) + (until - from);
            Some(HoldUp { until, lasted })
        })
    }

    /// Would be broken if a wait ended while the node is held up, had no patience left when that is over, or never ended.
    #[test]
    fn a_wait_lasts_for_the_patience_after_the_node_was_held_up() {
        let ran = Simulation::new(1).run(|world| async move {
            let (begun, patience) = (world.now(), SECOND * 60);
            let (from, to) = (begun + SECOND * 50, begun + SECOND * 500);
            let spans = [(from, to)];
            let wait = async |since: Instant| {
                let deadline = Deadline::at(since + patience);
                let held_up = |since| held_up(&spans, since, world.now());
                let later = || prolonged(deadline, patience, held_up);
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

    /// Would be broken if a lease that is lost again and again prolonged every wait without end.
    #[test]
    fn a_wait_takes_no_more_than_twice_the_patience_of_time_with_a_lease() {
        let ran = Simulation::new(3).run(|world| async move {
            let (begun, patience) = (world.now(), SECOND * 60);
            // 40 s with a lease, and 10 s without one.
            let lost = (0..20).map(|at| begun + SECOND * (40 + 50 * at));
            let spans: Vec<_> = lost.map(|from| (from, from + SECOND * 10)).collect();
            let deadline = Deadline::at(begun + patience);
            let held_up = |since| held_up(&spans, since, world.now());
            let later = || prolonged(deadline, patience, held_up);
            let ended = bound(&world, deadline, later, std::future::pending::<()>()).await;
            assert_eq!(ended, Err(Elapsed));
            assert_eq!(world.now() - begun, patience * 2 + SECOND * 20);
        });
        ran.finished();
    }

    /// Would be broken if the wait of a killed program lasted, or that of another one ended.
    #[test]
    fn the_wait_of_a_killed_program_ends_and_no_other() {
        let ran = Simulation::new(4).run(|world| async move {
            let wait = async || {
                let deadline = Deadline::after(&world, SECOND * 60);
                let waiting = bound(&world, deadline, || deadline, std::future::pending::<()>());
                let ended = waiting.await;
                assert_eq!(ended, Err(Elapsed));
                world.now()
            };
            let begun = world.now();
            let killed = killed_after(&world, SECOND * 5, wait());
            let other = errand::begin(wait());
            let (killed, other) = join(killed, other).await;
            assert_eq!((killed - begun, other - begun), (SECOND * 5, SECOND * 60));
        });
        ran.finished();
    }

    /// Would be broken if what comes while the node is held up weren't taken.
    #[test]
    fn what_comes_while_the_node_is_held_up_ends_the_wait() {
        let ran = Simulation::new(2).run(|world| async move {
            let patience = SECOND * 60;
            let deadline = Deadline::after(&world, patience);
            let held_up = |since: Instant| {
                let (until, lasted) = (world.now(), world.now() - since);
                Some(HoldUp { until, lasted })
            };
            let later = || prolonged(deadline, patience, held_up);
            let comes = world.sleep(SECOND * 1_000);
            assert_eq!(bound(&world, deadline, later, comes).await, Ok(()));
        });
        ran.finished();
    }
}
