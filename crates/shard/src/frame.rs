//! The encoding of log entries (`docs/formats/log-frame.md`): a checksummed header and a payload,
//! one kind of which is the commit frame.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use model::checksum::{crc32c, crc32c_without};
use model::{
    CommitNumber, EntryNumber, Error, ErrorKind, InodeId, Result, SessionId, ShardEpoch, ShardId,
    Timestamp, limits,
};

/// Bytes of an entry's header.
pub(crate) const HEADER_BYTES: usize = 64;
/// Most payload bytes of one entry; longer payloads are split into parts with consecutive numbers.
pub(crate) const PART_BYTES_MAX: usize = 4 * 1024 * 1024;

const MAGIC: [u8; 4] = *b"SHLG";
const VERSION: u8 = 2;
const CRC_AT: usize = 52;
const DELETED: u32 = u32::MAX;
const FRAME_FIXED_BYTES: usize = 16;
const NOTE_BYTES: usize = 25;
/// Bytes of a row besides its key and value.
const ROW_FIXED_BYTES: usize = 6;

const _: () = assert!(HEADER_BYTES + PART_BYTES_MAX <= limits::LOG_ENTRY_BYTES_MAX);

/// The kind of an entry's payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryKind {
    /// A commit frame: rows for the tree.
    Commit,
    /// One change of the catalog.
    CatalogChange,
    /// The whole catalog as of this place in the log.
    CatalogSnapshot,
    /// The first entry of a log: identifies its tree.
    Marker,
}

impl EntryKind {
    fn code(self) -> u8 {
        match self {
            Self::Commit => 1,
            Self::CatalogChange => 2,
            Self::CatalogSnapshot => 3,
            Self::Marker => 4,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Commit,
            2 => Self::CatalogChange,
            3 => Self::CatalogSnapshot,
            4 => Self::Marker,
            _ => return None,
        })
    }
}

/// The header of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: EntryKind,
    /// Index among the parts of one payload, from 0.
    pub(crate) part: u16,
    /// Parts of the payload, at least 1.
    pub(crate) parts: u16,
    pub(crate) shard: ShardId,
    /// The epoch that first wrote it; copies to another view keep it.
    pub(crate) epoch: ShardEpoch,
    pub(crate) number: EntryNumber,
    /// The newest acknowledged entry when this one was made: a hole up to it is damage.
    pub(crate) acknowledged: EntryNumber,
    /// The owner's clock.
    pub(crate) time: Timestamp,
    /// The newest commit at or before this entry.
    pub(crate) commit: CommitNumber,
}

/// Fills in the first [`HEADER_BYTES`] of an entry; the payload follows them.
pub(crate) fn seal_entry(mut entry: BytesMut, header: &Header) -> Bytes {
    let payload = u32::try_from(entry.len() - HEADER_BYTES).expect("a part is at most 4 MiB");
    let mut out = &mut entry[..HEADER_BYTES];
    out.put_slice(&MAGIC);
    out.put_u8(VERSION);
    out.put_u8(header.kind.code());
    out.put_u16_le(header.part);
    out.put_u16_le(header.parts);
    out.put_u16_le(0);
    out.put_u32_le(header.shard.0);
    out.put_u64_le(header.epoch.0);
    out.put_u64_le(header.number.0);
    out.put_u64_le(header.acknowledged.0);
    out.put_i64_le(header.time.0);
    out.put_u32_le(payload);
    out.put_u32_le(0);
    out.put_u64_le(header.commit.0);
    let crc = crc32c(&entry);
    entry[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    entry.freeze()
}

/// Number of entries that a payload takes.
pub(crate) fn parts(payload: usize) -> u64 {
    payload.div_ceil(PART_BYTES_MAX).max(1) as u64
}

/// Parses an entry; `Corrupt` if its checksum or form is wrong.
pub(crate) fn open_entry(entry: &Bytes) -> Result<(Header, Bytes)> {
    let wrong = |why: &str| {
        Error::new(
            ErrorKind::Corrupt,
            format!("a log entry of {} bytes {why}", entry.len()),
        )
    };
    if entry.len() < HEADER_BYTES || entry[0..4] != MAGIC {
        return Err(wrong("has no header"));
    }
    let mut input = &entry[4..HEADER_BYTES];
    let version = input.get_u8();
    let kind = input.get_u8();
    let (part, parts) = (input.get_u16_le(), input.get_u16_le());
    input.advance(2);
    let shard = ShardId(input.get_u32_le());
    let epoch = ShardEpoch(input.get_u64_le());
    let number = EntryNumber(input.get_u64_le());
    let acknowledged = EntryNumber(input.get_u64_le());
    let time = Timestamp(input.get_i64_le());
    let payload = input.get_u32_le() as usize;
    let crc = input.get_u32_le();
    let commit = CommitNumber(input.get_u64_le());
    if payload != entry.len() - HEADER_BYTES {
        return Err(wrong("is cut short"));
    }
    if crc32c_without(entry, CRC_AT) != crc {
        return Err(wrong("fails its checksum"));
    }
    if version != VERSION {
        return Err(Error::new(
            ErrorKind::NotSupported,
            format!(
                "log entry {number} has format {version}, this program reads {VERSION}: the file system was made by another release; run that one"
            ),
        ));
    }
    let kind = EntryKind::from_code(kind).ok_or_else(|| wrong("is of an unknown kind"))?;
    if part >= parts {
        return Err(wrong("is a part that its payload doesn't have"));
    }
    let header = Header {
        kind,
        part,
        parts,
        shard,
        epoch,
        number,
        acknowledged,
        time,
        commit,
    };
    Ok((header, entry.slice(HEADER_BYTES..)))
}

/// One operation of a commit, for the change feed and the audit log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OperationNote {
    /// Number of the verb, assigned by the frame's writer.
    pub verb: u8,
    /// The session that sent it.
    pub session: SessionId,
    /// The inode concerned.
    pub inode: InodeId,
    /// The operation's time.
    pub time: Timestamp,
}

/// The content of one commit: all its rows become durable together, or none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommitFrame {
    /// The commit.
    pub commit: CommitNumber,
    /// The operations in it; may be empty.
    pub operations: Vec<OperationNote>,
    /// Key and new value, or `None` for a removed key; each key once. Keys have 1 to 65,535 bytes;
    /// all rows together at most `limits::UNFLUSHED_BYTES_MAX`.
    pub rows: Vec<(Bytes, Option<Bytes>)>,
}

impl CommitFrame {
    /// Bytes of the encoded frame.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        let rows: usize = self
            .rows
            .iter()
            .map(|(key, value)| ROW_FIXED_BYTES + key.len() + value.as_ref().map_or(0, Bytes::len))
            .sum();
        FRAME_FIXED_BYTES + self.operations.len() * NOTE_BYTES + rows
    }

    /// Encodes the frame.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.encoded_bytes());
        self.encode_into(&mut out);
        out.freeze()
    }

    pub(crate) fn encode_into(&self, out: &mut BytesMut) {
        let count = |n: usize| u32::try_from(n).expect("a commit has less than 2^32 rows");
        out.put_u64_le(self.commit.0);
        out.put_u32_le(count(self.operations.len()));
        out.put_u32_le(count(self.rows.len()));
        for note in &self.operations {
            out.put_u8(note.verb);
            out.put_u64_le(note.session.0);
            out.put_u64_le(note.inode.0);
            out.put_i64_le(note.time.0);
        }
        for (key, value) in &self.rows {
            out.put_u16_le(u16::try_from(key.len()).expect("keys are at most 64 KiB - 1 long"));
            out.put_u32_le(value.as_ref().map_or(DELETED, |value| count(value.len())));
            out.put_slice(key);
            if let Some(value) = value {
                out.put_slice(value);
            }
        }
    }

    /// Decodes a frame; keys and values are slices of `bytes`.
    pub fn decode(mut bytes: Bytes) -> Result<Self> {
        let short = || Error::new(ErrorKind::Corrupt, "a commit frame ends early");
        let need = |bytes: &Bytes, n: usize| {
            if bytes.remaining() < n {
                Err(short())
            } else {
                Ok(())
            }
        };
        need(&bytes, FRAME_FIXED_BYTES)?;
        let commit = CommitNumber(bytes.get_u64_le());
        let (notes, rows) = (bytes.get_u32_le() as usize, bytes.get_u32_le() as usize);
        need(&bytes, notes.saturating_mul(NOTE_BYTES))?;
        let operations = (0..notes)
            .map(|_| OperationNote {
                verb: bytes.get_u8(),
                session: SessionId(bytes.get_u64_le()),
                inode: InodeId(bytes.get_u64_le()),
                time: Timestamp(bytes.get_i64_le()),
            })
            .collect();
        let mut frame = Self {
            commit,
            operations,
            rows: Vec::with_capacity(rows.min(bytes.remaining() / ROW_FIXED_BYTES)),
        };
        for _ in 0..rows {
            need(&bytes, ROW_FIXED_BYTES)?;
            let key = usize::from(bytes.get_u16_le());
            let value = bytes.get_u32_le();
            if key == 0 {
                let text = format!("commit frame {commit} has a row without a key");
                return Err(Error::new(ErrorKind::Corrupt, text));
            }
            need(&bytes, key)?;
            let key = bytes.split_to(key);
            let value = if value == DELETED {
                None
            } else {
                need(&bytes, value as usize)?;
                Some(bytes.split_to(value as usize))
            };
            frame.rows.push((key, value));
        }
        if bytes.has_remaining() {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("commit frame {commit} has bytes after its end"),
            ));
        }
        Ok(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            kind: EntryKind::Commit,
            part: 0,
            parts: 1,
            shard: ShardId(3),
            epoch: ShardEpoch(9),
            number: EntryNumber(77),
            acknowledged: EntryNumber(75),
            time: Timestamp(1_234_567),
            commit: CommitNumber(70),
        }
    }

    fn frame() -> CommitFrame {
        CommitFrame {
            commit: CommitNumber(5),
            operations: vec![OperationNote {
                verb: 4,
                session: SessionId(8),
                inode: InodeId::ROOT,
                time: Timestamp(-3),
            }],
            rows: vec![
                (Bytes::from_static(b"a"), Some(Bytes::from_static(b"one"))),
                (Bytes::from_static(b"b"), None),
                (Bytes::from_static(b"c"), Some(Bytes::new())),
            ],
        }
    }

    fn sealed() -> Bytes {
        let mut entry = BytesMut::zeroed(HEADER_BYTES);
        frame().encode_into(&mut entry);
        seal_entry(entry, &header())
    }

    #[test]
    fn an_entry_reads_back_as_written() {
        let (read, payload) = open_entry(&sealed()).unwrap();
        assert_eq!(read, header());
        assert_eq!(CommitFrame::decode(payload).unwrap(), frame());
        assert_eq!(frame().encode().len(), frame().encoded_bytes());
    }

    /// The tree takes no row without a key, and a payload without parts would never be whole.
    #[test]
    fn what_no_writer_makes_is_refused() {
        let mut unnamed = frame();
        unnamed.rows.push((Bytes::new(), None));
        let refused = CommitFrame::decode(unnamed.encode()).unwrap_err();
        assert!(refused.to_string().contains("without a key"), "{refused}");
        for (part, parts) in [(0, 0), (1, 1), (3, 2), (u16::MAX, u16::MAX)] {
            let header = Header {
                part,
                parts,
                ..header()
            };
            let entry = seal_entry(BytesMut::zeroed(HEADER_BYTES), &header);
            assert!(open_entry(&entry).is_err(), "part {part} of {parts}");
        }
    }

    #[test]
    fn every_flipped_bit_of_an_entry_is_noticed() {
        let entry = sealed();
        for bit in 0..entry.len() * 8 {
            let mut bad = entry.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(open_entry(&Bytes::from(bad)).is_err(), "bit {bit}");
        }
        for length in 0..entry.len() {
            assert!(
                open_entry(&entry.slice(..length)).is_err(),
                "length {length}"
            );
        }
    }

    #[test]
    fn a_frame_that_ends_early_is_refused_and_not_trusted_for_its_counts() {
        let bytes = frame().encode();
        for length in 0..bytes.len() {
            assert!(
                CommitFrame::decode(bytes.slice(..length)).is_err(),
                "length {length}"
            );
        }
    }
}
