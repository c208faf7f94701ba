//! Records that contradict each other, as a bug in an older version or a faulty disk could leave
//! them: operations refuse them and never panic, so that one such record can't end the daemon.

use super::{
    random::{Chance, filled},
    *,
};
use crate::{Inode, Orphan, record::sound};
use model::{
    DataId, InodeNumber,
    operation::{RangeChange, XattrMode},
};
use std::sync::Arc;

/// A number near the old one, or far away.
fn other(chance: &mut Chance, number: u64) -> u64 {
    match chance.below(4) {
        0 => number + 1 + chance.below(3),
        1 => number - chance.below(3).min(number),
        2 => chance.below(40_000),
        _ => 0,
    }
}

fn damage_inode(chance: &mut Chance, inode: &mut Inode) {
    match chance.below(15) {
        0 => inode.entries = other(chance, inode.entries),
        1 => inode.links = other(chance, inode.links.into()) as u32,
        2 => inode.allocated = other(chance, inode.allocated),
        3 => inode.extents = other(chance, inode.extents),
        4 => inode.inline_extents = other(chance, inode.inline_extents),
        5 => inode.extents_end = other(chance, inode.extents_end),
        6 => inode.size = other(chance, inode.size),
        7 => inode.xattr_bytes = other(chance, inode.xattr_bytes.into()) as u32,
        8 => inode.parent = InodeNumber(other(chance, inode.parent.0)),
        9 => inode.data = DataId(other(chance, inode.data.0)),
        10 => inode.cutting_from = (chance.below(2) == 0).then_some(chance.below(20_000)),
        // Among the inodes of others.
        11 => inode.parent = InodeNumber(1 + 63 * chance.below(2) + chance.below(24)),
        12 => {
            inode.run_next = other(chance, inode.run_next);
            inode.run_end = inode.run_next + chance.below(6);
        }
        13 => (inode.run_next, inode.run_end) = (inode.data.0, inode.data.0 + 4),
        _ => {
            inode.kind = chance.of(&[FileKind::File, FileKind::Directory, FileKind::Symlink]);
        }
    }
}

fn damaged(chance: &mut Chance, record: &Record) -> Option<Record> {
    Some(match record {
        _ if chance.below(5) == 0 => return None,
        Record::Inode(inode) => {
            let mut inode = (**inode).clone();
            damage_inode(chance, &mut inode);
            Record::Inode(Arc::new(inode))
        }
        Record::Counters(counters) => {
            let mut counters = (**counters).clone();
            match chance.below(5) {
                0 => counters.inodes = other(chance, counters.inodes),
                1 => counters.logical = other(chance, counters.logical as u64).into(),
                2 => counters.allocated = other(chance, counters.allocated as u64).into(),
                3 => counters.next_data = other(chance, counters.next_data),
                _ => counters.next_inode = other(chance, counters.next_inode),
            }
            Record::Counters(Arc::new(counters))
        }
        Record::Name(name) => {
            let mut name = (**name).clone();
            match (chance.below(3), &mut name.entry) {
                (0, Some(entry)) => entry.inode = InodeNumber(other(chance, entry.inode.0)),
                (1, Some(entry)) => {
                    entry.kind = chance.of(&[FileKind::File, FileKind::Directory]);
                }
                _ => name.highest = chance.below(4) as u8,
            }
            Record::Name(Arc::new(name))
        }
        Record::Extent(extent) => {
            let mut extent = (**extent).clone();
            // Still ends where its key says: decoding refuses any other.
            let longer = chance.below(3_000).min(extent.offset);
            extent.offset -= longer;
            extent.length += longer;
            match chance.below(3) {
                0 => extent.kind = ExtentKind::Reserved,
                1 => extent.kind = ExtentKind::Inline(vec![1; extent.length as usize].into()),
                _ => {}
            }
            Record::Extent(Arc::new(extent))
        }
        Record::Segment(segment) => {
            let mut segment = (**segment).clone();
            segment.live = other(chance, segment.live);
            Record::Segment(Arc::new(segment))
        }
        Record::Orphan(orphan) => Record::Orphan(Orphan {
            linkable: !orphan.linkable,
        }),
        other => other.clone(),
    })
}

/// Damages one record, or invents one that contradicts the others.
fn damage(chance: &mut Chance, store: &mut Store) {
    let keys: Vec<Key> = store.records.keys().cloned().collect();
    let inodes = inodes(store);
    let any = inodes[chance.below(inodes.len() as u64) as usize];
    let (key, record) = match chance.below(12) {
        0 => {
            let linkable = chance.below(2) == 0;
            (Key::Orphan(any), Some(Record::Orphan(Orphan { linkable })))
        }
        1 => (Key::Fold(any), Some(Record::Mark)),
        2 => (Key::Cut(any), Some(Record::Mark)),
        _ => {
            let key = keys[chance.below(keys.len() as u64) as usize].clone();
            let record = damaged(chance, &store.records[&key]);
            (key, record)
        }
    };
    match record {
        Some(record) if sound::fault(&key, &record).is_some() => {}
        Some(record) => {
            store.records.insert(key, record);
        }
        None => {
            store.records.remove(&key);
        }
    }
}

fn inodes(store: &Store) -> Vec<InodeId> {
    let (from, to) = Table::Inodes.range();
    let found = store.records.range(from..to);
    let found = found.filter_map(|(key, _)| match key {
        Key::Inode(id) => Some(*id),
        _ => None,
    });
    found.chain([InodeId(77)]).collect()
}

fn operation(chance: &mut Chance, store: &mut Store) -> Operation {
    let all = inodes(store);
    let names = ["a", "b", "c", "d", "same-hash-1", "same-hash-2", "new"];
    let (directory, other_directory, inode) = (chance.of(&all), chance.of(&all), chance.of(&all));
    let (name, other_name) = (file_name(chance.of(&names)), file_name(chance.of(&names)));
    let (offset, length) = (chance.below(20_000), 1 + chance.below(8_000));
    match chance.below(15) {
        0 => Operation::Create {
            directory,
            name,
            new: new_inode(chance.of(&[FileKind::File, FileKind::Directory])),
        },
        1 => Operation::Link {
            inode,
            directory,
            name,
        },
        2 | 3 => Operation::Unlink { directory, name },
        4 => Operation::RemoveDirectory { directory, name },
        5 | 6 => Operation::Rename {
            from_directory: directory,
            from_name: name,
            to_directory: other_directory,
            to_name: other_name,
            mode: chance.of(&[RenameMode::Replace, RenameMode::Exchange]),
        },
        7 => Operation::SetAttributes {
            inode,
            set: SetAttributes {
                size: Some(chance.below(3) * offset),
                ..SetAttributes::default()
            },
        },
        8 => Operation::ContinueCut { inode },
        9 => Operation::ChangeRange {
            inode,
            offset,
            length,
            change: chance.of(&[RangeChange::Punch, RangeChange::Zero, RangeChange::Reserve]),
            keep_size: chance.below(2) == 0,
        },
        10 => Operation::Share {
            from: inode,
            from_offset: offset,
            to: chance.of(&all),
            to_offset: chance.below(20_000),
            length,
        },
        11 => Operation::SetXattr {
            inode,
            name: Bytes::from_static(b"user.a"),
            value: vec![1; chance.below(30) as usize].into(),
            mode: XattrMode::Set,
            drop_setgid: false,
        },
        12 => {
            store.held.remove(&inode);
            Operation::Release { inode }
        }
        13 => {
            let (from, to) = Table::Reclaims.range();
            match store.records.range(from..to).next() {
                Some((Key::Reclaim { fileset, data }, _)) => Operation::Reclaim {
                    fileset: *fileset,
                    data: *data,
                },
                _ => Operation::ReadExtents {
                    inode,
                    offset,
                    length,
                    limit: 3,
                },
            }
        }
        _ => {
            let bytes = vec![1; length as usize];
            let extent = match chance.below(2) {
                0 => inline(offset, &bytes),
                _ => data(offset, length, store.segment(&bytes), 0),
            };
            Operation::Publish(Publish {
                inode,
                extents: vec![extent],
                size_at_least: offset + length,
                written: None,
                replaces: None,
            })
        }
    }
}

fn inode(store: &mut Store, id: InodeId) -> &mut Inode {
    match store.records.get_mut(&Key::Inode(id)) {
        Some(Record::Inode(inode)) => Arc::make_mut(inode),
        other => panic!("{other:?}"),
    }
}

fn is_called_damaged(store: &mut Store, operation: &Operation) -> bool {
    let stamp = store.stamp();
    let applied = apply(operation, &stamp, in_commit(store.commit), store);
    matches!(applied, Err(Stop::Refused(error)) if error.kind() == ErrorKind::Corrupt)
}

#[test]
fn removing_a_directory_that_gives_another_parent_is_refused() {
    let mut store = Store::new();
    let (real, wrong) = (store.directory(ROOT, "a"), store.directory(ROOT, "b"));
    for name in ["c", "d"] {
        let child = store.directory(real, name);
        // The rest of its run goes to its parent.
        store.create(child, "f", FileKind::File).unwrap();
        store.unlink(child, "f").unwrap();
        store.directory(ROOT, &format!("behind {name}"));
        store.create(wrong, name, FileKind::File).unwrap();
        inode(&mut store, child).parent = wrong.number();
    }
    store.directory(ROOT, "e");
    let remove = Operation::RemoveDirectory {
        directory: real,
        name: file_name("c"),
    };
    assert!(is_called_damaged(&mut store, &remove));
    let replace = Operation::Rename {
        from_directory: ROOT,
        from_name: file_name("e"),
        to_directory: real,
        to_name: file_name("d"),
        mode: RenameMode::Replace,
    };
    assert!(is_called_damaged(&mut store, &replace));
}

#[test]
fn a_directory_that_would_hand_out_its_own_number_is_refused() {
    let mut store = Store::new();
    let directory = store.directory(ROOT, "a");
    let own = directory.number().0;
    let damaged = inode(&mut store, directory);
    (damaged.run_next, damaged.run_end) = (own, own + 4);
    let create = Operation::Create {
        directory,
        name: file_name("f"),
        new: new_inode(FileKind::File),
    };
    assert!(is_called_damaged(&mut store, &create));
}

#[test]
fn damaged_records_are_refused_and_no_rule_panics_about_them() {
    let (mut refused, mut done) = (0, 0);
    let worlds: Vec<Store> = (0..8).map(filled).collect();
    for seed in 0..3_000 {
        let mut chance = Chance(seed);
        let mut store = chance_of(&worlds, seed).clone();
        for _ in 0..=chance.below(12) {
            damage(&mut chance, &mut store);
        }
        for _ in 0..40 {
            let operation = operation(&mut chance, &mut store);
            let stamp = store.stamp();
            match apply(&operation, &stamp, in_commit(store.commit), &store) {
                Ok(outcome) => {
                    done += 1;
                    store.take(outcome);
                }
                Err(Stop::Refused(error)) => {
                    refused += u32::from(error.kind() == ErrorKind::Corrupt);
                }
                Err(stop) => panic!("a full view misses nothing: {stop:?}"),
            }
        }
    }
    assert!(
        refused > 500 && done > 10_000,
        "operations find the damage: {refused} refused, {done} done"
    );
}

fn chance_of(worlds: &[Store], seed: u64) -> &Store {
    &worlds[(seed % worlds.len() as u64) as usize]
}
