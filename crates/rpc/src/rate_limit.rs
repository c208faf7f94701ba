//! How many handshakes the urgent thread makes for those who aren't known yet: so many in a time (a token
//! bucket), so that they never keep it from leases. No I/O.

use std::time::Duration;
use world::Instant;

/// Most handshakes at once. Each takes about half a millisecond of the thread.
const BURST_MAX: u32 = 32;

/// Until there may be one more: 5 % of the thread, if all are used.
const ONE_EVERY: Duration = Duration::from_millis(10);

/// How many there may be now.
#[derive(Debug)]
pub(crate) struct RateLimit {
    left: u32,
    since: Instant,
}

impl RateLimit {
    /// All of them.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            left: BURST_MAX,
            since: now,
        }
    }

    /// Takes one, if there is one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let gained = now.since(self.since).as_nanos() / ONE_EVERY.as_nanos();
        match u32::try_from(gained) {
            Ok(gained) if gained < BURST_MAX - self.left => {
                self.left += gained;
                self.since = self.since + ONE_EVERY * gained;
            }
            _ => *self = Self::new(now),
        }
        let is_there = self.left > 0;
        self.left -= u32::from(is_there);
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use world::sim::Simulation;

    fn start() -> Instant {
        let outcome = Simulation::new(1).run(|world| async move { world.now() });
        outcome.finished()
    }

    #[test]
    fn a_node_that_comes_alone_always_gets_one() {
        let mut now = start();
        let mut limit = RateLimit::new(now);
        for _ in 0..1000 {
            now = now + ONE_EVERY;
            assert!(limit.take(now));
        }
    }

    proptest! {
        #[test]
        fn never_more_than_the_thread_can_spare(
            pauses in prop::collection::vec(0..30_000_u64, 1..400),
        ) {
            let begun = start();
            let (mut limit, mut now) = (RateLimit::new(begun), begun);
            let mut taken = 0;
            for pause in pauses {
                now = now + Duration::from_micros(pause);
                taken += u32::from(limit.take(now));
                let gained = now.since(begun).as_nanos() / ONE_EVERY.as_nanos();
                prop_assert!(u128::from(taken) <= u128::from(BURST_MAX) + gained);
            }
        }
    }
}
