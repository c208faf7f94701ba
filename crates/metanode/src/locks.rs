//! File locks of applications: whole-file (flock), ranges of processes (POSIX), ranges of
//! open files (OFD). Rules are in [`table`]; this is the door that waits.

mod table;
#[cfg(test)]
mod tests;

pub use table::{HeldLock, LockKind, LockOwner, LockRange};

use model::{Error, ErrorKind, InodeId, Result, SessionId};
use parking_lot::Mutex;
use table::{Answer, Request, Space, Table};
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
            self.locks.cancel(ticket);
        }
    }
}

impl Locks {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// flock(2): locks the whole file for an open file, changes the kind of its lock, or
    /// (`None`) lets go. With `wait` it waits until granted; dropping the future cancels.
    /// As in Linux, a change of kind gives the old lock up before it waits.
    ///
    /// # Errors
    /// `WouldBlock` when another holds it and `wait` is off, or when too many wait.
    pub async fn flock(
        &self,
        inode: InodeId,
        owner: LockOwner,
        kind: Option<LockKind>,
        wait: bool,
    ) -> Result<()> {
        self.request(
            Request {
                space: Space::Whole,
                inode,
                owner,
                kind,
                range: LockRange::ALL,
                pid: 0,
            },
            wait,
        )
        .await
    }

    /// fcntl(2) locks (POSIX for [`LockOwner::Process`], OFD for [`LockOwner::OpenFile`]):
    /// locks a range, changes its kind, or (`None`) lets go. `pid` is what F_GETLK of others
    /// shows. With `wait` it waits until granted; dropping the future cancels.
    ///
    /// # Errors
    /// `WouldBlock` when another holds a part and `wait` is off, or when too many wait;
    /// `WouldDeadlock` when processes would wait for each other in a circle.
    pub async fn set_range(
        &self,
        inode: InodeId,
        owner: LockOwner,
        range: LockRange,
        kind: Option<LockKind>,
        pid: u32,
        wait: bool,
    ) -> Result<()> {
        self.request(
            Request {
                space: Space::Range,
                inode,
                owner,
                kind,
                range,
                pid,
            },
            wait,
        )
        .await
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
        self.table
            .lock()
            .conflict(Space::Range, inode, owner, range, kind)
    }

    /// The owner closed the file (POSIX: any descriptor of it): its locks on the inode go,
    /// its waiting requests are cancelled. True if it held or waited for any.
    pub fn release_owner(&self, inode: InodeId, owner: LockOwner) -> bool {
        let mut table = self.table.lock();
        let had = table.release_owner(inode, owner);
        Self::wake(&mut table);
        had
    }

    /// The session ended: all its locks go.
    pub fn release_session(&self, session: SessionId) {
        let mut table = self.table.lock();
        table.release_session(session);
        Self::wake(&mut table);
    }

    /// Locks held and requests waiting.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        self.table.lock().counts()
    }

    async fn request(&self, request: Request, wait: bool) -> Result<()> {
        let (mut waiting, granted) = {
            let mut table = self.table.lock();
            let (sender, granted) = oneshot::channel();
            let answer = table.request(request, wait.then_some(sender))?;
            Self::wake(&mut table);
            match answer {
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
        let outcome = granted.await;
        if let Some(ticket) = waiting.ticket.take() {
            self.table.lock().claim(ticket);
        }
        outcome.map_err(|_| {
            Error::new(
                ErrorKind::Interrupted,
                "the lock's owner closed the file while it waited",
            )
        })
    }

    fn cancel(&self, ticket: u64) {
        let mut table = self.table.lock();
        table.cancel(ticket);
        Self::wake(&mut table);
    }

    /// Tells waiters what the table has granted. A waiter that was dropped meanwhile gives its
    /// lock back through [`Waiting`], so a failed send needs no answer.
    fn wake(table: &mut Table<oneshot::Sender<()>>) {
        for sender in table.take_granted() {
            let _ = sender.send(());
        }
    }
}
