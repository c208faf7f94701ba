//! Verbs on file locks, each through a door of the client's session.

use super::Client;
use model::lock::{HeldLock, LockDoor, LockOwner, LockTaker};
use model::{InodeId, LockKind, LockRange, Result};
use std::future::Future;

impl Client {
    /// Registers a mount (or other door) of this client; lock requests need one.
    ///
    /// # Errors
    /// If the owner can't be reached.
    pub async fn begin_lock_door(&self) -> Result<LockDoor> {
        self.locks.begin_door().await
    }

    /// Ends a door: its locks end, its waiting requests are interrupted, later ones are refused.
    pub fn end_lock_door(&self, door: LockDoor) {
        self.locks.end_door(door);
    }

    /// F_GETLK: the first lock that conflicts with one of this kind.
    ///
    /// # Errors
    /// If the owner can't be reached.
    pub async fn get_lock(
        &self,
        inode: InodeId,
        owner: LockOwner,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<HeldLock>> {
        self.locks.get(inode, owner, range, kind).await
    }

    /// F_SETLK, or F_SETLKW until `interrupted` completes; an interrupted request changes nothing.
    /// `kind` None unlocks. A wait for another program has no deadline and is listed in `waiters`.
    ///
    /// # Errors
    /// `WouldBlock` without `interrupted`; with it `WouldDeadlock`, `Interrupted`; `TooManyLocks`.
    pub async fn set_lock<I: Future<Output = ()>>(
        &self,
        inode: InodeId,
        owner: LockOwner,
        range: LockRange,
        kind: Option<LockKind>,
        taker: LockTaker,
        interrupted: Option<I>,
    ) -> Result<()> {
        self.locks
            .set(inode, owner, range, kind, taker, interrupted)
            .await
    }

    /// flock(2): whole-file locks, independent of POSIX locks. Waits if `interrupted` is given.
    ///
    /// # Errors
    /// As `set_lock`, without `WouldDeadlock`.
    pub async fn flock<I: Future<Output = ()>>(
        &self,
        inode: InodeId,
        owner: LockOwner,
        kind: Option<LockKind>,
        taker: LockTaker,
        interrupted: Option<I>,
    ) -> Result<()> {
        self.locks
            .flock(inode, owner, kind, taker, interrupted)
            .await
    }

    /// A process closed a descriptor (FLUSH): ends its POSIX locks on the inode.
    pub async fn release_process_locks(&self, inode: InodeId, owner: LockOwner) {
        self.locks.release_process(inode, owner).await
    }

    /// The last descriptor of an open file is gone (RELEASE): ends the locks taken through it.
    pub async fn release_open_locks(&self, door: LockDoor, open: u64) {
        self.locks.release_open(door, open).await
    }
}
