//! Memory of one dirty run: it grows with the run, up to a whole block, and is counted until the last
//! slice of it is gone.

use super::memory::{Block, Blocks, Charge, Counted, PIECE_BYTES};
use bytes::Bytes;
use std::sync::Arc;
use world::AlignedBuffer;

/// Runs up to this size use ordinary memory: they are copied into a pack anyway.
const SMALL_MAX: usize = 128 * 1024;

/// Cost of a small written piece besides its bytes: as [`PIECE_BYTES`], and freed small pieces leave
/// holes in the allocator's pages, which it can't return.
pub(super) const WRITTEN_PIECE_BYTES: u64 = 768;

/// The bytes of one dirty run.
#[derive(Debug)]
pub(crate) enum RunMemory {
    /// Ordinary memory.
    Small(Vec<u8>, Charge),
    /// Page-aligned memory that may grow by copying.
    Medium(AlignedBuffer, usize, Charge),
    /// A whole block.
    Large(Block),
}

impl RunMemory {
    /// Memory with a copy of `bytes`. `stream`: the rest of the block is expected too.
    pub(crate) fn new(bytes: &[u8], stream: bool, blocks: &Arc<Blocks>) -> Self {
        let mut memory = if stream {
            Self::Large(blocks.block())
        } else {
            Self::Small(Vec::new(), Charge::new(blocks, WRITTEN_PIECE_BYTES))
        };
        memory.extend(bytes, blocks);
        memory
    }

    /// Empty memory, to replace memory that is taken.
    pub(crate) fn none(blocks: &Arc<Blocks>) -> Self {
        Self::Small(Vec::new(), Charge::new(blocks, 0))
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Small(bytes, _) => bytes,
            Self::Medium(buffer, length, _) => &buffer[..*length],
            Self::Large(block) => block.as_ref(),
        }
    }

    /// Memory held by the run, used or not.
    pub(crate) fn held(&self) -> u64 {
        match self {
            Self::Small(bytes, _) => bytes.capacity() as u64,
            Self::Medium(buffer, _, _) => buffer.len() as u64,
            Self::Large(block) => block.held(),
        }
    }

    /// Overwrites existing bytes from `at` on; `at + bytes.len()` is inside.
    pub(crate) fn overwrite(&mut self, at: usize, bytes: &[u8]) {
        let all: &mut [u8] = match self {
            Self::Small(memory, _) => memory,
            Self::Medium(buffer, length, _) => &mut buffer[..*length],
            Self::Large(block) => block.pushed(),
        };
        all[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Adds bytes at the end; the run stays inside one block.
    pub(crate) fn extend(&mut self, bytes: &[u8], blocks: &Arc<Blocks>) {
        let length = self.as_slice().len() + bytes.len();
        self.grow(length, blocks);
        match self {
            Self::Small(memory, charge) => {
                memory.extend_from_slice(bytes);
                charge.set(memory.capacity() as u64 + WRITTEN_PIECE_BYTES);
            }
            Self::Medium(buffer, used, _) => {
                buffer[*used..length].copy_from_slice(bytes);
                *used = length;
            }
            Self::Large(block) => block.push(bytes),
        }
    }

    fn grow(&mut self, length: usize, blocks: &Arc<Blocks>) {
        let block_bytes = blocks.block_bytes() as usize;
        let room = match self {
            Self::Small(..) => SMALL_MAX,
            Self::Medium(buffer, ..) => buffer.len(),
            Self::Large(_) => block_bytes,
        };
        if length <= room {
            return;
        }
        assert!(length <= block_bytes, "a run stays inside its block");
        let capacity = length.next_power_of_two() * 2;
        *self = if capacity < block_bytes {
            let mut buffer = AlignedBuffer::with_any_content(capacity);
            let old = self.as_slice();
            buffer[..old.len()].copy_from_slice(old);
            let used = old.len();
            let charge = Charge::new(blocks, capacity as u64 + PIECE_BYTES);
            Self::Medium(buffer, used, charge)
        } else {
            let mut block = blocks.block();
            block.push(self.as_slice());
            Self::Large(block)
        };
    }

    /// Cuts off everything after `length`.
    pub(crate) fn truncate(&mut self, length: usize) {
        match self {
            Self::Small(bytes, _) => bytes.truncate(length),
            Self::Medium(_, used, _) => *used = (*used).min(length),
            Self::Large(block) => block.truncate(length),
        }
    }

    /// The bytes, shared, without a copy.
    pub(crate) fn freeze(self) -> Bytes {
        match self {
            Self::Small(bytes, charge) => Counted::freeze(bytes, charge),
            Self::Medium(mut buffer, length, charge) => {
                buffer.truncate(length);
                Counted::freeze(buffer, charge)
            }
            Self::Large(block) => block.freeze(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_keeps_its_bytes_while_its_memory_grows() {
        let blocks = Blocks::new(1 << 20, 64 << 20);
        let content: Vec<u8> = (0..1 << 20).map(|at: u32| ((at * 31) >> 3) as u8).collect();
        let mut memory = RunMemory::new(&content[..10], false, &blocks);
        let mut at = 10;
        while at < content.len() {
            let step = (at / 3 + 1).min(content.len() - at);
            memory.extend(&content[at..at + step], &blocks);
            at += step;
            assert!(blocks.held() >= memory.held() && memory.held() >= at as u64);
        }
        memory.overwrite(5, b"hello");
        let bytes = memory.freeze();
        assert_eq!(&bytes[5..10], b"hello");
        assert_eq!(bytes[10..], content[10..]);
        assert!(world::is_aligned(&bytes));
    }
}
