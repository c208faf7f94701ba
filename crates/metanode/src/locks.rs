//! File locks of applications: whole files (flock), ranges of processes (POSIX), ranges of open
//! files (OFD). The rules are in [`table`]; this file adds waiting.

mod charges;
mod conflicts;
mod held;
mod spans;
mod table;
#[cfg(test)]
mod tests;

use model::lock::{HeldLock, LockDoor, LockOwner, LockRequest, LockSpace};
use model::{Error, ErrorKind, InodeId, LockKind, LockRange, Result, SessionId};
use parking_lot::Mutex;
use std::future::Future;
use table::{Answer, GaveUp, LockTable};
use tokio::sync::oneshot;

/// The lock tables of a file system. Short calls under one lock, which is never held while waiting.
#[derive(Default)]
pub struct Locks {
    table: Mutex<LockTable<oneshot::Sender<()>>>,
}

/// Withdraws a waiting request when its future is dropped.
struct Waiting<'a> {
    locks: &'a Locks,
    ticket: Option<u64>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            // A granted wait is dropped only when its door ends; the lock ends with the door.
            self.locks.table.lock().give_up(ticket);
        }
    }
}

impl Locks {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a mount (or other door) of the session; lock requests need one.
    pub fn begin_door(&self, session: SessionId) -> LockDoor {
        self.table.lock().begin_door(session)
    }

    /// Ends a door: its locks end, its waiting requests are interrupted, later ones are refused.
    pub fn end_door(&self, door: LockDoor) {
        let mut table = self.table.lock();
        table.end_door(door);
        Self::wake(&mut table);
    }

    /// Ends a session and all its doors.
    pub fn release_session(&self, session: SessionId) {
        let mut table = self.table.lock();
        table.end_session(session);
        Self::wake(&mut table);
    }

    /// Locks, changes the kind of a lock, or unlocks, without waiting.
    ///
    /// As in Linux, flock(2) gives up the old lock when its kind changes, even if the new one is
    /// then refused.
    ///
    /// # Errors
    /// `WouldBlock` on conflict; `TooManyLocks`; `InvalidArgument`.
    pub fn try_set(&self, request: LockRequest) -> Result<()> {
        let mut table = self.table.lock();
        let answer = table.request(request, None);
        Self::wake(&mut table);
        answer
            .map(|answer| assert_eq!(answer, Answer::Granted, "only a request with a waker waits"))
    }

    /// As `try_set`, but waits until it is granted or `interrupted` completes. An interrupted
    /// request changes nothing, except that flock has given up its old lock. Dropping the future
    /// withdraws the request; drop it only when the door ends.
    ///
    /// # Errors
    /// `WouldDeadlock` if processes would wait for each other; `Interrupted`; `TooManyLocks` if too
    /// many are held or waiting; `InvalidArgument`.
    pub async fn set(
        &self,
        request: LockRequest,
        interrupted: impl Future<Output = ()>,
    ) -> Result<()> {
        let (mut waiting, granted) = {
            let mut table = self.table.lock();
            let (sender, granted) = oneshot::channel();
            let answer = table.request(request, Some(sender));
            Self::wake(&mut table);
            match answer? {
                Answer::Granted => return Ok(()),
                Answer::Waits(ticket) => (
                    Waiting {
                        locks: self,
                        ticket: Some(ticket),
                    },
                    granted,
                ),
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = granted => Some(outcome),
            () = interrupted => None,
        };
        let Some(ticket) = waiting.ticket.take() else {
            unreachable!("only this function and the drop take the ticket");
        };
        let mut table = self.table.lock();
        match outcome {
            Some(Ok(())) => {
                table.claim(ticket);
                Ok(())
            }
            Some(Err(_)) => Err(Error::new(
                ErrorKind::Interrupted,
                "the mount ended while waiting for a lock",
            )),
            None => match table.give_up(ticket) {
                GaveUp::Granted => Ok(()),
                GaveUp::Cancelled => Err(ErrorKind::Interrupted.into()),
            },
        }
    }

    /// F_GETLK: the first conflicting lock.
    #[must_use]
    pub fn conflict(
        &self,
        inode: InodeId,
        owner: LockOwner,
        range: LockRange,
        kind: LockKind,
    ) -> Option<HeldLock> {
        let table = self.table.lock();
        table.conflict(LockSpace::Range, inode, owner, range, kind)
    }

    /// A process closed a descriptor of the inode: ends its POSIX locks there, as POSIX says,
    /// through whichever descriptor they were taken. Its waiting requests continue. True if it held
    /// any.
    pub fn release_process(&self, inode: InodeId, owner: LockOwner) -> bool {
        let mut table = self.table.lock();
        let had = table.release_process(inode, owner);
        Self::wake(&mut table);
        had
    }

    /// The last descriptor of an open file is gone: ends the locks taken through it, but none that
    /// their owners have taken through another open since. True if there were any.
    pub fn release_open(&self, door: LockDoor, open: u64) -> bool {
        let mut table = self.table.lock();
        let had = table.release_open(door, open);
        Self::wake(&mut table);
        had
    }

    /// Number of locks held and of requests waiting.
    #[cfg(test)]
    fn counts(&self) -> (usize, usize) {
        self.table.lock().counts()
    }

    /// Wakes waiters whose requests the table has granted. A waiter that was dropped meanwhile
    /// needs no answer.
    fn wake(table: &mut LockTable<oneshot::Sender<()>>) {
        for sender in table.take_granted() {
            let _ = sender.send(());
        }
    }
}
