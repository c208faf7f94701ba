//! Segments and the blobs that their pieces are stored as.

use crate::{GroupId, Scheme, SessionId, limits};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Permanent name of a segment: the session that wrote it and that session's counter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct SegmentId {
    /// The writer's session; never reused.
    pub session: SessionId,
    /// Counts the segments of the session, from 1.
    pub counter: u64,
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.session, self.counter)
    }
}

/// Names one piece of a segment on an NSD. Sorts by group, so that an NSD can list a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct BlobName {
    /// The placement group whose slots hold the segment.
    pub group: GroupId,
    /// The segment.
    pub segment: SegmentId,
    /// 0..k are data, k..k+m parity; for copies 0..n.
    pub piece: u8,
}

impl BlobName {
    /// Bytes of the encoded form.
    pub const ENCODED_BYTES: usize = 21;

    /// Big-endian bytes that sort as the names do: group, session, counter, piece.
    #[must_use]
    pub fn encode(self) -> [u8; Self::ENCODED_BYTES] {
        let mut out = [0; Self::ENCODED_BYTES];
        out[0..4].copy_from_slice(&self.group.0.to_be_bytes());
        out[4..12].copy_from_slice(&self.segment.session.0.to_be_bytes());
        out[12..20].copy_from_slice(&self.segment.counter.to_be_bytes());
        out[20] = self.piece;
        out
    }

    /// Reads what [`BlobName::encode`] wrote.
    #[must_use]
    pub fn decode(bytes: &[u8; Self::ENCODED_BYTES]) -> Self {
        let u64_at = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        Self {
            group: GroupId(u32::from_be_bytes(bytes[0..4].try_into().expect("4 bytes"))),
            segment: SegmentId {
                session: SessionId(u64_at(4)),
                counter: u64_at(12),
            },
            piece: bytes[20],
        }
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.group, self.segment, self.piece)
    }
}

/// Everything needed to read a segment: its place, its coding and its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "Received")]
pub struct SegmentPlace {
    /// The segment.
    pub segment: SegmentId,
    /// Its placement group.
    pub group: GroupId,
    /// Its own scheme; narrower than the pool's if NSDs were missing when it was written.
    pub scheme: Scheme,
    /// Slots of the group that hold no piece (bit i = slot i): piece i is in the i-th slot
    /// that isn't skipped.
    pub skipped_slots: u32,
    /// Pieces that were still on the way when the segment was published (bit i = piece i).
    pub missing: u32,
    /// Bytes of plain data.
    pub length: u32,
    /// CRC-32C of the plain data.
    pub crc: u32,
}

/// A place as it was read: its slots may not fit its scheme, and it may be longer than a segment is.
#[derive(Deserialize)]
struct Received {
    segment: SegmentId,
    group: GroupId,
    scheme: Scheme,
    skipped_slots: u32,
    missing: u32,
    length: u32,
    crc: u32,
}

impl TryFrom<Received> for SegmentPlace {
    type Error = &'static str;

    fn try_from(received: Received) -> Result<Self, &'static str> {
        let width = received.scheme.width() as u32;
        if received.skipped_slots.count_zeros() < width {
            return Err("a segment's place has too few slots");
        }
        if received.missing >> width != 0 {
            return Err("a segment's place misses a piece that it doesn't have");
        }
        if received.length > limits::SEGMENT_BYTES_MAX {
            return Err("a segment's place is longer than a segment");
        }
        Ok(Self {
            segment: received.segment,
            group: received.group,
            scheme: received.scheme,
            skipped_slots: received.skipped_slots,
            missing: received.missing,
            length: received.length,
            crc: received.crc,
        })
    }
}

impl SegmentPlace {
    /// Name of the blob that holds a piece.
    #[must_use]
    pub fn blob(&self, piece: u8) -> BlobName {
        BlobName {
            group: self.group,
            segment: self.segment,
            piece,
        }
    }

    /// The slot of the group that holds a piece.
    #[must_use]
    pub fn slot_of(&self, piece: u8) -> u8 {
        (0..32u8)
            .filter(|slot| self.skipped_slots & (1 << slot) == 0)
            .nth(usize::from(piece))
            .expect("a place has a slot for each of its pieces")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would be broken if a client could publish one, or an owner answer with it: the length of its pieces has no place in
    /// 32 bits, and whoever computes that ends, as the owner does that counts what NSDs hold, and who reads the file.
    #[test]
    fn a_place_that_is_longer_than_a_segment_is_not_read() {
        let place = |length| SegmentPlace {
            segment: SegmentId {
                session: SessionId(3),
                counter: 4,
            },
            group: GroupId(5),
            scheme: Scheme::Erasure { k: 1, m: 1 },
            skipped_slots: 0,
            missing: 0,
            length,
            crc: 7,
        };
        let read = |length| {
            let bytes = postcard::to_stdvec(&place(length)).unwrap();
            postcard::from_bytes::<SegmentPlace>(&bytes).ok()
        };
        let most = limits::SEGMENT_BYTES_MAX;
        assert_eq!(read(most), Some(place(most)));
        for length in [most + 1, u32::MAX] {
            assert_eq!(read(length), None, "{length}");
        }
    }
}
