//! The client's session: the one place through which all requests to the owner pass.
//!
//! It also knows what every part asks before it waits: the time, how long a wait may last, and
//! whether the client is closed.
//!
//! *The session has ended* because the owner didn't hear from the client: the client begins another one
//! (`tokens/renewal.rs`). What programs ask meanwhile waits for that, and is asked again if it certainly
//! wasn't done. What belongs to the old session (its segments, what it has published in part) names it
//! for ever, and is refused.

mod doors;
mod losses;
mod low_water;
mod segments;
mod standing;

pub(crate) use crate::owner::unexpected as unexpected_answer;
pub use losses::Losses;
pub(crate) use segments::Mark;
pub(crate) use standing::Standing;

use crate::known_names::KnownNames;
use crate::owner::{Late, Owner};
use crate::patience;
use doors::Doors;
use futures::future::{Either, select};
use model::lock::HeldLock;
use model::operation::{Stamp, Turn};
use model::owner::{LockCall, OwnerReply, OwnerRequest, Usage};
use model::{
    Attributes, Error, ErrorKind, InodeId, Operation, Reply, Result, SegmentPlace, SessionId,
    Timestamp,
};
use parking_lot::RwLock;
use pool::Pool;
use segments::Segments;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tracing::warn;
use world::call::Asked;
use world::{
    Deadline, Instant, Part, WAITERS_MAX, Wait, Waiter, Waiters, Work, World, joined_waits,
    longest_waits,
};

/// The cause by which waits for another session are listed.
pub(crate) const SESSION_WAIT: &str =
    "a new session, because the owner didn't hear from this client in time";
/// The cause by which waits are listed for what became of a change that was given up.
const UNDECIDED_WAIT: &str = "a change of the same file that was given up";

/// A session with the owner, and after its end the next one.
pub(crate) struct Session {
    world: World,
    owner: Owner,
    standing: Arc<Standing>,
    /// Is asked only whether nodes are away, or know a newer map.
    pool: Arc<Pool>,
    patience: Duration,
    waiters: Waiters,
    segments: RwLock<Arc<Segments>>,
    doors: Doors,
    losses: losses::Counters,
    /// Changes that were answered are lost, and no program that syncs has heard of it.
    has_lost_answers: AtomicBool,
    /// Signals that another session has begun, or that the client is closed.
    begun: Notify,
    closed: AtomicBool,
}

impl Session {
    /// The session `id`, which is open. A wait may last for `patience`.
    pub(crate) fn new(
        world: World,
        owner: Owner,
        id: SessionId,
        pool: Arc<Pool>,
        patience: Duration,
    ) -> Arc<Self> {
        let doors = Doors::default();
        doors.follow(id);
        Arc::new(Self {
            standing: Standing::new(world.clone(), id, owner.usable_until().is_some()),
            waiters: Waiters::new(&world),
            world,
            owner,
            pool,
            patience,
            segments: RwLock::new(Segments::new(id)),
            doors,
            losses: losses::Counters::default(),
            has_lost_answers: AtomicBool::new(false),
            begun: Notify::new(),
            closed: AtomicBool::new(false),
        })
    }

    /// The session now; one that has ended until another one has begun.
    pub(crate) fn id(&self) -> SessionId {
        self.standing.session()
    }

    /// What it may use.
    pub(crate) fn standing(&self) -> &Arc<Standing> {
        &self.standing
    }

    /// The owner, which asks what the session holds when another one follows it.
    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// What is known of names; `None` if it is a function call to ask for them: the client has everything.
    pub(crate) fn names(&self) -> Option<&Arc<KnownNames>> {
        self.known_names().filter(|_| !self.standing.has_all())
    }

    /// As [`Session::names`], also while the client has everything; `None` on a single node.
    pub(crate) fn known_names(&self) -> Option<&Arc<KnownNames>> {
        self.owner.names()
    }

    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    pub(crate) fn now(&self) -> Instant {
        self.world.now()
    }

    pub(crate) fn wall(&self) -> Timestamp {
        self.world.wall()
    }

    /// Runs `work` in a task of its own, for which nobody waits.
    pub(crate) fn spawn<F>(&self, name: &'static str, work: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.world.spawn(name, work).detach();
    }

    /// As [`Session::spawn`], for work that others may wait for: it is listed while it waits.
    pub(crate) fn spawn_work<F>(&self, name: &'static str, work: Work, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let world = self.world.clone();
        self.spawn(name, async move { world.at_work(name, work, future).await });
    }

    // What is said to the owner.

    /// Waits until it is known what became of changes of an inode for which nobody waits any more: they could run after one
    /// that is asked for now.
    pub(crate) async fn until_decided(&self, inode: InodeId) -> Result<()> {
        let changes = &[Late::Bytes, Late::Attributes];
        match self.owner.undecided(inode, changes) {
            // Boxed because it is rare: otherwise every change's future would contain it.
            Some(decided) => Box::pin(self.wait_for_change(UNDECIDED_WAIT, inode, decided)).await,
            None => Ok(()),
        }
    }

    fn stamp_of(&self, session: SessionId) -> Stamp {
        Stamp::own(self.world.wall(), session)
    }

    /// Applies an operation of a program, unless the client is closed.
    pub(crate) fn execute(
        &self,
        operation: Operation,
    ) -> impl Future<Output = Result<Reply>> + Send {
        self.execute_if(operation, || Ok(()))
    }

    /// As `execute`, unless `may` refuses it: asked before, and again if a session ends meanwhile.
    pub(crate) fn execute_if(
        &self,
        operation: Operation,
        may: impl Fn() -> Result<()> + Send,
    ) -> impl Future<Output = Result<Reply>> + Send {
        let mut request = self.request(operation, self.id());
        async move {
            self.check_open()?;
            may()?;
            self.execute_request(&mut request, may).await
        }
    }

    /// As `execute`; also says which session applied it: another one may follow meanwhile.
    pub(crate) fn execute_in(
        &self,
        operation: Operation,
    ) -> impl Future<Output = Result<(Reply, SessionId)>> + Send {
        let mut request = self.request(operation, self.id());
        async move {
            self.check_open()?;
            let reply = self.execute_request(&mut request, || Ok(())).await?;
            let session = request.session().expect("an operation names its session");
            Ok((reply, session))
        }
    }

    /// As `execute`, for data that was written before the client was closed, even after.
    //
    // No `async fn`, nor is `Owner::ask`: each moves the operation and its answer twice more, and a
    // create had cost 3 % more CPU.
    pub(crate) fn execute_late(
        &self,
        operation: Operation,
    ) -> impl Future<Output = Result<Reply>> + Send {
        let mut request = self.request(operation, self.id());
        async move { self.execute_request(&mut request, || Ok(())).await }
    }

    async fn execute_request(
        &self,
        request: &mut OwnerRequest,
        may: impl Fn() -> Result<()> + Send,
    ) -> Result<Reply> {
        loop {
            let answer = match self.owner.ask(request) {
                Asked::Ready(answer) => answer,
                Asked::Waits(rest) => rest.await,
            };
            match answer {
                Ok(OwnerReply::Operation(ranked)) => return Ok(ranked.reply),
                Ok(other) => unexpected_answer(&other),
                // Boxed because it is rare: otherwise every operation's future would contain it.
                Err(error) if error.kind() == ErrorKind::SessionEnded => {
                    Box::pin(self.ask_in_next(request)).await?;
                    may()?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The request, which wasn't done, becomes the next session's.
    async fn ask_in_next(&self, request: &mut OwnerRequest) -> Result<()> {
        if let OwnerRequest::Execute { stamp, .. } = request {
            stamp.session = self.after(stamp.session).await?;
        }
        Ok(())
    }

    /// The request by which a session applies an operation, for callers that need the operation again
    /// if it fails.
    pub(crate) fn request(&self, operation: Operation, session: SessionId) -> OwnerRequest {
        let mut stamp = self.stamp_of(session);
        if operation.is_read() {
            stamp.turn = Turn::Read;
        }
        OwnerRequest::Execute { operation, stamp }
    }

    /// Asks, and waits for the answer, even if the client is closed.
    pub(crate) async fn ask(&self, request: &OwnerRequest) -> Result<OwnerReply> {
        self.owner.ask(request).answer().await
    }

    /// Asks without waiting; nobody hears of an error.
    pub(crate) fn ask_later(&self, request: OwnerRequest, until: impl Send + 'static) {
        self.owner.ask_later(&self.world, request, until);
    }

    /// The attributes after an operation whose answer they are.
    pub(crate) async fn attributes_after(&self, operation: Operation) -> Result<Attributes> {
        self.attributes_after_if(operation, || Ok(())).await
    }

    /// As `attributes_after`, unless `may` refuses it.
    pub(crate) async fn attributes_after_if(
        &self,
        operation: Operation,
        may: impl Fn() -> Result<()> + Send,
    ) -> Result<Attributes> {
        match self.execute_if(operation, may).await? {
            Reply::Attributes { attributes, .. } => Ok(attributes),
            other => unexpected_reply(&other),
        }
    }

    /// An inode's attributes as the owner knows them: without unpublished writes.
    pub(crate) async fn attributes(&self, inode: InodeId) -> Result<Attributes> {
        self.attributes_after(Operation::GetAttributes { inode })
            .await
    }

    /// Makes everything answered so far durable. For a program [`Session::tell_lost_answers`] follows.
    pub(crate) async fn sync(&self) -> Result<()> {
        self.sync_until(self.newest_streamed()).await
    }

    /// What was made here last and the owner has yet to answer, for [`Session::sync_until`].
    pub(crate) fn newest_streamed(&self) -> Option<(SessionId, u64)> {
        self.owner.newest_streamed()
    }

    /// As [`Session::sync`], of what was made here up to the `newest` only: nothing that others have made since.
    pub(crate) async fn sync_until(&self, newest: Option<(SessionId, u64)>) -> Result<()> {
        self.in_any_session(|| self.owner.sync(newest)).await
    }

    /// Tells a program that syncs, and would hear nothing otherwise.
    ///
    /// # Errors
    /// `SessionEnded`, once, if something that was answered before is lost.
    pub(crate) fn tell_lost_answers(&self) -> Result<()> {
        if self.has_lost_answers.swap(false, Ordering::AcqRel) {
            let text = "changes that were answered and not synced are lost";
            return Err(Error::new(ErrorKind::SessionEnded, text));
        }
        if self.owner.take_refused() {
            let text = "the owner has refused to make files that programs were told are made";
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        Ok(())
    }

    /// Adds a use of an inode to a session; it then survives losing its last name.
    pub(crate) async fn hold(&self, session: SessionId, inode: InodeId) -> Result<()> {
        self.owner.hold(session, inode).await
    }

    /// Adds a use of an inode that a session made without a name.
    pub(crate) async fn hold_made(&self, session: SessionId, inode: InodeId) -> Result<()> {
        self.owner.hold_made(session, inode).await
    }

    /// Removes a use of an inode from a session. All uses of one that has ended are gone.
    pub(crate) async fn unhold(&self, session: SessionId, inode: InodeId) -> Result<()> {
        match self.owner.unhold(inode, self.stamp_of(session)).await {
            Err(error) if error.kind() == ErrorKind::SessionEnded => Ok(()),
            done => done,
        }
    }

    /// As [`Session::unhold`], of a file that was made here: nobody waits for it. False if the owner must be told now.
    pub(crate) fn unhold_later(&self, session: SessionId, inode: InodeId) -> bool {
        self.owner.unhold_later(session, inode)
    }

    /// The lock that conflicts with one that would be taken.
    pub(crate) async fn conflict(&self, test: LockCall) -> Result<Option<HeldLock>> {
        self.owner.conflict(test).await
    }

    /// Space and inodes.
    pub(crate) async fn usage(&self) -> Result<Usage> {
        self.in_any_session(|| self.owner.usage()).await
    }

    /// Frees space that removed data holds. False if there was none to free.
    pub(crate) async fn make_room(&self) -> Result<bool> {
        self.in_any_session(|| self.owner.make_room()).await
    }

    /// These segments won't be published: the owner may delete them now.
    /// Those of sessions before are decided by their end.
    pub(crate) fn give_up(self: &Arc<Self>, mut places: Vec<SegmentPlace>) {
        let own = self.id();
        places.retain(|place| place.segment.session == own);
        if places.is_empty() {
            return;
        }
        let session = self.clone();
        let work = async move {
            if let Err(error) = session.owner.give_up(&places).await {
                warn!(%error, "unneeded segments stay until the sweep");
            }
        };
        self.spawn("give up segments", work);
    }

    // The session's segments.

    /// The low-water mark stays below all segments that are begun from now on, until this is dropped.
    pub(crate) fn mark(&self) -> Mark {
        self.segments.read().mark()
    }

    /// Reports a new low-water mark in a separate task, one at a time: a later mark covers those
    /// that couldn't be reported.
    pub(crate) fn report_low_water(self: &Arc<Self>) {
        let segments = self.segments.read().clone();
        let Some(counter) = segments.to_report() else {
            return;
        };
        let session = self.clone();
        let work = async move {
            let report = OwnerRequest::ReportLowWater {
                session: segments.session(),
                counter,
            };
            let answer = session.owner.ask(&report).answer().await;
            segments.reported(counter, answer.is_ok());
        };
        self.spawn("report the low-water mark", work);
    }

    /// The newest segment that was begun.
    pub(crate) fn last_segment(&self) -> u64 {
        self.segments.read().last_counter()
    }

    /// The session has begun segments before, up to this one.
    pub(crate) fn go_on(&self, session: SessionId, last_segment: u64) {
        *self.segments.write() = Segments::after(session, last_segment);
    }

    // The next session.

    /// The doors and locks of programs.
    pub(crate) fn doors(&self) -> &Doors {
        &self.doors
    }

    /// What was lost with sessions.
    pub(crate) fn losses(&self) -> Losses {
        self.losses.read()
    }

    /// Something more was lost.
    pub(crate) fn note_losses(&self, losses: Losses) {
        self.losses.add(losses);
    }

    /// Changes that were answered are lost with the session: the next program that syncs hears of it.
    pub(crate) fn note_lost_answers(&self) {
        self.has_lost_answers.store(true, Ordering::Release);
    }

    /// The session has ended: what programs ask waits for the next one.
    pub(crate) fn note_end(&self) {
        self.standing.end();
    }

    /// The client's session is another one, with segments of its own.
    pub(crate) fn begin_next(&self, session: SessionId) {
        *self.segments.write() = Segments::new(session);
        self.standing.begin(session);
        self.begun.notify_waiters();
    }

    /// The session; if it has ended, the next one, once that has begun.
    pub(crate) async fn current(&self) -> Result<SessionId> {
        match self.standing.is_over() {
            false => Ok(self.id()),
            true => self.after(self.id()).await,
        }
    }

    /// Waits until another session has followed one that has ended.
    pub(crate) async fn after(&self, ended: SessionId) -> Result<SessionId> {
        let part = Part::ForWork(Work::NextSession);
        let _listed = self.waiters.enter_as(part, SESSION_WAIT, None, self.now());
        let next = async {
            loop {
                let begun = self.begun.notified();
                self.check_open()?;
                let id = self.id();
                if id != ended && !self.standing.is_over() {
                    return Ok(id);
                }
                begun.await;
            }
        };
        self.within_patience(SESSION_WAIT, next).await?
    }

    /// Asks for what is the same in each session.
    async fn in_any_session<T, F>(&self, ask: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        loop {
            let id = self.id();
            match ask().await {
                Err(error) if error.kind() == ErrorKind::SessionEnded => {
                    Box::pin(self.after(id)).await?;
                }
                answer => return answer,
            }
        }
    }

    // Waits.

    /// Waits for `future` for at most the configured patience, longer if the node is held up meanwhile (`patience.rs`); the
    /// wait is listed.
    pub(crate) async fn wait<F: Future>(
        &self,
        cause: &'static str,
        inode: Option<InodeId>,
        future: F,
    ) -> Result<F::Output> {
        let _listed = self.list(cause, inode, self.now());
        self.within_patience(cause, future).await
    }

    /// As `wait`, for the end of changes of a file: of one that was given up it is listed what finds out whether it has run.
    pub(crate) fn wait_for_change<F: Future>(
        &self,
        cause: &'static str,
        inode: InodeId,
        future: F,
    ) -> impl Future<Output = Result<F::Output>> {
        self.wait_for_work(cause, inode, Work::Decide(Some(inode)), future)
    }

    /// As `wait_for_change`, for what a kernel would lose: as long as the session lasts and the client isn't closed, and for the
    /// patience after that.
    pub(crate) async fn wait_in_session<F: Future>(
        &self,
        cause: &'static str,
        inode: InodeId,
        future: F,
    ) -> Result<F::Output> {
        let part = Part::ForWork(Work::Decide(Some(inode)));
        let _listed = self.waiters.enter_as(part, cause, Some(inode), self.now());
        let followed = pin!(self.until_followed(self.id()));
        match select(pin!(future), followed).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right(((), rest)) => self.within_patience(cause, rest).await,
        }
    }

    /// Waits until the client goes on in another session than this one, or is closed.
    async fn until_followed(&self, session: SessionId) {
        loop {
            // First: a session that begins then isn't missed.
            let begun = self.begun.notified();
            if self.id() != session || self.check_open().is_err() {
                return;
            }
            begun.await;
        }
    }

    /// As `wait`, for work of this client on an inode that is listed itself.
    pub(crate) async fn wait_for_work<F: Future>(
        &self,
        cause: &'static str,
        inode: InodeId,
        work: Work,
        future: F,
    ) -> Result<F::Output> {
        let part = Part::ForWork(work);
        let _listed = self.waiters.enter_as(part, cause, Some(inode), self.now());
        self.within_patience(cause, future).await
    }

    /// As `wait`, for a wait that is already listed.
    pub(crate) async fn within_patience<F: Future>(
        &self,
        cause: &'static str,
        future: F,
    ) -> Result<F::Output> {
        let deadline = Deadline::after(&self.world, self.patience);
        let prolonged = || self.prolonged(deadline);
        let in_time = patience::bound(&self.world, deadline, prolonged, future).await;
        in_time.map_err(|_| {
            let waited = self.patience.as_secs();
            let text = format!("waited {waited} s for {cause}");
            Error::new(ErrorKind::Unavailable, text)
        })
    }

    /// Lists a wait that began at `since`, until the result is dropped.
    pub(crate) fn list(
        &self,
        cause: &'static str,
        inode: Option<InodeId>,
        since: Instant,
    ) -> Wait<'_> {
        self.waiters.enter(cause, inode, since)
    }

    /// Lists a wait for the owner, until the result is dropped.
    pub(crate) fn list_for_owner(&self, cause: &'static str) -> Wait<'_> {
        let part = self.owner.shard().map_or(Part::Wait, Part::ForOwner);
        self.waiters.enter_as(part, cause, None, self.now())
    }

    /// Lists a wait of one program for another, until the result is dropped.
    pub(crate) fn list_for_program(&self, cause: &'static str, inode: InodeId) -> Wait<'_> {
        self.waiters.enter_for_program(cause, inode, self.now())
    }

    /// All waits, longest first, at most 1,024; and how many more there are.
    pub(crate) fn waits(&self) -> (Vec<Waiter>, usize) {
        let for_owner = self.owner.waits(&self.world);
        let all = joined_waits([self.waiters.list(self.now()), for_owner]);
        longest_waits(all, WAITERS_MAX)
    }

    /// When a wait ends that should end at `deadline`: later if the node was held up meanwhile.
    fn prolonged(&self, deadline: Deadline) -> Deadline {
        let held_up = |since| self.owner.held_up_since(since);
        patience::prolonged(deadline, self.patience, held_up)
    }

    /// Whether something that began at `since` has lasted for as long as a program waits.
    pub(crate) fn has_lost_patience(&self, since: Instant) -> bool {
        let ends = Deadline::at(since + self.patience);
        ends.has_passed(&self.world) && self.prolonged(ends).has_passed(&self.world)
    }

    /// Whether data that couldn't be read or stored since `since`, for the reason `error`, may be
    /// reached soon: nodes are away or know a newer map, or this one is held up. Programs then see a pause, unless it exceeds
    /// the patience.
    pub(crate) fn is_pause(&self, error: &Error, since: Instant) -> bool {
        let is_held_up = || self.owner.held_up_since(since).is_some();
        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown)
            && (self.pool.misses_nodes() || self.pool.is_behind() || is_held_up())
            && !self.has_lost_patience(since)
    }

    // Its end.

    /// The client is about to be closed: from now on no wait lasts longer than the patience.
    pub(crate) fn begin_close(&self) {
        self.owner.begin_close();
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(ErrorKind::ShuttingDown.into());
        }
        Ok(())
    }

    /// Refuses operations from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.begun.notify_waiters();
    }

    /// Ends the session at the owner, with its locks and opens.
    pub(crate) async fn end(&self) -> Result<()> {
        self.owner.close_session(self.id()).await
    }
}

/// Panics: an owner in this process never gives this reply to the operation. What another node gives was looked at before
/// (`owner/calls/understood.rs`).
pub(crate) fn unexpected_reply(reply: &Reply) -> ! {
    panic!("unexpected reply from the owner in this process: {reply:?}")
}
