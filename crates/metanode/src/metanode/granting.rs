//! Tokens for clients: their requests, what operations wait for, and sessions that give nothing back.

use crate::metanode::Metanode;
use crate::tokens::{CLAIM_WAIT_MAX, Claim, Claiming, Settling, needs_of_shown};
use model::operation::Ranked;
use model::owner::{KnownInode, OwnerReply, OwnerRequest, RECALL_WAIT_MAX};
use model::token::{GrantNumber, TokenReply, TokenRequest};
use model::{Error, ErrorKind, InodeId, Operation, Reply, Result, SessionId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokens::needs;
use world::Deadline;
use world::{Planted, Point, Task};

/// How often an operation may find that a name leads to another inode than before.
const SHOWN_ROUNDS_MAX: usize = 8;
/// How often the tokens of a client are renewed that calls this owner in its own process, as a single node's does. It costs
/// no message, and what kernels keep of the client's answers is valid for as long as its tokens.
const RENEWED_HERE_EVERY: Duration = Duration::from_millis(200);

/// How long attributes are read that go with grants. Who asks has just had them listed, so their records are in memory; if not,
/// it gets the tokens without.
const SHOWN_READ_MAX: Duration = Duration::from_millis(200);

/// How an operation goes on that showed attributes of inodes.
pub(super) enum Shown<'a> {
    /// Nobody else was changing them.
    True,
    /// It must run again, with this.
    Again(Claim<'a>),
}

impl Metanode {
    /// Answers a request about tokens; `deadline` is that of the answer.
    pub(super) async fn serve_tokens(
        &self,
        request: &OwnerRequest,
        is_here: bool,
        deadline: Deadline,
    ) -> Result<OwnerReply> {
        // One that was followed by another owner promises nothing.
        self.shard().check_alive()?;
        let patience = deadline.rest(&self.world) / 4 * 3;
        let deadline = Deadline::after(&self.world, patience.min(RECALL_WAIT_MAX));
        match request {
            OwnerRequest::AskToken {
                session,
                number,
                wants,
            } => {
                let reply = self.answer(*session, *number, wants, is_here, deadline);
                let reply = reply.await?;
                let renewal = self.tokens.renewal(*session)?;
                Ok(OwnerReply::Token { reply, renewal })
            }
            OwnerRequest::AskToKnow { session, inodes } => {
                let grants = self.tokens.ask_to_know(*session, inodes, deadline).await;
                let inodes = self.shown_by(inodes, grants, deadline).await;
                if !is_here && inodes.iter().any(Option::is_some) {
                    self.settle_grants(deadline).await?;
                }
                let renewal = self.tokens.renewal(*session)?;
                Ok(OwnerReply::Known { inodes, renewal })
            }
            OwnerRequest::ReturnTokens { session, back } => {
                for back in back {
                    self.tokens.take_back(*session, back)?;
                }
                self.world.at(Point::TokenTakenBack).await;
                Ok(OwnerReply::Done)
            }
            OwnerRequest::AwaitRecalls {
                session,
                known,
                has_all,
            } => {
                let deadline = match *known == self.tenure() {
                    true => deadline.min(self.tokens.answer_by()),
                    false => Deadline::after(&self.world, Duration::ZERO),
                };
                let deadline = match is_here {
                    true => deadline.min(Deadline::after(&self.world, RENEWED_HERE_EVERY)),
                    false => deadline,
                };
                let may_have_all = || is_here && self.is_only_client(*session);
                let said = self
                    .tokens
                    .await_recalls(*session, *has_all, may_have_all, deadline)
                    .await?;
                self.world.at(Point::RecallTaken).await;
                let renewal = self.tokens.renewal(*session)?;
                Ok(OwnerReply::Recalls {
                    recalls: said.recalls,
                    has_all: said.has_all,
                    renewal,
                })
            }
            _ => unreachable!("not about tokens"),
        }
    }

    /// The answer to a request for a token, or `Waits` at the deadline.
    async fn answer(
        &self,
        session: SessionId,
        number: u64,
        wants: &TokenRequest,
        is_here: bool,
        deadline: Deadline,
    ) -> Result<TokenReply> {
        let settling = match self.tokens.settling(session, number) {
            Some(settling) => settling,
            None => {
                let asked = self.tokens.ask(session, number, wants.clone())?;
                let reply = asked.answer(deadline).await;
                self.world.at(Point::TokenGranted).await;
                // What the session may look at now, it may tell others about; one of this process is
                // lost with what it has seen.
                if is_here || !matches!(reply, TokenReply::Granted { .. }) {
                    return Ok(reply);
                }
                Settling::new(reply, self.syncing())
            }
        };
        self.tokens
            .settle(session, number, settling, deadline)
            .await
    }

    /// Makes durable what a grant lets its session see. By a task of its own: what is kept for the next time that it is
    /// asked for is driven by nobody meanwhile, and a take-over that it has begun would stop all others. It ends with what
    /// is kept.
    fn syncing(&self) -> Task<Result<()>> {
        let host = self.host.clone();
        let syncing = async move { host.sync().await };
        self.world.spawn("makes a grant's answer durable", syncing)
    }

    /// What grants of these inodes let their session see. Looked at after they were given: from then on others change it only
    /// once it was given back.
    async fn shown_by(
        &self,
        inodes: &[InodeId],
        grants: Vec<Option<GrantNumber>>,
        deadline: Deadline,
    ) -> Vec<Option<KnownInode>> {
        let without = |number| KnownInode {
            number,
            attributes: None,
        };
        let grants = grants.into_iter();
        let mut known: Vec<_> = grants.map(|grant| grant.map(without)).collect();
        let reading = async {
            for (inode, known) in inodes.iter().zip(&mut known) {
                let Some(known) = known else { continue };
                // Who asks for attributes that are damaged hears of it then.
                let record = self.host.inode_record(*inode).await.ok().flatten();
                known.attributes = record.map(|record| record.attributes(*inode));
            }
        };
        let until = deadline.min(Deadline::after(&self.world, SHOWN_READ_MAX));
        let _in_time = until.bound(&self.world, reading).await;
        known
    }

    /// Waits until what grants let their session see is durable.
    async fn settle_grants(&self, deadline: Deadline) -> Result<()> {
        match deadline.bound(&self.world, self.syncing()).await {
            Ok(durable) => durable,
            Err(_) => {
                let text = "what the tokens show isn't durable in time; ask for it without them";
                Err(Error::new(ErrorKind::InGrace, text))
            }
        }
    }

    /// Whether the session is open and no other client has one.
    fn is_only_client(&self, session: SessionId) -> bool {
        let sessions = self.shard().sessions();
        let mut clients = sessions.of_clients();
        let first = clients.next().map(|(client, _)| client);
        first == Some(session) && clients.next().is_none()
    }

    /// Waits until no other session has what the operation must not meet.
    pub(super) async fn claim(
        &self,
        operation: &Operation,
        session: SessionId,
        deadline: Option<Deadline>,
    ) -> Result<Claim<'_>> {
        let claiming = self.tokens.claim(session, || needs::needs(operation));
        let claiming = claiming.ok_or_else(too_many)?;
        self.wait_for_turn(claiming, deadline).await
    }

    /// Waits until a claimed operation may run. The sender of a message asks again; a program of this
    /// process is told that it has waited long enough.
    async fn wait_for_turn<'a>(
        &'a self,
        claiming: Claiming<'a>,
        deadline: Option<Deadline>,
    ) -> Result<Claim<'a>> {
        let claimed = claiming.wait(self.claim_deadline(deadline)).await;
        claimed.map_err(|error| match deadline {
            Some(_) => error,
            None => Error::new(ErrorKind::Unavailable, error.to_string()),
        })
    }

    /// For a message, so that its sender hears of it.
    fn claim_deadline(&self, deadline: Option<Deadline>) -> Deadline {
        let longest = Deadline::after(&self.world, CLAIM_WAIT_MAX);
        deadline.map_or(longest, |deadline| {
            let patience = deadline.rest(&self.world) / 4 * 3;
            longest.min(Deadline::after(&self.world, patience))
        })
    }

    /// Leaves attributes out of a listing that other sessions may be changing: who wants them asks for
    /// them. For those of a single name: waits until nobody changes them. `writers`: their count before
    /// the operation ran.
    pub(super) async fn check_shown<'a>(
        &'a self,
        operation: &Operation,
        session: SessionId,
        answer: &mut Result<Ranked>,
        claimed: &mut BTreeSet<InodeId>,
        writers: u64,
        deadline: Option<Deadline>,
    ) -> Result<Shown<'a>> {
        let Ok(Ranked { reply, .. }) = answer else {
            return Ok(Shown::True);
        };
        if let Reply::Listing { entries, .. } = reply {
            if self.world.has_planted(Planted::ListOld) {
                return Ok(Shown::True);
            }
            for entry in entries {
                if entry.attributes.is_some()
                    && self
                        .tokens
                        .is_changed_by_others(session, entry.inode, writers)
                {
                    entry.attributes = None;
                }
            }
            return Ok(Shown::True);
        }
        let others = needs::shown(operation, reply).filter(|inode| {
            !claimed.contains(inode) && self.tokens.is_changed_by_others(session, *inode, writers)
        });
        let others: Vec<InodeId> = others.collect();
        if others.is_empty() {
            return Ok(Shown::True);
        }
        if claimed.len() >= SHOWN_ROUNDS_MAX {
            let text = "the name leads to another file each time";
            return Err(Error::new(ErrorKind::InGrace, text));
        }
        let claiming = self.tokens.claim(session, || needs_of_shown(&others));
        let claiming = claiming.ok_or_else(too_many)?;
        let claim = self.wait_for_turn(claiming, deadline).await?;
        claimed.extend(others);
        Ok(Shown::Again(claim))
    }

    async fn end_silent(self: Arc<Self>, session: SessionId) {
        tracing::warn!(%session, "a client that gave nothing back has lost its session");
        if let Err(error) = self.close_session(session).await {
            tracing::warn!(%session, %error, "the end of a session isn't complete yet");
        }
        self.tokens.is_closed(session);
    }

    /// Ends sessions that others wait for, once their tokens have run out.
    pub(super) async fn watch_tokens(self: Arc<Self>) -> bool {
        let weak = Arc::downgrade(&self);
        let tokens = self.tokens.clone();
        drop(self);
        let ending = tokens.watch().await;
        let Some(it) = weak.upgrade() else {
            return false;
        };
        for session in ending {
            // Beside each other: time must go on for the others.
            let closing = it.clone().end_silent(session);
            it.world.spawn("ends a session", closing).detach();
        }
        true
    }
}

fn too_many() -> Error {
    let text = "too many operations of the session wait for others";
    Error::new(ErrorKind::InGrace, text)
}
