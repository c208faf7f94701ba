//! Ends of locks: of closed files, of doors, and of requests that wait.
//!
//! *An end of which the owner certainly hasn't heard*, when its program has waited for long enough, is told later, as long as
//! the session lasts: otherwise the owner would keep locks that no program has, this client would name them to each new owner,
//! and others would wait for them. *Who wants a lock meanwhile waits for that*: the kernel gives the name of a process that has
//! ended to another one, whose lock an end that comes late would take.

use super::turns::{self, Turn, Turns, Whose};
use crate::session::Session;
use model::lock::LockRequest;
use model::owner::{LockCall, OwnerReply, OwnerRequest};
use model::{Error, ErrorKind, InodeId, Result};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use world::Work;

/// Pause before the owner is told again.
const PAUSE: Duration = Duration::from_secs(1);
/// The cause by which waits for that are listed.
const UNTOLD_WAIT: &str =
    "the owner of the metadata, which hasn't heard of the end of other file locks";

/// The cause by which waits for a turn are listed.
const TURN_WAIT: &str = "another request of the same program about its locks of the file";

/// What is said to the owner about locks, and the ends of which it hasn't heard.
pub(super) struct Ending {
    session: Arc<Session>,
    turns: Turns,
    /// The oldest ones first, each once: no more than the files that were open and the processes that had locks. A task tells
    /// of them as long as there are some.
    untold: Mutex<VecDeque<LockCall>>,
    /// Signals that the owner has heard of one.
    told: Notify,
}

impl Ending {
    pub(super) fn new(session: Arc<Session>) -> Arc<Self> {
        Arc::new(Self {
            session,
            turns: Turns::default(),
            untold: Mutex::default(),
            told: Notify::new(),
        })
    }

    /// Asks, and notes what the answer says of the session's doors and locks.
    pub(super) async fn ask(&self, call: LockCall) -> Result<OwnerReply> {
        let whose = turns::whose(&call);
        self.ask_in_turn(call, whose).await
    }

    async fn ask_in_turn(&self, call: LockCall, whose: Option<Whose>) -> Result<OwnerReply> {
        let _turn = match whose {
            Some(whose) => Some(self.turn(whose).await?),
            None => None,
        };
        let request = OwnerRequest::Lock(call);
        let answer = self.session.ask(&request).await;
        self.session.doors().answered(&request, &answer);
        answer
    }

    /// The turn of a request about these locks: behind those that are under way.
    async fn turn(&self, whose: Whose) -> Result<Turn<'_>> {
        if let Some(turn) = self.turns.try_enter(whose) {
            return Ok(turn);
        }
        let (inode, _) = whose;
        let entering = self.turns.enter(whose);
        // Boxed because it is rare: otherwise every request's future would contain it.
        Box::pin(self.session.wait(TURN_WAIT, Some(inode), entering)).await
    }

    /// Asks for the end of locks. If the owner can't be told in time, it is told later.
    pub(super) async fn end(self: &Arc<Self>, end: LockCall) {
        // Behind the withdrawal of a request that the owner may have granted.
        if !self.untold.lock().is_empty() {
            self.tell_later(end);
            return;
        }
        let whose = turns::whose(&end);
        if let Err(error) = self.tell_now(end, whose).await
            && !matches!(
                error.kind(),
                ErrorKind::Unavailable | ErrorKind::SessionEnded
            )
        {
            tracing::warn!(%error, "file locks of a closed file may last until the session ends");
        }
    }

    /// As [`Ending::end`], of a request that waits: the answer says whether it was granted.
    pub(super) async fn withdraw(
        self: &Arc<Self>,
        wait: u64,
        request: &LockRequest,
    ) -> Result<OwnerReply> {
        let session = request.owner.door.session;
        let end = LockCall::EndWait { session, wait };
        // It takes what was granted: what ends that comes before or behind it.
        let whose = (request.inode, request.owner);
        self.tell_now(end, Some(whose)).await
    }

    async fn tell_now(self: &Arc<Self>, end: LockCall, whose: Option<Whose>) -> Result<OwnerReply> {
        let answer = self.ask_in_turn(end.clone(), whose).await;
        let is_unheard = |error: &Error| error.kind() == ErrorKind::Unavailable;
        if answer.as_ref().is_err_and(is_unheard) {
            self.tell_later(end);
        }
        answer
    }

    /// As [`Ending::end`], without waiting.
    pub(super) fn end_soon(self: &Arc<Self>, end: LockCall) {
        if self.session.owner().is_near() {
            self.session.ask_later(OwnerRequest::Lock(end), ());
            return;
        }
        let it = self.clone();
        let ending = async move { it.end(end).await };
        self.session.spawn("ends file locks", ending);
    }

    fn tell_later(self: &Arc<Self>, end: LockCall) {
        // Kernels say it of each process that closes a file which others have locked.
        if let LockCall::EndProcess { inode, owner } = end
            && !self.session.owner().may_have_locks(inode, owner)
        {
            return;
        }
        let begins = {
            let mut untold = self.untold.lock();
            let begins = untold.is_empty();
            if !untold.contains(&end) {
                untold.push_back(end);
            }
            begins
        };
        if begins {
            let it = self.clone();
            let telling = async move { it.tell().await };
            let what = "tells of ended file locks";
            self.session.spawn_work(what, Work::EndLocks, telling);
        }
    }

    /// Tells the owner of all of them, until it has heard or the session has ended.
    async fn tell(&self) {
        loop {
            // It stays there meanwhile: who wants locks waits for it.
            let end = self.untold.lock().front().cloned();
            let Some(end) = end else { return };
            let told = self.ask(end).await;
            let is_unheard = told.is_err_and(|error| error.kind() == ErrorKind::Unavailable);
            if is_unheard && self.session.check_open().is_ok() {
                self.session.world().sleep(PAUSE).await;
                continue;
            }
            let is_last = {
                let mut untold = self.untold.lock();
                untold.pop_front();
                untold.is_empty()
            };
            self.told.notify_waiters();
            if is_last {
                return;
            }
        }
    }

    /// A lock of this file is about to be asked for: waits until the owner has heard of the ends before.
    pub(super) async fn until_told(&self, inode: InodeId) -> Result<()> {
        if self.untold.lock().is_empty() {
            return Ok(());
        }
        let all_told = async {
            loop {
                // First: an end that is told then isn't missed.
                let told = self.told.notified();
                if self.untold.lock().is_empty() {
                    return;
                }
                told.await;
            }
        };
        let waiting = self
            .session
            .wait_for_work(UNTOLD_WAIT, inode, Work::EndLocks, all_told);
        // Boxed because it is rare: otherwise every request's future would contain it.
        Box::pin(waiting).await
    }
}
