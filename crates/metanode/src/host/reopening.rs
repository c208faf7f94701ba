//! Takes a given-up shard over again while its clients wait, if its record still names this process:
//! an owner that meets a newer one drops the shard.
//!
//! One of the waiting callers begins each step, in a task of its own. If it stops waiting, the step goes on, and the
//! next caller waits for it: on slow disks a step takes longer than callers wait, and others wait for the disks and
//! records that it uses.

use crate::host::{Host, TAKE_OVER};
use model::{Error, ErrorKind, Result};
use shard::{Shard, Unflushed};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use world::{Instant, Part, Task, Work};

/// Longest wait of an operation for a shard that is being taken over.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The cause by which such a wait is listed.
const TAKE_OVER_WAIT: &str = "the take-over of the shard";
/// What the first part of a take-over is called, if this process had the shard before.
const ENDING: &str = "the end of the owner before a take-over";
/// For this long after the shard's record named another process, the record isn't read again.
const ELSEWHERE_PAUSE: Duration = Duration::from_secs(1);
/// First and longest pause between attempts.
const BACK_OFF_MIN: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// Progress of taking a shard over again.
#[derive(Default)]
pub(super) enum Reopening {
    /// No shard was given up, or the work hasn't begun.
    #[default]
    Idle,
    /// The given-up shard is ending.
    Ending(Task<Unflushed>),
    /// It has ended, with these changes not durable.
    Ended(Unflushed),
    /// It is being opened.
    Opening(Task<(Result<Arc<Shard>>, Unflushed)>),
    /// At this time the shard's record named another process. This one serves it again only after
    /// the record names it again.
    Elsewhere(Instant, Error, Unflushed),
    /// Another owner began meanwhile. This metanode never serves the shard again: what it has in
    /// memory (opens, locks, answers that aren't durable) is void.
    Superseded(Error),
}

impl Host {
    /// Returns once another owner has followed this one, which then refuses everything for good. The
    /// process may open the shard anew.
    pub(crate) async fn superseded(&self) {
        let mut watch = self.is_superseded.subscribe();
        // The sender is a part of this.
        let _ = watch.wait_for(|is_superseded| *is_superseded).await;
    }

    /// Takes a given-up shard over again, with growing pauses between attempts. Clients see a
    /// pause. Concurrent callers wait for the one that does it.
    ///
    /// # Errors
    /// `OldEpoch` if the shard is assigned to another process, or another owner served it since:
    /// nothing was done. `Unavailable` after a minute; the next caller continues. `ShuttingDown` after close.
    pub(crate) async fn take_over_again(&self, given_up: &Arc<Shard>) -> Result<()> {
        let part = Part::ForWork(Work::TakeOver(given_up.id()));
        let reopened = self.world().timeout(PAUSE_MAX, self.reopen(given_up));
        self.world()
            .listed(TAKE_OVER_WAIT, part, reopened)
            .await
            .unwrap_or_else(|_| {
                let text = format!(
                    "shard {} couldn't be taken over again for {PAUSE_MAX:?}",
                    given_up.id()
                );
                Err(Error::new(ErrorKind::Unavailable, text))
            })
    }

    /// May be dropped at any time: the work begun stays in `reopening`.
    async fn reopen(&self, given_up: &Arc<Shard>) -> Result<()> {
        let work = Work::TakeOver(given_up.id());
        let mut reopening = self.reopening.lock().await;
        let mut pause = BACK_OFF_MIN;
        loop {
            if self.closes() {
                return Err(ErrorKind::ShuttingDown.into());
            }
            if !Arc::ptr_eq(&self.shard(), given_up) {
                return Ok(());
            }
            match &mut *reopening {
                Reopening::Idle => {
                    let (shard, world) = (given_up.clone(), self.world().clone());
                    let ending = async move {
                        let ended = shard.end_given_up();
                        world.at_work(ENDING, work, ended).await
                    };
                    let ending = self.world().spawn("ends a given-up shard", ending);
                    *reopening = Reopening::Ending(ending);
                }
                Reopening::Ending(ending) => {
                    let unflushed = ending.await;
                    *reopening = Reopening::Ended(unflushed);
                }
                Reopening::Ended(_) => {
                    let Reopening::Ended(mut unflushed) = mem::take(&mut *reopening) else {
                        unreachable!("just seen");
                    };
                    let (opening, world) = (self.opening.clone(), self.world().clone());
                    let opening = async move {
                        let opened = Shard::open_after(opening, Some(&mut unflushed));
                        let opened = world.at_work(TAKE_OVER, work, opened).await;
                        (opened, unflushed)
                    };
                    let opening = self.world().spawn("takes a shard over again", opening);
                    *reopening = Reopening::Opening(opening);
                }
                Reopening::Elsewhere(at, error, _) => {
                    if self.world().now() - *at < ELSEWHERE_PAUSE {
                        return Err(error.clone());
                    }
                    let Reopening::Elsewhere(_, _, unflushed) = mem::take(&mut *reopening) else {
                        unreachable!("just seen");
                    };
                    *reopening = Reopening::Ended(unflushed);
                }
                Reopening::Superseded(error) => return Err(error.clone()),
                Reopening::Opening(opening) => match opening.await {
                    (Ok(shard), _) => {
                        shard.set_holders(self.holders.clone());
                        self.takeovers.fetch_add(1, Ordering::Relaxed);
                        tracing::info!(
                            shard = shard.id().0,
                            epoch = shard.epoch().0,
                            "shard taken over again"
                        );
                        self.shard.store(shard);
                        *reopening = Reopening::Idle;
                        return Ok(());
                    }
                    (Err(error), _) if error.kind() == ErrorKind::Superseded => {
                        tracing::info!(%error, "another owner has followed this one");
                        let error = Error::new(ErrorKind::OldEpoch, error.to_string());
                        *reopening = Reopening::Superseded(error.clone());
                        self.is_superseded.send_replace(true);
                        return Err(error);
                    }
                    (Err(error), unflushed) if error.kind() == ErrorKind::OldEpoch => {
                        tracing::debug!(%error, "the shard stays dropped");
                        *reopening =
                            Reopening::Elsewhere(self.world().now(), error.clone(), unflushed);
                        return Err(error);
                    }
                    (Err(error), unflushed) => {
                        *reopening = Reopening::Ended(unflushed);
                        tracing::warn!(%error, ?pause, "the shard can't be taken over yet");
                        self.world().sleep(pause).await;
                        pause = (pause * 2).min(BACK_OFF_MAX);
                    }
                },
            }
        }
    }
}
