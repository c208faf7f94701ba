//! Replies to the kernel, made of as few pieces of memory as possible.

use crate::abi::{self, OpenOut, fopen};
use crate::file_system::Opened;
use bytes::Bytes;
use std::fmt;
use zerocopy::{Immutable, IntoBytes};

/// Largest structure of a reply (STATX).
const FIXED_BYTES_MAX: usize = size_of::<abi::StatxOut>();

/// The answer to one request.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "most replies are structures; a box for each would cost more than moving 300 bytes"
)]
pub(crate) enum Reply {
    /// The kernel expects none (FORGET, INTERRUPT).
    None,
    /// The reply is sent later (a lock wait).
    Later,
    /// The request failed.
    Errno(i32),
    /// Success without content.
    Empty,
    /// One of the kernel's structures.
    Fixed(Fixed),
    /// Bytes made for this reply: listings, attribute values.
    Buffer(Vec<u8>),
    /// File data, in contiguous pieces.
    Data(Vec<Bytes>),
}

/// One of the kernel's structures, stored without an allocation.
pub(crate) struct Fixed {
    bytes: [u8; FIXED_BYTES_MAX],
    length: usize,
}

impl Fixed {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl fmt::Debug for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fixed({} bytes)", self.length)
    }
}

impl Reply {
    pub(crate) fn fixed<T: IntoBytes + Immutable>(value: &T) -> Self {
        let mut bytes = [0; FIXED_BYTES_MAX];
        let length = size_of::<T>();
        bytes[..length].copy_from_slice(value.as_bytes());
        Self::Fixed(Fixed { bytes, length })
    }
}

impl OpenOut {
    pub(crate) fn of(opened: &Opened, understood: u64) -> Self {
        let mode = opened.mode;
        let mut open_flags = 0;
        // Without DIRECT_IO_ALLOW_MMAP (before Linux 6.6) direct files can't be mapped shared,
        // which breaks programs; on those kernels the page cache is used.
        if mode.direct && understood & abi::init::DIRECT_IO_ALLOW_MMAP != 0 {
            open_flags |= fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
        }
        for (wanted, flag) in [
            (mode.keep_cache, fopen::KEEP_CACHE),
            (mode.cache_directory, fopen::CACHE_DIR),
            (mode.no_flush, fopen::NOFLUSH),
        ] {
            if wanted {
                open_flags |= flag;
            }
        }
        Self {
            fh: opened.handle,
            open_flags,
            backing_id: 0,
        }
    }

    /// Whether reads and writes bypass the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.open_flags & fopen::DIRECT_IO != 0
    }
}
