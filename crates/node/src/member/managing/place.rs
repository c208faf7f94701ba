//! The manager's place in coordination: won when it is free or its holder is dead, kept while this run is
//! the manager.

use super::{Done, STEP_MAX};
use crate::member::Parts;
use coordination::{LeaseId, PLACE_LEASE};
use futures::future::{BoxFuture, FutureExt};
use manager::{Event, Moment};
use model::{ErrorKind, NodeRun};
use std::io;
use std::time::Duration;
use world::Deadline;

/// The place lasts so long by the slowest clock that a manager may have, from when it was asked for.
pub(super) const LASTS: Duration = Duration::from_millis(PLACE_LEASE.as_millis() as u64 * 19 / 20);
/// How often it is kept.
const KEEP_EVERY: Duration = Duration::from_secs(1);
/// Pause after an attempt to win it that failed.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// How long a read may take by which it is found out whether coordination has a leader, and the pause until the next.
const READ_MAX: Duration = Duration::from_millis(250);
const READ_AFTER: Duration = Duration::from_millis(50);
/// After so many of them in vain coordination is slow, or away for long: they may take as long as any other step.
const SHORT_READS: u32 = 8;
/// Attempts that must be refused to prove that nobody listens, and the time between them.
const ATTEMPTS: usize = 2;
const ATTEMPT_AFTER: Duration = Duration::from_millis(300);

/// The place was won.
pub(super) struct Won {
    pub(super) lease: LeaseId,
    /// Until when it lasts at least, by this machine's clock.
    pub(super) until: Moment,
}

/// Waits until the place can be taken, and tries once. `dead`: a run that was found to be dead, which it stays.
pub(super) async fn win(parts: &Parts, dead: &mut Option<NodeRun>) -> Option<Won> {
    let expected = vacancy(parts, dead).await?;
    let won = take(parts, expected).await;
    if won.is_none() {
        parts.world.sleep(AGAIN_AFTER).await;
    }
    won
}

/// Waits until the place is free or its holder is surely dead, and returns its version; `None` if this
/// node ends.
async fn vacancy(parts: &Parts, dead: &mut Option<NodeRun>) -> Option<u64> {
    let mut roster = parts.roster.subscribe();
    loop {
        let known = roster.borrow_and_update().clone();
        let Some(place) = &known.manager else {
            return Some(0);
        };
        let holder = place.value.run;
        if holder == parts.run || parts.is_over(holder) || *dead == Some(holder) {
            return Some(place.version);
        }
        tokio::select! {
            changed = roster.changed() => changed.ok()?,
            () = parts.lease.ended() => return None,
            () = parts.lease.doubted() => if is_dead(parts, holder).await {
                *dead = Some(holder);
                return Some(place.version);
            },
        }
    }
}

async fn is_dead(parts: &Parts, holder: NodeRun) -> bool {
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            parts.world.sleep(ATTEMPT_AFTER).await;
        }
        if !parts.is_refused(holder).await {
            return false;
        }
    }
    true
}

/// Waits until coordination has a leader, as long as the place is what it was. What is sent to a member whose leader has
/// died, before another one is elected, is never answered, and nobody could say whether it was done; a read shows that
/// there is a leader, and can be given up and asked again.
async fn until_led(parts: &Parts, expected: u64) -> Option<()> {
    let roster = parts.roster.subscribe();
    for attempt in 0.. {
        if parts.lease.has_ended() {
            return None;
        }
        let patience = match attempt < SHORT_READS {
            true => READ_MAX,
            false => STEP_MAX,
        };
        let read = parts.world.timeout(patience, parts.coordination.revision());
        if matches!(read.await, Ok(Ok(_))) {
            return Some(());
        }
        parts.world.sleep(READ_AFTER).await;
        // Somebody else may have been told first.
        let place = roster.borrow().manager.as_ref().map_or(0, |it| it.version);
        if place != expected {
            return None;
        }
    }
    None
}

async fn take(parts: &Parts, expected: u64) -> Option<Won> {
    until_led(parts, expected).await?;
    let asked = parts.world.now();
    let facts = &parts.coordination;
    let granted = parts.world.timeout(STEP_MAX, facts.grant_place()).await;
    let lease = granted.ok()?.ok()?.id;
    let taken = facts.take_place(parts.run, expected, lease);
    match parts.world.timeout(STEP_MAX, taken).await {
        Ok(Ok(())) => {
            parts.lease.kept_place(asked);
            Some(Won {
                lease,
                until: parts.lease.moment(asked + LASTS),
            })
        }
        // Nobody is the manager under a lease that nobody keeps.
        Ok(Err(_)) | Err(_) => {
            give_up(parts, lease).await;
            None
        }
    }
}

/// Gives the place up at once if coordination answers; otherwise it ends by itself.
pub(super) async fn give_up(parts: &Parts, lease: LeaseId) {
    let revoked = parts.coordination.revoke(lease);
    let _ = parts.world.timeout(STEP_MAX, revoked).await;
}

/// Keeps the place for another while. Without an answer it asks again. If the place has ended all the same, as some
/// versions of etcd may do with it, what this run's own manager has answered to it counts no longer: a successor doesn't
/// wait for that.
pub(super) fn keep(parts: &Parts, lease: LeaseId) -> BoxFuture<'_, Done> {
    async move {
        loop {
            parts.world.sleep(KEEP_EVERY).await;
            let asked = parts.world.now();
            let kept = parts.coordination.keep_alive(lease);
            match parts.world.timeout(STEP_MAX, kept).await {
                Ok(Ok(_)) => {
                    parts.lease.kept_place(asked);
                    let until = parts.lease.moment(asked + LASTS);
                    return Done::Event(Event::OwnLease(until));
                }
                Ok(Err(error)) if error.kind() == ErrorKind::NotFound => {
                    return Done::Event(lost(parts));
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }
    .boxed()
}

/// Coordination says that this run hasn't the place any more: nothing counts that depends on it.
pub(super) fn lost(parts: &Parts) -> Event {
    tracing::warn!(run = %parts.run, "coordination says that this run isn't the manager any more");
    parts.lease.lost_place();
    Event::PlaceLost
}

impl Parts {
    /// A newer run of its node is known.
    fn is_over(&self, run: NodeRun) -> bool {
        let roster = self.roster.borrow();
        let newest = roster.addresses.get(&run.node);
        newest.is_some_and(|newest| newest.run > run)
    }

    /// Nobody listens where the run listened, or a newer run of its node does. An attempt without an answer
    /// proves nothing.
    pub(in crate::member) async fn is_refused(&self, run: NodeRun) -> bool {
        let known = self.roster.borrow().addresses.get(&run.node).copied();
        match known {
            Some(known) if known.run > run => true,
            Some(known) if known.run == run => {
                let deadline = Deadline::after(&self.world, STEP_MAX);
                let connected = self.world.connect(known.address, deadline).await;
                connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
            }
            _ => false,
        }
    }
}
