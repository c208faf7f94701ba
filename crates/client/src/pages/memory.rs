//! Memory of the page pool: counted from allocation until it is freed, including while a slice of
//! it is held anywhere.

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use world::AlignedBuffer;

/// Block buffers kept for the next block instead of being returned to the system, whose fresh pages
/// would cost a quarter of a stream's time: at most this fraction of the budget, which is as much as
/// may be dirty, and at most this many, which is that of a pool of the default size in blocks of
/// 4 MiB. They give way to whatever else needs memory.
const RECYCLED_MAX: usize = 32;
const RECYCLED_PART: u64 = 2;

/// Cost of a piece besides its bytes: entries in maps and lists, and the allocator's overhead.
pub(super) const PIECE_BYTES: u64 = 256;

/// Buffers of more than half this size are multiples of it (`world::AlignedBuffer`).
const WHOLE_BYTES: u64 = 1 << 20;

/// Pieces read from the NSDs are copied up to this size: otherwise they would keep alive the memory
/// of the disk read, [`AROUND_BYTES`] more.
pub(crate) const COPIED_MAX: usize = 4 * model::limits::UNIT_BYTES as usize;
/// Memory that uncopied bytes keep alive besides their own: the rest of their first and last units,
/// and the gaps to unit boundaries.
const AROUND_BYTES: u64 = 2 * model::limits::UNIT_BYTES as u64;

/// Allocates and recycles the memory of a client's page pool, and counts how much is held.
#[derive(Debug)]
pub(crate) struct Blocks {
    block_bytes: usize,
    budget: u64,
    recycled_max: usize,
    held: AtomicU64,
    /// The part of `held` for states of inodes: neither writing nor eviction frees it.
    states: AtomicU64,
    /// The part of `held` for known extents.
    extents: AtomicU64,
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    buffers: Vec<AlignedBuffer>,
    /// Number of buffers not needed since the last `give_back_idle`.
    lowest: usize,
}

impl Free {
    /// Takes one, if there is any.
    fn pop(&mut self) -> Option<AlignedBuffer> {
        let buffer = self.buffers.pop();
        self.lowest = self.lowest.min(self.buffers.len());
        buffer
    }
}

impl Blocks {
    pub(crate) fn new(block_bytes: u32, budget: u64) -> Arc<Self> {
        let recycled = budget / RECYCLED_PART / u64::from(block_bytes);
        Arc::new(Self {
            block_bytes: block_bytes as usize,
            budget,
            recycled_max: usize::try_from(recycled).map_or(RECYCLED_MAX, |it| it.min(RECYCLED_MAX)),
            held: AtomicU64::new(0),
            states: AtomicU64::new(0),
            extents: AtomicU64::new(0),
            free: Mutex::default(),
        })
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_bytes as u64
    }

    /// All memory held: dirty, in flight, cached, free, states of inodes, and slices that readers
    /// have.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// All but free block buffers.
    pub(crate) fn in_use(&self) -> u64 {
        let free = self.free.lock();
        // With the list locked: what has left it to be returned isn't held any more.
        let bytes = free.buffers.len() as u64 * self.block_bytes();
        self.held().saturating_sub(bytes)
    }

    /// Memory in use that storing, reading or evicting data can free.
    pub(crate) fn in_use_for_data(&self) -> u64 {
        let states = self.states.load(Ordering::Relaxed);
        self.in_use().saturating_sub(states)
    }

    /// Memory of known extents.
    pub(crate) fn held_for_extents(&self) -> u64 {
        self.extents.load(Ordering::Relaxed)
    }

    /// Limit of `held`.
    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    /// Counts memory that is taken. What gives way to it is freed here, although the caller may have an inode's lock: a block's
    /// buffer is kept for others (`world::AlignedBuffer`) unless they have many, and returning its few huge pages to the
    /// system costs less than what is done under that lock anyway, filling fresh ones.
    fn take(&self, bytes: u64) {
        self.held.fetch_add(bytes, Ordering::Relaxed);
        while self.held() > self.budget && self.give_back() {}
    }

    fn give(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A block buffer with arbitrary content.
    pub(crate) fn block(self: &Arc<Self>) -> Block {
        let recycled = self.free.lock().pop();
        let buffer = recycled.unwrap_or_else(|| {
            self.take(self.block_bytes());
            AlignedBuffer::with_any_content(self.block_bytes)
        });
        Block {
            buffer: Some(buffer),
            length: 0,
            home: self.clone(),
        }
    }

    /// Returns a free block buffer to the system; false if there is none.
    pub(super) fn give_back(&self) -> bool {
        let buffer = {
            let mut free = self.free.lock();
            let buffer = free.pop();
            if buffer.is_some() {
                self.give(self.block_bytes());
            }
            buffer
        };
        // Dropped without the lock: the system needs time for it.
        buffer.is_some()
    }

    /// Returns the block buffers to the system that weren't needed since the last call.
    pub(crate) fn give_back_idle(&self) {
        let idle = {
            let mut free = self.free.lock();
            let keep = free.buffers.len() - free.lowest;
            let idle = free.buffers.split_off(keep);
            free.lowest = free.buffers.len();
            self.give(idle.len() as u64 * self.block_bytes());
            idle
        };
        // Without the lock: the system needs time for it.
        drop(idle);
    }

    /// Counts bytes from the NSDs until they are freed; also returns how much memory they hold.
    pub(crate) fn counted(self: &Arc<Self>, bytes: Bytes) -> (Bytes, u64) {
        let length = bytes.len() as u64;
        let memory = if length <= COPIED_MAX as u64 {
            length
        } else if length > WHOLE_BYTES / 2 && length <= WHOLE_BYTES {
            WHOLE_BYTES
        } else {
            length + AROUND_BYTES
        };
        let charge = Charge::new(self, memory + PIECE_BYTES);
        (Counted::freeze(bytes, charge), memory)
    }

    /// A copy in its own memory.
    pub(crate) fn copy(self: &Arc<Self>, bytes: &[u8]) -> Bytes {
        let charge = Charge::new(self, bytes.len() as u64 + PIECE_BYTES);
        Counted::freeze(bytes.to_vec(), charge)
    }
}

/// A part of `held`, returned on drop.
#[derive(Debug)]
pub(crate) struct Charge {
    home: Arc<Blocks>,
    bytes: u64,
}

impl Charge {
    pub(crate) fn new(home: &Arc<Blocks>, bytes: u64) -> Self {
        home.take(bytes);
        Self {
            home: home.clone(),
            bytes,
        }
    }

    /// Changes the amount.
    pub(crate) fn set(&mut self, bytes: u64) {
        if bytes > self.bytes {
            self.home.take(bytes - self.bytes);
        } else if bytes < self.bytes {
            self.home.give(self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

/// Memory of an inode's known extents, returned on drop.
#[derive(Debug)]
pub(crate) struct ExtentsCharge(Charge);

impl ExtentsCharge {
    pub(crate) fn new(home: &Arc<Blocks>) -> Self {
        Self(Charge::new(home, 0))
    }

    /// Changes the amount.
    pub(crate) fn set(&mut self, bytes: u64) {
        let all = &self.0.home.extents;
        all.fetch_add(bytes, Ordering::Relaxed);
        all.fetch_sub(self.0.bytes, Ordering::Relaxed);
        self.0.set(bytes);
    }

    pub(crate) fn home(&self) -> &Arc<Blocks> {
        &self.0.home
    }
}

impl Drop for ExtentsCharge {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Memory of an inode's state besides its bytes and extents, returned on drop.
#[derive(Debug)]
pub(crate) struct StateCharge(Arc<Blocks>);

/// Its amount.
const STATE_BYTES: u64 = 1024;

impl StateCharge {
    pub(crate) fn new(home: &Arc<Blocks>) -> Self {
        home.take(STATE_BYTES);
        home.states.fetch_add(STATE_BYTES, Ordering::Relaxed);
        Self(home.clone())
    }
}

impl Drop for StateCharge {
    fn drop(&mut self) {
        self.0.states.fetch_sub(STATE_BYTES, Ordering::Relaxed);
        self.0.give(STATE_BYTES);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.home.give(self.bytes);
    }
}

/// Memory with its charge.
#[derive(Debug)]
pub(super) struct Counted<T> {
    memory: T,
    _charge: Charge,
}

impl<T: AsRef<[u8]> + Send + 'static> Counted<T> {
    pub(super) fn freeze(memory: T, charge: Charge) -> Bytes {
        Bytes::from_owner(Self {
            memory,
            _charge: charge,
        })
    }
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Counted<T> {
    fn as_ref(&self) -> &[u8] {
        self.memory.as_ref()
    }
}

/// A block buffer that is recycled when its last user drops it.
#[derive(Debug)]
pub(crate) struct Block {
    buffer: Option<AlignedBuffer>,
    length: usize,
    home: Arc<Blocks>,
}

impl Block {
    fn memory(&mut self) -> &mut AlignedBuffer {
        self.buffer
            .as_mut()
            .expect("a block has its buffer until it is dropped")
    }

    /// Memory that it holds, used or not.
    pub(super) fn held(&self) -> u64 {
        self.home.block_bytes()
    }

    /// The pushed bytes.
    pub(super) fn pushed(&mut self) -> &mut [u8] {
        let length = self.length;
        &mut self.memory()[..length]
    }

    /// Drops the pushed bytes after `length`.
    pub(super) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Appends a copy of `bytes`.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let at = self.length;
        self.memory()[at..at + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// The pushed bytes, shared, without a copy.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        let buffer = self
            .buffer
            .as_ref()
            .expect("a block has its buffer until it is dropped");
        &buffer[..self.length]
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else {
            return;
        };
        {
            let mut free = self.home.free.lock();
            // Above the budget nothing would return it before more is taken, or before half a minute has passed.
            let is_wanted =
                free.buffers.len() < self.home.recycled_max && self.home.held() <= self.home.budget;
            if is_wanted {
                free.buffers.push(buffer);
                return;
            }
        }
        self.home.give(self.home.block_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::run_memory::RunMemory;

    #[test]
    fn a_block_buffer_comes_back_when_its_last_reader_is_gone() {
        let blocks = Blocks::new(1 << 16, 16 << 20);
        let bytes = RunMemory::new(&[7; 100], true, &blocks).freeze();
        let part = bytes.slice(10..20);
        drop(bytes);
        assert!(blocks.free.lock().buffers.is_empty());
        assert_eq!(&part[..], &[7; 10]);
        drop(part);
        assert_eq!(blocks.free.lock().buffers.len(), 1);
    }

    #[test]
    fn what_is_held_counts_until_the_last_slice_is_gone() {
        let blocks = Blocks::new(1 << 20, 64 << 20);
        let one = |length: usize, stream| {
            let bytes = RunMemory::new(&vec![1; length], stream, &blocks).freeze();
            bytes.slice(..1)
        };
        for (length, stream, least) in [
            (10, false, 10),
            (300_000, false, 300_000),
            (1, true, 1 << 20),
        ] {
            let before = blocks.held();
            let slice = one(length, stream);
            assert!(blocks.held() - before >= least, "{length} bytes");
            drop(slice);
            while blocks.give_back() {}
            assert_eq!(blocks.held(), 0);
        }
        let copied = COPIED_MAX as u64;
        for (length, held) in [
            (5000, 5000),
            (copied, copied),
            (copied + 1, copied + 1 + AROUND_BYTES),
            (600_000, WHOLE_BYTES),
        ] {
            let bytes = Bytes::from(vec![1; length as usize]);
            let (counted, memory) = blocks.counted(bytes);
            assert_eq!(memory, held, "{length} bytes");
            let slice = counted.slice(7..8);
            drop(counted);
            assert_eq!(blocks.held(), held + PIECE_BYTES);
            drop(slice);
        }
        drop(blocks.copy(&[1; 7]));
        assert_eq!(blocks.held(), 0);
    }

    /// Would be broken if free buffers took memory from data, or the budget didn't hold.
    #[test]
    fn free_block_buffers_give_way_to_what_is_in_use() {
        let blocks = Blocks::new(1 << 20, 16 << 20);
        let several: Vec<_> = (0..8).map(|_| blocks.block()).collect();
        drop(several);
        assert_eq!((blocks.held(), blocks.in_use()), (8 << 20, 0));
        let again = blocks.block();
        assert_eq!((blocks.held(), blocks.in_use()), (8 << 20, 1 << 20));
        let pieces = Charge::new(&blocks, 10 << 20);
        assert_eq!((blocks.held(), blocks.in_use()), (16 << 20, 11 << 20));
        drop((pieces, again));
        assert_eq!((blocks.held(), blocks.in_use()), (6 << 20, 0));
    }

    /// Would be broken if memory beyond the budget, which one large write or readers can take, stayed held after its use.
    #[test]
    fn no_block_buffer_is_kept_above_the_budget() {
        let blocks = Blocks::new(1 << 20, 4 << 20);
        let pieces = Charge::new(&blocks, 4 << 20);
        let several: Vec<_> = (0..2).map(|_| blocks.block()).collect();
        assert_eq!(blocks.held(), 6 << 20);
        drop(several);
        assert_eq!((blocks.held(), blocks.in_use()), (4 << 20, 4 << 20));
        drop(pieces);
        drop(blocks.block());
        assert_eq!((blocks.held(), blocks.in_use()), (1 << 20, 0));
    }

    #[test]
    fn unneeded_block_buffers_are_given_back() {
        let blocks = Blocks::new(1 << 16, 16 << 20);
        let several: Vec<_> = (0..40).map(|_| blocks.block()).collect();
        assert_eq!(blocks.held(), 40 << 16);
        drop(several);
        assert_eq!(blocks.in_use(), 0);
        assert_eq!(blocks.held(), (RECYCLED_MAX as u64) << 16);
        blocks.give_back_idle();
        // One is needed, the others aren't.
        drop(blocks.block());
        blocks.give_back_idle();
        assert_eq!(blocks.held(), 1 << 16);
        blocks.give_back_idle();
        assert_eq!(blocks.held(), 0);
    }
}
