//! Decides when dirty data is written: by age, when a file is idle, when memory runs short.

use crate::client::Client;
use crate::inode::{Inner, InodeRef, Stage};
use crate::publish::Urgency;
use crate::store::Job;
use futures::stream;
use model::{InodeId, Result};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use world::{Instant, Task};

/// How often dirty inodes are checked.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Pause before failed batches are tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Most tasks that publish ready batches: a slow publish must delay neither the next check nor
/// batches that become ready meanwhile.
const PUBLISHING_MAX: usize = 8;
/// How often access times are recorded.
const ATIMES_EVERY: Duration = Duration::from_secs(30);

/// The list of inodes with unpublished data, and the task that checks them.
#[derive(Default)]
pub(crate) struct Flusher {
    dirty: Mutex<BTreeSet<InodeId>>,
    wake: Notify,
    pressed: AtomicBool,
    /// Tasks publishing ready batches.
    publishing: AtomicUsize,
    task: Mutex<Option<Task<()>>>,
}

impl Flusher {
    pub(crate) fn start(client: &Arc<Client>) {
        let world = client.session.world();
        let task = world.spawn("flusher", run(Arc::downgrade(client), world.clone()));
        *client.flusher.task.lock() = Some(task);
    }

    pub(crate) async fn stop(&self) {
        let task = self.task.lock().take();
        if let Some(task) = task {
            task.stop().await;
        }
    }

    /// Notes an inode with unpublished data. May be called with the inode's lock held.
    pub(crate) fn note_dirty(&self, inode: InodeId) {
        self.dirty.lock().insert(inode);
    }

    /// Memory runs short: write everything soon.
    pub(crate) fn press(&self) {
        if !self.pressed.swap(true, Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    fn dirty(&self) -> Vec<InodeId> {
        self.dirty.lock().iter().copied().collect()
    }
}

async fn run(client: Weak<Client>, world: world::World) {
    let mut last_retry = world.now();
    let mut last_atimes = world.now();
    loop {
        {
            let Some(client) = client.upgrade() else {
                return;
            };
            let woken = client.flusher.wake.notified();
            // Either time has passed or memory runs short.
            let _ = world.timeout(LOOK_EVERY, woken).await;
        }
        let Some(client) = client.upgrade() else {
            return;
        };
        let now = world.now();
        let pressed = client.flusher.pressed.swap(false, Ordering::Relaxed);
        let retry = now - last_retry >= RETRY_AFTER;
        if retry {
            last_retry = now;
        }
        client.flush_due(now, pressed, retry);
        if retry {
            client.pages.tidy(&client.inodes);
        }
        if retry {
            client.session.report_low_water();
        }
        if now - last_atimes >= ATIMES_EVERY {
            last_atimes = now;
            client.spawn_record_atimes();
        }
    }
}

impl Client {
    /// Publishes everything that is dirty now, packing small data together.
    pub(crate) async fn publish_all(&self) -> Result<()> {
        let mut result = Ok(());
        let states: Vec<InodeRef> = self
            .flusher
            .dirty()
            .into_iter()
            .filter_map(|inode| self.inodes.find(inode))
            .collect();
        let jobs = states.iter().flat_map(|state| {
            let mut inner = state.lock();
            let mut jobs = self.retry_failed(state, &mut inner);
            jobs.extend(self.freeze_all(state, &mut inner, Urgency::Background));
            jobs
        });
        let jobs: Vec<Job> = jobs.collect();
        if !jobs.is_empty() {
            self.spawn_store(jobs);
        }
        for state in &states {
            result = result.and(self.publish_pending(state).await);
        }
        result
    }

    /// Starts writing data that is due; doesn't wait for it.
    fn flush_due(&self, now: Instant, pressed: bool, retry: bool) {
        let mut jobs = Vec::new();
        let mut ready = Vec::new();
        for inode in self.flusher.dirty() {
            // Not `find`: an inode outside the table could be added to it, written and noted as
            // dirty before its note is removed here.
            let state = self.inodes.get(inode);
            let mut inner = state.lock();
            if inner.is_published() {
                self.flusher.dirty.lock().remove(&inode);
                continue;
            }
            if retry {
                jobs.extend(self.retry_failed(&state, &mut inner));
            }
            let is_resting = inner
                .last_write
                .is_some_and(|at| now - at >= self.settings.dirty_idle_max);
            if pressed || is_resting {
                jobs.extend(self.freeze_all(&state, &mut inner, Urgency::Background));
            } else if self.is_old(&inner, now) {
                // Blocks at least half as old are written too, for fewer and larger batches.
                let time = now - self.settings.dirty_age_max / 2;
                jobs.extend(self.freeze_older(&state, &mut inner, time));
            }
            // Ready are small inline batches and those whose publisher was dropped.
            let front = inner.flushing.front();
            let is_ready = front.is_some_and(|batch| matches!(batch.stage, Stage::Written));
            if is_ready && !inner.publishing {
                drop(inner);
                ready.push(state);
            }
        }
        if !jobs.is_empty() {
            self.spawn_store(jobs);
        }
        self.spawn_publishes(ready);
    }

    /// Publishes ready batches in a separate task.
    fn spawn_publishes(&self, ready: Vec<InodeRef>) {
        let running = &self.flusher.publishing;
        if ready.is_empty() || running.load(Ordering::Relaxed) >= PUBLISHING_MAX {
            return;
        }
        running.fetch_add(1, Ordering::Relaxed);
        let client = self.shared();
        let work = async move {
            client.publish_each(stream::iter(ready)).await;
            client.flusher.publishing.fetch_sub(1, Ordering::Relaxed);
        };
        self.session.spawn("publish ready batches", work);
    }

    /// Whether some data has been dirty for so long that it must be written, however busy its file
    /// is.
    fn is_old(&self, inner: &Inner, now: Instant) -> bool {
        let oldest = inner.dirty.oldest();
        oldest.is_some_and(|since| now - since >= self.settings.dirty_age_max)
    }
}
