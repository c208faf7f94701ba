//! The client's session: the one place through which all requests to the owner pass.
//!
//! It also knows what every part asks before it waits: the time, how long a wait may last, and
//! whether the client is closed. And it counts the session's segments: which ids come next, and up to
//! which all are published or given up.

mod low_water;
mod standing;

pub(crate) use crate::owner::unexpected as unexpected_answer;
pub(crate) use low_water::Mark;
pub(crate) use standing::Standing;

use crate::owner::Owner;
use low_water::LowWater;
use model::lock::HeldLock;
use model::operation::{Stamp, Turn};
use model::owner::{LockCall, OwnerReply, OwnerRequest, Usage};
use model::{
    Attributes, Error, ErrorKind, InodeId, Operation, Reply, Result, SegmentPlace, SessionId,
    Timestamp,
};
use pool::{Pool, SegmentSource};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tracing::warn;
use world::call::Asked;
use world::{Instant, WAITERS_MAX, Wait, Waiter, Waiters, World};

/// A session with the owner.
pub(crate) struct Session {
    world: World,
    owner: Owner,
    id: SessionId,
    standing: Arc<Standing>,
    /// Is asked only whether nodes are away.
    pool: Arc<Pool>,
    patience: Duration,
    waiters: Waiters,
    segments: SegmentSource,
    low_water: LowWater,
    /// A task reports the low-water mark, and the last mark reported.
    reporting: AtomicBool,
    reported: AtomicU64,
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
        Arc::new(Self {
            standing: Standing::new(world.clone()),
            world,
            owner,
            id,
            pool,
            patience,
            waiters: Waiters::default(),
            segments: SegmentSource::new(id),
            low_water: LowWater::default(),
            reporting: AtomicBool::new(false),
            reported: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    /// What it may use.
    pub(crate) fn standing(&self) -> &Arc<Standing> {
        &self.standing
    }

    /// The owner, which asks what the session holds when another one follows it.
    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
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

    // What is said to the owner.

    fn stamp(&self) -> Stamp {
        Stamp::own(self.world.wall(), self.id)
    }

    /// Applies an operation of a program, unless the client is closed.
    pub(crate) fn execute(
        &self,
        operation: Operation,
    ) -> impl Future<Output = Result<Reply>> + Send {
        let executed = self.execute_late(operation);
        async move {
            self.check_open()?;
            executed.await
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
        let request = self.request(operation);
        async move {
            let answer = match self.owner.ask(&request) {
                Asked::Ready(answer) => answer,
                Asked::Waits(rest) => rest.await,
            };
            match answer? {
                OwnerReply::Operation(ranked) => Ok(ranked.reply),
                other => unexpected_answer(&other),
            }
        }
    }

    /// The request that applies an operation, for callers that need the operation again if it fails.
    pub(crate) fn request(&self, operation: Operation) -> OwnerRequest {
        let mut stamp = self.stamp();
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
    pub(crate) fn ask_later(&self, request: OwnerRequest) {
        self.owner.ask_later(&self.world, request);
    }

    /// The attributes after an operation whose answer they are.
    pub(crate) async fn attributes_after(&self, operation: Operation) -> Result<Attributes> {
        match self.execute(operation).await? {
            Reply::Attributes { attributes, .. } => Ok(attributes),
            other => unexpected_reply(&other),
        }
    }

    /// An inode's attributes as the owner knows them: without unpublished writes.
    pub(crate) async fn attributes(&self, inode: InodeId) -> Result<Attributes> {
        self.attributes_after(Operation::GetAttributes { inode })
            .await
    }

    /// Makes everything answered so far durable.
    pub(crate) async fn sync(&self) -> Result<()> {
        self.owner.sync().await
    }

    /// Adds a use of an inode, which then survives losing its last name.
    pub(crate) async fn hold(&self, inode: InodeId) -> Result<()> {
        self.owner.hold(self.id, inode).await
    }

    /// Adds a use of an inode that this session made without a name.
    pub(crate) async fn hold_made(&self, inode: InodeId) -> Result<()> {
        self.owner.hold_made(self.id, inode).await
    }

    /// Removes a use of an inode.
    pub(crate) async fn unhold(&self, inode: InodeId) -> Result<()> {
        self.owner.unhold(inode, self.stamp()).await
    }

    /// The lock that conflicts with one that would be taken.
    pub(crate) async fn conflict(&self, test: LockCall) -> Result<Option<HeldLock>> {
        self.owner.conflict(test).await
    }

    /// Space and inodes.
    pub(crate) async fn usage(&self) -> Result<Usage> {
        self.owner.usage().await
    }

    /// Frees space that removed data holds. False if there was none to free.
    pub(crate) async fn make_room(&self) -> Result<bool> {
        self.owner.make_room().await
    }

    /// These segments won't be published: the owner may delete them now.
    pub(crate) fn give_up(self: &Arc<Self>, places: Vec<SegmentPlace>) {
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

    /// Gives out the ids of segments.
    pub(crate) fn segments(&self) -> &SegmentSource {
        &self.segments
    }

    /// The low-water mark stays below all segments that are begun from now on, until this is dropped.
    pub(crate) fn mark(&self) -> Mark {
        self.low_water.mark()
    }

    /// Reports a new low-water mark in a separate task, one at a time: a later mark covers those
    /// that couldn't be reported.
    pub(crate) fn report_low_water(self: &Arc<Self>) {
        if self.reporting.load(Ordering::Acquire) {
            return;
        }
        let mark = self.low_water.advance(self.segments.last_counter());
        let reported = self.reported.load(Ordering::Relaxed);
        let Some(counter) = mark.filter(|mark| *mark > reported) else {
            return;
        };
        self.reporting.store(true, Ordering::Release);
        let session = self.clone();
        let work = async move {
            let report = OwnerRequest::ReportLowWater {
                session: session.id,
                counter,
            };
            if session.owner.ask(&report).answer().await.is_ok() {
                session.reported.store(counter, Ordering::Relaxed);
            }
            session.reporting.store(false, Ordering::Release);
        };
        self.spawn("report the low-water mark", work);
    }

    // Waits.

    /// Waits for `future` for at most the configured patience; the wait is listed.
    pub(crate) async fn wait<F: Future>(
        &self,
        cause: &'static str,
        inode: Option<InodeId>,
        future: F,
    ) -> Result<F::Output> {
        let _listed = self.list(cause, inode, self.now());
        self.within_patience(cause, future).await
    }

    /// As `wait`, for a wait that is already listed.
    pub(crate) async fn within_patience<F: Future>(
        &self,
        cause: &'static str,
        future: F,
    ) -> Result<F::Output> {
        let in_time = self.world.timeout(self.patience, future).await;
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

    /// Lists a wait of one program for another, until the result is dropped.
    pub(crate) fn list_for_program(&self, cause: &'static str, inode: InodeId) -> Wait<'_> {
        self.waiters.enter_for_program(cause, inode, self.now())
    }

    /// All waits, longest first; at most 1,024.
    pub(crate) fn waiters(&self) -> Vec<Waiter> {
        let mut waiters = self.waiters.list(self.now());
        waiters.extend(self.owner.waiters(&self.world));
        waiters.sort_by_key(|waiter| std::cmp::Reverse(waiter.since));
        waiters.truncate(WAITERS_MAX);
        waiters
    }

    /// Whether something that began at `since` has lasted for as long as a program waits.
    pub(crate) fn has_lost_patience(&self, since: Instant) -> bool {
        self.now() - since >= self.patience
    }

    /// Whether data that couldn't be read or stored since `since`, for the reason `error`, may be
    /// reached soon: nodes are away. Programs then see a pause, unless it exceeds the patience.
    pub(crate) fn is_pause(&self, error: &Error, since: Instant) -> bool {
        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown)
            && self.pool.misses_nodes()
            && !self.has_lost_patience(since)
    }

    // Its end.

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(ErrorKind::ShuttingDown.into());
        }
        Ok(())
    }

    /// Refuses operations from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Ends the session at the owner, with its locks and opens.
    pub(crate) async fn end(&self) -> Result<()> {
        self.owner.close_session(self.id).await
    }
}

/// Panics: the owner never sends this reply to the operation.
pub(crate) fn unexpected_reply(reply: &Reply) -> ! {
    panic!("unexpected reply from the owner: {reply:?}")
}
