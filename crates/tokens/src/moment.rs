//! A point in time of one machine's clock.

use std::time::Duration;

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
