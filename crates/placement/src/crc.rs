//! CRC-32C of plain segments.

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C (Castagnoli; iSCSI) of the bytes.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C of bytes that lie in several chunks, in order.
#[must_use]
pub fn crc32c_of_chunks<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for chunk in chunks {
        digest.update(chunk);
    }
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_is_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn chunks_give_the_same_as_the_whole() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
        assert_eq!(crc32c_of_chunks(bytes.chunks(4097)), crc32c(&bytes));
    }
}
