//! Slows writers down as dirty data approaches its budget: each write waits a little, instead of
//! all of them for long once the budget is full.
//!
//! The speed at which dirty bytes are stored and published is measured. Above a fraction of the
//! budget, writes are slowed down: to that speed at [`EVEN`], less below it, more above it. So the
//! use of the budget settles at [`EVEN`]; the rest absorbs writes while the disk or the log stalls
//! for a moment.

use parking_lot::Mutex;
use std::time::Duration;
use world::Instant;

/// Sixteenths of the budget: below the first, no write waits; at the second, writes are slowed down
/// to the speed at which dirty bytes are published.
const FREE: u64 = 10;
const EVEN: u64 = 13;
const WHOLE: u64 = 16;
/// Shortest period of one measurement.
const MEASURED_MIN: Duration = Duration::from_millis(250);
/// Shorter waits are added to the next one, because waking up costs more.
const WAIT_MIN: Duration = Duration::from_millis(2);
/// Longest wait of one write, and of a write whose own bytes are published in no time: it waits for
/// at most so many times its own time, because the rest is for larger writes of others.
const WAIT_MAX: Duration = Duration::from_millis(50);
const WAIT_MAX_SMALL: Duration = Duration::from_millis(10);
const OWN_TIMES_MAX: u64 = 8;
/// Unused time that later writes may use, at most.
const CREDIT: Duration = Duration::from_millis(10);
/// Lowest speed assumed, in bytes per second: a wrong measurement must not stop all writers.
const SPEED_MIN: u64 = 1 << 20;

/// How fast dirty bytes are published, and until when earlier writers have used up the time.
#[derive(Default)]
pub(crate) struct Pace {
    state: Mutex<Option<State>>,
}

struct State {
    /// Start of the running measurement, if there has been enough to publish since, and the bytes
    /// published since.
    since: Option<Instant>,
    went: u64,
    /// Bytes per second, once measured.
    speed: Option<u64>,
    taken_until: Instant,
}

impl Pace {
    /// Notes bytes that are no longer dirty, and how many of the budget still are. While little is
    /// dirty, the speed of publishing is that of the writers and says nothing.
    pub(crate) fn note_gone(&self, bytes: u64, dirty: u64, budget: u64, now: Instant) {
        let mut state = self.state.lock();
        let state = state.get_or_insert(State {
            since: None,
            went: 0,
            speed: None,
            taken_until: now,
        });
        if dirty <= free(budget) {
            state.since = None;
            return;
        }
        let Some(since) = state.since else {
            (state.since, state.went) = (Some(now), 0);
            return;
        };
        state.went += bytes;
        let time = now - since;
        if time >= MEASURED_MIN {
            let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            let seen = scaled(state.went, 1_000_000_000, nanoseconds);
            let speed = state.speed.map_or(seen, |old| old / 2 + seen / 2);
            state.speed = Some(speed.max(SPEED_MIN));
            (state.since, state.went) = (Some(now), 0);
        }
    }

    /// How long a write of `bytes` must wait while `dirty` bytes of the budget are dirty; `None` if
    /// it needn't wait.
    pub(crate) fn wait(
        &self,
        bytes: u64,
        dirty: u64,
        budget: u64,
        now: Instant,
    ) -> Option<Duration> {
        let free = free(budget);
        if dirty <= free {
            return None;
        }
        let mut state = self.state.lock();
        let state = state.as_mut()?;
        let even = scaled(bytes, 1_000_000_000, state.speed?);
        // Nothing at `FREE`, the full time at `EVEN`, twice as much at `WHOLE`.
        let nanoseconds = scaled(even, dirty - free, budget / WHOLE * (EVEN - FREE));
        let begin = state.taken_until.max(now - CREDIT);
        state.taken_until = begin + Duration::from_nanos(nanoseconds);
        let wait = state.taken_until - now;
        if wait < WAIT_MIN {
            return None;
        }
        if wait > WAIT_MAX {
            state.taken_until = now + WAIT_MAX;
        }
        let own = Duration::from_nanos(nanoseconds.saturating_mul(OWN_TIMES_MAX));
        Some(wait.min(own.clamp(WAIT_MAX_SMALL, WAIT_MAX)))
    }
}

/// Up to this many dirty bytes, no write waits.
fn free(budget: u64) -> u64 {
    budget / WHOLE * FREE
}

/// `value * by / of` without overflow.
fn scaled(value: u64, by: u64, of: u64) -> u64 {
    let product = u128::from(value) * u128::from(by) / u128::from(of.max(1));
    u64::try_from(product).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use world::sim::Simulation;

    const MIB: u64 = 1 << 20;
    const BUDGET: u64 = 128 * MIB;

    fn begun() -> Instant {
        let simulation = Simulation::new(1);
        let moment = simulation.run(|world| async move { world.now() });
        moment.finished() + Duration::from_secs(1000)
    }

    /// One writer at full speed; 16 MiB per second are published in steps of 1 MiB, except for one
    /// second without any. Returns the most dirty bytes and the longest wait.
    fn run(pace: &Pace) -> (u64, Duration) {
        let mut now = begun();
        let end = now + Duration::from_secs(20);
        let (from, to) = (now + Duration::from_secs(15), now + Duration::from_secs(16));
        let (mut dirty, mut most, mut longest) = (0_u64, 0, Duration::ZERO);
        let mut next_gone = now + Duration::from_millis(62);
        while now < end {
            while next_gone <= now {
                if dirty >= MIB && !(from..to).contains(&next_gone) {
                    dirty -= MIB;
                    pace.note_gone(MIB, dirty, BUDGET, next_gone);
                }
                next_gone = next_gone + Duration::from_millis(62);
            }
            let wait = pace.wait(4096, dirty, BUDGET, now).unwrap_or_default();
            longest = longest.max(wait);
            now = now + wait + Duration::from_micros(40);
            dirty += 4096;
            most = most.max(dirty);
        }
        (most, longest)
    }

    #[test]
    fn writers_wait_a_little_each_and_the_budget_is_never_full() {
        let (most, longest) = run(&Pace::default());
        assert!(most < BUDGET, "{} MiB", most / MIB);
        assert!(most > BUDGET / WHOLE * EVEN, "{} MiB", most / MIB);
        assert!(longest <= WAIT_MAX, "{longest:?}");
    }

    #[test]
    fn writes_do_not_wait_while_little_is_dirty_or_nothing_is_known() {
        let pace = Pace::default();
        let now = begun();
        assert_eq!(pace.wait(MIB, BUDGET, BUDGET, now), None);
        let now = publish(&pace, now, MIB);
        assert_eq!(pace.wait(8 * MIB, BUDGET / 2, BUDGET, now), None);
        assert_eq!(pace.wait(8 * MIB, BUDGET, BUDGET, now), Some(WAIT_MAX));
    }

    /// A second in which so much is published every 50 ms while the budget is full.
    fn publish(pace: &Pace, begun: Instant, bytes: u64) -> Instant {
        let times = (0..20).map(|step| begun + Duration::from_millis(50) * step);
        times.for_each(|now| pace.note_gone(bytes, BUDGET, BUDGET, now));
        begun + Duration::from_secs(1)
    }

    #[test]
    fn a_time_without_work_does_not_count_as_slow() {
        let pace = Pace::default();
        let mut now = publish(&pace, begun(), 8 * MIB);
        // Little work, then none, then some again.
        for _ in 0..20 {
            now = now + Duration::from_millis(400);
            pace.note_gone(4096, 4096, BUDGET, now);
        }
        now = now + Duration::from_secs(3600);
        pace.note_gone(MIB, BUDGET, BUDGET, now);
        // 160 MiB per second: 26 µs for each page, twice as long while the budget is full.
        let begun = now;
        for _ in 0..1000 {
            now = now + pace.wait(4096, BUDGET, BUDGET, now).unwrap_or_default();
        }
        let waits = (now - begun).as_micros();
        assert!((20_000..70_000).contains(&waits), "{waits} µs");
    }

    #[test]
    fn a_disk_that_takes_seconds_for_each_batch_is_known_to_be_slow() {
        let pace = Pace::default();
        let mut now = begun();
        for _ in 0..5 {
            now = now + Duration::from_secs(3);
            pace.note_gone(6 * MIB, BUDGET, BUDGET, now);
        }
        // 2 MiB per second: 4 ms for two pages where both speeds are even; 10 ms are a credit.
        let even = BUDGET / WHOLE * EVEN;
        let waits = (0..10).map(|_| pace.wait(8192, even, BUDGET, now));
        let last = waits.last().flatten().unwrap_or_default().as_millis();
        assert!((25..=31).contains(&last), "{last} ms");
    }

    #[test]
    fn a_small_write_does_not_wait_for_all_that_large_ones_owe() {
        let pace = Pace::default();
        let now = publish(&pace, begun(), 8 * MIB);
        for _ in 0..64 {
            pace.wait(MIB, BUDGET, BUDGET, now);
        }
        let large = pace.wait(MIB, BUDGET, BUDGET, now);
        assert_eq!(large, Some(WAIT_MAX));
        assert_eq!(pace.wait(1, BUDGET, BUDGET, now), Some(WAIT_MAX_SMALL));
    }
}
