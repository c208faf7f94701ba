//! Fuzz targets: rows of the tree, and what programs give as access control lists.

use super::*;
use crate::acl::Acl;
use crate::record::{
    Counters, Dead, Fileset, Inode, Name, Orphan, Reclaim, Reserved, Segment, Session, Slot,
};
use fuzzing::{Memory, ROUNDS, Seen, Source, fuzz, within};

fn key(source: &mut Source<'_>) -> Key {
    let fileset = FilesetId(source.number() as u32 & 0xff_ffff);
    let inode = InodeId(source.number());
    let (data, session) = (DataId(source.number()), SessionId(source.number()));
    let segment = SegmentId {
        session,
        counter: source.number(),
    };
    match source.below(16) {
        0 => Key::Fileset(fileset),
        1 => Key::Counters(fileset),
        2 => Key::Inode(inode),
        3 => Key::Name {
            directory: inode,
            position: source.number() & !(source.number() & 0xff),
        },
        4 => Key::Extent {
            fileset,
            data,
            end: source.number(),
        },
        5 => Key::Xattr {
            inode,
            name: source.bytes(20).into(),
        },
        6 => Key::Segment(segment),
        7 => Key::Dead(segment),
        8 => Key::Orphan(inode),
        9 => Key::Reclaim { fileset, data },
        10 => Key::Fold(inode),
        11 => Key::Cut(inode),
        12 => Key::Slot {
            session,
            slot: source.byte(),
        },
        13 => Key::Stream(session),
        14 => Key::Session(session),
        _ => Key::Reserved { session, fileset },
    }
}

/// Mostly the place of the segment that the key names.
fn own(place: &mut SegmentPlace, key: &Key, source: &mut Source<'_>) {
    if let Key::Segment(segment) | Key::Dead(segment) = key
        && source.below(4) > 0
    {
        place.segment = *segment;
    }
}

/// Few inodes of any fields keep all rules; half of these have fields that do.
fn inode(source: &mut Source<'_>) -> Option<Inode> {
    let mut inode = source.value::<Inode>()?;
    if source.chance() {
        inode.extents = 0;
        inode.inline_extents = 0;
        inode.cutting_from = None;
        inode.content = source.bytes(20).into();
        inode.allocated = match inode.kind {
            FileKind::File => inode.content.len() as u64,
            _ => 0,
        };
        inode.entries = 0;
        inode.xattr_bytes %= 1024;
        inode.size >>= 1;
        inode.extents_end >>= 1;
        inode.parent = InodeNumber(inode.parent.0 % 1000);
        inode.run_end %= 1000;
        inode.run_next = inode.run_next.min(inode.run_end);
        inode.run_length %= 1000;
    }
    Some(inode)
}

/// A record of the key's table whose fields are anything.
fn record(key: &Key, source: &mut Source<'_>) -> Option<Record> {
    Some(match key.table() {
        Table::Filesets => Record::Fileset(Arc::new(source.value::<Fileset>()?)),
        Table::Counters => Record::Counters(Arc::new(source.value::<Counters>()?)),
        Table::Inodes => Record::Inode(Arc::new(inode(source)?)),
        Table::Names => Record::Name(Arc::new(source.value::<Name>()?)),
        Table::Extents => {
            let mut extent = source.value::<Extent>()?;
            if let Key::Extent { end, .. } = key
                && source.chance()
            {
                extent.offset = end.saturating_sub(extent.length);
            }
            Record::Extent(Arc::new(extent))
        }
        Table::Xattrs => Record::Xattr(Arc::new(source.bytes(100).into())),
        Table::Segments => {
            let mut segment = source.value::<Segment>()?;
            own(&mut segment.place, key, source);
            Record::Segment(Arc::new(segment))
        }
        Table::Deads => {
            let mut dead = source.value::<Dead>()?;
            own(&mut dead.place, key, source);
            Record::Dead(Arc::new(dead))
        }
        Table::Orphans => Record::Orphan(source.value::<Orphan>()?),
        Table::Reclaims => Record::Reclaim(source.value::<Reclaim>()?),
        Table::Folds | Table::Cuts => Record::Mark,
        Table::Slots => Record::Slot(Arc::new(source.value::<Slot>()?)),
        Table::Streams => Record::Stream(source.number()),
        Table::Sessions => Record::Session(Arc::new(source.value::<Session>()?)),
        Table::Reserved => Record::Reserved(Arc::new(source.value::<Reserved>()?)),
    })
}

#[test]
fn any_row_is_a_record_or_refused() {
    let read: [Seen; Table::ALL.len()] = Default::default();
    fuzz!(3 * ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let key = key(&mut source);
        let made = record(&key, &mut source).map(|record| record.to_bytes());
        let made = made.unwrap_or_default();
        let changed = source.changed(&made);
        for value in [input, &made, &changed] {
            let found = within(Memory::MESSAGE, value.len(), || Record::decode(&key, value));
            if let Ok(found) = found {
                // What was read is written the same way, and weighed without a fault.
                assert_eq!(Record::decode(&key, &found.to_bytes()), Ok(found.clone()));
                assert!(found.weight() < (1 << 30));
                let table = Table::ALL.iter().position(|table| *table == key.table());
                read[table.unwrap()].note();
            }
        }
        // Keys have no values that can't be written.
        let bytes = key.to_bytes();
        assert_eq!(Key::decode(&bytes), Ok(key));
        for bytes in [input, &source.changed(&bytes)] {
            if let Ok(key) = within(Memory::SMALL, bytes.len(), || Key::decode(bytes)) {
                assert_eq!(key.to_bytes(), bytes);
            }
        }
    });
    for (table, read) in Table::ALL.iter().zip(&read) {
        read.check(1, &format!("records of {table:?} are read"));
    }
}

#[test]
fn any_value_is_an_access_control_list_or_refused() {
    let read = Seen::default();
    fuzz!(ROUNDS, |input: &[u8]| {
        let mut source = Source::new(input);
        let mut value = vec![2, 0, 0, 0];
        for tag in [1_u16, 2, 4, 8, 0x10, 0x20] {
            let copies = match tag {
                2 | 8 => source.below(3),
                _ => 1,
            };
            for _ in 0..copies {
                value.extend(tag.to_le_bytes());
                value.extend(u16::from(source.byte() % 8).to_le_bytes());
                value.extend((source.number() as u32).to_le_bytes());
            }
        }
        let changed = source.changed(&value);
        for value in [input, &value, &changed] {
            let list = within(Memory::SMALL, value.len(), || Acl::parse(value));
            if let Ok(Some(list)) = list {
                assert_eq!(Acl::parse(&list.to_value()), Ok(Some(list)));
                read.note();
            }
        }
    });
    read.check(1, "lists are read");
}
