//! The metanode's reports: usage, background progress, repair, faults found.

use model::nsd::ScrubReport;
use model::{CommitNumber, NsdId, ShardEpoch, ShardId};
use serde::{Deserialize, Serialize};

/// State of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShardStatus {
    /// The shard.
    pub shard: ShardId,
    /// The epoch in which this process owns it.
    pub epoch: ShardEpoch,
    /// Everything up to this commit is durable.
    pub durable: CommitNumber,
}

/// What clients have at an owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InUse {
    /// Sessions that are open.
    pub sessions: usize,
    /// Inodes that sessions use.
    pub inodes: usize,
    /// File locks held, and requests queued.
    pub locks: usize,
}

/// Result of scrubbing one NSD.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubOutcome {
    /// The NSD's own report.
    pub report: ScrubReport,
    /// Damaged pieces that were rebuilt from the others, or deleted as garbage.
    pub rebuilt: u64,
    /// Damaged pieces whose data is lost: too few others are left.
    pub lost: u64,
    /// Damaged pieces left for repair: they couldn't be written now though their data can be read,
    /// or they aren't published yet.
    pub left: u64,
}

/// Unreadable data found by readers, scrub, repair or a check and not seen readable since.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct UnreadableData {
    /// Segments, including those of the metadata's tables.
    pub segments: u64,
    /// There may be more than are remembered.
    pub has_more: bool,
    /// Files with parts in them.
    pub files: u64,
    /// Names of the first thousand.
    pub names: Vec<String>,
    /// Whether files and names are those of the segments; otherwise they are being looked up.
    pub is_named: bool,
}

impl UnreadableData {
    /// A sentence with the number of unreadable files and the names of the first `named`.
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

/// Totals of background work since start, by kind.
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
    /// Conditional publishes without effect, because of a concurrent change.
    pub publishes_void: u64,
    /// Blobs deleted because nothing pointed at them.
    pub garbage_deleted: u64,
    /// Segments deleted because their writer gave them up before publishing.
    pub segments_given_up: u64,
    /// Pieces rebuilt.
    pub pieces_rebuilt: u64,
    /// Times that the shard was taken over again after being given up.
    pub takeovers: u64,
}

/// Result of one round of background work.
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
    /// Slots whose NSD is lost and that have no replacement: add an NSD.
    pub slots_without_nsd: u64,
    /// Live segments found with less than their full redundancy in the running or last scan.
    pub segments_degraded: u64,
    /// Entries of the log are still only on NSDs that left its view.
    pub log_moving: bool,
    /// NSDs in different failure groups that hold the log.
    pub log_copies: u64,
    /// NSDs in different failure groups that should hold the log.
    pub log_copies_wanted: u64,
    /// Some data was written with too little redundancy and can be rewritten.
    pub narrow: bool,
    /// Generations of the pool's groups that are being emptied.
    pub closed_generations: u64,
    /// Segments in them that still hold data; 0 as well until they are counted, which is done first.
    pub segments_to_move: u64,
    /// Data is being moved to NSDs that hold less than others.
    pub balancing: bool,
    /// Segments that readers or writers found incomplete and that wait for repair.
    pub segments_queued: u64,
    /// Live segments examined in the running or last scan.
    pub segments_checked: u64,
    /// Live segments in total, as far as known.
    pub segments_total: u64,
    /// Segments repaired since start.
    pub segments_repaired: u64,
    /// Pieces rebuilt since start.
    pub pieces_rebuilt: u64,
    /// Their bytes.
    pub bytes_rebuilt: u64,
    /// Slots that are moving to another NSD.
    pub slots_moving: u64,
    /// Slots that have moved since start.
    pub slots_moved: u64,
    /// Groups that lack a slot and can't lose another one: they are repaired first.
    pub groups_critical: u64,
    /// Data that can't be read: more pieces are gone than the scheme tolerates.
    pub unreadable: UnreadableData,
    /// A scan is running.
    pub running: bool,
    /// A full scan since the last change of the NSDs found nothing to repair.
    pub complete: bool,
}

/// What an owner moves by itself of its shard's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moves {
    /// Segments in generations of the pool's groups that are being emptied. `None`: they aren't counted yet.
    pub to_rewrite: Option<u64>,
    /// Data is being moved to NSDs that hold less than others.
    pub is_balancing: bool,
}

/// How thorough a check is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckOptions {
    /// Reads and verifies every piece of every segment, including parity; otherwise each segment is
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
    /// An inode without names and holders.
    Orphan,
    /// A blob or segment that nothing points at and that isn't queued for deletion.
    Leak,
}

/// One fault, as a sentence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// What was found, and where.
    pub text: String,
}

/// Result of a check. The file system is sound if `faults` is empty.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CheckReport {
    /// Inodes examined.
    pub inodes: u64,
    /// Names examined.
    pub names: u64,
    /// Extents examined.
    pub extents: u64,
    /// Segments read.
    pub segments: u64,
    /// Bytes of plain data read.
    pub bytes: u64,
    /// Blobs of the shard that NSDs list.
    pub blobs: u64,
    /// Blobs of files' data among them (live or dead); the others are of the tree's tables.
    pub data_blobs: u64,
    /// Files with parts in them.
    pub unreadable_files: u64,
    /// Names of the first thousand.
    pub unreadable: Vec<String>,
    /// All faults, at most [`CheckReport::FAULTS_MAX`].
    pub faults: Vec<Fault>,
    /// Faults beyond the listed ones.
    pub more_faults: u64,
}

impl CheckReport {
    /// Most faults listed in a report.
    pub const FAULTS_MAX: usize = 1000;

    /// Whether there are no faults.
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
