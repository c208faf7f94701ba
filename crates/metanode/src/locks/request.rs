//! Lock requests: owner, kind, range and file.

use model::{InodeId, LockKind, LockRange, SessionId};

/// One mount (or other door) of a session. Each door numbers its own owners and open files, and
/// their locks end with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockDoor {
    /// The client's session.
    pub session: SessionId,
    /// Its number there, never reused.
    pub number: u32,
}

/// The owner of a lock: a process (POSIX locks) or an open file (OFD locks, flock), by the number
/// that the kernel gives it. The kernel doesn't say which of the two it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockOwner {
    /// The door to which it belongs.
    pub door: LockDoor,
    /// The number.
    pub id: u64,
}

/// The origin of a lock request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockTaker {
    /// The open file through which it is made.
    pub open: u64,
    /// The process, for other processes' F_GETLK; 0 if unknown.
    pub pid: u32,
    /// The user to whom it is charged.
    pub user: u32,
}

/// A held lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldLock {
    /// Its owner.
    pub owner: LockOwner,
    /// Its kind.
    pub kind: LockKind,
    /// Its bytes.
    pub range: LockRange,
    /// The process that took it, for F_GETLK.
    pub pid: u32,
}

/// flock locks and range locks don't conflict with each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LockSpace {
    /// flock(2): the whole file.
    Whole,
    /// fcntl(2): POSIX and OFD locks.
    Range,
}

/// A request to lock (`kind`) or unlock (`None`).
#[derive(Clone, Copy, Debug)]
pub struct LockRequest {
    /// flock or range locks.
    pub space: LockSpace,
    /// The file.
    pub inode: InodeId,
    /// The owner.
    pub owner: LockOwner,
    /// The kind; `None` unlocks.
    pub kind: Option<LockKind>,
    /// The bytes; [`LockRange::ALL`] for flock.
    pub range: LockRange,
    /// The origin.
    pub taker: LockTaker,
}

impl LockOwner {
    /// The first one in the order of all.
    pub(super) const FIRST: Self = Self {
        door: LockDoor {
            session: SessionId(0),
            number: 0,
        },
        id: 0,
    };
}

/// Both kinds.
pub(super) const KINDS: [LockKind; 2] = [LockKind::Shared, LockKind::Exclusive];

/// The kinds of locks that conflict with one of this kind.
pub(super) fn kinds_that_stop(kind: LockKind) -> &'static [LockKind] {
    match kind {
        LockKind::Shared => &KINDS[1..],
        LockKind::Exclusive => &KINDS,
    }
}
