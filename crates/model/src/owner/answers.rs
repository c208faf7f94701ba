//! Which replies answer which requests. Clients look at it before they use the reply of another node: its owner may be
//! faulty, or of a version that they don't know.

use super::{LockCall, OwnerReply, OwnerRequest};
use crate::{InodeId, Operation, Reply};

impl OwnerRequest {
    /// Whether this is a reply to such a request, as the comments of the requests say it.
    #[must_use]
    pub fn is_answered_by(&self, reply: &OwnerReply) -> bool {
        match self {
            Self::Execute { operation, .. } => match reply {
                OwnerReply::Operation(ranked) => operation.is_answered_by(&ranked.reply),
                _ => false,
            },
            Self::Sync
            | Self::CloseSession { .. }
            | Self::Hold { .. }
            | Self::Unhold { .. }
            | Self::UnholdAll { .. }
            | Self::GiveUp { .. }
            | Self::ReportLowWater { .. }
            | Self::ReturnTokens { .. }
            | Self::ReportMended { .. } => matches!(reply, OwnerReply::Done),
            Self::NewSession => matches!(reply, OwnerReply::NewSession(_)),
            Self::OpenSession { .. } => matches!(reply, OwnerReply::Session(_)),
            Self::Lock(call) => match call {
                LockCall::Queue { .. } | LockCall::Await { .. } => {
                    matches!(reply, OwnerReply::Done | OwnerReply::Waits)
                }
                LockCall::Test { .. } => matches!(reply, OwnerReply::Conflict(_)),
                LockCall::BeginDoor(_)
                | LockCall::EndDoor(_)
                | LockCall::Set(_)
                | LockCall::EndWait { .. }
                | LockCall::EndProcess { .. }
                | LockCall::EndOpen { .. } => matches!(reply, OwnerReply::Done),
            },
            Self::GetUsage => matches!(reply, OwnerReply::Usage(_)),
            Self::MakeRoom => matches!(reply, OwnerReply::Freed(_)),
            Self::Reclaim { .. } => matches!(reply, OwnerReply::Reclaimed { .. }),
            Self::AskToken { .. } => matches!(reply, OwnerReply::Token { .. }),
            Self::AskToKnow { .. } => matches!(reply, OwnerReply::Known { .. }),
            Self::AwaitRecalls { .. } => matches!(reply, OwnerReply::Recalls { .. }),
            Self::Examine { .. } => matches!(reply, OwnerReply::Judged(_)),
            Self::ExecuteStream { .. } => matches!(reply, OwnerReply::Streamed(_)),
        }
    }
}

impl Operation {
    /// Whether this is a reply to such an operation, as the comments of the operations say it. Reserved numbers must be
    /// possible ones, and at most as many as were asked for: inodes are made with them.
    #[must_use]
    pub fn is_answered_by(&self, reply: &Reply) -> bool {
        match self {
            Self::Lookup { .. }
            | Self::LookupParent { .. }
            | Self::Create { .. }
            | Self::CreateHeld { .. }
            | Self::CreateUnnamed { .. }
            | Self::Link { .. } => matches!(reply, Reply::Entry { .. }),
            Self::GetAttributes { .. }
            | Self::SetAttributes { .. }
            | Self::ContinueCut { .. }
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. }
            | Self::Publish(_) => matches!(reply, Reply::Attributes { .. }),
            Self::Unlink { .. } | Self::RemoveDirectory { .. } => {
                matches!(reply, Reply::Removed { .. })
            }
            Self::Rename { .. } => matches!(reply, Reply::Renamed { .. }),
            Self::ReadDirectory { .. } => matches!(reply, Reply::Listing { .. }),
            Self::ReadLink { .. } => matches!(reply, Reply::Target(_)),
            Self::GetXattr { .. } => matches!(reply, Reply::Value(_)),
            Self::ListXattrs { .. } => matches!(reply, Reply::Names(_)),
            Self::ReadExtents { .. } => matches!(reply, Reply::Extents { .. }),
            Self::ChangeRange { .. } | Self::Share { .. } => {
                matches!(reply, Reply::RangeChanged { .. })
            }
            Self::GetUsage { .. } => matches!(reply, Reply::Usage { .. }),
            Self::Release { .. } => matches!(reply, Reply::Done | Reply::Progress { .. }),
            Self::Reclaim { .. } => matches!(reply, Reply::Progress { .. }),
            Self::NoteAccess { .. } | Self::Condemn { .. } | Self::ForgetDead { .. } => {
                matches!(reply, Reply::Done)
            }
            Self::Reserve { inodes: asked, .. } => match reply {
                Reply::Reserved { inode, inodes, .. } => {
                    let end = inode.0.checked_add(u64::from(*inodes));
                    let are_possible = end.is_some_and(|end| end <= 1 << InodeId::NUMBER_BITS);
                    // None at all would be a run without a first number.
                    let is_some = *inodes > 0 || *asked == 0;
                    are_possible && is_some && inodes <= asked
                }
                _ => false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Rank, Ranked, Stamp};
    use crate::{DataId, InodeNumber, SessionId, Timestamp};

    const INODE: InodeId = InodeId(7);

    #[test]
    fn an_operation_is_answered_by_its_own_reply_only() {
        let names = Operation::ListXattrs { inode: INODE };
        let release = Operation::Release { inode: INODE };
        let request = OwnerRequest::Execute {
            operation: names.clone(),
            stamp: Stamp::own(Timestamp(1), SessionId(1)),
        };
        let ranked = |reply: Reply| {
            let rank = Rank::default();
            OwnerReply::Operation(Ranked { reply, rank })
        };
        assert!(request.is_answered_by(&ranked(Reply::Names(Vec::new()))));
        assert!(!request.is_answered_by(&ranked(Reply::Done)));
        assert!(!request.is_answered_by(&OwnerReply::Done));
        assert!(!names.is_answered_by(&Reply::Done));
        assert!(release.is_answered_by(&Reply::Done));
        assert!(release.is_answered_by(&Reply::Progress { more: true }));
    }

    #[test]
    fn reserved_numbers_must_be_possible() {
        let end = 1 << InodeId::NUMBER_BITS;
        let is_possible = |asked, first, inodes| {
            let reserve = Operation::Reserve {
                inode: INODE,
                inodes: asked,
                data: 0,
            };
            reserve.is_answered_by(&Reply::Reserved {
                inode: InodeNumber(first),
                inodes,
                first_data: DataId(1),
                data: 0,
            })
        };
        assert!(is_possible(8, 100, 8));
        assert!(is_possible(8, end - 8, 8));
        assert!(!is_possible(8, end - 7, 8), "the last one is too high");
        assert!(!is_possible(8, u64::MAX, 8), "there are no such numbers");
        assert!(!is_possible(8, 100, 9), "more than were asked for");
        assert!(!is_possible(8, 100, 0), "none");
        assert!(is_possible(0, 100, 0), "some are given back");
    }
}
