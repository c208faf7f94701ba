//! The SplitMix64 generator, for random numbers that aren't secrets.

/// One step of the SplitMix64 generator: next state and number.
pub(crate) fn split_mix(state: u64) -> (u64, u64) {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut number = state;
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (state, number ^ (number >> 31))
}
