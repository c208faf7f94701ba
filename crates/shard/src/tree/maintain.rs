//! Background work of a tree: flush by age, snapshots of the catalog, trimming, restoring the log's
//! view, compaction on request.

use super::wal::REPLAY_AGE_MAX;
use crate::catalog::Catalog;
use crate::log::{Log, view_size};
use model::{EntryNumber, Result};
use pool::Pool;
use slatedb::VersionedManifest;
use slatedb::admin::Admin;
use slatedb::compactor::{CompactionSpec, CompactionStatus, SourceId};
use slatedb::config::{FlushOptions, FlushType};
use slatedb::{CloseReason, Db};
use std::sync::Arc;
use std::time::Duration;
use world::World;

const INTERVAL: Duration = Duration::from_secs(2);
/// A snapshot is appended when it would allow this much log to be trimmed.
const SNAPSHOT_BYTES: u64 = 4 * 1024 * 1024;
const SNAPSHOT_ENTRIES: u64 = 2048;
/// Smaller trims aren't worth their compare-and-set.
const TRIM_ENTRIES: u64 = 64;
const COMPACTION_ATTEMPTS: usize = 20;
const COMPACTION_PAUSE: Duration = Duration::from_secs(3);
const COMPACTION_DEADLINE: Duration = Duration::from_secs(3600);

pub(super) struct Maintenance {
    pub(super) world: World,
    pub(super) log: Log,
    pub(super) catalog: Catalog,
    pub(super) pool: Arc<Pool>,
    pub(super) db: Arc<Db>,
    pub(super) admin: Arc<Admin>,
}

impl Maintenance {
    pub(super) async fn run(self: Arc<Self>) {
        // A take-over leaves out members that are late by a moment, and what is written without them has fewer copies than it
        // could have.
        self.fill_view(view_size(&self.pool)).await;
        loop {
            self.world.sleep(INTERVAL).await;
            if self.log.failed().is_some() {
                return;
            }
            let reason = self.db.subscribe().borrow().close_reason;
            if reason.is_some_and(|reason| reason != CloseReason::Clean) {
                tracing::error!(?reason, "the tree of the shard has failed");
                return;
            }
            if let Err(error) = self.step().await {
                tracing::info!(%error, "maintenance of the shard will be retried");
            }
        }
    }

    async fn step(&self) -> Result<()> {
        let wanted = view_size(&self.pool);
        self.fill_view(wanted).await;
        if let Err(error) = self.log.leave_given_up(wanted).await {
            tracing::info!(%error, "the log stays on an NSD that is given up");
        }
        let closed = self.log.closed_end();
        let frozen = EntryNumber(self.db.manifest().replay_after_wal_id());
        let is_old = self.log.behind(frozen).age >= REPLAY_AGE_MAX;
        // Entries held only by an earlier view have too few copies, and none once its NSDs are
        // gone: flush them to tables and trim them.
        let is_thin = closed.is_some_and(|closed| closed > frozen);
        if (is_old || is_thin) && self.log.behind(frozen).entries > 0 {
            let flush = self.db.flush_with_options(FlushOptions {
                flush_type: FlushType::MemTable,
            });
            if let Err(error) = flush.await {
                tracing::info!(%error, "couldn't flush the tree's memory");
            }
        }
        match self.needed_from().await {
            Some(needed_from) => self.trim(needed_from, closed).await,
            None => Ok(()),
        }
    }

    /// Adds as many members to the log's view as it lacks.
    async fn fill_view(&self, wanted: usize) {
        // Each time one joins it, or none has to.
        for _ in 1..wanted {
            if let Err(error) = self.log.widen(wanted).await {
                tracing::info!(%error, "the log's view stays small");
                return;
            }
        }
    }

    /// Called after the tree was flushed and closed, so that the next opening reads little.
    pub(super) async fn finish(&self) -> Result<()> {
        let begin = self.log.trimmed_below();
        match self.needed_from().await {
            Some(needed_from) if needed_from.0 >= begin.0 + TRIM_ENTRIES => {
                let snapshot = self.catalog.append_snapshot().await?;
                self.log.trim(needed_from.min(snapshot)).await
            }
            _ => Ok(()),
        }
    }

    /// The first entry that the tree's replay needs. Only a manifest in the catalog is safe: the
    /// one in memory may be ahead.
    async fn needed_from(&self) -> Option<EntryNumber> {
        let manifest = self.admin.read_manifest(None).await.ok()??;
        Some(EntryNumber(manifest.replay_after_wal_id()).next())
    }

    async fn trim(&self, needed_from: EntryNumber, closed: Option<EntryNumber>) -> Result<()> {
        let begin = self.log.trimmed_below();
        // Zero if the trimmed begin is already past `to` or `needed_from`.
        let reach = |to: EntryNumber| needed_from.min(to).0.saturating_sub(begin.0);
        let snapshot = self.catalog.snapshot();
        // Log that a new snapshot would release, beyond the last one.
        let kept_for_snapshot = self.log.behind(EntryNumber(snapshot.0.max(begin.0) - 1));
        let is_worth = kept_for_snapshot.bytes >= SNAPSHOT_BYTES
            || kept_for_snapshot.entries >= SNAPSHOT_ENTRIES;
        let mut snapshot = snapshot;
        let ends_closed = closed.is_some_and(|closed| needed_from > closed && snapshot <= closed);
        if (is_worth || ends_closed) && needed_from > snapshot {
            snapshot = self.catalog.append_snapshot().await?;
        }
        let ends_closed = closed.is_some_and(|closed| needed_from.min(snapshot) > closed);
        if snapshot.0 > 0 && (reach(snapshot) >= TRIM_ENTRIES || ends_closed) {
            self.log.trim(needed_from.min(snapshot)).await?;
        }
        Ok(())
    }
}

/// Merges everything into one run. The spec must match the current tables, so this is retried until
/// it succeeds.
pub(super) async fn compact(
    world: World,
    admin: Arc<Admin>,
    _permit: tokio::sync::OwnedSemaphorePermit,
) {
    let work = async {
        for _ in 0..COMPACTION_ATTEMPTS {
            match compact_once(&world, &admin).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::info!(%error, "a full compaction will be retried"),
            }
            world.sleep(COMPACTION_PAUSE).await;
        }
        tracing::warn!("a full compaction found no quiet moment; ordinary ones continue");
    };
    if world.timeout(COMPACTION_DEADLINE, work).await.is_err() {
        tracing::warn!("a full compaction wasn't done in time");
    }
}

async fn compact_once(world: &World, admin: &Admin) -> std::result::Result<bool, slatedb::Error> {
    let view = admin.read_compactor_state_view().await?;
    let Some(spec) = full(view.manifest()) else {
        return Ok(true);
    };
    let id = admin.submit_compaction(spec).await?.id();
    loop {
        world.sleep(Duration::from_secs(1)).await;
        match admin
            .read_compaction(id, None)
            .await?
            .map(|compaction| compaction.status())
        {
            Some(CompactionStatus::Completed) => return Ok(true),
            Some(CompactionStatus::Failed) | None => return Ok(false),
            Some(_) => {}
        }
    }
}

/// All tables of level 0, newest first, and all runs, merged into the lowest run; `None` if there
/// is nothing to merge.
fn full(manifest: &VersionedManifest) -> Option<CompactionSpec> {
    let tables = manifest.l0().iter().map(|view| SourceId::SstView(view.id));
    let runs: Vec<u32> = manifest.compacted().iter().map(|run| run.id).collect();
    let destination = runs.iter().copied().min().unwrap_or(0);
    let sources: Vec<SourceId> = tables
        .chain(runs.into_iter().map(SourceId::SortedRun))
        .collect();
    (!sources.is_empty()).then(|| CompactionSpec::new(sources, destination))
}
