//! The shard's records on NSDs: SlateDB on top of our own log. Only this folder and the object
//! store name SlateDB's types.

mod clock;
mod maintain;
mod settings;
mod wal;

#[cfg(test)]
mod tests;

pub(crate) use wal::ReplayCommit;

use crate::catalog::Catalog;
use crate::frame::CommitFrame;
use crate::log::Log;
use crate::rows::ReadRows;
use crate::store::CatalogStore;
use bytes::Bytes;
use maintain::Maintenance;
use model::{EntryNumber, Error, ErrorKind, Result};
use object_store::ObjectStore;
use parking_lot::Mutex;
use pool::Pool;
use slatedb::admin::Admin;
use slatedb::config::{CloseOptions, FlushOptions, FlushType, WriteOptions};
use slatedb::db_cache::foyer::{FoyerCache, FoyerCacheOptions};
use slatedb::db_cache::{DbCache, SplitCache};
use slatedb::{CloseReason, Db, DbSnapshot, WriteBatch};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use world::{Task, World};

/// Folder of the tree's objects in the catalog.
const ROOT: &str = "tree";
/// Shards of the caches; fixed, so that simulations are the same on all machines. The index and the
/// filter of a 64 MiB table take about 1 MiB each, and one that doesn't fit into its shard is read
/// and verified again by every get. Few shards, so that the tables of millions of files fit.
const BLOCK_CACHE_SHARDS: usize = 8;
const META_CACHE_SHARDS: usize = 2;
/// Time limits of opening, flushing and closing.
const OPEN_DEADLINE: Duration = Duration::from_secs(120);
const FLUSH_DEADLINE: Duration = Duration::from_secs(120);
/// Longest wait of a commit for memory to be flushed to tables.
const APPLY_DEADLINE: Duration = Duration::from_secs(120);

/// Memory for table blocks and indexes, shared by all shards of a process. Cheap to clone.
#[derive(Clone)]
pub(crate) struct TreeCache {
    cache: Arc<dyn DbCache>,
    /// Separates the entries of different openings.
    openings: Arc<AtomicU64>,
}

impl TreeCache {
    /// A cache of at most `bytes` bytes: half for blocks, half for indexes and filters.
    pub(crate) fn new(bytes: u64) -> Self {
        let part = |shards| -> Arc<dyn DbCache> {
            Arc::new(FoyerCache::new_with_opts(FoyerCacheOptions {
                max_capacity: bytes / 2,
                shards,
            }))
        };
        let cache = SplitCache::new()
            .with_block_cache(Some(part(BLOCK_CACHE_SHARDS)))
            .with_meta_cache(Some(part(META_CACHE_SHARDS)))
            .build();
        Self {
            cache: Arc::new(cache),
            openings: Arc::default(),
        }
    }
}

/// Everything needed to open a tree.
pub(crate) struct TreeSetup {
    pub(crate) world: World,
    pub(crate) log: Log,
    pub(crate) catalog: Catalog,
    pub(crate) pool: Arc<Pool>,
    pub(crate) cache: TreeCache,
    /// With more than this in memory, commits wait.
    pub(crate) unflushed_bytes: usize,
    pub(crate) commits: Vec<ReplayCommit>,
    pub(crate) end: EntryNumber,
    pub(crate) trimmed_below: EntryNumber,
}

/// The tree of one owner of a shard. Dropping it without [`Tree::close`] is like a crash: the log
/// ends, and the next take-over replays.
pub struct Tree {
    world: World,
    log: Log,
    db: Arc<Db>,
    admin: Arc<Admin>,
    maintenance: Arc<Maintenance>,
    tasks: Mutex<Vec<Task<()>>>,
    /// Its permit is held by the compaction that was requested.
    compacting: Arc<tokio::sync::Semaphore>,
}

impl Tree {
    pub(crate) async fn open(setup: TreeSetup) -> Result<Self> {
        let store: Arc<dyn ObjectStore> = Arc::new(CatalogStore::new(setup.catalog.clone()));
        let clock = Arc::new(clock::TreeClock {
            world: setup.world.clone(),
            clock: setup.log.clock().clone(),
        });
        let init = wal::LogInit {
            log: setup.log.clone(),
            commits: Mutex::new(setup.commits),
            end: setup.end,
            trimmed_below: setup.trimmed_below,
        };
        let opening = setup.cache.openings.fetch_add(1, Ordering::Relaxed);
        let open = Db::builder(ROOT, store.clone())
            .with_settings(settings::settings(
                setup.pool.usage().capacity,
                setup.unflushed_bytes,
            ))
            .with_filter_policies(settings::filters())
            .with_wal_writer(Box::new(init))
            .with_db_cache(setup.cache.cache.clone(), opening)
            .with_system_clock(clock.clone())
            .with_seed(setup.world.random_u64())
            .build();
        let late = |_| {
            Error::new(
                ErrorKind::Unavailable,
                format!("the tree isn't open after {OPEN_DEADLINE:?}"),
            )
        };
        let db = setup
            .world
            .timeout(OPEN_DEADLINE, open)
            .await
            .map_err(late)?;
        let db = Arc::new(
            db.map_err(|error| translate(&setup.log, error).while_doing("open the tree"))?,
        );
        let admin = Admin::builder(ROOT, store)
            .with_system_clock(clock)
            .with_seed(setup.world.random_u64())
            .build();
        let admin = Arc::new(admin);
        let maintenance = Arc::new(Maintenance {
            world: setup.world.clone(),
            log: setup.log.clone(),
            catalog: setup.catalog.clone(),
            pool: setup.pool,
            db: db.clone(),
            admin: admin.clone(),
        });
        let tasks = vec![
            setup
                .world
                .spawn("shard-maintenance", maintenance.clone().run()),
            setup
                .world
                .spawn("table-reclaim", setup.catalog.run_reclaim()),
        ];
        Ok(Self {
            world: setup.world,
            log: setup.log,
            db,
            admin,
            maintenance,
            tasks: Mutex::new(tasks),
            compacting: Arc::new(tokio::sync::Semaphore::new(1)),
        })
    }

    /// The newest value of a key, in its own memory, not a slice of a block.
    ///
    /// # Errors
    /// `Unavailable` while tables can't be read; see also [`Tree::failed`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let value = self.db.get(key).await.map_err(|error| self.error(error))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    /// Rows with `from <= key < to` in key order, at most `limit`. If the range lies within one
    /// object (inode, directory, file), filters skip tables that can't have it.
    ///
    /// # Errors
    /// As [`Tree::get`].
    pub async fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        let mut out = Vec::new();
        if from >= to || limit == 0 {
            return Ok(out);
        }
        let options = settings::scan(limit);
        let rows = match settings::within_object(from, to) {
            Some((prefix, range)) => {
                self.db
                    .scan_prefix_with_options(prefix, range, &options)
                    .await
            }
            None => self.db.scan_with_options(from..to, &options).await,
        };
        let mut rows = rows.map_err(|error| self.error(error))?;
        while out.len() < limit {
            let Some(row) = rows.next().await.map_err(|error| self.error(error))? else {
                break;
            };
            let copy = Bytes::copy_from_slice;
            out.push((copy(&row.key), copy(&row.value)));
        }
        Ok(out)
    }

    /// The current rows; later commits don't change the snapshot.
    ///
    /// # Errors
    /// The tree has failed: [`Tree::failed`].
    pub(crate) fn snapshot(&self) -> Result<TreeSnapshot> {
        let rows = self.db.snapshot().map_err(|error| self.error(error))?;
        Ok(TreeSnapshot {
            log: self.log.clone(),
            rows,
        })
    }

    /// Applies a durable commit's rows to the tree; they are readable when it returns. Must be
    /// called in the order of the entry numbers, one at a time, with the number from
    /// [`Log::append_commit`]. Waits while more than [`TreeSetup::unflushed_bytes`] aren't in tables. Keeps the rows' memory
    /// until they are in a table.
    ///
    /// # Errors
    /// The tree has failed: [`Tree::failed`].
    pub async fn apply(&self, entry: EntryNumber, frame: &CommitFrame) -> Result<()> {
        if frame.rows.is_empty() {
            return Ok(());
        }
        let mut batch = WriteBatch::new();
        for (key, value) in &frame.rows {
            match value {
                Some(value) => batch.put_bytes(key.clone(), value.clone()),
                None => batch.delete(key),
            }
        }
        let options = WriteOptions { seqnum: entry.0 };
        let late = |_| {
            Error::new(
                ErrorKind::Unavailable,
                format!("the tree accepted no rows for {APPLY_DEADLINE:?}"),
            )
        };
        let write = self.db.write_with_options(batch, &options);
        match self
            .world
            .timeout(APPLY_DEADLINE, write)
            .await
            .map_err(late)?
        {
            Ok(_) => Ok(()),
            Err(error) => Err(self
                .error(error)
                .while_doing(format!("apply entry {entry}"))),
        }
    }

    /// Bytes of the tables that the tree consists of, before redundancy, as their indexes say. Those of which it consisted before
    /// a merge aren't among them, though the catalog has them until nobody reads them any more ([`crate::Catalog::usage`]).
    #[must_use]
    pub fn bytes(&self) -> u64 {
        // Looked at where it is: a copy of it would be as long as the list of tables, and this is asked many times a second.
        let status = self.db.subscribe();
        let status = status.borrow();
        let manifest = &status.current_manifest;
        let tables = manifest.l0().iter().map(|table| table.estimate_size());
        let runs = manifest.compacted().iter().map(|run| run.estimate_size());
        tables.chain(runs).sum()
    }

    /// The log below.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Flushes memory to tables, so that the log can be trimmed.
    ///
    /// # Errors
    /// `Unavailable` if that takes too long; the tree has failed: [`Tree::failed`].
    pub async fn flush(&self) -> Result<()> {
        let late = |_| {
            Error::new(
                ErrorKind::Unavailable,
                format!("the tree isn't flushed after {FLUSH_DEADLINE:?}"),
            )
        };
        let flush = self.db.flush_with_options(FlushOptions {
            flush_type: FlushType::MemTable,
        });
        self.world
            .timeout(FLUSH_DEADLINE, flush)
            .await
            .map_err(late)?
            .map_err(|error| self.error(error))
    }

    /// Requests a full compaction, after mass deletes: removed keys leave the tables. It runs in
    /// the background; the space of the old tables returns a minute later. `false`: one is already
    /// running.
    ///
    /// # Errors
    /// As [`Tree::flush`].
    pub async fn compact(&self) -> Result<bool> {
        let Ok(permit) = self.compacting.clone().try_acquire_owned() else {
            return Ok(false);
        };
        self.flush().await?;
        let work = maintain::compact(self.world.clone(), self.admin.clone(), permit);
        let mut tasks = self.tasks.lock();
        tasks.retain(|task| !task.is_finished());
        tasks.push(self.world.spawn("tree-compaction", work));
        Ok(true)
    }

    /// Whether a requested compaction is still running.
    #[must_use]
    pub fn is_compacting(&self) -> bool {
        self.compacting.available_permits() == 0
    }

    /// Why the tree has failed, if so: the owner must give up its epoch and take over again.
    #[must_use]
    pub fn failed(&self) -> Option<Error> {
        if let Some(error) = self.log.failed() {
            return Some(error);
        }
        let reason = self.db.subscribe().borrow().close_reason?;
        let kind = match reason {
            CloseReason::Clean => ErrorKind::ShuttingDown,
            CloseReason::Fenced => ErrorKind::OldEpoch,
            _ => ErrorKind::Unavailable,
        };
        Some(Error::new(kind, format!("the tree is closed: {reason:?}")))
    }

    /// Flushes, trims the log, ends all tasks of the tree and then the log. Nothing may be applied
    /// afterwards.
    ///
    /// # Errors
    /// As [`Tree::flush`]; nothing is lost, but the next opening replays more.
    pub async fn close(&self) -> Result<()> {
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            task.stop().await;
        }
        let late = |_| {
            Error::new(
                ErrorKind::Unavailable,
                format!("the tree isn't closed after {FLUSH_DEADLINE:?}"),
            )
        };
        let close = self.db.close_with_options(CloseOptions {
            flush_type: Some(FlushType::MemTable),
        });
        let result = self
            .world
            .timeout(FLUSH_DEADLINE, close)
            .await
            .map_err(late)?;
        let result = result.map_err(|error| self.error(error).while_doing("close the tree"));
        if result.is_ok()
            && let Err(error) = self.maintenance.finish().await
        {
            tracing::info!(%error, "the log of a closed shard isn't trimmed");
        }
        self.log
            .end(Error::new(ErrorKind::ShuttingDown, "the shard is closed"));
        result
    }

    fn error(&self, error: slatedb::Error) -> Error {
        translate(&self.log, error)
    }
}

/// The rows of a tree as of one moment.
pub(crate) struct TreeSnapshot {
    log: Log,
    rows: Arc<DbSnapshot>,
}

impl TreeSnapshot {
    /// As [`Tree::scan`].
    pub(crate) async fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>> {
        let mut out = Vec::new();
        if from >= to || limit == 0 {
            return Ok(out);
        }
        let failed = |error| translate(&self.log, error);
        let rows = self
            .rows
            .scan_with_options(from..to, &settings::scan(limit))
            .await;
        let mut rows = rows.map_err(failed)?;
        while out.len() < limit {
            let Some(row) = rows.next().await.map_err(failed)? else {
                break;
            };
            let copy = Bytes::copy_from_slice;
            out.push((copy(&row.key), copy(&row.value)));
        }
        Ok(out)
    }
}

impl Drop for Tree {
    /// As after a crash, except that its tasks are stopped.
    fn drop(&mut self) {
        self.log.end(Error::new(
            ErrorKind::ShuttingDown,
            "the shard was given up",
        ));
        let db = self.db.clone();
        if db.subscribe().borrow().close_reason.is_none() {
            let end = async move {
                let options = CloseOptions { flush_type: None };
                if let Err(error) = db.close_with_options(options).await {
                    tracing::debug!(%error, "closing a tree that was given up");
                }
            };
            self.world.spawn("tree-end", end).detach();
        }
    }
}

impl ReadRows for Tree {
    async fn read(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        self.scan(from, to, limit).await
    }
}

impl ReadRows for TreeSnapshot {
    async fn read(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        self.scan(from, to, limit).await
    }
}

/// If the log has failed, that is the cause of the tree's error.
fn translate(log: &Log, error: slatedb::Error) -> Error {
    if let Some(cause) = log.failed() {
        return cause.while_doing(format!("tree: {error}"));
    }
    let kind = match error.kind() {
        slatedb::ErrorKind::Closed(CloseReason::Fenced) => ErrorKind::OldEpoch,
        slatedb::ErrorKind::Closed(CloseReason::Clean) => ErrorKind::ShuttingDown,
        slatedb::ErrorKind::Data => ErrorKind::Corrupt,
        slatedb::ErrorKind::Invalid => ErrorKind::InvalidArgument,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("tree: {error}"))
}
