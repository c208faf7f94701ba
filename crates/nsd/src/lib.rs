//! Stores write-once blobs on a local disk and never returns bytes that it can't prove.
//!
//! A region is a superblock ring, a ring journal, an index (redb) and a data area of 4 KiB
//! units (`docs/formats/superblock.md`, `nsd-journal.md`, `blob.md`). A put is durable with its
//! journal record; the index follows at checkpoints.

mod area;
mod cache;
mod checkpoint;
mod checksum;
mod commit;
mod core;
mod entry;
mod extent;
mod finish;
mod flush;
mod index;
mod journal;
mod key;
mod ledger;
mod open;
mod read;
mod rebuild;
mod record;
mod scrub;
mod space;
mod state;
mod superblock;
mod wire;
mod write;

use crate::core::Core;
use crate::finish::Finish;
use crate::key::{Key, Named};

use bytes::Bytes;
use model::nsd::{
    BlobInfo, BlobPut, GroupDigest, GroupFence, LogEntry, LogPut, NsdHealth, NsdUsage, ScrubReport,
    SealReply,
};
use model::{BlobName, EntryNumber, Error, ErrorKind, GroupId, NsdId, Result, ShardEpoch, ShardId};
use std::future::Future;
use std::sync::Arc;
use world::{Disk, World};

/// Who an NSD is; written once, when it is formatted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NsdIdentity {
    /// The cluster that it belongs to.
    pub cluster: u128,
    /// Its number in the cluster.
    pub nsd: NsdId,
    /// The storage pool that it belongs to.
    pub pool: u32,
}

/// Sizes of the parts of a region, for tests and unusual disks. `None` takes the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FormatOptions {
    /// Bytes of the ring journal.
    pub journal_bytes: Option<u64>,
    /// Bytes of the index area.
    pub index_bytes: Option<u64>,
}

/// One network shared disk: blobs and log entries in one region of a local disk.
///
/// Used as `Arc<Nsd>`. All methods may be called from any number of tasks; dropping a call's
/// future never leaves a half-done change (the work goes on in the background).
pub struct Nsd {
    core: Arc<Core>,
}

/// Log entries that [`Nsd::log_read`] returns at most, whatever the limit.
pub const LOG_READ_MAX: usize = 1024;
/// Blobs that [`Nsd::list`] returns at most, whatever the limit.
pub const LIST_MAX: usize = 65_536;

impl Nsd {
    /// Prepares a region: superblock, empty journal, empty index. Everything is durable when
    /// it returns.
    ///
    /// # Errors
    /// `Exists` if the disk already carries a superblock; `InvalidArgument` if it is too small
    /// (below 8 MiB); `Unavailable` if it can't be written.
    pub async fn format(world: &World, disk: &Disk, identity: NsdIdentity) -> Result<()> {
        Self::format_with(world, disk, identity, FormatOptions::default()).await
    }

    /// Like [`Nsd::format`], with given sizes.
    ///
    /// # Errors
    /// As [`Nsd::format`].
    pub async fn format_with(
        world: &World,
        disk: &Disk,
        identity: NsdIdentity,
        options: FormatOptions,
    ) -> Result<()> {
        open::format(world, disk, identity, options).await
    }

    /// Who a region is, without changing anything in it.
    ///
    /// # Errors
    /// As [`Nsd::open`].
    pub async fn identify(disk: &Disk) -> Result<NsdIdentity> {
        Ok(open::load_superblock(disk).await?.identity)
    }

    /// Opens a formatted region and replays the journal's tail.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no superblock or the region was cut short, `NotSupported` if
    /// a newer Shale wrote it, `Corrupt` if the index can't be read ([`Nsd::rebuild_index`]
    /// helps), `Unavailable` on disk errors.
    pub async fn open(world: &World, disk: Disk) -> Result<Arc<Self>> {
        let core = open::open(world, disk).await?;
        Ok(Arc::new(Self { core }))
    }

    /// Makes a new index from what the region's blobs say of themselves. Afterwards log puts
    /// are refused, and absence isn't proven, until [`Nsd::confirm_epochs`].
    ///
    /// # Errors
    /// `InvalidArgument` if there is no superblock, `Unavailable` on disk errors.
    pub async fn rebuild_index(world: &World, disk: Disk) -> Result<Arc<Self>> {
        let core = rebuild::rebuild(world, disk).await?;
        Ok(Arc::new(Self { core }))
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> NsdId {
        self.core.identity.nsd
    }

    /// Who it is.
    #[must_use]
    pub fn identity(&self) -> NsdIdentity {
        self.core.identity
    }

    /// Whether it serves.
    #[must_use]
    pub fn health(&self) -> NsdHealth {
        self.core.health()
    }

    /// What it holds.
    #[must_use]
    pub fn usage(&self) -> NsdUsage {
        self.core.usage()
    }

    /// How often damaged bytes were met since it was opened, by readers and scrub.
    #[must_use]
    pub fn damage_found(&self) -> u64 {
        self.core.damage()
    }

    /// Whether the index was rebuilt and log puts wait for [`Nsd::confirm_epochs`].
    #[must_use]
    pub fn needs_confirmation(&self) -> bool {
        self.core.is_unconfirmed()
    }

    /// Creates a blob; durable when it returns. The same put repeated succeeds.
    ///
    /// # Errors
    /// `Exists` if another writer's put of the name came first, `OldEpoch` if the group has a
    /// newer version, `NoSpace`, `InvalidArgument` (empty or longer than a segment),
    /// `Unavailable` if the disk has failed.
    pub async fn put(&self, put: BlobPut) -> Result<()> {
        self.finish(self.core.clone().put_blob(put)).await
    }

    /// Exactly the bytes `offset..offset + length` of a blob, proven by their checksums.
    ///
    /// # Errors
    /// `NotFound` if the blob is provably absent, `Corrupt` if its bytes don't fit,
    /// `InvalidArgument` if the range is outside of it, `Unavailable`.
    pub async fn get(&self, name: BlobName, offset: u32, length: u32) -> Result<Bytes> {
        let end = offset.checked_add(length).ok_or_else(|| {
            let text = format!("{length} bytes at {offset} of blob {name}");
            Error::new(ErrorKind::InvalidArgument, text)
        })?;
        let key = Key::blob(name);
        let (_, bytes) = self.core.read_proven(&key, Some(offset..end)).await?;
        Ok(bytes)
    }

    /// What a blob says of itself.
    ///
    /// # Errors
    /// `NotFound`, `Unavailable`.
    pub async fn info(&self, name: BlobName) -> Result<BlobInfo> {
        self.core.check_serving()?;
        let key = Key::blob(name);
        let entry = self.core.locate(&key)?;
        let info = entry.and_then(|entry| entry.info(&key));
        info.ok_or_else(|| self.core.absent(&key))
    }

    /// Deletes blobs; those that don't exist are no error. Durable when it returns.
    ///
    /// # Errors
    /// `InvalidArgument` for more than `DELETE_NAMES_MAX` names, `Unavailable`.
    pub async fn delete(&self, names: &[BlobName]) -> Result<()> {
        let work = self.core.clone().delete_blobs(names.to_vec());
        self.finish(work).await
    }

    /// At most `limit` blobs of a group in name order, behind `after`.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn list(
        &self,
        group: GroupId,
        after: Option<BlobName>,
        limit: usize,
    ) -> Result<Vec<BlobInfo>> {
        self.core.check_serving()?;
        let (first, last) = Key::group_range(group);
        let from = after.map_or(first, |name| Key::blob(name).following().max(first));
        let found = self.core.range(&from, &last, limit.min(LIST_MAX))?;
        let infos = found.iter().filter_map(|(key, entry)| entry.info(key));
        Ok(infos.collect())
    }

    /// Count and hash of the blobs of a group.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn digest(&self, group: GroupId) -> Result<GroupDigest> {
        self.core.check_serving()?;
        let state = self.core.state.lock();
        Ok(state
            .ledger
            .digests
            .get(&group)
            .copied()
            .unwrap_or_default())
    }

    /// From now on puts that carry an older version of the group are refused. Durable.
    ///
    /// # Errors
    /// `OldEpoch` if a newer version is known, `Unavailable`.
    pub async fn learn_group(&self, fence: GroupFence) -> Result<()> {
        self.finish(self.core.clone().learn(fence)).await
    }

    /// Stores an entry of a shard's log; durable when it returns. The same put repeated
    /// succeeds; a higher epoch replaces the entry of a lower one.
    ///
    /// # Errors
    /// `OldEpoch` if the log is sealed for a higher epoch, `Exists` if the same epoch wrote
    /// other bytes there, `InvalidArgument` if the number was trimmed or the entry is too
    /// large, `NoSpace`, `Unavailable` (also until epochs are confirmed after a rebuild).
    pub async fn log_put(&self, put: LogPut) -> Result<()> {
        self.finish(self.core.clone().put_log(put)).await
    }

    /// At most `limit` entries from number `from` on, in order, proven by their checksums.
    ///
    /// # Errors
    /// `Corrupt` if an entry's bytes don't fit, `Unavailable`.
    pub async fn log_read(
        &self,
        shard: ShardId,
        from: EntryNumber,
        limit: usize,
    ) -> Result<Vec<LogEntry>> {
        self.core.check_serving()?;
        let from = Key::log(shard, from);
        let to = Key::log(shard, EntryNumber(u64::MAX));
        let mut entries = Vec::new();
        for (key, _) in self.core.range(&from, &to, limit.min(LOG_READ_MAX))? {
            let Named::Log(_, number) = key.named() else {
                continue;
            };
            match self.core.read_proven(&key, None).await {
                Ok((entry, bytes)) => entries.push(LogEntry {
                    epoch: ShardEpoch(entry.writer),
                    number,
                    bytes,
                }),
                // Trimmed while we read.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(entries)
    }

    /// Forgets the entries below `below`. Durable.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn log_trim(&self, shard: ShardId, below: EntryNumber) -> Result<()> {
        self.finish(self.core.clone().trim(shard, below)).await
    }

    /// Forgets the entries above `above`: garbage behind an epoch's recorded end. Durable.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn log_discard(&self, shard: ShardId, above: EntryNumber) -> Result<()> {
        self.finish(self.core.clone().discard(shard, above)).await
    }

    /// From now on log puts of an epoch below `epoch` are refused. Durable before it answers.
    ///
    /// # Errors
    /// `OldEpoch` if the log is sealed for a higher epoch, `Unavailable`.
    pub async fn seal(&self, shard: ShardId, epoch: ShardEpoch) -> Result<SealReply> {
        self.finish(self.core.clone().seal_log(shard, epoch)).await
    }

    /// After a rebuild: tells the current epochs of all shards, so that log puts are taken
    /// again.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn confirm_epochs(&self, epochs: &[(ShardId, ShardEpoch)]) -> Result<()> {
        let work = self.core.clone().confirm(epochs.to_vec());
        self.finish(work).await
    }

    /// Reads and checks everything, and mends what is redundant inside the region. One at a time.
    ///
    /// # Errors
    /// `Busy` if another scrub of it runs; `Unavailable` if the disk has failed.
    pub async fn scrub(&self) -> Result<ScrubReport> {
        self.finish(self.core.clone().scrub()).await
    }

    /// Brings the index up to date, so that the next open replays nothing. Later calls are
    /// answered with `ShuttingDown`.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn close(&self) -> Result<()> {
        self.core.check_serving()?;
        self.core.set_closed();
        let core = self.core.clone();
        self.finish(async move { core.close().await }).await
    }

    /// Looks whether the region is still there and whole. One that was cut short fails at once:
    /// what was in it is lost, and nothing more should go there. Cheap.
    ///
    /// # Errors
    /// `Unavailable` if it was cut short; `NotFound` if it was removed, but serves until it is
    /// closed.
    pub fn check_region(&self) -> Result<()> {
        self.core.check_serving()?;
        let Err(error) = self.core.disk.check() else {
            return Ok(());
        };
        if error.kind() == std::io::ErrorKind::NotFound {
            return Err(Error::new(ErrorKind::NotFound, error.to_string()));
        }
        Err(self.core.fail("looks at its region", &error))
    }

    /// Gives a failed NSD up and its region back, so that the region can be opened anew although
    /// somebody still holds this one. Nothing is served or written afterwards.
    pub async fn abandon(&self) {
        self.core.fail("is given up", &"its region is opened again");
        self.core.disk.let_go().await;
    }

    /// Brings the index up to date now instead of when the journal is half full.
    ///
    /// # Errors
    /// `Unavailable`, `NoSpace`.
    pub async fn checkpoint(&self) -> Result<()> {
        self.core.check_serving()?;
        let core = self.core.clone();
        self.finish(async move { core.checkpoint().await }).await
    }

    fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Finish<Result<T>> {
        Finish::new(&self.core.world, work)
    }
}
