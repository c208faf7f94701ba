//! The ring journal: maps positions, reads groups back, finds gaps.

use crate::checksum::UNIT;
use crate::entry::Place;
use crate::record::{GroupClaim, Record, claim_of, decode_group};
use crate::superblock::Layout;
use bytes::Bytes;
use std::collections::BTreeMap;
use world::Disk;

/// No journal ever gets this far; leaves room for sums with positions.
const POSITION_MAX: u64 = u64::MAX / 2;
/// Bytes read at once from a ring that can't be read as a whole.
const CHUNK: u64 = 1 << 20;

/// Maps positions to places in the ring. Positions count bytes for ever; a group never crosses the
/// ring's end but skips to its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ring {
    start: u64,
    bytes: u64,
}

impl Ring {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self {
            start: layout.journal_start,
            bytes: layout.journal_bytes,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Offset of a position on the disk.
    pub(crate) fn offset(&self, position: u64) -> u64 {
        self.start + position % self.bytes
    }

    /// The position of a group of `length` (padded) bytes when the journal ends at `head`.
    pub(crate) fn place(&self, head: u64, length: u64) -> u64 {
        let left = self.bytes - head % self.bytes;
        if length <= left { head } else { head + left }
    }

    /// The next position at the ring's start.
    fn wrap(&self, position: u64) -> u64 {
        position.next_multiple_of(self.bytes)
    }
}

/// A group read back from the ring.
pub(crate) struct Group {
    pub(crate) position: u64,
    /// Without padding.
    pub(crate) length: u32,
    /// Position after it, padding included.
    pub(crate) end: u64,
    pub(crate) records: Vec<Record>,
}

/// The whole ring in memory, for reading it back.
pub(crate) struct RingImage {
    ring: Ring,
    region: u128,
    bytes: Bytes,
}

impl RingImage {
    pub(crate) fn ring(&self) -> Ring {
        self.ring
    }

    /// Reads the ring. Unreadable blocks count as damaged.
    pub(crate) async fn load(disk: &Disk, ring: Ring, region: u128) -> Self {
        let bytes = match disk.read(ring.start, ring.bytes as usize).await {
            Ok(bytes) => bytes,
            Err(_) => Self::load_what_can_be_read(disk, ring).await,
        };
        Self {
            ring,
            region,
            bytes,
        }
    }

    async fn load_what_can_be_read(disk: &Disk, ring: Ring) -> Bytes {
        let mut bytes = Vec::with_capacity(ring.bytes as usize);
        while (bytes.len() as u64) < ring.bytes {
            let at = bytes.len() as u64;
            let length = CHUNK.min(ring.bytes - at) as usize;
            match disk.read(ring.start + at, length).await {
                Ok(chunk) => bytes.extend_from_slice(&chunk),
                Err(error) => {
                    tracing::warn!(%error, at, "part of the journal can't be read");
                    Self::load_blocks(disk, ring.start + at, length, &mut bytes).await;
                }
            }
        }
        bytes.into()
    }

    async fn load_blocks(disk: &Disk, start: u64, length: usize, bytes: &mut Vec<u8>) {
        for at in (0..length).step_by(UNIT) {
            match disk.read(start + at as u64, UNIT).await {
                Ok(block) => bytes.extend_from_slice(&block),
                Err(_) => bytes.resize(bytes.len() + UNIT, 0),
            }
        }
    }

    /// The valid group that starts exactly at `position`.
    fn at(&self, position: u64) -> Option<Group> {
        let start = (position % self.ring.bytes) as usize;
        let bytes = &self.bytes[start..];
        let claim = claim_of(bytes, self.region)?;
        if claim.position != position || position > POSITION_MAX {
            return None;
        }
        let records = decode_group(bytes, self.region)?;
        let inside = position..=position + claim.length as u64;
        let is_inside = |record: &Record| match record {
            Record::Put { entry, .. } => match entry.place {
                Place::Journal(at) => {
                    inside.contains(&at) && inside.contains(&(at + u64::from(entry.length)))
                }
                Place::Runs(_) => true,
            },
            _ => true,
        };
        if !records.iter().all(is_inside) {
            return None;
        }
        Some(Group {
            position,
            length: u32::try_from(claim.length).expect("it was 32 bits on disk"),
            end: position + claim.length.next_multiple_of(UNIT) as u64,
            records,
        })
    }

    /// The next group after reading the journal up to `position`.
    pub(crate) fn next(&self, position: u64) -> Option<Group> {
        self.at(position).or_else(|| {
            let wrapped = self.ring.wrap(position);
            (wrapped != position).then(|| self.at(wrapped)).flatten()
        })
    }

    /// The bytes of a payload inside a record.
    pub(crate) fn payload(&self, position: u64, length: u32) -> &[u8] {
        let start = (position % self.ring.bytes) as usize;
        &self.bytes[start..start + length as usize]
    }

    /// All valid groups in the ring from `from` on, by position.
    pub(crate) fn all_from(&self, from: u64) -> BTreeMap<u64, Group> {
        self.bytes
            .chunks(UNIT)
            .filter_map(|block| claim_of(block, self.region))
            .filter(|claim| claim.position >= from)
            .filter_map(|claim: GroupClaim| self.at(claim.position))
            .map(|group| (group.position, group))
            .collect()
    }
}

/// Checks the groups in `from..to` on the disk; returns the position of the first damaged one.
pub(crate) async fn first_damaged(
    disk: &Disk,
    ring: Ring,
    region: u128,
    groups: &[(u64, u32)],
) -> Option<u64> {
    for (position, length) in groups {
        let padded = (*length as usize).next_multiple_of(UNIT);
        let good = match disk.read(ring.offset(*position), padded).await {
            Ok(bytes) => {
                claim_of(&bytes, region).is_some_and(|claim| claim.position == *position)
                    && decode_group(&bytes, region).is_some()
            }
            Err(_) => false,
        };
        if !good {
            return Some(*position);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_skip_to_the_start_instead_of_crossing_the_end() {
        let ring = Ring {
            start: 16384,
            bytes: 40960,
        };
        assert_eq!(ring.place(0, 40960), 0);
        assert_eq!(ring.place(36864, 4096), 36864);
        assert_eq!(ring.place(36864, 8192), 40960);
        assert_eq!(ring.offset(40960), 16384);
        assert_eq!(ring.wrap(36864), 40960);
        assert_eq!(ring.wrap(40960), 40960);
    }
}
