//! What `stat` shows of an inode, and how it may be changed.

use crate::{InodeId, Timestamp};
use serde::{Deserialize, Serialize};

/// The type of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum FileKind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// UNIX domain socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

impl FileKind {
    /// The S_IFMT bits of `st_mode`.
    #[must_use]
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::File => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
        }
    }

    /// The kind that S_IFMT bits name; a plain file for none (mknod's rule).
    #[must_use]
    pub fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0 | 0o100_000 => Self::File,
            0o040_000 => Self::Directory,
            0o120_000 => Self::Symlink,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            0o020_000 => Self::CharDevice,
            0o060_000 => Self::BlockDevice,
            _ => return None,
        })
    }

    /// `d_type` of a directory entry.
    #[must_use]
    pub fn d_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }
}

/// What `stat` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attributes {
    /// The inode.
    pub inode: InodeId,
    /// Its type.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid, sticky: 0o7777.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names; for directories 2 + subdirectories.
    pub links: u32,
    /// Logical bytes. For symlinks the target's length.
    pub size: u64,
    /// Bytes that are stored or reserved for the inode (before redundancy).
    pub allocated: u64,
    /// Device number of device files, as Linux's `new_encode_dev`.
    pub rdev: u32,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
    /// Changes with every utimes and truncate; sizes and times of writes merge only inside
    /// one generation.
    pub generation: u32,
}

/// A new value for a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TimeChange {
    /// UTIME_NOW: the operation's own time.
    Now,
    /// The given time.
    At(Timestamp),
}

/// What a change takes away of the rights that a file gives to everybody who runs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Privileges {
    /// Nothing beyond what the change itself says.
    #[default]
    Keep,
    /// File capabilities: a write by anybody.
    DropCapabilities,
    /// setuid, setgid and file capabilities: a write by somebody who may not keep them, and a
    /// chown by anybody.
    Drop {
        /// The caller's group: its members keep setgid where the group may not execute, because
        /// it says nothing there. `None`: whoever counts as a member of all, as root does.
        group: Option<u32>,
    },
}

/// Attributes to change together; `None` leaves one as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SetAttributes {
    /// Permission bits, 0o7777.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncates or extends. The bytes between are a hole.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<TimeChange>,
    /// Last change of the content.
    pub mtime: Option<TimeChange>,
    /// What goes with it. A change of owner, group or size takes file capabilities in any case.
    pub privileges: Privileges,
    /// For whom, if a kernel may have judged that by an old owner and group: `NotPermitted`
    /// unless the owner is this user, and a new mode has setgid only if the group is this one.
    pub only_for: Option<(u32, u32)>,
}
