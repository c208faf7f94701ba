//! The rules of file locks, as a state machine without clocks, tasks or I/O: who may have a lock,
//! who waits, who is let in. What is held is in [`Held`].
//!
//! Waiting requests are granted in the order of their arrival, except that one may pass another
//! that still has to wait (as in Linux).

use super::held::{Held, Place};
use super::request::{HeldLock, LockDoor, LockOwner, LockRequest, LockSpace, kinds_that_stop};
use model::{Error, ErrorKind, InodeId, LockKind, LockRange, Result, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Granted,
    Waits(u64),
}

/// What became of a waiter that gave up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GaveUp {
    /// It was granted before; the lock is held.
    Granted,
    /// It no longer waits, and holds nothing of what it waited for.
    Cancelled,
}

struct Waiter<W> {
    request: LockRequest,
    waker: W,
}

/// All locks of a file system; `W` is told when a waiting request is granted.
pub(super) struct Table<W> {
    doors: BTreeSet<LockDoor>,
    held: Held,
    waiting: BTreeMap<u64, Waiter<W>>,
    /// Waiting tickets per inode, so that a release looks only at its own.
    queues: BTreeMap<(LockSpace, InodeId), BTreeSet<u64>>,
    /// Waiting tickets per owner, for circles.
    waits_of: BTreeSet<(LockOwner, u64)>,
    /// Granted to waiters that haven't said yet that they know.
    unclaimed: BTreeSet<u64>,
    granted: Vec<W>,
    next_ticket: u64,
    next_door: u32,
}

impl<W> Default for Table<W> {
    fn default() -> Self {
        Self {
            doors: BTreeSet::new(),
            held: Held::default(),
            waiting: BTreeMap::new(),
            queues: BTreeMap::new(),
            waits_of: BTreeSet::new(),
            unclaimed: BTreeSet::new(),
            granted: Vec::new(),
            next_ticket: 1,
            next_door: 1,
        }
    }
}

/// Waiting requests that are followed in search of a circle; in a larger one nobody is told.
const FOLLOWED_MAX: usize = 256;
/// Locks that are looked at in search of a circle.
const STOPPERS_MAX: usize = 4096;

impl<W> Table<W> {
    pub(super) fn begin_door(&mut self, session: SessionId) -> LockDoor {
        let number = self.next_door;
        self.next_door = number.checked_add(1).expect("no 2^32 mounts in one run");
        let door = LockDoor { session, number };
        self.doors.insert(door);
        door
    }

    /// Grants, refuses, or (with a waker) queues a request.
    pub(super) fn request(&mut self, request: LockRequest, waker: Option<W>) -> Result<Answer> {
        if request.range.start > request.range.end {
            return Err(ErrorKind::InvalidArgument.into());
        }
        if !self.doors.contains(&request.owner.door) {
            return Err(Error::new(
                ErrorKind::ShuttingDown,
                "the mount has ended through which the lock was asked for",
            ));
        }
        let Some(kind) = request.kind else {
            self.held.check_room(&request)?;
            self.held.set(&request);
            self.grant_waiting(request.space, request.inode, request.range);
            return Ok(Answer::Granted);
        };
        let becomes_shared = self.held.becomes_shared(&request);
        let is_change = self.held.changes_flock(&request);
        if is_change {
            // flock(2): a change of kind is a removal followed by a new lock, also if the new one
            // can't be had.
            self.held.set(&LockRequest {
                kind: None,
                ..request
            });
        }
        let answer = self.take(request, kind, waker);
        if is_change || (becomes_shared && matches!(answer, Ok(Answer::Granted))) {
            // What was given up, and what became shared, may let others in; a new lock doesn't.
            self.grant_waiting(request.space, request.inode, request.range);
        }
        answer
    }

    fn take(&mut self, request: LockRequest, kind: LockKind, waker: Option<W>) -> Result<Answer> {
        if !self.held.is_stopped(&request, kind) {
            self.held.check_room(&request)?;
            self.held.set(&request);
            return Ok(Answer::Granted);
        }
        let Some(waker) = waker else {
            return Err(ErrorKind::WouldBlock.into());
        };
        if self.closes_circle(&request) {
            return Err(ErrorKind::WouldDeadlock.into());
        }
        let user = request.taker.user;
        if !self.held.charges.may_wait(user) {
            return Err(Error::new(
                ErrorKind::TooManyLocks,
                "too many lock requests of this user, or of all, are waiting",
            ));
        }
        self.held.check_room(&request)?;
        self.held.charges.wait(user);
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.insert(ticket, Waiter { request, waker });
        let queue = self.queues.entry((request.space, request.inode));
        queue.or_default().insert(ticket);
        self.waits_of.insert((request.owner, ticket));
        Ok(Answer::Waits(ticket))
    }

    /// The lock that stops a request, for F_GETLK.
    pub(super) fn conflict(
        &self,
        space: LockSpace,
        inode: InodeId,
        owner: LockOwner,
        range: LockRange,
        kind: LockKind,
    ) -> Option<HeldLock> {
        let place = Place {
            space,
            inode,
            owner,
        };
        self.held.conflict(place, range, kind)
    }

    /// The waiter of a granted ticket knows; its lock is its own now.
    pub(super) fn claim(&mut self, ticket: u64) {
        self.unclaimed.remove(&ticket);
    }

    /// The waiter doesn't want to wait any longer. What it has been granted meanwhile it keeps:
    /// it may have had a part of it before, and must not lose that.
    pub(super) fn give_up(&mut self, ticket: u64) -> GaveUp {
        if self.unclaimed.remove(&ticket) {
            return GaveUp::Granted;
        }
        // Nobody can be let in by this: a waiter isn't in anybody's way.
        self.remove_waiting(ticket);
        GaveUp::Cancelled
    }

    /// A process closed a descriptor of the inode: its range locks there go, however they were
    /// taken. Its requests that wait go on, as in Linux. True if it held any.
    pub(super) fn release_process(&mut self, inode: InodeId, owner: LockOwner) -> bool {
        let place = Place {
            space: LockSpace::Range,
            inode,
            owner,
        };
        let any = self.held.release(place, |_| true);
        if any {
            self.grant_waiting(place.space, inode, LockRange::ALL);
        }
        any
    }

    /// The last descriptor of an open file is gone: what was taken through it goes, by whomever,
    /// and nothing that they took through another one. True if anything was.
    pub(super) fn release_open(&mut self, door: LockDoor, open: u64) -> bool {
        let places = self.held.taken_through((door, open));
        for place in &places {
            self.held.release(*place, |piece| piece.taker.open == open);
            self.grant_waiting(place.space, place.inode, LockRange::ALL);
        }
        !places.is_empty()
    }

    /// Nobody comes through the door any more: what was held and asked for through it goes.
    pub(super) fn end_door(&mut self, door: LockDoor) {
        self.doors.remove(&door);
        let freed = self.held.end_door(door);
        let waits = self
            .waits_of
            .iter()
            .filter(|(owner, _)| owner.door == door)
            .map(|(_, ticket)| *ticket);
        let tickets: Vec<u64> = waits.collect();
        for ticket in tickets {
            // Its waker is dropped: the waiter learns that it was interrupted.
            self.remove_waiting(ticket);
        }
        for (space, inode) in freed {
            self.grant_waiting(space, inode, LockRange::ALL);
        }
    }

    /// All doors of a session end.
    pub(super) fn end_session(&mut self, session: SessionId) {
        let doors = self.doors.iter().filter(|door| door.session == session);
        let doors: Vec<LockDoor> = doors.copied().collect();
        for door in doors {
            self.end_door(door);
        }
    }

    /// Wakers of requests granted since the last call.
    pub(super) fn take_granted(&mut self) -> Vec<W> {
        std::mem::take(&mut self.granted)
    }

    /// Locks held and requests waiting.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.held.locks.len(), self.waiting.len())
    }

    /// The locks held on an inode, by owner and start, with the open files that they belong to.
    #[cfg(test)]
    pub(super) fn held(&self, space: LockSpace, inode: InodeId) -> Vec<(HeldLock, u64)> {
        let locks = self.held.locks.iter();
        let here = locks.filter(|(key, _)| (key.space, key.inode) == (space, inode));
        let mut held: Vec<_> = here
            .map(|(key, piece)| (key.shown(piece), piece.taker.open))
            .collect();
        held.sort_by_key(|(lock, _)| (lock.owner, lock.range.start));
        held
    }

    #[cfg(test)]
    pub(super) fn is_waiting(&self, ticket: u64) -> bool {
        self.waiting.contains_key(&ticket)
    }

    /// As if the user held so many locks more.
    #[cfg(test)]
    pub(super) fn charge_locks(&mut self, user: u32, count: usize) {
        (0..count).for_each(|_| self.held.charges.hold(user));
    }

    /// From so many locks of an inode on it is known where they are.
    #[cfg(test)]
    pub(super) fn crowd_from(&mut self, count: usize) {
        self.held.crowd_from(count);
    }

    /// What is charged to all users together must be what is held and waited for.
    #[cfg(test)]
    pub(super) fn assert_charges(&self) {
        assert_eq!(self.held.charges.all(), self.counts());
        assert_eq!(self.waits_of.len(), self.waiting.len());
        self.held.assert_counts();
    }

    fn remove_waiting(&mut self, ticket: u64) -> Option<Waiter<W>> {
        let waiter = self.waiting.remove(&ticket)?;
        let LockRequest {
            space,
            inode,
            owner,
            taker,
            ..
        } = waiter.request;
        self.waits_of.remove(&(owner, ticket));
        self.held.charges.no_wait(taker.user);
        if let Some(queue) = self.queues.get_mut(&(space, inode)) {
            queue.remove(&ticket);
            if queue.is_empty() {
                self.queues.remove(&(space, inode));
            }
        }
        Some(waiter)
    }

    /// Grants what nobody stops any more, after locks in a range were given up or became shared.
    fn grant_waiting(&mut self, space: LockSpace, inode: InodeId, freed: LockRange) {
        let mut freed = Some(freed);
        while let Some(range) = freed.take() {
            let queue = self.queues.get(&(space, inode)).into_iter().flatten();
            let tickets: Vec<u64> = queue.copied().collect();
            for ticket in tickets {
                let request = self.waiting[&ticket].request;
                let kind = request.kind.expect("only locks wait, unlocks never do");
                if !request.range.overlaps(range) || self.held.is_stopped(&request, kind) {
                    continue;
                }
                if self.held.becomes_shared(&request) {
                    // Those that came earlier may be let in by this; by other grants nobody is.
                    freed = Some(request.range.hull(freed.unwrap_or(request.range)));
                }
                let waiter = self
                    .remove_waiting(ticket)
                    .expect("the ticket was found in the queue");
                self.held.set(&request);
                self.unclaimed.insert(ticket);
                self.granted.push(waiter.waker);
            }
        }
    }

    /// Whether processes would wait for each other in a circle if this request waited. Open files
    /// don't count, as in Linux: two owners of one process can't both be processes, so a circle
    /// with both is none.
    fn closes_circle(&self, request: &LockRequest) -> bool {
        if request.space != LockSpace::Range {
            return false;
        }
        let mut owner_of =
            BTreeMap::from([((request.owner.door, request.taker.pid), request.owner)]);
        let mut seen = BTreeSet::new();
        let mut ahead = vec![*request];
        let mut looked_at = 0;
        for _ in 0..FOLLOWED_MAX {
            let Some(waits) = ahead.pop() else { break };
            let kind = waits.kind.expect("only locks wait, unlocks never do");
            let kinds = kinds_that_stop(kind);
            for stopper in self.held.stoppers(waits.place(), waits.range, kinds) {
                if stopper.owner == request.owner {
                    return true;
                }
                looked_at += 1;
                if looked_at > STOPPERS_MAX {
                    return false;
                }
                let process = (stopper.owner.door, stopper.pid);
                let is_other = stopper.pid != 0
                    && *owner_of.entry(process).or_insert(stopper.owner) != stopper.owner;
                if is_other || !seen.insert(stopper.owner) {
                    continue;
                }
                let waits = self
                    .waits_of
                    .range((stopper.owner, 0)..=(stopper.owner, u64::MAX));
                let further = waits.map(|(_, ticket)| self.waiting[ticket].request);
                ahead.extend(further.filter(|other| other.space == LockSpace::Range));
            }
        }
        false
    }
}
