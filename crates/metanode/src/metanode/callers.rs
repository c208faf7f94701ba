//! Which requests of other nodes an owner answers: those of a session that is open, that the asking
//! run of a daemon opened, and that concern what is the session's own. And, without a session, how full it is.
//!
//! An owner trusts the nodes' kernels with the users' permissions, but no daemon with what belongs to
//! another: a faulty one may damage the files that it may write, and nothing else.

use crate::metanode::Metanode;
use crate::metanode::streams;
use model::limits::SESSION_SLOTS;
use model::lock::LockRequest;
use model::operation::Turn;
use model::owner::{
    EXAMINED_MAX, GIVE_UP_MAX, KNOWN_MAX, LockCall, MENDED_MAX, OwnerCall, OwnerRequest,
    RECLAIM_MAX, RETURNED_MAX, RETURNED_RANGES_MAX, Reclaimed, STREAMED_MAX, UNHELD_MAX,
};
use model::{Error, ErrorKind, NodeRun, Operation, Result, SessionId, ShardId};

impl Metanode {
    /// Whether a request of another node may be answered.
    ///
    /// # Errors
    /// `OldEpoch` if the call is for another shard, or the client knows a later owner; `SessionEnded`; `ReclaimFirst` and `InGrace` if
    /// it has to wait; `InvalidArgument` for what no sound daemon asks.
    pub(super) fn check_call(&self, from: NodeRun, call: &OwnerCall) -> Result<()> {
        check_form(call)?;
        self.check_shard(call.shard)?;
        let session = call.session;
        match &call.request {
            OwnerRequest::NewSession
            | OwnerRequest::OpenSession { .. }
            | OwnerRequest::Examine { .. }
            | OwnerRequest::ReportMended { .. } => Ok(()),
            OwnerRequest::Reclaim { .. } => {
                self.check_owner(call.tenure)?;
                self.check_run(session, from)
            }
            // Also if it has ended: the first answer may have been lost.
            OwnerRequest::CloseSession { session } => {
                self.check_owner(call.tenure)?;
                match self.check_run(*session, from) {
                    Err(error) if error.kind() == ErrorKind::SessionEnded => Ok(()),
                    checked => checked,
                }
            }
            // A session for that would take everything from a client that is the only one.
            OwnerRequest::GetUsage if session == SessionId::default() => {
                self.check_owner(call.tenure)
            }
            request => {
                self.check_owner(call.tenure)?;
                self.check_run(session, from)?;
                self.check_reclaimed(session)?;
                if call.tenure < self.tenure() {
                    return Err(ErrorKind::ReclaimFirst.into());
                }
                match request.depends_on_locks() {
                    true => self.check_grace(),
                    false => Ok(()),
                }
            }
        }
    }

    /// Whether this is the shard that a call is for: sessions and inodes of another mean nothing here.
    fn check_shard(&self, shard: ShardId) -> Result<()> {
        if shard == self.host.id() {
            return Ok(());
        }
        let text = format!("shard {shard} isn't the one here, {}", self.host.id());
        Err(Error::new(ErrorKind::OldEpoch, text))
    }

    /// Whether the session is open and owes nothing.
    pub(super) fn check_standing(&self, session: SessionId) -> Result<()> {
        match self.shard().run_of_session(session) {
            Some(_) => self.check_reclaimed(session),
            None => Err(namespace::sessions::ended(session)),
        }
    }

    /// Whether coordination has given the number out. Sessions are ended and forgotten in the order
    /// of their numbers: one far ahead would end all that come before it.
    pub(super) async fn check_given_out(&self, session: SessionId) -> Result<()> {
        let below = self.host.coordination().sessions_taken_below().await?;
        match session < below {
            true => Ok(()),
            false => refused("the session's number was never given out: ask for one"),
        }
    }

    /// Whether the session is open, and the run's.
    fn check_run(&self, session: SessionId, from: NodeRun) -> Result<()> {
        match self.shard().run_of_session(session) {
            None => Err(namespace::sessions::ended(session)),
            Some(run) if run == from => Ok(()),
            Some(run) => {
                let text = format!("session {session} is of node run {run}, not of {from}");
                Err(Error::new(ErrorKind::InvalidArgument, text))
            }
        }
    }
}

/// Whether a call concerns only what is its session's own, and is no larger than the protocol says.
fn check_form(call: &OwnerCall) -> Result<()> {
    let own = call.session;
    let (is_own, is_small) = match &call.request {
        OwnerRequest::Execute { operation, stamp } => {
            if stamp.turn == Turn::Own || is_of_owner(operation) {
                return refused("only the owner itself takes this step");
            }
            if matches!(stamp.turn, Turn::Stream { .. }) {
                return refused("operations of a stream are sent as a stream");
            }
            (stamp.session == own, true)
        }
        OwnerRequest::Sync
        | OwnerRequest::NewSession
        | OwnerRequest::GetUsage
        | OwnerRequest::MakeRoom
        | OwnerRequest::OpenSession { .. } => (true, true),
        // A client that gave up opening it has none yet.
        OwnerRequest::CloseSession { session } => {
            (own == SessionId::default() || *session == own, true)
        }
        OwnerRequest::Hold { session, .. }
        | OwnerRequest::ReportLowWater { session, .. }
        | OwnerRequest::AskToken { session, .. }
        | OwnerRequest::AwaitRecalls { session, .. } => (*session == own, true),
        OwnerRequest::AskToKnow { session, inodes } => (*session == own, inodes.len() <= KNOWN_MAX),
        OwnerRequest::ReturnTokens { session, back } => {
            let ranges: usize = back.iter().map(|back| back.ranges.len()).sum();
            let is_small = back.len() <= RETURNED_MAX && ranges <= RETURNED_RANGES_MAX;
            (*session == own, is_small)
        }
        OwnerRequest::Unhold { stamp, .. } => (stamp.session == own, true),
        OwnerRequest::UnholdAll { inodes, stamp } => {
            (stamp.session == own, inodes.len() <= UNHELD_MAX)
        }
        OwnerRequest::Lock(lock) => (lock.session() == own, has_ranges(lock)),
        OwnerRequest::GiveUp { places } => {
            let is_own = places.iter().all(|place| place.segment.session == own);
            (is_own, places.len() <= GIVE_UP_MAX)
        }
        OwnerRequest::Examine { found } => (true, found.len() <= EXAMINED_MAX),
        OwnerRequest::ReportMended { mended } => (true, mended.len() <= MENDED_MAX),
        OwnerRequest::ExecuteStream {
            session,
            operations,
        } => {
            if !streams::are_sound(operations) {
                return refused("a client answers no such operations before the owner does");
            }
            (*session == own, operations.len() <= STREAMED_MAX)
        }
        OwnerRequest::Reclaim { session, part, .. } => {
            let Reclaimed {
                holds,
                doors,
                locks,
                tokens,
                under_way,
                ..
            } = part;
            let is_own = *session == own
                && doors.iter().all(|door| door.session == own)
                && locks.iter().all(|lock| lock.owner.door.session == own);
            let is_small = holds.len() + doors.len() + locks.len() + tokens.len() <= RECLAIM_MAX
                && under_way.len() <= usize::from(SESSION_SLOTS)
                && locks.iter().all(has_range);
            (is_own, is_small)
        }
    };
    match (is_own, is_small) {
        (true, true) => Ok(()),
        (false, _) => refused("the request concerns another session than the one that asks"),
        (_, false) => refused(
            "the request has more parts than allowed, or a range that ends before it begins",
        ),
    }
}

fn refused(text: &str) -> Result<()> {
    Err(Error::new(ErrorKind::InvalidArgument, text))
}

/// Operations that an owner runs for itself: what they rest on (what nobody uses, which bytes a copy
/// has) only the owner knows.
fn is_of_owner(operation: &Operation) -> bool {
    match operation {
        Operation::Publish(publish) => publish.replaces.is_some(),
        Operation::ContinueCut { .. }
        | Operation::Release { .. }
        | Operation::Reclaim { .. }
        | Operation::Condemn { .. }
        | Operation::ForgetDead { .. } => true,
        _ => false,
    }
}

fn has_ranges(call: &LockCall) -> bool {
    match call {
        LockCall::Set(request) | LockCall::Queue { request, .. } => has_range(request),
        LockCall::Test { range, .. } => range.start <= range.end,
        _ => true,
    }
}

fn has_range(request: &LockRequest) -> bool {
    request.range.start <= request.range.end
}
