//! What a file lock covers and whom it keeps out.

/// Shared or exclusive. Where a lock can also be let go, that is `None` of an `Option`.
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

    /// Whether a byte is in both.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// The smallest range with both.
    #[must_use]
    pub fn hull(self, other: Self) -> Self {
        Self {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }
}
