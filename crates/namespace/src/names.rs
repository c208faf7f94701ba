//! Directory entries: positions of names, and names whose hashes collide.

use crate::{Key, Name, NameEntry, Record, View, transaction::Transaction, view::Step};
use model::{Error, ErrorKind, FileKind, FileName, InodeId, InodeNumber};
use siphasher::sip::SipHasher24;
use std::sync::Arc;

/// Greater than every position.
pub const POSITION_END: u64 = 1 << 63;

/// Must never change, nor may the hash: positions are stored.
const KEY: [u64; 2] = [0x7368_616c_6520_6e61, 0x6d65_2070_6f73_3121];
const ORDINALS: u64 = 0xff;

/// The 55-bit hash of a name in a directory, never 0. Keyed by the directory's number alone, so
/// that a name can be looked up in the same round as its directory and a clone's directories
/// keep their order; see docs/formats/records.md for why that is enough.
#[must_use]
pub fn position_hash(directory: InodeNumber, name: &[u8]) -> u64 {
    #[cfg(test)]
    if name.starts_with(b"same-hash") {
        // Real collisions would take years to find; tests provoke them by this prefix.
        return 7;
    }
    let hasher = SipHasher24::new_with_keys(KEY[0] ^ directory.0, KEY[1]);
    (hasher.hash(name) >> 9).max(1)
}

/// Where a name is, if it exists.
pub(crate) enum Found {
    At {
        position: u64,
        inode: InodeNumber,
        kind: FileKind,
    },
    Absent,
}

/// The key of the head record of a name's hash.
pub(crate) fn head_key(directory: InodeId, name: &FileName) -> Key {
    let position = position_hash(directory.number(), name.as_bytes()) << 8;
    Key::Name {
        directory,
        position,
    }
}

/// Finds a name.
pub(crate) fn find<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    name: &FileName,
) -> Step<Found> {
    let key = head_key(directory, name);
    let Some(Record::Name(head)) = tx.get(&key)? else {
        return Ok(Found::Absent);
    };
    let base = position_of(&key);
    if let Some(found) = matching(&head, name, base) {
        return Ok(found);
    }
    for (position, record) in followers(tx, directory, base, head.highest)? {
        if let Some(found) = matching(&record, name, position) {
            return Ok(found);
        }
    }
    Ok(Found::Absent)
}

/// Inserts a name that doesn't exist yet.
pub(crate) fn insert<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    name: &FileName,
    inode: InodeNumber,
    kind: FileKind,
) -> Step<()> {
    let key = head_key(directory, name);
    let base = position_of(&key);
    let entry = Some(NameEntry {
        name: name.clone(),
        inode,
        kind,
    });
    let head = match tx.get(&key)? {
        Some(Record::Name(head)) => head,
        _ => {
            put(tx, directory, base, Name { entry, highest: 0 });
            return Ok(());
        }
    };
    assert!(
        head.entry.as_ref().is_none_or(|entry| entry.name != *name),
        "a name is inserted only where `find` found none"
    );
    if head.entry.is_none() {
        put(
            tx,
            directory,
            base,
            Name {
                entry,
                highest: head.highest,
            },
        );
        return Ok(());
    }
    let used = followers(tx, directory, base, head.highest)?;
    let free = (1..=ORDINALS).find(|ordinal| {
        used.iter()
            .all(|(position, _)| position & ORDINALS != *ordinal)
    });
    let Some(ordinal) = free else {
        return Err(Error::new(
            ErrorKind::NoSpace,
            "256 names in the directory have the same hash as this one",
        )
        .into());
    };
    let record = Record::Name(Arc::new(Name { entry, highest: 0 }));
    let position = base | ordinal;
    tx.put_new(
        Key::Name {
            directory,
            position,
        },
        record,
    )?;
    let highest = head.highest.max(ordinal as u8);
    if highest != head.highest {
        put(
            tx,
            directory,
            base,
            Name {
                entry: head.entry.clone(),
                highest,
            },
        );
    }
    Ok(())
}

/// Makes the name at a position refer to another inode.
pub(crate) fn replace<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    position: u64,
    inode: InodeNumber,
    kind: FileKind,
) -> Step<()> {
    let key = Key::Name {
        directory,
        position,
    };
    let Some(Record::Name(old)) = tx.get(&key)? else {
        panic!("the operation found this position before: {key:?}");
    };
    let entry = old.entry.as_ref();
    let name = &entry
        .expect("the operation found an entry at this position")
        .name;
    let entry = Some(NameEntry {
        name: name.clone(),
        inode,
        kind,
    });
    let highest = old.highest;
    put(tx, directory, position, Name { entry, highest });
    Ok(())
}

/// Removes the name at a position.
pub(crate) fn remove<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    position: u64,
) -> Step<()> {
    let base = position & !ORDINALS;
    let key = Key::Name {
        directory,
        position: base,
    };
    let Some(Record::Name(head)) = tx.get(&key)? else {
        panic!("the operation found the head of this hash before: {key:?}");
    };
    assert!(
        position != base || head.entry.is_some(),
        "the operation found an entry at this position"
    );
    if head.highest == 0 {
        tx.delete(Key::Name {
            directory,
            position: base,
        });
        return Ok(());
    }
    let used = followers(tx, directory, base, head.highest)?;
    let highest = used
        .iter()
        .map(|(used, _)| *used)
        .filter(|used| *used != position)
        .max()
        .map_or(0, |used| used & ORDINALS) as u8;
    let entry = if position == base {
        None
    } else {
        head.entry.clone()
    };
    if position != base {
        tx.delete(Key::Name {
            directory,
            position,
        });
    }
    if entry.is_none() && highest == 0 {
        tx.delete(Key::Name {
            directory,
            position: base,
        });
    } else if entry.is_none() || highest != head.highest {
        put(tx, directory, base, Name { entry, highest });
    }
    Ok(())
}

fn position_of(key: &Key) -> u64 {
    match key {
        Key::Name { position, .. } => *position,
        _ => unreachable!("the key of a name"),
    }
}

fn matching(record: &Name, name: &FileName, position: u64) -> Option<Found> {
    let entry = record.entry.as_ref().filter(|entry| entry.name == *name)?;
    Some(Found::At {
        position,
        inode: entry.inode,
        kind: entry.kind,
    })
}

/// The names after the head, all in one round.
fn followers<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    base: u64,
    highest: u8,
) -> Step<Vec<(u64, Arc<Name>)>> {
    let mut found = Vec::new();
    for ordinal in 1..=u64::from(highest) {
        let position = base | ordinal;
        if let Some(Some(Record::Name(record))) = tx.look(&Key::Name {
            directory,
            position,
        }) {
            found.push((position, record));
        }
    }
    tx.stop_if_missing()?;
    Ok(found)
}

fn put<V: View>(tx: &mut Transaction<'_, V>, directory: InodeId, position: u64, name: Name) {
    tx.put(
        Key::Name {
            directory,
            position,
        },
        Record::Name(Arc::new(name)),
    );
}
