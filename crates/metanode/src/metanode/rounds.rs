//! Drives the background work in rounds while the metanode lives.

use crate::background::Pace;
use crate::metanode::Metanode;
use crate::report::{BackgroundReport, Counters};
use model::Result;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use world::{Task, World};

/// Pause after a round that found nothing to do.
const IDLE_PAUSE: Duration = Duration::from_secs(1);
/// Pause after a round that did something, so that operations go first.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// The tasks that do what nobody asks for.
#[derive(Default)]
pub(super) struct Rounds {
    task: Mutex<Option<Task<()>>>,
    /// Watches tokens.
    watch: Mutex<Option<Task<()>>>,
    stopping: AtomicBool,
}

impl Rounds {
    /// Prevents further rounds.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        drop(self.task.lock().take());
        drop(self.watch.lock().take());
    }

    /// The task that watches tokens ends with the rounds.
    pub(super) fn watch(&self, task: Task<()>) {
        *self.watch.lock() = Some(task);
    }
}

impl Metanode {
    /// Starts the background task: reclaim, dead segments, fold, clean, sweep, repair.
    pub fn start_background(self: &Arc<Self>) {
        let task = self.world.spawn(
            "background",
            rounds(self.world.clone(), Arc::downgrade(self)),
        );
        *self.rounds.task.lock() = Some(task);
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
        self.background.counters()
    }

    async fn round(&self, pace: Pace) -> Result<u64> {
        let round = self.background.begin_round().await;
        let released = self.end_grace_if_over().await;
        let rest = self.release_rest().await;
        let done = round.run(pace).await;
        Ok(released? + rest? + done?)
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
        if metanode.rounds.stopping.load(Ordering::SeqCst) {
            return;
        }
        let shard = metanode.shard();
        if shard.check_alive().is_err() {
            // There may be no requests to trigger the take-over: the shard must come back all the
            // same.
            let _ = metanode.host.take_over_again(&shard).await;
        }
        metanode.background.begin_naming();
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
