//! The manager's place in coordination: won when it is free or its holder is dead, kept while this run is
//! the manager.

use super::{Done, STEP_MAX};
use crate::member::Parts;
use coordination::{LeaseId, PLACE_LEASE};
use futures::future::{BoxFuture, FutureExt};
use manager::{Event, Moment};
use model::NodeRun;
use std::io;
use std::time::Duration;
use world::Deadline;

/// The place lasts so long by the slowest clock that a manager may have, from when it was asked for.
pub(super) const LASTS: Duration = Duration::from_millis(PLACE_LEASE.as_millis() as u64 * 19 / 20);
/// How often it is kept.
const KEEP_EVERY: Duration = Duration::from_secs(1);
/// Pause after an attempt to win it that failed.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Attempts that must be refused to prove that nobody listens, and the time between them.
const ATTEMPTS: usize = 2;
const ATTEMPT_AFTER: Duration = Duration::from_millis(300);

/// The place was won.
pub(super) struct Won {
    pub(super) lease: LeaseId,
    /// Until when it lasts at least, by this machine's clock.
    pub(super) until: Moment,
}

/// Waits until the place can be taken, and tries once.
pub(super) async fn win(parts: &Parts) -> Option<Won> {
    let expected = vacancy(parts).await?;
    let won = take(parts, expected).await;
    if won.is_none() {
        parts.world.sleep(AGAIN_AFTER).await;
    }
    won
}

/// Waits until the place is free or its holder is surely dead, and returns its version; `None` if this
/// node ends.
async fn vacancy(parts: &Parts) -> Option<u64> {
    let mut roster = parts.roster.subscribe();
    loop {
        let known = roster.borrow_and_update().clone();
        let Some(place) = &known.manager else {
            return Some(0);
        };
        let holder = place.value.run;
        if holder == parts.run || parts.is_over(holder) {
            return Some(place.version);
        }
        tokio::select! {
            changed = roster.changed() => changed.ok()?,
            () = parts.lease.ended() => return None,
            () = parts.lease.doubted() => if is_dead(parts, holder).await {
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

async fn take(parts: &Parts, expected: u64) -> Option<Won> {
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

/// Keeps the place for another while. Without an answer it asks again; a place that has ended isn't kept
/// again.
pub(super) fn keep(parts: &Parts, lease: LeaseId) -> BoxFuture<'_, Done> {
    async move {
        loop {
            parts.world.sleep(KEEP_EVERY).await;
            let asked = parts.world.now();
            let kept = parts.coordination.keep_alive(lease);
            if let Ok(Ok(_)) = parts.world.timeout(STEP_MAX, kept).await {
                parts.lease.kept_place(asked);
                let until = parts.lease.moment(asked + LASTS);
                return Done::Event(Event::OwnLease(until));
            }
        }
    }
    .boxed()
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
    pub(super) async fn is_refused(&self, run: NodeRun) -> bool {
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
