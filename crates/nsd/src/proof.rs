//! Proving the data of puts that a power cut may have interrupted.
//!
//! A group of the journal and the data of its puts become durable with one flush, so either may be there without the other
//! if the power is cut before that flush has ended. Nobody was answered then. Groups are written one by one: only the last
//! one can be such a group.

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
    let units = superblock.layout.data_units;
    let is_inside = |run: &Run| run.unit < units && u64::from(run.count) <= units - run.unit;
    let runs = match entry.runs() {
        Some(runs) if runs.iter().all(is_inside) => runs,
        _ => return true,
    };
    let payload = match payload_of(disk, superblock, runs, entry).await {
        Ok(payload) => payload,
        Err(error) => {
            tracing::warn!(%key, %error, "the payload of the last group of the journal can't be read");
            return true;
        }
    };
    let table = unit_checksums(key, &payload.into());
    if table_checksum(key, &table) != entry.table_crc {
        return false;
    }
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
