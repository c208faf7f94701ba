//! File locks: passed to the owner's tables, through a door of this client's session.

use crate::client::Client;
use metanode::locks::{HeldLock, LockDoor, LockOwner, LockRequest, LockSpace, LockTaker};
use model::{InodeId, LockKind, LockRange, Result};
use std::future::Future;

impl Client {
    /// A mount (or other door) of this client begins: locks are asked for through one.
    #[must_use]
    pub fn begin_lock_door(&self) -> LockDoor {
        self.metanode.locks().begin_door(self.session)
    }

    /// The door has ended: its locks go, its waiting requests are interrupted, later ones are
    /// refused.
    pub fn end_lock_door(&self, door: LockDoor) {
        self.metanode.locks().end_door(door);
    }

    /// F_GETLK: the first lock that is in the way of one of this kind.
    ///
    /// # Errors
    /// None today; an owner on another node may be away.
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

    /// F_SETLK, and F_SETLKW until `interrupted` ends; an interrupted request changes nothing.
    /// `kind` None unlocks.
    /// A wait for another program has no deadline and shows in `waiters`.
    ///
    /// # Errors
    /// `WouldBlock` without `interrupted`, else `WouldDeadlock`, `Interrupted`; `TooManyLocks`.
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

    /// flock(2): whole-file locks, a space of their own beside POSIX locks. With `interrupted` it
    /// waits.
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

    /// A process closed a descriptor (FLUSH): its POSIX locks on the inode go.
    pub fn release_process_locks(&self, inode: InodeId, owner: LockOwner) {
        self.metanode.locks().release_process(inode, owner);
    }

    /// The last descriptor of an open file is gone (RELEASE): what was taken through it goes.
    pub fn release_open_locks(&self, door: LockDoor, open: u64) {
        self.metanode.locks().release_open(door, open);
    }

    /// File locks of the file system that are held, and requests that wait for some.
    #[must_use]
    pub fn lock_counts(&self) -> (usize, usize) {
        self.metanode.locks().counts()
    }
}
