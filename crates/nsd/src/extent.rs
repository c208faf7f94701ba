//! Extents of the data area: a self-describing header, then the payload's units.

use crate::checksum::{UNIT, crc32c_without, table_checksum, units_of};
use crate::entry::{IndexEntry, Place, Run, TABLE_AT, decode_checksums, header_units};
use crate::key::Key;
use crate::wire::{Reader, Writer};
use bytes::Bytes;
use std::sync::Arc;
use world::AlignedBuffer;

const MAGIC: &[u8; 8] = b"SHALEBLB";
const VERSION: u32 = 1;
const CRC_AT: usize = 12;
/// Where the encoded entry starts.
pub(crate) const ENTRY_AT: usize = 72;

/// The content of a header in the data area.
pub(crate) struct Header {
    pub(crate) key: Key,
    pub(crate) entry: IndexEntry,
    pub(crate) checksums: Arc<[u32]>,
}

/// Writes the header of `entry` into `block`, which is zeroed and has exactly the header's size.
pub(crate) fn write_header(
    block: &mut [u8],
    region: u128,
    key: &Key,
    entry: &IndexEntry,
    checksums: &[u32],
) {
    let units = header_units(entry.units());
    assert_eq!(
        block.len(),
        units as usize * UNIT,
        "a header fills its units"
    );
    let first = entry.runs().expect("only extents have headers")[0].unit;
    let body = entry.encode();
    let mut out = Writer::default();
    out.raw(MAGIC);
    out.u32(VERSION);
    out.u32(0);
    out.u128(region);
    out.u64(first);
    out.u32(units);
    out.u32(u32::try_from(body.len()).expect("an entry is small"));
    out.raw(key.bytes());
    out.pad_to(ENTRY_AT);
    out.raw(&body);
    out.pad_to(TABLE_AT);
    for checksum in checksums {
        out.u32(*checksum);
    }
    out.pad_to(block.len());
    block.copy_from_slice(&out.done());
    let crc = crc32c_without(block, CRC_AT);
    block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

/// How many units the header that starts with `block` claims to have; `None` if it isn't a header.
pub(crate) fn claimed_units(block: &[u8], region: u128, unit: u64) -> Option<u32> {
    let mut input = Reader::new(block);
    if input.raw(8)? != MAGIC || input.u32()? != VERSION {
        return None;
    }
    input.u32()?;
    if input.u128()? != region || input.u64()? != unit {
        return None;
    }
    let units = input.u32()?;
    let most = header_units(units_of(model::limits::SEGMENT_BYTES_MAX));
    (1..=most).contains(&units).then_some(units)
}

/// Reads a complete header at `unit`; `None` if it isn't one or is damaged.
pub(crate) fn read_header(block: &[u8], region: u128, unit: u64) -> Option<Header> {
    let units = claimed_units(block, region, unit)?;
    if block.len() != units as usize * UNIT {
        return None;
    }
    let mut input = Reader::new(&block[CRC_AT..]);
    if input.u32()? != crc32c_without(block, CRC_AT) {
        return None;
    }
    input.raw(28)?;
    let entry_bytes = input.u32()? as usize;
    let key = Key::parse(input.raw(Key::BYTES)?)?;
    let body = block.get(ENTRY_AT..ENTRY_AT + entry_bytes)?;
    let entry = IndexEntry::decode(&mut Reader::new(body))?;
    if entry.runs()?.first()?.unit != unit || header_units(entry.units()) != units {
        return None;
    }
    let checksums = decode_checksums(&mut Reader::new(&block[TABLE_AT..]), entry.units())?;
    if table_checksum(&key, &checksums) != entry.table_crc {
        return None;
    }
    Some(Header {
        key,
        entry,
        checksums: checksums.into(),
    })
}

/// One write to the data area.
pub(crate) struct UnitWrite {
    pub(crate) unit: u64,
    pub(crate) bytes: Bytes,
}

/// Payloads up to this size are copied after their header, so that the extent is one write. Larger
/// ones are copied by the disk if their memory isn't page-aligned. (Deciding by alignment here
/// would make simulated runs depend on addresses.)
const COPIED_MAX: usize = 256 * 1024;

/// The writes that store `payload` with its header in the runs of `entry`. Doesn't copy large
/// page-aligned payloads.
pub(crate) fn writes_of(
    region: u128,
    key: &Key,
    entry: &IndexEntry,
    checksums: &[u32],
    payload: &Bytes,
) -> Vec<UnitWrite> {
    let runs = entry.runs().expect("only extents are written");
    let head = header_units(entry.units()) as usize * UNIT;
    if payload.len() <= COPIED_MAX {
        let whole = entry.extent_units() as usize * UNIT;
        let mut buffer = AlignedBuffer::zeroed(whole);
        write_header(&mut buffer[..head], region, key, entry, checksums);
        buffer[head..head + payload.len()].copy_from_slice(payload);
        return split(runs, 0, &buffer.freeze());
    }
    let mut header = AlignedBuffer::zeroed(head);
    write_header(&mut header, region, key, entry, checksums);
    let mut writes = split(runs, 0, &header.freeze());
    let even = payload.len() / UNIT * UNIT;
    writes.extend(split(runs, head, &payload.slice(..even)));
    if even < payload.len() {
        let mut tail = AlignedBuffer::zeroed(UNIT);
        tail[..payload.len() - even].copy_from_slice(&payload[even..]);
        writes.extend(split(runs, head + even, &tail.freeze()));
    }
    writes
}

/// Splits `bytes`, which start at byte `at` of the extent, at the borders of its runs.
fn split(runs: &[Run], at: usize, bytes: &Bytes) -> Vec<UnitWrite> {
    pieces(runs, at, bytes.len())
        .into_iter()
        .scan(0, |done, (unit, length)| {
            let bytes = bytes.slice(*done..*done + length);
            *done += length;
            Some(UnitWrite { unit, bytes })
        })
        .collect()
}

/// The places of the `length` bytes from byte `at` of an extent: (unit, bytes), in whole units.
pub(crate) fn pieces(runs: &[Run], at: usize, length: usize) -> Vec<(u64, usize)> {
    let mut found = Vec::with_capacity(1);
    let mut skip = at;
    let mut left = length;
    for run in runs {
        let bytes = run.count as usize * UNIT;
        if skip >= bytes {
            skip -= bytes;
            continue;
        }
        let take = left.min(bytes - skip);
        if take == 0 {
            break;
        }
        found.push((run.unit + (skip / UNIT) as u64, take));
        left -= take;
        skip = 0;
    }
    assert_eq!(left, 0, "a range lies inside its extent");
    found
}

/// A copy of `entry` placed in `runs`.
pub(crate) fn placed(entry: &IndexEntry, runs: Vec<Run>) -> IndexEntry {
    IndexEntry {
        place: Place::Runs(runs),
        ..entry.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::unit_checksums;
    use model::{EntryNumber, ShardId};

    fn sample(length: usize, runs: Vec<Run>) -> (Key, IndexEntry, Vec<u32>, Bytes) {
        let key = Key::log(ShardId(1), EntryNumber(2));
        let mut payload = AlignedBuffer::zeroed(length);
        for (index, byte) in payload.iter_mut().enumerate() {
            *byte = (index / 7) as u8;
        }
        let payload = payload.freeze();
        let checksums = unit_checksums(&key, &payload.clone().into());
        let entry = IndexEntry {
            length: length as u32,
            writer: 1,
            birth: 2,
            header: None,
            table_crc: table_checksum(&key, &checksums),
            place: Place::Runs(runs),
            checksums: None,
        };
        (key, entry, checksums, payload)
    }

    #[test]
    fn writes_lay_header_and_payload_along_the_runs() {
        for length in [5_000, 600_000, 4 << 20] {
            let units = length as u32 / 4096 + 1;
            let head = header_units(units);
            let runs = vec![
                Run {
                    unit: 10,
                    count: head + 1,
                },
                Run {
                    unit: 9000,
                    count: units_of(length as u32) - 1,
                },
            ];
            let (key, entry, checksums, payload) = sample(length, runs);
            let mut area = std::collections::BTreeMap::new();
            for write in writes_of(5, &key, &entry, &checksums, &payload) {
                for (unit, chunk) in (write.unit..).zip(write.bytes.chunks(UNIT)) {
                    assert!(area.insert(unit, chunk.to_vec()).is_none());
                }
            }
            assert_eq!(area.len() as u64, entry.extent_units());
            let all: Vec<u8> = area.into_values().flatten().collect();
            let head = head as usize * UNIT;
            let header = read_header(&all[..head], 5, 10).unwrap();
            assert_eq!((header.key, header.entry), (key, entry));
            assert_eq!(&header.checksums[..], &checksums[..]);
            assert_eq!(&all[head..head + length], &payload[..]);
            assert!(
                read_header(&all[..head], 6, 10).is_none(),
                "another region's"
            );
            assert!(
                read_header(&all[..head], 5, 11).is_none(),
                "another place's"
            );
        }
    }

    #[test]
    fn any_flipped_byte_of_a_header_shows() {
        let (key, entry, checksums, _) = sample(8192, vec![Run { unit: 3, count: 3 }]);
        let mut block = vec![0; UNIT];
        write_header(&mut block, 1, &key, &entry, &checksums);
        assert!(read_header(&block, 1, 3).is_some());
        for at in 0..UNIT {
            block[at] ^= 1;
            assert!(read_header(&block, 1, 3).is_none(), "byte {at}");
            block[at] ^= 1;
        }
    }
}
