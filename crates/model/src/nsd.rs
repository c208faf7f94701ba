//! What NSDs are asked and answer, as function arguments; [`NsdRequest`] is the form between nodes.

mod calls;

pub use calls::{
    AddressedRequest, LIST_ANSWER_MAX, LOG_PUTS_BYTES, LOG_PUTS_MAX, LOG_READ_BYTES, NSD_METHOD,
    NsdAnswer, NsdCondition, NsdReply, NsdRequest,
};

use crate::limits::{SEGMENT_BYTES_MAX, UNIT_BYTES};
use crate::{
    BlobName, DataId, EntryNumber, FamilyId, GroupId, GroupVersion, InodeNumber, NsdId, Payload,
    Scheme, ShardEpoch, ShardId,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// A blob's description of itself, from which a lost index is rebuilt, and which tells a sweep
/// which shard to ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BlobHeader {
    /// The family whose shard knows whether the segment is live.
    pub family: FamilyId,
    /// The inode that the segment was written for; 0 for tables and packs of many files.
    pub inode: InodeNumber,
    /// The data id that it was written for; 0 for tables and packs.
    pub data: DataId,
    /// Offset in the file of the segment's first byte.
    pub file_offset: u64,
    /// The segment's scheme.
    pub scheme: Scheme,
    /// Slots of the group that hold no piece of the segment.
    pub skipped_slots: u32,
    /// Bytes of plain data in the whole segment.
    pub segment_bytes: u32,
    /// CRC-32C of the plain data of the whole segment.
    pub segment_crc: u32,
}

impl BlobHeader {
    /// Whether there can be a segment as it says, of which the blob is this piece. Any node may have said so.
    #[must_use]
    pub fn fits(&self, piece: u8) -> bool {
        let width = self.scheme.width();
        let slots = self.skipped_slots.count_zeros() as usize;
        self.segment_bytes <= SEGMENT_BYTES_MAX && usize::from(piece) < width && width <= slots
    }
}

/// Creates a blob. Repeating the same put succeeds; a put of the same name by another writer never
/// does.
#[derive(Clone, Debug)]
pub struct BlobPut {
    /// The name. It must not exist, or only with this nonce.
    pub name: BlobName,
    /// Identifies the writer's attempt.
    pub nonce: u64,
    /// The blob's description of itself.
    pub header: BlobHeader,
    /// The piece. Page-aligned memory is written without a copy; the checksums are stored as given.
    pub payload: Payload,
    /// The group version that the writer knows: refused if the NSD knows a newer one, and taught to
    /// an NSD that knows only an older one.
    pub fence: GroupVersion,
}

/// Deletes blobs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BlobDelete {
    /// The names; those that don't exist are ignored.
    pub names: Vec<BlobName>,
    /// The version of each named group as the sender knows it, fenced as in [`BlobPut`]. A slot may
    /// have left the NSD and come back, so a late delete could meet the piece that came back.
    pub fences: Vec<GroupFence>,
}

/// A blob in a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BlobInfo {
    /// Its name.
    pub name: BlobName,
    /// Identifies its writer's attempt.
    pub nonce: u64,
    /// Its description of itself.
    pub header: BlobHeader,
    /// Bytes of the piece.
    pub length: u32,
}

/// Count and hash of a group's blobs; two slots hold the same blobs if these are equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GroupDigest {
    /// Blobs.
    pub blobs: u64,
    /// Sum of the name hashes.
    pub hash: u64,
}

/// Appends one entry of a shard's log.
#[derive(Clone, Debug)]
pub struct LogPut {
    /// The shard.
    pub shard: ShardId,
    /// The owner's epoch: refused if the log is sealed for a higher one.
    pub epoch: ShardEpoch,
    /// The entry's number.
    pub number: EntryNumber,
    /// The entry.
    pub bytes: Bytes,
}

/// An entry of a log on an NSD.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogEntry {
    /// The epoch that wrote it.
    pub epoch: ShardEpoch,
    /// Its number.
    pub number: EntryNumber,
    /// Its bytes.
    pub bytes: Bytes,
}

/// How much an NSD holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NsdUsage {
    /// Bytes available for blobs in total.
    pub capacity: u64,
    /// Bytes that blobs occupy.
    pub used: u64,
    /// Bytes that data blobs may still take, not counting what is kept for the log; 0 if the index
    /// has no room for more blobs.
    pub available: u64,
    /// Blobs.
    pub blobs: u64,
    /// Log entries.
    pub log_entries: u64,
    /// Bytes of log entries.
    pub log_bytes: u64,
}

/// Most bytes that another node is believed to have in one NSD, whatever it says. What all NSDs of a pool have together, and
/// twice as much, stays below 2^64: there are no more than 6,553 that have enough groups.
pub const NSD_BYTES_MAX: u64 = 1 << 50;

impl NsdUsage {
    /// As it may be: no more than [`NSD_BYTES_MAX`], and no more in use, free or counted than there is. Those who add up what
    /// NSDs say rely on that.
    #[must_use]
    pub fn bounded(self) -> Self {
        let capacity = self.capacity.min(NSD_BYTES_MAX);
        let used = self.used.min(capacity);
        // Each takes a unit at least.
        let units = capacity / u64::from(UNIT_BYTES);
        Self {
            capacity,
            used,
            available: self.available.min(capacity - used),
            blobs: self.blobs.min(units),
            log_entries: self.log_entries.min(units),
            log_bytes: self.log_bytes.min(capacity),
        }
    }
}

/// Whether an NSD serves requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum NsdHealth {
    /// Reads and writes.
    Online,
    /// Its disk failed; it gets no requests until it is opened again.
    Failed,
    /// Reads and deletes only: the region is full.
    Full,
}

/// What a scrub found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubReport {
    /// The NSD.
    pub nsd: NsdId,
    /// Blobs and log entries read.
    pub checked: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Blobs whose bytes, header or index entry are damaged: rebuild them from the other pieces.
    pub damaged: Vec<BlobName>,
    /// Log entries whose bytes are damaged: put them again from another member of the view.
    pub damaged_log: Vec<(ShardId, EntryNumber)>,
    /// Damage outside blobs (superblock, journal, index) that was mended from redundant copies.
    pub mended: Vec<String>,
}

/// A group in requests that name one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupFence {
    /// The group.
    pub group: GroupId,
    /// Its version.
    pub version: GroupVersion,
}
