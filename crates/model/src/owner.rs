//! Requests of a client to the owner of a shard, and their replies: function arguments on one node,
//! messages between nodes.
//!
//! *A create on one node*: the client gives [`OwnerRequest::Execute`] to the metanode of its
//! process and gets the [`OwnerReply`] as the function's result. *On two*: the client takes a slot,
//! numbers the operation in its stamp, and sends an [`OwnerCall`]. If no reply comes, it sends the
//! same call again, perhaps to another owner: the slot's record says that the operation was applied,
//! and what was answered.
//!
//! Opens and locks are in the owner's memory. Their requests have an [`Order`] instead: the owner
//! remembers the last one of each slot with its reply, and runs none that is older.
//!
//! An operation can make an inode that its session holds with that ([`Operation::makes_held`]): the owner
//! notes it with the change, the client with the answer.
//!
//! *A new owner* knows no opens and locks, and answers "reclaim first" to sessions that it didn't
//! open itself. Their clients say what they hold ([`OwnerRequest::Reclaim`]), learn the new owner's
//! [`Tenure`], and ask again. All requests name the tenure for which the client knows what it holds,
//! so that no owner before or after answers them.
//!
//! Tokens have numbers of their own (`model::token`): a request for one may be repeated, and what is
//! returned names the newest grant that its sender knows. The owner says what it wants back in answer
//! to [`OwnerRequest::AwaitRecalls`], which each client has under way all the time: so recalls need no
//! way from owners to clients, and the answers renew the tokens.
//!
//! The kind of an error says what to do (`model::error::Advice`): *refresh the map* if another node
//! owns the shard now; *wait* and ask again if the owner can't answer yet; ask again under the same
//! number if the outcome is *unknown*; everything else is the program's answer.

mod answers;

use crate::call::{BODY_BYTES_MAX, Call, Class, Method};
pub use crate::id::Tenure;
use crate::limits::XATTR_INODE_BYTES_MAX;
use crate::lock::{HeldLock, LockDoor, LockOwner, LockRequest};
use crate::operation::{Fresh, Rank, Ranked, Stamp};
use crate::token::{
    GrantNumber, TOKEN_RANGES_MAX, TokenRecall, TokenReply, TokenRequest, TokenReturn,
};
use crate::{
    Attributes, CommitNumber, Error, ErrorKind, FamilyId, InodeId, LockKind, LockRange, Operation,
    Result, SegmentPlace, SessionId, ShardId, Timestamp, TokenMode, TokenObject, TokenRange,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// All requests to an owner.
pub const OWNER: Method = Method(0x0200);

/// The class of the requests: all are small, and programs wait for most of them.
pub const CLASS: Class = Class::Metadata;

/// Most segments in one [`OwnerRequest::GiveUp`].
pub const GIVE_UP_MAX: usize = 4096;

/// Most inodes, doors, locks and tokens together in one [`OwnerRequest::Reclaim`].
pub const RECLAIM_MAX: usize = 4096;

/// What a client asks of an owner.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OwnerRequest {
    /// Runs an operation. → `Operation`
    Execute {
        /// The operation.
        operation: Operation,
        /// When and for whom.
        stamp: Stamp,
    },
    /// Makes everything answered so far durable. → `Done`
    Sync,
    /// Gives out a session's id, never the same again, and does nothing else: a copy that comes late
    /// costs a number. → `NewSession`
    NewSession,
    /// Opens a session. → `Session`. The same again changes nothing; after the session's end it is
    /// refused.
    OpenSession {
        /// From `NewSession`.
        session: SessionId,
    },
    /// Ends a session with its locks and holds. → `Done`
    CloseSession {
        /// The session.
        session: SessionId,
    },
    /// Adds a use of an inode, which then survives losing its last name. In order. → `Done`
    Hold {
        /// The session that uses it.
        session: SessionId,
        /// The inode.
        inode: InodeId,
    },
    /// Removes a use. The last one of an inode without names releases it. In order. → `Done`
    Unhold {
        /// The inode.
        inode: InodeId,
        /// The session that used it, and when the use ended.
        stamp: Stamp,
    },
    /// File locks of applications.
    Lock(LockCall),
    /// Space and inodes for `df`. → `Usage`
    GetUsage,
    /// Segments that their writer will never publish: those that nothing points at are deleted. →
    /// `Done`
    GiveUp {
        /// At most [`GIVE_UP_MAX`].
        places: Vec<SegmentPlace>,
    },
    /// Every segment of the session with a counter up to this one is published or given up. Never
    /// goes back. → `Done`
    ReportLowWater {
        /// The session.
        session: SessionId,
        /// The counter.
        counter: u64,
    },
    /// Frees space that removed and overwritten data holds. → `Freed`
    MakeRoom,
    /// Says to a new owner what a session holds. → `Reclaimed`. Once the last part was answered,
    /// further copies change nothing.
    Reclaim {
        /// The session.
        session: SessionId,
        /// A part of what it holds.
        part: Reclaimed,
        /// There is nothing more.
        is_last: bool,
    },
    /// Asks for a token. The same number again is the same request. → `Token`
    AskToken {
        /// The session.
        session: SessionId,
        /// The request's number, which the client has never used for another.
        number: u64,
        /// What is asked for.
        wants: TokenRequest,
    },
    /// Asks for shared tokens of inodes whose attributes a client is about to look at. Another client that has one of them in
    /// another mode is asked for it and waited for a moment, unless others have waited for it lately. → `Known`
    AskToKnow {
        /// The session.
        session: SessionId,
        /// At most [`KNOWN_MAX`].
        inodes: Vec<InodeId>,
    },
    /// Gives back tokens. → `Done`
    ReturnTokens {
        /// The session.
        session: SessionId,
        /// What it gives back, in order; at most [`RETURNED_MAX`], with [`RETURNED_RANGES_MAX`] ranges.
        back: Vec<TokenReturn>,
    },
    /// Waits for a while until the owner wants something back. → `Recalls`
    AwaitRecalls {
        /// The session.
        session: SessionId,
        /// The tenure in the last answer: an owner of another one answers at once.
        known: Tenure,
        /// Whether it has everything, as the last answer said; also as long as it publishes what is left of that.
        has_all: bool,
    },
    /// Judges segments that a server has found on NSDs, of families that the shard has; those that
    /// are garbage are condemned before it answers. No session asks that. → `Judged`
    Examine {
        /// At most [`EXAMINED_MAX`], each with the family that its blobs name.
        found: Vec<(SegmentPlace, FamilyId)>,
    },
    /// What a server has rebuilt of segments that it was told are live, or couldn't. No session says
    /// that. → `Done`
    ReportMended {
        /// At most [`MENDED_MAX`].
        mended: Vec<Mended>,
    },
    /// Runs operations of the session's stream, which their client has answered already, each after the one before.
    /// The same ones again change nothing. → `Streamed`, once all of them are durable
    ExecuteStream {
        /// The session.
        session: SessionId,
        /// At most [`STREAMED_MAX`], with numbers that follow each other.
        operations: Vec<Streamed>,
    },
    /// Removes a use of each of these inodes, as [`OwnerRequest::Unhold`] does of one. In order. → `Done`
    UnholdAll {
        /// At most [`UNHELD_MAX`]; one that is named twice was used twice.
        inodes: Vec<InodeId>,
        /// The session that used them, and when the uses had ended.
        stamp: Stamp,
    },
}

/// Most inodes in one [`OwnerRequest::UnholdAll`].
pub const UNHELD_MAX: usize = 256;

/// An operation of a session's stream: it makes a regular file, or publishes what was written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Streamed {
    /// Its number in the stream, from 1.
    pub number: u64,
    /// The client's clock when it answered.
    pub now: Timestamp,
    /// The operation.
    pub operation: Operation,
    /// The numbers that the client has given to what it makes.
    pub fresh: Fresh,
    /// The session uses the attributes and all bytes of the file that it makes alone: it gets the tokens for that.
    pub with_tokens: bool,
}

impl Streamed {
    /// The directory in which it makes a file; `None` if it makes none.
    #[must_use]
    pub fn directory(&self) -> Option<InodeId> {
        match &self.operation {
            Operation::Create { directory, .. } | Operation::CreateHeld { directory, .. } => {
                Some(*directory)
            }
            _ => None,
        }
    }

    /// The file that it makes; `None` if it makes none, or there is no such number.
    #[must_use]
    pub fn made(&self) -> Option<InodeId> {
        let (directory, number) = (self.directory()?, self.fresh.inode?);
        let is_possible = number.0 < (1 << InodeId::NUMBER_BITS);
        is_possible.then(|| InodeId::new(directory.fileset(), number))
    }
}

/// Most operations in one [`OwnerRequest::ExecuteStream`].
pub const STREAMED_MAX: usize = 256;

/// What became of an operation of a stream that was applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StreamDone {
    /// Where it was applied; of one that had been applied before, a later place, behind which nobody else has changed the same
    /// as long as the session holds the directory's delegation.
    pub rank: Rank,
    /// Those of the file that was published, afterwards; `None` of others, and of what had been applied before.
    pub attributes: Option<Attributes>,
    /// The exclusive grants of the made file's attributes and of all its bytes, if they were asked for and given.
    pub tokens: Option<[GrantNumber; 2]>,
}

/// Most inodes in one [`OwnerRequest::AskToKnow`].
pub const KNOWN_MAX: usize = 256;

/// A shared token that came with [`OwnerReply::Known`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KnownInode {
    /// The grant.
    pub number: GrantNumber,
    /// The inode's attributes as they were after the grant: but for the session itself nobody changes them while it holds that.
    /// `None` if they can't be had soon.
    pub attributes: Option<Attributes>,
}

/// Most tokens in one [`OwnerRequest::ReturnTokens`].
pub const RETURNED_MAX: usize = 256;

/// Most ranges in all of them.
pub const RETURNED_RANGES_MAX: usize = 2 * TOKEN_RANGES_MAX;

/// Most segments in one [`OwnerRequest::Examine`].
pub const EXAMINED_MAX: usize = 256;

/// Most segments in one [`OwnerRequest::ReportMended`].
pub const MENDED_MAX: usize = 16;

/// What an owner says of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Verdict {
    /// A file or the tree needs it: this is its place.
    Live(SegmentPlace),
    /// Its blobs will be deleted soon. It may be garbage that was just condemned.
    Dead,
    /// It may become live, or another shard knows it.
    Undecided,
    /// Its record can't be read: its pieces must stay, and nothing proves what they are.
    Damaged,
}

/// What came of a live segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mended {
    /// The segment.
    pub place: SegmentPlace,
    /// The family that its blobs name.
    pub family: FamilyId,
    /// Pieces of it were rebuilt; otherwise it couldn't be repaired, or can't be read.
    pub is_rebuilt: bool,
}

/// How long [`OwnerRequest::AwaitRecalls`] waits at most: so often tokens are renewed.
pub const RECALL_WAIT_MAX: Duration = Duration::from_secs(2);

/// Most recalls in an answer: as many as one question of who lists files asks for.
pub const RECALLS_MAX: usize = KNOWN_MAX;

/// No recall is added to an answer that has so many ranges already.
pub const RECALLED_RANGES_MAX: usize = 64 * TOKEN_RANGES_MAX;

/// What a session holds at the owner, or a part of it, in this order: at most [`RECLAIM_MAX`] in all.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Reclaimed {
    /// Grows each time the client begins to say what it holds.
    pub attempt: u64,
    /// How many parts of the attempt the owner has answered before this one.
    pub at: u32,
    /// Inodes, and how often each is held.
    pub holds: Vec<(InodeId, u64)>,
    /// Doors that have begun.
    pub doors: Vec<LockDoor>,
    /// Locks.
    pub locks: Vec<LockRequest>,
    /// Tokens.
    pub tokens: Vec<HeldToken>,
    /// In the last part: operations that the session has sent and not heard of, each with its slot and
    /// number. If the records say that one of them [made something held](Operation::makes_held), the session
    /// holds that once more than it has said. At most one for each slot.
    pub under_way: Vec<(u8, u64)>,
}

/// A token that a session holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeldToken {
    /// Of what.
    pub object: TokenObject,
    /// Which part.
    pub range: TokenRange,
    /// How.
    pub mode: TokenMode,
}

/// A request about file locks. All but `Test` and `Await` are in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockCall {
    /// Registers a mount (or other door), which the client numbers; the others need one. → `Done`
    BeginDoor(LockDoor),
    /// Ends a door: its locks end, its waiting requests are interrupted. → `Done`
    EndDoor(LockDoor),
    /// Locks or unlocks without waiting. → `Done`
    Set(LockRequest),
    /// As `Set`, but waits for its turn if it must. → `Done` if it is granted already; `Waits`
    Queue {
        /// The wait's number, which the client has never used before.
        wait: u64,
        /// The request.
        request: LockRequest,
    },
    /// Waits until a queued request is granted. → `Done`; `Waits` at the deadline
    Await {
        /// The session that queued it.
        session: SessionId,
        /// The wait's number.
        wait: u64,
    },
    /// Ends a wait, granted or not. → `Done` if the request was granted, and the lock hasn't ended since; else `Interrupted`
    EndWait {
        /// The session that queued it.
        session: SessionId,
        /// The wait's number.
        wait: u64,
    },
    /// F_GETLK. → `Conflict`
    Test {
        /// The file.
        inode: InodeId,
        /// The owner of the lock that would be taken.
        owner: LockOwner,
        /// Its bytes.
        range: LockRange,
        /// Its kind.
        kind: LockKind,
    },
    /// A process closed a descriptor of the inode: its POSIX locks there end. → `Done`
    EndProcess {
        /// The file.
        inode: InodeId,
        /// The process.
        owner: LockOwner,
    },
    /// The last descriptor of an open file is gone: the locks taken through it end. → `Done`
    EndOpen {
        /// Its door.
        door: LockDoor,
        /// Its number there.
        open: u64,
    },
}

impl LockCall {
    /// The session that asks.
    #[must_use]
    pub fn session(&self) -> SessionId {
        match self {
            Self::BeginDoor(door) | Self::EndDoor(door) | Self::EndOpen { door, .. } => {
                door.session
            }
            Self::Set(request) | Self::Queue { request, .. } => request.owner.door.session,
            Self::Await { session, .. } | Self::EndWait { session, .. } => *session,
            Self::Test { owner, .. } | Self::EndProcess { owner, .. } => owner.door.session,
        }
    }
}

impl OwnerRequest {
    /// The session that the request names as the one that asks; `None` if it names none.
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        match self {
            Self::Execute { stamp, .. }
            | Self::Unhold { stamp, .. }
            | Self::UnholdAll { stamp, .. } => Some(stamp.session),
            Self::Hold { session, .. }
            | Self::ReportLowWater { session, .. }
            | Self::Reclaim { session, .. }
            | Self::AskToken { session, .. }
            | Self::AskToKnow { session, .. }
            | Self::ReturnTokens { session, .. }
            | Self::AwaitRecalls { session, .. }
            | Self::ExecuteStream { session, .. } => Some(*session),
            Self::Lock(call) => Some(call.session()),
            Self::Sync
            | Self::NewSession
            | Self::OpenSession { .. }
            | Self::CloseSession { .. }
            | Self::GetUsage
            | Self::GiveUp { .. }
            | Self::MakeRoom
            | Self::Examine { .. }
            | Self::ReportMended { .. } => None,
        }
    }

    /// Whether the request changes what the owner has in memory, so that repeating it or changing
    /// its place among others would do harm: it needs an [`Order`] between nodes.
    #[must_use]
    pub fn is_in_order(&self) -> bool {
        match self {
            Self::Hold { .. } | Self::Unhold { .. } | Self::UnholdAll { .. } => true,
            Self::Lock(call) => !matches!(call, LockCall::Test { .. } | LockCall::Await { .. }),
            _ => false,
        }
    }

    /// Whether the request is an operation that changes something.
    #[must_use]
    pub fn is_change(&self) -> bool {
        matches!(self, Self::Execute { operation, .. } if !operation.is_read())
    }

    /// Whether the request makes written data part of its file.
    #[must_use]
    pub fn is_publish(&self) -> bool {
        matches!(
            self,
            Self::Execute {
                operation: Operation::Publish(_),
                ..
            }
        )
    }

    /// Whether the request is about tokens.
    #[must_use]
    pub fn is_about_tokens(&self) -> bool {
        matches!(
            self,
            Self::AskToken { .. }
                | Self::AskToKnow { .. }
                | Self::ReturnTokens { .. }
                | Self::AwaitRecalls { .. }
        )
    }

    /// Largest reply, by which another node counts what it has under way for this one: a request that allows for more
    /// than it gets keeps others from being sent.
    #[must_use]
    pub fn reply_bytes_max(&self) -> u32 {
        /// Attributes, numbers, some ranges; errors with their stories.
        const SMALL: u32 = 64 * 1024;
        /// All extended attributes of an inode, and what is around each.
        const XATTRS: u32 = 2 * XATTR_INODE_BYTES_MAX as u32;
        if let Self::Execute { operation, .. } = self
            && matches!(
                operation,
                Operation::GetXattr { .. } | Operation::ListXattrs { .. }
            )
        {
            return XATTRS;
        }
        let is_large = match self {
            Self::Execute { operation, .. } => operation.answers_much(),
            Self::Reclaim { .. } | Self::AwaitRecalls { .. } | Self::ExecuteStream { .. } => true,
            _ => false,
        };
        match is_large {
            true => BODY_BYTES_MAX as u32,
            false => SMALL,
        }
    }

    /// Whether the owner may wait for other clients before it answers. What these ask for then must find room beside it: what
    /// publishes, unlocks, gives back or hears of recalls, and what kernels ask for before they write.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        match self {
            Self::Execute { operation, .. } => match operation {
                Operation::Publish(_) | Operation::GetXattr { .. } => false,
                Operation::ReadExtents { .. } => operation.answers_much(),
                _ => true,
            },
            Self::Lock(LockCall::Await { .. }) | Self::AskToken { .. } | Self::AskToKnow { .. } => {
                true
            }
            _ => false,
        }
    }

    /// Whether the answer depends on which locks others hold.
    #[must_use]
    pub fn depends_on_locks(&self) -> bool {
        match self {
            Self::Lock(LockCall::Set(request) | LockCall::Queue { request, .. }) => {
                request.kind.is_some()
            }
            Self::Lock(LockCall::Test { .. }) => true,
            _ => false,
        }
    }
}

/// What an owner answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OwnerReply {
    /// The operation's reply, and its rank in the shard's history.
    Operation(Ranked),
    /// Success without a result.
    Done,
    /// The id for a session.
    NewSession(SessionId),
    /// The session is open; the owner's tenure.
    Session(Tenure),
    /// The answer to a request for a token. It renews all tokens of the session.
    Token {
        /// The answer.
        reply: TokenReply,
        /// For how long.
        renewal: Renewal,
    },
    /// Shared tokens in the order in which they were asked for; `None` of an inode whose attributes others may be
    /// changing, or if the session holds as much as it may. It renews all tokens of the session.
    Known {
        /// The tokens, each with what it lets its session see.
        inodes: Vec<Option<KnownInode>>,
        /// For how long.
        renewal: Renewal,
    },
    /// What the owner wants back, at most [`RECALLS_MAX`], with about [`RECALLED_RANGES_MAX`] ranges. It renews all tokens of the session.
    Recalls {
        /// What.
        recalls: Vec<TokenRecall>,
        /// The session has everything, until an answer says that it must not: it needs no tokens.
        has_all: bool,
        /// For how long.
        renewal: Renewal,
    },
    /// The request for a lock waits for its turn.
    Waits,
    /// The first conflicting lock.
    Conflict(Option<HeldLock>),
    /// Space and inodes.
    Usage(Usage),
    /// Whether any space was freed.
    Freed(bool),
    /// The owner knows a part of what the session holds.
    Reclaimed {
        /// The owner's tenure.
        tenure: Tenure,
        /// Locks of the part that others have taken meanwhile, because the client came too late.
        lost: u32,
        /// The new grants of the part's tokens, in their order; `None` for those that are lost.
        tokens: Vec<Option<GrantNumber>>,
    },
    /// What the segments are, in their order.
    Judged(Vec<Verdict>),
    /// What became of operations of a stream, in their order. The error of one that was refused, and never will be done.
    Streamed(Vec<Result<StreamDone>>),
}

/// What an owner answers a client of its own process, which doesn't wait until it is durable: both are lost together,
/// or the client learns that something was lost (`client/owner/near.rs`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NearAnswer {
    /// The answer.
    pub answer: Result<OwnerReply>,
    /// The newest commit that it shows; 0 for none.
    pub shows: CommitNumber,
}

/// For how long tokens may be used after an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Renewal {
    /// The tenure of the owner that has answered.
    pub tenure: Tenure,
    /// Counted from when the request was sent.
    pub span: Duration,
}

/// A request as it is sent to another node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OwnerCall {
    /// The shard whose owner is asked: a node may own several. The first field, so that a node finds
    /// the owner without decoding the rest ([`OwnerCall::shard_of`]).
    pub shard: ShardId,
    /// The session that asks; 0 while it has none.
    pub session: SessionId,
    /// The owner's tenure for which the client knows what it holds; 0 while it has no session. An
    /// owner refuses requests with another one: it has yet to hear of what is held, or isn't the
    /// owner any more and would answer with what was.
    pub tenure: Tenure,
    /// The place of a request that [is in order](OwnerRequest::is_in_order); `None` for others.
    pub order: Option<Order>,
    /// The request.
    pub request: OwnerRequest,
}

impl OwnerCall {
    /// The shard that a call is for, read from its first bytes. The rest may still not be understood.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes begin with no shard.
    pub fn shard_of(call: &Call) -> Result<ShardId> {
        match postcard::take_from_bytes::<ShardId>(&call.body) {
            Ok((shard, _)) => Ok(shard),
            Err(_) => {
                let text = "the request names no shard";
                Err(Error::new(ErrorKind::InvalidArgument, text))
            }
        }
    }
}

/// A request's place: among those of one slot, each is run once and none after a later one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The slot, below `limits::SESSION_SLOTS`.
    pub slot: u8,
    /// Grows with each request of the slot, from 1.
    pub number: u64,
}

/// Space and inodes, as `df` shows them. Bytes are plain data, before redundancy is added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes that the pool can hold for users.
    pub capacity: u64,
    /// Bytes in use.
    pub used: u64,
    /// Bytes that users may still write (without the reserve for log and deletes).
    pub available: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Sum of the sizes of regular files in bytes.
    pub logical: u128,
    /// Sum of the bytes stored or reserved for inodes, before redundancy.
    pub allocated: u128,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::{FileKind, Reply};
    use bytes::Bytes;

    #[test]
    fn a_call_begins_with_the_shard_that_it_is_for() {
        for shard in [0, 1, 127, 128, u32::MAX].map(ShardId) {
            let asked = OwnerCall {
                shard,
                session: SessionId(77),
                tenure: Tenure(3),
                order: None,
                request: OwnerRequest::Sync,
            };
            let mut call = Call::new(OWNER, CLASS, &asked);
            assert_eq!(OwnerCall::shard_of(&call).unwrap(), shard);
            assert_eq!(call.decode::<OwnerCall>().unwrap(), asked);
            // A later version's request is routed, and refused by its shard.
            call.body = Bytes::copy_from_slice(&[&call.body[..], b"more"].concat());
            assert_eq!(OwnerCall::shard_of(&call).unwrap(), shard);
        }
    }

    /// Would be broken if what a request gets were more than it allows for.
    #[test]
    fn requests_allow_for_the_most_that_they_can_get() {
        let session = SessionId(u64::MAX);
        let stamp = Stamp::own(Timestamp(1), session);
        let most = |request: &OwnerRequest, reply: OwnerReply| {
            let allowed = request.reply_bytes_max() as usize;
            let bytes = crate::call::Reply::new(&Ok(reply), Bytes::new()).body.len();
            assert!(bytes <= allowed, "{request:?}: {bytes} of {allowed} bytes");
        };
        let numbers = GrantNumber {
            tenure: Tenure(u64::MAX),
            count: u64::MAX,
        };
        let renewal = Renewal {
            tenure: Tenure(u64::MAX),
            span: Duration::MAX,
        };
        let range = TokenRange {
            start: u64::MAX - 1,
            end: u64::MAX,
        };
        let object = TokenObject::Bytes(InodeId(u64::MAX));
        let recall = |ranges| TokenRecall {
            object,
            ranges: vec![range; ranges],
            keep: Some(TokenMode::Exclusive),
            up_to: numbers,
        };
        // The last one has as many as a recall may have.
        let few = (RECALLED_RANGES_MAX - 1) / (RECALLS_MAX - 1);
        let mut recalls = vec![recall(few); RECALLS_MAX - 1];
        recalls.push(recall(TOKEN_RANGES_MAX));
        most(
            &OwnerRequest::AwaitRecalls {
                session,
                known: Tenure(1),
                has_all: false,
            },
            OwnerReply::Recalls {
                recalls,
                has_all: false,
                renewal,
            },
        );
        let time = Timestamp(i64::MIN);
        let attributes = Attributes {
            inode: InodeId(u64::MAX),
            kind: FileKind::BlockDevice,
            mode: u32::MAX,
            uid: u32::MAX,
            gid: u32::MAX,
            links: u32::MAX,
            size: u64::MAX,
            allocated: u64::MAX,
            rdev: u32::MAX,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            generation: u32::MAX,
        };
        let known = KnownInode {
            number: numbers,
            attributes: Some(attributes),
        };
        most(
            &OwnerRequest::AskToKnow {
                session,
                inodes: Vec::new(),
            },
            OwnerReply::Known {
                inodes: vec![Some(known); KNOWN_MAX],
                renewal,
            },
        );
        let link = OwnerRequest::Execute {
            operation: Operation::ReadLink {
                inode: InodeId::ROOT,
            },
            stamp,
        };
        let target = crate::limits::SYMLINK_BYTES_MAX;
        assert!(target < link.reply_bytes_max() as usize / 2);
        let extents = |limit| OwnerRequest::Execute {
            operation: Operation::ReadExtents {
                inode: InodeId::ROOT,
                offset: 0,
                length: 1,
                limit,
            },
            stamp,
        };
        let bytes = crate::limits::INLINE_WRITE_BYTES_MAX;
        assert!(bytes <= extents(1).reply_bytes_max() / 2);
        assert_eq!(extents(2).reply_bytes_max() as usize, BODY_BYTES_MAX);
        let listing = OwnerRequest::Execute {
            operation: Operation::ReadDirectory {
                directory: InodeId::ROOT,
                after: 0,
                limit: 1,
                with_attributes: false,
            },
            stamp,
        };
        assert_eq!(listing.reply_bytes_max() as usize, BODY_BYTES_MAX);
        let inode = InodeId::ROOT;
        let shortest = Bytes::from_static(b"user.x");
        let names = vec![shortest.clone(); XATTR_INODE_BYTES_MAX / shortest.len()];
        let value = Bytes::from(vec![1; XATTR_INODE_BYTES_MAX]);
        let get = Operation::GetXattr {
            inode,
            name: shortest,
        };
        for (operation, reply) in [
            (get, Reply::Value(value)),
            (Operation::ListXattrs { inode }, Reply::Names(names)),
        ] {
            let rank = Rank::default();
            let request = OwnerRequest::Execute { operation, stamp };
            assert!(request.reply_bytes_max() < BODY_BYTES_MAX as u32 / 4);
            most(&request, OwnerReply::Operation(Ranked { reply, rank }));
        }
        // Many of them wait for others: they must not fill a connection.
        let waits = LockCall::Await { session, wait: 1 };
        let waits = OwnerRequest::Lock(waits);
        assert!(1024 * u64::from(waits.reply_bytes_max()) <= 64 << 20);
    }

    #[test]
    fn bytes_that_begin_with_no_shard_are_refused() {
        for body in [&b""[..], &[0xff, 0xff], &[0xff; 12]] {
            let mut call = Call::new(OWNER, CLASS, &());
            call.body = Bytes::copy_from_slice(body);
            let refused = OwnerCall::shard_of(&call).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        }
    }
}
