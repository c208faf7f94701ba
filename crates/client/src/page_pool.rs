//! Keeps the page pool within its byte budget, and reserves NSD space for dirty bytes.

use crate::inode::{Inner, Inodes};
use crate::pace::Pace;
use crate::pages::clean::{Visit, is_wasteful};
use crate::pages::memory::Blocks;
use bytes::Bytes;
use model::{Error, InodeId, Result};
use parking_lot::Mutex;
use pool::{Pool, Reservation};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use world::Instant;

/// Space is reserved from the pool in steps of this many bytes.
const SPACE_STEP: u64 = 8 * 1024 * 1024;

/// Entries examined per insertion to make room, in addition to those per piece that it adds.
const EVICTIONS_MAX: usize = 64;

/// Entries examined per added piece, so that a pool in which everything was read lately is passed
/// before the slack is used up: entries read since the last visit get another round.
const EVICTIONS_PER_PIECE: usize = 3 * SLACK_PART as usize / 2;

/// Most entries examined once a second.
const EVICTIONS_TIDY_MAX: usize = 16_384;

/// Eviction starts when less than this fraction of the budget is free, so that writers needn't wait
/// for it.
const SLACK_PART: u64 = 8;

/// Known extents are forgotten above this fraction of the budget, to leave room for data.
const EXTENTS_PART: u64 = 4;

/// Most cached pieces, however small.
const PIECES_MAX: usize = 131_072;

/// Accounting of the page pool.
pub(crate) struct PagePool {
    pool: Arc<Pool>,
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
    pub(crate) room: Notify,
    /// Slows writers down before the budget is full.
    pace: Pace,
    /// Why the last attempt to store dirty bytes failed, if it did.
    failure: Mutex<Option<Error>>,
    ring: Mutex<VecDeque<(InodeId, u64, u64)>>,
    /// Held while known extents are being forgotten.
    forgetting: Mutex<()>,
    space: Mutex<ReservedSpace>,
    /// Bytes read ahead that were used, and that weren't; halved now and then.
    ahead: Mutex<(u64, u64)>,
}

struct ReservedSpace {
    needed: u64,
    held: Option<Reservation>,
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
    pub(crate) fn new(pool: Arc<Pool>, blocks: Arc<Blocks>) -> Self {
        Self {
            pool,
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
            forgetting: Mutex::default(),
            space: Mutex::new(ReservedSpace {
                needed: 0,
                held: None,
            }),
            ahead: Mutex::default(),
        }
    }

    /// Limit of dirty bytes, including those in flight.
    pub(crate) fn dirty_max(&self) -> u64 {
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

    /// Updates the count of an inode's failing bytes after a change. The caller holds its lock.
    pub(crate) fn recount_failing(&self, inner: &mut Inner) {
        let now = match inner.failing_since {
            Some(_) => inner.unpublished(),
            None => 0,
        };
        let before = std::mem::replace(&mut inner.failing_bytes, now);
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

    /// Claims memory and disk space for `bytes` of a write. `None`: no memory now, wait for `room`.
    /// Failing files have a separate share: they neither grow beyond it nor count against others up
    /// to it.
    ///
    /// # Errors
    /// `NoSpace`: the disks are full.
    pub(crate) fn claim(&self, bytes: u64, is_failing: bool) -> Result<Option<Claim<'_>>> {
        let failing = self.failing.load(Ordering::Relaxed);
        let before = self.dirty.fetch_add(bytes, Ordering::Relaxed);
        let others = before.saturating_sub(failing.min(self.failing_max()));
        let is_full = others > 0 && (others + bytes > self.dirty_max() || self.lacks_memory(bytes));
        if is_full || (is_failing && failing + bytes > self.failing_max()) {
            self.dirty.fetch_sub(bytes, Ordering::Relaxed);
            return Ok(None);
        }
        if let Err(error) = self.take_space(bytes) {
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
            self.room.notify_waiters();
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
        self.dirty.fetch_sub(bytes, Ordering::Relaxed);
        self.give_space(bytes);
        self.room.notify_waiters();
    }

    fn take_space(&self, bytes: u64) -> Result<()> {
        let mut space = self.space.lock();
        let held = space.held.as_ref().map_or(0, Reservation::bytes);
        if space.needed + bytes > held {
            let missing = space.needed + bytes - held;
            let more = match self.pool.reserve(missing.next_multiple_of(SPACE_STEP)) {
                Ok(more) => more,
                // Near the end, reserve only the bytes really needed.
                Err(_) => self.pool.reserve(missing)?,
            };
            match &mut space.held {
                Some(held) => held.join(more),
                None => space.held = Some(more),
            }
        }
        space.needed += bytes;
        Ok(())
    }

    /// Returns the reservation of stored bytes: their space is now used, and further writes must
    /// reserve anew.
    fn give_space(&self, bytes: u64) {
        let mut space = self.space.lock();
        space.needed = space
            .needed
            .checked_sub(bytes)
            .expect("space is given back once");
        if space.needed == 0 {
            space.held = None;
        } else if let Some(held) = &mut space.held {
            held.release(bytes);
        }
    }

    /// Caches clean bytes of an inode. The caller holds its lock.
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
            inner.clean.insert(at, piece, stamp, ahead)
        });
    }

    /// Drops cached clean bytes of an inode. The caller holds its lock.
    pub(crate) fn uncache(&self, inode: InodeId, inner: &mut Inner, from: u64, to: u64) {
        if !inner.clean.is_empty() {
            self.recount(inode, inner, |inner| inner.clean.cut(from, to));
        }
    }

    fn recount(&self, inode: InodeId, inner: &mut Inner, change: impl FnOnce(&mut Inner)) {
        let before = inner.clean.bytes();
        change(inner);
        let after = inner.clean.bytes();
        if after >= before {
            self.clean.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.clean.fetch_sub(before - after, Ordering::Relaxed);
        }
        let fresh = inner.clean.take_fresh();
        if !fresh.is_empty() {
            let mut ring = self.ring.lock();
            ring.extend(
                fresh
                    .into_iter()
                    .map(|(offset, stamp)| (inode, offset, stamp)),
            );
        }
    }

    /// Whether clean bytes must be evicted.
    pub(crate) fn is_over_budget(&self) -> bool {
        let budget = self.blocks.budget();
        self.blocks.held() > budget - budget / SLACK_PART || self.ring.lock().len() > PIECES_MAX
    }

    /// Whether `bytes` more would exceed the budget.
    pub(crate) fn lacks_memory(&self, bytes: u64) -> bool {
        self.blocks.held_for_data() + bytes > self.blocks.budget()
    }

    /// Makes room for `bytes` of a write, as far as evicting clean bytes can. Must be called
    /// without an inode's lock.
    pub(crate) fn make_room(&self, inodes: &Inodes, bytes: u64) {
        // Visits each piece twice: those read lately get another round.
        let most = self.ring.lock().len() * 2 + EVICTIONS_MAX;
        self.evict(inodes, most, || !self.lacks_memory(bytes));
    }

    /// Once a second: returns unused memory. Known extents are dropped when nothing else is left to
    /// evict.
    pub(crate) fn tidy(&self, inodes: &Inodes) {
        self.blocks.give_back_idle();
        self.evict(inodes, EVICTIONS_TIDY_MAX, || !self.is_over_budget());
        self.limit_extents(inodes);
        if self.is_over_budget() && self.ring.lock().is_empty() {
            self.forget_extents(inodes);
        }
    }

    /// Forgets known extents if they take too much: they grow with each open file, whatever else is
    /// cached. Must be called without an inode's lock.
    pub(crate) fn limit_extents(&self, inodes: &Inodes) {
        let is_too_much = || self.blocks.held_for_extents() > self.blocks.budget() / EXTENTS_PART;
        if !is_too_much() {
            return;
        }
        // One thread does it for all.
        if let Some(_turn) = self.forgetting.try_lock()
            && is_too_much()
        {
            self.forget_extents(inodes);
        }
    }

    fn forget_extents(&self, inodes: &Inodes) {
        inodes.each(|state| {
            let mut inner = state.lock();
            inner.extents.forget_all();
            inner.mapping += 1;
        });
    }

    /// Evicts clean bytes until the budget holds, those read lately last. Examines more pieces than
    /// the `brought` ones just added, or many small ones would pile up. Must be called without an
    /// inode's lock.
    pub(crate) fn shrink(&self, inodes: &Inodes, brought: usize) {
        let most = EVICTIONS_MAX + brought * EVICTIONS_PER_PIECE;
        self.evict(inodes, most, || !self.is_over_budget());
    }

    fn evict(&self, inodes: &Inodes, most: usize, is_enough: impl Fn() -> bool) {
        for _ in 0..most {
            if is_enough() {
                return;
            }
            if self.blocks.give_back() {
                continue;
            }
            let Some((inode, offset, stamp)) = self.ring.lock().pop_front() else {
                return;
            };
            let Some(state) = inodes.find(inode) else {
                continue;
            };
            let copy = |bytes: &[u8]| self.blocks.copy(bytes);
            let visit = state.lock().clean.come_by(offset, stamp, copy);
            match visit {
                Visit::Keep => self.ring.lock().push_back((inode, offset, stamp)),
                Visit::Dropped { bytes, wasted } => {
                    self.clean.fetch_sub(bytes, Ordering::Relaxed);
                    self.note_ahead(0, wasted);
                }
                Visit::Unknown => {}
            }
        }
    }

    /// Drops all clean bytes. Must be called without an inode's lock.
    pub(crate) fn forget_clean(&self, inodes: &Inodes) {
        let pieces = std::mem::take(&mut *self.ring.lock());
        for (inode, _, _) in pieces {
            if let Some(state) = inodes.find(inode) {
                let mut inner = state.lock();
                self.uncache(inode, &mut inner, 0, u64::MAX);
            }
        }
    }

    /// Counts read-ahead bytes that were used or evicted unused.
    pub(crate) fn note_ahead(&self, used: u64, wasted: u64) {
        if used + wasted == 0 {
            return;
        }
        let mut ahead = self.ahead.lock();
        ahead.0 += used;
        ahead.1 += wasted;
        if ahead.0 + ahead.1 > 1 << 30 {
            *ahead = (ahead.0 / 2, ahead.1 / 2);
        }
    }

    /// Limits read-ahead by how much of it was used lately.
    pub(crate) fn ahead_max(&self, wanted: u64) -> u64 {
        let (used, wasted) = *self.ahead.lock();
        if wasted < 16 << 20 || used > wasted * 3 {
            wanted
        } else if used > wasted {
            wanted / 2
        } else {
            wanted / 8
        }
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
