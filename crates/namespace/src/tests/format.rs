//! Encodings of keys and records: golden bytes, round trips and order.

use super::*;
use crate::{
    Counters, Dead, Fileset, Name, NameEntry, Orphan, Reclaim, Reserved, Run, Segment, Slot,
};
use model::{DataId, Error, InodeNumber, ShardEpoch};
use proptest::prelude::*;
use std::sync::Arc;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn id() -> InodeId {
    InodeId::new(FilesetId(0x7002), InodeNumber(0x41))
}

fn segment_id() -> SegmentId {
    SegmentId {
        session: SESSION,
        counter: 9,
    }
}

fn inode() -> crate::Inode {
    crate::Inode {
        mode: 0o644,
        uid: 1000,
        links: 1,
        size: 3,
        allocated: 3,
        content: Bytes::from_static(b"abc"),
        content_birth: CommitNumber(4),
        ..crate::genesis::blank(FileKind::File, InodeNumber(0x41), Timestamp(1))
    }
}

/// One key of each kind with a record for it, and the bytes of both.
fn samples() -> Vec<(Key, Record, &'static str, &'static str)> {
    let fileset = FilesetId(0x7002);
    let data_id = DataId(1 << 63 | 5);
    let name = Name {
        entry: Some(NameEntry {
            name: file_name("ab"),
            inode: InodeNumber(0x41),
            kind: FileKind::File,
        }),
        highest: 1,
    };
    let segment = Segment {
        place: place(segment_id(), 4096),
        live: 300,
        birth: CommitNumber(6),
        inode: id(),
        data: DataId(0x41),
        file_offset: 0,
    };
    let counters = Counters {
        next_inode: 128,
        next_data: 1,
        inodes: 2,
        logical: 3,
        allocated: 4,
    };
    vec![
        (
            Key::Fileset(fileset),
            Record::Fileset(Arc::new(Fileset {
                created: Timestamp(-1),
            })),
            "0000000701007002",
            "0101",
        ),
        (
            Key::Counters(fileset),
            Record::Counters(Arc::new(counters)),
            "0000000702007002",
            "01800101020304",
        ),
        (
            Key::Inode(id()),
            Record::Inode(Arc::new(inode())),
            "00000007100070020000000041",
            "0100a403e8070001000303020202020041000000000361626304000000000000",
        ),
        (
            Key::Name {
                directory: id(),
                position: 0x1234_5600,
            },
            Record::Name(Arc::new(name)),
            "000000072000700200000000410000000012345600",
            "0101026162410001",
        ),
        (
            Key::Extent {
                fileset,
                data: data_id,
                end: 4196,
            },
            Record::Extent(Arc::new(data(4096, 100, place(segment_id(), 4096), 50))),
            "000000073000700280000000000000050000000000001064",
            "018020640005090301040200008020effdb6f50d32000000",
        ),
        (
            Key::Xattr {
                inode: id(),
                name: (*b"user.x").into(),
            },
            Record::Xattr(Arc::new(Bytes::from_static(b"v"))),
            "00000007400070020000000041757365722e78",
            "010176",
        ),
        (
            Key::Segment(segment_id()),
            Record::Segment(Arc::new(segment)),
            "ffffffff5000000000000000050000000000000009",
            "0105090301040200008020effdb6f50dac0206c180808080c080384100",
        ),
        (
            Key::Dead(segment_id()),
            Record::Dead(Arc::new(Dead {
                place: place(segment_id(), 4096),
                died: CommitNumber(6),
            })),
            "ffffffff5100000000000000050000000000000009",
            "0105090301040200008020effdb6f50d06",
        ),
        (
            Key::Orphan(id()),
            Record::Orphan(Orphan { linkable: true }),
            "00000007600070020000000041",
            "0101",
        ),
        (
            Key::Reclaim {
                fileset,
                data: data_id,
            },
            Record::Reclaim(Reclaim {
                inode: InodeNumber(0x41),
                xattrs: true,
            }),
            "00000007610070028000000000000005",
            "014101",
        ),
        (
            Key::Fold(id()),
            Record::Mark,
            "00000007620070020000000041",
            "01",
        ),
        (
            Key::Cut(id()),
            Record::Mark,
            "00000007630070020000000041",
            "01",
        ),
        (
            Key::Slot {
                session: SESSION,
                slot: 3,
            },
            Record::Slot(Arc::new(Slot {
                number: 8,
                rank: Rank {
                    epoch: ShardEpoch(3),
                    commit: CommitNumber(300),
                    index: 2,
                },
                answer: Err(Error::from(ErrorKind::NotFound)),
            })),
            "ffffffff70000000000000000503",
            "010803ac0202010100",
        ),
        (
            Key::Stream(SESSION),
            Record::Stream(300),
            "ffffffff710000000000000005",
            "01ac02",
        ),
        (
            Key::Session(SESSION),
            Record::Session(Arc::new(crate::Session {
                run: model::NodeRun {
                    node: model::NodeId(2),
                    incarnation: 300,
                },
                of_owner: false,
                ended: true,
            })),
            "ffffffff720000000000000005",
            "0102ac020001",
        ),
        (
            Key::Reserved {
                session: SESSION,
                fileset: FilesetId(2),
            },
            Record::Reserved(Arc::new(Reserved {
                inodes: vec![Run { next: 3, end: 300 }],
                data: vec![Run { next: 1, end: 2 }],
            })),
            "ffffffff730000000000000005000002",
            "010103ac02010102",
        ),
    ]
}

#[test]
fn bytes_of_keys_and_records_never_change() {
    for (key, record, key_hex, record_hex) in samples() {
        assert_eq!(hex(&key.to_bytes()), key_hex, "{key:?}");
        assert_eq!(hex(&record.to_bytes()), record_hex, "{key:?}");
    }
}

#[test]
fn every_table_has_a_sample_and_sorts_by_its_tag() {
    let tables: Vec<Table> = samples().iter().map(|sample| sample.0.table()).collect();
    assert_eq!(tables, Table::ALL);
    assert!(
        Table::ALL
            .windows(2)
            .all(|pair| pair[0].tag() < pair[1].tag() && pair[0].first() < pair[1].first())
    );
    for (key, ..) in samples() {
        let (from, to) = key.table().range();
        assert!(from <= key && key < to);
    }
}

#[test]
fn records_decode_to_what_was_encoded() {
    for (key, record, ..) in samples() {
        assert_eq!(Record::decode(&key, &record.to_bytes()).unwrap(), record);
        assert_eq!(Key::decode(&key.to_bytes()).unwrap(), key);
    }
}

#[test]
fn damaged_records_are_refused_and_never_panic() {
    for (key, record, ..) in samples() {
        let bytes = record.to_bytes();
        let mut longer = bytes.clone();
        longer.push(0);
        if record != Record::Mark {
            assert_eq!(
                Record::decode(&key, &longer).unwrap_err().kind(),
                ErrorKind::Corrupt
            );
        }
        // Marks consist of their version byte: cut off, nothing remains.
        for end in 0..bytes.len() {
            assert_eq!(
                Record::decode(&key, &bytes[..end]).unwrap_err().kind(),
                ErrorKind::Corrupt,
                "{key:?} cut off at {end}"
            );
        }
        let key_bytes = key.to_bytes();
        // An attribute's name extends to the end of its key: it can be shorter.
        let shortest = if matches!(key, Key::Xattr { .. }) {
            13
        } else {
            key_bytes.len()
        };
        for end in 0..shortest {
            let error = Key::decode(&key_bytes[..end]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{key:?} cut off at {end}");
        }
        let mut newer = bytes.clone();
        newer[0] = 2;
        assert_eq!(
            Record::decode(&key, &newer).unwrap_err().kind(),
            ErrorKind::NotSupported
        );
    }
}

/// The values come from an independent implementation, written from the paper.
#[test]
fn positions_of_names_never_change() {
    for (directory, name, expected) in [
        (1, &b"a"[..], 0x000b_f3f3_43e0_98f6),
        (1, b"etc", 0x002e_be56_b684_6daa),
        (2, b"a", 0x003b_b836_a53a_51e0),
        (
            1 << 40,
            b"a name of more than sixteen bytes",
            0x0033_439b_5cd9_a7eb,
        ),
        (1, &[b'x'; 255], 0x0032_38e9_ea7e_1bf8),
    ] {
        let found = crate::position_hash(InodeNumber(directory), name);
        assert_eq!(found, expected, "directory {directory}");
    }
}

#[test]
fn positions_are_spread_and_never_below_three() {
    let mut seen = BTreeSet::new();
    for number in 0..10_000u32 {
        let hash = crate::position_hash(InodeNumber(1), format!("file.{number}").as_bytes());
        assert!(hash > 0 && hash < 1 << 55);
        seen.insert(hash >> 45);
    }
    assert!(
        seen.len() > 1000,
        "the upper bits spread, so that a large directory can be split by position"
    );
    assert_ne!(
        crate::position_hash(InodeNumber(1), b"a"),
        crate::position_hash(InodeNumber(2), b"a")
    );
}

#[test]
fn records_that_no_operation_leaves_are_refused_when_they_are_read() {
    let is_refused = |key: &Key, record: Record| {
        let error = Record::decode(key, &record.to_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{record:?}");
    };
    let faults: [fn(&mut crate::Inode); 9] = [
        |inode| inode.allocated = 4,
        |inode| inode.extents = 1,
        |inode| inode.inline_extents = 1,
        |inode| inode.size = 1 << 63,
        |inode| inode.parent = InodeNumber(1 << 40),
        |inode| inode.run_next = 1,
        |inode| inode.xattr_bytes = 65_537,
        |inode| inode.entries = 1,
        |inode| inode.kind = FileKind::Directory,
    ];
    for fault in faults {
        let mut inode = inode();
        fault(&mut inode);
        is_refused(&Key::Inode(id()), Record::Inode(Arc::new(inode)));
    }
    let key = |end| Key::Extent {
        fileset: FilesetId(2),
        data: DataId(5),
        end,
    };
    let place = place(segment_id(), 100);
    for (end, extent) in [
        (101, data(0, 101, place, 0)),
        (100, data(0, 100, place, 1)),
        (99, data(0, 100, place, 0)),
        (0, data(0, 0, place, 0)),
        (5, data(u64::MAX, 6, place, 0)),
        (
            2,
            Extent {
                length: 2,
                ..inline(0, b"abc")
            },
        ),
    ] {
        is_refused(&key(end), Record::Extent(Arc::new(extent)));
    }
    let name = |position| Key::Name {
        directory: id(),
        position,
    };
    let vacant = |highest| {
        Record::Name(Arc::new(Name {
            entry: None,
            highest,
        }))
    };
    is_refused(&name(0x700), vacant(0));
    is_refused(&name(0x701), vacant(1));
    assert!(Record::decode(&name(0x700), &vacant(1).to_bytes()).is_ok());
}

fn any_key() -> impl Strategy<Value = Key> {
    let number = prop_oneof![0..4u64, any::<u64>()];
    let fileset = prop_oneof![0..3u32, 0..(1u32 << 24)];
    (
        0..16u8,
        fileset,
        number.clone(),
        number.clone(),
        any::<u8>(),
        prop::collection::vec(any::<u8>(), 0..6),
    )
        .prop_map(|(kind, fileset, a, b, slot, name)| {
            let fileset = FilesetId(fileset);
            let segment = SegmentId {
                session: SessionId(a),
                counter: b,
            };
            match kind {
                0 => Key::Fileset(fileset),
                1 => Key::Counters(fileset),
                2 => Key::Inode(InodeId(a)),
                3 => Key::Name {
                    directory: InodeId(a),
                    position: b,
                },
                4 => Key::Extent {
                    fileset,
                    data: DataId(a),
                    end: b,
                },
                5 => Key::Xattr {
                    inode: InodeId(a),
                    name: name.into(),
                },
                6 => Key::Segment(segment),
                7 => Key::Dead(segment),
                8 => Key::Orphan(InodeId(a)),
                9 => Key::Reclaim {
                    fileset,
                    data: DataId(a),
                },
                10 => Key::Fold(InodeId(a)),
                11 => Key::Cut(InodeId(a)),
                12 => Key::Slot {
                    session: SessionId(a),
                    slot,
                },
                13 => Key::Stream(SessionId(a)),
                14 => Key::Session(SessionId(a)),
                _ => Key::Reserved {
                    session: SessionId(a),
                    fileset,
                },
            }
        })
}

proptest! {
    #[test]
    fn keys_come_back_and_those_of_a_family_sort_as_their_bytes_do(a in any_key(), b in any_key()) {
        prop_assert_eq!(Key::decode(&a.to_bytes()).unwrap(), a.clone());
        if a.family() == b.family() {
            prop_assert_eq!(a.cmp(&b), a.to_bytes().cmp(&b.to_bytes()));
        }
        prop_assert!(a.to_bytes().len() <= Key::ENCODED_BYTES_MAX);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80), key in any_key()) {
        if let Ok(key) = Key::decode(&bytes) {
            prop_assert_eq!(key.to_bytes(), bytes.clone());
        }
        if let Ok(record) = Record::decode(&key, &bytes) {
            prop_assert_eq!(Record::decode(&key, &record.to_bytes()).unwrap(), record);
        }
    }
}

#[test]
fn counters_beyond_64_bits_have_these_bytes() {
    let key = Key::Counters(FilesetId(2));
    let record = Record::Counters(Arc::new(Counters {
        next_inode: 1,
        next_data: 1,
        inodes: 3,
        logical: 3 * u128::from(u64::MAX),
        allocated: 0,
    }));
    let hex: String = record
        .to_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(hex, "01010103fdffffffffffffffff0500");
    assert_eq!(Record::decode(&key, &record.to_bytes()).unwrap(), record);
}
