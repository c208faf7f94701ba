//! No inode number is given twice, although an owner's last changes can be lost with it.
//!
//! Clients in an owner's process are answered before what they made is durable. If that process dies, no record says
//! which numbers it has given last; programs and kernels may know them, and others may have been told of them. So
//!
//! * changes wait while commits that aren't durable give [`UNFLUSHED_NUMBERS_MAX`] numbers: an owner never comes
//!   farther than [`SKIPPED`] beyond what its log says;
//! * an owner begins so far beyond what it finds, and gives nothing before that is durable itself;
//! * it drops the rests of directories' runs that it finds, all of which lie below (`namespace::View::first_number`).
//!
//! Numbers that a session has reserved stay its own under every owner: it knows which of them it has used.

#[cfg(test)]
mod tests;

use model::limits::{RESERVED_MAX, UNFLUSHED_NUMBERS_MAX};
use model::{FilesetId, InodeId};
use namespace::{Counters, Key, Record};
use std::collections::BTreeMap;

/// Most numbers that an owner has given of which its log may say nothing: the last operation before others wait takes
/// up to [`RESERVED_MAX`].
const SKIPPED: u64 = UNFLUSHED_NUMBERS_MAX + RESERVED_MAX as u64;
/// No number is as high.
const END: u64 = 1 << InodeId::NUMBER_BITS;

/// The numbers that this owner gives.
#[derive(Default)]
pub(crate) struct Numbers {
    filesets: BTreeMap<FilesetId, Given>,
    /// Those that the open commit gives, at most.
    moved: u64,
}

/// A fileset's numbers.
struct Given {
    /// The first one of this owner.
    first: u64,
    /// The next one, as of the newest change.
    next: u64,
}

impl Numbers {
    /// The first number of a fileset that this owner gives.
    pub(crate) fn first(&self, fileset: FilesetId) -> u64 {
        self.filesets.get(&fileset).map_or(0, |given| given.first)
    }

    /// Numbers that the open commit gives, at most: not all of a run are used.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// The open commit is frozen. Returns how many numbers it gives, at most.
    pub(crate) fn freeze(&mut self) -> u64 {
        std::mem::take(&mut self.moved)
    }

    /// A new owner finds a fileset's counters. Returns what it has to change them to, unless it knows the fileset.
    pub(crate) fn begin(&mut self, fileset: FilesetId, found: &Counters) -> Option<Counters> {
        if self.filesets.contains_key(&fileset) {
            return None;
        }
        let next = found.next_inode;
        let first = next.saturating_add(SKIPPED).min(END);
        self.filesets.insert(fileset, Given { first, next });
        Some(Counters {
            next_inode: first,
            ..found.clone()
        })
    }

    /// A record has this value from now on.
    pub(crate) fn note(&mut self, key: &Key, record: Option<&Record>) {
        let (Key::Counters(fileset), Some(Record::Counters(counters))) = (key, record) else {
            return;
        };
        let next = counters.next_inode;
        match self.filesets.get_mut(fileset) {
            Some(given) => {
                self.moved += next.saturating_sub(given.next);
                given.next = next;
            }
            // It is new. If it is lost the next owner makes it anew, with the same numbers: so none is given before it
            // is durable.
            None => {
                self.filesets.insert(*fileset, Given { first: 0, next });
                self.moved += UNFLUSHED_NUMBERS_MAX;
            }
        }
    }
}
