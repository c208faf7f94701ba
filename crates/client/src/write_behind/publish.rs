//! Publishing: the extents of stored batches become part of their file, in the order of the batches'
//! numbers.
//!
//! *Together*: all batches that are ready go with one operation, if they can (`inode/together.rs`). It is one as any other:
//! what it publishes was durable before it is sent, it is applied as a whole or not at all, and all its batches end with
//! its answer, under one lock. What is held is noted once, before it is sent: its answer shows all of them.
//!
//! *A refusal* of several is nobody's yet. Each of them is then published by itself, so that only the one that can't be
//! fails, is stored once more (`Stale`) or goes in parts (`Overflow`), and programs hear of it that wait for that one or a
//! later one. Parts of several would not be what was written first: they are cut by places.
//!
//! *An owner that doesn't answer* refuses nothing. The front batch fails at once, because who waits for it has waited for
//! as long as programs do. Also then each is tried again by itself, once it is known what became of the request for all of
//! them (`owner/undecided.rs`): one whose records can't be had isn't answered either.

use super::dirty_inodes::DirtyInodes;
use super::job::Job;
use super::plan::alone;
use super::steps::{halved, publishes};
use crate::inode::{Batch, HeldState, Inner, InodeRef};
use crate::page_pool::PagePool;
use crate::session::{Session, unexpected_answer};
use model::operation::{Publish, Ranked};
use model::owner::{OwnerReply, OwnerRequest};
use model::{Attributes, Error, ErrorKind, InodeId, Operation, Reply, Result, SessionId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, info, warn};
use world::{Point, Work};

/// Data in packs must be published this soon after it was stored; see `Stored::at`.
const PACK_FRESH: Duration = Duration::from_secs(10);

/// Publishes batches, and says to programs what failed.
pub(super) struct Publisher {
    session: Arc<Session>,
    pages: Arc<PagePool>,
    dirty_inodes: Arc<DirtyInodes>,
}

/// When batches that are ready are published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum When {
    /// At once.
    Now,
    /// Together with the next ones of their stream, if the owner is on another node (`inode/together.rs`).
    Gathered,
}

/// Somebody waits until an inode's batches up to a number are published, for as long as this lives.
pub(super) struct Waiting<'a> {
    state: &'a InodeRef,
    target: u64,
}

impl<'a> Waiting<'a> {
    /// Begins to wait. Called, and dropped, without the inode's lock.
    pub(super) fn of(state: &'a InodeRef, target: u64) -> Self {
        state.lock().batches_mut().add_waiter(target);
        Self { state, target }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.state.lock().batches_mut().remove_waiter(self.target);
    }
}

/// The batches that are published next.
struct Next {
    /// Their numbers; all in between are among them.
    first: u64,
    last: u64,
    /// The session that has stored them.
    session: SessionId,
    steps: VecDeque<Publish>,
    /// What is held before the owner is asked.
    asked: HeldState,
}

impl Next {
    /// Of an inode whose front batch is ready.
    fn of(inode: InodeId, inner: &Inner) -> Self {
        let batches = inner.batches().together();
        let (first, last) = batches.first().zip(batches.last()).expect("one is ready");
        Self {
            first: first.number(),
            last: last.number(),
            session: first.mark().session(),
            steps: publishes(inode, &batches).into(),
            asked: inner.held_state(),
        }
    }

    fn is_of_several(&self) -> bool {
        self.first < self.last
    }
}

/// Marks an inode as having a publish in flight; clears the mark even if the future is dropped.
struct Publishing<'a>(&'a InodeRef);

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        self.0.lock().batches_mut().set_publishing(false);
        self.0.signal();
    }
}

impl Publisher {
    pub(super) fn new(
        session: Arc<Session>,
        pages: Arc<PagePool>,
        dirty_inodes: Arc<DirtyInodes>,
    ) -> Self {
        Self {
            session,
            pages,
            dirty_inodes,
        }
    }

    /// Publishes stored batches from the front, as many at a time as are ready. If another task is
    /// already publishing, it continues with ours. Returns the front batch if it must be stored once
    /// more. Those that become ready meanwhile are gathered, whenever the first ones are published.
    #[must_use = "the batch is stored by nobody else"]
    pub(super) async fn publish_ready(&self, state: &InodeRef, mut when: When) -> Option<Job> {
        loop {
            let gathers = when == When::Gathered && !self.session.owner().is_near();
            when = When::Gathered;
            let mut next = {
                let mut inner = state.lock();
                if inner.batches().is_publishing() {
                    return None;
                }
                if gathers && inner.batches().may_gather() {
                    // Whoever stores the next one looks again, or the client's task.
                    return None;
                }
                let front = inner.batches_mut().first()?;
                let stored = front.ready()?;
                if stored.in_pack && self.session.now() - stored.at > PACK_FRESH {
                    let old = front.displace();
                    self.session.give_up(alone(old));
                    return Some(Job::of(state, front));
                }
                inner.batches_mut().set_publishing(true);
                Next::of(state.id(), &inner)
            };
            let _mark = Publishing(state);
            let sent = self.send(&mut next).await;
            self.session.world().at(Point::BytesPublished).await;
            match sent {
                Ok(attributes) => {
                    self.note_published(state, next.last, &attributes, next.asked);
                }
                Err(error) if self.is_gone(state.id(), &error).await => {
                    self.drop_batches(state);
                    return None;
                }
                Err(error) if next.is_of_several() => {
                    debug!(inode = %state.id(), %error, "several batches couldn't be published together");
                    state.lock().batches_mut().set_apart(next.last);
                    if is_silence(&error) {
                        return self.note_unpublished(state, next.first, error);
                    }
                }
                Err(error) => return self.note_unpublished(state, next.first, error),
            }
        }
    }

    /// All steps are the session's that has stored the data: after its end they are refused.
    async fn send(&self, next: &mut Next) -> Result<Attributes> {
        let mut last = None;
        while let Some(step) = next.steps.pop_front() {
            // Not `execute`: data written before the client was closed is published even after.
            let request = self.session.request(Operation::Publish(step), next.session);
            match self.session.ask(&request).await {
                Ok(OwnerReply::Operation(Ranked {
                    reply: Reply::Attributes { attributes, .. },
                    ..
                })) => {
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
                    let is_too_much = error.kind() == ErrorKind::Overflow && !next.is_of_several();
                    let halves = is_too_much.then(|| halved(&step)).flatten();
                    let Some([first, second]) = halves else {
                        return Err(error);
                    };
                    next.steps.push_front(second);
                    next.steps.push_front(first);
                }
            }
        }
        Ok(last.expect("a batch has at least one step"))
    }

    fn note_published(
        &self,
        state: &InodeRef,
        last: u64,
        attributes: &Attributes,
        asked: HeldState,
    ) {
        let mut inner = state.lock();
        self.pages.note_published(state.id());
        let batches = inner.batches_mut().published(last);
        if batches.is_empty() {
            return;
        }
        let bytes: u64 = batches.iter().map(Batch::bytes).sum();
        for batch in batches {
            let (runs, stored) = batch.into_parts();
            let stored = stored.expect("a published batch was stored");
            inner.note_published(&stored.extents);
            if !inner.is_orphan() || inner.is_open() {
                for run in runs {
                    let piece = (run.bytes, run.memory);
                    self.pages
                        .cache(state.id(), &mut inner, run.offset, piece, false);
                }
            }
        }
        inner.learn(attributes, asked);
        inner.settle();
        self.pages.recount_failing(&mut inner);
        drop(inner);
        self.pages.arrive(bytes, self.session.now());
    }

    /// Whether a publish failed because its file is gone (and not because a segment is).
    async fn is_gone(&self, inode: InodeId, error: &Error) -> bool {
        let is_gone =
            |error: &Error| matches!(error.kind(), ErrorKind::Stale | ErrorKind::NotFound);
        if !is_gone(error) {
            return false;
        }
        // Not the attributes: the owner would wait for others that write, and one of them may wait for
        // what this client gives back once its data is published.
        let operation = Operation::ReadExtents {
            inode,
            offset: 0,
            length: 1,
            limit: 1,
        };
        let found = self.session.execute_late(operation).await;
        found.is_err_and(|error| is_gone(&error))
    }

    /// Drops the written data of a file that is gone, or whose tokens are.
    pub(super) fn drop_batches(&self, state: &InodeRef) {
        info!(inode = %state.id(), "dropping written data of a file that is gone");
        let mut inner = state.lock();
        let batches = inner.batches_mut().take_all();
        let bytes: u64 = batches.iter().map(|batch| batch.bytes()).sum();
        let dirty = inner.cut_dirty(0);
        // Who writes next asks the owner, and hears that it is gone.
        inner.void_known();
        inner.settle();
        self.pages.recount_failing(&mut inner);
        drop(inner);
        self.pages.arrive(bytes, self.session.now());
        self.pages.release(dirty);
        let stored = batches
            .into_iter()
            .filter_map(|batch| batch.into_parts().1)
            .flat_map(|stored| stored.extents);
        self.session.give_up(alone(stored));
    }

    /// The front batch couldn't be published. Returns it if it must be stored once more.
    fn note_unpublished(&self, state: &InodeRef, number: u64, error: Error) -> Option<Job> {
        let mut inner = state.lock();
        let front = inner.batches_mut().first();
        let batch = front.filter(|batch| batch.number() == number)?;
        if error.kind() == ErrorKind::Stale {
            // A pack was deleted with its other files: the bytes go into a new segment at once. Not
            // an error for any program.
            let old = batch.displace();
            let job = Job::of(state, batch);
            drop(inner);
            self.session.give_up(alone(old));
            return Some(job);
        }
        warn!(inode = %state.id(), %error, "written data couldn't be published; it is kept and will \
                                            be retried");
        batch.fail(error);
        let now = self.session.now();
        self.dirty_inodes.note_failing(state.id(), &mut inner, now);
        None
    }

    // What programs hear.

    /// Waits until the batches up to number `target` are published, or one of them has failed for
    /// long.
    pub(super) async fn wait_published(&self, state: &InodeRef, target: u64) -> Result<()> {
        loop {
            let changed = {
                let mut inner = state.lock();
                let batches = inner.batches();
                if batches.is_through(target) {
                    return Ok(());
                }
                if let Some(error) = batches.failure_up_to(target)
                    && !self.is_pause(&inner, error)
                {
                    let error = error.clone();
                    inner.batches_mut().tell();
                    return Err(error);
                }
                state.changed()
            };
            let (cause, inode) = ("written data to be stored", state.id());
            let storing = Work::Store(Some(inode));
            self.session
                .wait_for_work(cause, inode, storing, changed)
                .await?;
        }
    }

    /// The first failure not reported to a program yet. What may go well soon isn't one.
    pub(super) fn untold_failure<'a>(&self, inner: &'a Inner) -> Option<&'a Error> {
        let error = inner.batches().untold_failure()?;
        (!self.is_pause(inner, error)).then_some(error)
    }

    /// Whether the inode's data, which couldn't be stored, may be stored soon.
    fn is_pause(&self, inner: &Inner, error: &Error) -> bool {
        let since = inner.batches().failing_since();
        let since = since.unwrap_or_else(|| self.session.now());
        self.session.is_pause(error, since)
    }
}

/// Whether an error says that the owner wasn't heard, and nothing of what it was asked.
fn is_silence(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unavailable
            | ErrorKind::Unknown
            | ErrorKind::SessionEnded
            | ErrorKind::ShuttingDown
    )
}
