//! The client itself: its parts, start and end.

use crate::atime::Accesses;
use crate::flusher::Flusher;
use crate::inode::Inodes;
use crate::owner::Owner;
use crate::page_pool::PagePool;
use crate::pages::memory::Blocks;
use crate::privileges::Grants;
use crate::session::Session;
use crate::settings::ClientSettings;
use model::{Result, SessionId};
use pool::Pool;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Weak};
use tokio::sync::Semaphore;
use world::{Waiter, World};

/// A POSIX file system as a library; one per mounted file system and process. Used as
/// `Arc<Client>`; every method may be called from any thread.
pub struct Client {
    pub(crate) me: Weak<Client>,
    pub(crate) session: Arc<Session>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) settings: ClientSettings,
    pub(crate) accesses: Accesses,
    pub(crate) inodes: Inodes,
    pub(crate) grants: Grants,
    pub(crate) blocks: Arc<Blocks>,
    pub(crate) pages: PagePool,
    pub(crate) flusher: Flusher,
    /// One permit per segment in flight to the NSDs.
    pub(crate) segments_in_flight: Semaphore,
    /// One permit per read-ahead fetch.
    pub(crate) fetches_ahead: Arc<Semaphore>,
    /// Mounts and other doors so far.
    pub(crate) lock_doors: AtomicU32,
    /// Waits for locks so far.
    pub(crate) lock_waits: AtomicU64,
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
            session: Session::new(world, owner, session, pool.clone(), settings.patience),
            settings,
            accesses: Accesses::default(),
            inodes: Inodes::new(blocks.clone()),
            grants: Grants::default(),
            pages: PagePool::new(pool.clone(), blocks.clone()),
            blocks,
            pool,
            flusher: Flusher::default(),
            segments_in_flight: Semaphore::new(settings.segments_in_flight_max.max(1)),
            fetches_ahead: Arc::new(Semaphore::new(FETCHES_AHEAD_MAX)),
            lock_doors: AtomicU32::new(0),
            lock_waits: AtomicU64::new(0),
        });
        Flusher::start(&client);
        client
    }

    /// The world that the client runs in.
    #[must_use]
    pub fn world(&self) -> &World {
        self.session.world()
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
        published.and(self.session.sync().await)
    }

    /// As `sync_all`, then ends the session (locks and opens end) and stops the client's task.
    /// Later calls fail with `ShuttingDown`.
    ///
    /// # Errors
    /// The first failure; data that couldn't be made durable is lost when the process ends.
    pub async fn close(&self) -> Result<()> {
        let result = self.sync_all().await;
        self.session.close();
        self.flusher.stop().await;
        if result.is_ok() {
            // Writes of removed files end first, so that nothing of the session is written after
            // its end. If that takes too long, the sweep has more to do.
            let all = self.settings.segments_in_flight_max.max(1);
            let all = u32::try_from(all).unwrap_or(u32::MAX);
            let ended = self.segments_in_flight.acquire_many(all);
            let _ended = self
                .session
                .wait("segments of removed files", None, ended)
                .await;
        }
        result.and(self.session.end().await)
    }

    /// The client's waits, longest first; at most 1,024.
    #[must_use]
    pub fn waiters(&self) -> Vec<Waiter> {
        self.session.waiters()
    }

    pub(crate) fn shared(&self) -> Arc<Self> {
        self.me.upgrade().expect("a client is used through its Arc")
    }
}
