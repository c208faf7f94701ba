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
/// Shortest and longest period of one measurement. Longer ones are ignored: there was nothing to
/// publish, or everything stalled.
const MEASURED_MIN: Duration = Duration::from_millis(250);
const MEASURED_MAX: Duration = Duration::from_secs(1);
/// Shorter waits are added to the next one, because waking up costs more.
const WAIT_MIN: Duration = Duration::from_millis(2);
/// Longest wait of one write.
const WAIT_MAX: Duration = Duration::from_millis(50);
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
    /// Start of the running measurement, and the bytes published since.
    since: Instant,
    went: u64,
    /// Bytes per second, once measured.
    speed: Option<u64>,
    taken_until: Instant,
}

impl Pace {
    /// Notes bytes that are no longer dirty.
    pub(crate) fn note_gone(&self, bytes: u64, now: Instant) {
        let mut state = self.state.lock();
        let state = state.get_or_insert(State {
            since: now,
            went: 0,
            speed: None,
            taken_until: now,
        });
        let time = now - state.since;
        if time > MEASURED_MAX {
            (state.since, state.went) = (now, 0);
            return;
        }
        state.went += bytes;
        if time >= MEASURED_MIN {
            let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            let seen = scaled(state.went, 1_000_000_000, nanoseconds);
            let speed = state.speed.map_or(seen, |old| old / 2 + seen / 2);
            state.speed = Some(speed.max(SPEED_MIN));
            (state.since, state.went) = (now, 0);
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
        let free = budget / WHOLE * FREE;
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
        Some(wait.min(WAIT_MAX))
    }
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
                    pace.note_gone(MIB, next_gone);
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
    fn nobody_waits_while_little_is_dirty_or_nothing_is_known() {
        let pace = Pace::default();
        let now = begun();
        assert_eq!(pace.wait(MIB, BUDGET, BUDGET, now), None);
        for step in 0..20 {
            pace.note_gone(MIB, now + Duration::from_millis(50) * step);
        }
        let now = now + Duration::from_secs(1);
        assert_eq!(pace.wait(8 * MIB, BUDGET / 2, BUDGET, now), None);
        assert_eq!(pace.wait(8 * MIB, BUDGET, BUDGET, now), Some(WAIT_MAX));
    }

    #[test]
    fn a_time_without_work_does_not_count_as_slow() {
        let pace = Pace::default();
        let mut now = begun();
        for _ in 0..20 {
            now = now + Duration::from_millis(50);
            pace.note_gone(8 * MIB, now);
        }
        now = now + Duration::from_secs(3600);
        pace.note_gone(MIB, now);
        // 160 MiB per second: 26 µs for each page, twice as long while the budget is full.
        let begun = now;
        for _ in 0..1000 {
            now = now + pace.wait(4096, BUDGET, BUDGET, now).unwrap_or_default();
        }
        let waits = (now - begun).as_micros();
        assert!((20_000..70_000).contains(&waits), "{waits} µs");
    }
}
