//! Names and new inodes for tests.

use bytes::Bytes;
use model::operation::NewInode;
use model::{Attributes, FileKind, FileName, InodeId, Timestamp};

/// A name.
///
/// # Panics
/// If no file can have it.
#[must_use]
pub fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes()).unwrap()
}

/// An inode of root's with mode 0o755.
#[must_use]
pub fn new_inode(kind: FileKind) -> NewInode {
    NewInode {
        kind,
        mode: 0o755,
        uid: 0,
        gid: 0,
        umask: 0,
        rdev: 0,
        target: Bytes::new(),
    }
}

/// Attributes of an empty inode of root's that nobody may use, with the links that it has when it is made, from the
/// beginning of time.
#[must_use]
pub fn attributes(inode: InodeId, kind: FileKind) -> Attributes {
    Attributes {
        inode,
        kind,
        mode: 0,
        uid: 0,
        gid: 0,
        links: if kind == FileKind::Directory { 2 } else { 1 },
        size: 0,
        allocated: 0,
        rdev: 0,
        atime: Timestamp(0),
        mtime: Timestamp(0),
        ctime: Timestamp(0),
        btime: Timestamp(0),
        generation: 0,
    }
}
