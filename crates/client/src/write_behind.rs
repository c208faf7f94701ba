//! Write-behind: the way of written data from the page pool into its file.
//!
//! 1. `dirty_inodes` lists what has to go; [`WriteBehind::write_due`] looks which of it is due.
//! 2. `freeze` turns dirty runs into batches. A little data becomes inline extents at once.
//! 3. `store` writes the segments that `plan` has drawn, and gives each batch its place.
//! 4. `publish` makes the extents part of the file, in the order of the batches and as many at a time
//!    as are ready, by the operations of `steps`. Blocks of a stream wait for a few of them if the owner is
//!    on another node. A batch whose pack was deleted meanwhile goes back to 3.
//!
//! [`WriteBehind`] joins these parts; each uses only those before it. Failed batches stay in memory
//! and are tried again.

mod dirty_inodes;
mod freeze;
mod job;
mod plan;
mod publish;
mod steps;
mod store;
mod turns;

pub(crate) use turns::Hurry;

use crate::inode::{Inner, InodeRef};
use crate::page_pool::PagePool;
use crate::patience::while_wanted;
use crate::session::Session;
use crate::settings::ClientSettings;
use dirty_inodes::DirtyInodes;
use freeze::{Freezer, Urgency};
use futures::channel::mpsc;
use futures::future::join;
use futures::stream::{self, Stream, StreamExt};
use job::Job;
use model::{Error, ErrorKind, InodeId, Result, limits};
use pool::Pool;
use publish::{Publisher, Waiting, When};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use store::Store;
use tokio::sync::futures::Notified;
use turns::Turns;
use world::{Instant, Planted, Work, errand};

/// Most tasks that publish ready batches: a slow publish must delay neither the next look nor
/// batches that become ready meanwhile.
const PUBLISHING_MAX: usize = 8;

/// Files that one task publishes concurrently, so that a waiting one delays few others.
const PUBLISHES_AT_ONCE: usize = 32;

/// Brings dirty data to the NSDs and into its files.
pub(crate) struct WriteBehind {
    session: Arc<Session>,
    pages: Arc<PagePool>,
    dirty_inodes: Arc<DirtyInodes>,
    freezer: Freezer,
    turns: Arc<Turns>,
    store: Store,
    publisher: Publisher,
    /// Tasks publishing ready batches.
    publishing: AtomicUsize,
    age_max: Duration,
    idle_max: Duration,
}

/// Full blocks that a write has completed, frozen and to be stored.
pub(crate) struct FullBlocks(Vec<Job>);

impl WriteBehind {
    pub(crate) fn new(
        session: Arc<Session>,
        pages: Arc<PagePool>,
        pool: Arc<Pool>,
        settings: &ClientSettings,
    ) -> Arc<Self> {
        let dirty_inodes = Arc::new(DirtyInodes::new(pages.clone()));
        let turns = Turns::new(settings.segments_in_flight_max);
        Arc::new(Self {
            freezer: Freezer::new(session.clone(), pages.clone()),
            store: Store::new(
                session.clone(),
                pages.clone(),
                pool,
                dirty_inodes.clone(),
                turns.clone(),
            ),
            turns,
            publisher: Publisher::new(session.clone(), pages.clone(), dirty_inodes.clone()),
            session,
            pages,
            dirty_inodes,
            publishing: AtomicUsize::new(0),
            age_max: settings.dirty_age_max,
            idle_max: settings.dirty_idle_max,
        })
    }

    // For writers.

    /// Notes an inode that gets its first dirty bytes. May be called with the inode's lock held.
    pub(crate) fn note_dirty(&self, inode: InodeId) {
        self.dirty_inodes.note(inode);
    }

    /// Freezes the blocks that a write to `offset..end` has completed. Called with the inode's lock
    /// held; `send` them without it.
    pub(crate) fn full_blocks(
        &self,
        state: &InodeRef,
        inner: &mut Inner,
        range: (u64, u64),
    ) -> FullBlocks {
        FullBlocks(self.freezer.full_blocks(state, inner, range))
    }

    /// Starts writing frozen blocks, each by itself.
    pub(crate) fn send(self: &Arc<Self>, blocks: FullBlocks) {
        for job in blocks.0 {
            self.spawn_store(vec![job]);
        }
    }

    /// Memory runs short: write everything soon.
    pub(crate) fn press(&self) {
        self.dirty_inodes.press();
    }

    // For fsync, close, and operations that must not overtake unpublished data.

    /// Makes data and attributes of the inode, and its name if it is new, durable.
    pub(crate) async fn fsync(self: &Arc<Self>, inode: InodeId) -> Result<()> {
        self.session.check_open()?;
        if self.session.world().has_planted(Planted::SyncNothing) {
            return Ok(());
        }
        // First: what other programs make while this one's data is stored is theirs to sync.
        let newest = self.session.newest_streamed();
        self.publish_inode(inode).await?;
        self.session.sync_until(newest).await?;
        // Who has it open hears of all that is lost by that.
        self.pages.check_lost(inode)?;
        self.session.tell_lost_answers()
    }

    /// close(2) of one descriptor: reports an earlier write error once, publishes small files.
    pub(crate) async fn flush(self: &Arc<Self>, inode: InodeId) -> Result<()> {
        let Some(state) = self.pages.find_inode(inode) else {
            return Ok(());
        };
        let is_small = {
            let mut inner = state.lock();
            inner.check_lost()?;
            if inner.is_published() {
                return Ok(());
            }
            if let Some(error) = self.publisher.untold_failure(&inner).cloned() {
                inner.batches_mut().tell();
                return Err(error);
            }
            let small = u64::from(limits::INLINE_FILE_BYTES_MAX);
            inner.batches().is_empty() && inner.size().is_some_and(|size| size <= small)
        };
        if is_small {
            return self.publish(&state).await;
        }
        Ok(())
    }

    /// Why the inode's written data could not be stored so far, if no program has got the error
    /// yet.
    pub(crate) fn failure(&self, inode: InodeId) -> Option<Error> {
        let state = self.pages.find_inode(inode)?;
        let inner = state.lock();
        self.publisher.untold_failure(&inner).cloned()
    }

    /// As `publish`, for an inode that may have no state.
    pub(crate) async fn publish_inode(self: &Arc<Self>, inode: InodeId) -> Result<()> {
        match self.pages.find_inode(inode) {
            Some(state) => self.publish(&state).await,
            None => Ok(()),
        }
    }

    /// Publishes the data that is dirty now and waits until it and all earlier data is in the file.
    /// Ready at once if there is none, or little enough to be published inline. If the program that waits is killed, others go
    /// on with what it was publishing.
    pub(crate) async fn publish(self: &Arc<Self>, state: &InodeRef) -> Result<()> {
        let (target, lost, jobs) = {
            let mut inner = state.lock();
            if inner.is_published() {
                return Ok(());
            }
            let mut jobs = Job::again(state, &mut inner);
            jobs.extend(self.freezer.all(state, &mut inner, Urgency::Fsync));
            (inner.batches().last_number(), inner.lost_writes(), jobs)
        };
        self.spawn_store(jobs);
        let waiting = Waiting::of(state, target);
        // It would take an end of the program's patience for a failure of the file, of which others hear. It may be dropped.
        let publishing = pin!(errand::undisturbed(self.publish_ready(state, When::Now)));
        let published = while_wanted(self.session.world(), publishing).await;
        published.ok_or(ErrorKind::Interrupted)?;
        self.publisher.wait_published(state, target).await?;
        drop(waiting);
        // Lost isn't published.
        match state.lock().lost_writes() == lost {
            true => Ok(()),
            false => Err(ErrorKind::SessionEnded.into()),
        }
    }

    /// Others wait for what was written to a file: its data goes out before that of others.
    pub(crate) fn hurry(&self, inode: InodeId) -> Hurry {
        self.turns.hurry(inode)
    }

    /// Drops an inode's written data that others' changes must not be replaced by. What is being
    /// published now may still come first. True if there was any.
    pub(crate) fn lose(&self, state: &InodeRef) -> bool {
        let mut inner = state.lock();
        if inner.is_published() {
            return false;
        }
        inner.note_lost_writes();
        drop(inner);
        self.publisher.drop_batches(state);
        true
    }

    /// Publishes everything that is dirty now, packing small data together.
    pub(crate) async fn publish_all(self: &Arc<Self>) -> Result<()> {
        let mut result = Ok(());
        let listed = self.dirty_inodes.list().into_iter();
        let states: Vec<InodeRef> = listed
            .filter_map(|inode| self.pages.find_inode(inode))
            .collect();
        let jobs = states.iter().flat_map(|state| {
            let mut inner = state.lock();
            let mut jobs = Job::again(state, &mut inner);
            jobs.extend(self.freezer.all(state, &mut inner, Urgency::Background));
            jobs
        });
        self.spawn_store(jobs.collect());
        for state in &states {
            result = result.and(self.publish(state).await);
        }
        result
    }

    /// Waits until writes of removed files have ended too, for at most the patience.
    pub(crate) async fn drain(&self) {
        self.store.drain("segments of removed files").await;
    }

    // For the client's task.

    /// Waits until memory runs short.
    pub(crate) fn pressed(&self) -> Notified<'_> {
        self.dirty_inodes.pressed()
    }

    /// Starts writing data that is due: by age, when its file is idle, or because memory has run
    /// short. With `retry`, failed batches are tried again. Doesn't wait for any of it.
    pub(crate) fn write_due(self: &Arc<Self>, now: Instant, retry: bool) {
        let pressed = self.dirty_inodes.take_pressed();
        let mut jobs = Vec::new();
        let mut ready = Vec::new();
        for inode in self.dirty_inodes.list() {
            // Not `find_inode`: an inode outside the table could be added to it, written and noted as
            // dirty before its note is removed here.
            let state = self.pages.inode(inode);
            let mut inner = state.lock();
            if inner.is_published() {
                self.dirty_inodes.forget(inode);
                continue;
            }
            if retry {
                jobs.extend(Job::again(&state, &mut inner));
            }
            let rest = inner.last_write().map(|at| now - at);
            if pressed || rest.is_some_and(|rest| rest >= self.idle_max) {
                jobs.extend(self.freezer.all(&state, &mut inner, Urgency::Background));
            } else if self.is_old(&inner, now) {
                // Blocks at least half as old are written too, for fewer and larger batches.
                let time = now - self.age_max / 2;
                jobs.extend(self.freezer.older(&state, &mut inner, time));
            }
            // Ready are small inline batches, those whose publisher was dropped, and those that have waited for a next one.
            let front = inner.batches().iter().next();
            let is_ready = front.is_some_and(|batch| batch.ready().is_some());
            if is_ready && !inner.batches().is_publishing() {
                drop(inner);
                ready.push(state);
            }
        }
        self.spawn_store(jobs);
        self.spawn_publishes(ready);
    }

    /// Whether some data has been dirty for so long that it must be written, however busy its file
    /// is.
    fn is_old(&self, inner: &Inner, now: Instant) -> bool {
        let oldest = inner.dirty().oldest();
        oldest.is_some_and(|since| now - since >= self.age_max)
    }

    // Tasks.

    /// Stores jobs together in a separate task, and publishes each as soon as all its data is
    /// durable.
    fn spawn_store(self: &Arc<Self>, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let it = self.clone();
        self.session.spawn("write-behind", async move {
            // Publishing runs concurrently with the writes, never instead of them: a put that isn't
            // polled may be the one that the publish's commit waits for in an NSD's journal. At most
            // one message per job is queued.
            let (ready, stored) = mpsc::unbounded();
            let publishing = it.publish_each(stored, When::Gathered);
            join(it.store.store(jobs, ready), publishing).await;
        });
    }

    /// Publishes ready batches in a separate task.
    fn spawn_publishes(self: &Arc<Self>, ready: Vec<InodeRef>) {
        if ready.is_empty() || self.publishing.load(Ordering::Relaxed) >= PUBLISHING_MAX {
            return;
        }
        self.publishing.fetch_add(1, Ordering::Relaxed);
        let it = self.clone();
        self.session.spawn("publish ready batches", async move {
            it.publish_each(stream::iter(ready), When::Now).await;
            it.publishing.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Publishes the ready batches of each inode.
    async fn publish_each(self: &Arc<Self>, states: impl Stream<Item = InodeRef>, when: When) {
        let publishes = states.map(|state| self.publish_one(state, when));
        publishes
            .for_each_concurrent(PUBLISHES_AT_ONCE, |publish| publish)
            .await;
    }

    async fn publish_one(self: &Arc<Self>, state: InodeRef, when: When) {
        let work = Work::Store(Some(state.id()));
        let publishing = self.publish_ready(&state, when);
        let world = self.session.world();
        world.at_work("publishes data", work, publishing).await;
    }

    async fn publish_ready(self: &Arc<Self>, state: &InodeRef, when: When) {
        if let Some(job) = self.publisher.publish_ready(state, when).await {
            self.spawn_store(vec![job]);
        }
    }
}
