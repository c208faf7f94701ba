//! What is owed for bytes that are moved faster than they may be.

use crate::Instant;
use std::time::Duration;

/// What is owed is counted in parts of a byte: so many.
const PARTS: u128 = 1_000_000_000;

/// What is owed for bytes that were read or written, or are about to be, at a pace that may change: time pays it. Whoever rests
/// saves nothing. Pure.
#[derive(Clone, Copy, Default, Debug)]
pub struct Debt {
    /// In billionths of a byte.
    owed: u128,
    /// Until when it was paid.
    paid_until: Option<Instant>,
}

impl Debt {
    /// Time has passed, in which so many bytes per second were paid.
    pub fn pay(&mut self, now: Instant, bytes_per_second: u64) {
        let passed = self
            .paid_until
            .map_or(Duration::ZERO, |until| now.since(until));
        let paid = passed
            .as_nanos()
            .saturating_mul(u128::from(bytes_per_second));
        self.owed = self.owed.saturating_sub(paid);
        self.paid_until = Some(now);
    }

    /// These bytes are owed as well. The time before must have been paid.
    pub fn owe(&mut self, bytes: u64) {
        self.owed = self.owed.saturating_add(u128::from(bytes) * PARTS);
    }

    /// How long the rest takes at this many bytes per second, of which there must be some.
    #[must_use]
    pub fn rest(&self, bytes_per_second: u64) -> Duration {
        let nanos = self.owed.div_ceil(u128::from(bytes_per_second));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Paying the rest takes as long at the second pace, in bytes per second, as it would have at the first one.
    pub fn change_pace(&mut self, from: u64, to: u64) {
        let owed = self.owed.saturating_mul(u128::from(to));
        self.owed = owed / u128::from(from);
    }
}
