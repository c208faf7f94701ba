//! A file's content: byte ranges and where each range is stored.

use crate::{CommitNumber, SegmentPlace};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// One byte range of a file. Ranges that no extent covers are holes and read as zeros.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Extent {
    /// First byte in the file.
    pub offset: u64,
    /// Bytes in the file; at least 1.
    pub length: u64,
    /// Where the bytes are.
    pub kind: ExtentKind,
    /// The commit that made this range, from which snapshots will know what they share. The owner
    /// sets it on publishing; 0 until then.
    pub birth: CommitNumber,
}

/// Where the bytes of an extent are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ExtentKind {
    /// In a segment.
    Data {
        /// The segment.
        place: SegmentPlace,
        /// First byte inside the plain segment.
        at: u32,
        /// 0: stored as is. Later: compression.
        codec: u8,
        /// 0: not encrypted. Later: the key.
        key_id: u32,
    },
    /// In the record itself: small, or written with fsync and not yet folded.
    Inline(Bytes),
    /// Reserved space without data: reads as zeros.
    Reserved,
}

impl Extent {
    /// A whole segment, as it is stored, from this byte of a file on. Its commit is yet to come.
    #[must_use]
    pub fn of_segment(offset: u64, place: SegmentPlace) -> Self {
        Self {
            offset,
            length: u64::from(place.length),
            kind: ExtentKind::Data {
                place,
                at: 0,
                codec: 0,
                key_id: 0,
            },
            birth: CommitNumber(0),
        }
    }

    /// The first byte after the extent.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }

    /// Joins neighbours in the file that are also neighbours in their segment.
    #[must_use]
    pub fn joined(extents: Vec<Extent>) -> Vec<Extent> {
        let mut out: Vec<Extent> = Vec::with_capacity(extents.len());
        for extent in extents {
            match out.last_mut() {
                Some(last) if last.goes_on_in(&extent) => last.length += extent.length,
                _ => out.push(extent),
            }
        }
        out
    }

    fn goes_on_in(&self, next: &Extent) -> bool {
        let (
            ExtentKind::Data {
                place,
                at,
                codec,
                key_id,
            },
            ExtentKind::Data {
                place: other,
                at: next_at,
                codec: next_codec,
                key_id: next_key,
            },
        ) = (&self.kind, &next.kind)
        else {
            return false;
        };
        self.end() == next.offset
            && (place, codec, key_id, self.birth) == (other, next_codec, next_key, next.birth)
            && u64::from(*at) + self.length == u64::from(*next_at)
    }

    /// The part of this extent that lies in `from..to`, or `None`.
    #[must_use]
    pub fn clip(&self, from: u64, to: u64) -> Option<Extent> {
        let start = self.offset.max(from);
        let end = self.end().min(to);
        if start >= end {
            return None;
        }
        let skip = start - self.offset;
        let kind = match &self.kind {
            ExtentKind::Data {
                place,
                at,
                codec,
                key_id,
            } => ExtentKind::Data {
                place: *place,
                at: at + u32::try_from(skip).expect("an extent lies inside one segment"),
                codec: *codec,
                key_id: *key_id,
            },
            ExtentKind::Inline(bytes) => {
                let skip = usize::try_from(skip).expect("inline data is small");
                let length = usize::try_from(end - start).expect("inline data is small");
                ExtentKind::Inline(bytes.slice(skip..skip + length))
            }
            ExtentKind::Reserved => ExtentKind::Reserved,
        };
        Some(Extent {
            offset: start,
            length: end - start,
            kind,
            birth: self.birth,
        })
    }
}
