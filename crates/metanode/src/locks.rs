//! File locks of applications: whole-file (flock), ranges of processes (POSIX), ranges of
//! open files (OFD). Rules are in [`table`]; this is the door that waits.

mod charges;
mod conflicts;
mod held;
mod request;
mod spans;
mod table;
#[cfg(test)]
mod tests;

pub use request::{HeldLock, LockDoor, LockOwner, LockRequest, LockSpace, LockTaker};

use model::{Error, ErrorKind, InodeId, LockKind, LockRange, Result, SessionId};
use parking_lot::Mutex;
use std::future::Future;
use table::{Answer, GaveUp, Table};
use tokio::sync::oneshot;

/// The lock tables of a file system. Cheap calls under one short lock; waiting holds none.
#[derive(Default)]
pub struct Locks {
    table: Mutex<Table<oneshot::Sender<()>>>,
}

/// Takes a waiting request back when its future is dropped.
struct Waiting<'a> {
    locks: &'a Locks,
    ticket: Option<u64>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            // Only the end of its door drops a wait that was granted; the lock goes with that.
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

    /// A mount (or other door) of the session begins. Locks are asked for through one.
    pub fn begin_door(&self, session: SessionId) -> LockDoor {
        self.table.lock().begin_door(session)
    }

    /// Nobody comes through the door any more: its locks go, its waiting requests are
    /// interrupted, later ones are refused.
    pub fn end_door(&self, door: LockDoor) {
        let mut table = self.table.lock();
        table.end_door(door);
        Self::wake(&mut table);
    }

    /// The session ended, and with it all its doors.
    pub fn release_session(&self, session: SessionId) {
        let mut table = self.table.lock();
        table.end_session(session);
        Self::wake(&mut table);
    }

    /// Locks, changes the kind of a lock, or lets go, without waiting.
    ///
    /// As in Linux, flock(2) gives the old lock up when its kind changes, also if it is then
    /// refused.
    ///
    /// # Errors
    /// `WouldBlock` when another one holds a part of it; `TooManyLocks`; `InvalidArgument`.
    pub fn try_set(&self, request: LockRequest) -> Result<()> {
        let mut table = self.table.lock();
        let answer = table.request(request, None);
        Self::wake(&mut table);
        answer.map(|answer| assert_eq!(answer, Answer::Granted, "only who has a waker waits"))
    }

    /// As `try_set`, and waits until it is granted or `interrupted` ends. An interrupted request
    /// changes nothing, except that flock has given its old lock up. Dropping the future takes
    /// the request back; to be dropped only when the door ends.
    ///
    /// # Errors
    /// `WouldDeadlock` when processes would wait for each other in a circle; `Interrupted`;
    /// `TooManyLocks` when too many are held or waited for; `InvalidArgument`.
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
                "the mount ended while a lock was waited for",
            )),
            None => match table.give_up(ticket) {
                GaveUp::Granted => Ok(()),
                GaveUp::Cancelled => Err(ErrorKind::Interrupted.into()),
            },
        }
    }

    /// F_GETLK: the first lock that would stop this one.
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

    /// A process closed a descriptor of the inode: its POSIX locks there go, as POSIX says,
    /// through whichever descriptor they were taken. What it waits for it goes on to wait for.
    /// True if it held any.
    pub fn release_process(&self, inode: InodeId, owner: LockOwner) -> bool {
        let mut table = self.table.lock();
        let had = table.release_process(inode, owner);
        Self::wake(&mut table);
        had
    }

    /// The last descriptor of an open file is gone: what was taken through it goes, and nothing
    /// that its owners have taken through another open since. True if there was anything.
    pub fn release_open(&self, door: LockDoor, open: u64) -> bool {
        let mut table = self.table.lock();
        let had = table.release_open(door, open);
        Self::wake(&mut table);
        had
    }

    /// Locks held and requests waiting.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        self.table.lock().counts()
    }

    /// Tells waiters what the table has granted. A waiter that was dropped meanwhile needs no
    /// answer.
    fn wake(table: &mut Table<oneshot::Sender<()>>) {
        for sender in table.take_granted() {
            let _ = sender.send(());
        }
    }
}
