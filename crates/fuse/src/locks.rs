//! Locks that are waited for, ended by INTERRUPT: a task each, so that no thread is held, or the
//! thread itself if only it can answer (FUSE over io_uring).

use crate::file_system::{Caller, FileSystem, Lock, LockKind};
use crate::reply::Reply;
use crate::serving::{ReplyTo, Serving};
use model::{ErrorKind, Result};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;
use world::Map;

/// Locks of one mount that may be waited for at once; more get ENOLCK.
const WAITS_MAX: usize = 4096;
/// Interrupts remembered for lock requests that another thread has read but not yet begun.
const EARLY_MAX: usize = 256;

/// The waits of one mount, by the number of their request.
#[derive(Debug, Default)]
pub(crate) struct LockWaits {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waits: Map<u64, oneshot::Sender<()>>,
    /// An INTERRUPT can overtake its request when two threads read them. Numbers of requests
    /// are never reused, so an old one here does no harm.
    early: VecDeque<u64>,
    /// The mount has ended.
    closed: bool,
}

/// Why a wait can't begin.
enum NoWait {
    Interrupted,
    TooMany,
}

impl LockWaits {
    /// Ends the wait of a request. Other requests go on: they end by themselves.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        match state.waits.remove(&unique) {
            // The receiver is gone if the wait has just ended.
            Some(wait) => drop(wait.send(())),
            None => {
                if state.early.len() == EARLY_MAX {
                    state.early.pop_front();
                }
                state.early.push_back(unique);
            }
        }
    }

    /// Ends all waits and lets no more begin: nobody is left to be answered.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        // A wait whose sender is gone ends.
        state.waits.clear();
    }

    fn begin(
        &self,
        unique: u64,
        waits_max: usize,
    ) -> std::result::Result<oneshot::Receiver<()>, NoWait> {
        let mut state = self.state.lock();
        if let Some(at) = state.early.iter().position(|early| *early == unique) {
            state.early.remove(at);
            return Err(NoWait::Interrupted);
        }
        if state.closed {
            return Err(NoWait::Interrupted);
        }
        if state.waits.len() >= waits_max {
            return Err(NoWait::TooMany);
        }
        let (interrupt, interrupted) = oneshot::channel();
        state.waits.insert(unique, interrupt);
        Ok(interrupted)
    }

    fn end(&self, unique: u64) {
        self.state.lock().waits.remove(&unique);
    }
}

impl<F: FileSystem> Serving<F> {
    pub(crate) async fn set_lock(
        self: &Arc<Self>,
        caller: &Caller,
        lock: Lock,
        wait: bool,
        reply_to: &ReplyTo<'_>,
    ) -> Result<Reply> {
        match self.fs.set_lock(caller, lock, false).await {
            Ok(()) => Ok(Reply::Empty),
            Err(error) if wait && error.kind() == ErrorKind::WouldBlock => {
                Ok(self.wait_for_lock(*caller, lock, reply_to).await)
            }
            Err(error) => Err(error),
        }
    }

    async fn wait_for_lock(
        self: &Arc<Self>,
        caller: Caller,
        lock: Lock,
        reply_to: &ReplyTo<'_>,
    ) -> Reply {
        let waits_max = match reply_to {
            ReplyTo::Device(_) => WAITS_MAX,
            ReplyTo::Place(place) => place.lock_waits_max(),
        };
        let interrupted = match self.locks.begin(caller.unique, waits_max) {
            Ok(interrupted) => interrupted,
            Err(NoWait::Interrupted) => return Reply::Errno(libc::EINTR),
            Err(NoWait::TooMany) => return Reply::Errno(libc::ENOLCK),
        };
        match reply_to {
            ReplyTo::Place(place) => {
                if !place.leave_for_long() {
                    self.locks.end(caller.unique);
                    return Reply::Errno(libc::ENOLCK);
                }
                self.lock_or_interrupt(&caller, lock, interrupted).await
            }
            ReplyTo::Device(device) => {
                let (serving, device) = (Arc::clone(self), Arc::clone(device));
                let wait = async move {
                    let reply = serving.lock_or_interrupt(&caller, lock, interrupted).await;
                    device.answer(caller.unique, &reply);
                };
                self.world.spawn("lock wait", wait).detach();
                Reply::Later
            }
        }
    }

    async fn lock_or_interrupt(
        &self,
        caller: &Caller,
        lock: Lock,
        interrupted: oneshot::Receiver<()>,
    ) -> Reply {
        let reply = tokio::select! {
            // A lock that was granted stays granted, so look there first.
            biased;
            result = self.fs.set_lock(caller, lock, true) => match result {
                Ok(()) => Reply::Empty,
                Err(error) => Reply::Errno(error.errno()),
            },
            _ = interrupted => Reply::Errno(libc::EINTR),
        };
        self.locks.end(caller.unique);
        reply
    }
}

/// `F_RDLCK` and its like.
pub(crate) fn number_of(kind: LockKind) -> u32 {
    (match kind {
        LockKind::Shared => libc::F_RDLCK,
        LockKind::Exclusive => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    }) as u32
}
