//! What the metanode tells about itself: usage, background progress, repair, faults found.

use model::nsd::ScrubReport;
use model::{CommitNumber, NsdId, ShardEpoch, ShardId};
use serde::{Deserialize, Serialize};

/// Space and inodes, as `df` shows them. Bytes are plain data that fits in, after redundancy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes that the pool can hold for users.
    pub capacity: u64,
    /// Bytes in use.
    pub used: u64,
    /// Bytes that users may still write (the reserve for log and deletes is not in it).
    pub available: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Sum of the sizes of regular files in bytes.
    pub logical: u128,
    /// Sum of the bytes stored or reserved for inodes, before redundancy.
    pub allocated: u128,
}

/// How the shard is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShardStatus {
    /// The shard.
    pub shard: ShardId,
    /// The epoch in which this process owns it.
    pub epoch: ShardEpoch,
    /// Everything up to this commit is durable.
    pub durable: CommitNumber,
}

/// What a scrub of one NSD came to.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubOutcome {
    /// What the NSD found.
    pub report: ScrubReport,
    /// Damaged pieces that were rebuilt from the others, or deleted as garbage.
    pub rebuilt: u64,
    /// Damaged pieces whose data can't be read any more: too few others are left.
    pub lost: u64,
    /// Damaged pieces that couldn't be written now, though their data can be read, or that
    /// nobody has published yet: repair looks at them again.
    pub left: u64,
}

/// Data that can't be read, as far as readers, scrub, repair or a check have met it and nothing
/// has shown since that it can be read again.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct UnreadableData {
    /// Segments, those of the metadata's tables included.
    pub segments: u64,
    /// There may be more than are remembered.
    pub has_more: bool,
    /// Files with parts in them.
    pub files: u64,
    /// What the first thousand of them are called.
    pub names: Vec<String>,
    /// Files and names fit the segments; otherwise they are being looked up.
    pub is_named: bool,
}

impl UnreadableData {
    /// Says how many files can't be read and what the first `named` of them are called.
    #[must_use]
    pub fn sentence(&self, named: usize) -> String {
        let at_least = if self.has_more { "at least " } else { "" };
        if self.segments == 0 && self.has_more {
            return "more segments couldn't be read than are remembered, and not all of them were \
                    looked at again"
                .into();
        }
        if self.files == 0 && !self.is_named {
            return format!(
                "{at_least}{} segments can't be read; which files are in them is being looked up",
                self.segments
            );
        }
        if self.files == 0 {
            return format!(
                "{at_least}{} segments of the metadata's tables or of removed files can't be read",
                self.segments
            );
        }
        let shown = &self.names[..self.names.len().min(named)];
        let more = match self.files - shown.len() as u64 {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        let files = if self.files == 1 { "file" } else { "files" };
        format!(
            "{at_least}{} {files} can't be read: {}{more}",
            self.files,
            shown.join(", ")
        )
    }
}

/// How often each kind of background work was done since start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Steps of reclaiming data ids.
    pub reclaim_steps: u64,
    /// Segments whose blobs were deleted.
    pub segments_deleted: u64,
    /// Inline extents written into packed segments.
    pub extents_folded: u64,
    /// Segments whose live parts were rewritten.
    pub segments_cleaned: u64,
    /// Conditional publishes that met a change and did nothing.
    pub publishes_void: u64,
    /// Blobs without an owner that were deleted.
    pub garbage_deleted: u64,
    /// Segments that were deleted because their writer gave them up before they were published.
    pub segments_given_up: u64,
    /// Pieces rebuilt.
    pub pieces_rebuilt: u64,
    /// Times the shard was taken over again after it was given up.
    pub takeovers: u64,
}

/// What one round of background work did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BackgroundReport {
    /// Steps that changed something; 0 means quiescent.
    pub steps: u64,
    /// Totals since start.
    pub counters: Counters,
}

/// Progress of repair.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RepairStatus {
    /// NSDs that don't serve now and weren't given up.
    pub offline: Vec<NsdId>,
    /// Slots of groups that point to a lost NSD and have no replacement: add an NSD.
    pub slots_without_nsd: u64,
    /// Live segments found with less than their full redundancy in the running or last scan.
    pub segments_degraded: u64,
    /// Entries of the log are still only on NSDs that left its view.
    pub log_moving: bool,
    /// NSDs that the log is on.
    pub log_copies: u64,
    /// NSDs that the log should be on.
    pub log_copies_wanted: u64,
    /// Something was written with less redundancy than it should have, and can be written anew.
    pub narrow: bool,
    /// Segments that readers or writers found incomplete and that wait to be repaired.
    pub segments_queued: u64,
    /// Live segments looked at in the running or last scan.
    pub segments_checked: u64,
    /// Live segments in all, as far as known.
    pub segments_total: u64,
    /// Segments repaired since start.
    pub segments_repaired: u64,
    /// Pieces rebuilt since start.
    pub pieces_rebuilt: u64,
    /// Their bytes.
    pub bytes_rebuilt: u64,
    /// Slots that are moving to another NSD.
    pub slots_moving: u64,
    /// What can't be read: more pieces are gone than the scheme tolerates.
    pub unreadable: UnreadableData,
    /// A scan is running.
    pub running: bool,
    /// A full scan has ended with nothing to repair since the last change of the NSDs.
    pub complete: bool,
}

/// How thorough a check is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckOptions {
    /// Reads and verifies every piece of every segment, parity too; otherwise each segment is
    /// read once.
    pub deep: bool,
}

/// A kind of fault that a check finds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum FaultKind {
    /// A record contradicts another, or can't be decoded.
    Record,
    /// Counters differ from the sums over the inodes.
    Counter,
    /// An extent's bytes can't be read or don't fit their checksum.
    Data,
    /// Data is readable, but not all of its redundancy is there.
    Redundancy,
    /// An inode without names that nobody holds.
    Orphan,
    /// A blob or segment that nothing points at and no queue knows.
    Leak,
}

/// One fault, as a sentence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// What was found where.
    pub text: String,
}

/// What a check saw. The file system is right when `faults` is empty.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckReport {
    /// Inodes looked at.
    pub inodes: u64,
    /// Names looked at.
    pub names: u64,
    /// Extents looked at.
    pub extents: u64,
    /// Segments read.
    pub segments: u64,
    /// Bytes of plain data read.
    pub bytes: u64,
    /// Blobs listed on NSDs.
    pub blobs: u64,
    /// Those of files' data among them (live or dead); the others are the tree's tables.
    pub data_blobs: u64,
    /// Segments that can't be read.
    pub unreadable_segments: u64,
    /// Files with parts in them.
    pub unreadable_files: u64,
    /// What the first thousand of them are called.
    pub unreadable: Vec<String>,
    /// Everything wrong, at most [`CheckReport::FAULTS_MAX`].
    pub faults: Vec<Fault>,
    /// Faults beyond the listed ones.
    pub more_faults: u64,
}

impl CheckReport {
    /// Faults that a report lists at most.
    pub const FAULTS_MAX: usize = 1000;

    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty()
    }

    /// Notes a fault.
    pub fn fault(&mut self, kind: FaultKind, text: impl Into<String>) {
        if self.faults.len() < Self::FAULTS_MAX {
            self.faults.push(Fault {
                kind,
                text: text.into(),
            });
        } else {
            self.more_faults += 1;
        }
    }
}
