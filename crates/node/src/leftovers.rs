//! What attempts to add an NSD have left that broke off before the pool's map named it: a region, all of it allocated, that
//! nobody would ever use, or a device that can't be added again because it has an NSD.

use super::nsds::{LocalNsds, open_one};
use super::regions::{open_disk, remove_region};
use metanode::DATA_POOL;
use model::{NsdId, Result};
use nsd::Nsd;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use world::host::{self, AtPath};

impl LocalNsds {
    /// Removes what such attempts have left: of the regions of this node that are `noted`, those on devices and below `own`
    /// that hold nothing, prepared or not. Returns the NSDs that should be noted no more. A region with contents, or a file
    /// elsewhere, stays: the map may be the one that is wrong. While no NSD is added here.
    ///
    /// # Errors
    /// Those of coordination; a region that can't be removed, or erased.
    pub async fn discard_leftovers(
        &self,
        noted: &BTreeMap<NsdId, PathBuf>,
        own: &Path,
    ) -> Result<Vec<NsdId>> {
        let map = self.coordination.pool_map(DATA_POOL).await?;
        let Some(map) = map.map(|it| it.value) else {
            return Ok(Vec::new());
        };
        let mut discarded = Vec::new();
        for (nsd, path) in noted.iter().filter(|(nsd, _)| map.nsd(**nsd).is_none()) {
            let is_device = host::at_path(path) == AtPath::Other;
            let is_ours = is_device || path.starts_with(own);
            if !is_ours || !self.is_unused(*nsd, path).await? {
                tracing::warn!(%nsd, path = %path.display(), "the pool doesn't know this NSD, and its region stays as it is; \
                    remove the region and its line in node.toml if nothing in it is needed");
                continue;
            }
            if is_device {
                let disk = open_disk(&self.world, path).await?;
                Nsd::unformat(&disk, self.identity(*nsd)).await?;
            } else {
                remove_region(path)?;
            }
            tracing::info!(%nsd, path = %path.display(), "removed the region of an NSD that was never added");
            discarded.push(*nsd);
        }
        Ok(discarded)
    }

    /// Whether a region that doesn't serve can be removed: there is none, or it was never prepared to its end, or it is this
    /// NSD's and holds nothing.
    ///
    /// # Errors
    /// None of its own: a region that can't be read is in use.
    async fn is_unused(&self, id: NsdId, path: &Path) -> Result<bool> {
        // The attempt may have ended before the file got its bytes.
        if matches!(host::at_path(path), AtPath::Nothing | AtPath::EmptyFile) {
            return Ok(true);
        }
        let Ok(disk) = open_disk(&self.world, path).await else {
            return Ok(false);
        };
        if Nsd::is_unformatted(&disk).await {
            return Ok(true);
        }
        drop(disk);
        let opened = open_one(&self.world, &self.coordination, self.cluster, id, path).await;
        let Ok((nsd, _)) = opened else {
            return Ok(false);
        };
        let usage = nsd.usage();
        nsd.close().await?;
        Ok(usage.blobs == 0 && usage.log_entries == 0)
    }
}
