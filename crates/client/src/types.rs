//! What the verbs of a client take and give beyond `model`.

use model::{Attributes, Privileges};

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFlags {
    /// O_WRONLY or O_RDWR: refused with `IsDirectory` for directories.
    pub write: bool,
    /// O_TRUNC: the file is cut to 0 bytes first.
    pub truncate: bool,
    /// What goes with the cut bytes.
    pub privileges: Privileges,
}

/// What an open found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The inode, after a truncate.
    pub attributes: Attributes,
    /// The truncate took setuid or setgid away, perhaps: whoever remembers the mode must forget
    /// it.
    pub mode_changed: bool,
}

/// What a write did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// Where its first byte is.
    pub offset: u64,
    /// It took setuid or setgid away, perhaps: whoever remembers the mode must forget it.
    pub mode_changed: bool,
}

/// What a read leaves behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadTraces {
    /// It moves atime, as relatime says. False: noatime, O_NOATIME.
    pub atime: bool,
    /// Its bytes stay in memory for the next reader. False: O_DIRECT, whose programs have a
    /// cache of their own; who reads in order is still read ahead for.
    pub cached: bool,
}

impl Default for ReadTraces {
    fn default() -> Self {
        Self {
            atime: true,
            cached: true,
        }
    }
}

/// What fallocate does with a range.
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

/// What lseek looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// SEEK_DATA.
    Data,
    /// SEEK_HOLE.
    Hole,
}

/// A piece of a directory, without "." and "..": the door adds those.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// Entries in position order; each position is a cookie to go on behind it.
    pub entries: Vec<model::operation::DirectoryEntry>,
    /// Whether nothing comes behind them.
    pub end: bool,
}

/// What statfs shows. Bytes are bytes of users: redundancy is already taken off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileSystemUsage {
    /// Preferred size of reads and writes.
    pub block_bytes: u32,
    /// All bytes.
    pub capacity: u64,
    /// Bytes that nobody uses, the pool's reserve included.
    pub free: u64,
    /// Bytes that users may still write; what is dirty in this client is already taken off.
    pub available: u64,
    /// Inodes in use.
    pub inodes: u64,
}
