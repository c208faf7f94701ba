//! The client itself: its parts, start and end.

use crate::atime::Accesses;
use crate::flusher::Flusher;
use crate::inode::Inodes;
use crate::low_water::LowWater;
use crate::owner::Owner;
use crate::page_pool::PagePool;
use crate::pages::memory::Blocks;
use crate::privileges::Grants;
use crate::settings::ClientSettings;
use model::operation::Stamp;
use model::{Error, ErrorKind, InodeId, Operation, Reply, Result, SessionId};
use pool::{Pool, SegmentSource};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tokio::sync::Semaphore;
use world::{Instant, WAITERS_MAX, Waiter, Waiters, World};

/// A POSIX file system as a library; one per mounted file system and process. Used as
/// `Arc<Client>`; every method may be called from any thread.
pub struct Client {
    pub(crate) me: Weak<Client>,
    pub(crate) world: World,
    pub(crate) owner: Owner,
    pub(crate) pool: Arc<Pool>,
    pub(crate) session: SessionId,
    pub(crate) settings: ClientSettings,
    pub(crate) segments: SegmentSource,
    pub(crate) low_water: LowWater,
    pub(crate) accesses: Accesses,
    pub(crate) inodes: Inodes,
    pub(crate) grants: Grants,
    pub(crate) blocks: Arc<Blocks>,
    pub(crate) pages: PagePool,
    pub(crate) flusher: Flusher,
    pub(crate) waiters: Waiters,
    /// One permit per segment in flight to the NSDs.
    pub(crate) segments_in_flight: Semaphore,
    /// One permit per read-ahead fetch.
    pub(crate) fetches_ahead: Arc<Semaphore>,
    /// Mounts and other doors so far.
    pub(crate) lock_doors: AtomicU32,
    /// Waits for locks so far.
    pub(crate) lock_waits: AtomicU64,
    closed: AtomicBool,
}

/// The smallest page pool.
const PAGE_POOL_BYTES_MIN: u64 = 16 * 1024 * 1024;

/// Most read-ahead fetches running at once.
const FETCHES_AHEAD_MAX: usize = 32;

impl Client {
    /// A client with its own session ([`Owner::open_session`]). Starts its background task; end
    /// it with [`Client::close`].
    #[must_use]
    pub fn new(
        world: World,
        owner: Owner,
        pool: Arc<Pool>,
        session: SessionId,
        settings: ClientSettings,
    ) -> Arc<Self> {
        let budget = settings.page_pool_bytes.max(PAGE_POOL_BYTES_MIN);
        let blocks = Blocks::new(settings.block_bytes, budget);
        let client = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            owner,
            session,
            settings,
            segments: SegmentSource::new(session),
            low_water: LowWater::default(),
            accesses: Accesses::default(),
            inodes: Inodes::new(blocks.clone()),
            grants: Grants::default(),
            pages: PagePool::new(pool.clone(), blocks.clone()),
            blocks,
            pool,
            flusher: Flusher::default(),
            waiters: Waiters::default(),
            segments_in_flight: Semaphore::new(settings.segments_in_flight_max.max(1)),
            fetches_ahead: Arc::new(Semaphore::new(FETCHES_AHEAD_MAX)),
            lock_doors: AtomicU32::new(0),
            lock_waits: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            world,
        });
        Flusher::start(&client);
        client
    }

    /// The world that the client runs in.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The client's settings.
    #[must_use]
    pub fn settings(&self) -> &ClientSettings {
        &self.settings
    }

    /// Drops clean bytes from the page pool: the next reads go to the NSDs. For measurements, and
    /// for a node that needs the memory.
    pub fn forget_clean(&self) {
        self.pages.forget_clean(&self.inodes);
    }

    /// Dirty and cached bytes in the page pool.
    #[must_use]
    pub fn page_pool_bytes(&self) -> (u64, u64) {
        self.pages.bytes()
    }

    /// Memory held by the page pool, and its budget: dirty, in flight, cached and free bytes,
    /// states of inodes, and slices that readers still hold.
    #[must_use]
    pub fn page_pool_memory(&self) -> (u64, u64) {
        self.pages.memory()
    }

    /// Makes everything answered so far durable (`shale fs sync`).
    ///
    /// # Errors
    /// The first failure to publish a file; all other files were published.
    pub async fn sync_all(&self) -> Result<()> {
        self.record_atimes().await;
        let published = self.publish_all().await;
        published.and(self.owner.sync().await)
    }

    /// As `sync_all`, then ends the session (locks and opens end) and stops the client's task.
    /// Later calls fail with `ShuttingDown`.
    ///
    /// # Errors
    /// The first failure; data that couldn't be made durable is lost when the process ends.
    pub async fn close(&self) -> Result<()> {
        let result = self.sync_all().await;
        self.closed.store(true, Ordering::Release);
        self.flusher.stop().await;
        if result.is_ok() {
            // Writes of removed files end first, so that nothing of the session is written after
            // its end. If that takes too long, the sweep has more to do.
            let all = self.settings.segments_in_flight_max.max(1);
            let all = u32::try_from(all).unwrap_or(u32::MAX);
            let ended = self.segments_in_flight.acquire_many(all);
            let _ended = self.wait("segments of removed files", None, ended).await;
        }
        result.and(self.owner.close_session(self.session).await)
    }

    /// The client's waits, longest first; at most 1,024.
    #[must_use]
    pub fn waiters(&self) -> Vec<Waiter> {
        let mut waiters = self.waiters.list(self.world.now());
        waiters.extend(self.owner.waiters(&self.world));
        waiters.sort_by_key(|waiter| std::cmp::Reverse(waiter.since));
        waiters.truncate(WAITERS_MAX);
        waiters
    }

    pub(crate) fn stamp(&self) -> Stamp {
        Stamp::own(self.world.wall(), self.session)
    }

    pub(crate) async fn execute(&self, operation: Operation) -> Result<Reply> {
        self.check_open()?;
        self.owner.execute(operation, self.stamp()).await
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(ErrorKind::ShuttingDown.into());
        }
        Ok(())
    }

    /// Waits for `future` for at most the configured patience; the wait is listed in `waiters`.
    pub(crate) async fn wait<F: Future>(
        &self,
        cause: &'static str,
        inode: Option<InodeId>,
        future: F,
    ) -> Result<F::Output> {
        let _listed = self.waiters.enter(cause, inode, self.world.now());
        self.within_patience(cause, future).await
    }

    /// As [`Client::wait`], for a wait that is already listed.
    pub(crate) async fn within_patience<F: Future>(
        &self,
        cause: &'static str,
        future: F,
    ) -> Result<F::Output> {
        self.world
            .timeout(self.settings.patience, future)
            .await
            .map_err(|_| {
                let waited = self.settings.patience.as_secs();
                Error::new(
                    ErrorKind::Unavailable,
                    format!("waited {waited} s for {cause}"),
                )
            })
    }

    /// Whether data that couldn't be read or stored since `since`, for the reason `error`, may be
    /// reached soon: nodes are away. Programs then see a pause, unless it exceeds the patience.
    pub(crate) fn is_pause(&self, error: &Error, since: Instant) -> bool {
        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown)
            && self.pool.misses_nodes()
            && self.world.now() - since < self.settings.patience
    }

    pub(crate) fn shared(&self) -> Arc<Self> {
        self.me.upgrade().expect("a client is used through its Arc")
    }
}

/// Panics: the owner never sends this reply to the operation.
pub(crate) fn unexpected_reply(reply: &Reply) -> ! {
    panic!("unexpected reply from the owner: {reply:?}")
}
