//! The kernel's FUSE structures: `include/uapi/linux/fuse.h`, protocol 7.45, reduced to our needs.
//!
//! Field names are the kernel's, so that its documentation applies.

use crate::verbs::{FileSystemSpace, InodeEntry, Shown};
use model::{Attributes, FileName, Timestamp};
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Protocol that this crate speaks.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version that it knows; the kernel and we use the lower of both.
pub(crate) const MINOR: u32 = 45;
/// The oldest minor version that it accepts (Linux 5.4): older ones lack large requests.
pub(crate) const MINOR_MIN: u32 = 31;
/// Shown by the kernel as `st_blksize`, which programs use as buffer size. 64 KiB is large enough
/// to make a request worth its wake-up, and small enough for stdio's buffers.
const PREFERRED_IO_BYTES: u32 = 64 * 1024;

macro_rules! kernel_struct {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $kind,)* }
    )* };
}

kernel_struct! {
    /// Before each request.
    InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16,
    }
    /// Before each reply; for notifications `error` is the code and `unique` is 0.
    OutHeader { len: u32, error: i32, unique: u64, }
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11], }
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    Attr {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, }
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: Attr,
    }
    OpenOut { fh: u64, open_flags: u32, backing_id: i32, }
    CreateOut { entry: EntryOut, open: OpenOut, }
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32, }
    ForgetIn { nlookup: u64, }
    ForgetOne { nodeid: u64, nlookup: u64, }
    BatchForgetIn { count: u32, dummy: u32, }
    GetattrIn { getattr_flags: u32, dummy: u32, fh: u64, }
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkdirIn { mode: u32, umask: u32, }
    RenameIn { newdir: u64, }
    Rename2In { newdir: u64, flags: u32, padding: u32, }
    LinkIn { oldnodeid: u64, }
    OpenIn { flags: u32, open_flags: u32, }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    WriteOut { size: u32, padding: u32, }
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32, }
    SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    /// Sent by kernels without FUSE_SETXATTR_EXT.
    SetxattrInOld { size: u32, flags: u32, }
    GetxattrIn { size: u32, padding: u32, }
    GetxattrOut { size: u32, padding: u32, }
    FileLock { start: u64, end: u64, kind: u32, pid: u32, }
    LkIn { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32, }
    LkOut { lk: FileLock, }
    AccessIn { mask: u32, padding: u32, }
    InterruptIn { unique: u64, }
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, }
    LseekOut { offset: u64, }
    CopyFileRangeIn { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64, }
    CopyFileRangeOut { bytes_copied: u64, }
    SyncfsIn { padding: u64, }
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    SxTime { tv_sec: i64, tv_nsec: u32, reserved: i32, }
    StatxOut {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], mask: u32, blksize: u32, attributes: u64,
        nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32,
        dev_minor: u32, spare2: [u64; 14],
    }
    NotifyInvalInodeOut { ino: u64, off: i64, len: i64, }
    NotifyInvalEntryOut { parent: u64, namelen: u32, flags: u32, }
    NotifyRetrieveOut { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32, }
    NotifyDeleteOut { parent: u64, child: u64, namelen: u32, padding: u32, }
    /// The command area of FUSE's io_uring commands, after the SQE's 64 bytes.
    RingCommand { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6], }
}

/// The memory of a ring entry besides its payload (`fuse_uring_req_header`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RingHeader {
    /// `InHeader` of the request, then `OutHeader` of the reply.
    pub(crate) in_out: [u8; 128],
    /// The opcode's own structure.
    pub(crate) op_in: [u8; 128],
    pub(crate) flags: u64,
    /// Identifies the request when its reply is committed.
    pub(crate) commit_id: u64,
    /// Bytes of the payload, in both directions.
    pub(crate) payload_sz: u32,
    pub(crate) padding: u32,
    pub(crate) reserved: u64,
}

const _: () = assert!(size_of::<InHeader>() == 40 && size_of::<OutHeader>() == 16);
const _: () = assert!(size_of::<InitIn>() == 64 && size_of::<InitOut>() == 64);
const _: () =
    assert!(size_of::<Attr>() == 88 && size_of::<EntryOut>() == 128 && size_of::<AttrOut>() == 104);
const _: () = assert!(
    size_of::<WriteIn>() == 40 && size_of::<ReadIn>() == 40 && size_of::<SetattrIn>() == 88
);
const _: () = assert!(size_of::<RingHeader>() == 288 && size_of::<RingCommand>() == 24);
const _: () = assert!(
    size_of::<StatfsOut>() == 80 && size_of::<StatxOut>() == 288 && size_of::<LkIn>() == 48
);

/// Numbers of the requests.
pub(crate) mod opcode {
    macro_rules! opcodes {
        ($($name:ident = $number:literal,)*) => {
            $(
                #[allow(dead_code, reason = "the table is complete; what isn't served is only named")]
                pub(crate) const $name: u32 = $number;
            )*
            /// The kernel's name of a request, for logs and the list of waiting requests.
            pub(crate) fn name(opcode: u32) -> &'static str {
                match opcode { $($number => stringify!($name),)* _ => "UNKNOWN" }
            }
        };
    }
    opcodes! {
        LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8, MKDIR = 9, UNLINK = 10,
        RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16, STATFS = 17, RELEASE = 18, FSYNC = 20,
        SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23, REMOVEXATTR = 24, FLUSH = 25, INIT = 26, OPENDIR = 27,
        READDIR = 28, RELEASEDIR = 29, FSYNCDIR = 30, GETLK = 31, SETLK = 32, SETLKW = 33, ACCESS = 34, CREATE = 35,
        INTERRUPT = 36, BMAP = 37, DESTROY = 38, IOCTL = 39, POLL = 40, NOTIFY_REPLY = 41, BATCH_FORGET = 42,
        FALLOCATE = 43, READDIRPLUS = 44, RENAME2 = 45, LSEEK = 46, COPY_FILE_RANGE = 47, SETUPMAPPING = 48,
        REMOVEMAPPING = 49, SYNCFS = 50, TMPFILE = 51, STATX = 52, COPY_FILE_RANGE_64 = 53,
    }
}

/// `SetxattrIn::setxattr_flags`: an access ACL set by a caller outside the inode's group.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1;

/// Capabilities negotiated by INIT, as one 64-bit number (`flags` and `flags2`).
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// Commands of FUSE over io_uring.
pub(crate) mod ring_command {
    pub(crate) const REGISTER: u32 = 1;
    pub(crate) const COMMIT_AND_FETCH: u32 = 2;
}

/// Answer to OPEN: how the kernel serves the file.
pub(crate) mod fopen {
    pub(crate) const DIRECT_IO: u32 = 1 << 0;
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    pub(crate) const CACHE_DIR: u32 = 1 << 3;
    pub(crate) const NOFLUSH: u32 = 1 << 5;
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// `valid` of SETATTR.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// READ by a read(2) that bypasses the page cache.
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
/// WRITE comes from the page cache.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
/// WRITE drops setuid and setgid.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// OPEN and CREATE drop setuid and setgid when they truncate.
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// RELEASE ends a flock.
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// FSYNC is fdatasync.
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;
/// A lock request is flock(2).
pub(crate) const LK_FLOCK: u32 = 1 << 0;
/// INVAL_ENTRY only ends the validity instead of dropping the entry.
pub(crate) const EXPIRE_ONLY: u32 = 1 << 0;
/// STATX_BASIC_STATS | STATX_BTIME.
const STATX_MASK: u32 = 0x0fff;

/// Numbers of the notifications.
pub(crate) mod notify {
    pub(crate) const RETRIEVE: i32 = 5;
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const INVAL_ENTRY: i32 = 3;
    pub(crate) const DELETE: i32 = 6;
    pub(crate) const INC_EPOCH: i32 = 8;
}

impl Attr {
    pub(crate) fn of(a: &Attributes) -> Self {
        Self {
            ino: a.inode.0,
            size: a.size,
            blocks: a.allocated.div_ceil(512),
            atime: a.atime.seconds(),
            mtime: a.mtime.seconds(),
            ctime: a.ctime.seconds(),
            atimensec: a.atime.nanoseconds(),
            mtimensec: a.mtime.nanoseconds(),
            ctimensec: a.ctime.nanoseconds(),
            mode: a.kind.mode_bits() | a.mode,
            nlink: a.links,
            uid: a.uid,
            gid: a.gid,
            rdev: a.rdev,
            blksize: PREFERRED_IO_BYTES,
            flags: 0,
        }
    }
}

impl AttrOut {
    pub(crate) fn of(shown: &Shown) -> Self {
        let (attr_valid, attr_valid_nsec) = split(shown.valid);
        Self {
            attr_valid,
            attr_valid_nsec,
            dummy: 0,
            attr: Attr::of(&shown.attributes),
        }
    }
}

impl EntryOut {
    pub(crate) fn of(entry: &InodeEntry) -> Self {
        let (entry_valid, entry_valid_nsec) = split(entry.valid.entry);
        let (attr_valid, attr_valid_nsec) = split(entry.valid.attributes);
        let attr = Attr::of(&entry.attributes);
        // Node ids are never reused, so the generation needn't distinguish two inodes.
        Self {
            nodeid: attr.ino,
            generation: 0,
            entry_valid,
            attr_valid,
            entry_valid_nsec,
            attr_valid_nsec,
            attr,
        }
    }

    /// Node 0: the name doesn't exist, and the kernel may remember that.
    pub(crate) fn absent(valid: Duration) -> Self {
        let (entry_valid, entry_valid_nsec) = split(valid);
        Self {
            entry_valid,
            entry_valid_nsec,
            ..Self::default()
        }
    }
}

impl StatfsOut {
    pub(crate) fn of(space: &FileSystemSpace) -> Self {
        Self {
            blocks: space.blocks,
            bfree: space.free,
            bavail: space.available,
            files: space.files,
            ffree: space.files_free,
            bsize: space.block_bytes,
            namelen: FileName::BYTES_MAX as u32,
            frsize: space.block_bytes,
            ..Self::default()
        }
    }
}

impl StatxOut {
    pub(crate) fn of(shown: &Shown) -> Self {
        let (attr_valid, attr_valid_nsec) = split(shown.valid);
        let a = &shown.attributes;
        let time = |t: Timestamp| SxTime {
            tv_sec: t.seconds(),
            tv_nsec: t.nanoseconds(),
            reserved: 0,
        };
        Self {
            attr_valid,
            attr_valid_nsec,
            mask: STATX_MASK,
            blksize: PREFERRED_IO_BYTES,
            nlink: a.links,
            uid: a.uid,
            gid: a.gid,
            mode: (a.kind.mode_bits() | a.mode) as u16,
            ino: a.inode.0,
            size: a.size,
            blocks: a.allocated.div_ceil(512),
            atime: time(a.atime),
            btime: time(a.btime),
            ctime: time(a.ctime),
            mtime: time(a.mtime),
            rdev_major: (a.rdev & 0xfff00) >> 8,
            rdev_minor: (a.rdev & 0xff) | ((a.rdev >> 12) & 0xfff00),
            ..Self::default()
        }
    }
}

fn split(duration: Duration) -> (u64, u32) {
    (duration.as_secs(), duration.subsec_nanos())
}
