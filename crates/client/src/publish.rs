//! Publishing: dirty runs become batches, batches become extents, in the order of their numbers.
//! Also fsync and flush, which wait for that.

use crate::client::Client;
use crate::inode::{Batch, Inner, InodeRef, Pending, Stage, Stored};
use crate::pages::dirty::Frozen;
use crate::session::unexpected_answer;
use crate::store::Job;
use model::operation::Publish;
use model::owner::{OwnerReply, OwnerRequest};
use model::{
    Attributes, CommitNumber, Error, ErrorKind, Extent, ExtentKind, InodeId, Operation, Reply,
    Result, limits,
};
use std::collections::VecDeque;
use std::time::Duration;
use tracing::{info, warn};
use world::Instant;

/// Most pieces that one publish carries inline.
const INLINE_RUNS_MAX: usize = 64;

/// A batch has at most as many pieces as one publish carries, and about a block of bytes. Its
/// memory is free again once it is published, and writers wait for memory: thousands of small
/// writes in one batch would take seconds to publish before any of their memory is freed.
const BATCH_RUNS_MAX: usize = limits::PUBLISH_EXTENTS_MAX;
const BATCH_BYTES_MAX: usize = limits::BLOCK_BYTES_DEFAULT as usize;

/// Data in packs must be published this soon after it was stored; see [`Stored::at`].
const PACK_FRESH: Duration = Duration::from_secs(10);

/// Whether a program waits for a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Urgency {
    /// Yes: a little data goes inline, which saves a separate write now.
    Fsync,
    /// No: only small complete files go inline; the rest is packed and written once.
    Background,
}

/// Marks an inode as having a publish in flight; clears the mark even if the future is dropped.
struct Publishing<'a>(&'a InodeRef);

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        self.0.lock().publishing = false;
        self.0.changed.notify_waiters();
    }
}

impl Client {
    /// close(2) of one descriptor: reports an earlier write error once, publishes small files.
    /// Makes nothing durable.
    ///
    /// # Errors
    /// Why written data couldn't be stored so far. It is kept and tried again.
    pub async fn flush(&self, inode: InodeId) -> Result<()> {
        let Some(state) = self.inodes.find(inode) else {
            return Ok(());
        };
        let is_small = {
            let mut inner = state.lock();
            if inner.is_published() {
                return Ok(());
            }
            if let Some(error) = self.untold_failure(&inner).cloned() {
                mark_told(&mut inner);
                return Err(error);
            }
            let small = u64::from(limits::INLINE_FILE_BYTES_MAX);
            inner.flushing.is_empty() && inner.size().is_some_and(|size| size <= small)
        };
        if is_small {
            return self.publish_pending(&state).await;
        }
        Ok(())
    }

    /// Why the inode's written data could not be stored so far, if no program has got the error
    /// yet. For a close, which may ignore the error, so it counts as not reported.
    #[must_use]
    pub fn write_failure(&self, inode: InodeId) -> Option<Error> {
        let state = self.inodes.find(inode)?;
        self.untold_failure(&state.lock()).cloned()
    }

    /// The first failure not reported to a program yet. What may go well soon isn't one.
    fn untold_failure<'a>(&self, inner: &'a Inner) -> Option<&'a Error> {
        let untold = inner.flushing.iter().filter(|batch| !batch.told);
        let error = untold.filter_map(Batch::failure).next()?;
        (!self.is_pause_of(inner, error)).then_some(error)
    }

    /// Whether the inode's data, which couldn't be stored, may be stored soon.
    fn is_pause_of(&self, inner: &Inner, error: &Error) -> bool {
        let since = inner.failing_since.unwrap_or_else(|| self.session.now());
        self.session.is_pause(error, since)
    }

    /// Makes data and attributes of the inode, and its name if it is new, durable. Also for
    /// directories. `data_only` is fdatasync.
    ///
    /// # Errors
    /// Why data couldn't be stored (it is kept and tried again), or `Unavailable` if the
    /// metadata couldn't be made durable. While nodes are away it waits first, as long as the
    /// patience allows.
    pub async fn fsync(&self, inode: InodeId, data_only: bool) -> Result<()> {
        // Times are part of the publish, so leaving them out would save nothing.
        let _ = data_only;
        self.session.check_open()?;
        if let Some(state) = self.inodes.find(inode) {
            self.publish_pending(&state).await?;
        }
        self.session.sync().await
    }

    /// Publishes the data that is dirty now and waits until it and all earlier data is in the file.
    /// Ready at once if there is none, or little enough to be published inline.
    pub(crate) async fn publish_pending(&self, state: &InodeRef) -> Result<()> {
        let (target, jobs) = {
            let mut inner = state.lock();
            if inner.is_published() {
                return Ok(());
            }
            let mut jobs = self.retry_failed(state, &mut inner);
            jobs.extend(self.freeze_all(state, &mut inner, Urgency::Fsync));
            (inner.next_batch - 1, jobs)
        };
        if !jobs.is_empty() {
            self.spawn_store(jobs);
        }
        self.publish_ready(state).await;
        self.wait_published(state, target).await
    }

    async fn wait_published(&self, state: &InodeRef, target: u64) -> Result<()> {
        loop {
            let changed = {
                let mut inner = state.lock();
                if inner
                    .flushing
                    .front()
                    .is_none_or(|batch| batch.number > target)
                {
                    return Ok(());
                }
                let mut waited_for = inner.flushing.iter().take_while(|b| b.number <= target);
                if let Some(error) = waited_for.find_map(Batch::failure)
                    && !self.is_pause_of(&inner, error)
                {
                    let error = error.clone();
                    mark_told(&mut inner);
                    return Err(error);
                }
                state.changed.notified()
            };
            self.session
                .wait("written data to be stored", Some(state.id), changed)
                .await?;
        }
    }

    /// Takes all dirty data: a little becomes inline and ready to be published; otherwise returns
    /// jobs to store.
    pub(crate) fn freeze_all(
        &self,
        state: &InodeRef,
        inner: &mut Inner,
        urgency: Urgency,
    ) -> Vec<Job> {
        if inner.dirty.is_empty() {
            return Vec::new();
        }
        let inline_max = u64::from(match urgency {
            Urgency::Fsync => limits::INLINE_WRITE_BYTES_MAX,
            Urgency::Background
                if inner.size() <= Some(u64::from(limits::INLINE_FILE_BYTES_MAX)) =>
            {
                limits::INLINE_FILE_BYTES_MAX
            }
            Urgency::Background => 0,
        });
        let is_inline = inner.dirty.bytes() <= inline_max && inner.dirty.runs() <= INLINE_RUNS_MAX;
        let runs = inner.dirty.take_all();
        if !is_inline {
            return self.freeze_in_batches(state, inner, runs);
        }
        let job = self.freeze(state, inner, runs);
        let extents = job.runs.iter().map(inline_extent).collect();
        let batch = inner.flushing.back_mut().expect("a batch was just frozen");
        batch.stage = Stage::Written;
        batch.stored = Some(Stored {
            extents,
            at: self.session.now(),
            in_pack: false,
        });
        Vec::new()
    }

    /// As `freeze_all`, only data dirty since `time` or longer: a stream isn't cut in the middle of
    /// a block because other data of its file is old.
    pub(crate) fn freeze_older(
        &self,
        state: &InodeRef,
        inner: &mut Inner,
        time: Instant,
    ) -> Vec<Job> {
        let is_all = inner.dirty.newest().is_some_and(|newest| newest <= time);
        if is_all {
            return self.freeze_all(state, inner, Urgency::Background);
        }
        let runs = inner.dirty.take_older(time);
        self.freeze_in_batches(state, inner, runs)
    }

    /// Makes batches of runs just taken from the dirty ones, in their order, so that neighbours in
    /// the file are published together and are in one pack.
    fn freeze_in_batches(
        &self,
        state: &InodeRef,
        inner: &mut Inner,
        runs: Vec<Frozen>,
    ) -> Vec<Job> {
        let mut jobs = Vec::new();
        let mut batch = Vec::new();
        let mut bytes = 0;
        for run in runs {
            let is_full =
                batch.len() == BATCH_RUNS_MAX || bytes + run.bytes.len() > BATCH_BYTES_MAX;
            if is_full && !batch.is_empty() {
                let batch = std::mem::take(&mut batch);
                jobs.push(self.freeze_part(state, inner, batch, false));
                bytes = 0;
            }
            bytes += run.bytes.len();
            batch.push(run);
        }
        if !batch.is_empty() {
            jobs.push(self.freeze(state, inner, batch));
        }
        jobs
    }

    /// Makes a batch of runs just taken from the dirty ones.
    pub(crate) fn freeze(&self, state: &InodeRef, inner: &mut Inner, runs: Vec<Frozen>) -> Job {
        let is_last = inner.dirty.is_empty();
        self.freeze_part(state, inner, runs, is_last)
    }

    /// The last batch carries the full size; earlier ones only the end of their bytes.
    fn freeze_part(
        &self,
        state: &InodeRef,
        inner: &mut Inner,
        runs: Vec<Frozen>,
        is_last: bool,
    ) -> Job {
        let pending = inner
            .pending
            .expect("dirty bytes come with a pending change");
        let end = runs.iter().map(Frozen::end).max().unwrap_or(0);
        let size = if is_last { pending.size } else { end };
        let number = inner.next_batch;
        inner.next_batch += 1;
        let mark = self.session.mark();
        let bytes = runs.iter().map(|run| run.bytes.len() as u64).sum();
        self.pages.send_off(bytes);
        inner.flushing.push_back(Batch {
            number,
            bytes,
            runs: runs.clone(),
            pending: Pending { size, ..pending },
            stage: Stage::Writing,
            told: false,
            stored: None,
            mark: mark.clone(),
        });
        Job {
            state: state.clone(),
            number,
            runs,
            _mark: mark,
        }
    }

    /// Starts failed batches again.
    pub(crate) fn retry_failed(&self, state: &InodeRef, inner: &mut Inner) -> Vec<Job> {
        let mut jobs = Vec::new();
        for batch in &mut inner.flushing {
            if !matches!(batch.stage, Stage::Failed(_)) {
                continue;
            }
            if batch.stored.is_some() {
                batch.stage = Stage::Written;
            } else {
                batch.stage = Stage::Writing;
                jobs.push(job_of(state, batch));
            }
        }
        jobs
    }

    /// Publishes stored batches from the front, one after another. If another task is already
    /// publishing, it continues with ours.
    pub(crate) async fn publish_ready(&self, state: &InodeRef) {
        loop {
            let (number, steps) = {
                let mut inner = state.lock();
                if inner.publishing {
                    return;
                }
                let Some(front) = inner.flushing.front_mut() else {
                    return;
                };
                if !matches!(front.stage, Stage::Written) {
                    return;
                }
                let stored = front
                    .stored
                    .as_ref()
                    .expect("a written batch has its place");
                if stored.in_pack && self.session.now() - stored.at > PACK_FRESH {
                    let old = front.stored.take();
                    front.stage = Stage::Writing;
                    let job = job_of(state, front);
                    self.spawn_store(vec![job]);
                    self.give_up(old.map_or_else(Vec::new, |stored| stored.extents));
                    return;
                }
                let next = (front.number, publishes(state.id, front));
                inner.publishing = true;
                next
            };
            let mark = Publishing(state);
            let result = self.send_publishes(steps).await;
            let went_well = result.is_ok();
            match result {
                Ok(attributes) => self.note_published(state, number, &attributes),
                Err(error) if self.is_gone(state.id, &error).await => self.drop_batches(state),
                Err(error) => self.note_unpublished(state, number, error),
            }
            drop(mark);
            if !went_well {
                return;
            }
        }
    }

    async fn send_publishes(&self, steps: Vec<Publish>) -> Result<Attributes> {
        let mut last = None;
        let mut steps = VecDeque::from(steps);
        while let Some(step) = steps.pop_front() {
            // Not `execute`: data written before the client was closed is published even after.
            let request = self.session.request(Operation::Publish(step));
            match self.session.ask(&request).await {
                Ok(OwnerReply::Operation(Reply::Attributes { attributes, .. })) => {
                    last = Some(attributes);
                }
                Ok(other) => unexpected_answer(&other),
                Err(error) => {
                    let OwnerRequest::Execute {
                        operation: Operation::Publish(step),
                        ..
                    } = request
                    else {
                        unreachable!("made above")
                    };
                    // It would replace too many old extents at once.
                    let halves = (error.kind() == ErrorKind::Overflow)
                        .then(|| halved(&step))
                        .flatten();
                    let Some([first, second]) = halves else {
                        return Err(error);
                    };
                    steps.push_front(second);
                    steps.push_front(first);
                }
            }
        }
        Ok(last.expect("a batch has at least one step"))
    }

    fn note_published(&self, state: &InodeRef, number: u64, attributes: &Attributes) {
        let mut inner = state.lock();
        let batch = inner
            .flushing
            .pop_front()
            .expect("only the publisher removes batches");
        assert_eq!(batch.number, number, "batches are published in order");
        let stored = batch.stored.expect("a published batch was stored");
        for extent in &stored.extents {
            match extent.kind {
                // The bytes are cached, not the record: inline bytes in records have no budget
                // here.
                ExtentKind::Inline(_) => inner.extents.forget(extent.offset, extent.end()),
                _ => inner.extents.put(extent),
            }
        }
        inner.mapping += 1;
        if !inner.orphan || inner.opens > 0 {
            for run in batch.runs {
                self.pages.cache(
                    state.id,
                    &mut inner,
                    run.offset,
                    (run.bytes, run.memory),
                    false,
                );
            }
        }
        inner.learn(attributes);
        if inner.is_published() {
            inner.pending = None;
        }
        if !inner.flushing.iter().any(|batch| batch.failure().is_some()) {
            inner.failing_since = None;
        }
        self.pages.recount_failing(&mut inner);
        drop(inner);
        self.pages.arrive(batch.bytes, self.session.now());
    }

    /// Whether a publish failed because its file is gone (and not because a segment is).
    async fn is_gone(&self, inode: InodeId, error: &Error) -> bool {
        let is_gone =
            |error: &Error| matches!(error.kind(), ErrorKind::Stale | ErrorKind::NotFound);
        if !is_gone(error) {
            return false;
        }
        let operation = Operation::GetAttributes { inode };
        let found = self.session.execute_late(operation).await;
        found.is_err_and(|error| is_gone(&error))
    }

    /// Drops the written data of a file that is gone.
    fn drop_batches(&self, state: &InodeRef) {
        info!(inode = %state.id, "dropping written data of a file that is gone");
        let mut inner = state.lock();
        let batches = std::mem::take(&mut inner.flushing);
        let bytes: u64 = batches.iter().map(|batch| batch.bytes).sum();
        let dirty = inner.dirty.cut(0, u64::MAX);
        inner.pending = None;
        inner.failing_since = None;
        self.pages.recount_failing(&mut inner);
        drop(inner);
        self.pages.arrive(bytes, self.session.now());
        self.pages.release(dirty);
        let stored = batches.into_iter().filter_map(|batch| batch.stored);
        self.give_up(stored.flat_map(|stored| stored.extents).collect());
    }

    fn note_unpublished(&self, state: &InodeRef, number: u64, error: Error) {
        let mut inner = state.lock();
        let batch = inner
            .flushing
            .front_mut()
            .expect("only the publisher removes batches");
        assert_eq!(batch.number, number, "batches are published in order");
        if error.kind() == ErrorKind::Stale {
            // A pack was deleted with its other files: the bytes go into a new segment at once. Not
            // an error for any program.
            let old = batch.stored.take();
            batch.stage = Stage::Writing;
            let job = job_of(state, batch);
            drop(inner);
            self.spawn_store(vec![job]);
            self.give_up(old.map_or_else(Vec::new, |stored| stored.extents));
            return;
        }
        warn!(inode = %state.id, %error, "written data couldn't be published; it is kept and will \
                                          be retried");
        batch.stage = Stage::Failed(error);
        self.note_failing(state.id, &mut inner);
    }

    /// Storing or publishing data of the inode failed: it will be retried, and its dirty data
    /// counts as failing.
    pub(crate) fn note_failing(&self, inode: InodeId, inner: &mut Inner) {
        inner
            .failing_since
            .get_or_insert_with(|| self.session.now());
        self.pages.recount_failing(inner);
        self.flusher.note_dirty(inode);
        // Writers of other files need no longer wait for the memory that this one holds.
        self.pages.room.notify_waiters();
    }
}

fn job_of(state: &InodeRef, batch: &Batch) -> Job {
    let (number, runs, mark) = (batch.number, batch.runs.clone(), batch.mark.clone());
    Job {
        state: state.clone(),
        number,
        runs,
        _mark: mark,
    }
}

fn inline_extent(run: &Frozen) -> Extent {
    Extent {
        offset: run.offset,
        length: run.bytes.len() as u64,
        kind: ExtentKind::Inline(run.bytes.clone()),
        birth: CommitNumber(0),
    }
}

/// The operations that publish a batch.
fn publishes(inode: InodeId, batch: &Batch) -> Vec<Publish> {
    let stored = batch
        .stored
        .as_ref()
        .expect("a written batch has its place");
    let written = Some((batch.pending.written, batch.pending.generation));
    let steps = stored.extents.chunks(limits::PUBLISH_EXTENTS_MAX);
    let last = steps.len().saturating_sub(1);
    let publish = |(step, extents): (usize, &[Extent])| Publish {
        inode,
        extents: extents.to_vec(),
        size_at_least: match extents.last() {
            Some(extent) if step < last => extent.end(),
            _ => batch.pending.size,
        },
        written,
        replaces: None,
    };
    steps.enumerate().map(publish).collect()
}

/// Splits a publish in two: its extents, or the bytes of a single extent. `None` for a single byte,
/// which overlaps only one old extent: so every publish can be split until its parts replace few
/// enough.
fn halved(step: &Publish) -> Option<[Publish; 2]> {
    let (low, high) = match step.extents.as_slice() {
        [] => return None,
        [one] if one.length < 2 => return None,
        [one] => {
            let unit = u64::from(limits::UNIT_BYTES);
            let middle = one.offset + one.length / 2;
            let aligned = middle / unit * unit;
            let middle = if aligned > one.offset {
                aligned
            } else {
                middle
            };
            let part = |from, to| one.clip(from, to).into_iter().collect();
            (part(one.offset, middle), part(middle, one.end()))
        }
        several => {
            let (low, high) = several.split_at(several.len() / 2);
            (low.to_vec(), high.to_vec())
        }
    };
    let size = low.last().map(Extent::end)?;
    Some([
        Publish {
            extents: low,
            size_at_least: size,
            ..step.clone()
        },
        Publish {
            extents: high,
            ..step.clone()
        },
    ])
}

/// A program now knows that unpublished data wasn't stored.
fn mark_told(inner: &mut Inner) {
    for batch in &mut inner.flushing {
        batch.told = true;
    }
}
