//! Scrub: every NSD verifies what it holds; what is damaged is rebuilt from the others.

use crate::background::Standing;
use crate::metanode::Metanode;
use crate::report::ScrubOutcome;
use model::nsd::ScrubReport;
use model::{BlobName, NsdId, Result};
use pool::Depth;

impl Metanode {
    /// Verifies every blob on one NSD or all and rebuilds damaged pieces from the others.
    ///
    /// # Errors
    /// When an NSD couldn't be read at all; those before it were scrubbed.
    pub async fn scrub(&self, only: Option<NsdId>) -> Result<Vec<ScrubOutcome>> {
        let ids: Vec<NsdId> = match only {
            Some(nsd) => vec![nsd],
            None => self
                .pool
                .nsd_states()
                .iter()
                .map(|state| state.entry.nsd)
                .collect(),
        };
        let mut outcomes = Vec::new();
        for id in ids {
            let Some(nsd) = self.pool.nsd(id) else {
                continue;
            };
            let report = nsd
                .scrub()
                .await
                .map_err(|error| error.while_doing(format!("scrubbing NSD {id}")))?;
            outcomes.push(self.mend(id, report).await?);
        }
        Ok(outcomes)
    }

    /// Rebuilds what a scrub found; deletes it if nobody needs it.
    async fn mend(&self, nsd: NsdId, report: ScrubReport) -> Result<ScrubOutcome> {
        let mut outcome = ScrubOutcome::default();
        let damaged: Vec<BlobName> = report.damaged.clone();
        outcome.report = report;
        if damaged.is_empty() {
            return Ok(outcome);
        }
        let _round = self.background.round.lock().await;
        let judge = self.judge(self.decided().await?).await?;
        for name in damaged {
            let mended = match self.standing_of(&judge, name.segment).await? {
                Standing::Live(place) => {
                    self.pool
                        .repair_segment(&place, Depth::Bytes)
                        .await
                        .map(|outcome| {
                            self.note_repaired(&outcome);
                            outcome.is_complete()
                        })
                }
                Standing::Dead | Standing::Garbage => {
                    self.pool.delete_blobs(nsd, &[name]).await.map(|()| true)
                }
                Standing::Undecided => Ok(false),
            };
            match mended {
                Ok(true) => outcome.rebuilt += 1,
                Ok(false) => outcome.lost += 1,
                Err(error) => {
                    tracing::error!(%nsd, blob = %name, %error, "a damaged piece can't be rebuilt");
                    outcome.lost += 1;
                }
            }
        }
        Ok(outcome)
    }
}
