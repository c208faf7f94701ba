//! Commits: one log entry holds every record changed since the last commit, each once.
//!
//! One commit runs at a time. A task or thread that needs durability drives the commit itself until it is
//! durable, and leaves giving it to the tree to the committer task, which drives the others, too. Records of
//! a running commit stay readable in the hot records.

use crate::frame::{CommitFrame, OperationNote};
use crate::state::{Frozen, Rows, Running, Shard};
use bytes::Bytes;
use model::{CommitNumber, Result};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;
use world::Point;
use world::{Driven, Part, Work, World};

/// The causes by which waits for a commit are listed, and the commit.
const COMMIT_WAIT: &str = "the commit of the metadata";
const COMMIT: &str = "a commit of the metadata";

/// A commit starts once enough has changed ([`COMMIT_RECORDS`], [`COMMIT_BYTES`]), or nothing has
/// changed for this long, so that a user's last change is durable soon and the rest
/// of a burst isn't left for later,
const IDLE: Duration = Duration::from_millis(100);
/// or the first change is this old. Together with the age at which dirty data is published, this
/// keeps the promised five seconds.
const AGE_MAX: Duration = Duration::from_secs(2);
/// How often the committer checks idle time and age.
const TICK: Duration = Duration::from_millis(100);

/// The next log entry.
struct Batch {
    number: CommitNumber,
    rows: Arc<Rows>,
    notes: Vec<OperationNote>,
}

impl Shard {
    /// Makes everything answered so far durable. Runs on the calling task; concurrent calls share
    /// one commit. Continues in the background if the future is dropped.
    ///
    /// # Errors
    /// `Unavailable` if the shard was given up first.
    pub async fn sync(&self) -> Result<()> {
        self.sync_to(self.newest_change()).await
    }

    /// Waits until this commit and all earlier ones are durable, driving them as needed.
    ///
    /// # Errors
    /// `Unavailable` if the shard was given up first.
    pub async fn sync_to(&self, target: CommitNumber) -> Result<()> {
        let durable = pin!(self.until_durable(target));
        self.waits_for_commit(durable).await
    }

    /// Lists a wait for a commit of the shard.
    pub(crate) async fn waits_for_commit<T>(&self, wait: impl Future<Output = T>) -> T {
        let part = Part::ForWork(Work::Commit(self.shard));
        self.world.listed(COMMIT_WAIT, part, wait).await
    }

    async fn until_durable(&self, target: CommitNumber) -> Result<()> {
        while !self.is_durable(target)? {
            let running = self.running_commit();
            let mut outcome = pin!(running.wait());
            loop {
                let mut notified = pin!(self.durable_changed.notified());
                notified.as_mut().enable();
                if self.is_durable(target)? {
                    // The committer gives it to the tree; no caller waits for that.
                    self.nudge.notify_one();
                    return Ok(());
                }
                let ended = poll_fn(|context| {
                    // None of those who have waited for it gives it to the tree either.
                    if self.has_durable(target) {
                        return Poll::Ready(None);
                    }
                    if let Poll::Ready(outcome) = outcome.as_mut().poll(context) {
                        return Poll::Ready(Some(outcome));
                    }
                    notified.as_mut().poll(context).map(|()| None)
                });
                if let Some(outcome) = ended.await {
                    outcome?;
                    break;
                }
            }
        }
        Ok(())
    }

    fn is_durable(&self, target: CommitNumber) -> Result<bool> {
        let state = self.state.lock();
        match state.has_durable(target) {
            true => Ok(true),
            false => state.alive().map(|()| false),
        }
    }

    /// The running commit, or a new one with all pending changes.
    fn running_commit(&self) -> Running {
        let mut running = self.running.lock();
        if let Some(running) = running.as_ref() {
            return running.clone();
        }
        let shard = self
            .me
            .upgrade()
            .expect("a method runs on a shard that exists");
        let commit = Driven::new(async move { shard.commit().await });
        *running = Some(commit.clone());
        commit
    }

    /// Lets go of a commit that will never end: it holds the shard, and would keep it, with the
    /// tree's memory, for ever.
    pub(crate) fn drop_running(&self) {
        let running = self.running.lock().take();
        drop(running);
    }

    /// Freezes the open commit, appends it to the log, applies it to the tree.
    async fn commit(self: Arc<Self>) -> Result<()> {
        let outcome = self.commit_once().await;
        match &outcome {
            Ok(()) => self.give_snapshots(),
            Err(error) => self.give_up(error),
        }
        // Only now may the next one start: one at a time.
        *self.running.lock() = None;
        self.durable_changed.notify_waiters();
        outcome
    }

    async fn commit_once(&self) -> Result<()> {
        let Some(batch) = self.freeze()? else {
            return Ok(());
        };
        let number = batch.number;
        let frame = encode(batch);
        self.world.at(Point::CommitFrozen).await;
        // Whoever drives it, it is for all that wait for it.
        let work = Work::Commit(self.shard);
        let entry = self.log.append_commit(&frame);
        let entry = self.world.at_work(COMMIT, work, entry).await;
        let entry = entry
            .map_err(|error| error.while_doing(format!("appending commit {number} to the log")))?;
        self.world.at(Point::CommitAppended).await;
        let is_newest = {
            let mut state = self.state.lock();
            state.durable = number;
            state.newest_change() <= number
        };
        self.durable_changed.notify_waiters();
        // Otherwise somebody may be waiting for the next one, which begins when the tree has this one.
        if is_newest {
            let_waiting_go().await;
        }
        self.world.at(Point::CommitDurable).await;
        let applied = self.tree.apply(entry, &frame).await;
        applied
            .map_err(|error| error.while_doing(format!("giving commit {number} to the tree")))?;
        let mut state = self.state.lock();
        state.records.applied(number);
        state.frozen = None;
        Ok(())
    }

    fn freeze(&self) -> Result<Option<Batch>> {
        let mut state = self.state.lock();
        // Under the same lock: once the shard is given up, a later owner takes what isn't frozen.
        state.alive()?;
        if state.newest_change() <= state.durable {
            return Ok(None);
        }
        let bytes = state.records.changed().1;
        let (number, rows) = state.records.freeze();
        state.removals += rows.iter().filter(|(_, value)| value.is_none()).count() as u64;
        let rows = Arc::new(rows);
        let notes = std::mem::take(&mut state.notes);
        let numbers = state.numbers.freeze();
        state.nudged = false;
        state.frozen = Some(Frozen {
            number,
            rows: rows.clone(),
            operations: notes.len(),
            bytes,
            numbers,
        });
        Ok(Some(Batch {
            number,
            rows,
            notes,
        }))
    }

    /// Waits until there is memory for another change.
    pub(crate) async fn wait_for_room(&self) -> Result<()> {
        let target = {
            let state = self.state.lock();
            match &state.frozen {
                Some(frozen) if frozen.number > state.durable => frozen.number,
                _ => state.newest_change(),
            }
        };
        self.sync_to(target).await?;
        // A commit takes memory until it is in the tree.
        let running = self.running.lock().clone();
        if let Some(running) = running {
            running.wait().await?;
        }
        Ok(())
    }
}

/// Whoever drives a commit and waits only until it is durable goes on here, before the rest: giving rows to the tree takes a
/// while and wakes the tree's own tasks, on processors that an answer to another node needs. All others drive on at once.
async fn let_waiting_go() {
    let mut has_paused = false;
    let pause = poll_fn(|context| {
        if std::mem::replace(&mut has_paused, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    });
    pause.await;
}

/// Runs commits that no caller waits for. Ends with the shard.
pub(crate) async fn committer(world: World, shard: Weak<Shard>, nudge: Arc<tokio::sync::Notify>) {
    let mut abandoned = Abandoned(shard.clone());
    drive_commits(world, shard, nudge).await;
    abandoned.0 = Weak::new();
}

/// Lets go of the running commit if the committer's task is dropped: its process ends.
struct Abandoned(Weak<Shard>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        if let Some(shard) = self.0.upgrade() {
            shard.drop_running();
        }
    }
}

async fn drive_commits(world: World, shard: Weak<Shard>, nudge: Arc<tokio::sync::Notify>) {
    let mut watch = Watch {
        changes: 0,
        quiet_since: world.now(),
        dirty_since: None,
    };
    loop {
        let _ = world.timeout(TICK, nudge.notified()).await;
        let Some(shard) = shard.upgrade() else { return };
        if shard.check_alive().is_err() {
            return;
        }
        let running = shard.running.lock().clone();
        if let Some(running) = running {
            // Also finishes a commit whose last waiter left once it was durable.
            let _ = running.wait().await;
        }
        if let Some(error) = shard.tree.failed().or_else(|| shard.log.failed()) {
            shard.give_up(&error);
            return;
        }
        while watch.is_due(&world, &shard) {
            let _ = shard.running_commit().wait().await;
            if shard.check_alive().is_err() {
                return;
            }
        }
    }
}

/// The committer's state between ticks.
struct Watch {
    changes: u64,
    quiet_since: world::Instant,
    dirty_since: Option<world::Instant>,
}

impl Watch {
    fn is_due(&mut self, world: &World, shard: &Shard) -> bool {
        let now = world.now();
        let state = shard.state.lock();
        if state.newest_change() <= state.durable {
            self.dirty_since = None;
            return false;
        }
        if self.changes != state.changes {
            self.changes = state.changes;
            self.quiet_since = now;
        }
        let since = *self.dirty_since.get_or_insert(now);
        let due = state.wants_commit() || now - self.quiet_since >= IDLE || now - since >= AGE_MAX;
        if due {
            self.dirty_since = None;
        }
        due
    }
}

/// Encodes a commit; all keys and values share one allocation.
fn encode(batch: Batch) -> CommitFrame {
    let mut arena = Vec::with_capacity(batch.rows.len() * 160);
    let mut ends = Vec::with_capacity(batch.rows.len());
    for (key, value) in batch.rows.iter() {
        key.encode(&mut arena);
        let key_end = arena.len();
        if let Some(value) = value {
            value.encode(&mut arena);
        }
        ends.push((key_end, value.as_ref().map(|_| arena.len())));
    }
    let arena = Bytes::from(arena);
    let mut at = 0;
    let rows = ends.into_iter().map(|(key_end, value_end)| {
        let key = arena.slice(at..key_end);
        at = value_end.unwrap_or(key_end);
        (key, value_end.map(|end| arena.slice(key_end..end)))
    });
    CommitFrame {
        commit: batch.number,
        operations: batch.notes,
        rows: rows.collect(),
    }
}
