//! When a connection may be tried after attempts that failed. No I/O.

use std::time::Duration;
use world::Instant;

/// Pause after the first attempt that failed; doubles with each further one.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Longest pause between attempts, so that a node that is back is found soon.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Attempts in a row that came to no connection.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    failures: u32,
    /// No attempt before this.
    not_before: Option<Instant>,
    /// Why the last connection ended, or wasn't opened.
    last_fault: Option<String>,
}

impl Attempts {
    /// An attempt came to no hello. `random` spreads the pauses, so that nodes don't come in step.
    pub(crate) fn failed(&mut self, why: &str, now: Instant, random: u64) {
        self.last_fault = Some(why.into());
        let longest = PAUSE_MIN * 2_u32.saturating_pow(self.failures.min(16));
        let longest = longest.min(PAUSE_MAX);
        self.failures = self.failures.saturating_add(1);
        // Between half and all of it.
        let part = random % 512 + 512;
        self.not_before = Some(now + longest.mul_f64(part as f64 / 1024.0));
    }

    /// A connection that had worked has ended.
    pub(crate) fn ended(&mut self, why: &str) {
        self.last_fault = Some(why.into());
    }

    /// A connection works.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
        self.not_before = None;
    }

    /// Whether it is too early for another attempt.
    pub(crate) fn are_paused(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|time| now < time)
    }

    /// Why there is no connection.
    pub(crate) fn last_fault(&self) -> Option<&str> {
        self.last_fault.as_deref()
    }
}
