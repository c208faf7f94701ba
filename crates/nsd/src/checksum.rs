//! Checksums: CRC-32C, masked so that a good unit of another blob never matches.

use crate::key::Key;
use model::Payload;
use model::checksum::crc32c_of_units;
pub(crate) use model::checksum::{UNIT, crc32c, crc32c_without};

/// The mix step of SplitMix64; part of the on-disk format.
fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Hash of a key; part of the on-disk format (masks) and of group digests.
pub(crate) fn key_hash(key: &Key) -> u64 {
    let mut hash = 0x5348_414c_4542_4c42;
    for chunk in key.bytes().chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = mix(hash ^ u64::from_le_bytes(word));
    }
    hash
}

fn mask(key_hash: u64, unit: u32) -> u32 {
    let spread = u64::from(unit)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mix(key_hash ^ spread) >> 32) as u32
}

/// Units that `length` bytes need.
pub(crate) fn units_of(length: u32) -> u32 {
    length.div_ceil(model::limits::UNIT_BYTES)
}

/// The checksums stored for a payload, derived from those that came with it.
pub(crate) fn unit_checksums(key: &Key, payload: &Payload) -> Vec<u32> {
    let hash = key_hash(key);
    let units = payload.units().iter().zip(0u32..);
    units
        .map(|(unit, index)| unit ^ mask(hash, index))
        .collect()
}

/// CRC-32C of whole units from `first` on, from the checksums stored for them.
pub(crate) fn crc_of_units(key: &Key, first: u32, checksums: &[u32]) -> u32 {
    let hash = key_hash(key);
    let units = checksums.iter().zip(first..);
    crc32c_of_units(units.map(|(checksum, index)| checksum ^ mask(hash, index)))
}

/// Whether each unit from `first` on matches its own of the checksums; `bytes` as for
/// [`first_mismatch`].
pub(crate) fn all_match(key: &Key, first: u32, bytes: &[u8], checksums: &[u32]) -> bool {
    let hash = key_hash(key);
    let units = bytes.chunks(UNIT).zip(first..).zip(checksums);
    bytes.len().div_ceil(UNIT) == checksums.len()
        && units
            .into_iter()
            .all(|((unit, index), expected)| crc32c(unit) ^ mask(hash, index) == *expected)
}

/// Checks the units from `first` on; `bytes` starts on a unit's border and ends on one or at the
/// payload's end. Returns the first unit that doesn't match.
pub(crate) fn first_mismatch(
    key: &Key,
    first: u32,
    bytes: &[u8],
    checksums: &[u32],
) -> Option<u32> {
    let hash = key_hash(key);
    bytes.chunks(UNIT).zip(first..).find_map(|(unit, index)| {
        let expected = checksums.get(index as usize)?;
        (crc32c(unit) ^ mask(hash, index) != *expected).then_some(index)
    })
}

/// Checksum of a checksum table; vouches for the whole payload.
pub(crate) fn table_checksum(key: &Key, checksums: &[u32]) -> u32 {
    let mut bytes = Vec::with_capacity(checksums.len() * 4);
    for checksum in checksums {
        bytes.extend_from_slice(&checksum.to_le_bytes());
    }
    crc32c(&bytes) ^ mask(key_hash(key), u32::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use model::{EntryNumber, ShardId};

    #[test]
    fn a_good_unit_of_another_blob_or_place_never_fits() {
        let key = |number| Key::log(ShardId(1), EntryNumber(number));
        let payload = vec![7; 3 * UNIT + 5];
        let checksums = unit_checksums(&key(1), &Bytes::from(payload.clone()).into());
        assert_eq!(checksums.len(), 4);
        assert_eq!(first_mismatch(&key(1), 0, &payload, &checksums), None);
        assert_eq!(
            first_mismatch(&key(1), 1, &payload[UNIT..], &checksums),
            None
        );
        assert_eq!(first_mismatch(&key(2), 0, &payload, &checksums), Some(0));
        assert_eq!(
            first_mismatch(&key(1), 1, &payload[..UNIT], &[0, checksums[0]]),
            Some(1)
        );
    }
}
