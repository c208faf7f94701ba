//! Random numbers of the simulation: independent streams from one seed.

use crate::split_mix::split_mix;

/// A stream of random numbers determined by its seed.
#[derive(Clone, Debug)]
pub(super) struct RandomStream {
    state: u64,
}

impl RandomStream {
    /// Stream number `stream` of `seed`; streams of one seed are unrelated.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let (_, mixed) = split_mix(seed);
        let (_, state) = split_mix(mixed ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self { state }
    }

    pub(super) fn next(&mut self) -> u64 {
        let (state, number) = split_mix(self.state);
        self.state = state;
        number
    }

    /// A number in `0..bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below zero");
        self.next() % bound
    }

    pub(super) fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }

    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.below(last as u64 + 1) as usize;
            items.swap(last, other);
        }
    }
}
