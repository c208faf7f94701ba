//! Journal records and the groups in which they are written (`docs/formats/nsd-journal.md`).

use crate::checksum::{UNIT, crc32c_without};
use crate::entry::{IndexEntry, Place};
use crate::key::Key;
use crate::wire::{Reader, Writer};
use bytes::Bytes;
use model::{EntryNumber, GroupId, GroupVersion, ShardEpoch, ShardId};
use std::sync::Arc;
use world::AlignedBuffer;

const MAGIC: &[u8; 8] = b"SHALEJNL";
const VERSION: u32 = 1;
const CRC_AT: usize = 12;
const GROUP_HEADER: usize = 64;
const RECORD_HEADER: usize = 8;
const PUT_FIXED: usize = Key::BYTES + 2 + 4;

/// One change. The state of an NSD is the sum of its records.
#[derive(Clone, Debug)]
pub(crate) enum Record {
    /// A new blob or log entry.
    Put {
        key: Key,
        entry: Arc<IndexEntry>,
        /// The bytes, if they are stored in this record.
        payload: Bytes,
    },
    /// Removes blobs.
    Delete(Vec<Key>),
    /// Removes log entries below a number.
    Trim(ShardId, EntryNumber),
    /// Removes log entries above a number.
    Discard(ShardId, EntryNumber),
    /// Refuses log puts of lower epochs from now on.
    Seal(ShardId, ShardEpoch),
    /// Refuses puts of lower group versions from now on.
    Learn(GroupId, GroupVersion),
}

impl Record {
    /// Bytes of the record in a group.
    pub(crate) fn encoded_bytes(&self) -> usize {
        RECORD_HEADER
            + match self {
                Self::Put { entry, payload, .. } => {
                    PUT_FIXED + entry.encode().len() + payload.len()
                }
                Self::Delete(keys) => keys.len() * Key::BYTES,
                Self::Trim(..) | Self::Discard(..) | Self::Seal(..) => 12,
                Self::Learn(..) => 8,
            }
    }

    /// Whether there is data outside the journal that must be durable with the record.
    pub(crate) fn has_data(&self) -> bool {
        matches!(self, Self::Put { entry, .. } if entry.runs().is_some())
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Put { .. } => 1,
            Self::Delete(_) => 2,
            Self::Trim(..) => 3,
            Self::Discard(..) => 4,
            Self::Seal(..) => 5,
            Self::Learn(..) => 6,
        }
    }

    /// The whole record except a put's payload.
    fn encode_front(&self, length: usize) -> Vec<u8> {
        let mut out = Writer::default();
        out.raw(&[self.kind(), 0, 0, 0]);
        out.u32(u32::try_from(length - RECORD_HEADER).expect("a group is small"));
        match self {
            Self::Put { key, entry, .. } => {
                let entry = entry.encode();
                out.raw(key.bytes());
                out.raw(&[0, 0]);
                out.u32(u32::try_from(entry.len()).expect("an entry is small"));
                out.raw(&entry);
            }
            Self::Delete(keys) => keys.iter().for_each(|key| out.raw(key.bytes())),
            Self::Trim(shard, number) | Self::Discard(shard, number) => {
                out.u32(shard.0);
                out.u64(number.0);
            }
            Self::Seal(shard, epoch) => {
                out.u32(shard.0);
                out.u64(epoch.0);
            }
            Self::Learn(group, version) => {
                out.u32(group.0);
                out.u32(version.0);
            }
        }
        out.done()
    }

    fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        let mut input = Reader::new(body);
        Some(match kind {
            1 => {
                let key = Key::parse(input.raw(Key::BYTES)?)?;
                input.raw(2)?;
                let length = input.u32()? as usize;
                let entry = IndexEntry::decode(&mut Reader::new(input.raw(length)?))?;
                let payload = match entry.place {
                    Place::Journal(_) => entry.length as usize,
                    Place::Runs(_) => 0,
                };
                if input.rest().len() != payload {
                    return None;
                }
                Self::Put {
                    key,
                    entry: Arc::new(entry),
                    payload: Bytes::new(),
                }
            }
            2 => Self::Delete(
                body.chunks(Key::BYTES)
                    .map(Key::parse)
                    .collect::<Option<_>>()?,
            ),
            3 => Self::Trim(ShardId(input.u32()?), EntryNumber(input.u64()?)),
            4 => Self::Discard(ShardId(input.u32()?), EntryNumber(input.u64()?)),
            5 => Self::Seal(ShardId(input.u32()?), ShardEpoch(input.u64()?)),
            6 => Self::Learn(GroupId(input.u32()?), GroupVersion(input.u32()?)),
            _ => return None,
        })
    }
}

/// Values that every group of a region carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    pub(crate) region: u128,
    pub(crate) incarnation: u64,
}

/// Bytes of a group with these records, without padding.
pub(crate) fn group_bytes<'a>(records: impl Iterator<Item = &'a Record>) -> usize {
    GROUP_HEADER + records.map(Record::encoded_bytes).sum::<usize>()
}

/// Encodes a group to be written at `position`, padded to 4 KiB. Puts with a payload in the record
/// get their place.
pub(crate) fn encode_group(stamp: Stamp, position: u64, records: &mut [&mut Record]) -> Bytes {
    let length = group_bytes(records.iter().map(|record| &**record));
    let mut buffer = AlignedBuffer::zeroed(length.next_multiple_of(UNIT));
    let mut at = GROUP_HEADER;
    for record in records.iter_mut() {
        let bytes = record.encoded_bytes();
        if let Record::Put { entry, payload, .. } = &mut **record
            && matches!(entry.place, Place::Journal(_))
        {
            let start = at + bytes - payload.len();
            buffer[start..at + bytes].copy_from_slice(payload);
            Arc::make_mut(entry).place = Place::Journal(position + start as u64);
        }
        let front = record.encode_front(bytes);
        buffer[at..at + front.len()].copy_from_slice(&front);
        at += bytes;
    }
    assert_eq!(at, length, "records have the length that they claim");
    let mut out = Writer::default();
    out.raw(MAGIC);
    out.u32(VERSION);
    out.u32(0);
    out.u128(stamp.region);
    out.u64(position);
    out.u64(stamp.incarnation);
    out.u32(u32::try_from(length).expect("a group is small"));
    out.u32(u32::try_from(records.len()).expect("a group is small"));
    out.pad_to(GROUP_HEADER);
    buffer[..GROUP_HEADER].copy_from_slice(&out.done());
    let crc = crc32c_without(&buffer[..length], CRC_AT);
    buffer[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    buffer.freeze()
}

/// The claims in the first block of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GroupClaim {
    pub(crate) position: u64,
    /// Without padding.
    pub(crate) length: usize,
}

/// The claims of a block that may start a group; unchecked until [`decode_group`].
pub(crate) fn claim_of(block: &[u8], region: u128) -> Option<GroupClaim> {
    let mut input = Reader::new(block);
    if input.raw(8)? != MAGIC || input.u32()? != VERSION {
        return None;
    }
    input.u32()?;
    if input.u128()? != region {
        return None;
    }
    let position = input.u64()?;
    input.u64()?;
    let length = input.u32()? as usize;
    (length >= GROUP_HEADER).then_some(GroupClaim { position, length })
}

/// The records of a whole group; `None` if it is torn or damaged.
pub(crate) fn decode_group(bytes: &[u8], region: u128) -> Option<Vec<Record>> {
    let claim = claim_of(bytes, region)?;
    let bytes = bytes.get(..claim.length)?;
    let mut input = Reader::new(&bytes[CRC_AT..]);
    if input.u32()? != crc32c_without(bytes, CRC_AT) {
        return None;
    }
    let mut input = Reader::new(&bytes[GROUP_HEADER..]);
    let mut records = Vec::new();
    while !input.rest().is_empty() {
        let kind = input.u8()?;
        input.raw(3)?;
        let length = input.u32()? as usize;
        records.push(Record::decode(kind, input.raw(length)?)?);
    }
    Some(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_read_back_and_any_flipped_byte_shows() {
        let key = Key::log(ShardId(1), EntryNumber(1));
        let payload = Bytes::from(vec![5; 5000]);
        let checksums = crate::checksum::unit_checksums(&key, &payload.clone().into());
        let entry = IndexEntry {
            length: 5000,
            writer: 3,
            birth: 4,
            header: None,
            place: Place::Journal(0),
            table_crc: 0,
            checksums: Some(checksums.into()),
        };
        let mut put = Record::Put {
            key,
            entry: Arc::new(entry),
            payload: payload.clone(),
        };
        let mut records = [
            Record::Seal(ShardId(1), ShardEpoch(2)),
            Record::Delete(vec![key, key]),
            Record::Trim(ShardId(1), EntryNumber(9)),
            Record::Discard(ShardId(1), EntryNumber(9)),
            Record::Learn(GroupId(1), GroupVersion(9)),
        ];
        let mut all: Vec<&mut Record> = records.iter_mut().collect();
        all.insert(1, &mut put);
        let stamp = Stamp {
            region: 7,
            incarnation: 1,
        };
        let group = encode_group(stamp, 8192, &mut all);
        let claim = claim_of(&group, 7).unwrap();
        assert_eq!(claim.position, 8192);
        let found = decode_group(&group, 7).unwrap();
        assert_eq!(found.len(), 6);
        let Record::Put { entry, .. } = &found[1] else {
            panic!("{found:?}")
        };
        let Place::Journal(position) = entry.place else {
            panic!("{entry:?}")
        };
        let start = usize::try_from(position - 8192).unwrap();
        assert_eq!(&group[start..start + 5000], &payload[..]);
        assert!(decode_group(&group, 8).is_none(), "another region's");
        for at in 0..claim.length {
            let mut damaged = group.to_vec();
            damaged[at] ^= 4;
            // Decoding ignores only the incarnation and the padding after the header, but the
            // checksum covers them too.
            assert!(decode_group(&damaged, 7).is_none(), "byte {at}");
        }
    }
}
