//! Storage of the hot records: slots in chunks that never move, an index by key, an order for
//! ranges, and the hand that looks for records to evict.
//!
//! Every record is stored once; index and order hold its place, a number. A lookup touches the
//! index and the slot, and the hand walks memory sequentially.

use super::order::{Order, Place};
use hashbrown::HashTable;
use model::CommitNumber;
use namespace::{Key, Record};
use std::cell::Cell;
use std::hash::{Hash, Hasher};
use world::FixedHasher;

/// Bytes of a slot besides its record: itself, index, order, allocations.
pub(super) const SLOT_BYTES: usize = 192;
/// Most empty places that the hand passes at once, left by larger records.
const EMPTY_MAX: usize = 1024;
/// Slots per chunk of memory.
const PIECE: usize = 1024;

/// Which records under an inode are completely in the table.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Complete {
    /// Names of the directory.
    pub(super) names: bool,
    /// Extended attributes.
    pub(super) xattrs: bool,
    /// Extents under the data id that the inode was created with.
    pub(super) extents: bool,
}

/// One record, or the knowledge that there is none.
pub(super) struct Slot {
    pub(super) key: Key,
    pub(super) value: Option<Record>,
    /// The commit that last changed it; 0: as in the tree.
    pub(super) changed: CommitNumber,
    /// Didn't exist before the open commit: if also removed in it, it leaves no trace.
    pub(super) fresh: bool,
    /// Used since the hand passed.
    pub(super) referenced: Cell<bool>,
    /// For inodes only.
    pub(super) complete: Complete,
}

impl Slot {
    fn weight(&self) -> usize {
        weight(self.value.as_ref())
    }
}

/// The memory counted for a value, without its slot.
pub(super) fn weight(value: Option<&Record>) -> usize {
    value.map_or(0, Record::weight)
}

/// The slots.
#[derive(Default)]
pub(super) struct SlotTable {
    pieces: Vec<Vec<Option<Slot>>>,
    free: Vec<Place>,
    /// Half of the key's hash with the place, so that growing the index doesn't read slots.
    index: HashTable<(u32, Place)>,
    /// Initial state of hashes. Users choose the names of extended attributes: without a secret
    /// seed, they could choose a million that collide in the index, and every lookup there would be
    /// slow for everyone.
    seed: u64,
    order: Order,
    /// The next place to examine for eviction.
    hand: Place,
    bytes: usize,
}

impl SlotTable {
    /// An empty table with this seed.
    pub(super) fn seeded(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// Number of records.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Bytes of all records.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn find(&self, key: &Key) -> Option<Place> {
        let half = half_of(self.seed, key);
        let found = self.index.find(spread(half), |(other, place)| {
            *other == half && self.slot(*place).key == *key
        });
        found.map(|(_, place)| *place)
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Slot> {
        self.find(key).map(|place| self.slot(place))
    }

    pub(super) fn slot(&self, place: Place) -> &Slot {
        let (piece, at) = split(place);
        self.pieces[piece][at]
            .as_ref()
            .expect("a place is given out with its slot")
    }

    /// For all fields but the value: see [`SlotTable::replace`].
    pub(super) fn slot_mut(&mut self, place: Place) -> &mut Slot {
        let (piece, at) = split(place);
        self.pieces[piece][at]
            .as_mut()
            .expect("a place is given out with its slot")
    }

    /// Gives a record another value; returns the previous one.
    pub(super) fn replace(&mut self, place: Place, value: Option<Record>) -> Option<Record> {
        let after = weight(value.as_ref());
        let slot = self.slot_mut(place);
        let before = std::mem::replace(&mut slot.value, value);
        self.bytes = self.bytes + after - weight(before.as_ref());
        before
    }

    /// Inserts a record whose key isn't in the table.
    pub(super) fn insert(&mut self, slot: Slot) -> Place {
        let half = half_of(self.seed, &slot.key);
        self.bytes += SLOT_BYTES + slot.weight();
        let place = self.free.pop().unwrap_or_else(|| self.new_place());
        self.order.insert(&slot.key, place);
        let (piece, at) = split(place);
        self.pieces[piece][at] = Some(slot);
        self.index
            .insert_unique(spread(half), (half, place), |(half, _)| spread(*half));
        place
    }

    fn new_place(&mut self) -> Place {
        if self.pieces.last().is_none_or(|piece| piece.len() == PIECE) {
            self.pieces.push(Vec::with_capacity(PIECE));
        }
        let piece = self.pieces.len() - 1;
        let at = self.pieces[piece].len();
        self.pieces[piece].push(None);
        Place::try_from(piece * PIECE + at).expect("the budget keeps records far below 2^32")
    }

    pub(super) fn remove(&mut self, place: Place) -> Slot {
        let (piece, at) = split(place);
        let slot = self.pieces[piece][at]
            .take()
            .expect("a place is given out with its slot");
        let half = half_of(self.seed, &slot.key);
        self.index
            .find_entry(spread(half), |(_, other)| *other == place)
            .expect("every slot is in the index")
            .remove();
        self.order.remove(&slot.key);
        self.free.push(place);
        self.bytes -= SLOT_BYTES + slot.weight();
        slot
    }

    /// Moves the hand to the next record, past at most `EMPTY_MAX` empty places; returns the place
    /// that it passed.
    pub(super) fn advance(&mut self) -> Option<Place> {
        for _ in 0..EMPTY_MAX {
            let (piece, at) = split(self.hand);
            let Some(slots) = self.pieces.get(piece) else {
                self.hand = 0;
                continue;
            };
            let Some(slot) = slots.get(at) else {
                self.hand = ((piece + 1) * PIECE) as Place;
                continue;
            };
            let passed = self.hand;
            self.hand += 1;
            if slot.is_some() {
                return Some(passed);
            }
        }
        None
    }

    /// The records from one key to another (exclusive), in order.
    pub(super) fn range<'a>(
        &'a self,
        from: &Key,
        to: &Key,
    ) -> impl Iterator<Item = &'a Slot> + use<'a> {
        self.order.range(from, to).map(|place| self.slot(place))
    }
}

fn split(place: Place) -> (usize, usize) {
    (place as usize / PIECE, place as usize % PIECE)
}

fn half_of(seed: u64, key: &Key) -> u32 {
    let mut hasher = FixedHasher::seeded(seed);
    key.hash(&mut hasher);
    (hasher.finish() >> 32) as u32
}

/// The index uses bits from both ends of the 64.
fn spread(half: u32) -> u64 {
    u64::from(half).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::InodeId;
    use std::collections::BTreeSet;

    /// Records the words that go into [`FixedHasher`].
    #[derive(Default)]
    struct Words(Vec<u64>);

    impl Hasher for Words {
        fn finish(&self) -> u64 {
            0
        }

        fn write(&mut self, bytes: &[u8]) {
            let mut chunks = bytes.chunks_exact(8);
            for chunk in &mut chunks {
                self.0.push(u64::from_le_bytes(chunk.try_into().unwrap()));
            }
            let mut last = [0; 8];
            last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
            let length = (bytes.len() as u64) << 56;
            self.0.push(u64::from_le_bytes(last) ^ length);
        }

        fn write_u8(&mut self, value: u8) {
            self.0.push(u64::from(value));
        }

        fn write_u16(&mut self, value: u16) {
            self.0.push(u64::from(value));
        }

        fn write_u32(&mut self, value: u32) {
            self.0.push(u64::from(value));
        }

        fn write_u64(&mut self, value: u64) {
            self.0.push(value);
        }

        fn write_usize(&mut self, value: usize) {
            self.0.push(value as u64);
        }
    }

    fn attribute(second: u64, third: u64) -> Key {
        let mut name = b"user.key".to_vec();
        name.extend(second.to_le_bytes());
        name.extend(third.to_le_bytes());
        Key::Xattr {
            inode: InodeId(77),
            name: name.into(),
        }
    }

    /// Names chosen by an attacker: the third word undoes what the second did to a hash that starts
    /// at 0.
    fn meeting(number: u64) -> Key {
        let mut words = Words::default();
        attribute(number, 0).hash(&mut words);
        let before_third = words.0.len() - 2;
        let mut hasher = FixedHasher::seeded(0);
        words.0[..before_third]
            .iter()
            .for_each(|word| hasher.write_u64(*word));
        let finished = hasher.finish();
        // `finish` combines the state with itself, 29 bits further down.
        let state = finished ^ (finished >> 29) ^ (finished >> 58);
        attribute(number, state ^ 0x5555)
    }

    #[test]
    fn names_of_attributes_that_were_chosen_to_meet_do_not() {
        let chosen: Vec<Key> = (0..10_000).map(meeting).collect();
        let places = |seed: u64| {
            let halves = chosen.iter().map(|key| half_of(seed, key));
            halves.collect::<BTreeSet<u32>>().len()
        };
        assert_eq!(places(0), 1, "they would meet");
        assert!(places(0x1234_5678_9abc_def1) > 9_900);
    }
}
