//! Replies to the kernel, made of as few pieces of memory as possible.

use crate::abi::{self, OpenOut, fopen};
use crate::verbs::Opened;
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
        let is_from_linux_6_6 = understood & abi::init::DIRECT_IO_ALLOW_MMAP != 0;
        // Before Linux 6.6 direct files can't be mapped shared, which breaks programs; on those
        // kernels the page cache is used.
        if mode.direct && is_from_linux_6_6 {
            open_flags |= fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES;
        }
        // Kernels without "fuse: fix readdir cache race" (October 2022) answer EIO when two
        // programs list a directory of which they keep a copy. No flag of INIT tells which have
        // it; all from 6.6 do.
        let cache_directory = mode.cache_directory && is_from_linux_6_6;
        for (wanted, flag) in [
            (mode.keep_cache, fopen::KEEP_CACHE),
            (cache_directory, fopen::CACHE_DIR),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::OpenMode;

    #[test]
    fn old_kernels_are_asked_for_neither_direct_files_nor_copies_of_directories() {
        let mode = OpenMode {
            direct: true,
            keep_cache: true,
            no_flush: true,
            cache_directory: true,
        };
        let opened = Opened { handle: 7, mode };
        let everywhere = fopen::KEEP_CACHE | fopen::NOFLUSH;
        let old = OpenOut::of(&opened, !abi::init::DIRECT_IO_ALLOW_MMAP);
        assert_eq!((old.fh, old.open_flags), (7, everywhere));
        let new = OpenOut::of(&opened, abi::init::DIRECT_IO_ALLOW_MMAP);
        let added = fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES | fopen::CACHE_DIR;
        assert_eq!(new.open_flags, everywhere | added);
    }
}
