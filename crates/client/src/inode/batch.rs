//! Batches: frozen data of an inode on its way to the NSDs, published in the order of their numbers.

use crate::pages::dirty::Frozen;
use crate::session::Mark;
use model::{Error, Extent, Timestamp};
use std::collections::VecDeque;
use world::Instant;

/// Changes by writes that aren't published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pending {
    /// The file is at least this long.
    pub(crate) size: u64,
    /// Time of the last write.
    pub(crate) written: Timestamp,
    /// The attribute generation in which it was made.
    pub(crate) generation: u32,
}

/// Durable data and its place.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) extents: Vec<Extent>,
    /// When it became durable; packs must be published soon, because the deaths of other files can
    /// delete them.
    pub(crate) at: Instant,
    /// Some of it is in packs, with pieces of other files.
    pub(crate) in_pack: bool,
}

/// Progress of a batch.
#[derive(Debug)]
enum Stage {
    /// Its data is in flight to the NSDs.
    Writing,
    /// Its data is durable (or inline); it waits for its turn to be published.
    Written,
    /// It failed and will be tried again.
    Failed(Error),
}

/// Data that is stored and published together.
#[derive(Debug)]
pub(crate) struct Batch {
    number: u64,
    /// Sorted, not overlapping: there may be hundreds of thousands.
    runs: Vec<Frozen>,
    bytes: u64,
    pending: Pending,
    stage: Stage,
    /// Whether a program has got its error, however often it fails again.
    told: bool,
    /// Place of its data, once it is durable (or inline).
    stored: Option<Stored>,
    /// Keeps the session's low-water mark below this batch's segments.
    mark: Mark,
}

impl Batch {
    pub(super) fn new(number: u64, runs: Vec<Frozen>, pending: Pending, mark: Mark) -> Self {
        Self {
            number,
            bytes: runs.iter().map(|run| run.bytes.len() as u64).sum(),
            runs,
            pending,
            stage: Stage::Writing,
            told: false,
            stored: None,
            mark,
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its runs, in order.
    pub(crate) fn runs(&self) -> &[Frozen] {
        &self.runs
    }

    /// Its runs that end after `at`, in order.
    pub(crate) fn runs_from(&self, at: u64) -> &[Frozen] {
        let first = self.runs.partition_point(|run| run.end() <= at);
        &self.runs[first..]
    }

    /// The change that its publish makes.
    pub(crate) fn pending(&self) -> Pending {
        self.pending
    }

    pub(crate) fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Why storing or publishing it failed, if so.
    pub(crate) fn failure(&self) -> Option<&Error> {
        match &self.stage {
            Stage::Failed(error) => Some(error),
            Stage::Writing | Stage::Written => None,
        }
    }

    /// The place of its data, if it waits for its turn to be published.
    pub(crate) fn ready(&self) -> Option<&Stored> {
        let is_ready = matches!(self.stage, Stage::Written);
        is_ready.then(|| self.stored.as_ref().expect("a written batch has its place"))
    }

    /// Whether its data is in flight to the NSDs, or waits for its turn.
    pub(super) fn is_being_stored(&self) -> bool {
        matches!(self.stage, Stage::Writing)
    }

    /// Its data is durable, or will be published inline.
    pub(crate) fn place(&mut self, stored: Stored) {
        self.stored = Some(stored);
        self.stage = Stage::Written;
    }

    /// Storing or publishing it failed.
    pub(crate) fn fail(&mut self, error: Error) {
        self.stage = Stage::Failed(error);
    }

    /// Its data must be stored once more. Returns the extents of the place where it was.
    pub(crate) fn displace(&mut self) -> Vec<Extent> {
        self.stage = Stage::Writing;
        let old = self.stored.take();
        old.map_or_else(Vec::new, |stored| stored.extents)
    }

    /// What is left of it once it is published, or its file is gone.
    pub(crate) fn into_parts(self) -> (Vec<Frozen>, Option<Stored>) {
        (self.runs, self.stored)
    }
}

/// The batches of an inode.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    queue: VecDeque<Batch>,
    /// Number of the newest one so far.
    last: u64,
    publishing: bool,
    /// Up to this number each is published by itself.
    apart_to: u64,
    /// Up to which number each of those waits who wait until batches are published.
    awaited: Vec<u64>,
    /// Since when storing or publishing fails, if it does.
    failing_since: Option<Instant>,
}

impl Batches {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Their bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.queue.iter().map(Batch::bytes).sum()
    }

    /// All of them, oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Batch> + ExactSizeIterator {
        self.queue.iter()
    }

    /// The one at a position, counted from the oldest.
    pub(super) fn at(&self, position: usize) -> &Batch {
        &self.queue[position]
    }

    /// Number of the newest one so far.
    pub(crate) fn last_number(&self) -> u64 {
        self.last
    }

    pub(crate) fn find(&mut self, number: u64) -> Option<&mut Batch> {
        self.queue.iter_mut().find(|batch| batch.number == number)
    }

    /// The one to be published next.
    pub(crate) fn first(&mut self) -> Option<&mut Batch> {
        self.queue.front_mut()
    }

    /// The newest one of those under way.
    pub(crate) fn newest(&mut self) -> Option<&mut Batch> {
        self.queue.back_mut()
    }

    /// Adds a batch of these runs, which are in flight from now on.
    pub(super) fn add(&mut self, runs: Vec<Frozen>, pending: Pending, mark: Mark) -> &Batch {
        self.last += 1;
        self.queue
            .push_back(Batch::new(self.last, runs, pending, mark));
        self.queue.back().expect("just added")
    }

    /// Whether all up to this number are published, or dropped.
    pub(crate) fn is_through(&self, number: u64) -> bool {
        self.queue.front().is_none_or(|batch| batch.number > number)
    }

    /// The first failure of those up to this number.
    pub(crate) fn failure_up_to(&self, number: u64) -> Option<&Error> {
        let asked = self.queue.iter().take_while(|batch| batch.number <= number);
        asked.filter_map(Batch::failure).next()
    }

    /// The first failure.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.queue.iter().find_map(Batch::failure)
    }

    /// The first failure of which no program knows.
    pub(crate) fn untold_failure(&self) -> Option<&Error> {
        let untold = self.queue.iter().filter(|batch| !batch.told);
        untold.filter_map(Batch::failure).next()
    }

    /// A program now knows that unpublished data wasn't stored.
    pub(crate) fn tell(&mut self) {
        for batch in &mut self.queue {
            batch.told = true;
        }
    }

    /// Since when storing or publishing fails, if it does.
    pub(crate) fn failing_since(&self) -> Option<Instant> {
        self.failing_since
    }

    /// Storing or publishing failed at `now`.
    pub(crate) fn note_failing(&mut self, now: Instant) {
        self.failing_since.get_or_insert(now);
    }

    /// Failed ones are tried again. Those that have their place are ready to be published; returns
    /// those that must be stored.
    pub(crate) fn retry(&mut self) -> impl Iterator<Item = &Batch> {
        self.queue.iter_mut().filter_map(|batch| {
            batch.failure()?;
            if batch.stored.is_some() {
                batch.stage = Stage::Written;
                return None;
            }
            batch.stage = Stage::Writing;
            Some(&*batch)
        })
    }

    /// Whether a publish is in flight.
    pub(crate) fn is_publishing(&self) -> bool {
        self.publishing
    }

    /// A publish begins, or is over.
    pub(crate) fn set_publishing(&mut self, publishing: bool) {
        self.publishing = publishing;
    }

    /// Those up to this number are published by themselves, each: together they couldn't be.
    pub(crate) fn set_apart(&mut self, number: u64) {
        self.apart_to = self.apart_to.max(number);
    }

    /// Somebody waits until all up to this number are published.
    pub(crate) fn add_waiter(&mut self, number: u64) {
        self.awaited.push(number);
    }

    /// One of those who do doesn't any more.
    pub(crate) fn remove_waiter(&mut self, number: u64) {
        if let Some(at) = self.awaited.iter().position(|awaited| *awaited == number) {
            self.awaited.swap_remove(at);
        }
    }

    /// Whether nobody waits, or all wait for this one, too.
    pub(super) fn is_awaited_by_all(&self, batch: &Batch) -> bool {
        self.awaited.iter().all(|awaited| batch.number <= *awaited)
    }

    /// Whether one is published by itself, whatever others are ready.
    pub(super) fn is_apart(&self, batch: &Batch) -> bool {
        batch.number <= self.apart_to
    }

    /// The first ones, up to this number, are published. Returns them; none if they were taken away
    /// meanwhile.
    pub(crate) fn published(&mut self, last: u64) -> Vec<Batch> {
        let count = self.queue.partition_point(|batch| batch.number <= last);
        let published: Vec<Batch> = self.queue.drain(..count).collect();
        if !published.is_empty() && self.failure().is_none() {
            self.failing_since = None;
        }
        published
    }

    /// Takes all: their file is gone, or the right to change it.
    pub(crate) fn take_all(&mut self) -> VecDeque<Batch> {
        self.failing_since = None;
        std::mem::take(&mut self.queue)
    }
}
