//! File locks of applications: kinds, byte ranges, owners, requests.

use crate::{InodeId, SessionId};
use serde::{Deserialize, Serialize};

/// Shared or exclusive. Where unlocking is possible too, it is `None` of an `Option`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LockKind {
    /// Many may hold it: LOCK_SH, F_RDLCK.
    Shared,
    /// One may hold it: LOCK_EX, F_WRLCK.
    Exclusive,
}

/// A byte range, both ends included, as the kernel sends it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte; `u64::MAX` locks to the end of the file, however long it becomes.
    pub end: u64,
}

impl LockRange {
    /// The whole file.
    pub const ALL: Self = Self {
        start: 0,
        end: u64::MAX,
    };

    /// Whether the ranges have a byte in common.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// The smallest range that contains both.
    #[must_use]
    pub fn hull(self, other: Self) -> Self {
        Self {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }
}

/// One mount (or other door) of a session. Each door numbers its own owners and open files, and
/// their locks end with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LockDoor {
    /// The client's session.
    pub session: SessionId,
    /// Its number there, never reused.
    pub number: u32,
}

/// The owner of a lock: a process (POSIX locks) or an open file (OFD locks, flock), by the number
/// that the kernel gives it. The kernel doesn't say which of the two it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct LockOwner {
    /// The door to which it belongs.
    pub door: LockDoor,
    /// The number.
    pub id: u64,
}

/// The origin of a lock request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockTaker {
    /// The open file through which it is made.
    pub open: u64,
    /// The process, for other processes' F_GETLK; 0 if unknown.
    pub pid: u32,
    /// The user to whom it is charged.
    pub user: u32,
}

/// A held lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum LockSpace {
    /// flock(2): the whole file.
    Whole,
    /// fcntl(2): POSIX and OFD locks.
    Range,
}

/// A request to lock (`kind`) or unlock (`None`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
    pub const FIRST: Self = Self {
        door: LockDoor {
            session: SessionId(0),
            number: 0,
        },
        id: 0,
    };
}
