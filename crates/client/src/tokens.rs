//! Drives `tokens::Holder`: what the session may cache and change, what it asks for, and recalls.
//!
//! *A read or a write* looks at its inode's `Held` under the inode's lock. If that doesn't allow it, it
//! claims what it needs here and goes on with [`Uses`], which no recall takes away before they are
//! dropped. *A recall* comes in answer to the request that is always under way: the inode's `Held` is
//! reduced, what was changed is published, what was cached is dropped, and the token goes back. That
//! takes no lock but the inode's, for moments. *A failure*: what the owner took from a session that it
//! didn't hear from is dropped here ([`WriteBehind::lose`]), and programs that had written hear of it.
//!
//! An operation that is sent to the owner claims there what it needs; it must not be sent while this
//! client uses the same object, or two clients wait for each other.
//!
//! The session may have everything; then nothing of this is needed. That ends when another session is
//! opened, or the owner gives the shard up: everything is published and forgotten, or kept under tokens
//! if that takes long, and tokens are used from then on.

mod born;
mod flushing;
mod giving_up;
mod kept;
mod late;
mod names;
mod pages;
mod polling;
mod renewal;
mod returns;
mod ties;

use crate::inode::{Inner, InodeRef};
use crate::kernels::{BELIEVED_MAX, Kernels};
use crate::page_pool::PagePool;
use crate::session::Session;
use crate::write_behind::WriteBehind;
use kept::Kept;
pub(crate) use late::Unheard;
use model::owner::{HeldToken, OwnerReply, OwnerRequest, Renewal, Tenure};
use model::token::{GrantNumber, Ship, TokenRecall, TokenRequest, TokenReturn};
use model::{
    Error, ErrorKind, InodeId, Moment, Result, SessionId, TokenMode, TokenObject, TokenRange,
};
pub(crate) use pages::Filling;
use parking_lot::{Mutex, MutexGuard, RwLock};
use returns::Returns;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokens::Holder;
use tokens::holder::{Action, Claimed, FlushNumber, UseNumber, WaitNumber, Want};
use tokio::sync::{Notify, oneshot};
use world::{Errand, Instant, Task, Work};

/// The cause by which waits for tokens are listed.
const TOKEN_WAIT: &str = "what other clients have cached or changed";

/// How often a claim may be refused because the session holds too much, until it fails.
const REFUSALS_MAX: usize = 8;

/// Objects of which a client keeps something: names are known under no more. An eighth of what an owner
/// lets a session hold, so that files in use always find room.
const OBJECTS_MAX: usize = 32_768;

/// Above so many, what nobody uses is given back, so that there is room for what is used next.
const RELEASED_ABOVE: usize = OBJECTS_MAX / 8 * 7;

/// Most returns on the way of what nobody uses.
const RETURNS_MAX: usize = 2_048;

/// Most objects that are looked at in turn for those that nobody uses. The state is locked meanwhile.
const SWEPT_MAX: usize = 2_048;
/// How often they are looked at, and how soon again after all of them were in use: those get another round.
const SWEEP_EVERY: Duration = Duration::from_millis(10);
const SWEEP_AGAIN: Duration = Duration::from_millis(50);

/// Pause after the owner couldn't be asked.
const ASK_PAUSE: Duration = Duration::from_millis(100);

/// An answer that comes so late renews nothing: the owner may have given up on the session.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The session's tokens.
pub(crate) struct Tokens {
    me: Weak<Self>,
    session: Arc<Session>,
    pages: Arc<PagePool>,
    write_behind: Arc<WriteBehind>,
    state: Mutex<State>,
    /// Read, from when the state is locked, by who drops what was lost once it isn't locked any more.
    losing: RwLock<()>,
    kernels: Kernels,
    /// Requests of kernels for several pages that wait.
    waiting_fills: Arc<AtomicUsize>,
    /// Requests of kernels for pages that are just going.
    held_fills: Arc<AtomicUsize>,
    /// What is on its way back.
    returns: Mutex<Returns>,
    /// The owner has answered for the first time.
    begun: Notify,
    task: Mutex<Option<Task<()>>>,
}

struct State {
    /// `None` until the owner has answered for the first time.
    holder: Option<Holder>,
    /// Operations that wait.
    waits: BTreeMap<WaitNumber, Claimant>,
    /// Requests with a task that asks them.
    asking: BTreeSet<u64>,
    /// Objects of which something may be held.
    kept: Kept,
    /// When objects may be looked at again for those that nobody uses.
    sweep_at: Moment,
    /// Inodes whose tokens are being asked for in messages of many.
    asked_to_know: usize,
    /// The session has ended, and no other one has begun.
    is_over: bool,
    /// It had everything, and has yet to publish or forget something of that, for which it holds no tokens.
    gives_all_up: bool,
    /// The holder of the session before, until the owner has answered the next one.
    former: Option<Holder>,
    /// Recalls of bytes of which kernels drop their pages first: the newest of each file.
    dropping: BTreeMap<InodeId, TokenRecall>,
}

/// An operation that waits, and what is told how it goes on.
struct Claimant {
    tell: oneshot::Sender<Go>,
    errand: Errand,
}

/// How an operation that waited goes on.
enum Go {
    Begin(UseNumber),
    Again,
}

/// What an operation uses; dropped, recalls may go on.
pub(crate) struct Uses {
    tokens: Arc<Tokens>,
    uses: Vec<UseNumber>,
    /// How often tokens of the inode had been lost when this was claimed.
    losses: u64,
}

impl Tokens {
    /// Begins to listen to the owner.
    pub(crate) fn start(
        session: Arc<Session>,
        pages: Arc<PagePool>,
        write_behind: Arc<WriteBehind>,
    ) -> Arc<Self> {
        let world = session.world().clone();
        let tokens = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            session,
            pages,
            write_behind,
            state: Mutex::new(State {
                holder: None,
                waits: BTreeMap::new(),
                asking: BTreeSet::new(),
                kept: Kept::default(),
                sweep_at: Moment::default(),
                asked_to_know: 0,
                is_over: false,
                gives_all_up: false,
                former: None,
                dropping: BTreeMap::new(),
            }),
            losing: RwLock::default(),
            kernels: Kernels::default(),
            waiting_fills: Arc::default(),
            held_fills: Arc::default(),
            returns: Mutex::default(),
            begun: Notify::new(),
            task: Mutex::default(),
        });
        let told = Arc::downgrade(&tokens);
        tokens.session.owner().tell_new_owners(told);
        let polling = polling::run(Arc::downgrade(&tokens), tokens.session.clone());
        *tokens.task.lock() = Some(world.spawn("listens to the owner", polling));
        tokens
    }

    /// Those that keep what the tokens allow.
    pub(crate) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// All that may be used now, besides what a session has that has everything.
    pub(crate) fn usable(&self) -> Vec<(TokenObject, TokenRange, TokenMode)> {
        let now = self.session.standing().now();
        let state = self.state.lock();
        let holder = state.holder.as_ref().filter(|_| !state.is_over);
        holder.map_or_else(Vec::new, |holder| holder.usable_now(now))
    }

    /// Stops listening. What is held is lost with the session's end.
    pub(crate) async fn stop(&self) {
        let task = self.task.lock().take();
        if let Some(task) = task {
            task.stop().await;
        }
        // Who waits is told that there is no session.
        self.state.lock().waits.clear();
    }

    // Claims.

    /// What a read of these bytes needs.
    pub(crate) async fn claim_read(
        &self,
        state: &InodeRef,
        from: u64,
        to: u64,
        mode: TokenMode,
    ) -> Result<Uses> {
        let inode = state.id();
        let attributes = attributes(inode, TokenMode::Shared);
        let bytes = bytes(inode, mode, TokenRange::new(from, to));
        self.claim(state, [Some(attributes), bytes]).await
    }

    /// What a write of these bytes needs; `at_end`: wherever the file ends.
    pub(crate) async fn claim_write(
        &self,
        state: &InodeRef,
        range: Option<TokenRange>,
        at_end: bool,
    ) -> Result<Uses> {
        let (inode, exclusive) = (state.id(), TokenMode::Exclusive);
        let wants = match at_end {
            true => [
                Some(attributes(inode, exclusive)),
                bytes(inode, exclusive, Some(TokenRange::ALL)),
            ],
            false => [
                Some(attributes(inode, TokenMode::SharedWrite)),
                bytes(inode, exclusive, range),
            ],
        };
        self.claim(state, wants).await
    }

    /// What a kernel's write-back of pages needs: who wants the bytes may hold the inode.
    pub(crate) async fn claim_write_back(
        &self,
        state: &InodeRef,
        range: Option<TokenRange>,
    ) -> Result<Uses> {
        let bytes = bytes(state.id(), TokenMode::Exclusive, range);
        self.claim(state, [bytes, None]).await
    }

    /// Claims in the order of the objects, as owners do: no two operations wait for each other.
    async fn claim(&self, state: &InodeRef, wants: [Option<Want>; 2]) -> Result<Uses> {
        self.claim_born(state);
        let mut uses = Uses {
            tokens: self
                .me
                .upgrade()
                .expect("tokens are used through their Arc"),
            uses: Vec::with_capacity(wants.len()),
            losses: state.lock().losses(),
        };
        let is_exact = |want: Want| {
            matches!(want.object, TokenObject::Inode(_)) && want.mode != TokenMode::SharedWrite
        };
        let is_exact = wants.into_iter().flatten().any(is_exact);
        for want in wants.into_iter().flatten() {
            let begun = self.claim_one(want).await?;
            uses.uses.push(begun);
        }
        // The state may be newer than the tokens.
        let locked = self.state.lock();
        for object in [
            TokenObject::Inode(state.id()),
            TokenObject::Bytes(state.id()),
        ] {
            self.show(&locked, object);
        }
        drop(locked);
        if is_exact {
            state.lock().begin_exact();
        }
        Ok(uses)
    }

    async fn claim_one(&self, want: Want) -> Result<UseNumber> {
        let mut refusals = 0;
        while refusals < REFUSALS_MAX {
            let begun = self.begun.notified();
            let waiting = match self.try_claim(want)? {
                Try::Begun(begun) => return Ok(begun),
                Try::NotYet => {
                    self.wait(want, begun).await?;
                    continue;
                }
                Try::Refused => unreachable!("it can't be sent to the owner"),
                Try::Waits(waiting) => waiting,
            };
            match self.wait(want, waiting.turn()).await? {
                Some(Go::Begin(begun)) => return Ok(begun),
                Some(Go::Again) => {
                    refusals += 1;
                    self.release_unused(usize::MAX, usize::MAX);
                }
                // The session has ended: the next one is asked.
                None => {}
            }
        }
        let text = "this client holds as many tokens as it may";
        Err(Error::new(ErrorKind::Unavailable, text))
    }

    fn try_claim(&self, want: Want) -> Result<Try> {
        self.session.check_open()?;
        let mut state = self.state.lock();
        if state.is_over {
            return Ok(Try::NotYet);
        }
        let Some(holder) = &mut state.holder else {
            return Ok(Try::NotYet);
        };
        let claimed = match holder.claim(want, self.session.standing().now()) {
            Claimed::Begun(begun) => Try::Begun(begun),
            Claimed::Waits(wait) => {
                let (tell, turn) = oneshot::channel();
                let errand = self.session.world().errand();
                state.waits.insert(wait, Claimant { tell, errand });
                Try::Waits(Waiting {
                    tokens: self
                        .me
                        .upgrade()
                        .expect("tokens are used through their Arc"),
                    wait: Some(wait),
                    turn: Some(turn),
                })
            }
            Claimed::Ship => Try::Refused,
        };
        self.act(state);
        Ok(claimed)
    }

    async fn wait<F: Future>(&self, want: Want, future: F) -> Result<F::Output> {
        let inode = inode_of(want.object);
        let asking = Work::Ask(inode);
        self.session
            .wait_for_work(TOKEN_WAIT, inode, asking, future)
            .await
    }

    // What the owner says.

    /// The owner has answered a request that was sent then.
    fn renewed(&self, state: &mut State, renewal: Renewal, sent: Instant) {
        let standing = self.session.standing();
        let now = standing.now();
        let own = self.session.owner().usable_until();
        let span = own.map_or(renewal.span, |end| renewal.span.min(end.since(sent)));
        let sent = standing.moment(sent);
        if let Some(holder) = &mut state.holder
            && now.since(sent) <= ANSWER_MAX
        {
            holder.renewed(renewal.tenure, sent, span, now);
            standing.set_usable_until(holder.usable_until());
        }
    }

    /// Sends a request until it is answered or nobody waits for it.
    async fn ask(self: Arc<Self>, request: u64, wants: TokenRequest) {
        let session = self.session.id();
        loop {
            let sent = self.session.now();
            let asked = OwnerRequest::AskToken {
                session,
                number: request,
                wants: wants.clone(),
            };
            let answer = self.session.ask(&asked).await;
            if self.take_answer((session, request), answer, sent) {
                return;
            }
            // An owner in this process refuses at once while its shard is taken over.
            self.session.world().sleep(ASK_PAUSE).await;
        }
    }

    /// Takes in the answer to a request. False if it must be asked again.
    fn take_answer(
        &self,
        (session, request): (SessionId, u64),
        answer: Result<OwnerReply>,
        sent: Instant,
    ) -> bool {
        let mut state = self.state.lock();
        // Another session may have begun: this one's end isn't its end.
        if session != self.session.id() || !state.asking.contains(&request) {
            return true;
        }
        match answer {
            Ok(OwnerReply::Token { reply, renewal }) => {
                let now = self.session.standing().now();
                state.asking.remove(&request);
                let Some(holder) = &mut state.holder else {
                    return true;
                };
                if let Err(error) = holder.answered(request, reply, now) {
                    tracing::error!(%error, "the owner's answer about a token makes no sense");
                }
                self.renewed(&mut state, renewal, sent);
                // Another one asks again if it has to wait.
                self.act(state);
                true
            }
            Ok(other) => crate::session::unexpected_answer(&other),
            Err(error) if error.kind() == ErrorKind::SessionEnded => {
                self.lose_all(state);
                true
            }
            // The claims that wait give up when their patience ends.
            Err(error) => {
                tracing::debug!(%error, "the owner doesn't answer about a token");
                false
            }
        }
    }

    /// The holder, if it is that of this session: another one may have begun, which happens with the
    /// state locked.
    fn holder_of<'a>(&self, state: &'a mut State, session: SessionId) -> Option<&'a mut Holder> {
        let is_own = session == self.session.id();
        state.holder.as_mut().filter(|_| is_own)
    }

    /// The session has ended.
    fn lose_all(&self, mut state: MutexGuard<'_, State>) {
        state.is_over = true;
        self.session.note_end();
        state.waits.clear();
        state.asking.clear();
        if let Some(holder) = &mut state.holder {
            holder.lose_all();
        }
        self.set_has_all(false);
        self.session.standing().set_usable_until(Moment::default());
        self.act(state);
    }

    /// The session has everything, or no longer. Names are known only while it hasn't.
    fn set_has_all(&self, has_all: bool) {
        let names = self.session.known_names();
        // Nothing is known when it begins, nor when it ends.
        if let Some(names) = names.filter(|_| has_all) {
            names.rest();
        }
        self.session.standing().set_has_all(has_all);
        if let Some(names) = names.filter(|_| !has_all) {
            names.go_on();
        }
    }

    // What follows.

    /// Does what the holder wants done.
    fn act(&self, state: MutexGuard<'_, State>) {
        self.act_then(state, || ());
    }

    /// As [`Tokens::act`]. `then` is called when all is shown that may be used now, with the state locked.
    fn act_then<T>(&self, mut state: MutexGuard<'_, State>, then: impl FnOnce() -> T) -> T {
        let mut tasks = Vec::new();
        while let Some(holder) = &mut state.holder {
            let actions = holder.take_actions();
            if actions.is_empty() {
                break;
            }
            for action in actions {
                self.do_one(&mut state, action, &mut tasks);
            }
        }
        let result = then();
        let loses = |task: &Later| matches!(task, Later::Lose(..));
        // Recursive, because what is lost may end a use.
        let _losing = tasks
            .iter()
            .any(loses)
            .then(|| self.losing.read_recursive());
        drop(state);
        let Some(tokens) = self.me.upgrade() else {
            return result;
        };
        let mut returns = Vec::new();
        for task in tasks {
            let (tokens, session) = (tokens.clone(), &self.session);
            match task {
                Later::Ask(request, wants) => {
                    let work = Work::Ask(inode_of(wants.object));
                    session.spawn_work("asks for a token", work, tokens.ask(request, wants));
                }
                Later::Flush(flush, object, ranges, keep) => {
                    let flushing = tokens.flush(flush, object, ranges, keep);
                    let work = Work::Return(inode_of(object));
                    session.spawn_work("gives back a token", work, flushing);
                }
                Later::Return(back) => returns.push(back),
                Later::Lose(object, ranges) => tokens.lose(object, &ranges),
            }
        }
        if !returns.is_empty() {
            self.give_back(returns);
        }
        result
    }

    fn do_one(&self, state: &mut State, action: Action, tasks: &mut Vec<Later>) {
        match action {
            Action::Ask { request, wants } => {
                if state.asking.insert(request) {
                    tasks.push(Later::Ask(request, wants));
                }
            }
            Action::Stop { request } => {
                state.asking.remove(&request);
            }
            Action::Begin(wait, begun) => {
                let waits = state.waits.remove(&wait);
                let told = waits.map(|it| it.tell.send(Go::Begin(begun)).is_ok());
                if told != Some(true)
                    && let Some(holder) = &mut state.holder
                {
                    holder.end_use(begun, self.session.standing().now());
                }
            }
            Action::Ship(wait) | Action::TooMany(wait) => {
                let waits = state.waits.remove(&wait);
                let _ = waits.map(|it| it.tell.send(Go::Again));
            }
            Action::Flush {
                flush,
                object,
                ranges,
                keep,
            } => tasks.push(Later::Flush(flush, object, ranges, keep)),
            Action::Return(back) => tasks.push(Later::Return(back)),
            Action::Changed(object) => {
                self.show(state, object);
                let holder = state.holder.as_ref().expect("it has just acted");
                let is_held = !holder.usable(object).is_empty();
                state.kept.note(object, is_held);
            }
            Action::Lose { object, ranges } => tasks.push(Later::Lose(object, ranges)),
        }
    }

    /// Says to an inode's state, and to what is known of names, what may be used. Called with the state
    /// locked, so that an older truth never follows a newer one.
    fn show(&self, state: &State, object: TokenObject) {
        let Some(holder) = &state.holder else { return };
        let inode = match object {
            TokenObject::Bytes(inode) => {
                if let Some(shown) = self.pages.find_inode(inode) {
                    shown.lock().set_held_bytes(holder.usable(object));
                }
                return;
            }
            TokenObject::Inode(inode) => Some(inode),
            TokenObject::Directory(_) => None,
        };
        let mode = holder.usable(object).iter().next().map(|piece| piece.mode);
        if let Some(names) = self.session.known_names() {
            names.show(object, mode, self.session.standing().now());
        }
        if let Some(shown) = inode.and_then(|inode| self.pages.find_inode(inode)) {
            shown.lock().set_held_attributes(mode);
        }
    }

    /// Gives back some of what nobody uses if there is much, unless enough of it is on its way already. Returns whether there
    /// is room for one more.
    fn make_room(&self) -> bool {
        let mut state = self.state.lock();
        let count = state.kept.len();
        if count <= RELEASED_ABOVE {
            return true;
        }
        let now = self.session.standing().now();
        if now < state.sweep_at {
            return count < OBJECTS_MAX;
        }
        state.sweep_at = now.plus(SWEEP_EVERY);
        drop(state);
        let on_the_way = self.returns.lock().len();
        let room = RETURNS_MAX.saturating_sub(on_the_way);
        let released = self.release_unused(SWEPT_MAX, room);
        let mut state = self.state.lock();
        if released == 0 {
            state.sweep_at = now.plus(SWEEP_AGAIN);
        }
        state.kept.len() < OBJECTS_MAX
    }

    /// Looks at most at so many objects, the oldest ones, and gives back `most` of those that nobody has used since they were last
    /// looked at. Returns how many that were.
    pub(crate) fn release_unused(&self, looks: usize, most: usize) -> usize {
        let mut state = self.state.lock();
        let mut released = 0;
        for _ in 0..looks.min(state.kept.len()) {
            if released == most {
                break;
            }
            let Some(object) = state.kept.next_oldest() else {
                break;
            };
            let is_used = matches!(
                object,
                TokenObject::Inode(inode) | TokenObject::Bytes(inode)
                    if self.pages.find_inode(inode).is_some()
            ) || self.are_names_used(object);
            if !is_used && let Some(holder) = &mut state.holder {
                holder.release(object, TokenRange::ALL);
                released += 1;
            }
        }
        self.act(state);
        released
    }

    fn give_back(&self, returns: Vec<TokenReturn>) {
        let session = self.session.id();
        let mut going = self.returns.lock();
        returns
            .into_iter()
            .for_each(|back| going.put(session, back));
        drop(going);
        self.send_returns();
    }

    /// Sends what may leave now.
    fn send_returns(&self) {
        let session = self.session.id();
        loop {
            // Not locked while it is sent: it may be answered at once.
            let Some(back) = self.returns.lock().next(session) else {
                return;
            };
            let sent = Sent {
                tokens: self.me.clone(),
                count: back.len(),
            };
            let request = OwnerRequest::ReturnTokens { session, back };
            self.session.ask_later(request, sent);
        }
    }
}

/// A message with so many returns; answered or given up when it is dropped.
struct Sent {
    tokens: Weak<Tokens>,
    count: usize,
}

impl Drop for Sent {
    fn drop(&mut self) {
        if let Some(tokens) = self.tokens.upgrade() {
            tokens.returns.lock().end(self.count);
            tokens.send_returns();
        }
    }
}

/// What is done without the state's lock.
enum Later {
    Ask(u64, TokenRequest),
    Flush(FlushNumber, TokenObject, Vec<TokenRange>, Option<TokenMode>),
    Return(TokenReturn),
    Lose(TokenObject, Vec<TokenRange>),
}

/// Says what is held to a new owner.
impl crate::owner::Reclaims for Tokens {
    fn begin(&self, session: SessionId, tenure: Tenure) -> Option<Vec<HeldToken>> {
        let mut state = self.state.lock();
        let has_all = state.gives_all_up || self.session.standing().was_given_all();
        if session == self.session.id() && has_all {
            return None;
        }
        let holder = self.holder_of(&mut state, session);
        let held = holder.map_or_else(Vec::new, |holder| holder.begin_tenure(tenure));
        self.act(state);
        let held = held.into_iter();
        let held = held.map(|(object, range, mode)| HeldToken {
            object,
            range,
            mode,
        });
        Some(held.collect())
    }

    fn taken_down(&self, session: SessionId, held: &[HeldToken], numbers: &[Option<GrantNumber>]) {
        let mut state = self.state.lock();
        if let Some(holder) = self.holder_of(&mut state, session) {
            for (held, number) in held.iter().zip(numbers) {
                holder.reclaimed(held.object, held.range, *number);
            }
        }
        self.act(state);
    }

    fn end(&self, session: SessionId) {
        let mut state = self.state.lock();
        if let Some(holder) = self.holder_of(&mut state, session) {
            holder.end_reclaim();
        }
        self.act(state);
    }

    fn born(&self, session: SessionId, inode: InodeId, grants: Option<[GrantNumber; 2]>) {
        self.note_born(session, inode, grants);
    }

    fn refused(&self, inode: InodeId) {
        if let Some(state) = self.pages.find_inode(inode) {
            state.lock().note_lost();
        }
    }

    fn give_up(&self, session: SessionId) -> Duration {
        let state = self.state.lock();
        if session == self.session.id() {
            self.lose_all(state);
        }
        match self.kernels.are_none() {
            true => Duration::ZERO,
            false => BELIEVED_MAX,
        }
    }
}

/// The first step of a claim.
enum Try {
    Begun(UseNumber),
    Waits(Waiting),
    /// The owner hasn't answered anything yet.
    NotYet,
    /// Others want it: the operation is better sent to the owner.
    Refused,
}

/// A claim that waits; given up if it is dropped.
struct Waiting {
    tokens: Arc<Tokens>,
    wait: Option<WaitNumber>,
    turn: Option<oneshot::Receiver<Go>>,
}

impl Waiting {
    /// Waits for its turn. `None` if the session has ended.
    async fn turn(mut self) -> Option<Go> {
        let turn = self.turn.as_mut().expect("it waits once").await.ok();
        // Whoever told it has taken it out.
        if turn.is_some() {
            self.wait = None;
        }
        turn
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(wait) = self.wait.take() else { return };
        let mut state = self.tokens.state.lock();
        state.waits.remove(&wait);
        if let Some(holder) = &mut state.holder {
            holder.give_up(wait);
            // Its turn may have come just now.
            let told = self.turn.as_mut().map(oneshot::Receiver::try_recv);
            if let Some(Ok(Go::Begin(begun))) = told {
                holder.end_use(begun, self.tokens.session.standing().now());
            }
        }
        self.tokens.act(state);
    }
}

impl Uses {
    /// The operation has used what it claimed. False if that was lost meanwhile: it must be done
    /// again.
    pub(crate) fn end(mut self) -> bool {
        self.end_all()
    }

    /// Whether nothing of it was lost; of the inode for which it was claimed.
    pub(crate) fn is_held(&self, inner: &Inner) -> bool {
        self.losses == inner.losses()
    }

    fn end_all(&mut self) -> bool {
        let mut counts = true;
        let mut state = self.tokens.state.lock();
        let now = self.tokens.session.standing().now();
        for begun in std::mem::take(&mut self.uses) {
            // Without a holder another session has begun and nothing is held yet.
            counts &= match &mut state.holder {
                Some(holder) => holder.end_use(begun, now),
                None => false,
            };
        }
        self.tokens.act(state);
        counts
    }
}

impl Drop for Uses {
    fn drop(&mut self) {
        if !self.uses.is_empty() {
            self.end_all();
        }
    }
}

fn inode_of(object: TokenObject) -> InodeId {
    match object {
        TokenObject::Inode(inode) | TokenObject::Bytes(inode) | TokenObject::Directory(inode) => {
            inode
        }
    }
}

fn attributes(inode: InodeId, mode: TokenMode) -> Want {
    Want {
        object: TokenObject::Inode(inode),
        mode,
        range: TokenRange::ALL,
        desired: TokenRange::ALL,
        ship: Ship::Never,
    }
}

fn bytes(inode: InodeId, mode: TokenMode, range: Option<TokenRange>) -> Option<Want> {
    Some(Want {
        object: TokenObject::Bytes(inode),
        mode,
        range: range?,
        desired: TokenRange::ALL,
        ship: Ship::Never,
    })
}
