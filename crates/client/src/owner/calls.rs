//! What one session asks an owner wherever it is, and the one place that asks it again. While the owner is in this process,
//! most of it takes a shorter way (`at_once`).
//!
//! *A create*: a slot is taken, the operation gets the slot and its next number in the stamp, the
//! call goes to the node that the map names. *No answer*: after a short wait, or as soon as the map
//! names another owner, the same call is sent again, with the same number: the owner that has applied
//! it says what it answered. So an operation is applied once, however often it was sent.
//!
//! *The deadline passes*, which it doesn't while the node is held up (`patience.rs`): the program gets an error. If the
//! operation may have run, its slot isn't free: a task goes on asking until the owner says what became of it, since the
//! slot's next number must not overtake it. The same happens if the caller stops waiting. There are `SESSION_SLOTS`, so at most
//! as many such tasks; they end when the session does. What the operation changes isn't known by name until
//! then ([`KnownNames::begin_change`]), of a file of which it publishes bytes nothing more is published, and who changes
//! what it changes waits (`undecided`). *The program is killed* while it waits: as if the deadline had passed then. What
//! hasn't been sent never is.

mod at_once;
mod closing;
mod streaming;
#[cfg(test)]
mod tests;
mod understood;

use super::book::{Book, held_by};
use super::near::Nearby;
use super::owners::{OwnerWay, Owners};
use super::slots::{Slot, Slots};
use super::undecided::{Late, Undecided, UndecidedRequest};
use super::under_way::UnderWay;
use crate::known_names::{KnownNames, OwnChange};
use crate::patience::{self, HoldUp, while_wanted};
use closing::Closing;
use futures::future::{BoxFuture, Either, select};
use model::call::NoAnswer;
use model::lock::LockOwner;
use model::operation::Stamp;
use model::owner::{
    HeldToken, LockCall, OwnerCall, OwnerReply, OwnerRequest, RECLAIM_MAX, Reclaimed, Tenure,
};
use model::token::GrantNumber;
use model::{Advice, Error, ErrorKind, InodeId, Result, SessionId, ShardId};
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use streaming::Streaming;
use tokio::sync::{Notify, watch};
use understood::Misfits;
use world::{Deadline, Elapsed, Instant, Part, Planted, Point, Wait, Waiter, Waiters, Work, World};

/// The cause by which waits for an owner are listed.
const OWNER_WAIT: &str = "the owner of the metadata";
/// The cause by which waits are listed for what became of requests that were given up.
const UNDECIDED_WAIT: &str = "a request that was given up, and may still run";
/// What finding that out is called.
const DECIDES: &str = "finds out what became of what was given up";
/// First and longest pause before a call is sent again. A new owner is asked at once, and after short pauses again.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often the end of a session is asked for that nobody wants.
pub(super) const END_TRIES: usize = 30;
/// How long the first attempt may take; each later one twice as long as the one before, so that
/// work that takes long comes to its end.
const ATTEMPT_MIN: Duration = Duration::from_secs(2);
const ATTEMPT_MAX: Duration = Duration::from_secs(30);
/// How long an owner in this process is waited for to make durable what it answered to a session that has ended.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// What says to a new owner which tokens a session holds. It knows which session is the client's now, and
/// does nothing for another one.
pub(crate) trait Reclaims: Send + Sync {
    /// A new owner begins, with this tenure once it is known: what is held. From now on nothing of
    /// another owner counts. `None` if the session has everything, or something of it is left under no token: no other owner
    /// can take that down, and the session can't go on.
    fn begin(&self, session: SessionId, tenure: Tenure) -> Option<Vec<HeldToken>>;

    /// The owner has taken these down under new numbers, but for those that are lost.
    fn taken_down(&self, session: SessionId, held: &[HeldToken], numbers: &[Option<GrantNumber>]);

    /// The owner knows everything.
    fn end(&self, session: SessionId);

    /// The owner has made a file that the session uses alone since it was made under a delegation: the grants of its
    /// attributes and bytes, if they came.
    fn born(&self, session: SessionId, inode: InodeId, grants: Option<[GrantNumber; 2]>);

    /// The owner has refused to make a file that a program was told is made: those that have it open hear of it.
    fn refused(&self, inode: InodeId);

    /// The session can't go on with another owner: nothing of what it holds is used from now on. Returns for how long
    /// kernels may still use what they were answered under it.
    fn give_up(&self, session: SessionId) -> Duration;
}

/// What one session asks, or has yet to ask: its slots and what it holds.
pub(super) struct Calls {
    me: Weak<Self>,
    world: World,
    owners: Arc<dyn Owners>,
    /// The shard, which each call names.
    shard: ShardId,
    /// How long a request is asked before its program gets an error.
    patience: Duration,
    session: OnceLock<SessionId>,
    /// What the session holds at the owner. Locked while one in this process is asked for more.
    book: Mutex<Book>,
    /// The owner in this process, if there is one.
    nearby: Nearby,
    /// Shared by requests that [concern](Book::concerns) the book and are waited for; a reclaim is alone.
    reclaiming: Arc<tokio::sync::RwLock<()>>,
    /// Counts the reclaims that were begun: their parts name it.
    attempts: AtomicU64,
    /// Counts the reclaims that were wanted: requests that share `reclaiming` give way to them.
    wanted: watch::Sender<u64>,
    slots: Slots,
    /// Requests that nobody waits for any more.
    undecided: Undecided,
    under_way: UnderWay,
    /// Answers that fit no such request.
    misfits: Misfits,
    /// What the client has done itself and the owner has yet to hear of.
    streaming: Streaming,
    /// Closes of what was made so, of which the owner has yet to hear.
    closing: Closing,
    /// The client's tokens.
    tokens: Arc<OnceLock<Weak<dyn Reclaims>>>,
    /// What the client knows of names.
    names: Arc<KnownNames>,
    waiters: Waiters,
    /// The client is about to be closed.
    is_closing: Arc<AtomicBool>,
    /// The session is over: nothing must be decided any more.
    closed: AtomicBool,
    /// The session has ended, or can't go on: nothing of it is asked any more but for its end.
    is_over: AtomicBool,
    /// Signals that the session is over in one of these ways.
    ends: Notify,
}

/// An owner's answer, or why there is none.
type Sent = std::result::Result<Result<OwnerReply>, NoAnswer>;

/// The end of asking.
enum Outcome {
    /// The owner's answer.
    Answered(Result<OwnerReply>),
    /// The request certainly didn't run, and never will.
    NotRun(Error),
    /// The request may have run, or may run later.
    Unknown(Error),
}

/// A slot with the request that it is used for; asks until that is decided if it is dropped before.
struct Taken {
    owner: Arc<Calls>,
    slot: Option<Slot>,
    undecided: Option<OwnerCall>,
    /// What it changes, until that is decided.
    change: Option<OwnChange>,
}

/// What the sessions of a client have in common: its tokens, what it knows of names, and whether it is about to be closed.
type Shared = (
    Arc<OnceLock<Weak<dyn Reclaims>>>,
    Arc<KnownNames>,
    Arc<AtomicBool>,
);

impl Calls {
    /// A session that isn't open yet. New owners are told of the tokens.
    pub(super) fn new(
        world: World,
        shard: ShardId,
        owners: Arc<dyn Owners>,
        patience: Duration,
        (tokens, names, is_closing): Shared,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            waiters: Waiters::new(&world),
            world,
            owners,
            shard,
            patience,
            session: OnceLock::new(),
            book: Mutex::default(),
            nearby: Nearby::default(),
            reclaiming: Arc::default(),
            attempts: AtomicU64::new(0),
            wanted: watch::Sender::new(0),
            slots: Slots::new(),
            undecided: Undecided::new(),
            under_way: UnderWay::new(),
            misfits: Misfits::default(),
            streaming: Streaming::default(),
            closing: Closing::default(),
            tokens,
            names,
            is_closing,
            closed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            ends: Notify::new(),
        })
    }

    /// The same way to the owner for another session, which isn't open yet.
    pub(super) fn next(&self) -> Arc<Self> {
        Self::new(
            self.world.clone(),
            self.shard,
            self.owners.clone(),
            self.patience,
            (
                self.tokens.clone(),
                self.names.clone(),
                self.is_closing.clone(),
            ),
        )
    }

    pub(super) fn shard(&self) -> ShardId {
        self.shard
    }

    pub(super) fn usable_until(&self) -> Option<Instant> {
        self.owners.usable_until()
    }

    /// How the node was held up since then ([`Owners::held_up_since`]), if waits go on for that: none does before there is a
    /// session, since whoever wants one is told soon, nor once the client is about to be closed.
    pub(super) fn held_up_since(&self, since: Instant) -> Option<HoldUp> {
        match self.session.get().is_none() || self.is_closing.load(Ordering::Acquire) {
            true => None,
            false => self.owners.held_up_since(since),
        }
    }

    /// When a wait ends that should end at `deadline`: later if the node was held up meanwhile (`patience.rs`).
    fn prolonged(&self, deadline: Deadline) -> Deadline {
        patience::prolonged(deadline, self.patience, |since| self.held_up_since(since))
    }

    /// Drives `future` until the deadline at most, or until it is prolonged to, then drops it.
    async fn bound<F: Future>(
        &self,
        deadline: Deadline,
        future: F,
    ) -> std::result::Result<F::Output, Elapsed> {
        let prolonged = || self.prolonged(deadline);
        patience::bound(&self.world, deadline, prolonged, future).await
    }

    /// The session has ended. Whether something is lost that was answered: by an owner in this process, or by the client
    /// itself under a delegation.
    pub(super) async fn has_lost_answers(&self) -> bool {
        let has_lost_own = self.streaming.end();
        let tenure = self.book.lock().tenure();
        let settled = self.world.timeout(SETTLE_MAX, self.nearby.settle());
        if settled.await.is_err() {
            tracing::debug!("the owner doesn't make durable what it answered to an ended session");
        }
        self.is_over.store(true, Ordering::Release);
        self.ends.notify_waiters();
        !self.nearby.end(tenure) || has_lost_own
    }

    /// Asks until there is an answer, or patience ends.
    ///
    /// # Errors
    /// The owner's own; `SessionEnded` for a change only if it certainly didn't run; `Unavailable` if the
    /// request certainly didn't run; `Unknown`.
    pub(super) async fn ask(&self, request: &OwnerRequest) -> Result<OwnerReply> {
        let session = self.session.get().copied();
        if let (Some(own), Some(named)) = (session, request.session())
            && own != named
        {
            return Err(ended(named));
        }
        if self.close_streamed(request) {
            return Ok(OwnerReply::Done);
        }
        let deadline = Deadline::after(&self.world, self.patience);
        if let Some(undecided) = self.undecided.before(request) {
            // Boxed because it is rare: otherwise every request's future would contain it.
            Box::pin(self.until_decided(undecided, deadline)).await?;
        }
        // Before it is looked what must go first: nothing is made here any more that the request would overtake.
        let begin = || match request {
            OwnerRequest::Execute { operation, .. } => self.names.begin_change(operation),
            _ => None,
        };
        let mut change = begin();
        if self.is_behind_stream(request) {
            if request.is_publish()
                && let Some(answer) =
                    Box::pin(self.publish_streamed(request, &mut change, deadline)).await
            {
                return answer;
            }
            change = change.or_else(begin);
            match Box::pin(self.behind_stream(request, deadline)).await {
                // What can't be told in time is lost with the session, whose end isn't put off.
                Err(error) if !is_end(request) => return Err(error),
                _ => {}
            }
        }
        let mut call = OwnerCall {
            shard: self.shard,
            session: session.unwrap_or_default(),
            tenure: Tenure::default(),
            order: None,
            request: request.clone(),
        };
        if !request.is_in_order() && !request.is_change() {
            return match self.ask_until(&mut call, deadline).await {
                Outcome::Answered(answer) => answer,
                Outcome::NotRun(error) | Outcome::Unknown(error) => Err(error),
            };
        }
        let is_publish = request.is_publish();
        let mut slot = self.take_slot(is_publish, deadline).await?;
        match &mut call.request {
            OwnerRequest::Execute { stamp, .. } => stamp.turn = slot.next_operation(),
            _ => call.order = Some(slot.next_order()),
        }
        let mut taken = Taken {
            owner: self.me.upgrade().expect("an owner is used through its Arc"),
            slot: Some(slot),
            change,
            undecided: Some(call),
        };
        let call = taken.undecided.as_mut().expect("just put there");
        let order = call.order;
        let decided = match self.ask_until(call, deadline).await {
            Outcome::Answered(answer) => answer,
            Outcome::NotRun(error) => {
                self.book.lock().decided(order);
                Err(error)
            }
            Outcome::Unknown(error) => return Err(error),
        };
        if let Some(call) = taken.undecided.take()
            && let Some(change) = &mut taken.change
            && let OwnerRequest::Execute { operation, .. } = &call.request
            && let Ok(OwnerReply::Operation(ranked)) = &decided
        {
            change.note(operation, &ranked.reply);
        }
        decided
    }

    /// Makes durable everything that the session was answered, and what was made here up to the `newest` operation of a
    /// session ([`Calls::newest_streamed`]): nothing that others have made since.
    ///
    /// # Errors
    /// As those of [`Calls::ask`].
    pub(super) async fn sync(&self, newest: Option<(SessionId, u64)>) -> Result<()> {
        let deadline = Deadline::after(&self.world, self.patience);
        let session = self.session.get().copied();
        // What was made in a session before is durable or lost.
        let newest = newest.filter(|(maker, _)| Some(*maker) == session);
        if let Some((_, number)) = newest {
            self.streamed_by(number, deadline).await?;
        }
        // An owner on another node has answered nothing that isn't durable.
        if self.is_all_durable() {
            return Ok(());
        }
        let mut call = OwnerCall {
            shard: self.shard,
            session: session.unwrap_or_default(),
            tenure: Tenure::default(),
            order: None,
            request: OwnerRequest::Sync,
        };
        match self.ask_until(&mut call, deadline).await {
            Outcome::Answered(answer) => answer.map(drop),
            Outcome::NotRun(error) | Outcome::Unknown(error) => Err(error),
        }
    }

    /// The error for a request that wasn't answered while its program waited.
    fn late(&self, kind: ErrorKind) -> Error {
        Error::new(kind, format!("waited {:?} for {OWNER_WAIT}", self.patience))
    }

    /// Whether everything that the session was answered is durable for sure.
    fn is_all_durable(&self) -> bool {
        // In this order: an owner that has just ended is judged first.
        self.nearby.current().is_none()
            && !self.nearby.has_lost()
            && !self.is_over.load(Ordering::Acquire)
    }

    async fn take_slot(&self, is_publish: bool, deadline: Deadline) -> Result<Slot> {
        let _listed = self.waiters.enter("a slot", None, self.world.now());
        let taken = self.bound(deadline, self.slots.take(is_publish)).await;
        taken.map_err(|_| {
            let text = "all slots of the session are in use";
            Error::new(ErrorKind::Unavailable, text)
        })
    }

    /// Sends a call again and again, always the same one.
    async fn ask_until(&self, call: &mut OwnerCall, patience_ends: Deadline) -> Outcome {
        let mut deadline = patience_ends;
        let (mut pause, mut attempt) = (PAUSE_MIN, ATTEMPT_MIN);
        // Tokens run out if several answers in a row get lost.
        let attempt_max = match call.request.is_about_tokens() {
            true => ATTEMPT_MIN,
            false => ATTEMPT_MAX,
        };
        let mut may_have_run = false;
        let mut listed = None;
        loop {
            if self.is_in_vain(&call.request) {
                return decided(call, Err(ended(call.session)), may_have_run);
            }
            let known = self.book.lock().tenure();
            // First: whoever follows the owner that is asked isn't missed.
            let mut replaced = self.owners.replaced();
            let why = match self.owners.owner() {
                None => Error::new(ErrorKind::Unavailable, "no node owns the shard"),
                Some(_) if self.world.is_given_up() => {
                    Error::new(ErrorKind::Unavailable, "its program was killed")
                }
                Some(owner) => {
                    let until = Deadline::after(&self.world, attempt).min(deadline);
                    let sent = {
                        let asking = pin!(self.attempt(&owner, call, until));
                        let asking = while_wanted(&self.world, asking);
                        unless(&mut replaced, &owner, asking).await
                    };
                    let Some(sent) = sent else {
                        // Asked at once, and soon again: it takes the shard over, and serves it in a moment.
                        (may_have_run, pause) = (true, PAUSE_MIN);
                        continue;
                    };
                    let killed = || Err(NoAnswer::unknown("its program was killed"));
                    match sent.unwrap_or_else(killed) {
                        Ok(answer) => match left_undone(&answer) {
                            None => return decided(call, answer, may_have_run),
                            Some((Undone::Certainly, error)) => error.clone(),
                            Some((Undone::Perhaps, error)) => {
                                may_have_run = true;
                                error.clone()
                            }
                            Some((Undone::ReclaimFirst, error)) => {
                                let reclaim = self.reclaim(&owner, known, until);
                                let reclaimed = unless(&mut replaced, &owner, reclaim).await;
                                let Some(reclaimed) = reclaimed else {
                                    pause = PAUSE_MIN;
                                    continue;
                                };
                                match reclaimed {
                                    Ok(()) if !deadline.has_passed(&self.world) => continue,
                                    Ok(()) => error.clone(),
                                    Err(error) if error.kind() == ErrorKind::SessionEnded => {
                                        return decided(call, Err(error), may_have_run);
                                    }
                                    Err(error) => error,
                                }
                            }
                        },
                        Err(NoAnswer::NotRun(error)) => error,
                        Err(NoAnswer::Unknown(error)) => {
                            may_have_run = true;
                            error
                        }
                    }
                }
            };
            if self.is_in_vain(&call.request) {
                return decided(call, Err(ended(call.session)), may_have_run);
            }
            if patience_ends.has_passed(&self.world) && !is_end(&call.request) {
                deadline = self.prolonged(patience_ends);
            }
            if deadline.has_passed(&self.world)
                || self.closed.load(Ordering::Acquire)
                || self.world.is_given_up()
            {
                let kind = match may_have_run {
                    true => ErrorKind::Unknown,
                    false => ErrorKind::Unavailable,
                };
                let text = format!("waited {:?} for {OWNER_WAIT}", self.patience);
                let error = Error::new(kind, why.to_string()).while_doing(text);
                return match may_have_run {
                    true => Outcome::Unknown(error),
                    false => Outcome::NotRun(error),
                };
            }
            listed.get_or_insert_with(|| self.list());
            let refreshed = Deadline::after(&self.world, pause).min(deadline);
            let refreshing = pin!(self.owners.refresh(refreshed));
            // Whether it is wanted is seen in the next round.
            let _wanted = while_wanted(&self.world, refreshing).await;
            // Another node owns the shard now: it takes it over, and serves it in a moment.
            pause = match refreshed.has_passed(&self.world) {
                true => (pause * 2).min(PAUSE_MAX),
                false => PAUSE_MIN,
            };
            attempt = (attempt * 2).min(attempt_max);
        }
    }

    /// Whether a request isn't asked any more, because its session is over.
    fn is_in_vain(&self, request: &OwnerRequest) -> bool {
        self.is_over.load(Ordering::Acquire) && !is_end(request)
    }

    /// Sends a call once. The answer to a request that [concerns](Book::concerns) the book enters it
    /// before anything can be reclaimed; while a reclaim wants to begin, such requests are given up.
    async fn attempt(&self, way: &OwnerWay, call: &mut OwnerCall, until: Deadline) -> Sent {
        if !Book::concerns(&call.request) {
            call.tenure = self.book.lock().tenure();
            return self.send(way, call, until).await;
        }
        // Here, too: a killed program's request that waits for this wasn't sent.
        let alone = patience::bound(&self.world, until, || until, self.reclaiming.read());
        let Ok(_sharing) = alone.await else {
            return Err(NoAnswer::not_run("what is held is being reclaimed"));
        };
        let mut wanted = self.wanted.subscribe();
        call.tenure = {
            let mut book = self.book.lock();
            book.begun(&call.request, call.order);
            book.tenure()
        };
        let sent = pin!(self.send(way, call, until));
        match select(sent, pin!(wanted.changed())).await {
            Either::Left((answer, _)) => {
                if let Ok(answer) = &answer
                    && left_undone(answer).is_none()
                {
                    let mut book = self.book.lock();
                    book.decided(call.order);
                    book.answered(&call.request, answer);
                }
                answer
            }
            Either::Right(_) => Err(NoAnswer::unknown(
                "a new owner must know first what is held",
            )),
        }
    }

    /// Sends a call to an owner, or calls it if it is in this process.
    async fn send(&self, way: &OwnerWay, call: &OwnerCall, until: Deadline) -> Sent {
        let owner = match way {
            OwnerWay::Far(owner) => {
                let _room = self
                    .under_way
                    .enter(&self.world, &call.request, until)
                    .await?;
                return self.send_far(&**owner, call, until).await;
            }
            OwnerWay::Near(owner) => owner,
        };
        let is_known = self.session.get().is_some() && call.tenure == owner.tenure();
        // The end of a session shows nothing.
        let is_seen = is_known && !is_end(&call.request);
        let near = is_seen.then(|| self.nearby.meet(way, call.tenure));
        if let Some(None) = near {
            return Err(NoAnswer::not_run("another owner has followed this one"));
        }
        let called = until.bound(&self.world, owner.call(call, until)).await;
        let answered = called.map_err(|_| NoAnswer::unknown("the deadline passed"))?;
        match near.flatten() {
            None => Ok(answered.answer),
            Some(near) => {
                let answer = near.counts(answered, call.request.is_change());
                answer.ok_or_else(|| NoAnswer::unknown("another owner has followed this one"))
            }
        }
    }

    /// The session can't go on, with another owner or at all.
    fn give_up_session(&self, session: SessionId) -> Error {
        if !self.is_over.swap(true, Ordering::AcqRel) {
            self.ends.notify_waiters();
            tracing::warn!(%session, "a session can't go on: what it was answered and hasn't synced may be lost");
            let tokens = self.tokens.get().and_then(Weak::upgrade);
            let used_for = tokens.map(|tokens| tokens.give_up(session));
            // Others wait for what it holds, and may have that when nobody uses it.
            self.end_after(session, used_for.unwrap_or_default());
        }
        ended(session)
    }

    /// Says to a new owner what the session holds, unless that was done since its tenure was
    /// `known`.
    ///
    /// # Errors
    /// `SessionEnded`; others if the owner didn't take it: it is the same again later.
    async fn reclaim(&self, way: &OwnerWay, known: Tenure, until: Deadline) -> Result<()> {
        self.wanted.send_modify(|reclaims| *reclaims += 1);
        let late = |_| Error::new(ErrorKind::Unavailable, "what is held is being reclaimed");
        let alone = until.bound(&self.world, self.reclaiming.write()).await;
        let _alone = alone.map_err(late)?;
        if self.book.lock().tenure() != known {
            return Ok(());
        }
        let session = self.session.get().copied().unwrap_or_default();
        let parts = {
            let mut book = self.book.lock();
            // With the book locked: what the owner in this process has done is in it, and nothing more is done. An owner
            // that the session knows may want to hear it as well: of one that was opened under the owner before, and
            // whose opening was answered by this one. It does nothing at once for it until it has heard.
            let is_known = matches!(way, OwnerWay::Near(owner) if owner.tenure() == known);
            let goes_on =
                is_known || self.nearby.end(known) || self.world.has_planted(Planted::KeepLost);
            goes_on.then(|| {
                book.let_go();
                book.parts()
            })
        };
        let Some(mut parts) = parts else {
            return Err(self.give_up_session(session));
        };
        // Nothing is granted to it until the new owner's tenure is known.
        let tokens = self.tokens.get().and_then(Weak::upgrade);
        let mut held = None;
        if let Some(tokens) = &tokens {
            held = tokens.begin(session, Tenure::default());
            if held.is_none() {
                self.nearby.lose(known);
                return Err(self.give_up_session(session));
            }
        }
        parts.extend(held.iter().flat_map(|held| {
            held.chunks(RECLAIM_MAX).map(|tokens| Reclaimed {
                tokens: tokens.to_vec(),
                ..Reclaimed::default()
            })
        }));
        // Such an operation is given up for this, and asked again afterwards.
        let last = parts.last_mut().expect("there is a part");
        last.under_way = self.book.lock().under_way();
        self.world.at(Point::ReclaimBegun).await;
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        let (count, mut lost) = (parts.len(), 0);
        let mut reclaimed = known;
        for (at, mut part) in parts.into_iter().enumerate() {
            (part.attempt, part.at) = (attempt, at as u32);
            let held = part.tokens.clone();
            let call = OwnerCall {
                shard: self.shard,
                session,
                tenure: known,
                order: None,
                request: OwnerRequest::Reclaim {
                    session,
                    part,
                    is_last: at + 1 == count,
                },
            };
            let answer = self.send(way, &call, until).await?;
            let OwnerReply::Reclaimed {
                tenure,
                lost: more,
                tokens: numbers,
            } = answer?
            else {
                let text = "the owner's answer to a reclaim isn't understood";
                return Err(Error::new(ErrorKind::Unavailable, text));
            };
            // Parts for two owners would leave each with half of it.
            if at > 0 && tenure != reclaimed {
                let text = "the owner changed while what is held was reclaimed";
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            if let Some(tokens) = &tokens {
                if at == 0 {
                    let _held = tokens.begin(session, tenure);
                }
                tokens.taken_down(session, &held, &numbers);
            }
            reclaimed = tenure;
            // Another node's word.
            lost = more.saturating_add(lost);
        }
        tokens.into_iter().for_each(|tokens| tokens.end(session));
        if lost > 0 {
            tracing::warn!(
                lost,
                "file locks were lost: the owner was away for too long, and others took them"
            );
        }
        tracing::info!(%session, tenure = reclaimed.0, "a new owner knows what is held here");
        self.book.lock().set_tenure(reclaimed);
        Ok(())
    }

    /// Until it is known what became of such requests of an inode for which nobody waits any more; `None` if there are none.
    pub(super) fn undecided(
        &self,
        inode: InodeId,
        kinds: &'static [Late],
    ) -> Option<BoxFuture<'static, ()>> {
        self.undecided.until(inode, kinds)
    }

    /// Whether a process may have locks of a file's bytes.
    pub(super) fn may_have_locks(&self, inode: InodeId, owner: LockOwner) -> bool {
        self.book.lock().may_have_locks(inode, owner)
    }

    /// Waits until requests are `decided` for which nobody waits any more.
    async fn until_decided(
        &self,
        (work, decided): (Work, BoxFuture<'static, ()>),
        deadline: Deadline,
    ) -> Result<()> {
        let (part, now) = (Part::ForWork(work), self.world.now());
        let _listed = self
            .waiters
            .enter_as(part, UNDECIDED_WAIT, part.inode(), now);
        let in_time = self.bound(deadline, decided).await;
        in_time.map_err(|_| self.late(ErrorKind::Unavailable))
    }

    /// Asks until it is known what became of a request, then frees its slot. Nobody waits for the
    /// answer any more: a file that it tells of as open is let go first, in the same slot. The end of the session decides it
    /// at once, whatever is under way: no owner does anything of it any more.
    async fn decide(&self, mut call: OwnerCall, mut slot: Slot) {
        let _listed = self.list();
        loop {
            let deadline = Deadline::after(&self.world, self.patience);
            let outcome = {
                let asking = pin!(self.ask_until(&mut call, deadline));
                let over = pin!(self.until_over());
                match select(over, asking).await {
                    Either::Left(_) => None,
                    Either::Right((outcome, _)) => Some(outcome),
                }
            };
            let Some(outcome) = outcome else {
                self.slots.give_back(slot);
                return;
            };
            let Outcome::Answered(answer) = outcome else {
                continue;
            };
            let Some(close) = self.close_of(&call.request, &answer) else {
                self.slots.give_back(slot);
                return;
            };
            call.request = close;
            call.order = Some(slot.next_order());
        }
    }

    /// Waits until the session is over.
    async fn until_over(&self) {
        loop {
            // First: an end that follows isn't missed.
            let ends = self.ends.notified();
            if self.is_over.load(Ordering::Acquire) || self.closed.load(Ordering::Acquire) {
                return;
            }
            ends.await;
        }
    }

    /// What ends the use of a file that a request of the session has begun, or its wait for a lock, for who doesn't wait for it any
    /// more.
    fn close_of(
        &self,
        request: &OwnerRequest,
        answer: &Result<OwnerReply>,
    ) -> Option<OwnerRequest> {
        if let OwnerRequest::Lock(LockCall::Queue { wait, request }) = request {
            let (session, wait) = (request.owner.door.session, *wait);
            let end = OwnerRequest::Lock(LockCall::EndWait { session, wait });
            return matches!(answer, Ok(OwnerReply::Waits)).then_some(end);
        }
        let inode = held_by(request, answer)?;
        let stamp = Stamp::own(self.world.wall(), request.session()?);
        Some(OwnerRequest::Unhold { inode, stamp })
    }

    /// Lists a wait for the owner.
    fn list(&self) -> Wait<'_> {
        let part = Part::ForOwner(self.shard);
        self.waiters
            .enter_as(part, OWNER_WAIT, None, self.world.now())
    }

    /// The session of the calls from now on, opened by the owner of a tenure.
    pub(super) fn set_session(&self, session: SessionId, tenure: Tenure) {
        self.book.lock().set_tenure(tenure);
        let first = self.session.set(session);
        assert!(first.is_ok(), "a client opens one session");
    }

    /// The session of the calls from now on, opened by an owner that has ended: the next one is told that it holds this.
    pub(super) fn go_on(&self, session: SessionId, book: Book) {
        *self.book.lock() = book;
        self.set_session(session, Tenure::default());
    }

    /// Nobody wants a session any more whose owner doesn't answer: asks it to end the session, in the background,
    /// [`END_TRIES`] times as long as the client is patient. If that is in vain, the session ends with this daemon.
    pub(super) fn end_later(&self, session: SessionId) {
        self.end_after(session, Duration::ZERO);
    }

    /// As [`Calls::end_later`], after some time.
    fn end_after(&self, session: SessionId, wait: Duration) {
        let calls = self.me.upgrade().expect("an owner is used through its Arc");
        let end = OwnerRequest::CloseSession { session };
        let ending = async move {
            if !wait.is_zero() {
                calls.world.sleep(wait).await;
            }
            for _ in 0..END_TRIES {
                match calls.ask(&end).await {
                    Err(error) if may_be_open(&error) => {
                        tracing::debug!(%session, %error, "a session that nobody wants can't be ended yet");
                        calls.world.sleep(PAUSE_MAX).await;
                    }
                    _ => break,
                }
            }
            calls.close();
        };
        self.world
            .spawn("ends a session that nobody wants", ending)
            .detach();
    }

    /// The session has ended.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.ends.notify_waiters();
    }

    /// What waits, and how much more than is listed.
    pub(super) fn waits(&self, now: Instant) -> (Vec<Waiter>, usize) {
        self.waiters.list(now)
    }
}

/// Whether a session whose end was answered with this error may still be open.
pub(super) fn may_be_open(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::SessionEnded => false,
        ErrorKind::Unknown => true,
        kind => matches!(
            kind.advice(),
            Advice::Retry | Advice::RefreshMap | Advice::Wait
        ),
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let slot = self.slot.take().expect("only the drop takes it");
        let Some(call) = self.undecided.take() else {
            self.owner.slots.give_back(slot);
            return;
        };
        let owner = self.owner.clone();
        let change = self.change.take();
        // Before whoever asked goes on.
        let undecided = owner.undecided.begin(&call.request);
        let deciding = async move {
            let deciding = owner.decide(call, slot);
            match undecided.as_ref().map(UndecidedRequest::work) {
                Some(work) => owner.world.at_work(DECIDES, work, deciding).await,
                None => deciding.await,
            }
            drop((change, undecided));
        };
        let world = &self.owner.world;
        world.spawn("an undecided request", deciding).detach();
    }
}

/// The end of asking, with an owner's answer. A session that has ended says nothing of what it asked
/// before: a change that may have run must not be asked again by another session.
fn decided(call: &OwnerCall, answer: Result<OwnerReply>, may_have_run: bool) -> Outcome {
    let must_not_repeat = may_have_run && call.request.is_change() && !call.request.is_publish();
    Outcome::Answered(match answer {
        Err(error) if error.kind() == ErrorKind::SessionEnded && must_not_repeat => {
            let text = "the session ended before its owner said what became of the operation";
            Err(Error::new(ErrorKind::Unknown, text))
        }
        answer => answer,
    })
}

/// What comes of asking an owner; `None` if another node owns the shard before: one that has fallen silent is never heard
/// again then.
async fn unless<T>(
    replaced: &mut BoxFuture<'_, ()>,
    way: &OwnerWay,
    asking: impl Future<Output = T>,
) -> Option<T> {
    match way {
        // It knows itself when it is over.
        OwnerWay::Near(_) => Some(asking.await),
        OwnerWay::Far(_) => match select(pin!(asking), replaced).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        },
    }
}

/// Whether a request ends its session, which nothing keeps from being asked.
fn is_end(request: &OwnerRequest) -> bool {
    matches!(request, OwnerRequest::CloseSession { .. })
}

fn ended(session: SessionId) -> Error {
    let text = format!("session {session} has ended: the client goes on with another one");
    Error::new(ErrorKind::SessionEnded, text)
}

/// What became of a request that must be asked again.
enum Undone {
    /// Nothing: the owner isn't the owner any more, or can't do it yet.
    Certainly,
    /// Nothing: the owner must know first what the session holds.
    ReclaimFirst,
    /// The owner couldn't say. One that gives the shard up can't, and the next one can.
    Perhaps,
}

/// Whether an answer leaves its request undone, and why.
fn left_undone(answer: &Result<OwnerReply>) -> Option<(Undone, &Error)> {
    use ErrorKind::{InGrace, OldEpoch, ReclaimFirst, ShuttingDown, Unavailable, Unknown};
    let error = answer.as_ref().err()?;
    let undone = match error.kind() {
        InGrace | OldEpoch => Undone::Certainly,
        ReclaimFirst => Undone::ReclaimFirst,
        // It may have done it, and couldn't make it durable.
        Unknown | Unavailable | ShuttingDown => Undone::Perhaps,
        _ => return None,
    };
    Some((undone, error))
}
