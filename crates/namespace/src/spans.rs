//! Where the keys of a range are, once they are encoded: a tree sorts by family first.

use crate::Key;
use crate::key::prefix;
use model::FamilyId;

/// Encoded keys that are neighbours: from (inclusive), to (exclusive).
pub type Span = (Vec<u8>, Vec<u8>);

/// The encoded keys of `from..to` of a shard that holds these families (in order of their numbers): one span for
/// each family, in the order of the keys. What is beyond the table of `from` isn't in the range.
#[must_use]
pub fn spans(from: &Key, to: &Key, families: &[FamilyId]) -> Vec<Span> {
    if from >= to {
        return Vec::new();
    }
    let table = from.table();
    // `to` may be the first key of another table.
    let last = (to.table() == table).then_some(to);
    let Some(first_family) = from.family() else {
        let end = last.map_or_else(|| after(None, table.tag()), Key::to_bytes);
        return vec![(from.to_bytes(), end)];
    };
    let last_family = last.and_then(Key::family);
    if last_family == Some(first_family) {
        return vec![(from.to_bytes(), to.to_bytes())];
    }
    let held = families.iter().copied();
    let within =
        held.filter(|it| first_family <= *it && last_family.is_none_or(|last| *it <= last));
    let span = |family: FamilyId| {
        let begin = match family == first_family {
            true => from.to_bytes(),
            false => at(Some(family), table.tag()),
        };
        let end = match last_family == Some(family) {
            true => to.to_bytes(),
            false => after(Some(family), table.tag()),
        };
        (begin, end)
    };
    within
        .map(span)
        .filter(|(begin, end)| begin < end)
        .collect()
}

/// Before all keys of a table.
fn at(family: Option<FamilyId>, tag: u8) -> Vec<u8> {
    let mut bytes = prefix(family).to_vec();
    bytes.push(tag);
    bytes
}

/// After all keys of a table.
fn after(family: Option<FamilyId>, tag: u8) -> Vec<u8> {
    at(family, tag + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Table;
    use model::{DataId, FilesetId, InodeId, InodeNumber, SegmentId, SessionId};
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Key> {
        let small = || 0..3_u64;
        (0..5_u8, 0..4_u32, 0..2_u32, small(), small()).prop_map(|(kind, family, member, a, b)| {
            let fileset = FilesetId(FamilyId(family).first_fileset().0 + member);
            let inode = InodeId::new(fileset, InodeNumber(a));
            match kind {
                0 => Key::Inode(inode),
                1 => Key::Name {
                    directory: inode,
                    position: b,
                },
                2 => Key::Extent {
                    fileset,
                    data: DataId(a),
                    end: b,
                },
                3 => Key::Segment(SegmentId {
                    session: SessionId(a),
                    counter: b,
                }),
                _ => Key::Stream(SessionId(a)),
            }
        })
    }

    proptest! {
        /// Every key of the range is in one span, no other key of the shard is, and they have the
        /// same order.
        #[test]
        fn the_spans_of_a_range_have_its_keys(
            mut keys in proptest::collection::btree_set(key(), 1..60),
            ends in (key(), key(), any::<bool>()),
        ) {
            let (from, mut to, to_the_end) = ends;
            if to_the_end || to.table() != from.table() {
                to = from.table().range().1;
            }
            let families: Vec<_> = [0, 1, 3].map(FamilyId).into();
            keys.retain(|key| key.family().is_none_or(|family| families.contains(&family)));
            let spans = spans(&from, &to, &families);
            let mut rows: Vec<_> = keys.iter().map(Key::to_bytes).collect();
            rows.sort();
            let found = spans.iter().flat_map(|(begin, end)| {
                rows.iter().filter(move |row| begin <= *row && *row < end)
            });
            let found: Vec<_> = found.map(|row| Key::decode(row).unwrap()).collect();
            let wanted: Vec<_> = keys.into_iter().filter(|key| from <= *key && *key < to).collect();
            prop_assert_eq!(found, wanted);
        }
    }

    #[test]
    fn a_table_is_one_span_for_each_family() {
        let (from, to) = Table::Inodes.range();
        assert_eq!(spans(&from, &to, &[FamilyId(0), FamilyId(7)]).len(), 2);
        let (from, to) = Table::Segments.range();
        assert_eq!(spans(&from, &to, &[FamilyId(0), FamilyId(7)]).len(), 1);
    }
}
