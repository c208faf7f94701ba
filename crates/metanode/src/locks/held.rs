//! The held locks, with their ranges and owners.
//!
//! One ordered map: the locks of one owner and kind on one inode are adjacent, sorted by start, so
//! that a lookup, a split and a join take few steps however many other locks there are. Range locks
//! of one owner never overlap, and adjacent ones of the same kind and open file are merged.

use super::charges::Charges;
use super::spans::{Span, Spans};
use model::lock::{HeldLock, LockDoor, LockOwner, LockRequest, LockSpace, LockTaker};
use model::{Error, ErrorKind, InodeId, LockKind, LockRange, Result};
use std::collections::BTreeMap;

/// Both kinds.
pub(super) const KINDS: [LockKind; 2] = [LockKind::Shared, LockKind::Exclusive];

/// Position of a held lock in the order of all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    pub(super) space: LockSpace,
    pub(super) inode: InodeId,
    pub(super) owner: LockOwner,
    pub(super) kind: LockKind,
    pub(super) start: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) end: u64,
    pub(super) taker: LockTaker,
}

/// An open file, by its number at its door.
type OpenFile = (LockDoor, u64);

/// An inode and owner that may hold locks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    pub(super) space: LockSpace,
    pub(super) inode: InodeId,
    pub(super) owner: LockOwner,
}

/// The locks of one inode.
#[derive(Default)]
pub(super) struct Crowd {
    count: usize,
    /// By kind; built when there are many locks, and kept until there are none.
    pub(super) spans: Option<Box<[Spans; 2]>>,
}

/// All held locks of a file system.
pub(super) struct Held {
    pub(super) locks: BTreeMap<Key, Piece>,
    /// The number of locks on each inode and, if they are many, their spans.
    pub(super) crowds: BTreeMap<(LockSpace, InodeId), Crowd>,
    /// An inode with at least this many locks has spans.
    crowd_from: usize,
    /// The number of locks by open file, inode and owner.
    through: BTreeMap<(OpenFile, Place), usize>,
    /// The users to whom locks and waiting requests are charged.
    pub(super) charges: Charges,
}

/// With fewer locks on an inode, they are examined one after another.
const CROWD_FROM: usize = 64;

impl Default for Held {
    fn default() -> Self {
        Self {
            locks: BTreeMap::new(),
            crowds: BTreeMap::new(),
            crowd_from: CROWD_FROM,
            through: BTreeMap::new(),
            charges: Charges::default(),
        }
    }
}

impl Held {
    /// Gives the owner's range its new kind (or none), splitting and joining its own locks.
    pub(super) fn set(&mut self, request: &LockRequest) {
        for kind in KINDS {
            self.cut(request, kind);
        }
        let Some(kind) = request.kind else { return };
        let LockRange { mut start, mut end } = request.range;
        let taker = request.taker;
        let at = |start| Place::of(request).at(kind, start);
        let before = self.locks.range(at(0)..at(start)).next_back();
        if let Some((key, piece)) = before.map(|(key, piece)| (*key, *piece))
            && piece.end.checked_add(1) == Some(start)
            && piece.taker == taker
        {
            self.remove(&key);
            start = key.start;
        }
        let next = end.checked_add(1).map(at);
        if let Some(key) = next
            && let Some(piece) = self.locks.get(&key).copied()
            && piece.taker == taker
        {
            self.remove(&key);
            end = piece.end;
        }
        self.insert(at(start), Piece { end, taker });
    }

    /// Releases the locks of an owner in a place for which `goes` returns true. True if there were
    /// any.
    pub(super) fn release(&mut self, place: Place, goes: impl Fn(&Piece) -> bool) -> bool {
        let own = self.locks.range(place.first()..);
        let own = own.take_while(|(key, _)| key.place() == place);
        let going = own.filter(|(_, piece)| goes(piece));
        let keys: Vec<Key> = going.map(|(key, _)| *key).collect();
        for key in &keys {
            self.remove(key);
        }
        !keys.is_empty()
    }

    /// Releases all locks held through a door; returns the inodes.
    pub(super) fn end_door(&mut self, door: LockDoor) -> Vec<(LockSpace, InodeId)> {
        let keys = self.locks.keys().filter(|key| key.owner.door == door);
        let keys: Vec<Key> = keys.copied().collect();
        for key in &keys {
            self.remove(key);
        }
        let mut inodes: Vec<_> = keys.iter().map(|key| (key.space, key.inode)).collect();
        inodes.dedup();
        inodes
    }

    /// The places of locks that were taken through an open file.
    pub(super) fn taken_through(&self, file: OpenFile) -> Vec<Place> {
        let places = self.through.range((file, Place::FIRST)..);
        let places = places.take_while(|((other, _), _)| *other == file);
        places.map(|((_, place), _)| *place).collect()
    }

    /// Refuses a request that would leave the user with too many locks. Unlocking bytes in the
    /// middle of a lock splits it.
    pub(super) fn check_room(&self, request: &LockRequest) -> Result<()> {
        let range = request.range;
        let split = KINDS.iter().find_map(|kind| {
            let (key, piece) = self.first_overlap(Place::of(request), *kind, range)?;
            let joins = request.kind == Some(*kind) && piece.taker == request.taker;
            let splits = !joins && key.start < range.start && piece.end > range.end;
            splits.then_some(piece.taker.user)
        });
        // The open file, and the lock with it, may have been passed on to another user: both halves
        // stay charged to the lock's user.
        let (session, asker) = (request.owner.door.session, request.taker.user);
        let more = usize::from(split == Some(asker)) + usize::from(request.kind.is_some());
        let of_other = split.filter(|user| *user != asker);
        if (more == 0 || self.charges.may_hold(session, asker, more))
            && of_other.is_none_or(|user| self.charges.may_hold(session, user, 1))
        {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::TooManyLocks,
            "this user, its node, or all together hold too many file locks",
        ))
    }

    /// Whether the owner has a flock of another kind than requested.
    pub(super) fn changes_flock(&self, request: &LockRequest) -> bool {
        let mut others = KINDS.iter().filter(|kind| request.kind != Some(**kind));
        request.space == LockSpace::Whole
            && others.any(|kind| {
                self.first_overlap(Place::of(request), *kind, LockRange::ALL)
                    .is_some()
            })
    }

    /// Whether a request turns an exclusive lock of its owner, or part of one, into a shared one.
    pub(super) fn becomes_shared(&self, request: &LockRequest) -> bool {
        request.kind == Some(LockKind::Shared)
            && self
                .first_overlap(Place::of(request), LockKind::Exclusive, request.range)
                .is_some()
    }

    /// The first lock of an owner and kind that overlaps the range.
    pub(super) fn first_overlap(
        &self,
        place: Place,
        kind: LockKind,
        range: LockRange,
    ) -> Option<(&Key, &Piece)> {
        let at = |start| place.at(kind, start);
        let before = self.locks.range(at(0)..=at(range.start)).next_back();
        before
            .filter(|(_, piece)| piece.end >= range.start)
            .or_else(|| self.locks.range(at(range.start)..=at(range.end)).next())
    }

    /// Removes the request's range from the owner's locks of one kind.
    fn cut(&mut self, request: &LockRequest, kind: LockKind) {
        let (place, range) = (Place::of(request), request.range);
        while let Some((key, piece)) = self.first_overlap(place, kind, range) {
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
        self.charges.hold(key.owner.door.session, piece.taker.user);
        *self.through.entry(key.through(&piece)).or_default() += 1;
        let old = self.locks.insert(key, piece);
        assert!(old.is_none(), "locks of one owner never overlap");
        let crowd = self.crowds.entry((key.space, key.inode)).or_default();
        crowd.count += 1;
        if let Some(spans) = &mut crowd.spans {
            spans[key.kind as usize].add(key.span(&piece));
        } else if crowd.count >= self.crowd_from {
            let mut spans = Box::<[Spans; 2]>::default();
            let all = self
                .locks
                .range(Place::first_of(key.space, key.inode).first()..)
                .take_while(|(other, _)| (other.space, other.inode) == (key.space, key.inode));
            for (other, piece) in all {
                spans[other.kind as usize].add(other.span(piece));
            }
            crowd.spans = Some(spans);
        }
    }

    fn remove(&mut self, key: &Key) {
        let piece = self.locks.remove(key).expect("only held locks are removed");
        let inode = (key.space, key.inode);
        let crowd = self.crowds.get_mut(&inode).expect("each lock is counted");
        crowd.count -= 1;
        if let Some(spans) = &mut crowd.spans {
            spans[key.kind as usize].remove(&key.span(&piece));
        }
        if crowd.count == 0 {
            self.crowds.remove(&inode);
        }
        self.charges
            .no_hold(key.owner.door.session, piece.taker.user);
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

    /// Sets the number of locks from which an inode has spans.
    #[cfg(test)]
    pub(super) fn crowd_from(&mut self, count: usize) {
        self.crowd_from = count;
    }

    /// Checks all counts against the locks held.
    #[cfg(test)]
    pub(super) fn assert_counts(&self) {
        let counts = self.crowds.values().map(|crowd| crowd.count);
        assert_eq!(counts.sum::<usize>(), self.locks.len());
        assert_eq!(self.through.values().sum::<usize>(), self.locks.len());
    }
}

impl Place {
    /// Where a request may change its owner's locks.
    pub(super) fn of(request: &LockRequest) -> Self {
        Self {
            space: request.space,
            inode: request.inode,
            owner: request.owner,
        }
    }

    const FIRST: Self = Self::first_of(LockSpace::Whole, InodeId(0));

    /// Before those of all owners on an inode.
    pub(super) const fn first_of(space: LockSpace, inode: InodeId) -> Self {
        Self {
            space,
            inode,
            owner: LockOwner::FIRST,
        }
    }

    pub(super) fn at(self, kind: LockKind, start: u64) -> Key {
        Key {
            space: self.space,
            inode: self.inode,
            owner: self.owner,
            kind,
            start,
        }
    }

    /// Before all locks of the owner here.
    pub(super) fn first(self) -> Key {
        self.at(LockKind::Shared, 0)
    }

    /// After all locks of the owner here.
    pub(super) fn last(self) -> Key {
        self.at(LockKind::Exclusive, u64::MAX)
    }
}

impl Key {
    pub(super) fn place(&self) -> Place {
        Place {
            space: self.space,
            inode: self.inode,
            owner: self.owner,
        }
    }

    /// The lock as a span.
    fn span(&self, piece: &Piece) -> Span {
        Span {
            start: self.start,
            end: piece.end,
            owner: self.owner,
        }
    }

    /// The open file through which the lock was taken, with its place.
    fn through(&self, piece: &Piece) -> (OpenFile, Place) {
        ((self.owner.door, piece.taker.open), self.place())
    }

    /// The lock as F_GETLK shows it.
    pub(super) fn shown(&self, piece: &Piece) -> HeldLock {
        HeldLock {
            owner: self.owner,
            kind: self.kind,
            range: LockRange {
                start: self.start,
                end: piece.end,
            },
            pid: piece.taker.pid,
        }
    }
}
