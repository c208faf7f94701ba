//! Sorted order of the hot records by key, for range reads.
//!
//! Inodes and names are nearly all records, so they have their own orders by number: faster to
//! compare, and more compact. Names come and go at random places (their positions are hashes) and
//! are listed rarely, so their order is *buffered*: pieces of neighbouring names, to which changes
//! are only appended, and which are sorted when listed or full. A new name touches only one piece.
//! After the buffered trees of Bender, Brodal and Fagerberg (SODA 2003), with one level of buffers.

use model::InodeId;
use namespace::Key;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Most changes in a piece before it is sorted and perhaps split.
const PIECE_MAX: usize = 512;
/// A sorted piece with more names than this is split, so that it has room for changes again.
const PIECE_NAMES: usize = PIECE_MAX / 2;
/// One with fewer is merged into the one before it, if both fit.
const PIECE_NAMES_MIN: usize = PIECE_MAX / 8;
/// A piece with more entries than this is sorted once fewer than a quarter are names, so that
/// removed names don't take memory for long.
const ENTRIES_FEW: usize = 64;

/// Number of a slot; stays the same while the record is in the table.
pub(super) type Place = u32;

/// A directory's number and a position in it.
type At = (u64, u64);

/// The places of all records.
#[derive(Default)]
pub(super) struct Order {
    inodes: BTreeMap<u64, Place>,
    names: Names,
    others: BTreeMap<Key, Place>,
}

/// The names' places: pieces by the first position that belongs in them. One always starts at the
/// lowest possible position.
struct Names {
    pieces: BTreeMap<At, Piece>,
}

#[derive(Default)]
struct Piece {
    /// Names in it.
    names: usize,
    /// Up to the last sorting: one entry per name, in order. After that, changes in order of
    /// arrival.
    entries: RefCell<Vec<OrderEntry>>,
    is_sorted: Cell<bool>,
}

/// A name's place; `None` if it was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OrderEntry {
    at: At,
    place: Option<Place>,
}

impl Order {
    pub(super) fn insert(&mut self, key: &Key, place: Place) {
        match key {
            Key::Inode(inode) => {
                self.inodes.insert(inode.0, place);
            }
            Key::Name {
                directory,
                position,
            } => self.names.note((directory.0, *position), Some(place)),
            _ => {
                self.others.insert(key.clone(), place);
            }
        }
    }

    pub(super) fn remove(&mut self, key: &Key) {
        match key {
            Key::Inode(inode) => {
                self.inodes.remove(&inode.0);
            }
            Key::Name {
                directory,
                position,
            } => self.names.note((directory.0, *position), None),
            _ => {
                self.others.remove(key);
            }
        }
    }

    /// The places of the records from one key to another (exclusive), in order.
    pub(super) fn range<'a>(
        &'a self,
        from: &Key,
        to: &Key,
    ) -> impl Iterator<Item = Place> + use<'a> {
        let first_inode = Key::Inode(InodeId(0));
        // Names end where extents begin; the three parts have nothing in between.
        let first_extent = namespace::Table::Extents.first();
        let before = (from.clone(), to.min(&first_inode).clone());
        let inodes = (inode_bound(from), inode_bound(to));
        let names = (name_bound(from), name_bound(to));
        let behind = (from.max(&first_extent).clone(), to.clone());
        within(&self.others, before)
            .chain(within(&self.inodes, inodes))
            .chain(self.names.range(names.0, names.1))
            .chain(within(&self.others, behind))
    }
}

impl Default for Names {
    fn default() -> Self {
        Self {
            pieces: BTreeMap::from([((0, 0), Piece::default())]),
        }
    }
}

impl Names {
    fn note(&mut self, at: At, place: Option<Place>) {
        let (first, piece) = self
            .pieces
            .range_mut(..=at)
            .next_back()
            .expect("a piece begins at the first position");
        if place.is_some() {
            piece.names += 1;
        } else {
            piece.names -= 1;
        }
        let entries = piece.entries.get_mut();
        entries.push(OrderEntry { at, place });
        piece.is_sorted.set(false);
        let is_full = entries.len() >= PIECE_MAX;
        let is_waste = entries.len() > ENTRIES_FEW && entries.len() > 4 * piece.names;
        if is_full || is_waste || piece.names == 0 {
            let first = *first;
            self.settle(first);
        }
    }

    /// Sorts a piece. Splits it if it is mostly names; merges it into the one before it if it has
    /// few.
    fn settle(&mut self, first: At) {
        let piece = self.pieces.get_mut(&first).expect("it was just found");
        piece.sort();
        let entries = piece.entries.get_mut();
        assert_eq!(entries.len(), piece.names, "each name is noted once");
        if entries.len() > PIECE_NAMES {
            let behind = entries.split_off(entries.len() / 2);
            piece.names = entries.len();
            let begin = behind[0].at;
            let new = Piece {
                names: behind.len(),
                is_sorted: Cell::new(true),
                entries: RefCell::new(behind),
            };
            self.pieces.insert(begin, new);
            return;
        }
        entries.shrink_to_fit();
        let few = entries.len();
        if few >= PIECE_NAMES_MIN || first == (0, 0) {
            return;
        }
        let before = self.before(first).entries.get_mut().len();
        if few > 0 && before + few > PIECE_NAMES {
            return;
        }
        let mut piece = self.pieces.remove(&first).expect("it was just found");
        // All of them come after the existing entries, so a sorted piece stays sorted.
        let before = self.before(first);
        before.names += few;
        before.entries.get_mut().append(piece.entries.get_mut());
    }

    fn before(&mut self, first: At) -> &mut Piece {
        let (_, piece) = self
            .pieces
            .range_mut(..first)
            .next_back()
            .expect("a piece begins at the first position");
        piece
    }

    fn range(&self, from: At, to: At) -> impl Iterator<Item = Place> + use<'_> {
        let begin = self.pieces.range(..=from).next_back().map(|(at, _)| *at);
        let pieces = begin
            .filter(|_| from < to)
            .map(|at| self.pieces.range(at..to));
        pieces
            .into_iter()
            .flatten()
            .flat_map(move |(_, piece)| piece.within(from, to))
    }
}

impl Piece {
    /// Moves changes to their places. The last one of a position counts.
    fn sort(&self) {
        if self.is_sorted.replace(true) {
            return;
        }
        let mut entries = self.entries.borrow_mut();
        // Stable: later changes stay later.
        entries.sort_by_key(|entry| entry.at);
        let mut kept = 0;
        for next in 0..entries.len() {
            let entry = entries[next];
            let is_last = entries
                .get(next + 1)
                .is_none_or(|other| other.at != entry.at);
            if is_last && entry.place.is_some() {
                entries[kept] = entry;
                kept += 1;
            }
        }
        entries.truncate(kept);
    }

    fn within(&self, from: At, to: At) -> impl Iterator<Item = Place> + use<> {
        self.sort();
        let entries = self.entries.borrow();
        let begin = entries.partition_point(|entry| entry.at < from);
        let end = entries.partition_point(|entry| entry.at < to);
        let places: Vec<Place> = entries[begin..end]
            .iter()
            .filter_map(|entry| entry.place)
            .collect();
        places.into_iter()
    }
}

/// A B-tree's range, empty if the bounds are equal or reversed.
fn within<K: Ord>(tree: &BTreeMap<K, Place>, (from, to): (K, K)) -> impl Iterator<Item = Place> {
    let range = (from < to).then(|| tree.range(from..to));
    range.into_iter().flatten().map(|(_, place)| *place)
}

/// The first inode at or after a key. No inode has the last number.
fn inode_bound(key: &Key) -> u64 {
    match key {
        Key::Fileset(_) | Key::Counters(_) => 0,
        Key::Inode(inode) => inode.0,
        _ => u64::MAX,
    }
}

/// The first name at or after a key. No directory has the last number.
fn name_bound(key: &Key) -> At {
    match key {
        Key::Fileset(_) | Key::Counters(_) | Key::Inode(_) => (0, 0),
        Key::Name {
            directory,
            position,
        } => (directory.0, *position),
        _ => (u64::MAX, u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::{At, Key, Names, Order, PIECE_MAX, PIECE_NAMES, PIECE_NAMES_MIN, Place};
    use model::InodeId;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;

    fn name((directory, position): At) -> Key {
        Key::Name {
            directory: InodeId(directory),
            position,
        }
    }

    proptest! {
        /// Against a sorted map: names are added, removed, added again elsewhere and listed in
        /// between, often enough for pieces to be split and to become empty.
        #[test]
        fn names_are_listed_in_order_whatever_came_before(
            steps in proptest::collection::vec((0..3_u64, 0..400_u64, 0..8_u8), 1..6000)
        ) {
            let mut order = Order::default();
            let mut model = BTreeMap::new();
            for (number, (directory, position, what)) in steps.into_iter().enumerate() {
                let at = (directory, position);
                match what {
                    0 => {
                        let (from, to) = (name(at), name((directory + 1, position / 2)));
                        let found: Vec<Place> = order.range(&from, &to).collect();
                        let expected: Vec<Place> =
                            model.range(at..(directory + 1, position / 2)).map(|(_, place)| *place).collect();
                        prop_assert_eq!(found, expected);
                    }
                    1..=4 => {
                        if let Entry::Vacant(free) = model.entry(at) {
                            order.insert(&name(at), number as Place);
                            free.insert(number as Place);
                        }
                    }
                    _ => {
                        if model.remove(&at).is_some() {
                            order.remove(&name(at));
                        }
                    }
                }
            }
            let all: Vec<Place> = order.range(&name((0, 0)), &name((9, 0))).collect();
            prop_assert_eq!(all, model.into_values().collect::<Vec<_>>());
        }
    }

    fn position(number: u64) -> u64 {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn entries(names: &Names) -> usize {
        let pieces = names.pieces.values();
        pieces.map(|piece| piece.entries.borrow().capacity()).sum()
    }

    #[test]
    fn pieces_are_cut_when_full_and_go_with_their_names() {
        let mut names = Names::default();
        for number in 0..100_000 {
            names.note((1, position(number)), Some(number as Place));
        }
        let full = names.pieces.len();
        let expected = 100_000 / PIECE_MAX..=100_000 / PIECE_NAMES * 2;
        assert!(expected.contains(&full), "{full}");
        for number in 0..100_000 {
            names.note((1, position(number)), None);
        }
        assert_eq!(names.range((0, 0), (9, 9)).count(), 0);
        assert_eq!(names.pieces.len(), 1);
        assert!(entries(&names) <= PIECE_MAX);
    }

    /// As in eviction: new directories are added at the end, the oldest names are removed.
    #[test]
    fn what_was_removed_takes_no_memory() {
        const KEPT: u64 = 30_000;
        let mut names = Names::default();
        let at = |number: u64| (number / 1000, position(number));
        for number in 0..400_000 {
            names.note(at(number), Some(number as Place));
            if let Some(old) = number.checked_sub(KEPT) {
                names.note(at(old), None);
            }
        }
        assert_eq!(names.range((0, 0), (u64::MAX, 0)).count() as u64, KEPT);
        let (entries, pieces) = (entries(&names), names.pieces.len());
        assert!(entries < 6 * KEPT as usize, "{entries} entries");
        assert!(pieces < KEPT as usize / PIECE_NAMES_MIN, "{pieces} pieces");
    }
}
