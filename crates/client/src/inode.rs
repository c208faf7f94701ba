//! State of the inodes that are open, dirty or cached here.

use crate::pages::clean::Clean;
use crate::pages::dirty::{Dirty, Frozen};
use crate::pages::extents::Extents;
use crate::pages::memory::{Blocks, StateCharge};
use crate::pattern::Pattern;
use crate::privileges::Plain;
use crate::session::Mark;
use model::{Attributes, Error, Extent, FileKind, InodeId, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;
use world::{Instant, Map};

/// Partitions of the table, so that threads rarely contend.
const PARTS: usize = 64;

/// The owner's latest attributes of an inode, updated with this client's own changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) kind: FileKind,
    pub(crate) size: u64,
    pub(crate) generation: u32,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
}

impl From<&Attributes> for Known {
    fn from(attributes: &Attributes) -> Self {
        Self {
            kind: attributes.kind,
            size: attributes.size,
            generation: attributes.generation,
            atime: attributes.atime,
            mtime: attributes.mtime,
            ctime: attributes.ctime,
        }
    }
}

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

/// Progress of a batch.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Its data is in flight to the NSDs.
    Writing,
    /// Its data is durable (or inline); it waits for its turn to be published.
    Written,
    /// It failed and will be tried again.
    Failed(Error),
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

/// Data that is stored and published together. Batches of an inode are published in the order of
/// their numbers.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) number: u64,
    /// Sorted, not overlapping: there may be hundreds of thousands.
    pub(crate) runs: Vec<Frozen>,
    pub(crate) bytes: u64,
    pub(crate) pending: Pending,
    pub(crate) stage: Stage,
    /// Whether a program has got its error, however often it fails again.
    pub(crate) told: bool,
    /// Place of its data, once it is durable (or inline).
    pub(crate) stored: Option<Stored>,
    /// Keeps the session's low-water mark below this batch's segments.
    pub(crate) mark: Mark,
}

impl Batch {
    /// Its runs that end after `at`, in order.
    pub(crate) fn runs_from(&self, at: u64) -> &[Frozen] {
        let first = self.runs.partition_point(|run| run.end() <= at);
        &self.runs[first..]
    }

    /// Why storing or publishing it failed, if so.
    pub(crate) fn failure(&self) -> Option<&Error> {
        match &self.stage {
            Stage::Failed(error) => Some(error),
            Stage::Writing | Stage::Written => None,
        }
    }
}

/// In-memory state of one inode, under the inode's lock, which is never held across a wait.
pub(crate) struct Inner {
    pub(crate) opens: u32,
    pub(crate) known: Option<Known>,
    /// Privileges that the inode is known not to have.
    pub(crate) plain: Plain,
    /// A truncate or the like runs: no write may begin, and size and extents may change.
    pub(crate) exclusive: bool,
    pub(crate) dirty: Dirty,
    pub(crate) flushing: VecDeque<Batch>,
    pub(crate) next_batch: u64,
    pub(crate) publishing: bool,
    pub(crate) pending: Option<Pending>,
    pub(crate) clean: Clean,
    pub(crate) extents: Extents,
    /// Counts the changes of the mapping from bytes to places: bytes read under an older mapping
    /// must not be cached.
    pub(crate) mapping: u64,
    /// Ranges being fetched into the cache.
    pub(crate) fetches: Vec<(u64, u64)>,
    pub(crate) pattern: Pattern,
    pub(crate) last_write: Option<Instant>,
    /// Since when storing or publishing fails, if it does.
    pub(crate) failing_since: Option<Instant>,
    /// This inode's part of the page pool's failing bytes.
    pub(crate) failing_bytes: u64,
    /// Without names; deleted with its last holder, so its data needn't be written.
    pub(crate) orphan: bool,
    /// The page pool memory that the state itself takes.
    _charge: StateCharge,
}

impl Inner {
    fn new(blocks: Arc<Blocks>) -> Self {
        Self {
            opens: 0,
            known: None,
            plain: Plain::default(),
            exclusive: false,
            _charge: StateCharge::new(&blocks),
            extents: Extents::new(&blocks),
            dirty: Dirty::new(blocks),
            flushing: VecDeque::new(),
            next_batch: 1,
            publishing: false,
            pending: None,
            clean: Clean::default(),
            mapping: 0,
            fetches: Vec::new(),
            pattern: Pattern::default(),
            last_write: None,
            failing_since: None,
            failing_bytes: 0,
            orphan: false,
        }
    }

    /// Logical size including unpublished writes; `None` if the owner's size isn't known.
    pub(crate) fn size(&self) -> Option<u64> {
        let known = self.known?;
        Some(
            self.pending
                .map_or(known.size, |pending| pending.size.max(known.size)),
        )
    }

    /// Whether nothing is left to write or publish.
    pub(crate) fn is_published(&self) -> bool {
        self.dirty.is_empty() && self.flushing.is_empty()
    }

    /// Unpublished bytes.
    pub(crate) fn unpublished(&self) -> u64 {
        self.dirty.bytes() + self.flushing.iter().map(|batch| batch.bytes).sum::<u64>()
    }

    /// Takes in the owner's answer to an operation of this client. Answers may arrive out of order:
    /// an older one changes nothing.
    pub(crate) fn learn(&mut self, attributes: &Attributes) {
        let mut new = Known::from(attributes);
        if let Some(known) = &self.known {
            // Generations wrap around.
            let is_older = known.generation.wrapping_sub(new.generation) as i32 > 0;
            let is_same = known.generation == new.generation;
            if is_older || (is_same && new.ctime < known.ctime) {
                return;
            }
            if is_same {
                // Within a generation files only grow.
                new.size = new.size.max(known.size);
            }
        }
        self.known = Some(new);
    }

    /// Adds unpublished writes to attributes from the owner.
    pub(crate) fn merge_into(&self, attributes: &mut Attributes) {
        let Some(pending) = self.pending else { return };
        attributes.size = attributes.size.max(pending.size);
        if pending.generation == attributes.generation {
            attributes.mtime = attributes.mtime.max(pending.written);
        }
        attributes.ctime = attributes.ctime.max(pending.written);
        let unpublished = self.unpublished();
        // Space that will be allocated when the data is written; until then overwritten bytes are
        // counted twice.
        attributes.allocated =
            (attributes.allocated + unpublished).min(attributes.size.max(attributes.allocated));
    }

    fn is_idle(&self) -> bool {
        self.opens == 0
            && self.is_published()
            && self.clean.is_empty()
            && self.fetches.is_empty()
            && !self.exclusive
    }
}

/// One inode.
pub(crate) struct InodeState {
    pub(crate) id: InodeId,
    /// Its partition of the table. Operations use an inode several times: they count references
    /// on this inode, not on a table that all threads share.
    part: Weak<Part>,
    /// Current users of the state; it leaves the table only when there are none.
    uses: AtomicUsize,
    inner: Mutex<Inner>,
    /// Held by one truncate, allocation or copy at a time.
    pub(crate) gate: tokio::sync::Mutex<()>,
    /// Signals that a batch progressed, a fetch ended, or the exclusive use ended.
    pub(crate) changed: Notify,
}

impl InodeState {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

/// All inodes in use or cached here.
pub(crate) struct Inodes {
    parts: Vec<Arc<Part>>,
    blocks: Arc<Blocks>,
}

type Part = Mutex<Map<InodeId, Arc<InodeState>>>;

/// A use of an inode's state, which stays in the table meanwhile.
pub(crate) struct InodeRef {
    state: Arc<InodeState>,
}

impl Inodes {
    pub(crate) fn new(blocks: Arc<Blocks>) -> Self {
        let parts = (0..PARTS).map(|_| Arc::default()).collect();
        Self { parts, blocks }
    }

    fn part(&self, inode: InodeId) -> &Arc<Part> {
        &self.parts[inode.0 as usize % PARTS]
    }

    /// The state of an inode, created if missing.
    pub(crate) fn get(&self, inode: InodeId) -> InodeRef {
        let part = self.part(inode);
        let mut listed = part.lock();
        let state = listed.entry(inode).or_insert_with(|| {
            Arc::new(InodeState {
                id: inode,
                part: Arc::downgrade(part),
                uses: AtomicUsize::new(0),
                inner: Mutex::new(Inner::new(self.blocks.clone())),
                gate: tokio::sync::Mutex::new(()),
                changed: Notify::new(),
            })
        });
        state.uses.fetch_add(1, Ordering::Relaxed);
        InodeRef {
            state: state.clone(),
        }
    }

    /// Visits the state of every inode, one after another.
    pub(crate) fn each(&self, mut visit: impl FnMut(&InodeRef)) {
        for part in &self.parts {
            let refs: Vec<InodeRef> = {
                let listed = part.lock();
                let states = listed.values();
                states
                    .map(|state| {
                        state.uses.fetch_add(1, Ordering::Relaxed);
                        InodeRef {
                            state: state.clone(),
                        }
                    })
                    .collect()
            };
            refs.iter().for_each(&mut visit);
        }
    }

    /// The state of an inode, if there is one.
    pub(crate) fn find(&self, inode: InodeId) -> Option<InodeRef> {
        let part = self.part(inode).lock();
        let state = part.get(&inode)?;
        state.uses.fetch_add(1, Ordering::Relaxed);
        Some(InodeRef {
            state: state.clone(),
        })
    }
}

impl std::ops::Deref for InodeRef {
    type Target = InodeState;

    fn deref(&self) -> &InodeState {
        &self.state
    }
}

impl Clone for InodeRef {
    fn clone(&self) -> Self {
        self.state.uses.fetch_add(1, Ordering::Relaxed);
        Self {
            state: self.state.clone(),
        }
    }
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        if self.state.uses.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        if !self.state.lock().is_idle() {
            return;
        }
        // New uses begin under the partition's lock, so none can start in between.
        let Some(part) = self.state.part.upgrade() else {
            return;
        };
        let mut part = part.lock();
        let is_ours = part
            .get(&self.state.id)
            .is_some_and(|s| Arc::ptr_eq(s, &self.state));
        if is_ours && self.state.uses.load(Ordering::Acquire) == 0 && self.state.lock().is_idle() {
            part.remove(&self.state.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(generation: u32, ctime: i64, size: u64) -> Attributes {
        Attributes {
            inode: InodeId::ROOT,
            kind: FileKind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            links: 1,
            size,
            allocated: size,
            rdev: 0,
            atime: Timestamp(0),
            mtime: Timestamp(ctime),
            ctime: Timestamp(ctime),
            btime: Timestamp(0),
            generation,
        }
    }

    #[test]
    fn a_late_answer_takes_nothing_back() {
        let mut inner = Inner::new(Blocks::new(1 << 16, 16 << 20));
        let mut tell = |generation, ctime, size| {
            inner.learn(&attributes(generation, ctime, size));
            let known = inner.known.unwrap();
            (known.generation, known.ctime.0, known.size)
        };
        assert_eq!(tell(1, 10, 100), (1, 10, 100));
        // utimes, then the answer of a publish that ran before it.
        assert_eq!(tell(2, 20, 100), (2, 20, 100));
        assert_eq!(tell(1, 15, 200), (2, 20, 100));
        // A chmod, then an answer from before it.
        assert_eq!(tell(2, 30, 300), (2, 30, 300));
        assert_eq!(tell(2, 25, 200), (2, 30, 300));
        // A truncate.
        assert_eq!(tell(3, 40, 7), (3, 40, 7));
        // Generations wrap around.
        assert_eq!(tell(u32::MAX / 2, 50, 7), (u32::MAX / 2, 50, 7));
        assert_eq!(tell(u32::MAX - 5, 60, 8), (u32::MAX - 5, 60, 8));
        assert_eq!(tell(1, 70, 9), (1, 70, 9));
    }
}
