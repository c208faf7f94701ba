//! Keeps the page pool within its byte budget: counts what is dirty, in flight and cached, claims
//! memory and disk space for writes, and evicts.
//!
//! It holds the table of inodes, whose bytes it counts. Methods that take an inode's [`Inner`] are
//! called with its lock held.

mod ahead;
mod eviction;
mod pace;
mod published;
mod space;

use crate::inode::{HeldState, Inner, InodeRef, Inodes};
use crate::pages::clean::is_wasteful;
use crate::pages::memory::Blocks;
use crate::session::Standing;
use ahead::Ahead;
use bytes::Bytes;
use model::{Attributes, Error, InodeId, Result};
use pace::Pace;
use parking_lot::Mutex;
use pool::Pool;
pub(crate) use published::Look;
use published::Published;
use space::Space;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use world::Instant;

/// Accounting of the page pool.
pub(crate) struct PagePool {
    inodes: Inodes,
    /// Provides all memory and counts how much is held.
    blocks: Arc<Blocks>,
    dirty: AtomicU64,
    /// The part of `dirty` that is in flight to the NSDs.
    on_the_way: AtomicU64,
    /// The part of `dirty` that belongs to files with data that couldn't be stored.
    failing: AtomicU64,
    clean: AtomicU64,
    stamps: AtomicU64,
    /// Signals that dirty bytes were released, or can't be stored now.
    room: Notify,
    /// Slows writers down before the budget is full.
    pace: Pace,
    /// Why the last attempt to store dirty bytes failed, if it did.
    failure: Mutex<Option<Error>>,
    ring: Mutex<VecDeque<(InodeId, u64, u64)>>,
    /// What isn't unpublished any more since the owner was asked.
    published: Published,
    /// Held while known extents are being forgotten.
    forgetting: Mutex<()>,
    space: Space,
    ahead: Ahead,
}

/// Dirty bytes that a write may fill; the unused rest is returned on drop.
pub(crate) struct Claim<'a> {
    pages: &'a PagePool,
    bytes: u64,
}

impl Claim<'_> {
    /// This many bytes became dirty; [`PagePool::release`] returns them.
    pub(crate) fn used(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "a write fills at most what it claimed");
        self.bytes -= bytes;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.pages.release(self.bytes);
        }
    }
}

impl PagePool {
    /// A page pool of `budget` bytes for a file system with this block size.
    pub(crate) fn new(
        pool: Arc<Pool>,
        standing: Arc<Standing>,
        block_bytes: u32,
        budget: u64,
    ) -> Arc<Self> {
        let blocks = Blocks::new(block_bytes, budget);
        Arc::new(Self {
            inodes: Inodes::new(blocks.clone(), standing),
            blocks,
            dirty: AtomicU64::new(0),
            on_the_way: AtomicU64::new(0),
            failing: AtomicU64::new(0),
            clean: AtomicU64::new(0),
            stamps: AtomicU64::new(0),
            room: Notify::new(),
            pace: Pace::default(),
            failure: Mutex::default(),
            ring: Mutex::default(),
            published: Published::default(),
            forgetting: Mutex::default(),
            space: Space::new(pool),
            ahead: Ahead::default(),
        })
    }

    // Inodes.

    /// The state of an inode, created if missing.
    pub(crate) fn inode(&self, inode: InodeId) -> InodeRef {
        self.inodes.get(inode)
    }

    /// The state of an inode, if there is one.
    pub(crate) fn find_inode(&self, inode: InodeId) -> Option<InodeRef> {
        self.inodes.find(inode)
    }

    /// Refuses what programs do with a file on which they have lost something.
    pub(crate) fn check_lost(&self, inode: InodeId) -> Result<()> {
        match self.find_inode(inode) {
            Some(state) => state.lock().check_lost(),
            None => Ok(()),
        }
    }

    /// Visits the state of every inode, one after another.
    pub(crate) fn each_inode(&self, visit: impl FnMut(&InodeRef)) {
        self.inodes.each(visit);
    }

    /// The owner is about to be asked for attributes.
    pub(crate) fn look(&self) -> Look {
        self.published.now()
    }

    /// Adds unpublished writes to attributes from the owner, which was asked after this look began. False
    /// if writes may be in neither, because they were published meanwhile.
    pub(crate) fn merge_into(&self, attributes: &mut Attributes, look: Look) -> bool {
        // Acquire: who sees that nothing is dirty any more sees what was noted as published before.
        let state = match self.dirty.load(Ordering::Acquire) {
            0 => None,
            _ => self.inodes.find(attributes.inode),
        };
        state.is_some_and(|state| state.lock().merge_into(attributes))
            || !self.published.may_have_since(attributes.inode, look)
    }

    /// All of an inode's unpublished data may be published now. Called before that is to be seen.
    pub(crate) fn note_published(&self, inode: InodeId) {
        self.published.note(inode);
    }

    // Dirty bytes.

    /// Limit of dirty bytes, including those in flight.
    fn dirty_max(&self) -> u64 {
        self.blocks.budget() / 2
    }

    /// Limit up to which data that can't be stored may take memory from cached data; above it, the
    /// writers of those files wait.
    fn failing_max(&self) -> u64 {
        self.dirty_max() / 2
    }

    /// Whether any file has data that couldn't be stored.
    pub(crate) fn has_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed) > 0
    }

    /// Updates the count of an inode's failing bytes after a change.
    pub(crate) fn recount_failing(&self, inner: &mut Inner) {
        let (before, now) = inner.recount_failing();
        if now > before {
            self.failing.fetch_add(now - before, Ordering::Relaxed);
        } else if now < before {
            self.failing.fetch_sub(before - now, Ordering::Relaxed);
        }
    }

    /// Dirty bytes, including those in flight.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Counts dirty bytes that are now in flight.
    pub(crate) fn send_off(&self, bytes: u64) {
        self.on_the_way.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes in flight were stored or dropped.
    pub(crate) fn arrive(&self, bytes: u64, now: Instant) {
        self.on_the_way.fetch_sub(bytes, Ordering::Relaxed);
        self.release(bytes);
        self.pace
            .note_gone(bytes, self.dirty(), self.dirty_max(), now);
    }

    /// How long a write of `bytes` must wait before it claims memory; see [`Pace`]. Failing files'
    /// data isn't published, so up to its share it doesn't slow down other files' writers.
    pub(crate) fn pace(&self, bytes: u64, now: Instant) -> Option<Duration> {
        let failing = self.failing.load(Ordering::Relaxed);
        let dirty = self.dirty().saturating_sub(failing.min(self.failing_max()));
        self.pace.wait(bytes, dirty, self.dirty_max(), now)
    }

    /// Whether so many dirty bytes aren't in flight that files should be written early. Bytes in
    /// flight will make room on their own, and streams aren't cut for them.
    pub(crate) fn is_short(&self) -> bool {
        let on_the_way = self.on_the_way.load(Ordering::Relaxed);
        let waits = self.dirty().saturating_sub(on_the_way);
        waits > self.dirty_max() / 2
    }

    /// Whether any bytes are in flight.
    pub(crate) fn is_moving(&self) -> bool {
        self.on_the_way.load(Ordering::Relaxed) > 0
    }

    /// Waits until dirty bytes are released, or can't be stored.
    pub(crate) fn room(&self) -> Notified<'_> {
        self.room.notified()
    }

    /// Waits until a wish for disk space is answered.
    pub(crate) fn space_answered(&self) -> Notified<'_> {
        self.space.answered()
    }

    /// Whoever waited for disk space doesn't any more.
    pub(crate) fn give_up_space(&self) {
        self.space.give_up();
    }

    /// Space was freed: who found none asks again.
    pub(crate) fn ask_for_space_anew(&self) {
        self.space.ask_anew();
    }

    /// Writers look again whether they may go on.
    pub(crate) fn signal_room(&self) {
        self.room.notify_waiters();
    }

    /// Claims memory and disk space for `bytes` of a write. `None`: no memory now, wait for `room`.
    /// Failing files have a separate share: they neither grow beyond it nor count against others up
    /// to it.
    ///
    /// # Errors
    /// `NoSpace`: the disks are full. `Busy`: this node has asked for more space; try again when
    /// `space_answered` tells.
    pub(crate) fn claim(&self, bytes: u64, is_failing: bool) -> Result<Option<Claim<'_>>> {
        let failing = self.failing.load(Ordering::Relaxed);
        let before = self.dirty.fetch_add(bytes, Ordering::Relaxed);
        let others = before.saturating_sub(failing.min(self.failing_max()));
        let is_full = others > 0 && (others + bytes > self.dirty_max() || self.lacks_memory(bytes));
        if is_full || (is_failing && failing + bytes > self.failing_max()) {
            self.dirty.fetch_sub(bytes, Ordering::Relaxed);
            return Ok(None);
        }
        if let Err(error) = self.space.take(bytes) {
            self.dirty.fetch_sub(bytes, Ordering::Relaxed);
            return Err(error);
        }
        Ok(Some(Claim { pages: self, bytes }))
    }

    /// Records the result of the last attempt to store dirty bytes.
    pub(crate) fn note_store(&self, failure: Option<Error>) {
        let is_failure = failure.is_some();
        *self.failure.lock() = failure;
        if is_failure {
            self.signal_room();
        }
    }

    /// Why dirty bytes can't be stored now, if they can't.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.lock().clone()
    }

    /// Dirty bytes were stored or dropped.
    pub(crate) fn release(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.dirty.fetch_sub(bytes, Ordering::Release);
        self.space.give(bytes);
        self.signal_room();
    }

    /// Discards everything of an inode that can't be reached any more. Batches in flight end on
    /// their own.
    pub(crate) fn discard(&self, inode: InodeId, inner: &mut Inner) {
        inner.set_orphan(true);
        self.drop_from(inode, inner, 0);
        inner.forget_all_extents();
        inner.settle();
    }

    /// The file ended at `size` when the owner answered what was `asked`: drops everything beyond that.
    pub(crate) fn cut(&self, inode: InodeId, inner: &mut Inner, size: u64, asked: HeldState) {
        self.drop_from(inode, inner, size);
        inner.punch_from(size, asked);
        inner.settle();
    }

    fn drop_from(&self, inode: InodeId, inner: &mut Inner, from: u64) {
        let dirty = inner.cut_dirty(from);
        self.release(dirty);
        self.recount_failing(inner);
        self.uncache(inode, inner, from, u64::MAX);
    }

    // Cached bytes.

    /// Caches bytes that were just read from the NSDs, in place of which the caller gets ones that
    /// are counted.
    pub(crate) fn cache_read(
        &self,
        inode: InodeId,
        inner: &mut Inner,
        pieces: &mut [(u64, Bytes)],
        ahead: bool,
    ) {
        for (at, bytes) in pieces {
            let (counted, memory) = self.blocks.counted(std::mem::take(bytes));
            bytes.clone_from(&counted);
            self.cache(inode, inner, *at, (counted, memory), ahead);
        }
    }

    /// Caches clean bytes of an inode.
    pub(crate) fn cache(
        &self,
        inode: InodeId,
        inner: &mut Inner,
        at: u64,
        (bytes, memory): (Bytes, u64),
        ahead: bool,
    ) {
        let stamp = self.stamps.fetch_add(1, Ordering::Relaxed);
        let piece = if is_wasteful(&bytes, memory) {
            let length = bytes.len() as u64;
            (self.blocks.copy(&bytes), length)
        } else {
            (bytes, memory)
        };
        self.recount(inode, inner, |inner| {
            inner.clean_mut().insert(at, piece, stamp, ahead)
        });
    }

    /// Drops cached clean bytes of an inode.
    pub(crate) fn uncache(&self, inode: InodeId, inner: &mut Inner, from: u64, to: u64) {
        if !inner.clean().is_empty() {
            self.recount(inode, inner, |inner| inner.clean_mut().cut(from, to));
        }
    }

    fn recount(&self, inode: InodeId, inner: &mut Inner, change: impl FnOnce(&mut Inner)) {
        let before = inner.clean().bytes();
        change(inner);
        let after = inner.clean().bytes();
        if after >= before {
            self.clean.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.clean.fetch_sub(before - after, Ordering::Relaxed);
        }
        let fresh = inner.clean_mut().take_fresh();
        if !fresh.is_empty() {
            let mut ring = self.ring.lock();
            ring.extend(
                fresh
                    .into_iter()
                    .map(|(offset, stamp)| (inode, offset, stamp)),
            );
        }
    }

    /// Counts read-ahead bytes that were used.
    pub(crate) fn note_used_ahead(&self, bytes: u64) {
        self.ahead.note(bytes, 0);
    }

    /// Limits read-ahead by how much of it was used lately.
    pub(crate) fn ahead_max(&self, wanted: u64) -> u64 {
        self.ahead.most(wanted)
    }

    // All memory.

    /// Bytes of a block of the file system.
    pub(crate) fn block_bytes(&self) -> u64 {
        self.blocks.block_bytes()
    }

    /// Whether `bytes` more would exceed the budget.
    pub(crate) fn lacks_memory(&self, bytes: u64) -> bool {
        self.blocks.in_use_for_data() + bytes > self.blocks.budget()
    }

    /// All memory held, and its budget.
    pub(crate) fn memory(&self) -> (u64, u64) {
        (self.blocks.held(), self.blocks.budget())
    }

    /// Dirty and clean bytes, for status.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.dirty(), self.clean.load(Ordering::Relaxed))
    }
}
