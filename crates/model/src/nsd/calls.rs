//! The contract between a node and the NSDs of another: which requests there are, what answers them,
//! and what travels beside them as raw bytes (`docs/formats/nsd-calls.md`).
//!
//! *A read:* the pool's handle of an NSD sends [`NsdRequest::Get`]; the NSD's node reads whole units,
//! checks them, and answers with the units and their stored checksums; the handle checks them once
//! more and returns the bytes asked for. *A put* carries the checksums that the writer computed; the
//! NSD stores them as they are. *A failure* is a `model::Error` of the NSD, or `Unavailable` if the
//! request certainly didn't run, or `Unknown`. Every request can be repeated.

use super::{BlobDelete, BlobHeader, BlobInfo, GroupDigest, GroupFence, NsdHealth, NsdUsage};
use crate::call::{Class, Method};
use crate::limits::{LOG_ENTRY_BYTES_MAX, UNIT_BYTES};
use crate::{BlobName, EntryNumber, GroupId, GroupVersion, NsdId, Result, ShardEpoch, ShardId};
use serde::{Deserialize, Serialize};

/// The method of all requests to NSDs; the encoded part of a request is ([`NsdId`],
/// [`NsdRequest`]), that of a reply is an [`NsdAnswer`].
pub const NSD_METHOD: Method = Method(0x0100);

/// Most blobs in one answer to a listing: it stays below `BODY_BYTES_MAX`.
pub const LIST_ANSWER_MAX: usize = 4096;
/// An answer to a reading of the log ends with the entry that reaches this many bytes.
pub const LOG_READ_BYTES: usize = 8 << 20;
const _: () = assert!(LOG_READ_BYTES + LOG_ENTRY_BYTES_MAX <= crate::call::PAYLOAD_BYTES_MAX);
/// Most log entries in one request ...
pub const LOG_PUTS_MAX: usize = 1024;
/// ... which ends with the entry that reaches this many bytes.
pub const LOG_PUTS_BYTES: usize = 1 << 20;
const _: () = assert!(LOG_PUTS_BYTES + LOG_ENTRY_BYTES_MAX <= crate::call::PAYLOAD_BYTES_MAX);

/// A request to one NSD.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NsdRequest {
    /// As `BlobPut`. Beside it: the payload.
    Put {
        /// The name.
        name: BlobName,
        /// The writer's attempt.
        nonce: u64,
        /// The description.
        header: BlobHeader,
        /// The group version that the writer knows.
        fence: GroupVersion,
        /// CRC-32C of each unit of the payload.
        units: Vec<u32>,
    },
    /// Bytes of a blob.
    Get {
        /// The name.
        name: BlobName,
        /// First byte.
        offset: u32,
        /// Bytes.
        length: u32,
    },
    /// A blob's description.
    Info(BlobName),
    /// Deletes blobs.
    Delete(BlobDelete),
    /// Blobs of a group.
    List {
        /// The group.
        group: GroupId,
        /// Only those after this one.
        after: Option<BlobName>,
        /// At most so many, and at most [`LIST_ANSWER_MAX`].
        limit: u32,
    },
    /// Count and hash of a group's blobs.
    Digest(GroupId),
    /// Fences groups.
    Learn(Vec<GroupFence>),
    /// As `LogPut`. Beside it: the entry.
    LogPut {
        /// The shard.
        shard: ShardId,
        /// The owner's epoch.
        epoch: ShardEpoch,
        /// The entry's number.
        number: EntryNumber,
    },
    /// Entries of a log.
    LogRead {
        /// The shard.
        shard: ShardId,
        /// From this number on.
        from: EntryNumber,
        /// At most so many. Fewer don't mean the end; none do.
        limit: u32,
    },
    /// Removes entries below a number.
    LogTrim {
        /// The shard.
        shard: ShardId,
        /// The owner's epoch.
        epoch: ShardEpoch,
        /// The first that stays.
        below: EntryNumber,
    },
    /// Removes entries above a number.
    LogDiscard {
        /// The shard.
        shard: ShardId,
        /// The owner's epoch.
        epoch: ShardEpoch,
        /// The last that stays.
        above: EntryNumber,
    },
    /// Seals a log.
    Seal {
        /// The shard.
        shard: ShardId,
        /// Lower epochs are refused from now on.
        epoch: ShardEpoch,
    },
    /// After a rebuild: the epochs of all shards.
    ConfirmEpochs(Vec<(ShardId, ShardEpoch)>),
    /// Nothing but the condition, which every answer carries.
    Condition,
    /// Groups of which it holds blobs, in order.
    Groups {
        /// From this one on.
        from: GroupId,
        /// At most so many, and at most [`LIST_ANSWER_MAX`].
        limit: u32,
    },
    /// Several `LogPut`s of one log. Beside it: the entries, one after the other.
    LogPuts {
        /// The shard.
        shard: ShardId,
        /// The owner's epoch.
        epoch: ShardEpoch,
        /// Number and bytes of each, at most [`LOG_PUTS_MAX`].
        entries: Vec<(EntryNumber, u32)>,
    },
}

impl NsdRequest {
    /// Whose credits it takes.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Put { .. } | Self::Get { .. } => Class::Bulk,
            _ => Class::Metadata,
        }
    }

    /// Largest reply, both parts together.
    #[must_use]
    pub fn reply_bytes_max(&self) -> u32 {
        /// Errors with their stories, conditions, descriptions.
        const SMALL: u32 = 16 * 1024;
        match self {
            // Both ends may be inside a unit; a checksum takes up to five bytes.
            Self::Get { length, .. } => {
                let units = length.saturating_add(2 * UNIT_BYTES) / UNIT_BYTES;
                SMALL.saturating_add(units.saturating_mul(UNIT_BYTES + 5))
            }
            Self::List { .. } | Self::Groups { .. } => crate::call::BODY_BYTES_MAX as u32,
            Self::LogRead { .. } => {
                (crate::call::BODY_BYTES_MAX + LOG_READ_BYTES + LOG_ENTRY_BYTES_MAX) as u32
            }
            _ => SMALL,
        }
    }
}

/// What an NSD answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NsdReply {
    /// It is done, and durable.
    Done,
    /// The units that hold the bytes asked for. Beside it: the units, the last one cut at the
    /// blob's end.
    Units {
        /// The first unit.
        first: u32,
        /// Their checksums as stored: masked with the blob's name.
        checksums: Vec<u32>,
    },
    /// A blob's description.
    Info(BlobInfo),
    /// Descriptions in the order of the names.
    Infos(Vec<BlobInfo>),
    /// Count and hash.
    Digest(GroupDigest),
    /// Epoch, number and bytes of each entry. Beside it: the entries, one after the other.
    Entries(Vec<(ShardEpoch, EntryNumber, u32)>),
    /// Groups, in order. Fewer than the limit: there are no more.
    Groups(Vec<GroupId>),
}

/// A reply with the NSD's condition.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NsdAnswer {
    /// The condition after the request.
    pub condition: NsdCondition,
    /// The reply, or why the NSD refused.
    pub reply: Result<NsdReply>,
}

/// What other nodes know of an NSD without asking.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NsdCondition {
    /// Whether it serves.
    pub health: NsdHealth,
    /// How much it holds.
    pub usage: NsdUsage,
    /// Whether its index was rebuilt and its epochs must be confirmed.
    pub needs_confirmation: bool,
}

/// The encoded part of a request.
pub type AddressedRequest = (NsdId, NsdRequest);
