//! The byte budget of the page pool, and the space on the NSDs that dirty bytes will need.

use crate::inode::{Inner, Inodes};
use crate::pages::clean::{Visit, is_wasteful};
use crate::pages::memory::Blocks;
use bytes::Bytes;
use model::{Error, InodeId, Result};
use parking_lot::Mutex;
use pool::{Pool, Reservation};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// Space is taken from the pool in steps of this many bytes.
const SPACE_STEP: u64 = 8 * 1024 * 1024;

/// Entries that one insertion looks at to make room, beside those for each piece that it brings.
const EVICTIONS_MAX: usize = 64;

/// Entries that are looked at for each piece that came, so that a pool in which all was read
/// lately is walked around before the slack is used up: who was read gets another round.
const EVICTIONS_PER_PIECE: usize = 3 * SLACK_PART as usize / 2;

/// Entries that are looked at once a second, at most.
const EVICTIONS_TIDY_MAX: usize = 16_384;

/// Clean bytes go before the budget is used up by this part, so that writers need not wait for
/// that.
const SLACK_PART: u64 = 8;

/// What is known of extents is forgotten beyond this part of the budget, so that there is room for data.
const EXTENTS_PART: u64 = 4;

/// Cached pieces, however small.
const PIECES_MAX: usize = 131_072;

/// Accounts of the page pool.
pub(crate) struct PagePool {
    pool: Arc<Pool>,
    /// Where all memory comes from, and how much of it is held.
    blocks: Arc<Blocks>,
    dirty: AtomicU64,
    /// The part of `dirty` that is on its way to the NSDs.
    on_the_way: AtomicU64,
    /// The part of `dirty` that belongs to files of which something couldn't be stored.
    failing: AtomicU64,
    clean: AtomicU64,
    stamps: AtomicU64,
    /// Dirty bytes became fewer, or can't now.
    pub(crate) room: Notify,
    /// Why dirty bytes couldn't be stored the last time, if they couldn't.
    failure: Mutex<Option<Error>>,
    ring: Mutex<VecDeque<(InodeId, u64, u64)>>,
    /// Somebody forgets what is known of extents.
    forgetting: Mutex<()>,
    space: Mutex<Space>,
    /// Bytes fetched ahead that were read, and that weren't; halved now and then.
    ahead: Mutex<(u64, u64)>,
}

struct Space {
    needed: u64,
    held: Option<Reservation>,
}

/// Dirty bytes that a write may fill; what it doesn't fill goes back when dropped.
pub(crate) struct Claim<'a> {
    pages: &'a PagePool,
    bytes: u64,
}

impl Claim<'_> {
    /// So many bytes became dirty; they are given back by [`PagePool::release`].
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
            failure: Mutex::default(),
            ring: Mutex::default(),
            forgetting: Mutex::default(),
            space: Mutex::new(Space {
                needed: 0,
                held: None,
            }),
            ahead: Mutex::default(),
        }
    }

    /// Dirty bytes and those on their way, at most.
    pub(crate) fn dirty_max(&self) -> u64 {
        self.blocks.budget() / 2
    }

    /// What files that can't be stored hold of others' share, at most: beyond it their own
    /// writers wait. Up to here it is taken from what is cached.
    fn failing_max(&self) -> u64 {
        self.dirty_max() / 2
    }

    /// Whether any file has something that couldn't be stored.
    pub(crate) fn has_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed) > 0
    }

    /// Counts what an inode that fails holds, after it changed. Its state is locked by the
    /// caller.
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

    /// Dirty bytes and those on their way.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Dirty bytes get on their way.
    pub(crate) fn send_off(&self, bytes: u64) {
        self.on_the_way.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that were on their way are stored, or gone.
    pub(crate) fn arrive(&self, bytes: u64) {
        self.on_the_way.fetch_sub(bytes, Ordering::Relaxed);
        self.release(bytes);
    }

    /// Whether so much waits that isn't on its way that files should be written before their
    /// time. What is on its way makes room by itself, and a stream isn't cut for it.
    pub(crate) fn is_short(&self) -> bool {
        let on_the_way = self.on_the_way.load(Ordering::Relaxed);
        let waits = self.dirty().saturating_sub(on_the_way);
        waits > self.dirty_max() / 2
    }

    /// Whether anything is on its way.
    pub(crate) fn is_moving(&self) -> bool {
        self.on_the_way.load(Ordering::Relaxed) > 0
    }

    /// Claims memory and disk space for `bytes` of a write. `None`: there is no memory now,
    /// wait for `room`. Files that fail have a share of their own: what they hold neither grows
    /// beyond it nor counts against others up to there.
    ///
    /// # Errors
    /// `NoSpace`: the disks have none.
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

    /// How the last try to store dirty bytes went.
    pub(crate) fn note_store(&self, failure: Option<Error>) {
        let is_failure = failure.is_some();
        *self.failure.lock() = failure;
        if is_failure {
            self.room.notify_waiters();
        }
    }

    /// Why dirty bytes can't be stored now.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.lock().clone()
    }

    /// Dirty bytes are stored, or gone.
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
                // Near the end only what is really needed counts.
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

    /// What was held for stored bytes is used up: it isn't there for the next ones, which ask
    /// anew.
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

    /// Caches clean bytes of an inode whose state is locked by the caller.
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

    /// Forgets clean bytes of an inode whose state is locked by the caller.
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

    /// Whether clean bytes have to go.
    pub(crate) fn is_over_budget(&self) -> bool {
        let budget = self.blocks.budget();
        self.blocks.held() > budget - budget / SLACK_PART || self.ring.lock().len() > PIECES_MAX
    }

    /// Whether `bytes` more would be beyond the budget.
    pub(crate) fn lacks_memory(&self, bytes: u64) -> bool {
        self.blocks.held_for_data() + bytes > self.blocks.budget()
    }

    /// Makes room for `bytes` of a write, as far as letting clean bytes go makes it. Call without
    /// holding an inode's lock.
    pub(crate) fn make_room(&self, inodes: &Inodes, bytes: u64) {
        // Each piece twice: what was read lately gets another round.
        let most = self.ring.lock().len() * 2 + EVICTIONS_MAX;
        self.evict(inodes, most, || !self.lacks_memory(bytes));
    }

    /// Once a second: gives back what nobody needs. What is known of extents goes when nothing
    /// else is left to go.
    pub(crate) fn tidy(&self, inodes: &Inodes) {
        self.blocks.give_back_idle();
        self.evict(inodes, EVICTIONS_TIDY_MAX, || !self.is_over_budget());
        self.limit_extents(inodes);
        if self.is_over_budget() && self.ring.lock().is_empty() {
            self.forget_extents(inodes);
        }
    }

    /// Forgets what is known of extents if that is too much: it grows with each file that is open,
    /// whatever else is cached. Call without holding an inode's lock.
    pub(crate) fn limit_extents(&self, inodes: &Inodes) {
        let is_too_much = || self.blocks.held_for_extents() > self.blocks.budget() / EXTENTS_PART;
        if !is_too_much() {
            return;
        }
        // One does it for all.
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

    /// Lets clean bytes go until the budget fits again, those that were read lately last. So many
    /// pieces were brought: more than they go, or many small ones would pile up.
    /// Call without holding an inode's lock.
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

    /// Forgets all clean bytes. Call without holding an inode's lock.
    pub(crate) fn forget_clean(&self, inodes: &Inodes) {
        let pieces = std::mem::take(&mut *self.ring.lock());
        for (inode, _, _) in pieces {
            if let Some(state) = inodes.find(inode) {
                let mut inner = state.lock();
                self.uncache(inode, &mut inner, 0, u64::MAX);
            }
        }
    }

    /// Bytes that were fetched ahead were read, or went unread.
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

    /// How far ahead may be fetched, from how much of it was used lately.
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

    /// All memory that is held, and its budget.
    pub(crate) fn memory(&self) -> (u64, u64) {
        (self.blocks.held(), self.blocks.budget())
    }

    /// Dirty and clean bytes, for status.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.dirty(), self.clean.load(Ordering::Relaxed))
    }
}
