//! Reading: only bytes with correct checksums leave an NSD.

use crate::checksum::{UNIT, crc_of_units, first_mismatch, table_checksum, unit_checksums};
use crate::core::Core;
use crate::entry::{IndexEntry, Place, header_units};
use crate::extent::{pieces, read_header};
use crate::key::Key;
use bytes::{Bytes, BytesMut};
use model::{Error, ErrorKind, Result};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// How often a read starts again because the blob was moved during the read.
const TRIES: usize = 8;

/// Whole units around the bytes asked for, proven by checksums.
pub(crate) struct Proven {
    /// The first unit.
    pub(crate) first: u32,
    /// The units; the last one is cut at the payload's end.
    pub(crate) bytes: Bytes,
    /// Those asked for, within `bytes`.
    inside: Range<usize>,
    /// The payload's whole table.
    table: Arc<[u32]>,
}

impl Proven {
    /// The bytes asked for.
    pub(crate) fn exact(&self) -> Bytes {
        self.bytes.slice(self.inside.clone())
    }

    /// The stored checksums of the units.
    pub(crate) fn checksums(&self) -> &[u32] {
        let first = self.first as usize;
        &self.table[first..first + self.bytes.len().div_ceil(UNIT)]
    }

    /// CRC-32C of the units, if all are whole: of their checksums, which have proven them, without another look at them.
    pub(crate) fn crc(&self, key: &Key) -> Option<u32> {
        let are_whole = self.bytes.len().is_multiple_of(UNIT);
        are_whole.then(|| crc_of_units(key, self.first, self.checksums()))
    }
}

impl Core {
    /// The entry of `key` and the units of its bytes `range` (`None`: all), proven by checksums.
    pub(crate) async fn read_proven(
        &self,
        key: &Key,
        range: Option<Range<u32>>,
    ) -> Result<(Arc<IndexEntry>, Proven)> {
        self.check_serving()?;
        for _ in 0..TRIES {
            let entry = self.locate(key).await?.ok_or_else(|| self.absent(key))?;
            let range = range.clone().unwrap_or(0..entry.length);
            if range.end > entry.length || range.start > range.end {
                let text = format!(
                    "bytes {}..{} of {key} were requested, but it has {}",
                    range.start, range.end, entry.length
                );
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
            match self.read_range(key, &entry, range).await {
                Ok(proven) => return Ok((entry, proven)),
                Err(why) => {
                    // Was it deleted and its space reused, or moved out of the journal, during the
                    // read?
                    let now = self.locate(key).await?.ok_or_else(|| self.absent(key))?;
                    if now.is_same_as(&entry) {
                        tracing::warn!(nsd = self.identity.nsd.0, %key, why, "damaged");
                        self.note_damage(1);
                        let text = format!("{key} on NSD {}: {why}", self.identity.nsd);
                        return Err(Error::new(ErrorKind::Corrupt, text));
                    }
                }
            }
        }
        let text = format!("{key} was moved {TRIES} times during a read");
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// The units of a range of an entry, or why they can't be proven.
    async fn read_range(
        &self,
        key: &Key,
        entry: &IndexEntry,
        range: Range<u32>,
    ) -> std::result::Result<Proven, String> {
        let first = range.start / UNIT as u32;
        if range.is_empty() {
            return Ok(Proven {
                first: 0,
                bytes: Bytes::new(),
                inside: 0..0,
                table: Arc::default(),
            });
        }
        let count = range.end.div_ceil(UNIT as u32) - first;
        let table = self.table_of(key, entry).await?;
        let bytes = self.read_units(entry, first, count).await;
        let bytes =
            bytes.map_err(|error| format!("units {first}+{count} can't be read: {error}"))?;
        if let Some(unit) = first_mismatch(key, first, &bytes, &table) {
            return Err(format!("unit {unit} doesn't match its checksum"));
        }
        let skip = range.start as usize - first as usize * UNIT;
        Ok(Proven {
            first,
            inside: skip..skip + range.len(),
            bytes,
            table,
        })
    }

    /// The checksum table of an entry, from its header or, if that is damaged, computed from the
    /// payload and proven by the table's checksum.
    pub(crate) async fn table_of(
        &self,
        key: &Key,
        entry: &IndexEntry,
    ) -> std::result::Result<Arc<[u32]>, String> {
        if let Some(table) = self.state.lock().table(*key, entry) {
            return Ok(table);
        }
        let table = match self.table_in_header(key, entry).await {
            Some(table) => table,
            None => self.table_from_payload(key, entry).await?,
        };
        self.state.lock().remember_table(*key, entry.birth, &table);
        Ok(table)
    }

    /// The table in the entry's header, if the header is undamaged and agrees with the index.
    pub(crate) async fn table_in_header(
        &self,
        key: &Key,
        entry: &IndexEntry,
    ) -> Option<Arc<[u32]>> {
        let unit = entry.runs()?[0].unit;
        let length = header_units(entry.units()) as usize * UNIT;
        let block = self.disk.read(self.unit_offset(unit), length).await.ok()?;
        let header = read_header(&block, self.stamp.region, unit)?;
        (header.key == *key && header.entry == *entry).then_some(header.checksums)
    }

    /// The table computed from the whole payload, if its checksum is right.
    pub(crate) async fn table_from_payload(
        &self,
        key: &Key,
        entry: &IndexEntry,
    ) -> std::result::Result<Arc<[u32]>, String> {
        let payload = self.read_payload_bytes(entry).await;
        let payload = payload.map_err(|error| format!("it can't be read: {error}"))?;
        let table = unit_checksums(key, &payload.into());
        if table_checksum(key, &table) == entry.table_crc {
            return Ok(table.into());
        }
        Err("its header or its bytes don't match their checksum".into())
    }

    /// All bytes of an entry, unchecked.
    pub(crate) async fn read_payload_bytes(&self, entry: &IndexEntry) -> io::Result<Bytes> {
        self.read_units(entry, 0, entry.units()).await
    }

    /// `count` units from `first` on, cut at the payload's end, unchecked.
    async fn read_units(&self, entry: &IndexEntry, first: u32, count: u32) -> io::Result<Bytes> {
        let skip = first as usize * UNIT;
        let length = (entry.length as usize - skip).min(count as usize * UNIT);
        if length == 0 {
            return Ok(Bytes::new());
        }
        let runs = match &entry.place {
            Place::Journal(position) => {
                let start = position + skip as u64;
                let aligned = start / UNIT as u64 * UNIT as u64;
                let inside = usize::try_from(start - aligned).expect("below a unit");
                let whole = (inside + length).next_multiple_of(UNIT);
                let bytes = self.disk.read(self.ring.offset(aligned), whole).await?;
                return Ok(bytes.slice(inside..inside + length));
            }
            Place::Runs(runs) => runs,
        };
        let head = header_units(entry.units()) as usize * UNIT;
        let parts = pieces(runs, head + skip, length.next_multiple_of(UNIT));
        if let [(unit, whole)] = parts[..] {
            let bytes = self.disk.read(self.unit_offset(unit), whole).await?;
            return Ok(bytes.slice(..length));
        }
        let mut joined = BytesMut::with_capacity(length.next_multiple_of(UNIT));
        for (unit, whole) in parts {
            joined.extend_from_slice(&self.disk.read(self.unit_offset(unit), whole).await?);
        }
        joined.truncate(length);
        Ok(joined.freeze())
    }
}
