//! Requests about file locks. Each wait is a task and holds no thread; over io_uring, where only the entry with the request
//! can answer it, it holds that.

use super::{ReplyTo, Serving};
use crate::abi;
use crate::file_system::FileSystem;
use crate::gate::Inside;
use crate::locks::{Interrupted, NoWait, WAITS_MAX, number_of};
use crate::reply::Reply;
use crate::signals::has_signal;
use crate::verbs::{Caller, Lock};
use model::{Error, ErrorKind, Result};
use std::sync::Arc;
use world::errand;

impl<F: FileSystem> Serving<F> {
    pub(super) async fn get_lock(&self, caller: &Caller, lock: Lock) -> Result<Reply> {
        let lk = match self.fs.get_lock(caller, lock).await? {
            Some(held) => abi::FileLock {
                start: held.range.start,
                end: held.range.end,
                kind: number_of(Some(held.kind)),
                pid: held.pid,
            },
            None => abi::FileLock {
                start: lock.range.start,
                end: lock.range.end,
                kind: number_of(None),
                pid: 0,
            },
        };
        Ok(Reply::fixed(&abi::LkOut { lk }))
    }

    pub(super) async fn set_lock(
        self: &Arc<Self>,
        caller: &Caller,
        lock: Lock,
        wait: bool,
        reply_to: &ReplyTo<'_>,
        inside: Option<Inside<'_>>,
    ) -> Result<Reply> {
        let _asking = wait.then(|| self.locks.ask(caller.unique));
        match self.fs.set_lock(caller, lock, None).await {
            Ok(()) => Ok(Reply::Empty),
            Err(error) if wait && error.kind() == ErrorKind::WouldBlock => {
                Ok(self.wait_for_lock(*caller, lock, reply_to, inside).await)
            }
            Err(error) => Err(error),
        }
    }

    async fn wait_for_lock(
        self: &Arc<Self>,
        caller: Caller,
        lock: Lock,
        reply_to: &ReplyTo<'_>,
        inside: Option<Inside<'_>>,
    ) -> Reply {
        let waits_max = match reply_to {
            ReplyTo::Device(_) => WAITS_MAX,
            ReplyTo::Place(place) => place.lock_waits_max(),
        };
        let interrupted = match self.locks.begin(caller.unique, caller.uid, waits_max) {
            Ok(interrupted) => interrupted,
            Err(NoWait::Interrupted) => return Reply::Errno(libc::EINTR),
            Err(NoWait::TooMany) => return Reply::Errno(libc::ENOLCK),
        };
        // It enters for itself, each time that it asks. From now on it can be broken off.
        drop(inside);
        match reply_to {
            ReplyTo::Place(place) => {
                let refusal = if has_signal(caller.pid) {
                    Some(libc::EINTR)
                } else if place.leave_for_long().await {
                    None
                } else {
                    Some(libc::ENOLCK)
                };
                if let Some(errno) = refusal {
                    self.locks.end(caller.unique);
                    return Reply::Errno(errno);
                }
                self.lock_or_interrupt(&caller, lock, interrupted).await
            }
            ReplyTo::Device(device) => {
                let (serving, device) = (Arc::clone(self), Arc::clone(device));
                let wait = async move {
                    let reply = serving.lock_or_interrupt(&caller, lock, interrupted).await;
                    device.answer(caller.unique, &reply);
                };
                let wait = errand::begin(wait);
                self.world.spawn("lock wait", wait).detach();
                Reply::Later
            }
        }
    }

    async fn lock_or_interrupt(
        &self,
        caller: &Caller,
        lock: Lock,
        interrupted: Interrupted,
    ) -> Reply {
        let result = tokio::select! {
            biased;
            result = self.lock_until_interrupted(caller, lock, interrupted) => result,
            () = self.gate.until_refusing() => Err(ErrorKind::Unavailable.into()),
        };
        self.locks.end(caller.unique);
        let reply = result.map_or_else(|error| Reply::Errno(error.errno()), |()| Reply::Empty);
        self.unless_refused(Some(reply))
    }

    async fn lock_until_interrupted(
        &self,
        caller: &Caller,
        lock: Lock,
        mut interrupted: Interrupted,
    ) -> Result<()> {
        loop {
            // A signal ends the wait also while nobody may enter.
            let inside = tokio::select! {
                biased;
                inside = self.gate.enter(&self.world) => inside,
                () = &mut interrupted => None,
            };
            let result = match inside {
                Some(_inside) => self.fs.set_lock(caller, lock, Some(interrupted)).await,
                None => Err(ErrorKind::Interrupted.into()),
            };
            let is_interrupted = |error: &Error| error.kind() == ErrorKind::Interrupted;
            if !result.as_ref().is_err_and(is_interrupted) {
                return result;
            }
            match self.locks.again(caller.unique) {
                Some(again) => interrupted = again,
                None => return result,
            }
        }
    }
}
