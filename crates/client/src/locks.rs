//! File locks: passes requests to the owner's tables, through a door of this client's session.

use crate::client::Client;
use futures::future::{Either, select};
use model::lock::{HeldLock, LockDoor, LockOwner, LockRequest, LockSpace, LockTaker};
use model::owner::{LockCall, OwnerReply, OwnerRequest};
use model::{ErrorKind, InodeId, LockKind, LockRange, Result};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;

impl Client {
    /// Registers a mount (or other door) of this client; lock requests need one.
    ///
    /// # Errors
    /// If the owner can't be reached.
    pub async fn begin_lock_door(&self) -> Result<LockDoor> {
        let door = LockDoor {
            session: self.session.id(),
            number: self.lock_doors.fetch_add(1, Ordering::Relaxed) + 1,
        };
        self.ask_about_locks(LockCall::BeginDoor(door)).await?;
        Ok(door)
    }

    /// Ends a door: its locks end, its waiting requests are interrupted, later ones are refused.
    pub fn end_lock_door(&self, door: LockDoor) {
        let end = OwnerRequest::Lock(LockCall::EndDoor(door));
        self.session.ask_later(end);
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
        let test = LockCall::Test {
            inode,
            owner,
            range,
            kind,
        };
        self.session.conflict(test).await
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
        self.session.check_open()?;
        let Some(interrupted) = interrupted else {
            return self.ask_about_locks(LockCall::Set(request)).await.map(drop);
        };
        let mut interrupted = pin!(interrupted);
        let mut listed = None;
        loop {
            let wait = self.lock_waits.fetch_add(1, Ordering::Relaxed);
            match self
                .ask_about_locks(LockCall::Queue { wait, request })
                .await?
            {
                OwnerReply::Waits => {}
                _ => return Ok(()),
            }
            let mut queued = Queued {
                client: self,
                wait: Some(wait),
            };
            listed.get_or_insert_with(|| self.session.list_for_program(cause, request.inode));
            let granted = pin!(self.await_lock(wait));
            // Whichever comes first: the owner says whether the request was granted meanwhile.
            let ended = select(granted, interrupted.as_mut()).await;
            queued.wait = None;
            if let Either::Left((Awaited::Forgotten, _)) = ended {
                continue;
            }
            let session = self.session.id();
            let end = LockCall::EndWait { session, wait };
            return self.ask_about_locks(end).await.map(drop);
        }
    }

    /// Until a queued request is granted or its door ends. Has no deadline: it waits for a program.
    async fn await_lock(&self, wait: u64) -> Awaited {
        let session = self.session.id();
        loop {
            match self
                .ask_about_locks(LockCall::Await { session, wait })
                .await
            {
                Ok(OwnerReply::Waits) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable) => {}
                Err(error) if error.kind() == ErrorKind::Stale => return Awaited::Forgotten,
                _ => return Awaited::Over,
            }
        }
    }

    /// A process closed a descriptor (FLUSH): ends its POSIX locks on the inode.
    pub async fn release_process_locks(&self, inode: InodeId, owner: LockOwner) {
        self.end_locks(LockCall::EndProcess { inode, owner }).await;
    }

    /// The last descriptor of an open file is gone (RELEASE): ends the locks taken through it.
    pub async fn release_open_locks(&self, door: LockDoor, open: u64) {
        self.end_locks(LockCall::EndOpen { door, open }).await;
    }

    async fn end_locks(&self, end: LockCall) {
        if let Err(error) = self.ask_about_locks(end).await {
            tracing::warn!(%error, "file locks of a closed file may last until the session ends");
        }
    }

    async fn ask_about_locks(&self, call: LockCall) -> Result<OwnerReply> {
        self.session.ask(&OwnerRequest::Lock(call)).await
    }
}

/// How waiting for a queued request ended.
enum Awaited {
    /// It was granted, or never will be.
    Over,
    /// A new owner knows no waits: it must be queued again.
    Forgotten,
}

/// A queued request; withdrawn on drop.
struct Queued<'a> {
    client: &'a Client,
    wait: Option<u64>,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if let Some(wait) = self.wait.take() {
            // A granted wait is dropped only when its door ends; the lock ends with the door.
            let session = self.client.session.id();
            let end = OwnerRequest::Lock(LockCall::EndWait { session, wait });
            self.client.session.ask_later(end);
        }
    }
}
