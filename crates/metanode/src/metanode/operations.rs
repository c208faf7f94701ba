//! Runs operations for clients: room before, what answers leave to do after.

use crate::host::{has_cuts, is_of_given_up};
use crate::metanode::Metanode;
use crate::metanode::granting::Shown;
use crate::tokens::{Claim, Claiming};
use model::operation::{Ranked, Stamp, Turn};
use model::{InodeId, Operation, Reply, Result, TokenMode, TokenObject};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use tokens::{granter::Need, needs};
use world::Deadline;
use world::call::Asked;
use world::{Planted, Point};

/// Who asks for an operation, and asks again after the deadline.
#[derive(Clone, Copy)]
pub(super) enum Asker {
    /// The owner itself, or the client of a single node: waits as long as anything takes.
    Own,
    /// A client of this process.
    Near(Deadline),
    /// A client on another node. Everything that the answer shows is durable when it leaves.
    Far(Deadline),
}

impl Asker {
    pub(super) fn deadline(self) -> Option<Deadline> {
        match self {
            Self::Own => None,
            Self::Near(deadline) | Self::Far(deadline) => Some(deadline),
        }
    }
}

impl Metanode {
    /// Runs one operation. Ready at once if its records are in memory; otherwise reads them from
    /// the tree. The change is in the open commit: durable after [`Metanode::sync`], or without it
    /// after at most 5 s. Truncates of large files run to their end inside.
    ///
    /// With a slot in the stamp (shipped operations) it returns once the reply is durable.
    ///
    /// # Errors
    /// POSIX refusals as their kinds; `NoSpace` for an operation that would add metadata to a full
    /// pool; `Unavailable` if the shard couldn't be taken over for a minute.
    pub async fn execute(&self, operation: &Operation, stamp: &Stamp) -> Result<Reply> {
        let ranked = self.execute_as(operation, stamp, Asker::Own).await?;
        Ok(ranked.reply)
    }

    /// As [`Metanode::execute`] for a client on another node, which waits until the deadline: returns
    /// once everything that the answer shows is durable.
    ///
    /// # Errors
    /// As [`Metanode::execute`]; also `Unavailable` if it can't be made durable, and `InGrace` if other
    /// clients don't give back in time what they have cached or changed.
    pub async fn execute_durable(
        &self,
        operation: &Operation,
        stamp: &Stamp,
        deadline: Deadline,
    ) -> Result<Ranked> {
        self.execute_as(operation, stamp, Asker::Far(deadline))
            .await
    }

    /// As [`Metanode::execute`], for whoever asks.
    pub(super) async fn execute_as(
        &self,
        operation: &Operation,
        stamp: &Stamp,
        asker: Asker,
    ) -> Result<Ranked> {
        self.check_reclaimed(stamp.session)?;
        let (session, deadline) = (stamp.session, asker.deadline());
        if self.world.has_planted(Planted::RecallLate) && spares_content(operation) {
            let durable = is_durable(asker, stamp);
            let reply = self.execute_once(operation, stamp, durable).await;
            let _claim = self.claim(operation, session, deadline).await?;
            return reply;
        }
        let claim = self.claim(operation, session, deadline).await?;
        self.world.at(Point::OperationClaimed).await;
        self.execute_claimed(operation, stamp, claim, asker).await
    }

    /// Runs an operation that has what it needs, until all that its answer shows is true.
    async fn execute_claimed(
        &self,
        operation: &Operation,
        stamp: &Stamp,
        claim: Claim<'_>,
        asker: Asker,
    ) -> Result<Ranked> {
        let (durable, deadline) = (is_durable(asker, stamp), asker.deadline());
        if claim.is_all() || !needs::shows(operation) {
            let reply = self.execute_once(operation, stamp, durable).await;
            self.note_publish(operation, stamp, &reply);
            return reply;
        }
        // A read. Others may change what it shows until all of that is claimed, so it waits for nothing else before: not for
        // a commit each time that it has to look again.
        let (session, mut claimed, mut claims) = (stamp.session, BTreeSet::new(), Vec::new());
        loop {
            let writers = self.tokens.writer_count();
            let (mut reply, look) = self.host.look(operation, stamp).await?;
            if durable {
                self.world.at(Point::Looked).await;
            }
            let shown = &mut claimed;
            let shown = self.check_shown(operation, session, &mut reply, shown, writers, deadline);
            match shown.await? {
                Shown::Again(claim) => claims.push(claim),
                Shown::True if !durable || self.host.settle(operation, look).await? => {
                    return reply;
                }
                Shown::True => {}
            }
        }
    }

    /// Others may wait until a session has published what it wrote.
    pub(super) fn note_publish(
        &self,
        operation: &Operation,
        stamp: &Stamp,
        reply: &Result<Ranked>,
    ) {
        if let Operation::Publish(publish) = operation
            && reply.is_ok()
        {
            self.tokens.note_published(stamp.session, publish.inode);
        }
    }

    async fn execute_once(
        &self,
        operation: &Operation,
        stamp: &Stamp,
        durable: bool,
    ) -> Result<Ranked> {
        if !self.host.has_run(stamp).await? {
            let free = || self.background.make_room();
            self.room.check(operation, free).await?;
        }
        let reply = self.host.run_as(operation, stamp, durable).await;
        self.complete(operation, stamp, reply, durable).await
    }

    /// As [`Metanode::execute`]: on this thread, ready unless something is missing.
    pub(super) fn begin<'a>(
        &'a self,
        operation: &'a Operation,
        stamp: &'a Stamp,
    ) -> Asked<'a, Result<Ranked>> {
        let in_grace = self.in_grace.load(Ordering::Relaxed);
        let claiming = self.tokens.claim(stamp.session, || needs::needs(operation));
        let Some(Ok(claim)) = claiming.map(Claiming::ready) else {
            return Asked::Waits(Box::pin(self.execute_as(operation, stamp, Asker::Own)));
        };
        let is_local = matches!(stamp.turn, Turn::Read | Turn::Own);
        // What others may be changing is looked at more closely.
        let looks = !claim.is_all() && needs::shows(operation);
        if is_local && !in_grace && !looks && self.room.has_plenty_for(operation) {
            let shard = self.host.load();
            match shard.execute_now(operation, stamp) {
                Some(Err(error)) if is_of_given_up(&shard, &error) => {}
                Some(reply) if is_complete(operation, &reply) => {
                    self.note_publish(operation, stamp, &reply);
                    return Asked::Ready(reply);
                }
                Some(reply) => {
                    return Asked::Waits(Box::pin(async move {
                        let reply = self.complete(operation, stamp, reply, false).await;
                        drop(claim);
                        reply
                    }));
                }
                None => {}
            }
        }
        Asked::Waits(Box::pin(async move {
            self.check_reclaimed(stamp.session)?;
            self.execute_claimed(operation, stamp, claim, Asker::Own)
                .await
        }))
    }

    /// Does what an answer leaves to do, if it isn't [complete](is_complete).
    async fn complete(
        &self,
        operation: &Operation,
        stamp: &Stamp,
        answer: Result<Ranked>,
        durable: bool,
    ) -> Result<Ranked> {
        match answer.as_ref().map(|ranked| &ranked.reply) {
            Ok(Reply::Removed { orphaned: true, .. } | Reply::Renamed { orphaned: true, .. }) => {
                // Boxed because it is rare: otherwise every operation's future would contain it.
                Box::pin(self.note_orphan(&answer, stamp)).await;
                answer
            }
            Ok(Reply::Entry { attributes, .. })
                if matches!(operation, Operation::CreateUnnamed { .. }) =>
            {
                // A client on another node would hold it only after a time in which a new owner may
                // release it.
                let session = stamp.session;
                match stamp.turn {
                    Turn::Slot { slot, number } if self.check_standing(session).is_ok() => {
                        let holders = &self.holders;
                        holders.hold_made(session, slot, number, attributes.inode);
                        let is_open = self.shard().run_of_session(session).is_some();
                        self.end_if_closed(session, is_open)?;
                    }
                    // Its session has ended since it was made, and nobody else knows of it: a round releases it.
                    Turn::Slot { .. } if self.shard().run_of_session(session).is_none() => {
                        let _is_unused = self.holders.lost_names(attributes.inode);
                    }
                    _ => self.holders.made_nameless(attributes.inode),
                }
                answer
            }
            _ if has_cuts(operation, &answer) => {
                self.host
                    .finish_cuts(operation, stamp, answer, durable)
                    .await
            }
            _ => answer,
        }
    }

    /// An inode in use lost its last name: its last close releases it. If that close came before
    /// this note, it is released here; if that fails, by a round.
    async fn note_orphan(&self, answer: &Result<Ranked>, stamp: &Stamp) {
        let Ok(
            Reply::Removed { attributes, .. }
            | Reply::Renamed {
                target: Some(attributes),
                ..
            },
        ) = answer.as_ref().map(|ranked| &ranked.reply)
        else {
            return;
        };
        let inode = attributes.inode;
        if !self.holders.lost_names(inode) {
            return;
        }
        if let Err(error) = self.release(inode, stamp).await {
            tracing::warn!(%inode, %error, "an inode without names couldn't be released");
        }
    }

    /// Releases an inode that was just unused. If it is in use again, it is noted so that its last
    /// close asks again; if that close came first, this asks again itself.
    pub(super) async fn release(&self, inode: InodeId, stamp: &Stamp) -> Result<()> {
        let stamp = Stamp {
            turn: Turn::Own,
            ..*stamp
        };
        loop {
            let end = self.holders.last_end(inode);
            let reply = self.host.run(&Operation::Release { inode }, &stamp).await?;
            if self.is_settled(inode, end, &reply) {
                return Ok(());
            }
        }
    }

    /// Whether the release of an inode that had this last end has done all there is to do. If not, its
    /// last close has come meanwhile.
    pub(super) fn is_settled(&self, inode: InodeId, end: Option<u64>, reply: &Reply) -> bool {
        let is_held = matches!(reply, Reply::Progress { more: true });
        // During the grace time everything counts as held; its end releases what isn't.
        if !is_held || self.in_grace.load(Ordering::SeqCst) {
            self.holders.released(inode, end);
            return true;
        }
        !self.holders.lost_names(inode)
    }
}

/// Whether an answer is given once it is durable. Who repeats an operation under its number has it for sure then, but in
/// the owner's own process both are lost together.
fn is_durable(asker: Asker, stamp: &Stamp) -> bool {
    match asker {
        Asker::Own => matches!(stamp.turn, Turn::Slot { .. }),
        Asker::Near(_) => false,
        Asker::Far(_) => true,
    }
}

/// Whether an answer leaves nothing to do.
fn is_complete(operation: &Operation, answer: &Result<Ranked>) -> bool {
    match answer.as_ref().map(|ranked| &ranked.reply) {
        Ok(Reply::Removed { orphaned, .. } | Reply::Renamed { orphaned, .. }) => !orphaned,
        Ok(Reply::Entry { .. }) => !matches!(operation, Operation::CreateUnnamed { .. }),
        _ => !has_cuts(operation, answer),
    }
}

/// Whether an operation changes names or attributes and nobody's bytes.
fn spares_content(operation: &Operation) -> bool {
    let needs = needs::needs(operation);
    let changes = needs.iter().any(|need| need.mode == TokenMode::Exclusive);
    let is_of_bytes = |need: &Need| matches!(need.object, TokenObject::Bytes(_));
    changes && !needs.iter().any(is_of_bytes)
}
