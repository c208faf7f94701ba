//! File locks of applications: whole files (flock), ranges of processes (POSIX), ranges of open
//! files (OFD). The rules are in [`table`]; this file adds waiting.

mod charges;
mod conflicts;
mod held;
mod kept;
mod queued;
mod spans;
mod table;
#[cfg(test)]
mod tests;

use futures::FutureExt;
use futures::future::Shared;
pub(crate) use kept::Kept;
use model::lock::{HeldLock, LockDoor, LockOwner, LockRequest, LockSpace};
use model::owner::Reclaimed;
use model::{Error, ErrorKind, InodeId, LockKind, LockRange, NodeId, Result, SessionId};
use parking_lot::Mutex;
use queued::Queued;
use std::collections::BTreeMap;
use table::{Answer, GaveUp, LockTable};
use tokio::sync::oneshot;
use world::{Errand, Instant, Part, Waiter};

/// The cause by which requests are listed that wait for others' locks.
const LOCK_WAIT: &str = "another program's lock of the file";

/// The lock tables of a file system. Short calls under one lock, which is never held while waiting.
#[derive(Default)]
pub struct Locks {
    table: Mutex<LockTable<oneshot::Sender<()>>>,
    /// The requests queued and not ended. Locked before the table.
    waits: Mutex<Queued<Wait>>,
}

/// A queued request.
struct Wait {
    ticket: u64,
    /// Ends with an error if the request's door ends.
    granted: Shared<oneshot::Receiver<()>>,
    /// For whom it waits, and since when; `None`: nobody has said.
    by: Option<(Errand, Instant)>,
}

/// Most requests that are listed with the locks that they wait for: each costs a search.
const LISTED_MAX: usize = 256;

impl Locks {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a mount (or other door), which its session numbers; lock requests need one.
    ///
    /// # Errors
    /// `TooManyLocks` if the session has 4,096 already.
    pub fn begin_door(&self, door: LockDoor) -> Result<()> {
        self.table.lock().begin_door(door)
    }

    /// Ends a door: its locks end, its waiting requests are interrupted, later ones are refused.
    pub fn end_door(&self, door: LockDoor) {
        let mut table = self.table.lock();
        table.end_door(door);
        Self::wake(&mut table);
    }

    /// A session says to a new owner which doors it has begun and which locks it holds. The same
    /// again changes nothing. Returns how many of the locks it doesn't have back: others have taken them meanwhile, or its
    /// doors are more than a session may have.
    pub fn reclaim(&self, session: SessionId, part: &Reclaimed) -> u32 {
        let is_own = |door: LockDoor| door.session == session;
        let mut table = self.table.lock();
        let doors = part.doors.iter().filter(|door| is_own(**door));
        // Through a door that is refused it gets no locks, which are counted below.
        doors.for_each(|door| drop(table.begin_door(*door)));
        let locks = part.locks.iter();
        let locks = locks.filter(|lock| is_own(lock.owner.door) && lock.kind.is_some());
        // What it has already costs no room, of which there may be none.
        let lost = locks.filter(|lock| !table.has(lock) && table.take_again(**lock).is_err());
        let lost = lost.count();
        Self::wake(&mut table);
        u32::try_from(lost).unwrap_or(u32::MAX)
    }

    /// A session has said all that it holds: what else this owner knows of it ends.
    pub(crate) fn keep_only(&self, session: SessionId, kept: &Kept) {
        let mut table = self.table.lock();
        table.keep_only(session, kept);
        Self::wake(&mut table);
    }

    /// Locks held, and requests queued and not ended.
    #[must_use]
    pub fn count(&self) -> usize {
        let waits = self.waits.lock().count();
        waits + self.table.lock().held_count()
    }

    /// Ends a session and all its doors.
    pub fn release_session(&self, session: SessionId) {
        let mut waits = self.waits.lock();
        let mut table = self.table.lock();
        table.end_session(session);
        // The table remembers the granted ones until they are claimed.
        for wait in waits.end_session(session) {
            table.give_up(wait.ticket);
        }
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

    /// As `try_set`, but a request that conflicts waits for its turn, under a number that its
    /// session hasn't used before. True if it was granted at once; else it needs an `end_wait`.
    ///
    /// # Errors
    /// `WouldDeadlock` if processes would wait for each other; `TooManyLocks` if too many are held
    /// or waiting; `InvalidArgument`, also for a number under which the session waits already.
    pub fn queue(&self, wait: u64, request: LockRequest) -> Result<bool> {
        let mut waits = self.waits.lock();
        let session = request.owner.door.session;
        // The number is another daemon's word: a wait that it replaced would never end.
        if waits.get(session, wait).is_some() {
            let text = "the session waits for another lock under this number";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let may_wait = waits.has_room(session);
        let (sender, granted) = oneshot::channel();
        let mut table = self.table.lock();
        // One that needn't wait needs no room, and a flock gives its old lock up in any case.
        let answer = table.request(request, may_wait.then_some(sender));
        Self::wake(&mut table);
        let ticket = match answer {
            Ok(Answer::Granted) => return Ok(true),
            Ok(Answer::Waits(ticket)) => ticket,
            Err(error) if !may_wait && error.kind() == ErrorKind::WouldBlock => {
                let text = "too many lock requests of this node, or of all, are waiting";
                return Err(Error::new(ErrorKind::TooManyLocks, text));
            }
            Err(error) => return Err(error),
        };
        let queued = Wait {
            ticket,
            granted: granted.shared(),
            by: None,
        };
        waits.insert(session, wait, queued);
        Ok(false)
    }

    /// A queued request waits on this errand since then, for [`Locks::waits`].
    pub(crate) fn note_wait(&self, session: SessionId, wait: u64, by: (Errand, Instant)) {
        if let Some(wait) = self.waits.lock().get_mut(session, wait) {
            wait.by = Some(by);
        }
    }

    /// The requests that wait for others' locks, longest first, with the program that each waits for; at most 256, and how
    /// many more there are. `nodes`: those of sessions.
    pub(crate) fn waits(
        &self,
        nodes: &BTreeMap<SessionId, NodeId>,
        now: Instant,
    ) -> (Vec<Waiter>, usize) {
        let waits = self.waits.lock();
        let noted = waits
            .values()
            .filter_map(|wait| Some((wait.ticket, wait.by?)));
        let mut noted: Vec<_> = noted.collect();
        let table = self.table.lock();
        noted.retain(|(ticket, _)| table.is_waiting(*ticket));
        noted.sort_by_key(|(ticket, (_, since))| (*since, *ticket));
        let left_out = noted.len().saturating_sub(LISTED_MAX);
        noted.truncate(LISTED_MAX);
        let listed = noted.into_iter().filter_map(|(ticket, (errand, since))| {
            let (inode, held) = table.stopped_by(ticket)?;
            let node = nodes.get(&held.owner.door.session).copied();
            let part = Part::ForLock {
                inode,
                node,
                pid: held.pid,
            };
            Some(Waiter {
                cause: LOCK_WAIT,
                inode: Some(inode),
                since: now - since,
                errand,
                part,
            })
        });
        (listed.collect(), left_out)
    }

    /// Waits until a queued request is granted. May be dropped and asked again.
    ///
    /// # Errors
    /// `Interrupted` if its door ended; `Stale` if there is no such wait.
    pub async fn granted(&self, session: SessionId, wait: u64) -> Result<()> {
        let granted = {
            let waits = self.waits.lock();
            let found = waits.get(session, wait);
            found.map(|wait| wait.granted.clone())
        };
        let Some(granted) = granted else {
            return Err(Error::new(ErrorKind::Stale, "no lock is waited for"));
        };
        granted.await.map_err(|_| ended())
    }

    /// Ends a wait. The lock stays if it was granted; otherwise nothing changes, except that flock
    /// has given up its old lock.
    ///
    /// # Errors
    /// `Interrupted` if it wasn't granted, or has ended since.
    pub fn end_wait(&self, session: SessionId, wait: u64) -> Result<()> {
        let Some(wait) = self.waits.lock().remove(session, wait) else {
            return Err(ended());
        };
        match self.table.lock().give_up(wait.ticket) {
            GaveUp::Granted => Ok(()),
            GaveUp::Cancelled => Err(ErrorKind::Interrupted.into()),
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

fn ended() -> Error {
    Error::new(
        ErrorKind::Interrupted,
        "the mount ended while waiting for a lock",
    )
}
