//! Parameters and results of a client's verbs beyond those in `model`.

use crate::kernels::{KeptPages, Validity};
use model::{Attributes, Privileges};
use pool::PoolUsage;

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFlags {
    /// O_WRONLY or O_RDWR: refused with `IsDirectory` for directories.
    pub write: bool,
    /// O_TRUNC: the file is cut to 0 bytes first.
    pub truncate: bool,
    /// Privileges that the truncate drops.
    pub privileges: Privileges,
}

/// Result of an open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The inode, after a truncate.
    pub attributes: Attributes,
    /// The truncate may have dropped setuid or setgid: cached modes must be dropped.
    pub mode_changed: bool,
}

/// Result of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Offset of its first byte.
    pub offset: u64,
    /// It may have dropped setuid or setgid: cached modes must be dropped.
    pub mode_changed: bool,
}

/// Effects of a read on atime and cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadTraces {
    /// It moves atime as relatime says. False: noatime, O_NOATIME.
    pub atime: bool,
    /// Its bytes stay cached for the next reader. False: O_DIRECT, whose programs have their own
    /// cache; sequential readers still get read-ahead.
    pub cached: bool,
    /// A kernel keeps the bytes, which are whole pages.
    pub kept: Option<KeptPages>,
}

impl Default for ReadTraces {
    fn default() -> Self {
        Self {
            atime: true,
            cached: true,
            kept: None,
        }
    }
}

/// Operation of fallocate on a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// Holes become reserved space.
    Reserve {
        /// FALLOC_FL_KEEP_SIZE.
        keep_size: bool,
    },
    /// FALLOC_FL_PUNCH_HOLE (always with KEEP_SIZE): the range becomes a hole.
    Punch,
    /// FALLOC_FL_ZERO_RANGE: reads as zeros, space stays reserved.
    Zero {
        /// FALLOC_FL_KEEP_SIZE.
        keep_size: bool,
    },
}

/// Target of lseek.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// SEEK_DATA.
    Data,
    /// SEEK_HOLE.
    Hole,
}

/// Part of a directory, without "." and "..", which the door adds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// Entries in position order; each position is a cookie for continuing after it.
    pub entries: Vec<model::operation::DirectoryEntry>,
    /// For each entry how long a kernel may use it.
    pub valid: Vec<Validity>,
    /// Whether no entries follow.
    pub end: bool,
}

impl Listing {
    /// The same entries, with another validity each.
    pub(crate) fn valid_for(
        mut self,
        valid: impl Fn(usize, &model::operation::DirectoryEntry) -> Validity,
    ) -> Self {
        let entries = self.entries.iter().enumerate();
        self.valid = entries.map(|(at, entry)| valid(at, entry)).collect();
        self
    }
}

/// Answer to statfs. Bytes are users' bytes: redundancy is already subtracted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileSystemUsage {
    /// Preferred size of reads and writes.
    pub block_bytes: u32,
    /// All bytes.
    pub capacity: u64,
    /// Unused bytes, including the pool's reserve.
    pub free: u64,
    /// Bytes that users may still write, not counting this client's dirty bytes.
    pub available: u64,
    /// Inodes in use.
    pub inodes: u64,
}

impl FileSystemUsage {
    /// That of a file system with so many inodes in a pool that is used so much.
    #[must_use]
    pub fn of(pool: &PoolUsage, block_bytes: u32, inodes: u64) -> Self {
        let used = pool.used + pool.held;
        let free = pool.capacity.saturating_sub(used);
        Self {
            block_bytes,
            capacity: pool.capacity,
            free: free.max(pool.available_to_users),
            available: pool.available_to_users,
            inodes,
        }
    }
}
