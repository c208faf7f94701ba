//! Answers the requests of `model::owner`: as function calls of a single node's client, and as
//! messages of clients on other nodes. Clients on the owner's node in a cluster: `near.rs`.
//!
//! A message's answer is durable before it leaves: the client may tell others about it. The answer to
//! a function call needn't be, since both are lost together.

pub(super) mod replays;

use crate::metanode::Metanode;
use crate::metanode::near::left;
use crate::metanode::operations::Asker;
use futures::FutureExt;
use futures::future::BoxFuture;
use model::call::{BODY_BYTES_MAX, Call, Reply as Message};
use model::operation::{Stamp, Turn};
use model::owner::{LockCall, OWNER, Order, OwnerCall, OwnerReply, OwnerRequest};
use model::{Error, ErrorKind, InodeId, NodeRun, Operation, Result, SessionId};
use std::time::Duration;
use world::Deadline;
use world::Planted;
use world::Point;
use world::call::{Asked, Local, Service};

/// An inode that lost its last use while it had no name, and the stamp to release it with.
type LastUse = (InodeId, Stamp);

impl Local<OwnerRequest, Result<OwnerReply>> for Metanode {
    fn ask<'a>(&'a self, request: &'a OwnerRequest) -> Asked<'a, Result<OwnerReply>> {
        let ends = self.sessions.ends();
        // What is held for a session that has ended would be held for ever.
        if request.is_in_order()
            && let Some(session) = request.session()
            && !self.sessions.is_open(session)
        {
            return Asked::Ready(Err(namespace::sessions::ended(session)));
        }
        match request {
            OwnerRequest::Execute { operation, stamp } => match self.begin(operation, stamp) {
                Asked::Ready(reply) => Asked::Ready(reply.map(OwnerReply::Operation)),
                Asked::Waits(rest) => {
                    Asked::Waits(Box::pin(rest.map(|reply| reply.map(OwnerReply::Operation))))
                }
            },
            request
                if request.is_in_order()
                    && request.depends_on_locks()
                    && self.check_grace().is_err() =>
            {
                Asked::Waits(Box::pin(async move {
                    self.wait_for_grace().await?;
                    self.change_here(request, ends, &mut Vec::new())
                }))
            }
            request if request.is_in_order() => {
                let mut last_uses = Vec::new();
                let reply = self.change_here(request, ends, &mut last_uses);
                match last_uses.is_empty() {
                    true => Asked::Ready(reply),
                    false => Asked::Waits(Box::pin(async move {
                        for (inode, stamp) in last_uses {
                            self.release(inode, &stamp).await?;
                        }
                        reply
                    })),
                }
            }
            request => Asked::Waits(Box::pin(self.wait_for(request))),
        }
    }
}

impl Service for Metanode {
    fn serve(&self, from: NodeRun, call: Call, deadline: Deadline) -> BoxFuture<'_, Message> {
        Box::pin(async move {
            let asked = if call.method == OWNER {
                call.decode::<OwnerCall>()
            } else {
                let text = format!("an owner has no method {}", call.method.0);
                Err(Error::new(ErrorKind::NotImplemented, text))
            };
            let changes = asked.as_ref().is_ok_and(|asked| asked.request.is_change());
            // Before the work, so that who asks for a change knows then that it isn't made.
            if changes && let Err(error) = self.lease.check(&self.world) {
                return message(&Err(error));
            }
            let answer = match asked {
                Ok(asked) => self.serve_call(from, asked, deadline).await,
                Err(error) => message(&Err(error)),
            };
            // After the work: another owner may have followed meanwhile.
            match self.lease.check(&self.world) {
                Ok(()) => answer,
                Err(error) if changes => message(&Err(left(error))),
                Err(error) => message(&Err(error)),
            }
        })
    }
}

impl Metanode {
    async fn serve_call(&self, from: NodeRun, asked: OwnerCall, deadline: Deadline) -> Message {
        let answer = match (self.check_call(from, &asked), asked.request) {
            (Ok(()), OwnerRequest::Execute { operation, stamp }) => {
                let stamp = stamp.received(self.world.wall());
                return self.serve_operation(operation, &stamp, deadline).await;
            }
            (Ok(()), request) => {
                let asked = OwnerCall { request, ..asked };
                self.answer_checked(from, &asked, deadline, false).await
            }
            (Err(error), _) => Err(error),
        };
        message(&self.confirm_end(answer).await)
    }

    /// An answer that says that its session has ended is given by the owner only: another one may have opened the
    /// session since.
    pub(super) async fn confirm_end(&self, answer: Result<OwnerReply>) -> Result<OwnerReply> {
        if let Err(error) = &answer
            && error.kind() == ErrorKind::SessionEnded
        {
            self.confirm_ownership().await?;
        }
        answer
    }

    /// Answers a request that [may be answered](Metanode::check_call): of a client on another node, or, if it `is_near`, of one
    /// in this process, for whose operations nothing needs to be durable.
    pub(super) async fn answer_checked(
        &self,
        from: NodeRun,
        asked: &OwnerCall,
        deadline: Deadline,
        is_near: bool,
    ) -> Result<OwnerReply> {
        match &asked.request {
            OwnerRequest::OpenSession { session } => {
                self.check_given_out(*session).await?;
                self.open_session_of(*session, from).await?;
                Ok(OwnerReply::Session(self.tenure()))
            }
            OwnerRequest::CloseSession { session } => {
                self.check_given_out(*session).await?;
                self.close_session(*session).await?;
                Ok(OwnerReply::Done)
            }
            OwnerRequest::Execute { operation, stamp } => {
                let asker = match is_near {
                    true => Asker::Near(deadline),
                    false => Asker::Far(deadline),
                };
                let stamp = stamp.received(self.world.wall());
                let ranked = self.execute_as(operation, &stamp, asker).await?;
                Ok(OwnerReply::Operation(ranked))
            }
            request if request.is_in_order() => {
                self.serve_in_order(asked.session, asked.order, request)
                    .await
            }
            OwnerRequest::Lock(LockCall::Await { session, wait }) => {
                self.serve_await(*session, *wait, deadline).await
            }
            request if request.is_about_tokens() => {
                self.serve_tokens(request, is_near, deadline).await
            }
            OwnerRequest::ExecuteStream {
                session,
                operations,
            } => self.serve_stream(*session, operations, deadline).await,
            request => self.wait_for(request).await,
        }
    }

    /// Waits for a lock, but so long only that the client gets the answer before its deadline.
    async fn serve_await(
        &self,
        session: SessionId,
        wait: u64,
        deadline: Deadline,
    ) -> Result<OwnerReply> {
        let patience = deadline.rest(&self.world) / 4 * 3;
        let granted = self.locks().granted(session, wait);
        match self.world.timeout(patience, granted).await {
            Ok(outcome) => outcome.map(|()| OwnerReply::Done),
            Err(_) => Ok(OwnerReply::Waits),
        }
    }

    async fn serve_in_order(
        &self,
        session: SessionId,
        order: Option<Order>,
        request: &OwnerRequest,
    ) -> Result<OwnerReply> {
        let order = order.ok_or_else(|| {
            let text = "the request has no place in the order of its session";
            Error::new(ErrorKind::InvalidArgument, text)
        })?;
        // It names this owner's tenure, so its client knows what was reclaimed.
        self.owes_nothing(session);
        let (mut last_uses, mut is_repeated) = (Vec::new(), true);
        let is_open = || self.check_standing(session).is_ok();
        let reply = self.replays.once(session, order, is_open, || {
            is_repeated = false;
            self.change(request, &mut last_uses)
        });
        // Its first copy may have been given up before it had released the inode, or as it waited
        // for that to be durable.
        let mut syncs = !last_uses.is_empty();
        if let Some((inodes, stamp)) = unheld(request)
            && is_repeated
            && reply.is_ok()
        {
            syncs = true;
            let stamp = stamp.received(self.world.wall());
            let mut ended = inodes.to_vec();
            ended.retain(|inode| self.holders.last_end(*inode).is_some());
            last_uses.extend(ended.into_iter().map(|inode| (inode, stamp)));
        }
        for (inode, stamp) in last_uses {
            if let Err(error) = self.release(inode, &stamp).await {
                tracing::warn!(%inode, %error, "an inode without names isn't released yet");
            }
        }
        if syncs {
            // The client doesn't say any more that it holds the inode, and a new owner may keep one
            // that a slot's last operation made.
            self.sync().await?;
        }
        reply
    }

    /// A listing or a list of extents that is too large for a message is answered in part, as its
    /// own limit would do.
    async fn serve_operation(
        &self,
        mut operation: Operation,
        stamp: &Stamp,
        deadline: Deadline,
    ) -> Message {
        let mut stamp = *stamp;
        let applies_twice = self.world.has_planted(Planted::ApplyTwice);
        if applies_twice && matches!(stamp.turn, Turn::Slot { .. }) {
            stamp.turn = Turn::Own;
        }
        // A shard that is given up does nothing, unless it is taken over again.
        let is_alive = self.shard().check_alive().is_ok();
        let takeovers = self.host.takeovers();
        loop {
            let mut reply = self.execute_durable(&operation, &stamp, deadline).await;
            let may_have_run = is_alive || self.host.takeovers() != takeovers;
            if let Err(error) = &reply
                && error.kind() == ErrorKind::OldEpoch
                && may_have_run
                && !operation.is_read()
            {
                // It wasn't made durable here, and may be in the log of the next owner.
                reply = Err(left(error.clone()));
            }
            self.world.at(Point::BeforeAnswer).await;
            let message = message(&reply.map(OwnerReply::Operation));
            if message.body.len() <= BODY_BYTES_MAX {
                return message;
            }
            match &mut operation {
                Operation::ReadDirectory { limit, .. } | Operation::ReadExtents { limit, .. }
                    if *limit > 1 =>
                {
                    *limit = (*limit).min(1 << 16) / 2;
                }
                _ => return self::message(&Err(ErrorKind::Overflow.into())),
            }
        }
    }

    /// As [`Metanode::change`] for a client in this process, whose session may be closed meanwhile: it was open when so
    /// many had ended.
    /// Messages need no look: [`Replays`](replays::Replays) keep them and the end apart.
    fn change_here(
        &self,
        request: &OwnerRequest,
        ends: u64,
        last_uses: &mut Vec<LastUse>,
    ) -> Result<OwnerReply> {
        let reply = self.change(request, last_uses);
        if self.sessions.ends() != ends
            && let Some(session) = request.session()
        {
            self.end_if_closed(session, self.sessions.is_open(session))?;
        }
        reply
    }

    /// Does what a request in order asks: without waiting, so that an interrupted one is done
    /// completely or not at all. The caller releases the inodes that it may put into `last_uses`.
    pub(super) fn change(
        &self,
        request: &OwnerRequest,
        last_uses: &mut Vec<LastUse>,
    ) -> Result<OwnerReply> {
        let mut reply = OwnerReply::Done;
        let locks = self.locks();
        match request {
            OwnerRequest::Hold { session, inode } => {
                self.holders.check_room(*session, *inode)?;
                self.holders.hold(*session, *inode);
            }
            OwnerRequest::Unhold { .. } | OwnerRequest::UnholdAll { .. } => {
                let (inodes, stamp) = unheld(request).expect("uses end");
                for inode in inodes {
                    if self.holders.unhold(stamp.session, *inode) {
                        last_uses.push((*inode, stamp.received(self.world.wall())));
                    }
                }
            }
            OwnerRequest::Lock(call) => match call {
                LockCall::BeginDoor(door) => locks.begin_door(*door)?,
                LockCall::EndDoor(door) => locks.end_door(*door),
                LockCall::Set(request) => {
                    return locks.try_set(*request).map(|()| reply);
                }
                LockCall::Queue { wait, request } => match locks.queue(*wait, *request) {
                    Ok(true) => {}
                    Ok(false) => {
                        let by = (self.world.errand(), self.world.now());
                        locks.note_wait(request.owner.door.session, *wait, by);
                        reply = OwnerReply::Waits;
                    }
                    Err(error) => return Err(error),
                },
                LockCall::EndWait { session, wait } => {
                    return locks.end_wait(*session, *wait).map(|()| reply);
                }
                LockCall::EndProcess { inode, owner } => {
                    locks.release_process(*inode, *owner);
                }
                LockCall::EndOpen { door, open } => {
                    locks.release_open(*door, *open);
                }
                LockCall::Test { .. } | LockCall::Await { .. } => unreachable!("not in order"),
            },
            _ => unreachable!("not in order"),
        }
        Ok(reply)
    }

    /// Does what any other request asks.
    async fn wait_for(&self, request: &OwnerRequest) -> Result<OwnerReply> {
        match request {
            OwnerRequest::Sync => self.sync().await?,
            OwnerRequest::NewSession => {
                let session = self.host.coordination().next_session().await?;
                return Ok(OwnerReply::NewSession(session));
            }
            OwnerRequest::OpenSession { session } => {
                let run = self.host.node_run();
                self.open_session_of(*session, run).await?;
                return Ok(OwnerReply::Session(self.tenure));
            }
            OwnerRequest::CloseSession { session } => self.close_session(*session).await?,
            OwnerRequest::GetUsage => return self.usage().await.map(OwnerReply::Usage),
            OwnerRequest::GiveUp { places } => self.give_up(places.clone()).await?,
            OwnerRequest::ReportLowWater { session, counter } => {
                self.report_low_water(*session, *counter);
            }
            OwnerRequest::Reclaim {
                session,
                part,
                is_last,
            } => return self.reclaim(*session, part, *is_last).await,
            OwnerRequest::MakeRoom => return self.make_room().await.map(OwnerReply::Freed),
            OwnerRequest::Examine { found } => {
                let judged = self.background.examine(found).await;
                return judged.map(OwnerReply::Judged);
            }
            OwnerRequest::ReportMended { mended } => self.background.note_mended(mended).await?,
            OwnerRequest::Lock(LockCall::Await { session, wait }) => {
                self.locks().granted(*session, *wait).await?;
            }
            OwnerRequest::Lock(LockCall::Test {
                inode,
                owner,
                range,
                kind,
            }) => {
                self.wait_for_grace().await?;
                let held = self.locks().conflict(*inode, *owner, *range, *kind);
                return Ok(OwnerReply::Conflict(held));
            }
            request if request.is_about_tokens() => {
                let deadline = Deadline::after(&self.world, HERE_MAX);
                return self.serve_tokens(request, true, deadline).await;
            }
            OwnerRequest::ExecuteStream {
                session,
                operations,
            } => {
                let deadline = Deadline::after(&self.world, HERE_MAX);
                return self.serve_stream(*session, operations, deadline).await;
            }
            OwnerRequest::AskToken { .. }
            | OwnerRequest::AskToKnow { .. }
            | OwnerRequest::ReturnTokens { .. }
            | OwnerRequest::AwaitRecalls { .. }
            | OwnerRequest::Execute { .. }
            | OwnerRequest::Hold { .. }
            | OwnerRequest::Unhold { .. }
            | OwnerRequest::UnholdAll { .. }
            | OwnerRequest::Lock(_) => unreachable!("answered by the callers"),
        }
        Ok(OwnerReply::Done)
    }
}

/// The inodes of which a request ends a use, and by whom.
fn unheld(request: &OwnerRequest) -> Option<(&[InodeId], &Stamp)> {
    match request {
        OwnerRequest::Unhold { inode, stamp } => Some((std::slice::from_ref(inode), stamp)),
        OwnerRequest::UnholdAll { inodes, stamp } => Some((inodes.as_slice(), stamp)),
        _ => None,
    }
}

/// How long a client of this process waits for an answer about tokens or of a stream until it asks again. Each answer
/// renews its tokens, so that kernels may use an answer of its for 4 s at least.
const HERE_MAX: Duration = Duration::from_secs(2);

fn message(reply: &Result<OwnerReply>) -> Message {
    Message::new(reply, bytes::Bytes::new())
}
