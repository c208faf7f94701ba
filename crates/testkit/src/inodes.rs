//! Names and new inodes for tests.

use bytes::Bytes;
use model::operation::NewInode;
use model::{FileKind, FileName};

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
