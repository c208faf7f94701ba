//! The rules of file locks, as a state machine without clocks, tasks or I/O: which requests are
//! granted, wait, or are refused. The held locks are in [`Held`].
//!
//! Waiting requests are granted in order of arrival, except that a request may pass another one
//! that still has to wait (as in Linux).

use super::conflicts::kinds_that_stop;
use super::held::{Held, Place};
use super::kept::Kept;
use model::lock::{HeldLock, LockDoor, LockOwner, LockRequest, LockSpace};
use model::{Error, ErrorKind, InodeId, LockKind, LockRange, Result, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// Result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Granted,
    Waits(u64),
}

/// Result of giving up a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GaveUp {
    /// It had already been granted; the lock is held.
    Granted,
    /// It no longer waits, and holds nothing that it waited for.
    Cancelled,
}

struct Waiter<W> {
    request: LockRequest,
    waker: W,
}

/// All locks of a file system; `W` wakes the waiter of a granted request.
pub(super) struct LockTable<W> {
    doors: BTreeSet<LockDoor>,
    held: Held,
    waiting: BTreeMap<u64, Waiter<W>>,
    /// Waiting tickets by inode, so that a release examines only its own.
    queues: BTreeMap<(LockSpace, InodeId), BTreeSet<u64>>,
    /// Waiting tickets by owner, to find deadlocks.
    waits_of: BTreeSet<(LockOwner, u64)>,
    /// What was granted to tickets whose waiters haven't claimed it yet.
    unclaimed: BTreeMap<u64, LockRequest>,
    granted: Vec<W>,
    next_ticket: u64,
}

impl<W> Default for LockTable<W> {
    fn default() -> Self {
        Self {
            doors: BTreeSet::new(),
            held: Held::default(),
            waiting: BTreeMap::new(),
            queues: BTreeMap::new(),
            waits_of: BTreeSet::new(),
            unclaimed: BTreeMap::new(),
            granted: Vec::new(),
            next_ticket: 1,
        }
    }
}

/// Most doors of one session: a node has one for each mount.
pub(super) const DOORS_MAX: usize = 4096;
/// Most waiting requests followed in search of a deadlock; larger circles go undetected.
const FOLLOWED_MAX: usize = 256;
/// Most locks examined in search of a deadlock.
const STOPPERS_MAX: usize = 4096;

impl<W> LockTable<W> {
    pub(super) fn held_count(&self) -> usize {
        self.held.locks.len()
    }

    /// Begins a door, unless its session has too many. The same again changes nothing.
    pub(super) fn begin_door(&mut self, door: LockDoor) -> Result<()> {
        if self.doors.contains(&door) {
            return Ok(());
        }
        let numbered = |number| LockDoor { number, ..door };
        let of_session = self.doors.range(numbered(0)..=numbered(u32::MAX));
        if of_session.count() >= DOORS_MAX {
            let text = format!("a session has at most {DOORS_MAX} mounts or other doors");
            return Err(Error::new(ErrorKind::TooManyLocks, text));
        }
        self.doors.insert(door);
        Ok(())
    }

    /// Whether the owner has this lock, taken in the same way: asking for it would change nothing.
    pub(super) fn has(&self, request: &LockRequest) -> bool {
        request.kind.is_some_and(|kind| {
            let own = self
                .held
                .first_overlap(Place::of(request), kind, request.range);
            own.is_some_and(|(key, piece)| {
                let is_whole = key.start <= request.range.start && piece.end >= request.range.end;
                is_whole && piece.taker == request.taker
            })
        })
    }

    /// Grants, refuses, or (with a waker) queues a request.
    pub(super) fn request(&mut self, request: LockRequest, waker: Option<W>) -> Result<Answer> {
        if request.range.start > request.range.end {
            return Err(ErrorKind::InvalidArgument.into());
        }
        if !self.doors.contains(&request.owner.door) {
            // Not `ShuttingDown`: that is said by an owner that ends, and a client asks the next one.
            return Err(Error::new(
                ErrorKind::Interrupted,
                "the mount through which the lock was requested has ended",
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
            // flock(2): a change of kind is a removal followed by a new lock, even if the new one
            // is refused.
            self.held.set(&LockRequest {
                kind: None,
                ..request
            });
        }
        let answer = self.take(request, kind, waker);
        if is_change || (becomes_shared && matches!(answer, Ok(Answer::Granted))) {
            // Locks given up or made shared may let others in; a new lock doesn't.
            self.grant_waiting(request.space, request.inode, request.range);
        }
        answer
    }

    /// Takes a lock that its owner had before, unless others have it: its user's share doesn't count, since that depends on who
    /// names its locks first.
    pub(super) fn take_again(&mut self, request: LockRequest) -> Result<()> {
        match self.request(request, None) {
            // Nobody else has it.
            Err(error)
                if error.kind() == ErrorKind::TooManyLocks
                    && self.held.charges.may_keep(request.owner.door.session) =>
            {
                self.held.set(&request);
                self.grant_waiting(request.space, request.inode, request.range);
                Ok(())
            }
            answer => answer.map(drop),
        }
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
        let (session, user) = (request.owner.door.session, request.taker.user);
        if !self.held.charges.may_wait(session, user) {
            return Err(Error::new(
                ErrorKind::TooManyLocks,
                "too many lock requests of this user, of its node, or of all are waiting",
            ));
        }
        self.held.check_room(&request)?;
        self.held.charges.wait(session, user);
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.insert(ticket, Waiter { request, waker });
        let queue = self.queues.entry((request.space, request.inode));
        queue.or_default().insert(ticket);
        self.waits_of.insert((request.owner, ticket));
        Ok(Answer::Waits(ticket))
    }

    /// The lock that conflicts with a request, for F_GETLK.
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

    /// Whether a request has neither been granted nor given up.
    pub(super) fn is_waiting(&self, ticket: u64) -> bool {
        self.waiting.contains_key(&ticket)
    }

    /// What a waiting request waits for: its file, and the first lock in its way.
    pub(super) fn stopped_by(&self, ticket: u64) -> Option<(InodeId, HeldLock)> {
        let LockRequest {
            space,
            inode,
            owner,
            kind,
            range,
            ..
        } = self.waiting.get(&ticket)?.request;
        let held = self.conflict(space, inode, owner, range, kind?)?;
        Some((inode, held))
    }

    /// The waiter stops waiting. It keeps a lock that was granted meanwhile: it may have had a part
    /// of it before, and must not lose that. It hasn't got one that has ended again since: another
    /// thread of its process may have unlocked it, or closed the file.
    pub(super) fn give_up(&mut self, ticket: u64) -> GaveUp {
        if let Some(request) = self.unclaimed.remove(&ticket) {
            let kind = request.kind.expect("only locks wait, unlocks never do");
            let place = Place::of(&request);
            let left = self.held.first_overlap(place, kind, request.range);
            return match left {
                Some(_) => GaveUp::Granted,
                None => GaveUp::Cancelled,
            };
        }
        // This lets no one in: a waiting request blocks no other.
        self.remove_waiting(ticket);
        GaveUp::Cancelled
    }

    /// A process closed a descriptor of the inode: ends its range locks there, however they were
    /// taken. Its waiting requests continue, as in Linux. True if it held any.
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

    /// The last descriptor of an open file is gone: ends the locks taken through it by any owner,
    /// and none that these owners took through another one. True if there were any.
    pub(super) fn release_open(&mut self, door: LockDoor, open: u64) -> bool {
        let places = self.held.taken_through((door, open));
        for place in &places {
            self.held.release(*place, |piece| piece.taker.open == open);
            self.grant_waiting(place.space, place.inode, LockRange::ALL);
        }
        !places.is_empty()
    }

    /// Ends a door: releases all locks and drops all requests made through it.
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
            // Dropping its waker tells the waiter that it was interrupted.
            self.remove_waiting(ticket);
        }
        for (space, inode) in freed {
            self.grant_waiting(space, inode, LockRange::ALL);
        }
    }

    /// Ends all doors of a session.
    pub(super) fn end_session(&mut self, session: SessionId) {
        let doors = self.doors.iter().filter(|door| door.session == session);
        let doors: Vec<LockDoor> = doors.copied().collect();
        for door in doors {
            self.end_door(door);
        }
    }

    /// Ends the doors and locks of a session that it hasn't named. Those that it has named it never
    /// loses: others may wait for them.
    pub(super) fn keep_only(&mut self, session: SessionId, kept: &Kept) {
        let doors = self.doors.iter().filter(|door| door.session == session);
        let ending = doors.filter(|door| !kept.has_door(**door));
        let ending: Vec<LockDoor> = ending.copied().collect();
        for door in ending {
            self.end_door(door);
        }
        let own = self.held.locks.iter();
        let own = own.filter(|(key, _)| key.owner.door.session == session);
        let mut unlocks = Vec::new();
        for (key, piece) in own {
            for range in kept.ending(key, piece) {
                unlocks.push(LockRequest {
                    space: key.space,
                    inode: key.inode,
                    owner: key.owner,
                    kind: None,
                    range,
                    taker: piece.taker,
                });
            }
        }
        for unlock in &unlocks {
            self.held.set(unlock);
        }
        for unlock in unlocks {
            self.grant_waiting(unlock.space, unlock.inode, unlock.range);
        }
    }

    /// Wakers of requests granted since the last call.
    pub(super) fn take_granted(&mut self) -> Vec<W> {
        std::mem::take(&mut self.granted)
    }

    /// Number of locks held and of requests waiting.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.held.locks.len(), self.waiting.len())
    }

    /// Number of granted requests whose waits haven't ended.
    #[cfg(test)]
    pub(super) fn unclaimed_count(&self) -> usize {
        self.unclaimed.len()
    }

    /// The locks held on an inode, by owner and start, with their open files.
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

    /// Pretends that a user of a session holds this many more locks.
    #[cfg(test)]
    pub(super) fn charge_locks(&mut self, session: SessionId, user: u32, count: usize) {
        (0..count).for_each(|_| self.held.charges.hold(session, user));
    }

    /// Sets the number of locks from which an inode has spans.
    #[cfg(test)]
    pub(super) fn crowd_from(&mut self, count: usize) {
        self.held.crowd_from(count);
    }

    /// Checks the total charges against the locks held and requests waiting.
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
        self.held.charges.no_wait(owner.door.session, taker.user);
        if let Some(queue) = self.queues.get_mut(&(space, inode)) {
            queue.remove(&ticket);
            if queue.is_empty() {
                self.queues.remove(&(space, inode));
            }
        }
        Some(waiter)
    }

    /// Grants requests that nothing blocks any more, after locks in a range were given up or became
    /// shared.
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
                    // Earlier requests may be let in by this; other grants let no one in.
                    freed = Some(request.range.hull(freed.unwrap_or(request.range)));
                }
                let waiter = self
                    .remove_waiting(ticket)
                    .expect("the ticket was found in the queue");
                self.held.set(&request);
                self.unclaimed.insert(ticket, request);
                self.granted.push(waiter.waker);
            }
        }
    }

    /// Whether processes would wait for each other in a circle if this request waited. Open files
    /// don't count, as in Linux: two owners of one process can't both be processes, so a circle
    /// with both isn't a deadlock.
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
            for stopper in self.held.stoppers(Place::of(&waits), waits.range, kinds) {
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
