//! CRC-32C of whole payloads and of the 4 KiB units that NSDs check.
//!
//! The writer computes a payload's checksums once, and they travel with it to the NSD, so a later
//! read detects any change made on the way. The checksum of the whole payload is derived from those
//! of its units, without reading the bytes again.

use crate::limits::UNIT_BYTES;
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

/// Bytes of a unit, as a length in memory.
pub const UNIT: usize = UNIT_BYTES as usize;

/// CRC-32C (Castagnoli; iSCSI) of the bytes.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC-32C of bytes that are split into several chunks, in order.
#[must_use]
pub fn crc32c_of_chunks<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for chunk in chunks {
        digest.update(chunk);
    }
    narrow(digest.finalize())
}

/// CRC-32C of the bytes with the four at `at` taken as zero, for blocks that contain their own
/// checksum.
#[must_use]
pub fn crc32c_without(bytes: &[u8], at: usize) -> u32 {
    crc32c_of_chunks([&bytes[..at], &[0; 4], &bytes[at + 4..]])
}

/// Bytes to be stored, with the CRC-32C of each 4 KiB unit; the last unit may be shorter. Cloning
/// shares both.
#[derive(Clone)]
pub struct Payload {
    bytes: Bytes,
    units: Arc<[u32]>,
}

impl Payload {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// CRC-32C of each unit.
    #[must_use]
    pub fn units(&self) -> &[u32] {
        &self.units
    }

    /// Bytes of the payload.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes with checksums that were computed elsewhere; `None` if there isn't one for each unit.
    #[must_use]
    pub fn with_units(bytes: Bytes, units: Vec<u32>) -> Option<Self> {
        let units: Arc<[u32]> = units.into();
        (units.len() == bytes.len().div_ceil(UNIT)).then_some(Self { bytes, units })
    }

    /// CRC-32C of all bytes, derived from the units without reading the bytes.
    #[must_use]
    pub fn crc(&self) -> u32 {
        let whole = self.len() / UNIT;
        let crc = crc32c_of_units(self.units[..whole].iter().copied());
        match self.units.get(whole) {
            None => crc,
            Some(last) => combined(crc, *last, self.len() - whole * UNIT),
        }
    }

    /// A part that consists of whole units of this payload; copies and computes nothing.
    ///
    /// # Panics
    /// If a border is neither on a unit's border nor the payload's end.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let is_border = |at: usize| at.is_multiple_of(UNIT) || at == self.len();
        assert!(
            is_border(range.start) && is_border(range.end),
            "whole units: {range:?} of {}",
            self.len()
        );
        let units = &self.units[range.start.div_ceil(UNIT)..range.end.div_ceil(UNIT)];
        Self {
            units: units.into(),
            bytes: self.bytes.slice(range),
        }
    }
}

/// CRC-32C of each unit of the bytes.
pub fn crc32c_of_each_unit(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks(UNIT).map(crc32c)
}

/// Computes the checksums.
impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        let units = crc32c_of_each_unit(&bytes).collect();
        Self { bytes, units }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Payload")
            .field("length", &self.len())
            .field("crc", &self.crc())
            .finish()
    }
}

/// CRC-32C of consecutive whole units, from their CRCs. With the inversions before and after, crc(a
/// b) = shift(crc(a)) ^ crc(b), where `shift` is linear in the bits of its argument and depends
/// only on the length of b (zlib's `crc32_combine`). The length is fixed here, so a table per byte
/// position computes `shift` in four lookups.
#[must_use]
pub fn crc32c_of_units(units: impl IntoIterator<Item = u32>) -> u32 {
    static SHIFT: LazyLock<[[u32; 256]; 4]> = LazyLock::new(|| {
        let shifted = |crc: u32| combined(crc, 0, UNIT);
        std::array::from_fn(|byte| {
            std::array::from_fn(|value| shifted((value as u32) << (byte * 8)))
        })
    });
    let shift = &*SHIFT;
    units.into_iter().fold(0, |crc: u32, unit| {
        let [a, b, c, d] = crc.to_le_bytes().map(usize::from);
        shift[0][a] ^ shift[1][b] ^ shift[2][c] ^ shift[3][d] ^ unit
    })
}

/// CRC-32C of two adjacent pieces, the second of which has `length` bytes.
fn combined(first: u32, second: u32, length: usize) -> u32 {
    narrow(crc_fast::checksum_combine(
        CrcAlgorithm::Crc32Iscsi,
        first.into(),
        second.into(),
        length as u64,
    ))
}

fn narrow(crc: u64) -> u32 {
    u32::try_from(crc).expect("CRC-32C has 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(length: usize) -> Bytes {
        (0..length).map(|at| ((at * 31) >> 3) as u8).collect()
    }

    #[test]
    fn the_check_value_is_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(b""), 0);
        assert_eq!(
            crc32c_without(b"12XXXX789", 2),
            crc32c(b"12\x00\x00\x00\x00789")
        );
    }

    #[test]
    fn chunks_give_the_same_as_the_whole() {
        let bytes = content(100_000);
        assert_eq!(crc32c_of_chunks(bytes.chunks(4097)), crc32c(&bytes));
    }

    #[test]
    fn the_crc_of_the_whole_follows_from_the_units() {
        for length in [0, 1, UNIT - 1, UNIT, UNIT + 1, 3 * UNIT, 100_000, 4 << 20] {
            let bytes = content(length);
            let payload = Payload::from(bytes.clone());
            assert_eq!(payload.crc(), crc32c(&bytes), "{length} bytes");
            assert_eq!(payload.units().len(), length.div_ceil(UNIT));
            let whole = length / UNIT;
            let of_whole = crc32c_of_units(payload.units()[..whole].iter().copied());
            assert_eq!(of_whole, crc32c(&bytes[..whole * UNIT]));
        }
    }

    #[test]
    fn a_part_has_the_checksums_of_its_bytes() {
        let bytes = content(5 * UNIT + 77);
        let payload = Payload::from(bytes.clone());
        let end = bytes.len();
        for range in [0..0, 0..UNIT, UNIT..3 * UNIT, 2 * UNIT..end, end..end] {
            let part = payload.slice(range.clone());
            assert_eq!(part.bytes(), &bytes.slice(range.clone()));
            assert_eq!(part.units(), Payload::from(bytes.slice(range)).units());
        }
    }

    #[test]
    #[should_panic = "whole units"]
    fn a_part_that_cuts_a_unit_is_no_part() {
        let _ = Payload::from(content(3 * UNIT)).slice(0..UNIT + 1);
    }
}
