//! The list of inodes with unpublished data, and the wish to write them soon.

use crate::inode::Inner;
use crate::page_pool::PagePool;
use model::InodeId;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use world::Instant;

/// The list of inodes with unpublished data.
pub(super) struct DirtyInodes {
    pages: Arc<PagePool>,
    listed: Mutex<BTreeSet<InodeId>>,
    wake: Notify,
    pressed: AtomicBool,
}

impl DirtyInodes {
    pub(super) fn new(pages: Arc<PagePool>) -> Self {
        Self {
            pages,
            listed: Mutex::default(),
            wake: Notify::new(),
            pressed: AtomicBool::new(false),
        }
    }

    /// Notes an inode with unpublished data. May be called with the inode's lock held.
    pub(super) fn note(&self, inode: InodeId) {
        self.listed.lock().insert(inode);
    }

    /// Nothing of the inode is unpublished any more. Called with the inode's lock held.
    pub(super) fn forget(&self, inode: InodeId) {
        self.listed.lock().remove(&inode);
    }

    /// Storing or publishing data of the inode failed: it will be retried, and its dirty data
    /// counts as failing. Called with the inode's lock held.
    pub(super) fn note_failing(&self, inode: InodeId, inner: &mut Inner, now: Instant) {
        inner.batches_mut().note_failing(now);
        self.pages.recount_failing(inner);
        self.note(inode);
        // Writers of other files need no longer wait for the memory that this one holds.
        self.pages.signal_room();
    }

    pub(super) fn list(&self) -> Vec<InodeId> {
        self.listed.lock().iter().copied().collect()
    }

    /// Memory runs short: write everything soon.
    pub(super) fn press(&self) {
        if !self.pressed.swap(true, Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    /// Waits until memory runs short.
    pub(super) fn pressed(&self) -> Notified<'_> {
        self.wake.notified()
    }

    /// Whether memory has run short since the last call.
    pub(super) fn take_pressed(&self) -> bool {
        self.pressed.swap(false, Ordering::Relaxed)
    }
}
