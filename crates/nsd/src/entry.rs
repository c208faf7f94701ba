//! The description of a blob or log entry in the index, the journal and a blob's header: its
//! writer, its place and its checksums.

use crate::checksum::{UNIT, units_of};
use crate::key::{Key, Named};
use crate::wire::{Reader, Writer};
use model::nsd::{BlobHeader, BlobInfo};
use model::{DataId, FamilyId, InodeNumber, Scheme};
use std::sync::Arc;

/// Checksum tables of up to this many units are stored in the entry; longer ones only in the
/// header.
pub(crate) const INLINE_CHECKSUMS_MAX: usize = 64;
/// Most runs of one extent.
pub(crate) const RUNS_MAX: usize = 8;
/// More units than any disk has: the offset of their last byte exceeds 64 bits.
const UNITS_MAX: u64 = (u64::MAX / UNIT as u64) - u32::MAX as u64;
/// Offset of the checksum table in a header.
pub(crate) const TABLE_AT: usize = 512;

const VERSION: u8 = 1;
const FLAG_INLINE_CHECKSUMS: u8 = 1;
const FLAG_BLOB: u8 = 2;
const FLAG_IN_JOURNAL: u8 = 4;

/// Consecutive units of the data area.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Run {
    /// First unit, counted from the start of the data area.
    pub(crate) unit: u64,
    /// Units.
    pub(crate) count: u32,
}

/// Where an entry's bytes are stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// In a journal record: position of the first byte of the payload.
    Journal(u64),
    /// Header units, then payload units, in these runs. The header lies within the first run.
    Runs(Vec<Run>),
}

/// One blob or log entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct IndexEntry {
    /// Bytes of the payload.
    pub(crate) length: u32,
    /// Nonce of the put, or epoch of the log entry.
    pub(crate) writer: u64,
    /// Increases with every put on this NSD. What moves out of the journal keeps it: its extent is younger.
    pub(crate) birth: u64,
    /// `None` for log entries.
    pub(crate) header: Option<BlobHeader>,
    /// Where the bytes are.
    pub(crate) place: Place,
    /// Checksum of the checksum table.
    pub(crate) table_crc: u32,
    /// The checksum table, if it is short.
    pub(crate) checksums: Option<Arc<[u32]>>,
}

impl IndexEntry {
    /// Units of payload.
    pub(crate) fn units(&self) -> u32 {
        units_of(self.length)
    }

    /// Units of the data area that it occupies, or will occupy once moved out of the journal.
    pub(crate) fn extent_units(&self) -> u64 {
        u64::from(header_units(self.units())) + u64::from(self.units())
    }

    /// Approximate bytes of memory that it takes.
    pub(crate) fn weight(&self) -> usize {
        200 + self.checksums.as_ref().map_or(0, |table| table.len() * 4)
    }

    /// Approximate bytes that it takes in the index, wherever the payload is.
    pub(crate) fn index_bytes(&self) -> u64 {
        150 + self
            .checksums
            .as_ref()
            .map_or(0, |table| table.len() as u64 * 4)
    }

    /// Whether this is the same put at the same place.
    pub(crate) fn is_same_as(&self, other: &IndexEntry) -> bool {
        self.birth == other.birth && self.place == other.place
    }

    /// Its listing; `None` for log entries.
    pub(crate) fn info(&self, key: &Key) -> Option<BlobInfo> {
        let Named::Blob(name) = key.named() else {
            return None;
        };
        Some(BlobInfo {
            name,
            nonce: self.writer,
            header: self.header?,
            length: self.length,
        })
    }

    /// The runs; `None` for entries in the journal.
    pub(crate) fn runs(&self) -> Option<&[Run]> {
        match &self.place {
            Place::Runs(runs) => Some(runs),
            Place::Journal(_) => None,
        }
    }

    /// Encoded form (`docs/formats/blob.md`).
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        let (runs, position): (&[Run], u64) = match &self.place {
            Place::Journal(position) => (&[], *position),
            Place::Runs(runs) => (runs, 0),
        };
        let mut flags = 0;
        if self.checksums.is_some() {
            flags |= FLAG_INLINE_CHECKSUMS;
        }
        if self.header.is_some() {
            flags |= FLAG_BLOB;
        }
        if matches!(self.place, Place::Journal(_)) {
            flags |= FLAG_IN_JOURNAL;
        }
        out.u8(VERSION);
        out.u8(flags);
        out.u8(u8::try_from(runs.len()).expect("at most eight runs"));
        out.u8(0);
        out.u32(self.length);
        out.u64(self.writer);
        out.u64(self.birth);
        out.u64(position);
        out.u32(self.table_crc);
        if let Some(header) = &self.header {
            encode_blob_header(&mut out, header);
        }
        for run in runs {
            out.u64(run.unit);
            out.u32(run.count);
        }
        for checksum in self.checksums.iter().flat_map(|table| table.iter()) {
            out.u32(*checksum);
        }
        out.done()
    }

    /// Decodes [`IndexEntry::encode`]'s output; `None` for anything else.
    pub(crate) fn decode(input: &mut Reader<'_>) -> Option<Self> {
        if input.u8()? != VERSION {
            return None;
        }
        let flags = input.u8()?;
        let run_count = usize::from(input.u8()?);
        input.u8()?;
        let length = input.u32()?;
        let writer = input.u64()?;
        let birth = input.u64()?;
        let position = input.u64()?;
        let table_crc = input.u32()?;
        let header = match flags & FLAG_BLOB {
            0 => None,
            _ => Some(decode_blob_header(input)?),
        };
        if run_count > RUNS_MAX || length > model::limits::SEGMENT_BYTES_MAX {
            return None;
        }
        let mut runs = Vec::with_capacity(run_count);
        for _ in 0..run_count {
            runs.push(Run {
                unit: input.u64()?,
                count: input.u32()?,
            });
        }
        let checksums = match flags & FLAG_INLINE_CHECKSUMS {
            0 => None,
            _ => Some(decode_checksums(input, units_of(length))?.into()),
        };
        let in_journal = flags & FLAG_IN_JOURNAL != 0;
        if in_journal != runs.is_empty() || (in_journal && checksums.is_none()) {
            return None;
        }
        let place = if in_journal {
            Place::Journal(position)
        } else {
            Place::Runs(runs)
        };
        let entry = Self {
            length,
            writer,
            birth,
            header,
            place,
            table_crc,
            checksums,
        };
        entry.is_sound().then_some(entry)
    }

    /// Whether the runs match the length and can exist on a disk.
    fn is_sound(&self) -> bool {
        self.runs().is_none_or(|runs| {
            let is_place = |run: &Run| run.count > 0 && run.unit < UNITS_MAX;
            if !runs.iter().all(is_place) {
                return false;
            }
            let total: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
            total == self.extent_units() && runs[0].count >= header_units(self.units())
        })
    }
}

/// Header units of an extent with `units` payload units.
pub(crate) fn header_units(units: u32) -> u32 {
    let bytes = TABLE_AT + units as usize * 4;
    u32::try_from(bytes.div_ceil(UNIT)).expect("a segment's table is small")
}

/// Bytes of an NSD that a blob of `length` payload bytes takes, with what describes it. Small blobs that are
/// packed together take less.
#[must_use]
pub fn blob_bytes(length: u64) -> u64 {
    let units = length.div_ceil(UNIT as u64);
    let header = header_units(u32::try_from(units).expect("a blob is at most a segment"));
    (units + u64::from(header)) * UNIT as u64
}

/// Reads a checksum table of `units` entries.
pub(crate) fn decode_checksums(input: &mut Reader<'_>, units: u32) -> Option<Vec<u32>> {
    let bytes = input.raw(units as usize * 4)?;
    Some(
        bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
            .collect(),
    )
}

fn encode_blob_header(out: &mut Writer, header: &BlobHeader) {
    let (tag, first, second) = match header.scheme {
        Scheme::Replicate(copies) => (0, copies, 0),
        Scheme::Erasure { k, m } => (1, k, m),
    };
    out.u32(header.family.0);
    out.u64(header.inode.0);
    out.u64(header.data.0);
    out.u64(header.file_offset);
    out.raw(&[tag, first, second, 0]);
    out.u32(header.skipped_slots);
    out.u32(header.segment_bytes);
    out.u32(header.segment_crc);
}

fn decode_blob_header(input: &mut Reader<'_>) -> Option<BlobHeader> {
    let family = FamilyId(input.u32()?);
    let inode = InodeNumber(input.u64()?);
    let data = DataId(input.u64()?);
    let file_offset = input.u64()?;
    let scheme = match input.array::<4>()? {
        [0, copies, 0, 0] => Scheme::Replicate(copies),
        [1, k, m, 0] => Scheme::Erasure { k, m },
        _ => return None,
    };
    if scheme.data_pieces() == 0 || !(1..=Scheme::PIECES_MAX).contains(&scheme.width()) {
        return None;
    }
    Some(BlobHeader {
        family,
        inode,
        data,
        file_offset,
        scheme,
        skipped_slots: input.u32()?,
        segment_bytes: input.u32()?,
        segment_crc: input.u32()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_read_back_and_cut_ones_do_not() {
        let header = BlobHeader {
            family: FamilyId(1),
            inode: InodeNumber(2),
            data: DataId(3),
            file_offset: 4,
            scheme: Scheme::Erasure { k: 4, m: 2 },
            skipped_slots: 5,
            segment_bytes: 6,
            segment_crc: 7,
        };
        let runs = vec![Run { unit: 9, count: 2 }, Run { unit: 99, count: 1 }];
        let table: Arc<[u32]> = vec![1, 2].into();
        for (place, header) in [
            (Place::Journal(4096), None),
            (Place::Runs(runs), Some(header)),
        ] {
            let entry = IndexEntry {
                length: 5000,
                writer: 8,
                birth: 11,
                header,
                place,
                table_crc: 12,
                checksums: Some(table.clone()),
            };
            let bytes = entry.encode();
            assert_eq!(IndexEntry::decode(&mut Reader::new(&bytes)), Some(entry));
            for length in 0..bytes.len() {
                assert_eq!(IndexEntry::decode(&mut Reader::new(&bytes[..length])), None);
            }
        }
    }

    #[test]
    fn entries_that_no_disk_can_hold_are_refused() {
        let entry = |run: Run, scheme| IndexEntry {
            length: 4096,
            writer: 8,
            birth: 11,
            header: Some(BlobHeader {
                family: FamilyId(1),
                inode: InodeNumber(2),
                data: DataId(3),
                file_offset: 4,
                scheme,
                skipped_slots: 0,
                segment_bytes: 4096,
                segment_crc: 7,
            }),
            place: Place::Runs(vec![
                run,
                Run {
                    unit: 9,
                    count: 2 - run.count.min(2),
                },
            ]),
            table_crc: 12,
            checksums: None,
        };
        let reads_back = |run, scheme| {
            let bytes = entry(run, scheme).encode();
            IndexEntry::decode(&mut Reader::new(&bytes)).is_some()
        };
        let run = |unit| Run { unit, count: 1 };
        let copies = Scheme::Replicate;
        assert!(reads_back(run(5), copies(2)));
        assert!(reads_back(run(5), Scheme::Erasure { k: 16, m: 4 }));
        for unit in [u64::MAX, u64::MAX / 4096, 1 << 52] {
            assert!(!reads_back(run(unit), copies(2)), "unit {unit}");
        }
        assert!(
            !reads_back(Run { unit: 5, count: 2 }, copies(2)),
            "an empty run"
        );
        for (k, m) in [(0, 2), (17, 4), (255, 255)] {
            assert!(!reads_back(run(5), Scheme::Erasure { k, m }), "{k}+{m}");
        }
        assert!(!reads_back(run(5), copies(0)) && !reads_back(run(5), copies(21)));
    }

    #[test]
    fn the_largest_entry_fits_in_front_of_the_table() {
        let fixed = 36 + 44 + RUNS_MAX * 12 + INLINE_CHECKSUMS_MAX * 4;
        assert!(crate::extent::ENTRY_AT + fixed <= TABLE_AT);
        assert_eq!(header_units(1), 1);
        assert_eq!(header_units(896), 1);
        assert_eq!(header_units(897), 2);
    }
}
