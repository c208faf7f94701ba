//! What is asked about locks: who, how, which bytes of what.

use model::{InodeId, LockKind, LockRange, SessionId};

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

/// Both.
pub(super) const KINDS: [LockKind; 2] = [LockKind::Shared, LockKind::Exclusive];

/// Locks of which kinds stop one of this kind.
pub(super) fn kinds_that_stop(kind: LockKind) -> &'static [LockKind] {
    match kind {
        LockKind::Shared => &KINDS[1..],
        LockKind::Exclusive => &KINDS,
    }
}
