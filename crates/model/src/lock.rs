//! The kind and byte range of a file lock, and which ranges conflict.

/// Shared or exclusive. Where unlocking is possible too, it is `None` of an `Option`.
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
