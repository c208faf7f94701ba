//! The records of an empty fileset.

use crate::{Counters, Effects, Fileset, Inode, Key, Record};
use bytes::Bytes;
use model::{CommitNumber, DataId, FileKind, FilesetId, InodeId, InodeNumber, Timestamp};
use std::sync::Arc;

/// Number of every fileset's root directory.
pub(crate) const ROOT: InodeNumber = InodeNumber(1);
/// Lower numbers are reserved for the fileset itself; runs for children start here.
const FIRST_RUN: u64 = 64;

/// The empty fileset: its record, its counters and its root directory.
#[must_use]
pub fn genesis(fileset: FilesetId, now: Timestamp, uid: u32, gid: u32, mode: u32) -> Effects {
    let root = Inode {
        mode: mode & 0o7777,
        uid,
        gid,
        links: 2,
        parent: ROOT,
        ..blank(FileKind::Directory, ROOT, now)
    };
    let counters = Counters {
        next_inode: FIRST_RUN,
        next_data: 1,
        inodes: 1,
        logical: 0,
        allocated: 0,
    };
    Effects(vec![
        (
            Key::Fileset(fileset),
            Some(Record::Fileset(Arc::new(Fileset { created: now }))),
        ),
        (
            Key::Counters(fileset),
            Some(Record::Counters(Arc::new(counters))),
        ),
        (
            Key::Inode(InodeId::new(fileset, ROOT)),
            Some(Record::Inode(Arc::new(root))),
        ),
    ])
}

/// An inode without permissions, owner, names and content.
pub(crate) fn blank(kind: FileKind, number: InodeNumber, now: Timestamp) -> Inode {
    Inode {
        kind,
        mode: 0,
        uid: 0,
        gid: 0,
        links: 0,
        rdev: 0,
        size: 0,
        allocated: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        generation: 0,
        data: DataId(number.0),
        extents: 0,
        inline_extents: 0,
        extents_end: 0,
        cutting_from: None,
        content: Bytes::new(),
        content_birth: CommitNumber(0),
        xattr_bytes: 0,
        parent: InodeNumber(0),
        entries: 0,
        run_next: 0,
        run_end: 0,
        run_length: 0,
    }
}
