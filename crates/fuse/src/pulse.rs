//! Whether the threads that serve a mount get anywhere.
//!
//! Each thread says whether it reads, runs a request, or waits in one (over io_uring: in all that it has). It alone writes
//! that, to memory of its own, so it costs about a nanosecond. A request that *runs* holds only short locks and does no
//! I/O: one that does so for seconds has met a lock that nobody lets go, or a machine that gives the thread no time. One
//! that *waits* is no sign of anything: it shows in `shale waiters` with its cause.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use world::Instant;

/// What a thread does: the lowest two bits of its pulse. The others count changes.
const READS: u64 = 0;
const RUNS: u64 = 1;
const WAITS: u64 = 2;
const STATE: u64 = 3;

/// What one thread does.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Pulse(AtomicU64);

impl Pulse {
    /// The thread begins with a request.
    pub(crate) fn runs(&self) {
        self.change(RUNS);
    }

    /// The request must wait for something.
    pub(crate) fn waits(&self) {
        self.change(WAITS);
    }

    /// The request is done.
    pub(crate) fn reads(&self) {
        self.change(READS);
    }

    fn change(&self, state: u64) {
        // Only its own thread writes it.
        let before = self.0.load(Ordering::Relaxed);
        let next = (before & !STATE).wrapping_add(STATE + 1) | state;
        self.0.store(next, Ordering::Relaxed);
    }
}

/// The pulses of a mount's threads.
#[derive(Debug, Default)]
pub(crate) struct Pulses(Mutex<Vec<Seen>>);

#[derive(Debug)]
struct Seen {
    pulse: Weak<Pulse>,
    value: u64,
    /// When it was first seen with this value.
    since: Option<Instant>,
}

impl Pulses {
    /// That of a new thread.
    pub(crate) fn add(&self) -> Arc<Pulse> {
        let pulse = Arc::new(Pulse::default());
        let mut all = self.0.lock();
        all.retain(|seen| seen.pulse.strong_count() > 0);
        all.push(Seen {
            pulse: Arc::downgrade(&pulse),
            value: 0,
            since: None,
        });
        pulse
    }

    /// How many threads run a request that doesn't wait.
    pub(crate) fn running(&self) -> usize {
        let all = self.0.lock();
        let pulses = all.iter().filter_map(|seen| seen.pulse.upgrade());
        pulses
            .filter(|pulse| pulse.0.load(Ordering::Relaxed) & STATE == RUNS)
            .count()
    }

    /// For how long the longest request that doesn't wait has been running: at least that long, as calls of this have
    /// seen it.
    pub(crate) fn longest_run(&self, now: Instant) -> Duration {
        let mut longest = Duration::ZERO;
        for seen in &mut *self.0.lock() {
            let Some(pulse) = seen.pulse.upgrade() else {
                continue;
            };
            let value = pulse.0.load(Ordering::Relaxed);
            if value != seen.value || seen.since.is_none() {
                (seen.value, seen.since) = (value, Some(now));
            }
            if value & STATE == RUNS {
                longest = longest.max(seen.since.map_or(Duration::ZERO, |since| now - since));
            }
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use world::sim::Simulation;

    #[test]
    fn only_a_request_that_neither_waits_nor_ends_counts() {
        let simulation = Simulation::new(1);
        let ran = simulation.run(async |world: world::World| {
            let pulses = Pulses::default();
            let (stuck, busy, waiting) = (pulses.add(), pulses.add(), pulses.add());
            let seconds = Duration::from_secs;
            stuck.runs();
            waiting.runs();
            waiting.waits();
            let begun = world.now();
            for second in 0..10 {
                busy.runs();
                assert_eq!(pulses.longest_run(begun + seconds(second)), seconds(second));
                assert_eq!(pulses.running(), 2);
                busy.reads();
            }
            stuck.reads();
            assert_eq!(pulses.longest_run(begun + seconds(20)), Duration::ZERO);
            assert_eq!(pulses.running(), 0);
            busy.runs();
            pulses.longest_run(begun + seconds(21));
            assert_eq!(pulses.longest_run(begun + seconds(24)), seconds(3));
            // A thread that has ended.
            drop(busy);
            assert_eq!(pulses.longest_run(begun + seconds(30)), Duration::ZERO);
        });
        ran.finished();
    }
}
