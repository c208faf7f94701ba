//! Requests to an NSD and their replies. On one node they are function arguments; between
//! nodes they are messages.

use crate::{
    BlobName, DataId, EntryNumber, FamilyId, GroupId, GroupVersion, InodeNumber, NsdId, Payload,
    Scheme, ShardEpoch, ShardId,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What a blob says of itself, so that a lost index can be rebuilt from the region and a
/// sweep can ask the right shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BlobHeader {
    /// The family whose shard knows whether the segment lives.
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

/// Creates a blob. The same put repeated succeeds; another writer's put of the name never does.
#[derive(Clone, Debug)]
pub struct BlobPut {
    /// The name; must not exist, or exist with this nonce.
    pub name: BlobName,
    /// Identifies the writer's attempt.
    pub nonce: u64,
    /// What the blob says of itself.
    pub header: BlobHeader,
    /// The piece. Page-aligned memory is written without a copy; the checksums are stored as
    /// they come.
    pub payload: Payload,
    /// The group version that the writer knows: refused if the NSD knows a newer one.
    pub fence: GroupVersion,
}

/// A blob in a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BlobInfo {
    /// Its name.
    pub name: BlobName,
    /// Its writer.
    pub nonce: u64,
    /// What it says of itself.
    pub header: BlobHeader,
    /// Bytes of the piece.
    pub length: u32,
}

/// Count and hash of the blobs of a group; two slots agree if theirs do.
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
    /// Whose log.
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

/// What an NSD holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NsdUsage {
    /// Bytes for blobs.
    pub capacity: u64,
    /// Bytes that blobs occupy.
    pub used: u64,
    /// Bytes that data blobs may still take: without what is kept for the log; 0 if the index
    /// has no room for more of them.
    pub available: u64,
    /// Blobs.
    pub blobs: u64,
    /// Log entries.
    pub log_entries: u64,
    /// Bytes of log entries.
    pub log_bytes: u64,
}

/// Whether an NSD serves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum NsdHealth {
    /// Reads and writes.
    Online,
    /// Its disk failed; nothing is asked of it until it is opened again.
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
    /// Blobs whose bytes, header or index entry don't fit: to be rebuilt from the others.
    pub damaged: Vec<BlobName>,
    /// Log entries whose bytes don't fit: to be put again from another member of the view.
    pub damaged_log: Vec<(ShardId, EntryNumber)>,
    /// Damage in the region outside of blobs that was mended from redundant copies
    /// (superblock, journal, index).
    pub mended: Vec<String>,
}

/// The shard log's tail on one NSD, told when it is sealed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SealReply {
    /// Highest entry that the NSD holds.
    pub last: Option<EntryNumber>,
    /// Its epoch.
    pub last_epoch: Option<ShardEpoch>,
}

/// A group in requests that name one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupFence {
    /// The group.
    pub group: GroupId,
    /// Its version.
    pub version: GroupVersion,
}
