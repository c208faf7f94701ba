//! Memory of dirty runs: grows as a run grows, and is page-aligned where it pays.

use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use world::AlignedBuffer;

/// Runs up to this size live in ordinary memory: they are copied into a pack anyway.
const SMALL_MAX: usize = 128 * 1024;

/// Block buffers that wait for the next block instead of going back to the system, whose
/// fresh pages would cost a quarter of the time of a stream.
const RECYCLED_MAX: usize = 24;

/// Gives out the block buffers of a client and takes them back.
#[derive(Debug)]
pub(crate) struct Blocks {
    block_bytes: usize,
    free: Mutex<Vec<AlignedBuffer>>,
}

impl Blocks {
    pub(crate) fn new(block_bytes: u32) -> Arc<Self> {
        let block_bytes = block_bytes as usize;
        Arc::new(Self {
            block_bytes,
            free: Mutex::new(Vec::new()),
        })
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_bytes as u64
    }

    /// A buffer of a whole block, of any content.
    pub(crate) fn block(self: &Arc<Self>) -> Block {
        let recycled = self.free.lock().pop();
        let buffer = recycled.unwrap_or_else(|| AlignedBuffer::with_any_content(self.block_bytes));
        Block {
            buffer: Some(buffer),
            length: 0,
            home: self.clone(),
        }
    }
}

/// A block buffer that goes back home when the last user lets go of it.
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

    /// Takes in a copy of `bytes`, behind what is there.
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
        if let Some(buffer) = self.buffer.take() {
            let mut free = self.home.free.lock();
            if free.len() < RECYCLED_MAX {
                free.push(buffer);
            }
        }
    }
}

/// The bytes of one dirty run.
#[derive(Debug)]
pub(crate) enum RunMemory {
    /// Ordinary memory.
    Small(Vec<u8>),
    /// Page-aligned memory that may grow by copying.
    Medium(AlignedBuffer, usize),
    /// A whole block.
    Large(Block),
}

impl RunMemory {
    /// Memory with a copy of `bytes`. `stream`: the rest of the block will come too.
    pub(crate) fn new(bytes: &[u8], stream: bool, blocks: &Arc<Blocks>) -> Self {
        let mut memory = Self::Small(Vec::new());
        if stream {
            memory = Self::Large(blocks.block());
        }
        memory.extend(bytes, blocks);
        memory
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Medium(buffer, length) => &buffer[..*length],
            Self::Large(block) => block.as_ref(),
        }
    }

    /// Writes over what is there, from byte `at` on; `at + bytes.len()` is inside.
    pub(crate) fn overwrite(&mut self, at: usize, bytes: &[u8]) {
        let all: &mut [u8] = match self {
            Self::Small(memory) => memory,
            Self::Medium(buffer, length) => &mut buffer[..*length],
            Self::Large(block) => {
                let length = block.length;
                &mut block.memory()[..length]
            }
        };
        all[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Adds bytes at the end; the run stays inside one block.
    pub(crate) fn extend(&mut self, bytes: &[u8], blocks: &Arc<Blocks>) {
        let length = self.as_slice().len() + bytes.len();
        self.grow(length, blocks);
        match self {
            Self::Small(memory) => memory.extend_from_slice(bytes),
            Self::Medium(buffer, used) => {
                buffer[*used..length].copy_from_slice(bytes);
                *used = length;
            }
            Self::Large(block) => block.push(bytes),
        }
    }

    fn grow(&mut self, length: usize, blocks: &Arc<Blocks>) {
        let room = match self {
            Self::Small(_) => SMALL_MAX,
            Self::Medium(buffer, _) => buffer.len(),
            Self::Large(_) => blocks.block_bytes,
        };
        if length <= room {
            return;
        }
        assert!(length <= blocks.block_bytes, "a run stays inside its block");
        let capacity = length.next_power_of_two() * 2;
        *self = if capacity < blocks.block_bytes {
            let mut buffer = AlignedBuffer::with_any_content(capacity);
            let old = self.as_slice();
            buffer[..old.len()].copy_from_slice(old);
            let used = old.len();
            Self::Medium(buffer, used)
        } else {
            let mut block = blocks.block();
            block.push(self.as_slice());
            Self::Large(block)
        };
    }

    /// Cuts off everything behind `length`.
    pub(crate) fn truncate(&mut self, length: usize) {
        match self {
            Self::Small(bytes) => bytes.truncate(length),
            Self::Medium(_, used) => *used = (*used).min(length),
            Self::Large(block) => block.length = block.length.min(length),
        }
    }

    /// The bytes, shared, without a copy.
    pub(crate) fn freeze(self) -> Bytes {
        match self {
            Self::Small(bytes) => Bytes::from(bytes),
            Self::Medium(mut buffer, length) => {
                buffer.truncate(length);
                buffer.freeze()
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
        let blocks = Blocks::new(1 << 20);
        let content: Vec<u8> = (0..1 << 20).map(|at: u32| ((at * 31) >> 3) as u8).collect();
        let mut memory = RunMemory::new(&content[..10], false, &blocks);
        let mut at = 10;
        while at < content.len() {
            let step = (at / 3 + 1).min(content.len() - at);
            memory.extend(&content[at..at + step], &blocks);
            at += step;
        }
        memory.overwrite(5, b"hello");
        let bytes = memory.freeze();
        assert_eq!(&bytes[5..10], b"hello");
        assert_eq!(bytes[10..], content[10..]);
        assert!(world::is_aligned(&bytes));
    }

    #[test]
    fn a_block_buffer_comes_back_when_its_last_reader_is_gone() {
        let blocks = Blocks::new(1 << 16);
        let bytes = RunMemory::new(&[7; 100], true, &blocks).freeze();
        let part = bytes.slice(10..20);
        drop(bytes);
        assert!(blocks.free.lock().is_empty());
        assert_eq!(&part[..], &[7; 10]);
        drop(part);
        assert_eq!(blocks.free.lock().len(), 1);
    }
}
