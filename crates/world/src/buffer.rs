//! Page-aligned memory that disks read into and write from without a copy.

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::time::Duration;

/// Alignment of disk offsets, lengths and memory in bytes.
pub const DISK_ALIGNMENT: usize = 4096;

/// Buffers of more than half of this size, up to all of it, reuse kept memory of exactly this size
/// if there is any; otherwise they get fresh memory of their own size. Only memory of exactly this
/// size is kept when freed. Fresh memory costs a page fault per 4 KiB (about 250 µs per MiB),
/// recycled memory none.
const LARGE_BYTES: usize = 1 << 20;

/// Most buffers of `LARGE_BYTES` kept for reuse (64 MiB together).
const LARGE_MAX: usize = 64;

/// The same for buffers of exactly these sizes: pieces of wide schemes, which have so much of a block if it is in eight or
/// 16 data pieces.
const HALF_BYTES: usize = LARGE_BYTES / 2;
const QUARTER_BYTES: usize = LARGE_BYTES / 4;

/// Most buffers of each of these two sizes kept for reuse (24 MiB together): the parity, with two pieces, of as many blocks
/// as a client has under way.
const EXACT_MAX: usize = 32;

/// The same as for `LARGE_BYTES`, for blocks: what a node receives of another one's stream. Fresh memory of this size is a
/// mapping of its own, whose pages the kernel zeroes for each block anew.
const BLOCK_BYTES: usize = model::limits::BLOCK_BYTES_DEFAULT as usize;

/// Most buffers of `BLOCK_BYTES` kept for reuse (128 MiB together): as many as a client may have under way to this node.
/// With eight of them a stream of 1.2 GiB/s took fresh memory for most of its blocks: a twelfth of the CPU time.
const BLOCKS_MAX: usize = 32;

/// Buffers of up to this many pages are kept, too: the allocator leaves holes around aligned memory
/// that it rarely reuses, so that many small reads would cost several times their size.
const SMALL_PAGES_MAX: usize = 5;

/// Most kept buffers of each number of pages (15 MiB together).
const SMALL_MAX: usize = 256;

/// Memory of this size or more is requested as huge pages: a disk request pins each page, which
/// with small pages takes a tenth of the CPU time of a stream.
const HUGE_BYTES: usize = 2 << 20;

/// Memory of exactly these sizes is a part of a huge page: pieces of erasure-coded blocks, those that are computed, received
/// or read. On small pages 1 MiB is in up to 256 places, and a request to many disks has 254 at most: it would be two. A
/// part that isn't kept goes back to the kernel, which uses it for others once it is short of memory, or the whole page is
/// back.
const PARTS: [usize; 3] = [QUARTER_BYTES, HALF_BYTES, LARGE_BYTES];

/// Memory of one size kept for reuse.
struct FreeList {
    capacity: usize,
    most: usize,
    waiting: Mutex<Waiting>,
}

/// What waits for reuse.
struct Waiting {
    memory: Vec<Memory>,
    /// The fewest that have waited at a time since the list was looked at: nobody has needed these.
    fewest: usize,
}

impl Waiting {
    fn take(&mut self) -> Option<Memory> {
        let taken = self.memory.pop();
        self.fewest = self.fewest.min(self.memory.len());
        taken
    }

    /// Takes out what nobody has needed since this was called before.
    fn take_unused(&mut self) -> Vec<Memory> {
        let needed = self.memory.len() - self.fewest;
        let unused = self.memory.split_off(needed);
        self.fewest = needed;
        unused
    }
}

/// Lists for buffers of exactly one size.
const EXACT: usize = 2;

/// Small buffers by number of pages, then those of exactly a size, then those of `LARGE_BYTES` and of `BLOCK_BYTES`.
static FREE_LISTS: [FreeList; SMALL_PAGES_MAX + EXACT + 2] = [
    FreeList::of(DISK_ALIGNMENT, SMALL_MAX),
    FreeList::of(2 * DISK_ALIGNMENT, SMALL_MAX),
    FreeList::of(3 * DISK_ALIGNMENT, SMALL_MAX),
    FreeList::of(4 * DISK_ALIGNMENT, SMALL_MAX),
    FreeList::of(SMALL_PAGES_MAX * DISK_ALIGNMENT, SMALL_MAX),
    FreeList::of(QUARTER_BYTES, EXACT_MAX),
    FreeList::of(HALF_BYTES, EXACT_MAX),
    FreeList::of(LARGE_BYTES, LARGE_MAX),
    FreeList::of(BLOCK_BYTES, BLOCKS_MAX),
];

const _: () = assert!(LARGE_BYTES <= BLOCK_BYTES / 2);
const _: () = assert!(HUGE_BYTES.is_multiple_of(LARGE_BYTES) && LARGE_BYTES < HUGE_BYTES);

impl FreeList {
    const fn of(capacity: usize, most: usize) -> Self {
        Self {
            capacity,
            most,
            waiting: Mutex::new(Waiting {
                memory: Vec::new(),
                fewest: 0,
            }),
        }
    }

    /// The list that buffers of this length are taken from, if any. Only lengths that use most of
    /// the memory qualify, so that a small buffer doesn't occupy a large buffer's memory.
    fn for_length(length: usize) -> Option<&'static Self> {
        if let Some(exact) = Self::for_capacity(length) {
            return Some(exact);
        }
        let large = FREE_LISTS[SMALL_PAGES_MAX + EXACT..].iter();
        let mut fitting =
            large.filter(|list| length > list.capacity / 2 && length <= list.capacity);
        if let Some(list) = fitting.next() {
            return Some(list);
        }
        let pages = length.div_ceil(DISK_ALIGNMENT).max(1);
        (pages <= SMALL_PAGES_MAX).then(|| &FREE_LISTS[pages - 1])
    }

    /// The list that memory of this capacity is returned to, if any.
    fn for_capacity(capacity: usize) -> Option<&'static Self> {
        FREE_LISTS.iter().find(|list| list.capacity == capacity)
    }
}

/// Bytes of freed buffers kept for reuse, now and at most.
#[must_use]
pub fn recycled_buffer_bytes() -> (u64, u64) {
    let bytes = |buffers: usize, list: &FreeList| (buffers * list.capacity) as u64;
    FREE_LISTS.iter().fold((0, 0), |(waiting, most), list| {
        let now = list.waiting.lock().memory.len();
        (waiting + bytes(now, list), most + bytes(list.most, list))
    })
}

/// How often memory is returned to the system that nothing has needed since the last time. Programs write and read in bursts,
/// and fresh memory can cost a burst more than all else: on a virtual machine that tells its host of free memory, 4 to 8 ms
/// for 4 MiB.
pub const GIVE_BACK_EVERY: Duration = Duration::from_secs(30);

/// Gives the system back what no buffer has needed since this was called before. Called again and again it leaves an idle
/// node nothing, and a busy one what its peaks need. Takes some milliseconds at most.
pub fn release_unused_buffers() {
    for list in &FREE_LISTS {
        let unused = list.waiting.lock().take_unused();
        // Without the lock: the system needs time for it.
        unused.into_iter().for_each(Memory::release);
    }
}

/// A page-aligned block of bytes of fixed length.
pub struct AlignedBuffer {
    memory: Memory,
    length: usize,
}

impl AlignedBuffer {
    /// `length` bytes of zeros.
    #[must_use]
    pub fn zeroed(length: usize) -> Self {
        match Memory::recycled(length) {
            Some(memory) => {
                let mut buffer = Self { memory, length };
                buffer.fill(0);
                buffer
            }
            None => Self {
                memory: Memory::fresh(length),
                length,
            },
        }
    }

    /// `length` bytes of arbitrary (initialised) content, for buffers that are overwritten at once.
    #[must_use]
    pub fn with_any_content(length: usize) -> Self {
        let memory = Memory::recycled(length).unwrap_or_else(|| Memory::fresh(length));
        Self { memory, length }
    }

    /// A copy of `bytes` in aligned memory.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buffer = Self::with_any_content(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// The same memory as shared read-only bytes; no copy.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Cuts off the bytes after `length`; the memory stays as it is.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    pub(crate) fn as_raw(&mut self) -> *mut u8 {
        self.memory.start.as_ptr()
    }
}

/// Whether a disk can use the memory of `bytes` directly.
#[must_use]
pub fn is_aligned(bytes: &[u8]) -> bool {
    (bytes.as_ptr() as usize).is_multiple_of(DISK_ALIGNMENT)
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is initialised (allocated zeroed), at least `length` bytes long and
        // owned by this buffer alone.
        unsafe { std::slice::from_raw_parts(self.memory.start.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AlignedBuffer")
            .field("length", &self.length)
            .finish()
    }
}

/// One allocation, aligned to [`DISK_ALIGNMENT`]; kept for reuse on drop if a list takes it.
struct Memory {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: `Memory` owns its allocation alone; nothing in it is bound to a thread.
unsafe impl Send for Memory {}
// SAFETY: shared access only reads (`Deref`), writing needs `&mut`.
unsafe impl Sync for Memory {}

impl Memory {
    fn fresh(length: usize) -> Self {
        let capacity = length.max(1).next_multiple_of(DISK_ALIGNMENT);
        if PARTS.contains(&capacity) {
            return Self::part_of_huge_page(capacity);
        }
        if is_mapped(capacity) {
            return Self {
                start: map_huge(capacity),
                capacity,
            };
        }
        let layout = layout_of(capacity);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout)
        };
        Self { start, capacity }
    }

    /// The first part of a new huge page; the others are left for those who ask next.
    fn part_of_huge_page(capacity: usize) -> Self {
        let page = map_huge(HUGE_BYTES);
        let part = |at: usize| {
            // SAFETY: `at` is inside the mapping.
            let start = unsafe { page.add(at) };
            Self { start, capacity }
        };
        for at in (capacity..HUGE_BYTES).step_by(capacity) {
            drop(part(at));
        }
        part(0)
    }

    fn recycled(length: usize) -> Option<Self> {
        FreeList::for_length(length)?.waiting.lock().take()
    }

    /// Gives it back to where `fresh` took it from.
    fn release(self) {
        if is_mapped(self.capacity) {
            let list = FreeList::for_capacity(self.capacity);
            // SAFETY: mapped by `fresh`, with this length or as a part of more that has this length and
            // no other owner; no reference to it is left.
            let unmap = |memory: &Self| unsafe {
                munmap(memory.start.as_ptr().cast(), memory.capacity).is_ok()
            };
            return self.release_mapped(list, unmap);
        }
        let memory = ManuallyDrop::new(self);
        // SAFETY: allocated by `fresh` with exactly this layout, and nobody else has it.
        unsafe { dealloc(memory.start.as_ptr(), layout_of(memory.capacity)) };
    }

    /// Gives the kernel its pages back. Its addresses, too, unless the process would have more mappings than it may
    /// (`vm.max_map_count`), as after parts out of the middle of many: then they wait in the list, which takes them
    /// beyond its limit, for who needs memory next or for the next try.
    fn release_mapped(self, list: Option<&FreeList>, unmap: impl FnOnce(&Self) -> bool) {
        let memory = ManuallyDrop::new(self);
        if unmap(&memory) {
            return;
        }
        // SAFETY: mapped by `fresh`, and no reference to it is left. Whoever uses it next finds zeros; if it fails, what
        // was there, as in all memory that is used again.
        let _ = unsafe {
            madvise(
                memory.start.as_ptr().cast(),
                memory.capacity,
                Advice::LinuxDontNeed,
            )
        };
        if let Some(list) = list {
            let memory = ManuallyDrop::into_inner(memory);
            list.waiting.lock().memory.push(memory);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let memory = Self {
            start: self.start,
            capacity: self.capacity,
        };
        if let Some(list) = FreeList::for_capacity(self.capacity) {
            let mut waiting = list.waiting.lock();
            if waiting.memory.len() < list.most {
                waiting.memory.push(memory);
                return;
            }
        }
        memory.release();
    }
}

/// Whether memory of this capacity is mapped, and not the allocator's.
fn is_mapped(capacity: usize) -> bool {
    capacity >= HUGE_BYTES || PARTS.contains(&capacity)
}

/// Zeroed memory in a mapping of its own. Since 6.7 Linux aligns such mappings to huge pages.
fn map_huge(capacity: usize) -> NonNull<u8> {
    // SAFETY: a private anonymous mapping at a place of the kernel's choice touches nothing else.
    let start = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            capacity,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    let Ok(start) = start else {
        handle_alloc_error(layout_of(capacity))
    };
    // SAFETY: the range was just mapped. If the kernel ignores the advice, nothing changes.
    let _ = unsafe { madvise(start, capacity, Advice::LinuxHugepage) };
    NonNull::new(start.cast()).expect("mmap never returns null")
}

fn layout_of(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, DISK_ALIGNMENT).expect("a power of two, far below isize")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_page_aligned_and_zeroed_even_when_recycled() {
        for length in [
            0,
            1,
            4096,
            5000,
            20_480,
            20_481,
            QUARTER_BYTES,
            HALF_BYTES,
            HALF_BYTES + 1,
            LARGE_BYTES,
            HUGE_BYTES + 1,
            BLOCK_BYTES,
            BLOCK_BYTES + 1,
        ] {
            for _ in 0..3 {
                let mut buffer = AlignedBuffer::zeroed(length);
                assert!(buffer.memory.capacity >= length);
                assert!(is_aligned(&buffer));
                assert_eq!(buffer.len(), length);
                assert!(buffer.iter().all(|byte| *byte == 0));
                buffer.fill(0xff);
            }
        }
    }

    #[test]
    fn a_limited_number_of_buffers_is_kept() {
        let lengths = [
            100,
            8192,
            QUARTER_BYTES,
            HALF_BYTES,
            LARGE_BYTES,
            BLOCK_BYTES,
        ];
        for length in lengths {
            let list = FreeList::for_length(length).unwrap();
            let buffers: Vec<_> = (0..list.most + 10)
                .map(|_| AlignedBuffer::with_any_content(length))
                .collect();
            drop(buffers);
            let waiting = list.waiting.lock().memory.len();
            assert!((1..=list.most).contains(&waiting), "{waiting} of {length}");
        }
        let (waiting, most) = recycled_buffer_bytes();
        assert!(waiting > 0 && waiting <= most, "{waiting} of {most}");
    }

    #[test]
    fn what_nobody_needs_between_two_looks_is_released() {
        // Of no list, so that no other test takes part.
        let list = FreeList::of(DISK_ALIGNMENT, 5);
        let mut waiting = list.waiting.lock();
        let waits = |_| Memory::fresh(DISK_ALIGNMENT);
        waiting.memory.extend((0..5).map(waits));
        assert_eq!(waiting.take_unused().len(), 0, "new ones");
        let taken = [waiting.take().unwrap(), waiting.take().unwrap()];
        waiting.memory.extend(taken);
        assert_eq!(waiting.take_unused().len(), 3, "two were needed at a time");
        assert_eq!(waiting.memory.len(), 2);
        assert_eq!(waiting.take_unused().len(), 2, "none since");
        assert!(waiting.take().is_none() && waiting.take_unused().is_empty());
        for memory in std::mem::take(&mut waiting.memory) {
            memory.release();
        }
    }

    #[test]
    fn parts_of_a_huge_page_are_apart_and_end_one_by_one() {
        for length in PARTS {
            let list = FreeList::for_length(length).unwrap();
            // More than are kept, so that some go back to the kernel while their neighbours are in use.
            let mut buffers: Vec<_> = (0..2 * list.most + 3)
                .map(|number| {
                    let mut buffer = AlignedBuffer::with_any_content(length);
                    buffer.fill(number as u8);
                    (number as u8, buffer)
                })
                .collect();
            let is_own = |(number, buffer): &(u8, AlignedBuffer)| {
                let mut some = buffer.iter().step_by(512).chain(buffer.last());
                is_aligned(buffer) && some.all(|byte| byte == number)
            };
            while !buffers.is_empty() {
                assert!(buffers.iter().all(is_own));
                let mut goes = false;
                buffers.retain(|_| {
                    goes = !goes;
                    !goes
                });
            }
        }
    }

    /// Would be lost, again and again, on a node with more holes in its memory than it may have mappings.
    #[test]
    fn memory_that_the_kernel_does_not_unmap_gives_its_pages_back_and_is_used_again() {
        // Of no list, so that no other test takes it.
        let list = FreeList::of(QUARTER_BYTES, 0);
        let buffer_of = |memory| AlignedBuffer {
            memory,
            length: QUARTER_BYTES,
        };
        let mut buffer = buffer_of(Memory::fresh(QUARTER_BYTES));
        buffer.fill(0xff);
        let start = buffer.memory.start;
        buffer.memory.release_mapped(Some(&list), |_| false);
        let memory = list.waiting.lock().take().unwrap();
        assert_eq!(memory.start, start);
        let buffer = buffer_of(memory);
        assert!(buffer.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn freezing_keeps_the_memory_where_it_is() {
        let mut buffer = AlignedBuffer::zeroed(8192);
        buffer[8191] = 7;
        let address = buffer.as_ptr();
        let bytes = buffer.freeze();
        assert_eq!(bytes.as_ptr(), address);
        assert_eq!(bytes[8191], 7);
        assert_eq!(bytes.slice(4096..).len(), 4096);
    }
}
