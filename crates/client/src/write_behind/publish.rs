//! Publishing: the extents of stored batches become part of their file, in the order of the batches'
//! numbers.

use super::dirty_inodes::DirtyInodes;
use super::job::Job;
use super::plan::alone;
use super::steps::{halved, publishes};
use crate::inode::{HeldState, Inner, InodeRef};
use crate::page_pool::PagePool;
use crate::session::{Session, unexpected_answer};
use model::operation::{Publish, Ranked};
use model::owner::{OwnerReply, OwnerRequest};
use model::{Attributes, Error, ErrorKind, InodeId, Operation, Reply, Result, SessionId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tracing::{info, warn};
use world::{Point, Work};

/// Data in packs must be published this soon after it was stored; see `Stored::at`.
const PACK_FRESH: Duration = Duration::from_secs(10);

/// Publishes batches, and says to programs what failed.
pub(super) struct Publisher {
    session: Arc<Session>,
    pages: Arc<PagePool>,
    dirty_inodes: Arc<DirtyInodes>,
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

    /// Publishes stored batches from the front, one after another. If another task is already
    /// publishing, it continues with ours. Returns the front batch if it must be stored once more.
    #[must_use = "the batch is stored by nobody else"]
    pub(super) async fn publish_ready(&self, state: &InodeRef) -> Option<Job> {
        loop {
            let (number, session, steps, asked) = {
                let mut inner = state.lock();
                if inner.batches().is_publishing() {
                    return None;
                }
                let front = inner.batches_mut().first()?;
                let stored = front.ready()?;
                if stored.in_pack && self.session.now() - stored.at > PACK_FRESH {
                    let old = front.displace();
                    self.session.give_up(alone(old));
                    return Some(Job::of(state, front));
                }
                let (number, steps) = (front.number(), publishes(state.id(), front));
                let session = front.mark().session();
                inner.batches_mut().set_publishing(true);
                (number, session, steps, inner.held_state())
            };
            let _mark = Publishing(state);
            let sent = self.send(session, steps).await;
            self.session.world().at(Point::BytesPublished).await;
            match sent {
                Ok(attributes) => self.note_published(state, number, &attributes, asked),
                Err(error) if self.is_gone(state.id(), &error).await => {
                    self.drop_batches(state);
                    return None;
                }
                Err(error) => return self.note_unpublished(state, number, error),
            }
        }
    }

    /// All steps are the session's that has stored the data: after its end they are refused.
    async fn send(&self, session: SessionId, steps: Vec<Publish>) -> Result<Attributes> {
        let mut last = None;
        let mut steps = VecDeque::from(steps);
        while let Some(step) = steps.pop_front() {
            // Not `execute`: data written before the client was closed is published even after.
            let request = self.session.request(Operation::Publish(step), session);
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

    fn note_published(
        &self,
        state: &InodeRef,
        number: u64,
        attributes: &Attributes,
        asked: HeldState,
    ) {
        let mut inner = state.lock();
        self.pages.note_published(state.id());
        let Some(batch) = inner.batches_mut().published(number) else {
            return;
        };
        let bytes = batch.bytes();
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
