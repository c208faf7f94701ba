//! Points in time: of files, and of a machine's own clock.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Nanoseconds since 1970-01-01 UTC; negative before it. Covers the years 1677 to 2262.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Converts the seconds and nanoseconds of a `struct timespec`; clips values out of range.
    #[must_use]
    pub fn from_timespec(seconds: i64, nanoseconds: u32) -> Self {
        Self(
            seconds
                .saturating_mul(1_000_000_000)
                .saturating_add(i64::from(nanoseconds)),
        )
    }

    /// A file's mtime after a program has written to it at `written`, from the mtime and ctime that it had. Writes come in
    /// any order, and clocks can be set back, so a later time stays; but one ahead of ctime is one that a program
    /// has set (utimes), and the write replaces it.
    #[must_use]
    pub fn after_write(self, ctime: Self, written: Self) -> Self {
        match self > ctime {
            true => written,
            false => self.max(written),
        }
    }

    /// Seconds, rounded towards the past.
    #[must_use]
    pub fn seconds(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// Nanoseconds inside the second, 0..1e9.
    #[must_use]
    pub fn nanoseconds(self) -> u32 {
        self.0.rem_euclid(1_000_000_000) as u32
    }

    /// The point `duration` after this one.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)),
        )
    }

    /// The time that an operation on an object gets: the client's clock, but always later than the
    /// object's last change, so that an effect is never dated before its cause.
    #[must_use]
    pub fn after(self, last_change: Timestamp) -> Self {
        self.max(Timestamp(last_change.0.saturating_add(1)))
    }
}

/// Time since some moment before the machine's daemon started, by a clock that never jumps and also
/// runs while the machine sleeps (CLOCK_BOOTTIME). Moments of different machines can't be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment(pub Duration);

impl Moment {
    /// The moment `after` this one.
    #[must_use]
    pub fn plus(self, after: Duration) -> Moment {
        Moment(self.0.saturating_add(after))
    }

    /// Time from `earlier` to this moment; zero if it isn't earlier.
    #[must_use]
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
