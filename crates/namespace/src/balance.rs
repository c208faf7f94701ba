//! Asserts after every operation, also in production, that it changed only permitted records and
//! that the changes add up.
//!
//! Compares only differences between the records before and after. So a failure is always a fault
//! of the rules, never a damaged record: operations refuse those on reading them (`sound`,
//! `counts`).

use crate::{Counters, Inode, Key, Record, Table};
use model::{
    DataId, ExtentKind, FileKind, FilesetId, InodeId, Operation, SegmentId,
    limits::{OPERATION_RECORDS_MAX, PUBLISH_EXTENTS_MAX},
};
use std::collections::BTreeMap;

/// Old extents that one publish may replace: with a segment and a dead record for each, and the
/// records that the new extents add, it stays under `OPERATION_RECORDS_MAX`. A publish that would
/// replace more gets `Overflow`; any part of it that is small enough can be published separately.
pub(crate) const REPLACED_EXTENTS_MAX: usize = 896;
/// Most records that one publish changes: each replaced extent with its segment's accounting and a
/// dead record; each new one with its segment's, and the two ends of an old one that it cuts.
const PUBLISH_RECORDS_MAX: usize = 3 * REPLACED_EXTENTS_MAX + 4 * PUBLISH_EXTENTS_MAX + 8;
const _: () = assert!(PUBLISH_RECORDS_MAX <= OPERATION_RECORDS_MAX);

type Change = (Key, Option<Record>);

/// The records that an operation may change, besides its slot.
struct Allowance {
    tables: &'static [Table],
    inodes: usize,
    names: usize,
    records: usize,
}

/// A name's record and the head of its hash.
const NAME: usize = 2;

/// The records of a file's content.
const CONTENT: &[Table] = &[
    Table::Inodes,
    Table::Counters,
    Table::Extents,
    Table::Xattrs,
    Table::Segments,
    Table::Deads,
    Table::Folds,
    Table::Cuts,
    Table::Reclaims,
    Table::Reserved,
];

/// The records that change when a name is removed, and perhaps its inode.
const REMOVAL: &[Table] = &[
    Table::Inodes,
    Table::Counters,
    Table::Names,
    Table::Orphans,
    Table::Folds,
    Table::Cuts,
    Table::Reclaims,
];

fn allowance_of(operation: &Operation) -> Allowance {
    let few = |tables, inodes, names| Allowance {
        tables,
        inodes,
        names,
        records: 24,
    };
    let content = |records| Allowance {
        tables: CONTENT,
        inodes: 1,
        names: 0,
        records,
    };
    match operation {
        Operation::Lookup { .. }
        | Operation::LookupParent { .. }
        | Operation::GetAttributes { .. }
        | Operation::ReadDirectory { .. }
        | Operation::ReadLink { .. }
        | Operation::GetXattr { .. }
        | Operation::ListXattrs { .. }
        | Operation::ReadExtents { .. }
        | Operation::GetUsage { .. } => few(&[], 0, 0),
        Operation::NoteAccess { .. } => few(&[Table::Inodes], 1, 0),
        Operation::SetXattr { .. } | Operation::RemoveXattr { .. } => {
            few(&[Table::Inodes, Table::Xattrs], 1, 0)
        }
        Operation::Create { .. }
        | Operation::CreateHeld { .. }
        | Operation::CreateUnnamed { .. } => few(
            &[
                Table::Inodes,
                Table::Counters,
                Table::Names,
                Table::Xattrs,
                Table::Orphans,
                Table::Reserved,
            ],
            2,
            NAME,
        ),
        Operation::Reserve { .. } => few(&[Table::Counters, Table::Reserved], 0, 0),
        Operation::Link { .. } => few(&[Table::Inodes, Table::Names, Table::Orphans], 2, NAME),
        Operation::Unlink { .. } | Operation::RemoveDirectory { .. } => few(REMOVAL, 2, NAME),
        Operation::Rename { .. } => few(REMOVAL, 4, 2 * NAME),
        Operation::Release { .. } => few(REMOVAL, 1, 0),
        Operation::SetAttributes { .. }
        | Operation::ContinueCut { .. }
        | Operation::ChangeRange { .. }
        | Operation::Share { .. } => content(OPERATION_RECORDS_MAX),
        Operation::Publish(_) => content(PUBLISH_RECORDS_MAX),
        Operation::Reclaim { .. } => Allowance {
            inodes: 0,
            ..content(OPERATION_RECORDS_MAX)
        },
        Operation::Condemn { .. } | Operation::ForgetDead { .. } => Allowance {
            tables: &[Table::Deads],
            inodes: 0,
            names: 0,
            records: OPERATION_RECORDS_MAX,
        },
    }
}

/// How the counts in an inode should change, by the records around it.
#[derive(Default)]
struct NeighbourChange {
    /// Names of it.
    names: i64,
    /// Names in it.
    entries: i64,
    /// Those that are directories.
    subdirectories: i64,
    /// Bytes of its extended attributes.
    xattr_bytes: i64,
}

/// How the extents under a data id changed.
#[derive(Default)]
struct Content {
    extents: i64,
    inline: i64,
    bytes: i128,
    /// The highest end of an extent after the change.
    end: u64,
}

#[derive(Default)]
struct Totals {
    inodes: i64,
    logical: i128,
    allocated: i128,
}

/// Vectors, because few inodes change; publishes and reclaims touch many segments.
#[derive(Default)]
struct Sums {
    around: Vec<(InodeId, NeighbourChange)>,
    content: Vec<((FilesetId, DataId), Content)>,
    /// Change in bytes that extents refer to, less the change that segments count.
    segments: BTreeMap<SegmentId, i128>,
    totals: Vec<(FilesetId, Totals)>,
}

/// The changes of one operation.
struct Ledger<'a> {
    changes: &'a [Change],
    sums: Sums,
}

/// Panics if an operation changed records that it may not, or left records that contradict each
/// other. `before`: the earlier values under the keys of `changes`.
pub(crate) fn check(operation: &Operation, changes: &[Change], before: &[Option<Record>]) {
    assert_eq!(
        changes.len(),
        before.len(),
        "each change has the record before it"
    );
    let allowed = allowance_of(operation);
    assert!(
        changes.len() <= allowed.records,
        "an operation changes {} records, at most {} are allowed",
        changes.len(),
        allowed.records
    );
    let (mut inodes, mut names) = (0, 0);
    let mut sums = Sums::default();
    for ((key, after), before) in changes.iter().zip(before) {
        assert!(
            allowed.tables.contains(&key.table()),
            "this operation must not change {key:?}"
        );
        inodes += usize::from(matches!(key, Key::Inode(_)));
        names += usize::from(matches!(key, Key::Name { .. }));
        sums.see(key, before.as_ref(), after.as_ref());
    }
    assert!(
        inodes <= allowed.inodes && names <= allowed.names,
        "an operation changes {inodes} inodes and {names} names, {} and {} are allowed",
        allowed.inodes,
        allowed.names
    );
    let is_reclaim = matches!(operation, Operation::Reclaim { .. });
    let mut ledger = Ledger { changes, sums };
    for ((key, after), before) in changes.iter().zip(before) {
        if let Key::Inode(id) = key {
            ledger.check_inode(*id, inode_of(before.as_ref()), inode_of(after.as_ref()));
        }
    }
    for ((key, after), before) in changes.iter().zip(before) {
        if let Key::Counters(fileset) = key {
            ledger.check_counters(*fileset, before.as_ref(), after.as_ref());
        }
    }
    ledger.check_rest(is_reclaim);
}

fn slot<K: PartialEq, V: Default>(list: &mut Vec<(K, V)>, key: K) -> &mut V {
    let at = list.iter().position(|(known, _)| *known == key);
    let at = at.unwrap_or_else(|| {
        list.push((key, V::default()));
        list.len() - 1
    });
    &mut list[at].1
}

fn inode_of(record: Option<&Record>) -> Option<&Inode> {
    match record {
        Some(Record::Inode(inode)) => Some(inode),
        Some(other) => panic!("a record of another kind under an inode's key: {other:?}"),
        None => None,
    }
}

fn wide(sum: u128) -> i128 {
    i128::try_from(sum).expect("sums over inodes are far below 2^127, as `sound` makes sure")
}

fn signed(number: u64) -> i128 {
    i128::from(number)
}

fn content_bytes(inode: &Inode) -> i128 {
    match inode.kind {
        FileKind::File => inode.content.len() as i128,
        _ => 0,
    }
}

impl Sums {
    fn see(&mut self, key: &Key, before: Option<&Record>, after: Option<&Record>) {
        for (record, sign) in [(before, -1), (after, 1)] {
            let Some(record) = record else { continue };
            match (key, record) {
                (Key::Name { directory, .. }, Record::Name(name)) => {
                    let Some(entry) = &name.entry else { continue };
                    let is_directory = entry.kind == FileKind::Directory;
                    let around = slot(&mut self.around, *directory);
                    around.entries += sign;
                    around.subdirectories += sign * i64::from(is_directory);
                    let inode = InodeId::new(directory.fileset(), entry.inode);
                    slot(&mut self.around, inode).names += sign;
                }
                (Key::Xattr { inode, name }, Record::Xattr(value)) => {
                    slot(&mut self.around, *inode).xattr_bytes +=
                        sign * (name.len() + value.len()) as i64;
                }
                (Key::Extent { fileset, data, end }, Record::Extent(extent)) => {
                    assert_eq!(*end, extent.end(), "an extent ends where its key says");
                    let content = slot(&mut self.content, (*fileset, *data));
                    content.extents += sign;
                    content.bytes += i128::from(sign) * signed(extent.length);
                    content.inline +=
                        sign * i64::from(matches!(extent.kind, ExtentKind::Inline(_)));
                    if sign > 0 {
                        content.end = content.end.max(*end);
                    }
                    if let ExtentKind::Data { place, .. } = &extent.kind {
                        *self.segments.entry(place.segment).or_default() +=
                            i128::from(sign) * signed(extent.length);
                    }
                }
                (Key::Segment(id), Record::Segment(segment)) => {
                    assert!(segment.live > 0, "segment {id} without bytes is dead");
                    *self.segments.entry(*id).or_default() -=
                        i128::from(sign) * signed(segment.live);
                }
                (key, record) => assert!(
                    fits(key, record),
                    "a record of another kind under {key:?}: {record:?}"
                ),
            }
        }
    }
}

fn fits(key: &Key, record: &Record) -> bool {
    matches!(
        (key, record),
        (Key::Inode(_), Record::Inode(_))
            | (Key::Counters(_), Record::Counters(_))
            | (Key::Dead(_), Record::Dead(_))
            | (Key::Orphan(_), Record::Orphan(_))
            | (Key::Reclaim { .. }, Record::Reclaim(_))
            | (Key::Fold(_) | Key::Cut(_), Record::Mark)
            | (Key::Reserved { .. }, Record::Reserved(_))
    )
}

impl Ledger<'_> {
    fn check_inode(&mut self, id: InodeId, before: Option<&Inode>, after: Option<&Inode>) {
        let around = std::mem::take(slot(&mut self.sums.around, id));
        let totals = slot(&mut self.sums.totals, id.fileset());
        for (inode, sign) in [(before, -1), (after, 1)] {
            let Some(inode) = inode else { continue };
            totals.inodes += sign;
            totals.allocated += i128::from(sign) * signed(inode.allocated);
            if inode.kind == FileKind::File {
                totals.logical += i128::from(sign) * signed(inode.size);
            }
        }
        let was_orphan = before.is_some_and(|inode| inode.links == 0);
        let is_orphan = after.is_some_and(|inode| inode.links == 0);
        self.check_mark(&Key::Orphan(id), was_orphan, is_orphan);
        let has_inline =
            |inode: Option<&Inode>| inode.is_some_and(|inode| inode.inline_extents > 0);
        self.check_mark(&Key::Fold(id), has_inline(before), has_inline(after));
        let is_cut =
            |inode: Option<&Inode>| inode.is_some_and(|inode| inode.cutting_from.is_some());
        self.check_mark(&Key::Cut(id), is_cut(before), is_cut(after));
        match (before, after) {
            (Some(before), Some(after)) => self.check_changed(id, before, after, &around),
            (None, Some(new)) => check_new(id, new, &around),
            (Some(gone), None) => self.check_gone(id, gone, &around),
            (None, None) => panic!("inode {id} is removed but never existed"),
        }
    }

    fn check_changed(
        &mut self,
        id: InodeId,
        before: &Inode,
        after: &Inode,
        around: &NeighbourChange,
    ) {
        assert!(
            before.kind == after.kind && before.btime == after.btime,
            "the type and birth time of inode {id} don't change"
        );
        if before.kind == FileKind::Directory && before.links > 0 && after.links == 0 {
            assert!(
                around.names == -1 && around.entries == 0 && after.entries == 0,
                "removed directory {id} loses its only name and is empty"
            );
        } else if before.kind == FileKind::Directory {
            let links = i64::from(after.links) - i64::from(before.links);
            assert_eq!(links, around.subdirectories, "links of directory {id}");
            assert_eq!(around.names, 0, "directory {id} keeps its only name");
        } else {
            let links = i64::from(after.links) - i64::from(before.links);
            assert_eq!(links, around.names, "links of inode {id}");
        }
        let entries = signed(after.entries) - signed(before.entries);
        assert_eq!(entries, around.entries.into(), "entries of inode {id}");
        let bytes = i64::from(after.xattr_bytes) - i64::from(before.xattr_bytes);
        assert_eq!(
            bytes, around.xattr_bytes,
            "bytes of extended attributes of inode {id}"
        );
        if after.data != before.data {
            assert!(
                after.extents == 0 && after.allocated == 0 && after.extents_end == 0,
                "the new data id of inode {id} has no extents"
            );
            self.reclaimed(id, before.data, false);
            return;
        }
        let content = std::mem::take(slot(&mut self.sums.content, (id.fileset(), after.data)));
        assert_eq!(
            (
                signed(after.extents) - signed(before.extents),
                signed(after.inline_extents) - signed(before.inline_extents),
                signed(after.allocated) - signed(before.allocated),
            ),
            (
                content.extents.into(),
                content.inline.into(),
                content.bytes + content_bytes(after) - content_bytes(before),
            ),
            "extents, inline ones and bytes of inode {id}"
        );
        assert!(
            content.end <= after.extents_end,
            "no extent of inode {id} ends after `extents_end`"
        );
    }

    fn check_gone(&self, id: InodeId, gone: &Inode, around: &NeighbourChange) {
        let names = match gone.kind {
            FileKind::Directory => -i64::from(gone.links > 0),
            _ => -i64::from(gone.links),
        };
        assert_eq!(
            around.names, names,
            "inode {id} is removed with its last name"
        );
        assert!(
            gone.entries == 0 && around.entries == 0 && around.xattr_bytes == 0,
            "removed inode {id} is empty, its attributes go later"
        );
        if gone.extents > 0 || gone.xattr_bytes > 0 {
            self.reclaimed(id, gone.data, gone.xattr_bytes > 0);
        }
    }

    fn check_counters(
        &mut self,
        fileset: FilesetId,
        before: Option<&Record>,
        after: Option<&Record>,
    ) {
        let (Some(before), Some(after)) = (counters_of(before), counters_of(after)) else {
            panic!("counters of fileset {fileset} are created or removed only with it");
        };
        let totals = std::mem::take(slot(&mut self.sums.totals, fileset));
        assert_eq!(
            (
                signed(after.inodes) - signed(before.inodes),
                wide(after.logical) - wide(before.logical),
                wide(after.allocated) - wide(before.allocated),
            ),
            (totals.inodes.into(), totals.logical, totals.allocated),
            "inodes, bytes of files and allocated bytes of fileset {fileset}"
        );
        assert!(
            after.next_data >= before.next_data,
            "data ids of fileset {fileset} are handed out once"
        );
    }

    /// Sums that no changed record accounted for must be zero.
    fn check_rest(&self, is_reclaim: bool) {
        for (id, around) in &self.sums.around {
            let alone = around.names == 0 && around.entries == 0 && around.subdirectories == 0;
            assert!(
                alone,
                "names of or in inode {id} change only together with it"
            );
            assert!(
                around.xattr_bytes == 0 || is_reclaim,
                "attributes of inode {id} change only together with it"
            );
        }
        for ((_, data), content) in &self.sums.content {
            assert!(
                content.extents == 0 && content.bytes == 0 || is_reclaim,
                "extents under data id {data} change only together with their inode"
            );
        }
        for (fileset, totals) in &self.sums.totals {
            assert!(
                totals.inodes == 0 && totals.logical == 0 && totals.allocated == 0,
                "inodes of fileset {fileset} change only together with its counters"
            );
        }
        for (segment, bytes) in &self.sums.segments {
            assert_eq!(
                *bytes, 0,
                "segment {segment} counts the bytes that refer to it"
            );
        }
    }

    fn change(&self, key: &Key) -> Option<&Option<Record>> {
        let found = self.changes.iter().find(|(changed, _)| changed == key);
        found.map(|(_, after)| after)
    }

    /// A mark that repeats a fact of an inode is added and removed together with that fact.
    fn check_mark(&self, key: &Key, was: bool, is: bool) {
        // Most operations change few records; long ones mostly change none of these.
        if !was && !is && self.changes.len() > 64 {
            return;
        }
        match self.change(key) {
            Some(after) => assert_eq!(
                after.is_some(),
                is,
                "{key:?} exists exactly if its inode says so"
            ),
            None => assert_eq!(was, is, "{key:?} changes together with its inode"),
        }
    }

    fn reclaimed(&self, id: InodeId, data: DataId, xattrs: bool) {
        let fileset = id.fileset();
        let queued = self.change(&Key::Reclaim { fileset, data });
        assert!(
            matches!(queued, Some(Some(Record::Reclaim(reclaim)))
                if reclaim.inode == id.number() && reclaim.xattrs == xattrs),
            "the remaining records of inode {id} are queued for reclaim"
        );
    }
}

fn check_new(id: InodeId, new: &Inode, around: &NeighbourChange) {
    let links = match (new.kind, around.names) {
        (FileKind::Directory, 1) => 2,
        (_, names) => names,
    };
    assert_eq!(i64::from(new.links), links, "links of the new inode {id}");
    assert!(
        around.names <= 1 && around.entries == 0 && new.entries == 0,
        "the new inode {id} has one name or none, and is empty"
    );
    assert!(
        new.extents == 0 && new.allocated == 0,
        "the new inode {id} has no bytes"
    );
    let bytes = i64::from(new.xattr_bytes);
    assert_eq!(
        bytes, around.xattr_bytes,
        "bytes of attributes of the new inode {id}"
    );
}

fn counters_of(record: Option<&Record>) -> Option<&Counters> {
    match record {
        Some(Record::Counters(counters)) => Some(counters),
        _ => None,
    }
}
