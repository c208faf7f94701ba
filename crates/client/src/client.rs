//! The client itself: one method per verb, each passed on to the part that does it.
//!
//! The parts, each using only those before it:
//!
//! 1. `pages`: the bytes and extents of one inode in memory. Pure.
//! 2. `known_names`, `owner`: what is known of names, dropped by this client's changes on their way to
//!    the shard's owner, here or on another node.
//! 3. `session`: all that is said to the owner, all waits, the ids of segments.
//! 4. `inode`: what is known of each inode in use, under the inode's lock.
//! 5. `page_pool`: all inodes, their memory and the disk space for dirty bytes.
//! 6. `write_behind`: freezes dirty bytes, stores and publishes them; fsync.
//! 7. `kernels`, `tokens`: what the session may cache and change, and how it gives that back.
//! 8. `atime`, `privileges`: what reads and writes change besides bytes.
//! 9. `reader`, `writer`, `attributes`: bytes and attributes of inodes.
//! 10. `opens`, `names`, `content`, `locks`: what else programs do with files.
//! 11. `background`: the task that looks what is due.
//!
//! `settings` and `types` are plain data.

mod attributes;
mod files;
mod leaving;
mod locks;
mod names;

pub use leaving::Legacy;

use crate::atime::Accesses;
use crate::attributes::InodeAttributes;
use crate::background::Background;
use crate::content::Content;
use crate::kernels::{Asked, Kernel, KernelNumber};
use crate::locks::Locks;
use crate::names::Names;
use crate::opens::Opens;
use crate::owner::Owner;
use crate::page_pool::PagePool;
use crate::privileges::Rights;
use crate::reader::Reader;
use crate::session::{Losses, Session};
use crate::settings::ClientSettings;
use crate::tokens::Tokens;
use crate::write_behind::WriteBehind;
use crate::writer::Writer;
use model::{Result, SessionId, TokenMode, TokenObject, TokenRange};
use pool::Pool;
use std::sync::{Arc, Weak};
use std::time::Duration;
use world::{Waiter, World};

/// A POSIX file system as a library; one per mounted file system and process. Used as
/// `Arc<Client>`; every method may be called from any thread.
pub struct Client {
    settings: ClientSettings,
    session: Arc<Session>,
    pages: Arc<PagePool>,
    write_behind: Arc<WriteBehind>,
    tokens: Arc<Tokens>,
    accesses: Arc<Accesses>,
    rights: Arc<Rights>,
    reader: Arc<Reader>,
    writer: Arc<Writer>,
    attributes: Arc<InodeAttributes>,
    opens: Arc<Opens>,
    names: Names,
    content: Content,
    locks: Locks,
    background: Arc<Background>,
}

/// The smallest page pool.
const PAGE_POOL_BYTES_MIN: u64 = 16 * 1024 * 1024;

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
        let session = &Session::new(world, owner, session, pool.clone(), settings.patience);
        let standing = session.standing().clone();
        let pages = &PagePool::new(pool.clone(), standing, settings.block_bytes, budget);
        let write_behind =
            &WriteBehind::new(session.clone(), pages.clone(), pool.clone(), &settings);
        let tokens = &Tokens::start(session.clone(), pages.clone(), write_behind.clone());
        let accesses = &Accesses::new(session.clone(), settings.relatime);
        let rights = &Rights::new(session.clone(), pages.clone());
        let reader = Arc::new(Reader::new(
            session.clone(),
            pages.clone(),
            pool.clone(),
            accesses.clone(),
            tokens.clone(),
            settings.read_ahead_bytes_max,
        ));
        let writer = Arc::new(Writer::new(
            session.clone(),
            pages.clone(),
            rights.clone(),
            write_behind.clone(),
            tokens.clone(),
        ));
        let attributes = &InodeAttributes::new(
            session.clone(),
            pages.clone(),
            pool.clone(),
            accesses.clone(),
            rights.clone(),
            write_behind.clone(),
            tokens.clone(),
        );
        let opens = &Opens::new(
            session.clone(),
            pages.clone(),
            rights.clone(),
            attributes.clone(),
        );
        Arc::new(Self {
            names: Names::new(
                session.clone(),
                pages.clone(),
                rights.clone(),
                write_behind.clone(),
                attributes.clone(),
                opens.clone(),
                tokens.clone(),
            ),
            content: Content::new(
                session.clone(),
                pages.clone(),
                pool,
                write_behind.clone(),
                attributes.clone(),
                reader.clone(),
                writer.clone(),
            ),
            locks: Locks::new(session.clone(), pages.clone()),
            background: Background::start(
                session.clone(),
                pages.clone(),
                accesses.clone(),
                write_behind.clone(),
            ),
            settings,
            session: session.clone(),
            pages: pages.clone(),
            write_behind: write_behind.clone(),
            tokens: tokens.clone(),
            accesses: accesses.clone(),
            rights: rights.clone(),
            reader,
            writer,
            attributes: attributes.clone(),
            opens: opens.clone(),
        })
    }

    /// The tokens that may be used now, for those who look from outside whether clients have what
    /// conflicts.
    #[must_use]
    pub fn usable(&self) -> Vec<(TokenObject, TokenRange, TokenMode)> {
        self.tokens.usable()
    }

    /// One more kernel that keeps answers of this client: it is told when they expire. Until then nothing
    /// may be kept.
    pub fn add_kernel(&self, kernel: Weak<dyn Kernel>) -> KernelNumber {
        self.tokens.kernels().add(kernel)
    }

    /// A kernel is about to ask something: see [`Client::valid_since`].
    #[must_use]
    pub fn asked(&self) -> Asked {
        self.session.standing().asked()
    }

    /// For how long a kernel may use any answer to what it asked then; zero unless this client has had the
    /// whole file system to itself since.
    #[must_use]
    pub fn valid_since(&self, asked: Asked) -> Duration {
        self.session.standing().valid_since(asked)
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
        self.pages.forget_clean();
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

    /// The client's waits, longest first; at most 1,024.
    #[must_use]
    pub fn waiters(&self) -> Vec<Waiter> {
        self.waits().0
    }

    /// The same, and how many more there are.
    #[must_use]
    pub fn waits(&self) -> (Vec<Waiter>, usize) {
        let (mut waits, left_out) = self.session.waits();
        self.tokens.tie(&mut waits);
        (waits, left_out)
    }

    /// Its session with the owner; one that has ended until another one has begun.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session.id()
    }

    /// What was lost with sessions that the owner ended because it didn't hear from the client in time.
    #[must_use]
    pub fn losses(&self) -> Losses {
        self.session.losses()
    }

    /// Makes everything answered so far durable (`shale fs sync`).
    ///
    /// # Errors
    /// The first failure to publish a file; all other files were published. `SessionEnded`, once, if changes that were
    /// answered before are lost.
    pub async fn sync_all(&self) -> Result<()> {
        self.settle().await?;
        self.session.tell_lost_answers()
    }

    /// As `sync_all`, for no program: that changes are lost is left for one to hear that syncs.
    ///
    /// # Errors
    /// The first failure to publish a file; all other files were published.
    pub async fn settle(&self) -> Result<()> {
        self.accesses.record().await;
        let published = self.write_behind.publish_all().await;
        published.and(self.session.sync().await)
    }

    /// As `sync_all`, then ends the session (locks and opens end) and stops the client's task.
    /// Later calls fail with `ShuttingDown`. From now on no wait of the client lasts longer than its patience, also while the
    /// node is held up.
    ///
    /// # Errors
    /// The first failure; data that couldn't be made durable is lost when the process ends.
    pub async fn close(&self) -> Result<()> {
        self.session.begin_close();
        let result = self.sync_all().await;
        self.session.close();
        self.background.stop().await;
        if result.is_ok() {
            // Writes of removed files end first, so that nothing of the session is written after
            // its end. If that takes too long, the sweep has more to do.
            self.write_behind.drain().await;
        }
        let ended = self.session.end().await;
        self.tokens.stop().await;
        result.and(ended)
    }
}
