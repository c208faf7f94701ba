//! Background work left by operations, in bounded, resumable rounds: queued data ids, dead
//! segments, inline extents, mostly dead segments, garbage, lost pieces.
//!
//! No state survives the process: every kind of work finds its tasks in the records and
//! inventories, so a crash at any point only repeats a step.

mod backlog;
mod blocks;
mod clean;
mod dead;
mod fold;
mod free;
mod live;
mod reclaim;
mod repair;
mod rewrite;
mod scrub;
mod sparse;
mod strangers;
mod survey;
mod tree;
mod unreadable;

use crate::metanode::Metanode;
use crate::report::{BackgroundReport, Counters, RepairStatus};
use model::Result;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use world::{Instant, Task, World};

pub(crate) use rewrite::Unpublished;
pub(crate) use survey::{Judge, Standing, is_undecodable, recorded};
pub(crate) use unreadable::Repaired;

/// Pause after a round that found nothing to do.
const IDLE_PAUSE: Duration = Duration::from_secs(1);
/// Pause after a round that did something, so that operations go first.
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// How long blobs of a dead segment are kept for reads that began before it died.
const GRACE: Duration = Duration::from_secs(2);
/// A full survey of the NSDs is made this often, and at once after they change.
const SURVEY_EVERY: Duration = Duration::from_secs(300);
/// Groups with moving slots are surveyed this often until the slots have moved.
const MOVING_EVERY: Duration = Duration::from_secs(5);
/// How long inline extents wait to be folded together with others.
const FOLD_EVERY: Duration = Duration::from_secs(5);
/// How often segments are searched for mostly dead ones.
const CLEAN_EVERY: Duration = Duration::from_secs(30);

/// How a round is paced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// Everything now, without grace for readers: a caller waits for the end.
    Drain,
    /// Only work that is due.
    Gentle,
}

/// State of the background work.
#[derive(Default)]
pub(crate) struct Background {
    /// Held by a round: one at a time.
    pub(crate) round: tokio::sync::Mutex<()>,
    /// Held by one step of freeing at a time, briefly, never for a whole round: writers wait for
    /// it.
    freeing: tokio::sync::Mutex<()>,
    /// Steps that freed something.
    frees: AtomicU64,
    /// Bytes in use that nothing points at, as of the last round.
    unfreed: AtomicU64,
    task: Mutex<Option<Task<()>>>,
    stopping: AtomicBool,
    wake: Notify,
    pub(crate) counts: Counts,
    pub(crate) memory: Mutex<Memory>,
    pub(crate) repair: Mutex<RepairStatus>,
    unreadable: Mutex<unreadable::Unreadable>,
}

/// Statistics, read only by people and tests.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) reclaim_steps: AtomicU64,
    pub(crate) segments_deleted: AtomicU64,
    pub(crate) extents_folded: AtomicU64,
    pub(crate) segments_cleaned: AtomicU64,
    pub(crate) publishes_void: AtomicU64,
    pub(crate) garbage_deleted: AtomicU64,
    pub(crate) segments_given_up: AtomicU64,
}

/// State kept between rounds; losing it only costs time.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) backlog: backlog::Backlog,
    pub(crate) sparse: sparse::Sparse,
    pub(crate) survey: survey::Progress,
    pub(crate) clean: clean::Progress,
    pub(crate) blocks: blocks::Progress,
    last_fold: Option<Instant>,
    pub(crate) tree: tree::Progress,
    /// When a commit was last made so that the log could leave an earlier view.
    pub(crate) log_pushed: Option<Instant>,
    /// When a drained NSD last failed to hand over its pieces.
    pub(crate) hand_over_failed: Option<Instant>,
}

impl Background {
    /// Prevents further rounds.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake.notify_waiters();
        drop(self.task.lock().take());
        self.unreadable.lock().end_naming();
    }
}

pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Metanode {
    /// Starts the background task: reclaim, dead segments, fold, clean, sweep, repair.
    pub fn start_background(self: &Arc<Self>) {
        let task = self.world.spawn(
            "background",
            rounds(self.world.clone(), Arc::downgrade(self)),
        );
        *self.background.task.lock() = Some(task);
    }

    /// One round of all background work, for tests and for a drained shutdown. Call until `steps`
    /// is 0. Gives readers no grace for dying segments: nothing else should be reading.
    ///
    /// # Errors
    /// The first error that stopped a kind of work; the other kinds were done.
    pub async fn run_background_once(&self) -> Result<BackgroundReport> {
        let steps = self.round(Pace::Drain).await?;
        Ok(BackgroundReport {
            steps,
            counters: self.counters(),
        })
    }

    /// Totals of background work since start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.background.counts;
        Counters {
            reclaim_steps: read(&counts.reclaim_steps),
            segments_deleted: read(&counts.segments_deleted),
            extents_folded: read(&counts.extents_folded),
            segments_cleaned: read(&counts.segments_cleaned),
            publishes_void: read(&counts.publishes_void),
            garbage_deleted: read(&counts.garbage_deleted),
            segments_given_up: read(&counts.segments_given_up),
            pieces_rebuilt: self.pool.repair_progress().rebuilt_pieces,
            takeovers: self.takeovers.load(Ordering::Relaxed),
        }
    }

    async fn round(&self, pace: Pace) -> Result<u64> {
        let _round = self.background.round.lock().await;
        self.measure_room();
        let mut steps = 0;
        let mut result = Ok(());
        let mut add = |done: Result<u64>| match done {
            Ok(done) => steps += done,
            Err(error) => {
                if result.is_ok() {
                    result = Err(error);
                }
            }
        };
        add(self.end_grace_if_over().await);
        add(self.free_some(pace).await);
        add(self.fold_if_due(pace).await);
        add(self.clean_segments(pace).await);
        add(self.join_blocks(pace).await);
        add(self.free_some(pace).await);
        add(self.note_unfreed().await);
        add(self.repair_suspects().await);
        add(self.survey_some(pace).await);
        add(self.revisit_unreadable(pace).await);
        add(self.finish_leaving().await);
        if pace == Pace::Gentle {
            add(self.tidy_tree().await);
        } else {
            add(self.name_unreadable().await.map(|()| 0));
        }
        result.map(|()| steps)
    }

    async fn fold_if_due(&self, pace: Pace) -> Result<u64> {
        let now = self.world.now();
        {
            let mut memory = self.background.memory.lock();
            let is_due = memory.last_fold.is_none_or(|last| now - last >= FOLD_EVERY);
            if pace == Pace::Gentle && !is_due {
                return Ok(0);
            }
            memory.last_fold = Some(now);
        }
        self.fold_some().await
    }
}

/// Runs rounds until the metanode ends.
async fn rounds(world: World, metanode: Weak<Metanode>) {
    let mut pause = BUSY_PAUSE;
    loop {
        world.sleep(pause).await;
        let Some(metanode) = metanode.upgrade() else {
            return;
        };
        if metanode.background.stopping.load(Ordering::SeqCst) {
            return;
        }
        let shard = metanode.shard();
        if shard.check_alive().is_err() {
            // There may be no requests to trigger the take-over: the shard must come back all the
            // same.
            let _ = metanode.take_over_again(&shard).await;
        }
        metanode.begin_naming();
        pause = match metanode.round(Pace::Gentle).await {
            Ok(0) => IDLE_PAUSE,
            Ok(_) => BUSY_PAUSE,
            Err(error) => {
                tracing::warn!(%error, "background work was stopped; it will be retried");
                IDLE_PAUSE
            }
        };
    }
}
