//! Answers clients of this process: function calls, and answers that needn't be durable.
//!
//! *A create of the only client*: [`Metanode::ask_near`] applies it to the hot records on the thread that asks, and that
//! is the answer; a file that its program opens with that is held by the session with the change itself
//! (`shard::Holders`). *What has to wait*, for records, for other clients, for the end of the grace time, is refused
//! there before anything is done, and asked again by [`Metanode::call_near`]: with slot, number and order, as a message
//! would be, but neither encoded nor kept until it is durable. `client/owner/near.rs` says why no operation is lost or
//! done twice.
//!
//! Each answer names the newest commit that it shows, so that the client knows what it has lost if this owner ends before
//! that is durable. *The node's lease*, and that the shard isn't being given up, are looked at before the work and after
//! it. What was done when that is over isn't answered before it is durable: then it is true whoever owns the shard.
//! Answers to other nodes wait for what they show as always, whoever did it.

mod operations;

use crate::metanode::Metanode;
use futures::future::{Either, select};
use model::owner::{NearAnswer, OwnerCall, OwnerRequest};
use model::{CommitNumber, Error, ErrorKind, NodeRun, Result, SessionId};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use world::Deadline;
use world::call::Asked;

/// How often it is looked whether the node has its lease.
const LEASE_PAUSE: Duration = Duration::from_millis(10);

impl Metanode {
    /// Does at once what a client of this process asks whose session this owner knows: it has opened it, or knows what it
    /// holds. `None` if that isn't possible, and then nothing was done.
    ///
    /// What is left to wait for, if the answer isn't ready, is known to be done or not when that has been driven to its end;
    /// dropped before, it may be either. It may last as long as the shard and the node's lease let it, so who drives it says
    /// how long that is waited for.
    pub fn ask_near(
        self: &Arc<Self>,
        request: &OwnerRequest,
    ) -> Option<Asked<'static, NearAnswer>> {
        self.check_serving().ok()?;
        match request {
            OwnerRequest::Execute { operation, stamp } => self.execute_near(operation, stamp),
            request if request.is_in_order() => self.change_near(request),
            _ => None,
        }
    }

    /// Answers what a client of this process asks, as if it were a message but before it is durable.
    pub async fn call_near(
        &self,
        from: NodeRun,
        call: &OwnerCall,
        deadline: Deadline,
    ) -> NearAnswer {
        let checked = self
            .check_serving()
            .and_then(|()| self.check_call(from, call));
        let answer = match checked {
            Ok(()) => self.answer_checked(from, call, deadline, true).await,
            Err(error) => {
                let answer = self.confirm_end(Err(error)).await;
                let shows = CommitNumber(0);
                return NearAnswer { answer, shows };
            }
        };
        let answer = self.confirm_end(answer).await;
        let shows = match &call.request {
            OwnerRequest::Execute { .. }
            | OwnerRequest::Unhold { .. }
            | OwnerRequest::UnholdAll { .. }
            | OwnerRequest::AskToken { .. }
            | OwnerRequest::AskToKnow { .. } => self.shard().newest_change(),
            _ => CommitNumber(0),
        };
        // After the work: another owner may have followed meanwhile.
        let answer = self.check_serving().map_err(left).and(answer);
        NearAnswer { answer, shows }
    }

    /// Whether a commit is durable, with all before it. Also of an owner that has ended: false then if it doesn't know.
    #[must_use]
    pub fn has_durable(&self, commit: CommitNumber) -> bool {
        self.shard().has_durable(commit)
    }

    /// The shard is about to be given up: a client of this process that has everything publishes and forgets what it has
    /// cached. What takes it longer than some seconds it keeps under tokens meanwhile, of which the next owner is told: so
    /// this may be given up after about ten, and the client goes on with the rest there. Nobody gets everything again from
    /// the first poll until future and result are dropped.
    ///
    /// # Errors
    /// `Unavailable`: it hasn't published all within a minute, or it can't be told any more, because the node's lease is over
    /// or another owner has followed. Then its session ends with this owner, unless it got its tokens before.
    pub async fn end_alone(&self) -> Result<impl Sized + '_> {
        let given_back = self.tokens.begin_opening(SessionId::default());
        match select(pin!(given_back), pin!(self.answers_nobody())).await {
            Either::Left((nobody, _)) => nobody,
            Either::Right(((), _)) => {
                let text = "this owner doesn't answer its client any more";
                Err(Error::new(ErrorKind::Unavailable, text))
            }
        }
    }

    /// Returns once clients of this process aren't answered.
    async fn answers_nobody(&self) {
        let stops = async {
            while self.check_serving().is_ok() {
                self.world.sleep(LEASE_PAUSE).await;
            }
        };
        select(pin!(stops), pin!(self.superseded())).await;
    }

    /// Whether clients of this process may be answered.
    ///
    /// # Errors
    /// `OldEpoch`: another owner may have followed, or is about to.
    fn check_serving(&self) -> Result<()> {
        if self.host.closes() {
            let text = "this node gives the shard up";
            return Err(Error::new(ErrorKind::OldEpoch, text));
        }
        self.lease.check(&self.world)
    }

    /// Does what a request in order asks. It isn't ready only if it was done and the node's lease is over: then it counts if
    /// this owner goes on.
    fn change_near(self: &Arc<Self>, request: &OwnerRequest) -> Option<Asked<'static, NearAnswer>> {
        let session = request.session()?;
        let ends = self.sessions.ends();
        let checked = match self.sessions.is_open(session) {
            true => self.check_reclaimed(session),
            // It was opened under an owner before this one: the shard knows, under a lock that all operations take.
            false => self.check_standing(session),
        };
        checked.ok()?;
        if request.depends_on_locks() {
            self.check_grace().ok()?;
        }
        // Its client knows that this owner knows what it holds.
        self.owes_nothing(session);
        let mut last_uses = Vec::new();
        let mut answer = self.change(request, &mut last_uses);
        // It may have been closed meanwhile: then what was taken for it ends again.
        if self.sessions.ends() != ends
            && let Err(error) = self.end_if_closed(session, self.is_open_now(session))
        {
            answer = Err(error);
        }
        let mut shows = CommitNumber(0);
        for (inode, stamp) in last_uses {
            // The client doesn't say any more that it holds the inode: it is gone, or its session ends.
            match self.release_now(inode, &stamp) {
                Some(commit) => shows = shows.max(commit),
                None => {
                    shows = self.shard().newest_change();
                    let it = self.clone();
                    let releasing = async move { it.release_later(inode, &stamp).await };
                    let task = self
                        .world
                        .spawn("releases an inode without names", releasing);
                    task.detach();
                }
            }
        }
        let answer = NearAnswer { answer, shows };
        if self.check_serving().is_ok() {
            return Some(Asked::Ready(answer));
        }
        let it = self.clone();
        Some(Asked::Waits(Box::pin(async move {
            while let Err(error) = it.lease.check(&it.world) {
                if it.host.closes() {
                    break;
                }
                tracing::debug!(%error, "an answer waits for the node's lease");
                it.world.sleep(LEASE_PAUSE).await;
            }
            match it.check_serving() {
                Ok(()) => answer,
                Err(error) => NearAnswer {
                    answer: Err(error),
                    ..answer
                },
            }
        })))
    }

    fn is_open_now(&self, session: SessionId) -> bool {
        self.shard().run_of_session(session).is_some()
    }
}

/// The error for something that was done, perhaps, by an owner that may have been followed.
pub(super) fn left(error: Error) -> Error {
    Error::new(ErrorKind::Unknown, error.to_string())
}
