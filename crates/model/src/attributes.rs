//! An inode's `stat` attributes, and the changes a client may ask for.

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

    /// The kind that S_IFMT bits name; without any such bits a regular file, as for mknod. `None`
    /// for unknown bits.
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

/// The attributes that `stat` shows.
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
    /// Number of names; for directories 2 + subdirectories.
    pub links: u32,
    /// Logical bytes. For symlinks the target's length.
    pub size: u64,
    /// Bytes stored or reserved for the inode, before redundancy.
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
    /// Changes with every utimes and truncate. Sizes and times of writes merge only within one
    /// generation.
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

/// The special rights (setuid, setgid, file capabilities) that a change removes from a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Privileges {
    /// Removes none.
    #[default]
    Keep,
    /// Removes file capabilities: a write by any user.
    DropCapabilities,
    /// Removes setuid, setgid and file capabilities: a write by a user who may not keep them, and
    /// any chown.
    Drop {
        /// The caller's group. Its members keep setgid on a file that the group may not execute,
        /// because setgid has no effect there. `None`: a caller who counts as a member of every
        /// group, like root.
        group: Option<u32>,
    },
}

/// Attributes to change together; `None` leaves an attribute unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SetAttributes {
    /// Permission bits, 0o7777.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncates or extends. Bytes added by extending are a hole.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<TimeChange>,
    /// Last change of the content.
    pub mtime: Option<TimeChange>,
    /// Special rights to remove. A change of owner, group or size always removes file capabilities.
    pub privileges: Privileges,
    /// User and group that the kernel may have checked permissions for against an outdated owner
    /// and group: `NotPermitted` unless the owner is this user, and a new mode keeps setgid only if
    /// the group is this one.
    pub only_for: Option<(u32, u32)>,
}
