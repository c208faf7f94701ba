//! How long each step of an opening may take, and their sum (`docs/protocols/take-over.md`).
//!
//! They are for disks so slow that a step needs most of its budget: a healthy take-over needs a small
//! part of a second. A step that exceeds its budget ends the attempt.

use crate::touch::HEARD_MAX;
use futures::FutureExt;
use model::{Error, ErrorKind, Result};
use std::time::Duration;
use world::World;

/// The running commit of a shard that this process gave up: as long as the log allows its only NSD.
/// What isn't durable by then is applied again by the next owner here.
pub(crate) const LAST_COMMIT_BUDGET: Duration = Duration::from_secs(60);
/// The tree of that shard: a merge stops, memory is flushed. The rest is replayed.
pub(crate) const LET_GO_BUDGET: Duration = Duration::from_secs(60);
/// A few requests to coordination, each of which ends sooner.
pub(super) const RAISE_BUDGET: Duration = Duration::from_secs(10);
/// For the first answer, which may take as long as the log allows its only NSD ...
pub(super) const SEAL_BUDGET: Duration = Duration::from_secs(60);
/// ... and for the others after it. A later one is left out of the view.
pub(super) const SEAL_GRACE: Duration = Duration::from_millis(250);
/// Up to 96 MiB that aren't in tables, over a slow link or around an NSD that doesn't answer.
pub(super) const READ_BUDGET: Duration = Duration::from_secs(180);
/// For all members, at the same time ...
pub(super) const COPY_BUDGET: Duration = Duration::from_secs(30);
/// ... and then for replacements, one after the other.
pub(super) const JOIN_BUDGET: Duration = Duration::from_secs(30);
/// A heartbeat, and its answer, if the log is on this node's NSDs alone from now on.
pub(super) const HEARD_BUDGET: Duration = HEARD_MAX;
/// One change in coordination.
pub(super) const RECORD_BUDGET: Duration = Duration::from_secs(10);
/// One request to each member, all at once.
pub(super) const DISCARD_BUDGET: Duration = Duration::from_secs(30);
/// Replay, and opening the tree.
pub(super) const OPEN_BUDGET: Duration = Duration::from_secs(180);
/// What the owner must know before it serves: sessions, inodes without names. Where the shard is
/// opened again after it was given up, this is tried until the budget ends: each take-over makes the
/// log and its record longer, and while tables can't be read, nothing shortens them.
pub(crate) const LEARN_BUDGET: Duration = Duration::from_secs(300);

/// Longest time to become the owner of a log and a tree.
pub(super) const TAKE_MAX: Duration = sum(&[
    RAISE_BUDGET,
    SEAL_BUDGET,
    SEAL_GRACE,
    READ_BUDGET,
    COPY_BUDGET,
    JOIN_BUDGET,
    HEARD_BUDGET,
    RECORD_BUDGET,
    DISCARD_BUDGET,
    OPEN_BUDGET,
]);
/// Longest time to end a shard that this process gave up.
pub(crate) const END_MAX: Duration = sum(&[LAST_COMMIT_BUDGET, LET_GO_BUDGET]);
/// Longest attempt to open a shard, with the end of the one that this process had before.
pub const OPEN_MAX: Duration = sum(&[END_MAX, TAKE_MAX, LEARN_BUDGET]);

/// One step of a take-over with its budget.
///
/// # Errors
/// The step's, with its name; `Unavailable` if it took longer.
pub fn within<T>(
    world: &World,
    budget: Duration,
    step: &str,
    work: impl Future<Output = Result<T>>,
) -> impl Future<Output = Result<T>> {
    let late = move |_| Err(too_late(budget));
    let work = world.timeout(budget, work);
    work.map(move |result| {
        let result = result.unwrap_or_else(late);
        result.map_err(|error| error.while_doing(step))
    })
}

/// The error of a step that exceeded its budget.
pub(crate) fn too_late(budget: Duration) -> Error {
    let text = format!("it took longer than {} s", budget.as_secs());
    Error::new(ErrorKind::Unavailable, text)
}

const fn sum(budgets: &[Duration]) -> Duration {
    let mut sum = Duration::ZERO;
    let mut at = 0;
    while at < budgets.len() {
        sum = sum.saturating_add(budgets[at]);
        at += 1;
    }
    sum
}
