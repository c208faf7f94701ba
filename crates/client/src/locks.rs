//! File locks: passes requests to the owner's tables, through a door of this client's session.

use crate::session::Session;
use futures::future::{Either, select};
use model::lock::{HeldLock, LockDoor, LockOwner, LockRequest, LockSpace, LockTaker};
use model::owner::{LockCall, OwnerReply, OwnerRequest};
use model::{ErrorKind, InodeId, LockKind, LockRange, Result};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The locks of programs, as the owner's tables have them.
pub(crate) struct Locks {
    session: Arc<Session>,
    /// Mounts and other doors so far.
    doors: AtomicU32,
    /// Waits for locks so far.
    waits: AtomicU64,
}

impl Locks {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        Self {
            session,
            doors: AtomicU32::new(0),
            waits: AtomicU64::new(0),
        }
    }

    /// Registers a mount (or other door) of this client; lock requests need one.
    pub(crate) async fn begin_door(&self) -> Result<LockDoor> {
        let door = LockDoor {
            session: self.session.id(),
            number: self.doors.fetch_add(1, Ordering::Relaxed) + 1,
        };
        self.ask(LockCall::BeginDoor(door)).await?;
        Ok(door)
    }

    /// Ends a door: its locks end, its waiting requests are interrupted, later ones are refused.
    pub(crate) fn end_door(&self, door: LockDoor) {
        let end = OwnerRequest::Lock(LockCall::EndDoor(door));
        self.session.ask_later(end);
    }

    /// F_GETLK: the first lock that conflicts with one of this kind.
    pub(crate) async fn get(
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
    pub(crate) async fn set<I: Future<Output = ()>>(
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
        self.request(request, "a file lock", interrupted).await
    }

    /// flock(2): whole-file locks, independent of POSIX locks. Waits if `interrupted` is given.
    pub(crate) async fn flock<I: Future<Output = ()>>(
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
        self.request(request, "a flock", interrupted).await
    }

    async fn request<I: Future<Output = ()>>(
        &self,
        request: LockRequest,
        cause: &'static str,
        interrupted: Option<I>,
    ) -> Result<()> {
        self.session.check_open()?;
        let Some(interrupted) = interrupted else {
            return self.ask(LockCall::Set(request)).await.map(drop);
        };
        let mut interrupted = pin!(interrupted);
        let mut listed = None;
        loop {
            let wait = self.waits.fetch_add(1, Ordering::Relaxed);
            match self.ask(LockCall::Queue { wait, request }).await? {
                OwnerReply::Waits => {}
                _ => return Ok(()),
            }
            let mut queued = Queued {
                session: &self.session,
                wait: Some(wait),
            };
            listed.get_or_insert_with(|| self.session.list_for_program(cause, request.inode));
            let granted = pin!(self.granted(wait));
            // Whichever comes first: the owner says whether the request was granted meanwhile.
            let ended = select(granted, interrupted.as_mut()).await;
            queued.wait = None;
            if let Either::Left((Awaited::Forgotten, _)) = ended {
                continue;
            }
            let session = self.session.id();
            let end = LockCall::EndWait { session, wait };
            return self.ask(end).await.map(drop);
        }
    }

    /// Until a queued request is granted or its door ends. Has no deadline: it waits for a program.
    async fn granted(&self, wait: u64) -> Awaited {
        let session = self.session.id();
        loop {
            match self.ask(LockCall::Await { session, wait }).await {
                Ok(OwnerReply::Waits) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable) => {}
                Err(error) if error.kind() == ErrorKind::Stale => return Awaited::Forgotten,
                _ => return Awaited::Over,
            }
        }
    }

    /// A process closed a descriptor (FLUSH): ends its POSIX locks on the inode.
    pub(crate) async fn release_process(&self, inode: InodeId, owner: LockOwner) {
        self.end(LockCall::EndProcess { inode, owner }).await;
    }

    /// The last descriptor of an open file is gone (RELEASE): ends the locks taken through it.
    pub(crate) async fn release_open(&self, door: LockDoor, open: u64) {
        self.end(LockCall::EndOpen { door, open }).await;
    }

    async fn end(&self, end: LockCall) {
        if let Err(error) = self.ask(end).await {
            tracing::warn!(%error, "file locks of a closed file may last until the session ends");
        }
    }

    async fn ask(&self, call: LockCall) -> Result<OwnerReply> {
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
    session: &'a Session,
    wait: Option<u64>,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if let Some(wait) = self.wait.take() {
            // A granted wait is dropped only when its door ends; the lock ends with the door.
            let session = self.session.id();
            let end = OwnerRequest::Lock(LockCall::EndWait { session, wait });
            self.session.ask_later(end);
        }
    }
}
