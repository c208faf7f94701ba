//! Requests that a mounted file system gets, and its replies, as types.
//!
//! Requests are typed and their form is checked; replies say how long the kernel may cache them.

use model::operation::XattrMode;
use model::{Attributes, FileKind, InodeId, LockKind, LockRange, TokenMode};
use std::time::Duration;

/// The caller of a request. The kernel has already checked permissions (`default_permissions`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caller {
    /// Effective (file system) user of the calling thread.
    pub uid: u32,
    /// Its group. The kernel doesn't send supplementary groups.
    pub gid: u32,
    /// Its thread, as seen from the mount's process id namespace; 0 for the kernel's own work.
    pub pid: u32,
    /// Number of the request, never used twice on one mount.
    pub unique: u64,
}

/// How long the kernel may cache an entry and its attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Validity {
    /// The name.
    pub entry: Duration,
    /// The attributes.
    pub attributes: Duration,
}

/// An inode found or made under a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeEntry {
    /// Its attributes.
    pub attributes: Attributes,
    /// How long the kernel may cache this.
    pub valid: Validity,
}

/// Answer to a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The name exists.
    Entry(InodeEntry),
    /// There is no such name; the kernel may cache that for this long.
    Absent(Duration),
}

/// Attributes and how long the kernel may cache them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shown {
    /// The attributes.
    pub attributes: Attributes,
    /// Validity.
    pub valid: Duration,
}

/// How the kernel serves an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenMode {
    /// Reads and writes bypass the kernel's page cache (FOPEN_DIRECT_IO); several writers at
    /// once are allowed and shared mappings still work.
    pub direct: bool,
    /// Pages from earlier opens stay valid (FOPEN_KEEP_CACHE).
    pub keep_cache: bool,
    /// `close` sends no FLUSH (FOPEN_NOFLUSH).
    pub no_flush: bool,
    /// The kernel may keep the directory's listing (FOPEN_CACHE_DIR).
    pub cache_directory: bool,
}

/// An open file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Opened {
    /// Comes back with every request through this open.
    pub handle: u64,
    /// How the kernel serves it.
    pub mode: OpenMode,
}

/// CREATE and TMPFILE: makes and opens a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Create {
    /// Permission bits, umask not applied.
    pub mode: u32,
    /// Permission bits to clear, unless the directory has a default ACL.
    pub umask: u32,
    /// Open flags (`libc::O_*`).
    pub flags: i32,
    /// An existing file that is truncated loses setuid and setgid.
    pub kill_privileges: bool,
}

/// MKNOD, MKDIR and SYMLINK: makes something without opening it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Make<'a> {
    /// Type.
    pub kind: FileKind,
    /// Permission bits, umask not applied.
    pub mode: u32,
    /// Permission bits to clear, unless the directory has a default ACL.
    pub umask: u32,
    /// Device number of device files, as Linux's `new_encode_dev`.
    pub rdev: u32,
    /// Target of a symbolic link; empty otherwise.
    pub target: &'a [u8],
}

/// SETXATTR.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetXattr<'a> {
    /// The name, with its namespace.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// Whether the attribute must exist, or must not.
    pub mode: XattrMode,
    /// The setgid bit is dropped with it.
    pub drop_setgid: bool,
}

/// OPEN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Open {
    /// Open flags (`libc::O_*`).
    pub flags: i32,
    /// O_TRUNC by a caller who may not keep setuid and setgid.
    pub kill_privileges: bool,
}

/// Whether a file that is opened with these flags may be written through the open.
pub(crate) fn is_writing(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

/// READ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// The file.
    pub inode: InodeId,
    /// The handle of the open.
    pub handle: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes wanted; fewer only at the end of the file.
    pub length: u32,
    /// The open's current flags.
    pub flags: i32,
    /// Whole pages for the kernel's page cache, not a read(2): which token the kernel needs to keep them. Exclusive if
    /// programs may change them in a mapping, of which it says nothing.
    pub kept: Option<TokenMode>,
}

/// WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write<'a> {
    /// The file.
    pub inode: InodeId,
    /// The handle of the open; 0 may mean "any" when `from_cache` is set.
    pub handle: u64,
    /// First byte.
    pub offset: u64,
    /// The bytes, page aligned; the transport reuses the memory once the call is answered.
    pub data: &'a [u8],
    /// The open's current flags (O_APPEND, O_SYNC, O_DSYNC, O_DIRECT).
    pub flags: i32,
    /// Dirty mapped pages written back by the kernel, not a write(2).
    pub from_cache: bool,
    /// The file loses setuid and setgid.
    pub kill_privileges: bool,
}

/// RELEASE: the last descriptor of one open is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Release {
    /// The file.
    pub inode: InodeId,
    /// The handle of the open.
    pub handle: u64,
    /// The open's flags.
    pub flags: i32,
    /// The owner whose flock is dropped, if one was taken through this open.
    pub unlock_flock: Option<u64>,
}

/// A POSIX record lock or (whole file) a flock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// The file.
    pub inode: InodeId,
    /// The handle of the open.
    pub handle: u64,
    /// The owner: a process's descriptor table, or an open file description. Unique on this mount.
    pub owner: u64,
    /// The bytes; the kernel sends `i64::MAX` as the end of "to the end".
    pub range: LockRange,
    /// How to lock; `None` unlocks.
    pub kind: Option<LockKind>,
    /// Process id, reported by F_GETLK.
    pub pid: u32,
    /// flock(2), not fcntl(2).
    pub flock: bool,
}

/// A lock that conflicts with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockConflict {
    /// The locked bytes.
    pub range: LockRange,
    /// Shared or exclusive.
    pub kind: LockKind,
    /// The process that took it.
    pub pid: u32,
}

/// fallocate(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fallocate {
    /// The file.
    pub inode: InodeId,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// `libc::FALLOC_FL_*`.
    pub mode: i32,
}

/// copy_file_range(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyRange {
    /// Source.
    pub from: InodeId,
    /// First byte of the source.
    pub from_offset: u64,
    /// Destination.
    pub to: InodeId,
    /// First byte of the destination.
    pub to_offset: u64,
    /// Bytes.
    pub length: u64,
}

/// The answer to statfs(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileSystemSpace {
    /// Unit of the three block counts in bytes.
    pub block_bytes: u32,
    /// All blocks.
    pub blocks: u64,
    /// Unused blocks.
    pub free: u64,
    /// Unused blocks that ordinary users may take.
    pub available: u64,
    /// Inodes that exist or could be made.
    pub files: u64,
    /// Inodes that could still be made.
    pub files_free: u64,
}
