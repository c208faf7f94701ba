//! Freezing: dirty runs become batches. A little data becomes inline extents at once; the rest is to
//! be stored.

use super::job::Job;
use crate::inode::{Inner, InodeRef, Stored};
use crate::page_pool::PagePool;
use crate::pages::dirty::Frozen;
use crate::session::Session;
use model::{CommitNumber, Extent, ExtentKind, limits};
use std::sync::Arc;
use world::Instant;

/// Most pieces that one publish carries inline.
const INLINE_RUNS_MAX: usize = 64;

/// A batch has at most as many pieces as one publish carries, and about a block of bytes. Its
/// memory is free again once it is published, and writers wait for memory: thousands of small
/// writes in one batch would take seconds to publish before any of their memory is freed.
const BATCH_RUNS_MAX: usize = limits::PUBLISH_EXTENTS_MAX;
const BATCH_BYTES_MAX: usize = limits::BLOCK_BYTES_DEFAULT as usize;

/// Whether a program waits for a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Urgency {
    /// Yes: a little data goes inline, which saves a separate write now.
    Fsync,
    /// No: only small complete files go inline; the rest is packed and written once.
    Background,
}

/// Makes batches of dirty data.
pub(super) struct Freezer {
    session: Arc<Session>,
    pages: Arc<PagePool>,
}

impl Freezer {
    pub(super) fn new(session: Arc<Session>, pages: Arc<PagePool>) -> Self {
        Self { session, pages }
    }

    /// Takes all dirty data: a little becomes inline and ready to be published; otherwise returns
    /// jobs to store.
    pub(super) fn all(&self, state: &InodeRef, inner: &mut Inner, urgency: Urgency) -> Vec<Job> {
        if inner.dirty().is_empty() {
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
        let is_inline =
            inner.dirty().bytes() <= inline_max && inner.dirty().runs() <= INLINE_RUNS_MAX;
        let runs = inner.take_dirty();
        if !is_inline {
            return self.in_batches(state, inner, runs);
        }
        let extents = runs.iter().map(inline_extent).collect();
        self.freeze(inner, runs);
        let batch = inner.batches_mut().newest();
        batch.expect("a batch was just frozen").place(Stored {
            extents,
            at: self.session.now(),
            in_pack: false,
        });
        Vec::new()
    }

    /// As `all`, only data dirty since `time` or longer: a stream isn't cut in the middle of a block
    /// because other data of its file is old.
    pub(super) fn older(&self, state: &InodeRef, inner: &mut Inner, time: Instant) -> Vec<Job> {
        let newest = inner.dirty().newest();
        if newest.is_some_and(|newest| newest <= time) {
            return self.all(state, inner, Urgency::Background);
        }
        let runs = inner.take_dirty_since(time);
        self.in_batches(state, inner, runs)
    }

    /// Takes the completely dirty blocks between `offset` and `end`: each is a job of its own.
    pub(super) fn full_blocks(
        &self,
        state: &InodeRef,
        inner: &mut Inner,
        (offset, end): (u64, u64),
    ) -> Vec<Job> {
        let full = inner.take_full_blocks(offset, end);
        let jobs = full.into_iter();
        jobs.map(|block| self.job(state, inner, vec![block]))
            .collect()
    }

    /// Makes batches of runs just taken from the dirty ones, in their order, so that neighbours in
    /// the file are published together and are in one pack.
    fn in_batches(&self, state: &InodeRef, inner: &mut Inner, runs: Vec<Frozen>) -> Vec<Job> {
        let mut jobs = Vec::new();
        let mut batch = Vec::new();
        let mut bytes = 0;
        for run in runs {
            let is_full =
                batch.len() == BATCH_RUNS_MAX || bytes + run.bytes.len() > BATCH_BYTES_MAX;
            if is_full && !batch.is_empty() {
                let batch = std::mem::take(&mut batch);
                jobs.push(self.job(state, inner, batch));
                bytes = 0;
            }
            bytes += run.bytes.len();
            batch.push(run);
        }
        if !batch.is_empty() {
            jobs.push(self.job(state, inner, batch));
        }
        jobs
    }

    fn job(&self, state: &InodeRef, inner: &mut Inner, runs: Vec<Frozen>) -> Job {
        self.freeze(inner, runs);
        let batch = inner.batches_mut().newest();
        Job::of(state, batch.expect("a batch was just frozen"))
    }

    /// Makes a batch of runs just taken from the dirty ones.
    fn freeze(&self, inner: &mut Inner, runs: Vec<Frozen>) {
        let batch = inner.freeze(runs, self.session.mark());
        self.pages.send_off(batch.bytes());
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
