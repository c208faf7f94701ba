//! Proving the data of puts that a power cut may have interrupted.
//!
//! A group of the journal and the data of its puts become durable with one flush, so either may be there without the other
//! if the power is cut before that flush has ended. Nobody was answered then. Groups are written one by one: only the last
//! one can be such a group.
//!
//! A rebuild of the index proves so which of several extents is there that can't all be.

use crate::checksum::{UNIT, table_checksum, unit_checksums};
use crate::entry::{IndexEntry, Run, header_units};
use crate::extent::{pieces, read_header, write_header};
use crate::key::Key;
use crate::superblock::Superblock;
use bytes::{Bytes, BytesMut};
use std::io;
use world::{AlignedBuffer, Disk};

/// Whether the payload of an entry may be on the disk as a whole. The payload of one in the journal is: the checksum of its group
/// covers it, and one outside the data area is refused by whoever adopts it. One that can't be read counts as whole: a power cut
/// tears what is written and damages no medium, and whoever reads it is told. In front of a whole payload, a header that isn't
/// there or is damaged is written again, without a flush, if the disk takes it: the units must be the entry's.
pub(crate) async fn is_whole(
    disk: &Disk,
    superblock: &Superblock,
    key: &Key,
    entry: &IndexEntry,
) -> bool {
    let Some(runs) = runs_inside(superblock, entry) else {
        return true;
    };
    let table = match table_of(disk, superblock, key, entry, runs).await {
        Ok(Some(table)) => table,
        Ok(None) => return false,
        Err(error) => {
            tracing::warn!(%key, %error, "the payload of the last group of the journal can't be read");
            return true;
        }
    };
    let unit = runs[0].unit;
    let offset = offset_of(superblock, unit);
    let length = header_units(entry.units()) as usize * UNIT;
    let found = disk.read(offset, length).await.ok();
    let found = found.and_then(|block| read_header(&block, superblock.region, unit));
    if found.is_none_or(|header| header.key != *key || header.entry != *entry) {
        let mut block = AlignedBuffer::zeroed(length);
        write_header(&mut block, superblock.region, key, entry, &table);
        if let Err(error) = disk.write(offset, block.freeze()).await {
            tracing::warn!(%key, %error, "a header can't be written: the payload is proven without it");
        }
    }
    true
}

/// What is at the place of an extent's payload: what says most for the extent comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Proof {
    /// The payload.
    Whole,
    /// Nobody knows: it can't be read.
    Unreadable,
    /// Something else, at least in part: it was never written as a whole, or is overwritten or damaged.
    Torn,
}

/// What is at the place of the payload of an entry that isn't in the journal. Changes nothing.
pub(crate) async fn prove(
    disk: &Disk,
    superblock: &Superblock,
    key: &Key,
    entry: &IndexEntry,
) -> Proof {
    let Some(runs) = runs_inside(superblock, entry) else {
        return Proof::Torn;
    };
    match table_of(disk, superblock, key, entry, runs).await {
        Ok(Some(_)) => Proof::Whole,
        Ok(None) => Proof::Torn,
        Err(error) => {
            tracing::warn!(%key, %error, "a payload that a rebuild must prove can't be read");
            Proof::Unreadable
        }
    }
}

/// The runs of an entry, if they are in the data area.
fn runs_inside<'a>(superblock: &Superblock, entry: &'a IndexEntry) -> Option<&'a [Run]> {
    let units = superblock.layout.data_units;
    let is_inside = |run: &Run| run.unit < units && u64::from(run.count) <= units - run.unit;
    entry.runs().filter(|runs| runs.iter().all(is_inside))
}

/// The checksum table of the payload in these runs; `None` if that isn't the entry's.
async fn table_of(
    disk: &Disk,
    superblock: &Superblock,
    key: &Key,
    entry: &IndexEntry,
    runs: &[Run],
) -> io::Result<Option<Vec<u32>>> {
    let payload = payload_of(disk, superblock, runs, entry).await?;
    let table = unit_checksums(key, &payload.into());
    Ok((table_checksum(key, &table) == entry.table_crc).then_some(table))
}

async fn payload_of(
    disk: &Disk,
    superblock: &Superblock,
    runs: &[Run],
    entry: &IndexEntry,
) -> io::Result<Bytes> {
    let length = entry.length as usize;
    let padded = length.next_multiple_of(UNIT);
    let head = header_units(entry.units()) as usize * UNIT;
    let mut payload = BytesMut::with_capacity(padded);
    for (unit, bytes) in pieces(runs, head, padded) {
        let part = disk.read(offset_of(superblock, unit), bytes).await?;
        payload.extend_from_slice(&part);
    }
    payload.truncate(length);
    Ok(payload.freeze())
}

fn offset_of(superblock: &Superblock, unit: u64) -> u64 {
    superblock.layout.data_start + unit * UNIT as u64
}
