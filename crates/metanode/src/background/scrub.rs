//! Scrub: every NSD verifies its blobs; damaged pieces are rebuilt from the others.

use crate::background::unreadable::{Repaired, Unreadable};
use crate::host::Host;
use crate::judging::{Judging, Standing};
use crate::progress::Progress;
use crate::report::ScrubOutcome;
use model::nsd::ScrubReport;
use model::{BlobName, NsdId, Result};
use pool::{Depth, RepairOutcome};
use std::sync::Arc;
use tokio::sync::Mutex;

/// Scrubs on request.
pub(super) struct Scrub {
    host: Arc<Host>,
    judging: Judging,
    unreadable: Arc<Unreadable>,
    /// Held by a round of background work, which may be repairing the same.
    round: Arc<Mutex<()>>,
}

impl Scrub {
    pub(super) fn new(
        host: Arc<Host>,
        judging: Judging,
        unreadable: Arc<Unreadable>,
        round: Arc<Mutex<()>>,
    ) -> Self {
        Self {
            host,
            judging,
            unreadable,
            round,
        }
    }

    /// Verifies every blob on one NSD or all and rebuilds damaged pieces from the others. When the
    /// metanode closes, it stops: damaged pieces not rebuilt by then count as left.
    ///
    /// # Errors
    /// The first error of an NSD that couldn't be read at all or is already being scrubbed; the
    /// others were scrubbed.
    pub(super) async fn scrub(
        &self,
        only: Option<NsdId>,
        progress: &Progress,
    ) -> Result<Vec<ScrubOutcome>> {
        let ids: Vec<NsdId> = match only {
            Some(nsd) => vec![nsd],
            None => self
                .host
                .pool()
                .nsd_states()
                .iter()
                .map(|state| state.entry.nsd)
                .collect(),
        };
        let nsds = ids.iter().filter_map(|id| self.host.pool().nsd(*id));
        let bytes = nsds.map(|nsd| nsd.usage().used).sum();
        progress.begin("reading NSDs", "bytes", Some(bytes));
        let mut outcomes = Vec::new();
        let mut refused = None;
        for id in ids {
            if self.host.closes() {
                break;
            }
            let Some(nsd) = self.host.pool().nsd(id) else {
                continue;
            };
            match nsd.scrub_counting(progress.counter()).await {
                Ok(report) => outcomes.push(self.mend(id, report).await?),
                Err(error) => {
                    let error = error.while_doing(format!("scrubbing NSD {id}"));
                    refused.get_or_insert(error);
                }
            }
        }
        refused.map_or(Ok(outcomes), Err)
    }

    /// Rebuilds damaged pieces that a scrub found, or deletes them if they are garbage.
    async fn mend(&self, nsd: NsdId, report: ScrubReport) -> Result<ScrubOutcome> {
        let mut outcome = ScrubOutcome::default();
        let damaged: Vec<BlobName> = report.damaged.clone();
        outcome.report = report;
        if damaged.is_empty() {
            return Ok(outcome);
        }
        let round = self.round.lock().await;
        if self.host.closes() {
            outcome.left = damaged.len() as u64;
            return Ok(outcome);
        }
        let judge = self.judging.judge(self.judging.decided().await?).await?;
        for (at, name) in damaged.iter().copied().enumerate() {
            // Rebuilding many pieces takes long, and closing waits until the round is over.
            if self.host.closes() {
                outcome.left += (damaged.len() - at) as u64;
                return Ok(outcome);
            }
            let standing = self.judging.standing_of(&judge, name.segment).await?;
            let is_unknown = matches!(standing, Standing::Undecided | Standing::Garbage);
            if is_unknown && self.leave_to_its_shard(nsd, name).await {
                outcome.left += 1;
                continue;
            }
            match standing {
                Standing::Live(place) => {
                    let is_there = |done: RepairOutcome| done.missing & 1 << name.piece == 0;
                    match self.unreadable.repair_live(&place, Depth::Bytes).await? {
                        Repaired::Done(done) if is_there(done) => outcome.rebuilt += 1,
                        // It died meanwhile, and its pieces were deleted with it.
                        Repaired::Gone => outcome.rebuilt += 1,
                        Repaired::Unreadable => outcome.lost += 1,
                        Repaired::Done(_) | Repaired::Later => {
                            self.host.pool().suspect_damage(&place, None, name.piece);
                            outcome.left += 1;
                        }
                    }
                }
                standing @ (Standing::Dead | Standing::Garbage) => {
                    let is_garbage = standing == Standing::Garbage;
                    match self.delete_dead(nsd, name, is_garbage).await {
                        Ok(true) => outcome.rebuilt += 1,
                        Ok(false) => outcome.left += 1,
                        Err(error) => {
                            tracing::warn!(%nsd, blob = %name, %error, "damaged garbage couldn't be deleted");
                            outcome.left += 1;
                        }
                    }
                }
                // Its writer may still publish it: later reads show what can be read of it.
                Standing::Undecided | Standing::Damaged => outcome.left += 1,
            }
        }
        drop(round);
        self.unreadable.name_unreadable().await?;
        Ok(outcome)
    }

    /// Whether a damaged piece is another shard's, or may be: then it is left, and its shard repairs
    /// it if it is in this process.
    async fn leave_to_its_shard(&self, nsd: NsdId, name: BlobName) -> bool {
        match self.host.pool().described_on(nsd, name).await {
            Ok((_, owner)) if self.host.holds(owner.family) => false,
            Ok((place, owner)) => {
                let pool = self.host.pool();
                pool.suspect_damage(&place, Some(owner.family), name.piece);
                true
            }
            Err(error) => {
                tracing::debug!(%nsd, blob = %name, %error, "whose the damaged blob is isn't known");
                true
            }
        }
    }

    /// Deletes a damaged piece of a dead segment; `false` if its death may not survive a power cut.
    /// Garbage is condemned first: only a durable commit of this owner proves that no later owner has
    /// called it live.
    async fn delete_dead(&self, nsd: NsdId, name: BlobName, is_garbage: bool) -> Result<bool> {
        if is_garbage {
            let (place, _) = self.host.pool().described_on(nsd, name).await?;
            self.host.condemn(vec![place]).await?;
        }
        if !self.judging.is_gone_for_good(name.segment).await? {
            return Ok(false);
        }
        self.host.pool().delete_blobs(nsd, &[name]).await?;
        Ok(true)
    }
}
