//! The rules of file locks, as a state machine without clocks, tasks or I/O.
//!
//! One ordered map of held locks: those of one owner and kind on one inode follow each other by
//! start, so that a look, a split and a join cost a few steps however many others there are. Range
//! locks of one owner never overlap, and neighbours of the same kind and open file are one lock.
//! Waiting requests are granted in the order of their arrival, except that one may pass another
//! that still has to wait (as in Linux).

use super::charges::Charges;
use super::spans::{Span, Spans};
use model::{Error, ErrorKind, InodeId, Result, SessionId};
use std::collections::btree_map::Range;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// One mount (or other door) of a session. Owners and open files are numbered by each door for
/// itself, and what they hold ends with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockDoor {
    /// The client's session.
    pub session: SessionId,
    /// Its number there, never reused.
    pub number: u32,
}

/// Who holds a lock: a process (POSIX locks) or an open file (OFD locks, flock), by the number
/// that the kernel gives it. Which of the two it is, the kernel doesn't tell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockOwner {
    /// The door that knows it.
    pub door: LockDoor,
    /// The number.
    pub id: u64,
}

/// Shared or exclusive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LockKind {
    /// Many may hold it: LOCK_SH, F_RDLCK.
    Shared,
    /// One may hold it: LOCK_EX, F_WRLCK.
    Exclusive,
}

/// A byte range, both ends included, as the kernel sends it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte; `u64::MAX` for "to the end, wherever it is".
    pub end: u64,
}

impl LockRange {
    /// The whole file.
    pub const ALL: Self = Self {
        start: 0,
        end: u64::MAX,
    };

    fn overlaps(self, other: Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// The smallest range with both.
    fn hull(self, other: Self) -> Self {
        Self {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }
}

/// How a lock is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockTaker {
    /// The open file through which it is asked for.
    pub open: u64,
    /// The process, for F_GETLK of others; 0 if not known.
    pub pid: u32,
    /// The user, to whom it is charged.
    pub user: u32,
}

/// A lock that somebody holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldLock {
    /// Who.
    pub owner: LockOwner,
    /// How.
    pub kind: LockKind,
    /// Which bytes.
    pub range: LockRange,
    /// The process that took it, for F_GETLK.
    pub pid: u32,
}

/// flock locks and range locks don't see each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LockSpace {
    /// flock(2): the whole file.
    Whole,
    /// fcntl(2): POSIX and OFD locks.
    Range,
}

/// A wish to lock (`kind`) or unlock (`None`).
#[derive(Clone, Copy, Debug)]
pub struct LockRequest {
    /// Where.
    pub space: LockSpace,
    /// On what.
    pub inode: InodeId,
    /// For whom.
    pub owner: LockOwner,
    /// How; `None` lets go.
    pub kind: Option<LockKind>,
    /// Which bytes; [`LockRange::ALL`] for flock.
    pub range: LockRange,
    /// By whom.
    pub taker: LockTaker,
}

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

/// The place of a held lock in the order of all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    space: LockSpace,
    inode: InodeId,
    owner: LockOwner,
    kind: LockKind,
    start: u64,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    end: u64,
    taker: LockTaker,
}

/// An open file, by its number at its door.
type OpenFile = (LockDoor, u64);

/// Where an owner may hold locks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    space: LockSpace,
    inode: InodeId,
    owner: LockOwner,
}

/// The locks of one inode.
#[derive(Default)]
struct Crowd {
    count: usize,
    /// By kind, from many locks on until there is none.
    spans: Option<Box<[Spans; 2]>>,
}

/// All locks of a file system; `W` is told when a waiting request is granted.
pub(super) struct Table<W> {
    doors: BTreeSet<LockDoor>,
    held: BTreeMap<Key, Piece>,
    /// How many of them there are on each inode, and where, if they are many.
    crowds: BTreeMap<(LockSpace, InodeId), Crowd>,
    /// An inode has many locks from here on.
    crowd_from: usize,
    /// How many of them were taken by whom through which open file.
    through: BTreeMap<(OpenFile, Place), usize>,
    waiting: BTreeMap<u64, Waiter<W>>,
    /// Waiting tickets per inode, so that a release looks only at its own.
    queues: BTreeMap<(LockSpace, InodeId), BTreeSet<u64>>,
    /// Waiting tickets per owner, for circles.
    waits_of: BTreeSet<(LockOwner, u64)>,
    /// Granted to waiters that haven't said yet that they know.
    unclaimed: BTreeSet<u64>,
    charges: Charges,
    granted: Vec<W>,
    next_ticket: u64,
    next_door: u32,
}

impl<W> Default for Table<W> {
    fn default() -> Self {
        Self {
            doors: BTreeSet::new(),
            held: BTreeMap::new(),
            crowds: BTreeMap::new(),
            crowd_from: CROWD_FROM,
            through: BTreeMap::new(),
            waiting: BTreeMap::new(),
            queues: BTreeMap::new(),
            waits_of: BTreeSet::new(),
            unclaimed: BTreeSet::new(),
            charges: Charges::default(),
            granted: Vec::new(),
            next_ticket: 1,
            next_door: 1,
        }
    }
}

/// Locks of one owner that are looked at one after the other, before those that matter are sought:
/// most owners have one.
const PASSED_MAX: usize = 8;
/// Fewer locks of an inode are looked at one after the other.
const CROWD_FROM: usize = 64;
/// Waiting requests that are followed in search of a circle; in a larger one nobody is told.
const FOLLOWED_MAX: usize = 256;
/// Locks that are looked at in search of a circle.
const STOPPERS_MAX: usize = 4096;
/// Neighbours of a lock that F_GETLK shows together with it.
const NEIGHBOURS_MAX: usize = 1024;

const KINDS: [LockKind; 2] = [LockKind::Shared, LockKind::Exclusive];

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
            self.check_room(&request)?;
            self.set(&request);
            self.grant_waiting(request.space, request.inode, request.range);
            return Ok(Answer::Granted);
        };
        let becomes_shared = self.becomes_shared(&request, kind);
        let is_change = request.space == LockSpace::Whole && self.changes_flock(&request, kind);
        if is_change {
            // flock(2): a change of kind is a removal followed by a new lock, also if the new one
            // can't be had.
            self.set(&LockRequest {
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
        let LockRequest {
            space,
            inode,
            owner,
            ..
        } = request;
        if !self.is_stopped(&request, kind) {
            self.check_room(&request)?;
            self.set(&request);
            return Ok(Answer::Granted);
        }
        let Some(waker) = waker else {
            return Err(ErrorKind::WouldBlock.into());
        };
        if self.closes_circle(&request) {
            return Err(ErrorKind::WouldDeadlock.into());
        }
        let user = request.taker.user;
        if !self.charges.may_wait(user) {
            return Err(Error::new(
                ErrorKind::TooManyLocks,
                "too many lock requests of this user, or of all, are waiting",
            ));
        }
        self.check_room(&request)?;
        self.charges.wait(user);
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.insert(ticket, Waiter { request, waker });
        let queue = self.queues.entry((space, inode)).or_default();
        queue.insert(ticket);
        self.waits_of.insert((owner, ticket));
        Ok(Answer::Waits(ticket))
    }

    /// The first lock of another owner that stops this one, by start. Neighbours of it that look
    /// the same to others are shown as one.
    pub(super) fn conflict(
        &self,
        space: LockSpace,
        inode: InodeId,
        owner: LockOwner,
        range: LockRange,
        kind: LockKind,
    ) -> Option<HeldLock> {
        let crowd = self.crowds.get(&(space, inode));
        let is_ordered = crowd.is_some_and(|crowd| crowd.spans.is_some());
        let enough = if is_ordered { 1 } else { usize::MAX };
        let stoppers = kinds_that_stop(kind).chunks(1).flat_map(|kind| {
            let of_kind = self.stoppers(space, inode, owner, range, kind);
            of_kind.take(enough)
        });
        let first = stoppers.min_by_key(|held| held.range.start)?;
        Some(self.with_neighbours(space, inode, first))
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
        self.release(LockSpace::Range, inode, owner, |_| true)
    }

    /// The last descriptor of an open file is gone: what was taken through it goes, by whomever,
    /// and nothing that they took through another one. True if anything was.
    pub(super) fn release_open(&mut self, door: LockDoor, open: u64) -> bool {
        let file = (door, open);
        let places = self.through.range((file, Place::FIRST)..);
        let places = places.take_while(|((other, _), _)| *other == file);
        let places: Vec<Place> = places.map(|((_, place), _)| *place).collect();
        for place in &places {
            let Place {
                space,
                inode,
                owner,
            } = *place;
            self.release(space, inode, owner, |piece| piece.taker.open == open);
        }
        !places.is_empty()
    }

    /// Nobody comes through the door any more: what was held and asked for through it goes.
    pub(super) fn end_door(&mut self, door: LockDoor) {
        self.doors.remove(&door);
        let keys = self.held.keys().filter(|key| key.owner.door == door);
        let keys: Vec<Key> = keys.copied().collect();
        let places: BTreeSet<_> = keys.iter().map(|key| (key.space, key.inode)).collect();
        for key in keys {
            self.remove(&key);
        }
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
        for (space, inode) in places {
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
        (self.held.len(), self.waiting.len())
    }

    /// The locks held on an inode, by owner and start, with the open files that they belong to.
    #[cfg(test)]
    pub(super) fn held(&self, space: LockSpace, inode: InodeId) -> Vec<(HeldLock, u64)> {
        let here = |key: &Key| (key.space, key.inode) == (space, inode);
        let held = self.held.iter().filter(|(key, _)| here(key));
        let mut held: Vec<_> = held
            .map(|(key, piece)| (shown(key, piece), piece.taker.open))
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
        (0..count).for_each(|_| self.charges.hold(user));
    }

    /// From so many locks of an inode on it is known where they are.
    #[cfg(test)]
    pub(super) fn crowd_from(&mut self, count: usize) {
        self.crowd_from = count;
    }

    /// What is charged to all users together must be what is held and waited for.
    #[cfg(test)]
    pub(super) fn assert_charges(&self) {
        assert_eq!(self.charges.all(), (self.held.len(), self.waiting.len()));
        assert_eq!(self.through.values().sum::<usize>(), self.held.len());
        assert_eq!(self.waits_of.len(), self.waiting.len());
        let counts = self.crowds.values().map(|crowd| crowd.count);
        assert_eq!(counts.sum::<usize>(), self.held.len());
    }

    /// Whether another owner's lock stops this one.
    fn is_stopped(&self, request: &LockRequest, kind: LockKind) -> bool {
        let LockRequest {
            space,
            inode,
            owner,
            range,
            ..
        } = *request;
        self.stoppers(space, inode, owner, range, kinds_that_stop(kind))
            .next()
            .is_some()
    }

    /// Locks of other owners and of these kinds that share a byte with the range; in an inode with
    /// few locks only the first of each owner, in one with many those of each kind by start.
    fn stoppers(
        &self,
        space: LockSpace,
        inode: InodeId,
        owner: LockOwner,
        range: LockRange,
        kinds: &'static [LockKind],
    ) -> impl Iterator<Item = HeldLock> {
        let crowd = self.crowds.get(&(space, inode));
        let spans = crowd.and_then(|crowd| crowd.spans.as_deref());
        let few = spans
            .is_none()
            .then(|| self.conflicts(space, inode, owner, range, kinds));
        let by_kind = spans.into_iter().flat_map(move |spans| {
            let kinds = kinds.iter();
            kinds.map(move |kind| (*kind, &spans[*kind as usize]))
        });
        let many = by_kind.flat_map(move |(kind, spans)| {
            let others = spans.others(range, owner);
            others.map(move |span| Key {
                space,
                inode,
                owner: span.owner,
                kind,
                start: span.start,
            })
        });
        few.into_iter()
            .flatten()
            .chain(many.map(|key| shown(&key, &self.held[&key])))
    }

    /// For each other owner the first of its locks of these kinds that shares a byte with the range.
    fn conflicts(
        &self,
        space: LockSpace,
        inode: InodeId,
        owner: LockOwner,
        range: LockRange,
        stoppers: &'static [LockKind],
    ) -> impl Iterator<Item = HeldLock> {
        let first = move |other| {
            let firsts = stoppers
                .iter()
                .filter_map(move |kind| self.first_overlap(space, inode, other, *kind, range));
            firsts.min_by_key(|(key, _)| key.start)
        };
        let mut rest = self
            .held
            .range(Key::first(space, inode, LockOwner::FIRST)..);
        let mut passed = 0;
        let mut last = None;
        std::iter::from_fn(move || {
            loop {
                let (key, piece) = rest.next()?;
                if (key.space, key.inode) != (space, inode) {
                    return None;
                }
                if last != Some(key.owner) {
                    (last, passed) = (Some(key.owner), 0);
                }
                passed += 1;
                let stops = stoppers.contains(&key.kind)
                    && key.start <= range.end
                    && range.start <= piece.end;
                if key.owner == owner {
                    rest = self.behind(key);
                } else if stops || passed > PASSED_MAX {
                    rest = self.behind(key);
                    if let Some((key, piece)) = first(key.owner) {
                        return Some(shown(key, piece));
                    }
                }
            }
        })
    }

    /// What follows the locks of the same owner on the same inode.
    fn behind(&self, key: &Key) -> Range<'_, Key, Piece> {
        let last = Key {
            kind: LockKind::Exclusive,
            start: u64::MAX,
            ..*key
        };
        self.held.range((Bound::Excluded(last), Bound::Unbounded))
    }

    /// The first lock of an owner and kind that shares a byte with the range.
    fn first_overlap(
        &self,
        space: LockSpace,
        inode: InodeId,
        owner: LockOwner,
        kind: LockKind,
        range: LockRange,
    ) -> Option<(&Key, &Piece)> {
        let at = |start| Key {
            space,
            inode,
            owner,
            kind,
            start,
        };
        let before = self.held.range(at(0)..=at(range.start)).next_back();
        before
            .filter(|(_, piece)| piece.end >= range.start)
            .or_else(|| self.held.range(at(range.start)..=at(range.end)).next())
    }

    fn with_neighbours(&self, space: LockSpace, inode: InodeId, lock: HeldLock) -> HeldLock {
        let at = |start| Key {
            space,
            inode,
            owner: lock.owner,
            kind: lock.kind,
            start,
        };
        let mut range = lock.range;
        let before = self.held.range(at(0)..at(range.start)).rev();
        for (key, piece) in before.take(NEIGHBOURS_MAX) {
            if piece.end.checked_add(1) != Some(range.start) {
                break;
            }
            range.start = key.start;
        }
        for _ in 0..NEIGHBOURS_MAX {
            let next = range.end.checked_add(1);
            let Some(piece) = next.and_then(|next| self.held.get(&at(next))) else {
                break;
            };
            range.end = piece.end;
        }
        HeldLock { range, ..lock }
    }

    /// Whether the owner has a flock of the other kind.
    fn changes_flock(&self, request: &LockRequest, kind: LockKind) -> bool {
        KINDS.iter().any(|other| {
            let (space, inode, owner) = (request.space, request.inode, request.owner);
            let found = self.first_overlap(space, inode, owner, *other, LockRange::ALL);
            *other != kind && found.is_some()
        })
    }

    fn release(
        &mut self,
        space: LockSpace,
        inode: InodeId,
        owner: LockOwner,
        goes: impl Fn(&Piece) -> bool,
    ) -> bool {
        let from = Key::first(space, inode, owner);
        let own = self.held.range(from..);
        let own =
            own.take_while(|(key, _)| (key.inode, key.owner, key.space) == (inode, owner, space));
        let keys: Vec<Key> = own
            .filter(|(_, piece)| goes(piece))
            .map(|(key, _)| *key)
            .collect();
        for key in &keys {
            self.remove(key);
        }
        if !keys.is_empty() {
            self.grant_waiting(space, inode, LockRange::ALL);
        }
        !keys.is_empty()
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
        self.charges.no_wait(taker.user);
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
                if !request.range.overlaps(range) || self.is_stopped(&request, kind) {
                    continue;
                }
                if self.becomes_shared(&request, kind) {
                    // Those that came earlier may be let in by this; by other grants nobody is.
                    freed = Some(request.range.hull(freed.unwrap_or(request.range)));
                }
                let waiter = self
                    .remove_waiting(ticket)
                    .expect("the ticket was found in the queue");
                self.set(&request);
                self.unclaimed.insert(ticket);
                self.granted.push(waiter.waker);
            }
        }
    }

    /// Whether a request makes an exclusive lock of its owner shared, or a part of one.
    fn becomes_shared(&self, request: &LockRequest, kind: LockKind) -> bool {
        let (space, inode, owner) = (request.space, request.inode, request.owner);
        let exclusive = LockKind::Exclusive;
        kind == LockKind::Shared
            && self
                .first_overlap(space, inode, owner, exclusive, request.range)
                .is_some()
    }

    /// Refuses what would leave the user with more locks than one may have. Letting go of bytes
    /// in the middle makes two locks of one.
    fn check_room(&self, request: &LockRequest) -> Result<()> {
        let LockRequest {
            space,
            inode,
            owner,
            range,
            ..
        } = *request;
        let split = KINDS.iter().find_map(|kind| {
            let (key, piece) = self.first_overlap(space, inode, owner, *kind, range)?;
            let joins = request.kind == Some(*kind) && piece.taker == request.taker;
            let splits = !joins && key.start < range.start && piece.end > range.end;
            splits.then_some(piece.taker.user)
        });
        // The open file, and the lock with it, may have been handed on to another user: both
        // halves stay charged to whom the lock is.
        let asker = request.taker.user;
        let more = usize::from(split == Some(asker)) + usize::from(request.kind.is_some());
        let of_other = split.filter(|user| *user != asker);
        if (more == 0 || self.charges.may_hold(asker, more))
            && of_other.is_none_or(|user| self.charges.may_hold(user, 1))
        {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::TooManyLocks,
            "this user, or all together, hold as many file locks as they may",
        ))
    }

    /// Gives the owner's range its new kind (or none), splitting and joining its own locks.
    fn set(&mut self, request: &LockRequest) {
        for kind in KINDS {
            self.cut(request, kind);
        }
        let Some(kind) = request.kind else { return };
        let LockRange { mut start, mut end } = request.range;
        let taker = request.taker;
        let at = |start| Key {
            space: request.space,
            inode: request.inode,
            owner: request.owner,
            kind,
            start,
        };
        let before = self.held.range(at(0)..at(start)).next_back();
        if let Some((key, piece)) = before.map(|(key, piece)| (*key, *piece))
            && piece.end.checked_add(1) == Some(start)
            && piece.taker == taker
        {
            self.remove(&key);
            start = key.start;
        }
        let next = end.checked_add(1).map(at);
        if let Some(key) = next
            && let Some(piece) = self.held.get(&key).copied()
            && piece.taker == taker
        {
            self.remove(&key);
            end = piece.end;
        }
        self.insert(at(start), Piece { end, taker });
    }

    /// Takes the request's range out of the owner's locks of one kind.
    fn cut(&mut self, request: &LockRequest, kind: LockKind) {
        let LockRequest {
            space,
            inode,
            owner,
            range,
            ..
        } = *request;
        while let Some((key, piece)) = self.first_overlap(space, inode, owner, kind, range) {
            let (key, piece) = (*key, *piece);
            self.remove(&key);
            if key.start < range.start {
                let end = range.start - 1;
                self.insert(key, Piece { end, ..piece });
            }
            if piece.end > range.end {
                let start = range.end + 1;
                self.insert(Key { start, ..key }, piece);
            }
        }
    }

    fn insert(&mut self, key: Key, piece: Piece) {
        self.charges.hold(piece.taker.user);
        *self.through.entry(key.through(&piece)).or_default() += 1;
        let old = self.held.insert(key, piece);
        assert!(old.is_none(), "a lock was put over another one");
        let crowd = self.crowds.entry((key.space, key.inode)).or_default();
        crowd.count += 1;
        if let Some(spans) = &mut crowd.spans {
            spans[key.kind as usize].add(key.span(&piece));
        } else if crowd.count >= self.crowd_from {
            let mut spans = Box::<[Spans; 2]>::default();
            let all = self
                .held
                .range(Key::first(key.space, key.inode, LockOwner::FIRST)..)
                .take_while(|(other, _)| (other.space, other.inode) == (key.space, key.inode));
            for (other, piece) in all {
                spans[other.kind as usize].add(other.span(piece));
            }
            crowd.spans = Some(spans);
        }
    }

    fn remove(&mut self, key: &Key) {
        let piece = self.held.remove(key).expect("only held locks are removed");
        let place = (key.space, key.inode);
        let crowd = self.crowds.get_mut(&place).expect("each lock is counted");
        crowd.count -= 1;
        if let Some(spans) = &mut crowd.spans {
            spans[key.kind as usize].remove(&key.span(&piece));
        }
        if crowd.count == 0 {
            self.crowds.remove(&place);
        }
        self.charges.no_hold(piece.taker.user);
        let through = key.through(&piece);
        let count = self
            .through
            .get_mut(&through)
            .expect("each held lock is counted");
        *count -= 1;
        if *count == 0 {
            self.through.remove(&through);
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
            let LockRequest {
                inode,
                owner,
                range,
                ..
            } = waits;
            for stopper in self.stoppers(LockSpace::Range, inode, owner, range, kinds) {
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

impl LockOwner {
    /// The first one in the order of all.
    const FIRST: Self = Self {
        door: LockDoor {
            session: SessionId(0),
            number: 0,
        },
        id: 0,
    };
}

impl Key {
    /// The first place of an owner.
    fn first(space: LockSpace, inode: InodeId, owner: LockOwner) -> Self {
        Self {
            space,
            inode,
            owner,
            kind: LockKind::Shared,
            start: 0,
        }
    }

    /// The lock as others see where it is.
    fn span(&self, piece: &Piece) -> Span {
        Span {
            start: self.start,
            end: piece.end,
            owner: self.owner,
        }
    }

    /// Whose lock through which open file it is.
    fn through(&self, piece: &Piece) -> (OpenFile, Place) {
        let place = Place {
            space: self.space,
            inode: self.inode,
            owner: self.owner,
        };
        ((self.owner.door, piece.taker.open), place)
    }
}

impl Place {
    const FIRST: Self = Self {
        space: LockSpace::Whole,
        inode: InodeId(0),
        owner: LockOwner::FIRST,
    };
}

/// Locks of which kinds stop one of this kind.
fn kinds_that_stop(kind: LockKind) -> &'static [LockKind] {
    match kind {
        LockKind::Shared => &KINDS[1..],
        LockKind::Exclusive => &KINDS,
    }
}

fn shown(key: &Key, piece: &Piece) -> HeldLock {
    HeldLock {
        owner: key.owner,
        kind: key.kind,
        range: LockRange {
            start: key.start,
            end: piece.end,
        },
        pid: piece.taker.pid,
    }
}
