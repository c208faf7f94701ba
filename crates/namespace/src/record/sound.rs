//! Conditions that each record read from disk must meet by itself before any rule computes with it:
//! rules may then panic on their own faults, but never on a damaged record.

use crate::{
    Inode, Key, Name, Record,
    record::{Reserved, Run},
};
use model::{
    Extent, ExtentKind, FileKind, InodeId,
    limits::{FILE_BYTES_MAX, RESERVED_RUNS_MAX, XATTR_INODE_BYTES_MAX},
};

/// Inode numbers are below this.
const NUMBERS: u64 = 1 << InodeId::NUMBER_BITS;
/// Data ids without the top bit of fresh ones are below this.
const DATA_MAX: u64 = 1 << 62;
/// The sum if every inode had the largest file size.
const SUM_MAX: u128 = NUMBERS as u128 * FILE_BYTES_MAX as u128;
/// Longer runs of inode numbers are never handed out.
const RUN_LENGTH_MAX: u32 = 1 << 20;

/// Why no operation could have written the record, if so.
pub(crate) fn fault(key: &Key, record: &Record) -> Option<&'static str> {
    match (key, record) {
        (Key::Inode(_), Record::Inode(inode)) => fault_of_inode(inode),
        (Key::Extent { end, .. }, Record::Extent(extent)) => fault_of_extent(*end, extent),
        (Key::Name { position, .. }, Record::Name(name)) => fault_of_name(*position, name),
        (Key::Counters(_), Record::Counters(counters)) => {
            let sums = counters.logical <= SUM_MAX && counters.allocated <= SUM_MAX;
            let numbers = sums && counters.next_inode <= NUMBERS && counters.inodes <= NUMBERS;
            fault_unless(
                numbers && counters.next_data <= DATA_MAX,
                "its numbers are out of range",
            )
        }
        (Key::Segment(id), Record::Segment(segment)) => fault_unless(
            segment.place.segment == *id && segment.live > 0,
            "it describes another segment or no bytes",
        ),
        (Key::Dead(id), Record::Dead(dead)) => {
            fault_unless(dead.place.segment == *id, "it describes another segment")
        }
        (Key::Reclaim { .. }, Record::Reclaim(reclaim)) => fault_unless(
            reclaim.inode.0 < NUMBERS,
            "its inode number is out of range",
        ),
        (Key::Reserved { .. }, Record::Reserved(reserved)) => fault_of_reserved(reserved),
        _ => None,
    }
}

fn fault_of_reserved(reserved: &Reserved) -> Option<&'static str> {
    let is_sound = |runs: &[Run], max: u64| {
        let fits = |run: &Run| run.next < run.end && run.end <= max;
        runs.len() <= RESERVED_RUNS_MAX && runs.iter().all(fits)
    };
    fault_unless(
        is_sound(&reserved.inodes, NUMBERS) && is_sound(&reserved.data, DATA_MAX),
        "its runs are empty, too many or out of range",
    )
}

fn fault_unless(holds: bool, otherwise: &'static str) -> Option<&'static str> {
    (!holds).then_some(otherwise)
}

fn fault_of_inode(inode: &Inode) -> Option<&'static str> {
    let content = inode.content.len() as u64;
    let is_file = inode.kind == FileKind::File;
    let rules = [
        (
            inode.parent.0 < NUMBERS && inode.run_end <= NUMBERS && inode.entries <= NUMBERS,
            "its numbers are out of range",
        ),
        (
            inode.run_next <= inode.run_end && inode.run_length <= RUN_LENGTH_MAX,
            "its run of inode numbers ends before it begins",
        ),
        (
            inode.size <= FILE_BYTES_MAX && inode.extents_end <= FILE_BYTES_MAX,
            "it is larger than any file",
        ),
        (
            inode.inline_extents <= inode.extents && inode.extents <= FILE_BYTES_MAX,
            "it counts more inline extents than extents",
        ),
        (
            is_file || inode.extents == 0 && inode.cutting_from.is_none(),
            "it has extents but isn't a file",
        ),
        (
            !is_file || content == 0 || inode.extents == 0,
            "it has both extents and content",
        ),
        (
            inode.extents > 0 || inode.allocated == if is_file { content } else { 0 },
            "it doesn't count the bytes of its content",
        ),
        (
            inode.xattr_bytes as usize <= XATTR_INODE_BYTES_MAX,
            "it counts more extended attributes than fit",
        ),
        (
            inode.kind == FileKind::Directory || inode.entries == 0,
            "it has entries but isn't a directory",
        ),
    ];
    rules
        .into_iter()
        .find_map(|(holds, otherwise)| fault_unless(holds, otherwise))
}

fn fault_of_extent(end: u64, extent: &Extent) -> Option<&'static str> {
    if extent.length == 0
        || end > FILE_BYTES_MAX
        || extent.offset.checked_add(extent.length) != Some(end)
    {
        return Some("it doesn't end where its key says, or exceeds the largest file");
    }
    let fits = match &extent.kind {
        ExtentKind::Data { place, at, .. } => u64::from(*at)
            .checked_add(extent.length)
            .is_some_and(|end| end <= u64::from(place.length)),
        ExtentKind::Inline(bytes) => bytes.len() as u64 == extent.length,
        ExtentKind::Reserved => true,
    };
    fault_unless(fits, "it is longer than its data")
}

fn fault_of_name(position: u64, name: &Name) -> Option<&'static str> {
    let is_head = position & 0xff == 0;
    let inode = name.entry.as_ref().map_or(1, |entry| entry.inode.0);
    if !(1..NUMBERS).contains(&inode) {
        return Some("its inode number is out of range");
    }
    fault_unless(
        if is_head {
            name.entry.is_some() || name.highest > 0
        } else {
            name.entry.is_some() && name.highest == 0
        },
        "only the head of a hash is vacant or counts the others",
    )
}
