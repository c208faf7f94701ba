//! Which inodes a request to the owner has to do with. Pure.

use model::owner::{LockCall, OwnerRequest};
use model::{InodeId, Operation};

/// What a request has to do with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Concern {
    /// With no file's names, attributes or content; or with nothing that others could see before its tokens went.
    Nothing,
    /// With these inodes, files or directories.
    Inodes([Option<InodeId>; 2]),
    /// With anything: it makes all durable, ends all, or moves what isn't named in it.
    All,
}

/// What a request has to do with.
pub(super) fn concern(request: &OwnerRequest) -> Concern {
    let one = |inode: &InodeId| Concern::Inodes([Some(*inode), None]);
    match request {
        OwnerRequest::Execute { operation, .. } => of_operation(operation),
        OwnerRequest::Hold { inode, .. } | OwnerRequest::Unhold { inode, .. } => one(inode),
        OwnerRequest::Lock(call) => match call {
            LockCall::Set(request) | LockCall::Queue { request, .. } => one(&request.inode),
            LockCall::Test { inode, .. } | LockCall::EndProcess { inode, .. } => one(inode),
            LockCall::BeginDoor(_)
            | LockCall::EndDoor(_)
            | LockCall::EndOpen { .. }
            | LockCall::Await { .. }
            | LockCall::EndWait { .. } => Concern::Nothing,
        },
        OwnerRequest::Sync | OwnerRequest::CloseSession { .. } => Concern::All,
        // Who says that has waited until the owner knew of the files.
        OwnerRequest::UnholdAll { .. } => Concern::Nothing,
        // Tokens don't rest on what is in the records; they go back when nothing under them is left to send.
        OwnerRequest::AskToken { .. }
        | OwnerRequest::AskToKnow { .. }
        | OwnerRequest::ReturnTokens { .. }
        | OwnerRequest::AwaitRecalls { .. } => Concern::Nothing,
        OwnerRequest::NewSession
        | OwnerRequest::OpenSession { .. }
        | OwnerRequest::GetUsage
        | OwnerRequest::GiveUp { .. }
        | OwnerRequest::ReportLowWater { .. }
        | OwnerRequest::MakeRoom
        | OwnerRequest::Reclaim { .. }
        | OwnerRequest::Examine { .. }
        | OwnerRequest::ReportMended { .. }
        | OwnerRequest::ExecuteStream { .. } => Concern::Nothing,
    }
}

fn of_operation(operation: &Operation) -> Concern {
    let one = |inode: &InodeId| Concern::Inodes([Some(*inode), None]);
    match operation {
        Operation::Lookup { directory, .. }
        | Operation::ReadDirectory { directory, .. }
        | Operation::Create { directory, .. }
        | Operation::CreateHeld { directory, .. }
        | Operation::CreateUnnamed { directory, .. }
        | Operation::Unlink { directory, .. } => one(directory),
        // They lead to a directory that the operation doesn't name.
        Operation::RemoveDirectory { .. }
        | Operation::Rename { .. }
        | Operation::LookupParent { .. } => Concern::All,
        Operation::Link {
            inode, directory, ..
        } => Concern::Inodes([Some(*inode), Some(*directory)]),
        Operation::Share { from, to, .. } => Concern::Inodes([Some(*from), Some(*to)]),
        Operation::Publish(publish) => one(&publish.inode),
        Operation::GetAttributes { inode }
        | Operation::SetAttributes { inode, .. }
        | Operation::ContinueCut { inode }
        | Operation::ReadLink { inode }
        | Operation::GetXattr { inode, .. }
        | Operation::ListXattrs { inode }
        | Operation::SetXattr { inode, .. }
        | Operation::RemoveXattr { inode, .. }
        | Operation::ReadExtents { inode, .. }
        | Operation::ChangeRange { inode, .. }
        | Operation::NoteAccess { inode, .. }
        | Operation::Release { inode } => one(inode),
        Operation::GetUsage { .. }
        | Operation::Reserve { .. }
        | Operation::Reclaim { .. }
        | Operation::Condemn { .. }
        | Operation::ForgetDead { .. } => Concern::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::operation::{RenameMode, Stamp};
    use model::{FileName, SessionId, Timestamp};

    fn execute(operation: Operation) -> Concern {
        let stamp = Stamp::own(Timestamp(0), SessionId(1));
        concern(&OwnerRequest::Execute { operation, stamp })
    }

    #[test]
    fn what_a_name_leads_to_may_be_any_directory_with_something_to_send() {
        let name = |name: &str| FileName::new(name.as_bytes()).expect("a name");
        let (directory, other) = (InodeId(1), InodeId(2));
        let remove = Operation::RemoveDirectory {
            directory,
            name: name("d"),
        };
        assert_eq!(execute(remove), Concern::All);
        let rename = Operation::Rename {
            from_directory: directory,
            from_name: name("a"),
            to_directory: other,
            to_name: name("b"),
            mode: RenameMode::Replace,
        };
        assert_eq!(execute(rename), Concern::All);
        let unlink = Operation::Unlink {
            directory,
            name: name("a"),
        };
        assert_eq!(execute(unlink), Concern::Inodes([Some(directory), None]));
    }
}
