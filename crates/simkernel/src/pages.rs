//! A kernel before a client that keeps pages of files, as Linux does with FUSE: programs load and store in mappings
//! without a word, and it locks each page that it reads or writes back.

use crate::{connect, travel};
use client::{Client, Expired, KeptPages, Kernel, KernelNumber, OpenFlags, ReadTraces};
use futures::future::BoxFuture;
use model::{InodeId, Result, TokenMode};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::sync::{OwnedMutexGuard, RwLock, Semaphore, SemaphorePermit, oneshot};
use world::World;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// So many requests that no program asks for are sent at the same time: reads of several pages, and write-backs.
const BACKGROUND_MAX: usize = 64;
/// Requests, answers and notices take up to so long.
const WAY: Duration = Duration::from_millis(5);

struct Page {
    /// As many as the file had; a program that goes beyond gets a signal.
    bytes: Vec<u8>,
    is_dirty: bool,
}

/// A page, with its lock.
type Slot = Arc<tokio::sync::Mutex<Option<Page>>>;

/// The kernel of one client's node.
pub struct PageKernel {
    world: World,
    /// The client.
    pub client: Arc<Client>,
    slots: Mutex<BTreeMap<(InodeId, u64), Slot>>,
    /// Opens through which programs may change a mapping, as the door to this kernel knows them.
    changers: Mutex<BTreeMap<InodeId, u32>>,
    /// Calls that go past the pages exclude those that use them: what Linux and `fuse` do there has its own tests.
    past: RwLock<()>,
    background: Semaphore,
    me: Weak<Self>,
    number: OnceLock<KernelNumber>,
    /// Pages that could not be written back because what was stored in them is lost.
    pub lost: AtomicU64,
}

/// A program's open of a file.
pub struct Open {
    inode: InodeId,
    /// Whether it may store in a mapping.
    pub may_change: bool,
}

impl Open {
    /// What is open.
    #[must_use]
    pub fn inode(&self) -> InodeId {
        self.inode
    }
}

impl PageKernel {
    /// One before this client.
    #[must_use]
    pub fn before(client: &Arc<Client>) -> Arc<Self> {
        let kernel = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            background: Semaphore::new(BACKGROUND_MAX),
            number: OnceLock::new(),
            lost: AtomicU64::new(0),
            world: client.world().clone(),
            client: client.clone(),
            slots: Mutex::default(),
            changers: Mutex::default(),
            past: RwLock::new(()),
        });
        let _ = kernel.number.set(connect(client, kernel.clone()));
        kernel
    }

    async fn travel(&self) {
        travel(&self.world, WAY).await;
    }

    /// A place for a request that no program asks for.
    async fn place(&self, is_needed: bool) -> Option<SemaphorePermit<'_>> {
        match is_needed {
            true => self.background.acquire().await.ok(),
            false => None,
        }
    }

    fn slot(&self, inode: InodeId, page: u64) -> Slot {
        let mut slots = self.slots.lock();
        slots.entry((inode, page)).or_default().clone()
    }

    /// open(2) for mapping.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub async fn open(&self, inode: InodeId, may_change: bool) -> Result<Open> {
        let flags = OpenFlags {
            write: may_change,
            ..OpenFlags::default()
        };
        self.travel().await;
        self.client.open(inode, flags).await?;
        let keeps = self.client.asked().is_alone();
        *self.changers.lock().entry(inode).or_default() += u32::from(may_change);
        self.travel().await;
        if !keeps {
            self.drop_pages(inode, 0, u64::MAX).await;
        }
        Ok(Open { inode, may_change })
    }

    /// The last use of what was opened.
    pub async fn close(&self, open: Open) {
        if open.may_change {
            let _counted = self.sync(open.inode).await;
        }
        self.travel().await;
        *self.changers.lock().entry(open.inode).or_default() -= u32::from(open.may_change);
        self.client.release(open.inode).await;
    }

    /// Loads from a page, or stores to it, in a moment in which it is mapped: as many bytes of it as the file has.
    ///
    /// # Errors
    /// As [`Client::read`]; the program gets a signal.
    ///
    /// # Panics
    /// If it stores through what was opened for reading.
    pub async fn touch<T>(
        &self,
        open: &Open,
        page: u64,
        stores: bool,
        touch: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T> {
        assert!(open.may_change || !stores, "it would be a fault");
        let _mapped = self.past.read().await;
        let mut locked = self.slot(open.inode, page).lock_owned().await;
        if locked.is_none() {
            self.fill(open, page, &mut locked).await?;
        }
        let page = locked.as_mut().expect("it has just been read");
        // Also if it stores behind the end of the file, in its last page.
        page.is_dirty |= stores;
        Ok(touch(&mut page.bytes))
    }

    /// Fills pages with a value in a mapping.
    ///
    /// # Panics
    /// If one can't be read.
    pub async fn fill_with(&self, open: &Open, pages: Range<u64>, value: u8) {
        for page in pages {
            let store = |bytes: &mut [u8]| bytes.fill(value);
            let stored = self.touch(open, page, true, store).await;
            stored.expect("it is read");
        }
    }

    /// Reads a page that is locked, and often some that follow.
    async fn fill(
        &self,
        open: &Open,
        first: u64,
        locked: &mut OwnedMutexGuard<Option<Page>>,
    ) -> Result<()> {
        let inode = open.inode;
        let ahead = self.world.random_u64() % 4;
        let mut others = Vec::new();
        for page in first + 1..=first + ahead {
            match self.slot(inode, page).try_lock_owned() {
                Ok(locked) if locked.is_none() => others.push(locked),
                _ => break,
            }
        }
        self.travel().await;
        let may_change = self.changers.lock().get(&inode).is_some_and(|it| *it > 0);
        let mode = match may_change {
            true => TokenMode::Exclusive,
            false => TokenMode::Shared,
        };
        let by = *self.number.get().expect("it is connected");
        let traces = ReadTraces {
            kept: Some(KeptPages { by, mode }),
            ..ReadTraces::default()
        };
        let length = (1 + others.len()) * PAGE;
        let at = first * PAGE as u64;
        let mut read = {
            let _place = self.place(!others.is_empty()).await;
            self.client.read_leaving(inode, at, length, traces).await
        };
        if read.is_err() && !others.is_empty() {
            // As Linux does after reading ahead in vain.
            others.clear();
            self.travel().await;
            read = self.client.read_leaving(inode, at, PAGE, traces).await;
        }
        let bytes = read?.concat();
        self.travel().await;
        // A short read tells the kernel where the file ends.
        let mut pages = (0..=others.len()).map(|number| {
            let [from, to] = [number, number + 1].map(|page| bytes.len().min(page * PAGE));
            Page {
                bytes: bytes[from..to].to_vec(),
                is_dirty: false,
            }
        });
        **locked = pages.next();
        for mut other in others {
            *other = pages.next();
        }
        Ok(())
    }

    /// Writes a page back if it was changed. What can't be written back is lost.
    async fn write_back(&self, inode: InodeId, number: u64, page: &mut Option<Page>) -> Result<()> {
        let Some(page) = page
            .as_mut()
            .filter(|it| it.is_dirty && !it.bytes.is_empty())
        else {
            return Ok(());
        };
        let _place = self.place(true).await;
        self.travel().await;
        let at = number * PAGE as u64;
        page.is_dirty = false;
        let written = self.client.write_back(inode, at, &page.bytes).await;
        self.travel().await;
        let lost = u64::from(written.is_err());
        self.lost.fetch_add(lost, Ordering::Relaxed);
        written
    }

    /// The pages of a file that there are from `from` to `to`, not locked.
    fn slots_of(&self, inode: InodeId, from: u64, to: u64) -> Vec<(u64, Slot)> {
        let first = from / PAGE as u64;
        let behind = to.div_ceil(PAGE as u64);
        let slots = self.slots.lock();
        let found = slots.range((inode, first)..(inode, behind));
        found
            .map(|((_, page), slot)| (*page, slot.clone()))
            .collect()
    }

    /// msync(2), without fsync: writes all changed pages back.
    ///
    /// # Errors
    /// As [`Client::write_back`], after all pages.
    pub async fn sync(&self, inode: InodeId) -> Result<()> {
        let mut synced = Ok(());
        for (page, slot) in self.slots_of(inode, 0, u64::MAX) {
            let mut locked = slot.lock().await;
            synced = synced.and(self.write_back(inode, page, &mut locked).await);
        }
        synced
    }

    /// `invalidate_inode_pages2_range`.
    async fn drop_pages(&self, inode: InodeId, from: u64, to: u64) {
        for (page, slot) in self.slots_of(inode, from, to) {
            let mut locked = slot.lock().await;
            if let Err(error) = self.write_back(inode, page, &mut locked).await {
                // It goes all the same.
                tracing::debug!(%inode, page, %error, "a changed page is lost");
            }
            *locked = None;
        }
    }

    /// Whether there is a page, or somebody has locked it.
    pub fn has(&self, inode: InodeId, page: u64) -> bool {
        let slot = self.slot(inode, page);
        slot.try_lock().map_or(true, |page| page.is_some())
    }

    /// A call that goes past the pages, as a read(2) or write(2) of a file that is opened so.
    pub async fn past_pages<T>(
        &self,
        inode: InodeId,
        from: u64,
        to: u64,
        call: impl Future<Output = T>,
    ) -> T {
        let _nobody_maps = self.past.write().await;
        self.drop_pages(inode, from, to).await;
        self.travel().await;
        let result = call.await;
        self.travel().await;
        result
    }
}

impl Kernel for PageKernel {
    fn expire(&self, what: Expired) -> BoxFuture<'_, ()> {
        // It goes on although nobody waits for it any more.
        let Some(kernel) = self.me.upgrade() else {
            return Box::pin(async {});
        };
        let (tell, told) = oneshot::channel();
        let telling = async move {
            kernel.travel().await;
            if let Expired::Bytes { inode, from, to } = what {
                kernel.drop_pages(inode, from, to).await;
            }
            kernel.travel().await;
            let _ = tell.send(());
        };
        self.world.spawn("drops pages", telling).detach();
        Box::pin(async move { drop(told.await) })
    }
}
