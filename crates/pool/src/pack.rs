//! Packed segments: many small byte ranges of many files in one segment.
//!
//! The ranges follow one another from byte 0; after them comes a table of their files
//! (`docs/formats/pack.md`). Readers never need the table, since extents name segment and offset;
//! the cleaner, rescue and checks do.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use model::checksum::crc32c;
use model::{DataId, Error, ErrorKind, InodeId, Result, limits};

/// Bytes of one entry of the table.
pub const ENTRY_BYTES: usize = 32;
/// Bytes of the footer after the table.
pub const FOOTER_BYTES: usize = 24;
/// Most ranges of one packed segment.
pub const ENTRIES_MAX: usize = 65_536;

const MAGIC: [u8; 8] = *b"SHLPACK1";

/// A range of a file and its place in the packed segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackEntry {
    /// The file.
    pub inode: InodeId,
    /// Its data id when the range was packed.
    pub data: DataId,
    /// First byte in the file.
    pub file_offset: u64,
    /// First byte in the segment.
    pub at: u32,
    /// Bytes.
    pub length: u32,
}

/// Collects ranges into the bytes of one segment.
pub struct PackWriter {
    bytes: BytesMut,
    entries: Vec<PackEntry>,
    capacity: usize,
}

impl PackWriter {
    /// A segment of at most `capacity` bytes, table included (at most 16 MiB).
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        let capacity = capacity.min(limits::SEGMENT_BYTES_MAX) as usize;
        Self {
            bytes: BytesMut::new(),
            entries: Vec::new(),
            capacity,
        }
    }

    /// Whether a range of `length` bytes still fits.
    #[must_use]
    pub fn has_room(&self, length: usize) -> bool {
        let table = (self.entries.len() + 1) * ENTRY_BYTES + FOOTER_BYTES;
        self.entries.len() < ENTRIES_MAX && self.bytes.len() + length + table <= self.capacity
    }

    /// Adds a range (it must fit); returns its entry, with its place in the segment.
    pub fn add(
        &mut self,
        inode: InodeId,
        data: DataId,
        file_offset: u64,
        bytes: &[u8],
    ) -> PackEntry {
        assert!(self.has_room(bytes.len()), "only what fits is packed");
        let length = u32::try_from(bytes.len()).expect("segments are at most 16 MiB");
        let at = u32::try_from(self.bytes.len()).expect("segments are at most 16 MiB");
        let entry = PackEntry {
            inode,
            data,
            file_offset,
            at,
            length,
        };
        self.bytes.extend_from_slice(bytes);
        self.entries.push(entry);
        entry
    }

    /// The ranges so far.
    #[must_use]
    pub fn entries(&self) -> &[PackEntry] {
        &self.entries
    }

    /// Whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The segment's bytes, and its entries.
    #[must_use]
    pub fn finish(self) -> (Bytes, Vec<PackEntry>) {
        let Self {
            mut bytes, entries, ..
        } = self;
        let table_at = bytes.len();
        bytes.reserve(entries.len() * ENTRY_BYTES + FOOTER_BYTES);
        for entry in &entries {
            bytes.put_u64_le(entry.inode.0);
            bytes.put_u64_le(entry.data.0);
            bytes.put_u64_le(entry.file_offset);
            bytes.put_u32_le(entry.at);
            bytes.put_u32_le(entry.length);
        }
        let crc = crc32c(&bytes[table_at..]);
        bytes.put_u32_le(u32::try_from(table_at).expect("segments are at most 16 MiB"));
        bytes.put_u32_le(u32::try_from(entries.len()).expect("a pack has at most 65,536 entries"));
        bytes.put_u32_le(crc);
        bytes.put_u32_le(0);
        bytes.put_slice(&MAGIC);
        (bytes.freeze(), entries)
    }
}

/// Offset of the table of a packed segment, from its last [`FOOTER_BYTES`] bytes, which are at
/// `footer_at`; `None` if it isn't packed.
#[must_use]
pub fn table_at(mut footer: &[u8], footer_at: u32) -> Option<u32> {
    if footer.len() != FOOTER_BYTES || footer[16..] != MAGIC {
        return None;
    }
    Some(footer.get_u32_le().min(footer_at))
}

/// Decodes the table from a packed segment's complete plain bytes; `None` if it isn't packed.
///
/// # Errors
/// `Corrupt` if there is a table and it is damaged.
pub fn decode(segment: &[u8]) -> Result<Option<Vec<PackEntry>>> {
    decode_tail(segment, 0)
}

/// As [`decode`], from the segment's bytes from `tail_at` on, which must include the whole table.
///
/// # Errors
/// As [`decode`].
pub fn decode_tail(tail: &[u8], tail_at: u32) -> Result<Option<Vec<PackEntry>>> {
    let Some(footer_at) = tail.len().checked_sub(FOOTER_BYTES) else {
        return Ok(None);
    };
    let mut footer = &tail[footer_at..];
    if footer[16..] != MAGIC {
        return Ok(None);
    }
    let wrong = |why: &str| {
        Error::new(
            ErrorKind::Corrupt,
            format!("the table of a packed segment {why}"),
        )
    };
    let (table_in_segment, count, crc) = (
        footer.get_u32_le() as usize,
        footer.get_u32_le() as usize,
        footer.get_u32_le(),
    );
    let table_at = table_in_segment.checked_sub(tail_at as usize);
    let ends = |at: usize| at.checked_add(count * ENTRY_BYTES) == Some(footer_at);
    let Some(table_at) = table_at.filter(|at| count <= ENTRIES_MAX && ends(*at)) else {
        return Err(wrong("isn't where its footer says"));
    };
    let mut table = &tail[table_at..footer_at];
    if crc32c(table) != crc {
        return Err(wrong("fails its checksum"));
    }
    let mut entries = Vec::with_capacity(count);
    let mut end = 0;
    for _ in 0..count {
        let entry = PackEntry {
            inode: InodeId(table.get_u64_le()),
            data: DataId(table.get_u64_le()),
            file_offset: table.get_u64_le(),
            at: table.get_u32_le(),
            length: table.get_u32_le(),
        };
        // User data may look like a table: its ranges must at least not exceed the bytes.
        if entry.at as usize != end {
            return Err(wrong("names ranges that aren't contiguous"));
        }
        end += entry.length as usize;
        if end > table_in_segment {
            return Err(wrong("names bytes outside of it"));
        }
        entries.push(entry);
    }
    Ok(Some(entries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_pack_reads_back_as_written(parts in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 1..200)), 1..40)) {
            let mut writer = PackWriter::new(1 << 20);
            for (number, (offset, bytes)) in parts.iter().enumerate() {
                writer.add(InodeId(number as u64), DataId(9), *offset, bytes);
            }
            let (segment, entries) = writer.finish();
            for (entry, (_, bytes)) in entries.iter().zip(&parts) {
                prop_assert_eq!(&segment[entry.at as usize..][..entry.length as usize], &bytes[..]);
            }
            let footer_at = segment.len() - FOOTER_BYTES;
            let at = table_at(&segment[footer_at..], footer_at as u32).unwrap();
            prop_assert_eq!(decode_tail(&segment[at as usize..], at).unwrap(), Some(entries.clone()));
            prop_assert_eq!(decode(&segment).unwrap(), Some(entries));
        }

        #[test]
        fn any_flipped_bit_of_the_table_is_noticed_or_makes_it_no_pack(bit in 0usize..(ENTRY_BYTES + FOOTER_BYTES - 12) * 8) {
            let mut writer = PackWriter::new(1 << 20);
            writer.add(InodeId(1), DataId(2), 3, b"some bytes");
            let (segment, entries) = writer.finish();
            let mut bad = segment.to_vec();
            let at = b"some bytes".len() + bit / 8;
            bad[at] ^= 1 << (bit % 8);
            prop_assert!(decode(&bad).map_or(true, |found| found != Some(entries)));
        }
    }

    /// User data may look like a table, also one with a checksum that fits.
    #[test]
    fn any_segment_is_a_pack_or_none_or_damaged() {
        let read = fuzzing::Seen::default();
        fuzzing::fuzz!(fuzzing::ROUNDS, |input: &[u8]| {
            let mut source = fuzzing::Source::new(input);
            let mut writer = PackWriter::new(1 << 20);
            for _ in 0..source.below(6) {
                let (inode, data) = (InodeId(source.number()), DataId(source.number()));
                let bytes = source.bytes(30);
                writer.add(inode, data, source.number(), &bytes);
            }
            let (segment, entries) = writer.finish();
            assert_eq!(decode(&segment).unwrap(), Some(entries));
            let mut changed = source.changed(&segment);
            let (table, footer) = (segment.len() - FOOTER_BYTES, changed.len());
            if let Some(footer) = footer.checked_sub(FOOTER_BYTES)
                && source.chance()
            {
                let from = u32::from_le_bytes(changed[footer..footer + 4].try_into().unwrap());
                if let Some(table) = changed.get(from as usize..footer) {
                    let crc = crc32c(table);
                    changed[footer + 8..footer + 12].copy_from_slice(&crc.to_le_bytes());
                }
            }
            let tail_at = source.number() as u32;
            let memory = fuzzing::Memory::SMALL;
            for bytes in [input, &changed] {
                let found = fuzzing::within(memory, bytes.len(), || decode(bytes));
                if let Ok(Some(entries)) = found {
                    let ends = entries.iter().map(|it| it.at as usize + it.length as usize);
                    assert!(ends.max().is_none_or(|end| end <= bytes.len()));
                    read.note();
                }
                let _ = fuzzing::within(memory, bytes.len(), || decode_tail(bytes, tail_at));
                let at = bytes.len().min(table);
                let _ = table_at(&bytes[at..], at as u32);
            }
        });
        read.check(1, "packs are read");
    }

    #[test]
    fn a_pack_takes_only_what_fits_with_its_table() {
        let mut writer = PackWriter::new(100);
        assert!(writer.has_room(100 - ENTRY_BYTES - FOOTER_BYTES));
        assert!(!writer.has_room(100 - ENTRY_BYTES - FOOTER_BYTES + 1));
        writer.add(InodeId(1), DataId(1), 0, &[7; 30]);
        assert!(!writer.has_room(1));
        assert!(writer.finish().0.len() <= 100);
    }

    #[test]
    fn ranges_that_lie_over_each_other_are_no_table() {
        let mut writer = PackWriter::new(1 << 20);
        for number in 0..3 {
            writer.add(InodeId(number), DataId(9), 0, b"some bytes");
        }
        let (segment, _) = writer.finish();
        let table_at = segment.len() - FOOTER_BYTES - 3 * ENTRY_BYTES;
        // The second range begins where the first one does, or is too long.
        for (field, value) in [(24, 0), (28, 11)] {
            let mut bad = segment.to_vec();
            let at = table_at + ENTRY_BYTES + field;
            bad[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
            let footer_at = bad.len() - FOOTER_BYTES;
            let crc = crc32c(&bad[table_at..footer_at]);
            bad[footer_at + 8..footer_at + 12].copy_from_slice(&crc.to_le_bytes());
            assert!(decode(&bad).is_err(), "field {field}");
        }
    }

    #[test]
    fn other_segments_are_no_packs() {
        assert_eq!(decode(&[]).unwrap(), None);
        assert_eq!(decode(&[0; 4096]).unwrap(), None);
    }
}
