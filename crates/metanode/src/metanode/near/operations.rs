//! Operations of clients of this process: done in one step on the thread that asks, and what such a step leaves to do.

use super::left;
use crate::host::has_cuts;
use crate::metanode::Metanode;
use crate::tokens::Claiming;
use model::operation::{Ranked, Stamp, Turn};
use model::owner::{NearAnswer, OwnerReply};
use model::{CommitNumber, ErrorKind, InodeId, Operation, Reply, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokens::needs;
use world::call::Asked;

impl Metanode {
    /// Does an operation if it is done in one step and needn't wait. `None`: nothing was done.
    pub(super) fn execute_near(
        self: &Arc<Self>,
        operation: &Operation,
        stamp: &Stamp,
    ) -> Option<Asked<'static, NearAnswer>> {
        let in_grace = self.in_grace.load(Ordering::Relaxed);
        if in_grace || !is_one_step(operation) || !self.room.has_plenty_for(operation) {
            return None;
        }
        let claiming = self.tokens.claim(stamp.session, || needs::needs(operation));
        let claim = claiming.map(Claiming::ready)?.ok()?;
        // What others may be changing is looked at more closely.
        if needs::shows(operation) && !claim.is_all() {
            return None;
        }
        let (answer, shows) = self.host.load().execute_in_session(operation, stamp)?;
        if answer.as_ref().is_err_and(|error| waits(error.kind())) {
            return None;
        }
        self.note_publish(operation, stamp, &answer);
        drop(claim);
        let made = made_held(operation, &answer);
        let rest = self.rest_of(operation, stamp, &answer);
        let is_serving = self.check_serving().is_ok();
        match rest {
            None if is_serving => {
                let answer = answer.map(OwnerReply::Operation);
                Some(Asked::Ready(NearAnswer { answer, shows }))
            }
            None if operation.is_read() => None,
            rest => {
                let (it, operation, stamp) = (self.clone(), operation.clone(), *stamp);
                let finish = async move {
                    let answer = match rest {
                        Some(rest) => it.finish_near(rest, &operation, &stamp, answer).await,
                        None => answer,
                    };
                    let answered = it.answer_late((answer, shows)).await;
                    // Its client doesn't know that it holds that.
                    if let Some(inode) = made
                        && answered.answer.is_err()
                        && let Err(error) = it.unhold(inode, &stamp).await
                    {
                        tracing::warn!(%inode, %error, "what nobody was told of isn't let go");
                    }
                    answered
                };
                Some(Asked::Waits(Box::pin(finish)))
            }
        }
    }

    /// What an operation leaves to do that was done, if anything.
    fn rest_of(
        &self,
        operation: &Operation,
        stamp: &Stamp,
        answer: &Result<Ranked>,
    ) -> Option<Rest> {
        match answer.as_ref().map(|ranked| &ranked.reply) {
            Ok(
                Reply::Removed {
                    attributes,
                    orphaned: true,
                    ..
                }
                | Reply::Renamed {
                    target: Some(attributes),
                    orphaned: true,
                    ..
                },
            ) => {
                let inode = attributes.inode;
                let is_left =
                    self.holders.lost_names(inode) && self.release_now(inode, stamp).is_none();
                is_left.then_some(Rest::Release(inode))
            }
            Ok(_) if has_cuts(operation, answer) => Some(Rest::Cut),
            _ => None,
        }
    }

    /// Does it. The answer is true without: what can't be done now is done by the next operation that meets it, or a round.
    async fn finish_near(
        &self,
        rest: Rest,
        operation: &Operation,
        stamp: &Stamp,
        answer: Result<Ranked>,
    ) -> Result<Ranked> {
        match rest {
            Rest::Release(inode) => {
                self.release_later(inode, stamp).await;
                answer
            }
            Rest::Cut => {
                let first = answer.clone();
                let host = &self.host;
                let finished = host.finish_cuts(operation, stamp, answer, false).await;
                finished.or(first)
            }
        }
    }

    /// Releases an inode if everything for that is in memory; the commit with which it is gone.
    pub(super) fn release_now(&self, inode: InodeId, stamp: &Stamp) -> Option<CommitNumber> {
        let stamp = Stamp {
            turn: Turn::Own,
            ..*stamp
        };
        let end = self.holders.last_end(inode);
        let release = Operation::Release { inode };
        let (answer, commit) = self.host.load().execute_in_session(&release, &stamp)?;
        let reply = answer.ok()?.reply;
        self.is_settled(inode, end, &reply).then_some(commit)
    }

    /// Releases an inode, whatever that takes. If it can't be done, a round does it.
    pub(super) async fn release_later(&self, inode: InodeId, stamp: &Stamp) {
        if let Err(error) = self.release(inode, stamp).await {
            tracing::warn!(%inode, %error, "an inode without names isn't released yet");
        }
    }

    /// Answers what was done some time ago: if another owner may follow, once it is durable.
    async fn answer_late(&self, (answer, shows): (Result<Ranked>, CommitNumber)) -> NearAnswer {
        let answer = match self.check_serving() {
            Ok(()) => answer.map(OwnerReply::Operation),
            Err(_) if self.has_durable(shows) => answer.map(OwnerReply::Operation),
            Err(_) => match self.sync().await {
                Ok(()) => answer.map(OwnerReply::Operation),
                Err(error) => Err(left(error)),
            },
        };
        NearAnswer { answer, shows }
    }
}

/// What is left to do after an operation was done.
enum Rest {
    /// The inode has lost its last name, and nobody uses it.
    Release(InodeId),
    /// The end of a file is being cut.
    Cut,
}

/// The inode that an operation made, if its session holds it with that.
fn made_held(operation: &Operation, answer: &Result<Ranked>) -> Option<InodeId> {
    match answer.as_ref().map(|ranked| &ranked.reply) {
        Ok(Reply::Entry { attributes, .. }) if operation.makes_held() => Some(attributes.inode),
        _ => None,
    }
}

/// Whether an operation is done when it was applied once. Others have slots, so that the next owner can go on with them.
/// Each is named: a new one that makes something held may be `true` only if the shard tells that to its
/// [`Holders`](shard::Holders) under the lock under which sessions end. In the books of clients they are
/// (`client/owner/calls/at_once.rs`).
fn is_one_step(operation: &Operation) -> bool {
    match operation {
        // What it makes has no name: its maker holds it by its slot.
        Operation::CreateUnnamed { .. } | Operation::ChangeRange { .. } => false,
        Operation::SetAttributes { set, .. } => matches!(set.size, None | Some(0)),
        Operation::Lookup { .. }
        | Operation::LookupParent { .. }
        | Operation::GetAttributes { .. }
        | Operation::ContinueCut { .. }
        | Operation::NoteAccess { .. }
        | Operation::Publish(_)
        | Operation::Create { .. }
        | Operation::CreateHeld { .. }
        | Operation::Link { .. }
        | Operation::Unlink { .. }
        | Operation::RemoveDirectory { .. }
        | Operation::Rename { .. }
        | Operation::ReadDirectory { .. }
        | Operation::ReadLink { .. }
        | Operation::GetXattr { .. }
        | Operation::ListXattrs { .. }
        | Operation::SetXattr { .. }
        | Operation::RemoveXattr { .. }
        | Operation::ReadExtents { .. }
        | Operation::Share { .. }
        | Operation::Release { .. }
        | Operation::GetUsage { .. }
        | Operation::Reserve { .. }
        | Operation::Reclaim { .. }
        | Operation::Condemn { .. }
        | Operation::ForgetDead { .. } => true,
    }
}

/// Whether an operation wasn't done, and is to be asked again or by another way.
fn waits(kind: ErrorKind) -> bool {
    use ErrorKind::{
        Busy, InGrace, OldEpoch, ReclaimFirst, SessionEnded, ShuttingDown, Unavailable, Unknown,
    };
    matches!(
        kind,
        Busy | InGrace
            | OldEpoch
            | ReclaimFirst
            | SessionEnded
            | ShuttingDown
            | Unavailable
            | Unknown
    )
}
