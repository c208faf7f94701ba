//! File locks: passes requests to the owner's tables, through a door of this client's session.
//!
//! Doors outlast sessions: each session begins with all of them. Locks don't: programs that had some on a
//! file get errors from it until all have closed it.

mod ending;
mod turns;

use crate::owner::Book;
use crate::page_pool::PagePool;
use crate::session::Session;
use ending::Ending;
use futures::future::{Either, select};
use model::lock::{HeldLock, LockDoor, LockOwner, LockRequest, LockSpace, LockTaker};
use model::owner::{LockCall, OwnerReply, OwnerRequest};
use model::{ErrorKind, InodeId, LockKind, LockRange, Result, SessionId};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The locks of programs, as the owner's tables have them.
pub(crate) struct Locks {
    session: Arc<Session>,
    pages: Arc<PagePool>,
    ending: Arc<Ending>,
    /// Mounts and other doors so far.
    doors: AtomicU32,
    /// Waits for locks so far.
    waits: AtomicU64,
}

impl Locks {
    pub(crate) fn new(session: Arc<Session>, pages: Arc<PagePool>) -> Self {
        Self {
            ending: Ending::new(session.clone()),
            session,
            pages,
            doors: AtomicU32::new(0),
            waits: AtomicU64::new(0),
        }
    }

    /// Registers a mount (or other door) of this client; lock requests need one.
    pub(crate) async fn begin_door(&self) -> Result<LockDoor> {
        let number = self.doors.fetch_add(1, Ordering::Relaxed) + 1;
        // Before it is asked for: a session that begins meanwhile begins with it.
        self.session.doors().begin(number);
        let begun = self.begin_numbered(number).await;
        if begun.is_err() {
            self.session.doors().end(number);
        }
        begun
    }

    /// The session has these doors and locks already.
    pub(crate) fn go_on(&self, book: Book) {
        let last = self.session.doors().go_on(book);
        self.doors.store(last, Ordering::Relaxed);
    }

    async fn begin_numbered(&self, number: u32) -> Result<LockDoor> {
        loop {
            let session = self.session.current().await?;
            let door = LockDoor { session, number };
            match self.ask(LockCall::BeginDoor(door)).await {
                Ok(_) => return Ok(door),
                Err(error) if error.kind() == ErrorKind::SessionEnded => {
                    self.session.after(session).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends a door: its locks end, its waiting requests are interrupted, later ones are refused.
    pub(crate) fn end_door(&self, door: LockDoor) {
        self.session.doors().end(door.number);
        let door = door_in(door, self.session.id());
        self.ending.end_soon(LockCall::EndDoor(door));
    }

    /// F_GETLK: the first lock that conflicts with one of this kind.
    pub(crate) async fn get(
        &self,
        inode: InodeId,
        owner: LockOwner,
        range: LockRange,
        kind: LockKind,
    ) -> Result<Option<HeldLock>> {
        loop {
            let session = self.session.current().await?;
            self.pages.check_lost(inode)?;
            self.ending.until_told(inode).await?;
            let test = LockCall::Test {
                inode,
                owner: owner_in(owner, session),
                range,
                kind,
            };
            match self.session.conflict(test).await {
                Err(error) if error.kind() == ErrorKind::SessionEnded => {
                    self.session.after(session).await?;
                }
                answer => return answer,
            }
        }
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
        let mut interrupted = interrupted.map(|interrupted| Box::pin(interrupted));
        let mut listed = None;
        loop {
            let session = self.session.current().await?;
            self.pages.check_lost(request.inode)?;
            self.ending.until_told(request.inode).await?;
            let request = LockRequest {
                owner: owner_in(request.owner, session),
                ..request
            };
            let done = match &mut interrupted {
                None => self.ask(LockCall::Set(request)).await.map(|_| Done::Yes),
                Some(interrupted) => {
                    let list = || self.session.list_for_program(cause, request.inode);
                    self.queue(request, interrupted, || {
                        listed.get_or_insert_with(list);
                    })
                    .await
                }
            };
            match done {
                Ok(Done::Yes) => return Ok(()),
                Ok(Done::Forgotten) => {}
                Err(error) if error.kind() == ErrorKind::SessionEnded => {
                    self.session.after(session).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Queues a request once, and waits for its turn.
    async fn queue<I: Future<Output = ()> + Unpin>(
        &self,
        request: LockRequest,
        interrupted: &mut I,
        list: impl FnOnce(),
    ) -> Result<Done> {
        let session = request.owner.door.session;
        let wait = self.waits.fetch_add(1, Ordering::Relaxed);
        match self.ask(LockCall::Queue { wait, request }).await? {
            OwnerReply::Waits => {}
            _ => return Ok(Done::Yes),
        }
        let mut queued = Queued {
            session: &self.session,
            asker: session,
            wait: Some(wait),
        };
        list();
        // Whichever comes first: the owner says whether the request was granted meanwhile. Waiting ends here: it may be
        // what says to a new owner what is held, and all that follows would wait for that.
        let awaited = {
            let granted = pin!(self.granted(session, wait));
            let ended = select(granted, interrupted).await;
            match ended {
                Either::Left((awaited, _)) => Some(awaited),
                Either::Right(_) => None,
            }
        };
        queued.wait = None;
        if matches!(awaited, Some(Awaited::Forgotten)) {
            return Ok(Done::Forgotten);
        }
        match self.ending.withdraw(wait, &request).await {
            // Nobody has interrupted it: the owner that had granted it has ended, and the next one knows no waits. Or another
            // thread of the program has ended the lock since.
            Err(error)
                if error.kind() == ErrorKind::Interrupted
                    && matches!(awaited, Some(Awaited::Granted)) =>
            {
                Ok(Done::Forgotten)
            }
            ended => ended.map(|_| Done::Yes),
        }
    }

    /// Until a queued request is granted or its door ends, or nobody wants it any more. Has no deadline: it waits for a program.
    async fn granted(&self, session: SessionId, wait: u64) -> Awaited {
        loop {
            match self.ask(LockCall::Await { session, wait }).await {
                Ok(OwnerReply::Waits) => {}
                Ok(_) => return Awaited::Granted,
                Err(error)
                    if matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable) =>
                {
                    // Asked again, it would be refused at once, as often as it is asked.
                    let is_wanted = !self.session.world().is_given_up();
                    if !is_wanted || self.session.check_open().is_err() {
                        return Awaited::Over;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Stale => return Awaited::Forgotten,
                _ => return Awaited::Over,
            }
        }
    }

    /// A process closed a descriptor (FLUSH): ends its POSIX locks on the inode.
    pub(crate) async fn release_process(&self, inode: InodeId, owner: LockOwner) {
        let owner = owner_in(owner, self.session.id());
        let end = LockCall::EndProcess { inode, owner };
        self.ending.end(end).await;
    }

    /// The last descriptor of an open file is gone (RELEASE): ends the locks taken through it.
    pub(crate) async fn release_open(&self, door: LockDoor, open: u64) {
        let door = door_in(door, self.session.id());
        let end = LockCall::EndOpen { door, open };
        self.ending.end(end).await;
    }

    async fn ask(&self, call: LockCall) -> Result<OwnerReply> {
        self.ending.ask(call).await
    }
}

/// The door as one of this session.
fn door_in(door: LockDoor, session: SessionId) -> LockDoor {
    LockDoor { session, ..door }
}

fn owner_in(owner: LockOwner, session: SessionId) -> LockOwner {
    LockOwner {
        door: door_in(owner.door, session),
        ..owner
    }
}

/// How a request for a lock ended that wasn't refused.
enum Done {
    /// It was granted.
    Yes,
    /// It must be queued again.
    Forgotten,
}

/// How waiting for a queued request ended.
enum Awaited {
    /// It was granted.
    Granted,
    /// It never will be, as far as is known.
    Over,
    /// A new owner knows no waits: it must be queued again.
    Forgotten,
}

/// A queued request; withdrawn on drop.
struct Queued<'a> {
    session: &'a Session,
    asker: SessionId,
    wait: Option<u64>,
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if let Some(wait) = self.wait.take() {
            // A granted wait is dropped only when its door ends; the lock ends with the door.
            let session = self.asker;
            let end = OwnerRequest::Lock(LockCall::EndWait { session, wait });
            self.session.ask_later(end, ());
        }
    }
}
