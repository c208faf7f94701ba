//! Hash maps whose order is the same in every process, so that simulated runs repeat.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// A hash map with a fixed hasher: the same insertions give the same order in every run.
pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<FixedHasher>>;

/// A hash set with a fixed hasher.
pub type Set<K> = HashSet<K, BuildHasherDefault<FixedHasher>>;

/// A fast hasher without a random seed. Doesn't resist keys chosen by an attacker: use it only for
/// keys that we number ourselves, or with a secret seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct FixedHasher {
    state: u64,
}

/// Odd, with well-spread bits: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl FixedHasher {
    /// A hasher with a seed; without knowing the seed an attacker can't choose keys that collide.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self { state: seed }
    }

    #[inline]
    fn fold(&mut self, word: u64) {
        // A full 64x64 multiplication with both halves combined: every input bit affects the whole
        // state, whereas in a plain wrapping multiplication high bits don't.
        let wide = u128::from(self.state ^ word ^ SPREAD) * u128::from(SPREAD.rotate_left(17));
        self.state = (wide as u64) ^ ((wide >> 64) as u64).rotate_left(32);
    }
}

impl Hasher for FixedHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.state ^ (self.state >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.fold(u64::from_le_bytes(
                chunk.try_into().expect("chunks of exactly eight"),
            ));
        }
        let rest = chunks.remainder();
        let mut last = [0_u8; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.fold(u64::from_le_bytes(last) ^ ((bytes.len() as u64) << 56));
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.fold(u64::from(value));
    }

    #[inline]
    fn write_u16(&mut self, value: u16) {
        self.fold(u64::from(value));
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.fold(u64::from(value));
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.fold(value);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.fold(value as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::Hash;

    fn hash_of(value: impl Hash) -> u64 {
        let mut hasher = FixedHasher::default();
        value.hash(&mut hasher);
        hasher.finish()
    }

    #[test]
    fn equal_keys_hash_equal_in_every_process() {
        // A change of these values changes the order of maps, so that recorded seeds no longer
        // replay the run they were recorded for. The values come from the same arithmetic written
        // in another language.
        assert_eq!(hash_of(1_u64), 0xb84e_a1c4_0a72_b400);
        assert_eq!(hash_of(2_u64), 0xd3e5_a59d_4fab_23aa);
        assert_eq!(hash_of("shale"), 0x5f8a_c05d_9ec6_cb8e);
        assert_eq!(hash_of(String::from("shale")), hash_of("shale"));
        let mut whole = FixedHasher::default();
        whole.write(&std::array::from_fn::<u8, 20, _>(|at| at as u8));
        assert_eq!(whole.finish(), 0x696f_de13_1b85_f5d9);
        assert_ne!(hash_of([0_u8; 7]), hash_of([0_u8; 8]));
    }

    #[test]
    fn consecutive_numbers_spread_over_all_low_bits() {
        let buckets: Set<u64> = (0..4096_u64).map(|number| hash_of(number) % 4096).collect();
        assert!(
            buckets.len() > 2000,
            "only {} of 4096 buckets used",
            buckets.len()
        );
    }
}
