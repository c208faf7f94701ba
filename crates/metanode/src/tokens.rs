//! Drives `tokens::Granter`: who may cache or change what of the shard, and what operations wait for.
//!
//! *A read by a client*: it asks for the inode and the bytes ([`Tokens::ask`]), once; then it reads
//! without the owner. *A write* is the same in another mode; its publish needs nothing more. *A create
//! or a stat* claims what it needs before it runs ([`Tokens::claim`]) and lets go when it is answered.
//! *A failure*: who returns nothing is ended by the task of [`Tokens::watch`] once its tokens have run
//! out, and then those that wait go on.
//!
//! A client of this process that is the only one has everything ([`alone`]): neither it nor its
//! operations ask for anything.
//!
//! Bounded by the granter's own limits for each session: requests and claims that wait, and recalls,
//! one for each object.

mod alone;
mod waits;
mod writers;

use crate::lease::OwnerLease;
use crate::tokens::alone::Alone;
use crate::tokens::writers::{FormerWriters, WriterCount};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use model::owner::{HeldToken, RECALL_WAIT_MAX, RECALLED_RANGES_MAX, RECALLS_MAX, Renewal, Tenure};
use model::token::{GrantNumber, TokenRecall, TokenReply, TokenRequest, TokenReturn};
use model::{Error, ErrorKind, InodeId, Result, SessionId, TokenMode, TokenObject, TokenRange};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokens::granter::{Action, ClaimNumber, Granter, LISTED_WAIT_MAX, Listed, Need};
use tokens::{Moment, granter};
use tokio::sync::{Notify, oneshot};
use world::{Deadline, Errand, Instant, Planted, World};

/// The shortest time after which a session is answered because its tokens run out soon.
const ANSWER_PAUSE_MIN: Duration = Duration::from_millis(100);
/// How often the granter learns that time passes.
const TICK: Duration = Duration::from_millis(500);
/// The cause by which operations and requests are listed that wait for others' tokens.
const OTHERS_WAIT: &str = "what other clients have cached or changed";

/// How long an answer is kept that its session doesn't ask for. Longer than the deadline of a call.
const SETTLING_MAX: Duration = Duration::from_secs(10);

/// Most of them, of all sessions and of one. The others begin to wait anew when they are asked for again.
const SETTLING_ANSWERS_MAX: usize = 4096;
const SETTLING_OF_SESSION_MAX: usize = 256;

/// The tokens of the shard.
pub(crate) struct Tokens {
    world: World,
    began: Instant,
    tenure: Tenure,
    /// Tokens are promised for no longer.
    lease: OwnerLease,
    alone: Alone,
    state: Mutex<State>,
    /// How many former writers there have been.
    writer_count: WriterCount,
    /// There is something to watch, or a session to end.
    changed: Notify,
}

struct State {
    granter: Granter,
    /// Requests whose sessions wait for the answer.
    asked: BTreeMap<(SessionId, u64), Asking>,
    /// Answers that may leave once what they show is durable.
    settling: BTreeMap<(SessionId, u64), Settling>,
    /// Operations that wait.
    claims: BTreeMap<ClaimNumber, Turn>,
    mail: BTreeMap<SessionId, Mail>,
    /// Who could change attributes until a short while ago.
    writers: FormerWriters,
    /// Sessions to end, and those that are being ended.
    ending: BTreeSet<SessionId>,
    closing: BTreeSet<SessionId>,
}

/// A request whose session waits for the answer.
struct Asking {
    tell: oneshot::Sender<TokenReply>,
    object: TokenObject,
    errand: Errand,
    since: Moment,
}

/// An operation that waits.
struct Turn {
    tell: oneshot::Sender<()>,
    errand: Errand,
    since: Moment,
}

/// An answer that may leave once what it shows is durable.
#[derive(Clone)]
pub(crate) struct Settling {
    reply: TokenReply,
    durable: Shared<BoxFuture<'static, Result<()>>>,
    /// When it is forgotten, unless it is asked for again.
    until: Moment,
}

/// What has to be said to a session.
#[derive(Default)]
struct Mail {
    /// The newest recall of each object.
    recalls: BTreeMap<TokenObject, TokenRecall>,
    came: Arc<Notify>,
}

/// What an operation has claimed, until this is dropped.
pub(crate) struct Claim<'a> {
    tokens: &'a Tokens,
    what: Claimed,
}

enum Claimed {
    /// It needs nothing.
    Nothing,
    /// Its session has everything.
    All,
    Some(ClaimNumber),
}

/// A claim, and whether it has to wait.
pub(crate) struct Claiming<'a> {
    claim: Claim<'a>,
    turn: Option<oneshot::Receiver<()>>,
}

/// A session's request that has no answer yet.
pub(crate) struct Asked<'a> {
    tokens: &'a Tokens,
    key: (SessionId, u64),
    answer: Option<oneshot::Receiver<TokenReply>>,
    /// What it asks for, if it isn't sent again.
    once: Option<TokenObject>,
}

/// What there is to say to a session.
pub(crate) struct Said {
    pub(crate) recalls: Vec<TokenRecall>,
    pub(crate) has_all: bool,
}

impl Tokens {
    /// An owner that begins; [`Tokens::begin`] says with which sessions.
    pub(crate) fn new(world: &World, tenure: Tenure, lease: OwnerLease) -> Self {
        let granter = Granter::new(tenure, BTreeSet::new(), Moment::default());
        Self {
            world: world.clone(),
            began: world.now(),
            tenure,
            lease,
            alone: Alone::default(),
            state: Mutex::new(State {
                granter,
                asked: BTreeMap::new(),
                settling: BTreeMap::new(),
                claims: BTreeMap::new(),
                mail: BTreeMap::new(),
                writers: FormerWriters::default(),
                ending: BTreeSet::new(),
                closing: BTreeSet::new(),
            }),
            writer_count: WriterCount::default(),
            changed: Notify::new(),
        }
    }

    /// The sessions that are open as the owner begins: they have yet to say what they hold.
    pub(crate) fn begin(&self, sessions: BTreeSet<SessionId>) {
        let now = self.now();
        let mut state = self.state.lock();
        for session in &sessions {
            state.mail.entry(*session).or_default();
        }
        state.granter = Granter::new(self.tenure, sessions, now);
        if let Some(fault) = self.world.planted().and_then(tokens::Planted::of) {
            state.granter.plant(fault);
        }
        drop(state);
        self.changed.notify_one();
    }

    fn now(&self) -> Moment {
        Moment(self.world.now().since(self.began))
    }

    // Sessions.

    /// Makes sure that no other session has everything, before one is opened. Until the result is
    /// dropped none gets it.
    ///
    /// # Errors
    /// `Unavailable` if the one that has doesn't write what it has cached.
    pub(crate) async fn begin_opening(&self, session: SessionId) -> Result<alone::Opening<'_>> {
        let (opening, other) = self.alone.begin_opening(session);
        if let Some(other) = other {
            self.wake(other);
        }
        self.alone.wait_for_nobody(&self.world, session).await?;
        Ok(opening)
    }

    /// A session is open.
    pub(crate) fn begin_session(&self, session: SessionId) {
        let mut state = self.state.lock();
        state.granter.begin_session(session);
        state.mail.entry(session).or_default();
        drop(state);
        self.changed.notify_one();
    }

    /// A session has ended, and that is durable.
    pub(crate) fn end_session(&self, session: SessionId) {
        let now = self.now();
        self.alone.left(session);
        let mut state = self.state.lock();
        state.granter.end_session(session, now);
        state.ending.remove(&session);
        state.asked.retain(|(asking, _), _| *asking != session);
        state.settling.retain(|(asking, _), _| *asking != session);
        if let Some(mail) = state.mail.remove(&session) {
            state.writers.note(&self.writer_count, session, None);
            mail.came.notify_waiters();
        }
        self.act(state);
    }

    /// The cluster has expelled the daemons of these sessions.
    pub(crate) fn expel(&self, sessions: impl Iterator<Item = SessionId>) {
        let now = self.now();
        let mut state = self.state.lock();
        for session in sessions {
            state.granter.expel(session, now);
        }
        self.act(state);
    }

    fn wake(&self, session: SessionId) {
        if let Some(mail) = self.state.lock().mail.get(&session) {
            mail.came.notify_one();
        }
    }

    // Requests of sessions.

    /// A session asks for a token.
    ///
    /// # Errors
    /// `InvalidArgument` for what no sound daemon sends.
    pub(crate) fn ask(
        &self,
        session: SessionId,
        number: u64,
        wants: TokenRequest,
    ) -> Result<Asked<'_>> {
        let now = self.now();
        let mut state = self.state.lock();
        let waiting = self.wait_for_answer(&mut state, (session, number), wants.object, now);
        let asked = state.granter.ask(session, number, wants, now);
        self.act(state);
        asked.map(|()| waiting)
    }

    /// A session waits for the answer to a request. One that is sent again takes the answer of the one before.
    fn wait_for_answer(
        &self,
        state: &mut State,
        key: (SessionId, u64),
        object: TokenObject,
        since: Moment,
    ) -> Asked<'_> {
        let (tell, answer) = oneshot::channel();
        let asking = Asking {
            tell,
            object,
            errand: self.world.errand(),
            since,
        };
        state.asked.insert(key, asking);
        Asked {
            tokens: self,
            key,
            answer: Some(answer),
            once: None,
        }
    }

    /// A session asks for shared tokens of inodes that it lists; which it gets, in their order. Those that other sessions are
    /// asked for are waited for a moment, all at the same time: a client that has made many files gives them back in few
    /// messages.
    pub(crate) async fn ask_to_know(
        &self,
        session: SessionId,
        inodes: &[InodeId],
        deadline: Deadline,
    ) -> Vec<Option<GrantNumber>> {
        let deadline = deadline.min(Deadline::after(&self.world, LISTED_WAIT_MAX));
        let (mut grants, waiting) = self.begin_to_list(session, inodes);
        for (at, asked) in waiting {
            if let TokenReply::Granted { number, .. } = asked.answer(deadline).await {
                grants[at] = Some(number);
            }
        }
        grants
    }

    /// What is granted at once, and the requests that wait, each with its place.
    fn begin_to_list(
        &self,
        session: SessionId,
        inodes: &[InodeId],
    ) -> (Vec<Option<GrantNumber>>, Vec<(usize, Asked<'_>)>) {
        let now = self.now();
        let (mut grants, mut waiting) = (vec![None; inodes.len()], Vec::new());
        let mut state = self.state.lock();
        for (at, inode) in inodes.iter().enumerate() {
            match state.granter.ask_to_list(session, *inode, now) {
                Listed::Granted(number) => grants[at] = Some(number),
                Listed::Refused => {}
                Listed::Waits(number) => {
                    let object = TokenObject::Inode(*inode);
                    let mut asked =
                        self.wait_for_answer(&mut state, (session, number), object, now);
                    asked.once = Some(object);
                    waiting.push((at, asked));
                }
            }
        }
        self.act(state);
        (grants, waiting)
    }

    /// Gives a session the attributes and all bytes of a file that it has just made, alone, without waiting for anybody;
    /// `None` if others have or want any of it, or it has everything anyway.
    pub(crate) fn grant_made(
        &self,
        session: SessionId,
        inode: InodeId,
    ) -> Option<[GrantNumber; 2]> {
        if self.alone.is_on() {
            return None;
        }
        let now = self.now();
        let mut state = self.state.lock();
        let grants = state.granter.grant_made_if_free(session, inode, now);
        self.act(state);
        grants
    }

    /// The answer to a request, which can't leave yet, unless that was asked for so long ago that its
    /// session doesn't wait any more.
    pub(crate) fn settling(&self, session: SessionId, number: u64) -> Option<Settling> {
        let mut state = self.state.lock();
        if state.settling.is_empty() {
            return None;
        }
        let now = self.now();
        state.settling.retain(|_, settling| settling.until > now);
        state.settling.remove(&(session, number))
    }

    /// Gives an answer once what it shows is durable; `Waits` at the deadline. Asked again, it goes on with
    /// the same: others' changes go on, and the newest one may never be durable.
    pub(crate) async fn settle(
        &self,
        session: SessionId,
        number: u64,
        mut settling: Settling,
        deadline: Deadline,
    ) -> Result<TokenReply> {
        match deadline.bound(&self.world, settling.durable.clone()).await {
            Ok(durable) => durable.map(|()| settling.reply),
            Err(_) => {
                settling.until = self.now().plus(SETTLING_MAX);
                let mut state = self.state.lock();
                let own = state.settling.range((session, 0)..=(session, u64::MAX));
                let has_room = own.count() < SETTLING_OF_SESSION_MAX
                    && state.settling.len() < SETTLING_ANSWERS_MAX;
                if state.mail.contains_key(&session) && has_room {
                    state.settling.insert((session, number), settling);
                }
                Ok(TokenReply::Waits)
            }
        }
    }

    /// A session gives something back.
    ///
    /// # Errors
    /// `InvalidArgument` for what no sound daemon sends.
    pub(crate) fn take_back(&self, session: SessionId, back: &TokenReturn) -> Result<()> {
        let now = self.now();
        let mut state = self.state.lock();
        let writes = match back.object {
            TokenObject::Inode(inode) if state.granter.may_change(session, inode) => Some(inode),
            _ => None,
        };
        let taken = state.granter.take_back(session, back, now);
        if let Some(inode) = writes
            && !state.granter.may_change(session, inode)
        {
            state.writers.note(&self.writer_count, session, Some(inode));
        }
        self.act(state);
        taken
    }

    /// A session has published something of an inode: progress, if others want it back.
    pub(crate) fn note_published(&self, session: SessionId, inode: InodeId) {
        if self.alone.is_on() {
            return;
        }
        let now = self.now();
        let granter = &mut self.state.lock().granter;
        granter.note_published(session, inode, now);
    }

    /// What a session had made in these directories is durable: progress, if others want them back.
    pub(crate) fn note_streamed(
        &self,
        session: SessionId,
        directories: impl Iterator<Item = InodeId>,
    ) {
        if self.alone.is_on() {
            return;
        }
        let now = self.now();
        let granter = &mut self.state.lock().granter;
        for directory in directories {
            granter.note_streamed(session, directory, now);
        }
    }

    /// For how long the session's tokens may be used after an answer that leaves now.
    ///
    /// # Errors
    /// `Unavailable` if it must not be answered: it is about to end. `OldEpoch` if the owner's lease is
    /// over.
    pub(crate) fn renewal(&self, session: SessionId) -> Result<Renewal> {
        let now = self.now();
        let tenure = self.tenure;
        self.lease.check(&self.world)?;
        let mut state = self.state.lock();
        state
            .granter
            .renew(now.plus(self.lease.rest(&self.world)), now);
        let span = state.granter.answer(session, now);
        drop(state);
        span.map(|span| Renewal { tenure, span }).ok_or_else(|| {
            let text = "the session is about to end, because it gave nothing back";
            Error::new(ErrorKind::Unavailable, text)
        })
    }

    /// When a session must be answered at the latest, so that it is promised more before its tokens run out: they
    /// last no longer than the owner's lease, which may be extended late, by a new manager for instance.
    pub(crate) fn answer_by(&self) -> Deadline {
        let half = self.lease.rest(&self.world) / 2;
        Deadline::after(&self.world, half.clamp(ANSWER_PAUSE_MIN, RECALL_WAIT_MAX))
    }

    /// Waits until there is something to say to a session, for a while. `may_have_all`: whether it
    /// is now the only one that is open, and in this process.
    ///
    /// # Errors
    /// `SessionEnded`.
    pub(crate) async fn await_recalls(
        &self,
        session: SessionId,
        has_all: bool,
        may_have_all: impl Fn() -> bool,
        deadline: Deadline,
    ) -> Result<Said> {
        loop {
            // Operations of sessions that have ended may still be under way.
            let may_now = || {
                let state = may_have_all().then(|| self.state.lock());
                state.filter(|state| !state.granter.has_claims())
            };
            let has_all_now = self.alone.look(session, has_all, may_now);
            // Under the lock: the end of the session wakes only those that wait by then.
            let came;
            let waits = {
                let mut state = self.state.lock();
                let Some(mail) = state.mail.get_mut(&session) else {
                    return Err(namespace::sessions::ended(session));
                };
                let (mut recalls, mut ranges) = (Vec::new(), 0);
                while recalls.len() < RECALLS_MAX
                    && ranges < RECALLED_RANGES_MAX
                    && let Some((_, recall)) = mail.recalls.pop_first()
                {
                    ranges += recall.ranges.len();
                    recalls.push(recall);
                }
                if !recalls.is_empty() || has_all_now != has_all {
                    return Ok(Said {
                        recalls,
                        has_all: has_all_now,
                    });
                }
                came = mail.came.clone();
                came.notified()
            };
            let waited = deadline.bound(&self.world, waits).await;
            if waited.is_err() {
                return Ok(Said {
                    recalls: Vec::new(),
                    has_all,
                });
            }
        }
    }

    /// A session says what it held under the owner before: a part of it.
    ///
    /// # Errors
    /// `InvalidArgument` for what no sound daemon sends.
    pub(crate) fn reclaim(
        &self,
        session: SessionId,
        held: &[HeldToken],
        is_last: bool,
    ) -> Result<Vec<Option<GrantNumber>>> {
        let now = self.now();
        let mut state = self.state.lock();
        let numbers = held.iter().map(|held| {
            let need = Need {
                object: held.object,
                mode: held.mode,
                ranges: vec![held.range],
            };
            state.granter.reclaim(session, need, now)
        });
        let numbers = numbers.collect::<Result<_>>()?;
        if is_last {
            state.granter.end_reclaim(session, now);
        }
        self.act(state);
        Ok(numbers)
    }

    // Operations.

    /// An operation of a session needs this. `None` if too much of the session waits.
    pub(crate) fn claim(
        &self,
        session: SessionId,
        needs: impl FnOnce() -> Vec<Need>,
    ) -> Option<Claiming<'_>> {
        let claim = |what| Claim { tokens: self, what };
        if self.alone.enter() {
            let claim = claim(Claimed::All);
            return Some(Claiming { claim, turn: None });
        }
        let needs = match self.world.planted() {
            Some(Planted::ClaimNothing) => Vec::new(),
            Some(Planted::CopyUnasked) => without_shared_bytes(needs()),
            _ => needs(),
        };
        if needs.is_empty() {
            let claim = claim(Claimed::Nothing);
            return Some(Claiming { claim, turn: None });
        }
        let now = self.now();
        let mut state = self.state.lock();
        // A client may have got everything meanwhile, as there was no claim yet.
        if self.alone.enter() {
            let claim = claim(Claimed::All);
            return Some(Claiming { claim, turn: None });
        }
        let number = state.granter.claim(session, needs, now)?;
        let (tell, turn) = oneshot::channel();
        let claim_turn = Turn {
            tell,
            errand: self.world.errand(),
            since: now,
        };
        state.claims.insert(number, claim_turn);
        self.act(state);
        Some(Claiming {
            claim: claim(Claimed::Some(number)),
            turn: Some(turn),
        })
    }

    /// For [`Tokens::is_changed_by_others`]: to be read before an operation runs.
    pub(crate) fn writer_count(&self) -> u64 {
        self.writer_count.now()
    }

    /// Whether another session may be changing the attributes of an inode, or could since the count of
    /// writers was `count`: what it published before it gave that up may have come after a look at the
    /// records.
    pub(crate) fn is_changed_by_others(
        &self,
        session: SessionId,
        inode: InodeId,
        count: u64,
    ) -> bool {
        let state = self.state.lock();
        state.granter.is_changed_by_others(session, inode)
            || state.writers.has_since(count, session, inode)
    }

    /// As [`Granter::knows`].
    pub(crate) fn knows(
        &self,
        session: SessionId,
        object: TokenObject,
        range: TokenRange,
        mode: TokenMode,
    ) -> Option<bool> {
        let state = self.state.lock();
        state.granter.knows(session, object, range, mode)
    }

    // What follows.

    /// Does what the granter wants done.
    fn act(&self, mut state: MutexGuard<'_, State>) {
        let mut ends = false;
        for action in state.granter.take_actions() {
            match action {
                // Nobody waits any more if this fails; the session asks again.
                Action::Answer {
                    session,
                    request,
                    reply,
                } => {
                    let asking = state.asked.remove(&(session, request));
                    let _ = asking.map(|asking| asking.tell.send(reply));
                }
                Action::Recall { session, recall } => {
                    if let Some(mail) = state.mail.get_mut(&session) {
                        mail.recalls.insert(recall.object, recall);
                        mail.came.notify_one();
                    }
                }
                Action::Run(number) => {
                    let turn = state.claims.remove(&number);
                    let _ = turn.map(|turn| turn.tell.send(()));
                }
                Action::End(session) => {
                    let is_new = !state.closing.contains(&session);
                    ends |= is_new && state.ending.insert(session);
                }
            }
        }
        if ends {
            self.changed.notify_one();
        }
    }

    /// A session that was to end has ended, or couldn't yet: then it is named again.
    pub(crate) fn is_closed(&self, session: SessionId) {
        self.state.lock().closing.remove(&session);
    }

    /// Waits until there are sessions to end, and names them.
    pub(crate) async fn watch(&self) -> BTreeSet<SessionId> {
        loop {
            let idle = self.alone.is_on() || self.state.lock().mail.is_empty();
            match idle {
                true => self.changed.notified().await,
                false => drop(self.world.timeout(TICK, self.changed.notified()).await),
            }
            let now = self.now();
            let mut state = self.state.lock();
            let own_until = now.plus(self.lease.rest(&self.world));
            state.granter.renew(own_until, now);
            state.granter.tick(now);
            self.act(state);
            let mut state = self.state.lock();
            let ending = std::mem::take(&mut state.ending);
            if !ending.is_empty() {
                state.closing.extend(&ending);
                return ending;
            }
        }
    }
}

impl Settling {
    /// An answer, and what it waits for.
    pub(crate) fn new(
        reply: TokenReply,
        durable: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Self {
        Self {
            reply,
            durable: durable.boxed().shared(),
            until: Moment::default(),
        }
    }
}

impl<'a> Claiming<'a> {
    /// The claim, if its operation may run now.
    pub(crate) fn ready(mut self) -> std::result::Result<Claim<'a>, Self> {
        match &mut self.turn {
            None => Ok(self.claim),
            Some(turn) => match turn.try_recv() {
                Ok(()) => Ok(self.claim),
                Err(_) => Err(self),
            },
        }
    }

    /// Waits until the operation may run.
    ///
    /// # Errors
    /// `InGrace` at the deadline.
    pub(crate) async fn wait(self, deadline: Deadline) -> Result<Claim<'a>> {
        let mut waiting = match self.ready() {
            Ok(claim) => return Ok(claim),
            Err(waiting) => waiting,
        };
        let turn = waiting.turn.take().expect("it isn't ready");
        let claim = waiting.claim;
        let tokens = claim.tokens;
        match deadline.bound(&tokens.world, turn).await {
            Ok(Ok(())) => Ok(claim),
            _ => {
                let text = format!("{OTHERS_WAIT} wasn't given back in time");
                Err(Error::new(ErrorKind::InGrace, text))
            }
        }
    }
}

impl Claim<'_> {
    /// Whether nobody else has anything.
    pub(crate) fn is_all(&self) -> bool {
        matches!(self.what, Claimed::All)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        match self.what {
            Claimed::Nothing => {}
            Claimed::All => self.tokens.alone.leave(),
            Claimed::Some(number) => {
                let now = self.tokens.now();
                let mut state = self.tokens.state.lock();
                state.claims.remove(&number);
                state.granter.end_claim(number, now);
                self.tokens.act(state);
            }
        }
    }
}

impl Asked<'_> {
    /// Waits for the answer.
    pub(crate) async fn answer(mut self, deadline: Deadline) -> TokenReply {
        let world = &self.tokens.world;
        let Some(answer) = &mut self.answer else {
            return TokenReply::Waits;
        };
        match deadline.bound(world, answer).await {
            Ok(Ok(reply)) => reply,
            _ => TokenReply::Waits,
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        drop(self.answer.take());
        let mut state = self.tokens.state.lock();
        // Unless it was sent again: then another one waits.
        if state
            .asked
            .get(&self.key)
            .is_some_and(|asking| asking.tell.is_closed())
        {
            state.asked.remove(&self.key);
            if let Some(object) = self.once {
                let (session, number) = self.key;
                let now = self.tokens.now();
                state.granter.withdraw(session, object, number, now);
                self.tokens.act(state);
            }
        }
    }
}

/// What an answer that shows these inodes' attributes needs.
pub(crate) fn needs_of_shown(inodes: &[InodeId]) -> Vec<Need> {
    let inodes: BTreeSet<InodeId> = inodes.iter().copied().collect();
    inodes
        .into_iter()
        .map(tokens::needs::inode_shared)
        .collect()
}

/// Longer than a recall can take: then its session ends.
pub(crate) const CLAIM_WAIT_MAX: Duration = granter::GRACE
    .saturating_add(granter::RECALL_MAX)
    .saturating_add(Duration::from_secs(15));

/// Without the bytes that an operation reads.
fn without_shared_bytes(mut needs: Vec<Need>) -> Vec<Need> {
    let is_read = |need: &Need| {
        matches!(need.object, TokenObject::Bytes(_)) && need.mode == TokenMode::Shared
    };
    needs.retain(|need| !is_read(need));
    needs
}
