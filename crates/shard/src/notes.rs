//! The log's note of an operation, for the change feed and the audit log.

use crate::frame::OperationNote;
use model::{InodeId, Operation, operation::Stamp};

/// Whether an operation can change records (and so must wait when too much is unflushed).
pub(crate) fn changes(operation: &Operation) -> bool {
    verb(operation).1
}

/// The note of an operation that changed something.
pub(crate) fn note(operation: &Operation, stamp: &Stamp) -> OperationNote {
    OperationNote {
        verb: verb(operation).0,
        session: stamp.session,
        inode: subject(operation),
        time: stamp.now,
    }
}

/// The verb's number in `docs/formats/log-frame.md` (never reused), and whether it changes records.
fn verb(operation: &Operation) -> (u8, bool) {
    match operation {
        Operation::Lookup { .. } => (1, false),
        Operation::LookupParent { .. } => (2, false),
        Operation::GetAttributes { .. } => (3, false),
        Operation::SetAttributes { .. } => (4, true),
        Operation::ContinueCut { .. } => (5, true),
        Operation::Create { .. } => (6, true),
        Operation::CreateUnnamed { .. } => (7, true),
        Operation::Link { .. } => (8, true),
        Operation::Unlink { .. } => (9, true),
        Operation::RemoveDirectory { .. } => (10, true),
        Operation::Rename { .. } => (11, true),
        Operation::ReadDirectory { .. } => (12, false),
        Operation::ReadLink { .. } => (13, false),
        Operation::GetXattr { .. } => (14, false),
        Operation::ListXattrs { .. } => (15, false),
        Operation::SetXattr { .. } => (16, true),
        Operation::RemoveXattr { .. } => (17, true),
        Operation::ReadExtents { .. } => (18, false),
        Operation::Publish(_) => (19, true),
        Operation::ChangeRange { .. } => (20, true),
        Operation::Share { .. } => (21, true),
        Operation::Release { .. } => (22, true),
        Operation::GetUsage { .. } => (23, false),
        Operation::Reclaim { .. } => (24, true),
        Operation::ForgetDead { .. } => (25, true),
        Operation::NoteAccess { .. } => (26, true),
    }
}

/// The inode that an operation concerns; the directory if it takes names.
fn subject(operation: &Operation) -> InodeId {
    match operation {
        Operation::Lookup { directory, .. }
        | Operation::LookupParent { directory }
        | Operation::Create { directory, .. }
        | Operation::CreateUnnamed { directory, .. }
        | Operation::Unlink { directory, .. }
        | Operation::RemoveDirectory { directory, .. }
        | Operation::ReadDirectory { directory, .. } => *directory,
        Operation::Rename { from_directory, .. } => *from_directory,
        Operation::GetAttributes { inode }
        | Operation::SetAttributes { inode, .. }
        | Operation::ContinueCut { inode }
        | Operation::Link { inode, .. }
        | Operation::ReadLink { inode }
        | Operation::GetXattr { inode, .. }
        | Operation::ListXattrs { inode }
        | Operation::SetXattr { inode, .. }
        | Operation::RemoveXattr { inode, .. }
        | Operation::ReadExtents { inode, .. }
        | Operation::ChangeRange { inode, .. }
        | Operation::NoteAccess { inode, .. }
        | Operation::Release { inode }
        | Operation::GetUsage { inode } => *inode,
        Operation::Publish(publish) => publish.inode,
        Operation::Share { to, .. } => *to,
        Operation::Reclaim { fileset, .. } => InodeId::new(*fileset, model::InodeNumber(0)),
        Operation::ForgetDead { .. } => InodeId(0),
    }
}
