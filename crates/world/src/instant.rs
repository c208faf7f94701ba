//! Monotonic time that also counts while the machine is suspended.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point of monotonic time: nanoseconds since the machine started (`CLOCK_BOOTTIME`, so that
/// tokens and leases also age while a laptop or virtual machine sleeps). Only comparable with other
/// points since the same boot; never stored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Instant(pub(crate) u64);

impl Instant {
    /// The real clock; about 25 ns (a vDSO call, no system call).
    pub(crate) fn boot_time() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Self(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    /// Time since the machine started, the same in all processes.
    #[must_use]
    pub fn since_start(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// Time from `earlier` to this point; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// Zero if `earlier` is later than `self`.
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    /// Saturates at the machine's start.
    fn sub(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_minus_earlier_is_the_time_between_and_never_negative() {
        let start = Instant::boot_time();
        let later = start + Duration::from_millis(5);
        assert_eq!(later - start, Duration::from_millis(5));
        assert_eq!(start - later, Duration::ZERO);
        assert_eq!(later - Duration::from_millis(5), start);
    }

    #[test]
    fn the_boot_clock_never_goes_back() {
        let first = Instant::boot_time();
        assert!(Instant::boot_time() >= first);
    }
}
