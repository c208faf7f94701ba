//! What people and their tools ask a metanode: checks, scrubs, repair, space.

use crate::check::Check;
use crate::metanode::Metanode;
use crate::progress::Progress;
use crate::report::{CheckOptions, CheckReport, Moves, RepairStatus, ScrubOutcome};
use model::{NsdId, Result};

impl Metanode {
    /// Verifies the live file system: every extent readable and right, counters equal sums, names
    /// and inodes match, no orphan without a holder, no leak. Reads the records as of one commit
    /// while operations and background work continue. Apparent faults are checked again, so data
    /// removed or replaced meanwhile isn't reported.
    ///
    /// # Errors
    /// Only if the check itself couldn't continue; faults are in the report.
    pub async fn check(&self, options: CheckOptions) -> Result<CheckReport> {
        self.check_showing(options, &Progress::default()).await
    }

    /// As [`Metanode::check`]; reports its progress.
    ///
    /// # Errors
    /// As [`Metanode::check`].
    pub async fn check_showing(
        &self,
        options: CheckOptions,
        progress: &Progress,
    ) -> Result<CheckReport> {
        let check = Check::new(&self.host, &self.judging, &self.background);
        check.check(options, progress).await
    }

    /// Verifies every blob on one NSD or all and rebuilds damaged pieces from the others.
    ///
    /// # Errors
    /// The first error of an NSD that couldn't be read at all or is already being scrubbed; the
    /// others were scrubbed.
    pub async fn scrub(&self, only: Option<NsdId>) -> Result<Vec<ScrubOutcome>> {
        self.scrub_showing(only, &Progress::default()).await
    }

    /// As [`Metanode::scrub`]; reports its progress. When the metanode closes, it stops: damaged
    /// pieces not rebuilt by then count as left.
    ///
    /// # Errors
    /// As [`Metanode::scrub`].
    pub async fn scrub_showing(
        &self,
        only: Option<NsdId>,
        progress: &Progress,
    ) -> Result<Vec<ScrubOutcome>> {
        self.background.scrub(only, progress).await
    }

    /// Progress of repair.
    #[must_use]
    pub fn repair_status(&self) -> RepairStatus {
        self.background.repair_status()
    }

    /// What this owner moves by itself of its shard's data. Costs next to nothing.
    #[must_use]
    pub fn moves(&self) -> Moves {
        self.background.moves()
    }

    /// Frees some space of removed and overwritten data, without the usual grace for readers (a
    /// reader that misses a segment looks up the data's place again). For writers that would be
    /// refused: they try again as long as this returns that something was freed, by them or by
    /// another caller meanwhile, or that the search isn't finished. One bounded step; concurrent
    /// callers share it.
    ///
    /// # Errors
    /// The error that stopped it.
    pub async fn make_room(&self) -> Result<bool> {
        self.background.make_room().await
    }

    /// Bytes in use, before redundancy, that nothing points at: they wait to be freed.
    #[must_use]
    pub fn unfreed(&self) -> u64 {
        self.background.unfreed()
    }
}
