//! Fuzz targets: entries of a log and rows of a tree, also with checksums that were made to fit what was
//! changed.

use crate::catalog::{CatalogState, Change, decode_change, decode_snapshot};
use crate::frame::{
    CommitFrame, EntryKind, HEADER_BYTES, Header, OperationNote, open_entry, seal_entry,
};
use crate::rows::decoded;
use bytes::{Bytes, BytesMut};
use fuzzing::{Memory, ROUNDS, Seen, Source, fuzz, within};
use model::checksum::crc32c_without;
use model::{CommitNumber, EntryNumber, InodeId, SessionId, ShardEpoch, ShardId, Timestamp};
use object_store::path::Path;

/// Where an entry has its checksum.
const CRC_AT: usize = 52;

fn frame(source: &mut Source<'_>) -> CommitFrame {
    let note = |source: &mut Source<'_>| OperationNote {
        verb: source.byte(),
        session: SessionId(source.number()),
        inode: InodeId(source.number()),
        time: Timestamp(source.number() as i64),
    };
    let row = |source: &mut Source<'_>| {
        let mut key = source.bytes(20);
        key.push(source.byte());
        let value = source.chance().then(|| Bytes::from(source.bytes(40)));
        (Bytes::from(key), value)
    };
    CommitFrame {
        commit: CommitNumber(source.number()),
        operations: (0..source.below(4)).map(|_| note(source)).collect(),
        rows: (0..source.below(6)).map(|_| row(source)).collect(),
    }
}

fn entry(source: &mut Source<'_>) -> (Header, Bytes) {
    let parts = 1 + source.number() as u16 % u16::MAX;
    let header = Header {
        kind: [
            EntryKind::Commit,
            EntryKind::CatalogChange,
            EntryKind::CatalogSnapshot,
            EntryKind::Marker,
        ][source.below(4)],
        part: source.number() as u16 % parts,
        parts,
        shard: ShardId(source.number() as u32),
        epoch: ShardEpoch(source.number()),
        number: EntryNumber(source.number()),
        acknowledged: EntryNumber(source.number()),
        time: Timestamp(source.number() as i64),
        commit: CommitNumber(source.number()),
    };
    let mut bytes = BytesMut::zeroed(HEADER_BYTES);
    match source.chance() {
        true => frame(source).encode_into(&mut bytes),
        false => bytes.extend_from_slice(&source.bytes(60)),
    }
    (header, seal_entry(bytes, &header))
}

#[test]
fn any_bytes_are_an_entry_of_a_log_or_refused() {
    let read = Seen::default();
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let (header, entry) = entry(&mut source);
        let (found, payload) = open_entry(&entry).unwrap();
        assert_eq!((found, payload.len()), (header, entry.len() - HEADER_BYTES));
        let mut changed = source.changed(&entry);
        if changed.len() >= HEADER_BYTES {
            if source.chance() {
                let payload = (changed.len() - HEADER_BYTES) as u32;
                changed[48..52].copy_from_slice(&payload.to_le_bytes());
            }
            let crc = crc32c_without(&changed, CRC_AT);
            changed[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        }
        for bytes in [Bytes::copy_from_slice(input), changed.into()] {
            let opened = within(Memory::SMALL, bytes.len(), || open_entry(&bytes));
            if let Ok((header, payload)) = opened {
                assert!(header.part < header.parts, "{header:?}");
                let mut again = BytesMut::zeroed(HEADER_BYTES);
                again.extend_from_slice(&payload);
                let again = open_entry(&seal_entry(again, &header)).unwrap();
                assert_eq!(again, (header, payload));
                read.note();
            }
        }
    });
    read.check(1, "the decoder reads some of what was changed");
}

/// A header that promises any number of rows takes no memory for them.
#[test]
fn any_bytes_are_a_commit_or_refused() {
    /// A row of six bytes has 72 in memory.
    const ROWS: Memory = Memory {
        fixed: 16 << 10,
        per_byte: 16,
    };
    let read = Seen::default();
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let frame = frame(&mut source);
        let bytes = frame.encode();
        assert_eq!(CommitFrame::decode(bytes.clone()), Ok(frame));
        let changed = Bytes::from(source.changed(&bytes));
        for bytes in [Bytes::copy_from_slice(input), changed] {
            let found = within(ROWS, bytes.len(), || CommitFrame::decode(bytes.clone()));
            if let Ok(found) = found {
                assert_eq!(found.encode(), bytes);
                assert!(found.rows.iter().all(|(key, _)| !key.is_empty()));
                read.note();
            }
        }
    });
    read.check(1, "the decoder reads some of what was changed");
}

/// What a catalog may contain, so that those who use it need no doubt.
fn assert_sound(state: &CatalogState) {
    for (name, object) in &state.objects {
        assert!(
            Path::parse(name).is_ok(),
            "{name:?} is the name of an object"
        );
        assert_eq!(object.size, object.content.size());
    }
}

#[test]
fn any_bytes_are_a_change_of_the_catalog_or_refused() {
    let (read, applied) = (Seen::default(), Seen::default());
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let mut state = CatalogState::new(1);
        for number in 1..4 {
            let Some(change) = source.value::<Change>() else {
                continue;
            };
            let bytes = change.encode();
            let changed = source.changed(&bytes);
            for bytes in [&bytes, &changed, &source.rest().to_vec()] {
                let found = within(Memory::MESSAGE, bytes.len(), || decode_change(bytes));
                if let Ok(found) = found {
                    assert_eq!(decode_change(&found.encode()), Ok(found.clone()));
                    read.note();
                    state.apply(EntryNumber(number), found);
                }
            }
        }
        assert_sound(&state);
        let snapshot = state.encode_snapshot();
        assert_eq!(decode_snapshot(&snapshot), Ok(state));
        let changed = source.changed(&snapshot);
        for bytes in [input, &changed] {
            let found = within(Memory::MESSAGE, bytes.len(), || decode_snapshot(bytes));
            if let Ok(found) = found {
                assert_sound(&found);
                assert_eq!(decode_snapshot(&found.encode_snapshot()), Ok(found.clone()));
                assert!(found.segments().len() >= found.dead.len());
                let _ = found.newest_time();
                applied.note();
            }
        }
    });
    read.check(1, "the decoder reads some of what was changed");
    applied.check(1, "the decoder reads some of what was changed");
}

#[test]
fn any_row_is_a_record_or_described_as_damaged() {
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let key = Bytes::from(source.bytes(40));
        let value = Bytes::copy_from_slice(source.rest());
        let bytes = key.len() + value.len();
        let row = (key, value);
        if let Err(damaged) = within(Memory::MESSAGE, bytes, || decoded(&row)) {
            let text = damaged.error.to_string();
            assert!(!text.is_empty() && text.len() < 4096, "{text}");
        }
    });
}
