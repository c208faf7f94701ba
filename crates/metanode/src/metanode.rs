//! The metanode itself: what a client calls.

use crate::locks::Locks;
use crate::report::{BackgroundReport, CheckOptions, CheckReport, Counters, RepairStatus, Usage};
use model::nsd::ScrubReport;
use model::operation::Stamp;
use model::{ErrorKind, InodeId, Operation, Reply, Result, SessionId};
use std::sync::Arc;

/// One file system's metadata service in this process.
pub struct Metanode {
    locks: Locks,
}

impl Metanode {
    /// A standing for a client: its id comes from coordination and is never reused, so segment
    /// ids that begin with it aren't either. Blocks on coordination.
    ///
    /// # Errors
    /// `Unavailable` when coordination doesn't answer.
    pub async fn open_session(&self) -> Result<SessionId> {
        Err(ErrorKind::NotImplemented.into())
    }

    /// The client is gone: its locks and holds go, orphans that only it held are released.
    pub async fn close_session(&self, _session: SessionId) -> Result<()> {
        Err(ErrorKind::NotImplemented.into())
    }

    /// Runs one operation. Ready at once when its records are in memory; otherwise reads them
    /// from the tree. The change is in the open commit: durable after [`Metanode::sync`], or by
    /// itself after at most 5 s. Truncates of large files run to their end inside.
    ///
    /// With a slot in the stamp (shipped operations) the reply comes after it is durable.
    ///
    /// # Errors
    /// POSIX refusals as their kinds; `Unavailable` while the shard is being taken over.
    pub async fn execute(&self, _operation: &Operation, _stamp: &Stamp) -> Result<Reply> {
        Err(ErrorKind::NotImplemented.into())
    }

    /// Makes everything that was answered so far durable. Concurrent calls share one commit.
    ///
    /// # Errors
    /// `Unavailable` when the shard was given up before that; what was answered and not yet
    /// synced may be lost then.
    pub async fn sync(&self) -> Result<()> {
        Err(ErrorKind::NotImplemented.into())
    }

    /// Whether nothing waits to be made durable.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        false
    }

    /// An inode is in use (open, or looked up by a kernel): it survives losing its last name.
    /// Counted; cheap; no I/O.
    pub fn hold(&self, _session: SessionId, _inode: InodeId) {}

    /// One use less. The last one of an orphan releases it (`Operation::Release`, with `stamp`).
    ///
    /// # Errors
    /// Those of the release; the count is taken back in any case.
    pub async fn unhold(&self, _inode: InodeId, _stamp: &Stamp) -> Result<()> {
        Err(ErrorKind::NotImplemented.into())
    }

    /// The lock tables.
    #[must_use]
    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// Starts the background tasks: reclaim, dead segments, fold, clean, sweep, repair.
    pub fn start_background(self: &Arc<Self>) {}

    /// One round of all background work, for tests and for a drained shutdown. Call until
    /// `steps` is 0.
    ///
    /// # Errors
    /// The first that stopped a kind of work; the other kinds were done.
    pub async fn run_background_once(&self) -> Result<BackgroundReport> {
        Err(ErrorKind::NotImplemented.into())
    }

    /// What background work has done since start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters::default()
    }

    /// Verifies the live file system: every extent readable and right, counters equal sums,
    /// names and inodes fit, no orphan that nobody holds, no leak.
    ///
    /// # Errors
    /// Only when the check itself couldn't go on; faults are in the report.
    pub async fn check(&self, _options: CheckOptions) -> Result<CheckReport> {
        Err(ErrorKind::NotImplemented.into())
    }

    /// Space and inodes for `df` and statfs. No I/O when the counters are in memory.
    ///
    /// # Errors
    /// `Unavailable` while the shard is being taken over.
    pub async fn usage(&self) -> Result<Usage> {
        Err(ErrorKind::NotImplemented.into())
    }

    /// Progress of repair.
    #[must_use]
    pub fn repair_status(&self) -> RepairStatus {
        RepairStatus::default()
    }

    /// Verifies every blob on every NSD and rebuilds damaged pieces from the others.
    ///
    /// # Errors
    /// When an NSD couldn't be read at all; the others were scrubbed.
    pub async fn scrub(&self) -> Result<Vec<ScrubReport>> {
        Err(ErrorKind::NotImplemented.into())
    }

    /// Ends background work, makes everything durable, closes the tree.
    ///
    /// # Errors
    /// `Unavailable` when the last commit couldn't be made durable.
    pub async fn close(&self) -> Result<()> {
        Err(ErrorKind::NotImplemented.into())
    }
}
