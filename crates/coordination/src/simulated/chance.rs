//! Random numbers of the simulated store, from its seed alone.

use std::time::Duration;

/// SplitMix64.
pub(super) struct Chance {
    state: u64,
}

impl Chance {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: mix(seed) }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// True in `per_thousand` of 1,000 cases.
    pub(super) fn hits(&mut self, per_thousand: u16) -> bool {
        // No number is drawn for what can't happen, so that a run without faults stays the same
        // when a fault is added.
        per_thousand > 0 && self.number() % 1000 < u64::from(per_thousand)
    }

    pub(super) fn coin(&mut self) -> bool {
        self.number() & 1 == 1
    }

    /// Whole milliseconds from `least` to `most`.
    pub(super) fn time(&mut self, least: Duration, most: Duration) -> Duration {
        let (least, most) = (least.as_millis() as u64, most.as_millis() as u64);
        Duration::from_millis(least + self.number() % (most - least + 1))
    }
}

/// Spreads a number over all bits.
pub(super) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
