//! File locks: passes requests to the owner's tables, through a door of this client's session.

use crate::client::Client;
use model::lock::{HeldLock, LockDoor, LockOwner, LockRequest, LockSpace, LockTaker};
use model::{InodeId, LockKind, LockRange, Result};
use std::future::Future;

impl Client {
    /// Registers a mount (or other door) of this client; lock requests need one.
    #[must_use]
    pub fn begin_lock_door(&self) -> LockDoor {
        self.metanode.locks().begin_door(self.session)
    }

    /// Ends a door: its locks end, its waiting requests are interrupted, later ones are refused.
    pub fn end_lock_door(&self, door: LockDoor) {
        self.metanode.locks().end_door(door);
    }

    /// F_GETLK: the first lock that conflicts with one of this kind.
    ///
    /// # Errors
    /// None today; an owner on another node may be unavailable.
    pub async fn get_lock(
        &self,
        inode: InodeId,
        owner: LockOwner,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<HeldLock>> {
        let locks = self.metanode.locks();
        Ok(locks.conflict(inode, owner, range, kind))
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
        let request = LockRequest {
            space: LockSpace::Range,
            inode,
            owner,
            kind,
            range,
            taker,
        };
        self.request_lock(request, "a file lock", interrupted).await
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
        let request = LockRequest {
            space: LockSpace::Whole,
            inode,
            owner,
            kind,
            range: LockRange::ALL,
            taker,
        };
        self.request_lock(request, "a flock", interrupted).await
    }

    async fn request_lock<I: Future<Output = ()>>(
        &self,
        request: LockRequest,
        cause: &'static str,
        interrupted: Option<I>,
    ) -> Result<()> {
        self.check_open()?;
        let locks = self.metanode.locks();
        let Some(interrupted) = interrupted else {
            return locks.try_set(request);
        };
        let now = self.world.now();
        let waiters = &self.waiters;
        let _listed = waiters.enter_for_program(cause, request.inode, now);
        locks.set(request, interrupted).await
    }

    /// A process closed a descriptor (FLUSH): ends its POSIX locks on the inode.
    pub fn release_process_locks(&self, inode: InodeId, owner: LockOwner) {
        self.metanode.locks().release_process(inode, owner);
    }

    /// The last descriptor of an open file is gone (RELEASE): ends the locks taken through it.
    pub fn release_open_locks(&self, door: LockDoor, open: u64) {
        self.metanode.locks().release_open(door, open);
    }
}
