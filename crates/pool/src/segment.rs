//! Names for a writer's segments, and the headers that say what they were written for.

use bytes::Bytes;
use model::nsd::BlobHeader;
use model::{BlobName, DataId, FamilyId, InodeNumber, SegmentId, SegmentPlace, SessionId};
use placement::codec::PieceMemory;
use std::sync::atomic::{AtomicU64, Ordering};
use world::AlignedBuffer;

/// Issues the segment ids of one session, each once.
#[derive(Debug)]
pub struct SegmentSource {
    session: SessionId,
    last: AtomicU64,
}

impl SegmentSource {
    /// A source for a session that has written nothing yet.
    #[must_use]
    pub fn new(session: SessionId) -> Self {
        Self::after(session, 0)
    }

    /// A source for a session whose newest segment has this counter.
    #[must_use]
    pub fn after(session: SessionId, last: u64) -> Self {
        Self {
            session,
            last: AtomicU64::new(last),
        }
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The next id.
    pub fn next(&self) -> SegmentId {
        SegmentId {
            session: self.session,
            counter: self.last.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }

    /// The newest counter issued; 0 before the first.
    #[must_use]
    pub fn last_counter(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }
}

/// What a segment is written for; goes into every blob's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentOwner {
    /// The family whose shard knows whether the segment is live.
    pub family: FamilyId,
    /// The inode; 0 for tables and packs of many files.
    pub inode: InodeNumber,
    /// The data id; 0 for tables and packs.
    pub data: DataId,
    /// Offset in the file of the first byte.
    pub file_offset: u64,
}

impl SegmentOwner {
    /// The owner of a table of a shard's tree.
    #[must_use]
    pub fn table(family: FamilyId) -> Self {
        Self {
            family,
            inode: InodeNumber(0),
            data: DataId(0),
            file_offset: 0,
        }
    }

    /// The owner named in a blob's header.
    #[must_use]
    pub fn of_header(header: &BlobHeader) -> Self {
        Self {
            family: header.family,
            inode: header.inode,
            data: header.data,
            file_offset: header.file_offset,
        }
    }

    /// The header of all blobs of a segment.
    pub(crate) fn header(&self, place: &SegmentPlace) -> BlobHeader {
        BlobHeader {
            family: self.family,
            inode: self.inode,
            data: self.data,
            file_offset: self.file_offset,
            scheme: place.scheme,
            skipped_slots: place.skipped_slots,
            segment_bytes: place.length,
            segment_crc: place.crc,
        }
    }
}

/// Memory for computed pieces: recycled, and written by disks without a copy.
pub(crate) struct Recycled(AlignedBuffer);

impl PieceMemory for Recycled {
    fn with_any_content(length: usize) -> Self {
        Self(AlignedBuffer::with_any_content(length))
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn freeze(self) -> Bytes {
        self.0.freeze()
    }
}

/// The writer nonce of a piece. Derived from name and content, so that the first writer, a
/// straggling put and repair all put the same blob, while different content is always refused.
pub(crate) fn nonce(name: BlobName, place: &SegmentPlace) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let content = [place.crc.to_be_bytes(), place.length.to_be_bytes()];
    for byte in name.encode().iter().chain(content.as_flattened()) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

/// The place of a blob's segment, from the blob's header.
pub(crate) fn place_of(name: BlobName, header: &BlobHeader) -> SegmentPlace {
    SegmentPlace {
        segment: name.segment,
        group: name.group,
        scheme: header.scheme,
        skipped_slots: header.skipped_slots,
        missing: 0,
        length: header.segment_bytes,
        crc: header.segment_crc,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_gives_every_id_once() {
        let source = SegmentSource::new(SessionId(9));
        let first = source.next();
        assert_eq!(
            first,
            SegmentId {
                session: SessionId(9),
                counter: 1
            }
        );
        assert_ne!(source.next(), first);
        assert_eq!(source.last_counter(), 2);
    }
}
