//! The log's note of an operation, for the change feed and the audit log.

use crate::frame::OperationNote;
use model::{InodeId, Operation, operation::Stamp};

/// Whether an operation can change records (and so must wait when too much is unflushed).
pub(crate) fn changes(operation: &Operation) -> bool {
    !operation.is_read()
}

/// The note of an operation that changed something.
pub(crate) fn note(operation: &Operation, stamp: &Stamp) -> OperationNote {
    OperationNote {
        verb: verb(operation),
        session: stamp.session,
        inode: subject(operation),
        time: stamp.now,
    }
}

/// The verb's number in `docs/formats/log-frame.md` (never reused).
fn verb(operation: &Operation) -> u8 {
    match operation {
        Operation::Lookup { .. } => 1,
        Operation::LookupParent { .. } => 2,
        Operation::GetAttributes { .. } => 3,
        Operation::SetAttributes { .. } => 4,
        Operation::ContinueCut { .. } => 5,
        Operation::Create { .. } | Operation::CreateHeld { .. } => 6,
        Operation::CreateUnnamed { .. } => 7,
        Operation::Link { .. } => 8,
        Operation::Unlink { .. } => 9,
        Operation::RemoveDirectory { .. } => 10,
        Operation::Rename { .. } => 11,
        Operation::ReadDirectory { .. } => 12,
        Operation::ReadLink { .. } => 13,
        Operation::GetXattr { .. } => 14,
        Operation::ListXattrs { .. } => 15,
        Operation::SetXattr { .. } => 16,
        Operation::RemoveXattr { .. } => 17,
        Operation::ReadExtents { .. } => 18,
        Operation::Publish(_) => 19,
        Operation::ChangeRange { .. } => 20,
        Operation::Share { .. } => 21,
        Operation::Release { .. } => 22,
        Operation::GetUsage { .. } => 23,
        Operation::Reclaim { .. } => 24,
        Operation::ForgetDead { .. } => 25,
        Operation::NoteAccess { .. } => 26,
        Operation::Condemn { .. } => 27,
        Operation::Reserve { .. } => 28,
    }
}

/// The inode that an operation concerns; the directory if it takes names.
fn subject(operation: &Operation) -> InodeId {
    match operation {
        Operation::Lookup { directory, .. }
        | Operation::LookupParent { directory }
        | Operation::Create { directory, .. }
        | Operation::CreateHeld { directory, .. }
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
        | Operation::GetUsage { inode }
        | Operation::Reserve { inode, .. } => *inode,
        Operation::Publish(publish) => publish.inode,
        Operation::Share { to, .. } => *to,
        Operation::Reclaim { fileset, .. } => InodeId::new(*fileset, model::InodeNumber(0)),
        Operation::Condemn { .. } | Operation::ForgetDead { .. } => InodeId(0),
    }
}
