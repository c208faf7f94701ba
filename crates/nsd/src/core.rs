//! The inside of an NSD: the state that all its operations share.

use crate::index::Index;
use crate::journal::Ring;
use crate::key::Key;
use crate::ledger::KnownMax;
use crate::queue::Queue;
use crate::record::Stamp;
use crate::state::CoreState;
use crate::superblock::{FLAG_UNCONFIRMED, Layout, Superblock};
use crate::{NsdIdentity, checksum::UNIT};
use model::nsd::{NsdHealth, NsdUsage};
use model::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use world::{Disk, World};

/// Most bytes of blob puts under way, and the same again for log puts; more wait, and only as long as their callers do. Two
/// separate budgets, so that a streaming client doesn't delay log puts, and therefore every fsync.
const UNDER_WAY_MAX: usize = 64 << 20;
/// Most bytes that deletes under way take, each name as many as are needed to find what it has.
const DELETES_UNDER_WAY_MAX: usize = 32 << 20;
pub(crate) const NAME_BYTES: usize = 1024;
/// Most lookups at once that may read the index, each on a thread of its own; more wait. Enough for a disk to read many
/// pages at the same time; a disk that hangs keeps that many threads.
const LOOKUPS_MAX: usize = 16;
/// Units of the smallest blob.
const EXTENT_UNITS_MIN: u64 = 2;
/// Milliseconds for which closing waits for queued records.
const CLOSE_ROUNDS_MAX: usize = 60_000;
/// How long a put waits for other puts.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Changes of which so much is under way at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admitted {
    Blobs,
    Logs,
    Deletes,
}

/// State shared by all operations of an open NSD.
pub(crate) struct Core {
    pub(crate) world: World,
    pub(crate) disk: Disk,
    pub(crate) identity: NsdIdentity,
    pub(crate) layout: Layout,
    pub(crate) ring: Ring,
    pub(crate) stamp: Stamp,
    pub(crate) index: Index,
    /// Never held across a wait, nor while the index is read.
    pub(crate) state: Mutex<CoreState>,
    pub(crate) queue: Mutex<Queue>,
    /// Names that are being put.
    claims: Mutex<BTreeMap<Key, Arc<Notify>>>,
    blobs_under_way: Arc<Semaphore>,
    logs_under_way: Arc<Semaphore>,
    deletes_under_way: Arc<Semaphore>,
    /// Places for lookups that may read the index.
    pub(crate) lookups: Arc<Semaphore>,
    pub(crate) superblock: tokio::sync::Mutex<Superblock>,
    /// Held by the running checkpoint.
    pub(crate) checkpointing: tokio::sync::Mutex<()>,
    pub(crate) checkpoint_planned: AtomicBool,
    /// Held by the running scrub.
    pub(crate) scrubbing: tokio::sync::Mutex<()>,
    /// Notified after each checkpoint, successful or not.
    pub(crate) checkpointed: Notify,
    failed: AtomicBool,
    closed: AtomicBool,
    unconfirmed: AtomicBool,
    damage: AtomicU64,
}

impl Core {
    pub(crate) fn new(
        world: &World,
        disk: Disk,
        superblock: Superblock,
        index: Index,
        state: CoreState,
    ) -> Arc<Self> {
        let layout = superblock.layout;
        let queue = Queue::new(&state.ledger, KnownMax::of(index.entry_bytes_max()));
        Arc::new(Self {
            world: world.clone(),
            disk,
            identity: superblock.identity,
            layout,
            ring: Ring::new(&layout),
            stamp: Stamp {
                region: superblock.region,
                incarnation: superblock.incarnation,
            },
            index,
            state: Mutex::new(state),
            queue: Mutex::new(queue),
            claims: Mutex::new(BTreeMap::new()),
            blobs_under_way: Arc::new(Semaphore::new(UNDER_WAY_MAX / UNIT)),
            logs_under_way: Arc::new(Semaphore::new(UNDER_WAY_MAX / UNIT)),
            deletes_under_way: Arc::new(Semaphore::new(DELETES_UNDER_WAY_MAX / UNIT)),
            lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)),
            unconfirmed: AtomicBool::new(superblock.flags & FLAG_UNCONFIRMED != 0),
            superblock: tokio::sync::Mutex::new(superblock),
            checkpointing: tokio::sync::Mutex::new(()),
            checkpoint_planned: AtomicBool::new(false),
            scrubbing: tokio::sync::Mutex::new(()),
            checkpointed: Notify::new(),
            failed: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            damage: AtomicU64::new(0),
        })
    }

    /// Refuses if the disk has failed or the NSD is closed.
    pub(crate) fn check_serving(&self) -> Result<()> {
        if self.failed.load(Ordering::Relaxed) {
            let text = format!("NSD {}'s disk has failed", self.identity.nsd);
            return Err(Error::new(ErrorKind::Unavailable, text));
        }
        if self.closed.load(Ordering::Relaxed) {
            let text = format!("NSD {} is closed", self.identity.nsd);
            return Err(Error::new(ErrorKind::ShuttingDown, text));
        }
        Ok(())
    }

    /// Stops serving until the region is opened again, because after a failed write or flush the
    /// disk's content is unknown.
    pub(crate) fn fail(&self, attempt: &str, cause: &dyn std::fmt::Display) -> Error {
        if !self.failed.swap(true, Ordering::Relaxed) {
            tracing::error!(nsd = self.identity.nsd.0, attempt, %cause, "NSD failed");
        }
        let text = format!("NSD {} failed while {attempt}: {cause}", self.identity.nsd);
        Error::new(ErrorKind::Unavailable, text)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    pub(crate) fn set_closed(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.unconfirmed.load(Ordering::Relaxed)
    }

    /// Refuses while the seals may be incomplete; `consequence` says what that means.
    pub(crate) fn check_confirmed(&self, consequence: &str) -> Result<()> {
        if !self.is_unconfirmed() {
            return Ok(());
        }
        let text = format!("the index was rebuilt: {consequence} until the epochs are confirmed");
        Err(Error::new(ErrorKind::Unavailable, text))
    }

    pub(crate) fn set_confirmed(&self) {
        self.unconfirmed.store(false, Ordering::Relaxed);
    }

    pub(crate) fn health(&self) -> NsdHealth {
        if self.has_failed() || self.closed.load(Ordering::Relaxed) {
            return NsdHealth::Failed;
        }
        let state = self.state.lock();
        let available = state.space.available_with(state.freed_units());
        if available < EXTENT_UNITS_MIN || self.index_is_full(&state) {
            return NsdHealth::Full;
        }
        NsdHealth::Online
    }

    pub(crate) fn usage(&self) -> NsdUsage {
        let state = self.state.lock();
        // Puts wait for what is free when a checkpoint has ended: nobody is to take the NSD for full because of that.
        let freed = state.freed_units();
        NsdUsage {
            capacity: self.layout.data_units * UNIT as u64,
            used: (state.space.used_units() - freed) * UNIT as u64,
            available: if self.index_is_full(&state) {
                0
            } else {
                state.space.available_with(freed) * UNIT as u64
            },
            blobs: state.ledger.blobs,
            log_entries: state.ledger.log_entries,
            log_bytes: state.ledger.log_bytes,
        }
    }

    /// Whether the index has no room for more entries.
    pub(crate) fn index_is_full(&self, state: &CoreState) -> bool {
        state.ledger.bytes_in_index() > self.index.entry_bytes_max()
    }

    /// A damaged index can't answer at all, which is different from a corrupt blob. The NSD fails,
    /// because only opening the region again rebuilds the index.
    pub(crate) fn index_error(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Corrupt {
            return error;
        }
        self.note_damage(1);
        self.fail("reading its index, which is damaged", &error)
    }

    /// Counts damage found, for operators.
    pub(crate) fn note_damage(&self, count: u64) {
        self.damage.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn damage(&self) -> u64 {
        self.damage.load(Ordering::Relaxed)
    }

    /// The error for a key that isn't found.
    pub(crate) fn absent(&self, key: &Key) -> Error {
        if self.is_unconfirmed() {
            let text = format!(
                "{key} is not in the rebuilt index of NSD {}, but may still exist",
                self.identity.nsd
            );
            return Error::new(ErrorKind::Unavailable, text);
        }
        ErrorKind::NotFound.into()
    }

    /// Offset on the disk of a unit of the data area.
    pub(crate) fn unit_offset(&self, unit: u64) -> u64 {
        self.layout.data_start + unit * UNIT as u64
    }

    /// Waits until changes of so many units may be under way, too. Who waits is the caller itself: who has gone by then, as one
    /// does whose deadline has passed, has changed nothing and keeps no memory here.
    pub(crate) async fn admit(&self, what: Admitted, units: usize) -> Result<OwnedSemaphorePermit> {
        self.check_serving()?;
        let (under_way, most) = match what {
            Admitted::Blobs => (&self.blobs_under_way, UNDER_WAY_MAX),
            Admitted::Logs => (&self.logs_under_way, UNDER_WAY_MAX),
            Admitted::Deletes => (&self.deletes_under_way, DELETES_UNDER_WAY_MAX),
        };
        // No more than there are, or they would never be there.
        let permits = u32::try_from(units.min(most / UNIT)).expect("16,384 at most");
        if let Ok(permit) = under_way.clone().try_acquire_many_owned(permits) {
            return Ok(permit);
        }
        let wait = under_way.clone().acquire_many_owned(permits);
        match self.world.timeout(WAIT_MAX, wait).await {
            Ok(permit) => Ok(permit.expect("the semaphore is never closed")),
            Err(_) => Err(Error::new(
                ErrorKind::Busy,
                format!("NSD {} was busy for 30 s", self.identity.nsd),
            )),
        }
    }

    /// Makes the caller the only one that puts `key`; waits for another caller that is putting it.
    pub(crate) async fn claim(self: &Arc<Self>, key: Key) -> Result<Claim> {
        loop {
            let other = {
                let mut claims = self.claims.lock();
                match claims.get(&key) {
                    None => {
                        claims.insert(key, Arc::new(Notify::new()));
                        return Ok(Claim {
                            core: self.clone(),
                            key,
                        });
                    }
                    Some(other) => other.clone().notified_owned(),
                }
            };
            if self.world.timeout(WAIT_MAX, other).await.is_err() {
                let text = format!("waited 30 s for another put of {key}");
                return Err(Error::new(ErrorKind::Busy, text));
            }
        }
    }

    /// Waits for queued records, then checkpoints.
    pub(crate) async fn close(self: &Arc<Self>) -> Result<()> {
        // Each queued record has a caller or task that writes it, and no new records enter.
        for _ in 0..CLOSE_ROUNDS_MAX {
            if self.queue.lock().is_idle() {
                break;
            }
            self.world.sleep(Duration::from_millis(1)).await;
        }
        self.checkpoint().await
    }
}

/// The exclusive right to put a name, until dropped.
pub(crate) struct Claim {
    core: Arc<Core>,
    key: Key,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(waiting) = self.core.claims.lock().remove(&self.key) {
            waiting.notify_waiters();
        }
    }
}
