//! The clock that all programs of a lab share.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of a clock that all processes of this machine share.
pub(super) fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
