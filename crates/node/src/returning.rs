//! NSDs that come back: found while the node runs, reopened, taken into use.
//!
//! The NSD itself needn't know what it missed: the next survey finds pieces it lacks and rebuilds
//! them, pieces it should have deleted are garbage, and none of its blobs can pass for a newer one,
//! because names are used once.

use super::nsds::{LocalNsds, open_one};
use model::{Error, ErrorKind, NsdId, Result, map::NsdState, nsd::NsdHealth};
use std::path::PathBuf;
use std::time::Duration;

/// Pause between two rounds over NSDs that don't serve.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long a reopening waits for a failed disk's I/O, which still holds its region.
const LET_GO_MAX: Duration = Duration::from_secs(30);

impl LocalNsds {
    /// One round: tries every NSD that should serve, doesn't, and is due.
    pub async fn look_for_returned(&self) {
        let now = self.world.now();
        let away = self.views().into_iter().filter(|view| {
            view.state != NsdState::Lost && matches!(view.health, None | Some(NsdHealth::Failed))
        });
        let due: Vec<NsdId> = {
            let mut regions = self.regions.lock();
            away.filter_map(|view| {
                let region = regions.get_mut(&view.nsd)?;
                region.look.is_due(now).then_some(view.nsd)
            })
            .collect()
        };
        for nsd in due {
            if let Err(error) = self.reopen(nsd).await {
                tracing::debug!(%nsd, %error, "an NSD is still away");
            }
        }
    }

    /// Reopens an NSD that was missing or failed and takes it into use.
    ///
    /// # Errors
    /// `NotFound` if the map has no such NSD; `Exists` if it serves; otherwise why it doesn't open.
    pub async fn reopen(&self, id: NsdId) -> Result<()> {
        let _one_at_a_time = self.returning.lock().await;
        let path = self.path_of(id)?;
        if let Some(failed) = self.pool.nsd(id) {
            if failed.health() != NsdHealth::Failed {
                let text = format!("NSD {id} serves; there is nothing to open");
                return Err(Error::new(ErrorKind::Exists, text));
            }
            if self
                .world
                .timeout(LET_GO_MAX, failed.abandon())
                .await
                .is_err()
            {
                let text = format!(
                    "its disk hasn't answered for {} s; look at the kernel's log, restart the \
                     node once the disk answers",
                    LET_GO_MAX.as_secs()
                );
                return Err(self.refuse(id, Error::new(ErrorKind::Busy, text)));
            }
        }
        let opened = open_one(&self.world, &self.coordination, self.cluster, id, &path).await;
        let (nsd, rebuilt) = opened.map_err(|error| self.refuse(id, error))?;
        self.path_of(id)?;
        self.use_opened(nsd);
        if let Some(region) = self.regions.lock().get_mut(&id) {
            region.refused = None;
            region.rebuilt += u64::from(rebuilt);
        }
        tracing::info!(nsd = id.0, path = %path.display(), rebuilt, "an NSD is back");
        Ok(())
    }

    /// The region of an NSD that the map hasn't given up.
    fn path_of(&self, id: NsdId) -> Result<PathBuf> {
        let map = self.pool.map();
        let is_kept = map
            .nsd(id)
            .is_some_and(|entry| entry.state != NsdState::Lost);
        let regions = self.regions.lock();
        let path = regions.get(&id).filter(|_| is_kept);
        path.map(|region| region.path.clone()).ok_or_else(|| {
            let text = format!("there is no NSD {id} in use here; `shale nsd list` shows them");
            Error::new(ErrorKind::NotFound, text)
        })
    }

    /// Notes why an NSD doesn't serve.
    fn refuse(&self, id: NsdId, error: Error) -> Error {
        if let Some(region) = self.regions.lock().get_mut(&id) {
            let is_news = region.refused.as_ref() != Some(&error);
            if is_news {
                tracing::warn!(nsd = id.0, %error, "an NSD doesn't serve");
            }
            region.refused = Some(error.clone());
        }
        error
    }
}
