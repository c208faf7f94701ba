//! Takes a generation out of the map that nothing is in any more.

use super::Emptying;
use crate::host::DATA_POOL;
use model::map::{Generation, PoolMap};
use model::{ErrorKind, Result};
use world::Planted;

impl Emptying {
    /// Drops the oldest generation if no shard can name a segment in it and no NSD holds a blob of
    /// it. Returns how many were dropped.
    pub(super) async fn drop_oldest(&self, map: &PoolMap) -> Result<u64> {
        let Some(oldest) = map.closed().first() else {
            return Ok(0);
        };
        let is_early = self.host.world().has_planted(Planted::DropEarly);
        let is_empty =
            is_early || self.is_left_by_all_shards(oldest).await? && self.is_bare(oldest).await?;
        if !is_empty {
            return Ok(0);
        }
        let coordination = self.host.coordination();
        let Some(fact) = coordination.pool_map(DATA_POOL).await? else {
            return Ok(0);
        };
        // Another shard's owner may have dropped it.
        let Ok(next) = pool::drop_generation(&fact.value, oldest.first_group) else {
            return Ok(0);
        };
        let set = coordination.set_pool_map(DATA_POOL, fact.version, &next);
        match set.await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Changed => return Ok(0),
            Err(error) => return Err(error),
        }
        self.host.pool().set_map(next).await?;
        tracing::info!(
            groups = oldest.groups,
            scheme = %oldest.scheme,
            "a generation of the pool is empty and has left the map"
        );
        Ok(1)
    }

    /// Whether each shard has said that no record of it names one of the groups.
    async fn is_left_by_all_shards(&self, oldest: &Generation) -> Result<bool> {
        let coordination = self.host.coordination();
        for shard in coordination.shards().await? {
            if coordination.floor(shard.shard).await? < oldest.end() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether no NSD holds a blob of it. While one is away that isn't known.
    async fn is_bare(&self, oldest: &Generation) -> Result<bool> {
        match self.host.pool().is_emptied(oldest).await {
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) => {
                tracing::info!(%error, "an empty generation stays until all NSDs are there");
                Ok(false)
            }
            known => known,
        }
    }
}
