//! State of the inodes that are open, dirty or cached here.

mod batch;
mod held;
mod inner;
mod kernel_pages;
mod known;
mod pattern;
mod plain;
mod recent;
mod together;
mod unpublished;

pub(crate) use batch::{Batch, Stored};
pub(crate) use held::HeldState;
pub(crate) use inner::Inner;
pub(crate) use kernel_pages::{PAGE_BYTES, Span, Step, Why, pages_of};
pub(crate) use known::Known;
pub(crate) use pattern::UNIT_BYTES;
pub(crate) use plain::Plain;

use crate::pages::memory::Blocks;
use crate::session::Standing;
use model::InodeId;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use world::Map;

/// Partitions of the table, so that threads rarely contend.
const PARTS: usize = 64;

/// One inode.
pub(crate) struct InodeState {
    id: InodeId,
    /// Its partition of the table. Operations use an inode several times: they count references
    /// on this inode, not on a table that all threads share.
    part: Weak<Part>,
    /// Current users of the state; it leaves the table only when there are none.
    uses: AtomicUsize,
    inner: Mutex<Inner>,
    /// Held by one truncate, allocation or copy at a time, or shared by who waited for these. Fair.
    gate: tokio::sync::RwLock<()>,
    /// Signals that a batch progressed, a fetch, a kernel's request for pages or their drop ended, or the exclusive
    /// use ended.
    changed: Notify,
}

impl InodeState {
    pub(crate) fn id(&self) -> InodeId {
        self.id
    }

    /// For who needs the inode alone, and for who waits for those (`exclusive.rs`).
    pub(crate) fn gate(&self) -> &tokio::sync::RwLock<()> {
        &self.gate
    }

    /// Must not be held across a wait.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Waits for the next signal.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Signals one of these.
    pub(crate) fn signal(&self) {
        self.changed.notify_waiters();
    }
}

/// All inodes in use or cached here.
pub(crate) struct Inodes {
    parts: Vec<Arc<Part>>,
    blocks: Arc<Blocks>,
    standing: Arc<Standing>,
}

type Part = Mutex<Map<InodeId, Arc<InodeState>>>;

/// A use of an inode's state, which stays in the table meanwhile.
pub(crate) struct InodeRef {
    state: Arc<InodeState>,
}

impl Inodes {
    pub(crate) fn new(blocks: Arc<Blocks>, standing: Arc<Standing>) -> Self {
        let parts = (0..PARTS).map(|_| Arc::default()).collect();
        Self {
            parts,
            blocks,
            standing,
        }
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
                inner: Mutex::new(Inner::new(self.blocks.clone(), self.standing.clone())),
                gate: tokio::sync::RwLock::new(()),
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
