//! Fuzz targets: what a disk holds, also with checksums that were made to fit what was changed.

use crate::checksum::{UNIT, crc32c_without, table_checksum, units_of};
use crate::entry::{INLINE_CHECKSUMS_MAX, IndexEntry, Place, RUNS_MAX, Run, header_units};
use crate::extent::{claimed_units, read_header, write_header};
use crate::key::Key;
use crate::ledger::Ledger;
use crate::record::{Record, Stamp, claim_of, decode_group, encode_group};
use crate::superblock::{Layout, Superblock};
use crate::wire::Reader;
use crate::{FormatOptions, NsdIdentity};
use bytes::Bytes;
use fuzzing::{Format, Memory, ROUNDS, Seen, Source, Tally, check, fuzz, within};
use model::nsd::BlobHeader;
use model::{BlobName, EntryNumber, GroupId, GroupVersion, NsdId, SegmentId, SessionId};
use model::{ShardEpoch, ShardId};

const REGION: u128 = 7;
/// Where all blocks of a region have their checksum.
const CRC_AT: usize = 12;
const DISK_BYTES: u64 = 64 << 20;

/// Makes the checksum of the first bytes fit.
fn reseal(bytes: &mut [u8], length: usize) {
    if (CRC_AT + 4..=bytes.len()).contains(&length) {
        let crc = crc32c_without(&bytes[..length], CRC_AT);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

fn key(source: &mut Source<'_>) -> Key {
    match source.chance() {
        true => Key::log(
            ShardId(source.number() as u32),
            EntryNumber(source.number()),
        ),
        false => Key::blob(BlobName {
            group: GroupId(source.number() as u32),
            segment: SegmentId {
                session: SessionId(source.number()),
                counter: source.number(),
            },
            piece: source.byte(),
        }),
    }
}

/// An entry that may or may not be sound, but has as many checksums as it says.
fn entry(source: &mut Source<'_>) -> IndexEntry {
    let length = match source.below(4) {
        0 => source.number() as u32 % model::limits::SEGMENT_BYTES_MAX,
        _ => source.below(40 * UNIT) as u32,
    };
    entry_of(source, length)
}

fn entry_of(source: &mut Source<'_>, length: u32) -> IndexEntry {
    let units = units_of(length);
    let whole = header_units(units) + units;
    let unit = source.number();
    let runs = match source.below(4) {
        0 => (0..source.below(RUNS_MAX + 1))
            .map(|_| Run {
                unit: source.number(),
                count: source.number() as u32,
            })
            .collect(),
        1 if whole > header_units(units) => vec![
            Run {
                unit,
                count: whole - 1,
            },
            Run {
                unit: source.number(),
                count: 1,
            },
        ],
        _ => vec![Run { unit, count: whole }],
    };
    let place = match source.below(3) {
        0 => Place::Journal(source.number()),
        _ => Place::Runs(runs),
    };
    let table = (units as usize <= INLINE_CHECKSUMS_MAX && source.below(4) > 0)
        .then(|| (0..units).map(|_| source.number() as u32).collect());
    IndexEntry {
        length,
        writer: source.number(),
        birth: source.number(),
        header: source
            .chance()
            .then(|| source.value::<BlobHeader>())
            .flatten(),
        place,
        table_crc: source.number() as u32,
        checksums: table,
    }
}

#[test]
fn any_bytes_are_an_entry_of_the_index_or_refused() {
    let read = Seen::default();
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let bytes = entry(&mut source).encode();
        let changed = source.changed(&bytes);
        for bytes in [input, &bytes, &changed] {
            let mut reader = Reader::new(bytes);
            let found = within(Memory::SMALL, bytes.len(), || {
                IndexEntry::decode(&mut reader)
            });
            if let Some(found) = found {
                let again = found.encode();
                assert_eq!(IndexEntry::decode(&mut Reader::new(&again)), Some(found));
                read.note();
            }
        }
    });
    read.check(1, "the decoder reads some of what was changed");
}

#[test]
fn any_bytes_are_a_key_of_the_index_or_refused() {
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let key = key(&mut source);
        assert_eq!(Key::parse(key.bytes()), Some(key));
        let changed = source.changed(key.bytes());
        for bytes in [input, &changed] {
            if let Some(key) = Key::parse(bytes) {
                assert_eq!(&key.bytes()[..], bytes);
                assert!(!key.to_string().is_empty());
            }
        }
    });
}

fn record(source: &mut Source<'_>) -> Record {
    match source.below(8) {
        0 => Record::Delete((0..source.below(5)).map(|_| key(source)).collect()),
        1 => Record::Trim(
            ShardId(source.number() as u32),
            EntryNumber(source.number()),
        ),
        2 => Record::Discard(
            ShardId(source.number() as u32),
            EntryNumber(source.number()),
        ),
        3 => Record::Seal(ShardId(source.number() as u32), ShardEpoch(source.number())),
        4 => Record::Learn(
            GroupId(source.number() as u32),
            GroupVersion(source.number() as u32),
        ),
        _ => {
            // A journal has small payloads only, and they are copied here.
            let length = source.below(8 * UNIT) as u32;
            let entry = entry_of(source, length);
            let in_journal = matches!(entry.place, Place::Journal(_));
            let payload = vec![source.byte(); if in_journal { length as usize } else { 0 }];
            Record::Put {
                key: key(source),
                entry: entry.into(),
                payload: payload.into(),
            }
        }
    }
}

#[test]
fn any_bytes_are_a_group_of_the_journal_or_refused() {
    let read = Seen::default();
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let mut records: Vec<Record> = (0..source.below(4)).map(|_| record(&mut source)).collect();
        let mut all: Vec<&mut Record> = records.iter_mut().collect();
        let stamp = Stamp {
            region: REGION,
            incarnation: source.number(),
        };
        let group = encode_group(stamp, source.number() >> 1, &mut all);
        let mut changed = source.changed(&group);
        if let Some(claim) = claim_of(&changed, REGION) {
            reseal(&mut changed, claim.length);
        }
        for bytes in [input, &group, &changed] {
            let found = within(Memory::MESSAGE, bytes.len(), || decode_group(bytes, REGION));
            if found.is_some() {
                read.note();
            }
        }
    });
    read.check(1, "the decoder reads some of what was changed");
}

#[test]
fn any_block_is_a_header_of_a_blob_or_refused() {
    let read = Seen::default();
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let mut entry = entry(&mut source);
        let key = key(&mut source);
        let unit = source.number();
        let units = entry.units();
        entry.place = Place::Runs(vec![Run {
            unit,
            count: header_units(units) + units,
        }]);
        let table: Vec<u32> = (0..units).map(|at| at ^ u32::from(source.byte())).collect();
        entry.table_crc = table_checksum(&key, &table);
        let mut block = vec![0; header_units(units) as usize * UNIT];
        write_header(&mut block, REGION, &key, &entry, &table);
        let mut changed = source.changed(&block);
        changed.resize(block.len(), 0);
        let whole = changed.len();
        reseal(&mut changed, whole);
        for bytes in [input, &block, &changed] {
            let claimed = claimed_units(bytes, REGION, unit);
            let found = within(Memory::SMALL, bytes.len(), || {
                read_header(bytes, REGION, unit)
            });
            if let Some(header) = found {
                assert_eq!(claimed, Some((bytes.len() / UNIT) as u32));
                assert_eq!(header.checksums.len(), header.entry.units() as usize);
                read.note();
            }
        }
    });
    read.check(1, "the decoder reads some of what was changed");
}

#[test]
fn any_block_is_a_superblock_or_refused() {
    let read = Seen::default();
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let seals = (0..source.below(300))
            .map(|shard| (ShardId(shard as u32), ShardEpoch(source.number())))
            .collect();
        let superblock = Superblock {
            sequence: source.number(),
            region: REGION,
            identity: NsdIdentity {
                cluster: 1,
                nsd: NsdId(2),
                pool: 0,
            },
            flags: source.number() as u32,
            incarnation: source.number(),
            layout: Layout::plan(DISK_BYTES, FormatOptions::default()).unwrap(),
            seals,
        };
        let block = superblock.encode();
        let mut changed = source.changed(&block);
        changed.resize(UNIT, 0);
        reseal(&mut changed, UNIT);
        for bytes in [input, &block[..], &changed] {
            let found = within(Memory::SMALL, bytes.len(), || {
                Superblock::decode(bytes, DISK_BYTES)
            });
            if let Some(found) = found {
                assert!(found.layout.region_bytes <= DISK_BYTES);
                assert!(found.sequence < u64::MAX, "the next one has a number");
                let again = found.encode();
                assert_eq!(Superblock::decode(&again, DISK_BYTES), Some(found));
                read.note();
            }
        }
    });
    read.check(1, "the decoder reads some of what was changed");
}

#[test]
fn any_bytes_are_a_ledger_or_refused() {
    let tally = Tally::default();
    fuzz!(ROUNDS, |input: &[u8]| {
        let format = Format {
            encode: Ledger::encode,
            decode: Ledger::decode,
            memory: Memory::MESSAGE,
        };
        check(input, &format, &tally);
    });
    tally.check();
}

/// A payload in the journal is where its record is, whatever the record says.
#[test]
fn any_group_reads_back_with_every_record() {
    fuzz!(ROUNDS / 2, |input: &[u8]| {
        let mut source = Source::new(input);
        let mut records = vec![
            Record::Seal(ShardId(1), ShardEpoch(source.number())),
            Record::Learn(GroupId(source.number() as u32), GroupVersion(3)),
            Record::Delete(vec![key(&mut source); source.below(4)]),
        ];
        let count = records.len();
        let mut all: Vec<&mut Record> = records.iter_mut().collect();
        let stamp = Stamp {
            region: REGION,
            incarnation: 1,
        };
        let group: Bytes = encode_group(stamp, 8192, &mut all);
        let found = decode_group(&group, REGION).unwrap();
        assert_eq!(found.len(), count);
        assert_eq!(format!("{found:?}"), format!("{records:?}"));
    });
}
