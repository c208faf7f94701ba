//! An NSD's read speed regardless of its load, by which health compares NSDs.
//!
//! The time of a read is divided by the number of requests that the NSD had at that time, so that a
//! queue of other requests doesn't count against it. Medians over minutes: a burst changes them
//! little.

use std::time::Duration;
use world::Instant;

/// Minutes remembered.
const MINUTES: usize = 5;
const MINUTE: Duration = Duration::from_secs(60);
/// Minutes with fewer reads, and fewer minutes than this, aren't conclusive.
const READS_MIN: u32 = 10;
const MINUTES_MIN: usize = 3;
/// Microseconds in steps of a quarter of a power of two: up to 2^32 us.
const STEPS: usize = 4 * 32;

/// Times of the last minutes' reads.
#[derive(Default)]
pub(crate) struct ReadTimes {
    began: Option<Instant>,
    minutes: [Minute; MINUTES],
}

struct Minute {
    number: u64,
    reads: u32,
    /// Number of reads by time, in steps of [`step_of`]: divided by load, and including all
    /// waiting.
    alone: [u32; STEPS],
    whole: [u32; STEPS],
}

impl Default for Minute {
    fn default() -> Self {
        Self {
            number: 0,
            reads: 0,
            alone: [0; STEPS],
            whole: [0; STEPS],
        }
    }
}

impl ReadTimes {
    /// Records a read that took `took` while the NSD had `requests` requests, including this one.
    pub(crate) fn note(&mut self, now: Instant, took: Duration, requests: usize) {
        let number = self.minute(now);
        let minute = &mut self.minutes[number as usize % MINUTES];
        if minute.number != number {
            *minute = Minute {
                number,
                ..Minute::default()
            };
        }
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        minute.reads += 1;
        minute.alone[step_of(micros / requests.max(1) as u64)] += 1;
        minute.whole[step_of(micros)] += 1;
    }

    /// Median of the last minutes' read times divided by load; `None` if there were few reads.
    pub(crate) fn median(&mut self, now: Instant) -> Option<Duration> {
        let recent = self.recent(now);
        let telling = || recent.iter().filter(|minute| minute.reads >= READS_MIN);
        if telling().count() < MINUTES_MIN {
            return None;
        }
        share(telling().map(|minute| &minute.alone), 50)
    }

    /// Time within which 99 % of the last minutes' reads were answered; `None` if there were few.
    pub(crate) fn p99(&mut self, now: Instant) -> Option<Duration> {
        let recent = self.recent(now);
        let telling = recent.iter().filter(|minute| minute.reads >= READS_MIN);
        share(telling.map(|minute| &minute.whole), 99)
    }

    fn minute(&mut self, now: Instant) -> u64 {
        let began = *self.began.get_or_insert(now);
        // Never 0, which marks an unused minute.
        (now - began).as_secs() / MINUTE.as_secs() + MINUTES as u64
    }

    fn recent(&mut self, now: Instant) -> Vec<&Minute> {
        let number = self.minute(now);
        let minutes = self.minutes.iter();
        minutes
            .filter(|minute| minute.number + MINUTES as u64 > number)
            .collect()
    }
}

/// The time within which `percent` % were answered.
fn share<'a>(counts: impl Iterator<Item = &'a [u32; STEPS]>, percent: u64) -> Option<Duration> {
    let mut sums = [0u64; STEPS];
    for counts in counts {
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += u64::from(*count);
        }
    }
    let all: u64 = sums.iter().sum();
    let mut seen = 0;
    let step = sums.iter().position(|sum| {
        seen += sum;
        seen * 100 >= all * percent && all > 0
    });
    step.map(|step| Duration::from_micros(end_of(step)))
}

/// The step of a time: its power of two, and the quarter in it.
fn step_of(micros: u64) -> usize {
    let micros = micros.max(4);
    let power = micros.ilog2();
    let quarter = (micros >> (power - 2)) & 3;
    (power as usize * 4 + quarter as usize).min(STEPS - 1)
}

/// The end of a step.
fn end_of(step: usize) -> u64 {
    let (power, quarter) = (step / 4, step as u64 % 4);
    if power < 2 {
        return 4;
    }
    (5 + quarter) << (power - 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use world::sim::Simulation;

    fn begin() -> Instant {
        Simulation::new(1)
            .run(|world| async move { world.now() })
            .finished()
    }

    fn after_minutes(minutes: u64, took: Duration, requests: usize) -> (ReadTimes, Instant) {
        let mut pace = ReadTimes::default();
        let mut now = begin();
        for _ in 0..minutes * 30 {
            pace.note(now, took, requests);
            now = now + Duration::from_secs(2);
        }
        (pace, now)
    }

    #[test]
    fn steps_hold_their_times() {
        for micros in [4, 5, 7, 8, 100, 999, 1000, 123_456, 30_000_000, 1 << 31] {
            let end = end_of(step_of(micros));
            assert!(micros < end && end <= micros * 5 / 4 + 1, "{micros}: {end}");
        }
        assert_eq!(step_of(u64::MAX), STEPS - 1);
    }

    #[test]
    fn a_queue_makes_reads_late_and_not_slow() {
        let millisecond = Duration::from_millis(1);
        let (mut alone, now) = after_minutes(5, millisecond, 1);
        let (mut busy, _) = after_minutes(5, millisecond * 64, 64);
        assert_eq!(alone.median(now), busy.median(now));
        assert!(busy.p99(now) > alone.p99(now).map(|late| late * 50));
    }

    #[test]
    fn minutes_decide_and_old_ones_are_forgotten() {
        let (mut pace, now) = after_minutes(2, Duration::from_secs(1), 1);
        assert_eq!(pace.median(now), None, "two minutes are too few");
        let (mut pace, now) = after_minutes(5, Duration::from_secs(1), 1);
        assert!(pace.median(now) > Some(Duration::from_millis(999)));
        assert_eq!(pace.median(now + MINUTE * 6), None);
        assert_eq!(pace.p99(now + MINUTE * 6), None);
    }
}
