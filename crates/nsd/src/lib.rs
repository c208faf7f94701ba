//! Stores write-once blobs on a local disk and never returns bytes that it can't prove.

use bytes::Bytes;
use model::nsd::{
    BlobInfo, BlobPut, GroupDigest, GroupFence, LogEntry, LogPut, NsdHealth, NsdUsage, ScrubReport,
    SealReply,
};
use model::{BlobName, EntryNumber, GroupId, NsdId, Result, ShardEpoch, ShardId};
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
    _private: (),
}

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
        let _ = (world, disk, identity, options);
        unimplemented!()
    }

    /// Opens a formatted region and replays the journal's tail.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no superblock, `Corrupt` if the index can't be read
    /// ([`Nsd::rebuild_index`] helps), `Unavailable` on disk errors.
    pub async fn open(world: &World, disk: Disk) -> Result<Arc<Self>> {
        let _ = (world, disk);
        unimplemented!()
    }

    /// Makes a new index from what the region's blobs say of themselves. Afterwards log puts
    /// are refused, and absence isn't proven, until [`Nsd::confirm_epochs`].
    ///
    /// # Errors
    /// `InvalidArgument` if there is no superblock, `Unavailable` on disk errors.
    pub async fn rebuild_index(world: &World, disk: Disk) -> Result<Arc<Self>> {
        let _ = (world, disk);
        unimplemented!()
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> NsdId {
        unimplemented!()
    }

    /// Who it is.
    #[must_use]
    pub fn identity(&self) -> NsdIdentity {
        unimplemented!()
    }

    /// Whether it serves.
    #[must_use]
    pub fn health(&self) -> NsdHealth {
        unimplemented!()
    }

    /// What it holds.
    #[must_use]
    pub fn usage(&self) -> NsdUsage {
        unimplemented!()
    }

    /// Whether the index was rebuilt and log puts wait for [`Nsd::confirm_epochs`].
    #[must_use]
    pub fn needs_confirmation(&self) -> bool {
        unimplemented!()
    }

    /// Creates a blob; durable when it returns. The same put repeated succeeds.
    ///
    /// # Errors
    /// `Exists` if another writer's put of the name came first, `OldEpoch` if the group has a
    /// newer version, `NoSpace`, `InvalidArgument` (empty or longer than a segment),
    /// `Unavailable` if the disk has failed.
    pub async fn put(&self, put: BlobPut) -> Result<()> {
        let _ = put;
        unimplemented!()
    }

    /// Exactly the bytes `offset..offset + length` of a blob, proven by their checksums.
    ///
    /// # Errors
    /// `NotFound` if the blob is provably absent, `Corrupt` if its bytes don't fit,
    /// `InvalidArgument` if the range is outside of it, `Unavailable`.
    pub async fn get(&self, name: BlobName, offset: u32, length: u32) -> Result<Bytes> {
        let _ = (name, offset, length);
        unimplemented!()
    }

    /// What a blob says of itself.
    ///
    /// # Errors
    /// `NotFound`, `Unavailable`.
    pub async fn info(&self, name: BlobName) -> Result<BlobInfo> {
        let _ = name;
        unimplemented!()
    }

    /// Deletes blobs; those that don't exist are no error. Durable when it returns.
    ///
    /// # Errors
    /// `InvalidArgument` for more than `DELETE_NAMES_MAX` names, `Unavailable`.
    pub async fn delete(&self, names: &[BlobName]) -> Result<()> {
        let _ = names;
        unimplemented!()
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
        let _ = (group, after, limit);
        unimplemented!()
    }

    /// Count and hash of the blobs of a group.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn digest(&self, group: GroupId) -> Result<GroupDigest> {
        let _ = group;
        unimplemented!()
    }

    /// From now on puts that carry an older version of the group are refused. Durable.
    ///
    /// # Errors
    /// `OldEpoch` if a newer version is known, `Unavailable`.
    pub async fn learn_group(&self, fence: GroupFence) -> Result<()> {
        let _ = fence;
        unimplemented!()
    }

    /// Stores an entry of a shard's log; durable when it returns. The same put repeated
    /// succeeds; a higher epoch replaces the entry of a lower one.
    ///
    /// # Errors
    /// `OldEpoch` if the log is sealed for a higher epoch, `Exists` if the same epoch wrote
    /// other bytes there, `InvalidArgument` if the number was trimmed or the entry is too
    /// large, `NoSpace`, `Unavailable` (also until epochs are confirmed after a rebuild).
    pub async fn log_put(&self, put: LogPut) -> Result<()> {
        let _ = put;
        unimplemented!()
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
        let _ = (shard, from, limit);
        unimplemented!()
    }

    /// Forgets the entries below `below`. Durable.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn log_trim(&self, shard: ShardId, below: EntryNumber) -> Result<()> {
        let _ = (shard, below);
        unimplemented!()
    }

    /// Forgets the entries above `above`: garbage behind an epoch's recorded end. Durable.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn log_discard(&self, shard: ShardId, above: EntryNumber) -> Result<()> {
        let _ = (shard, above);
        unimplemented!()
    }

    /// From now on log puts of an epoch below `epoch` are refused. Durable before it answers.
    ///
    /// # Errors
    /// `OldEpoch` if the log is sealed for a higher epoch, `Unavailable`.
    pub async fn seal(&self, shard: ShardId, epoch: ShardEpoch) -> Result<SealReply> {
        let _ = (shard, epoch);
        unimplemented!()
    }

    /// After a rebuild: tells the current epochs of all shards, so that log puts are taken
    /// again.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn confirm_epochs(&self, epochs: &[(ShardId, ShardEpoch)]) -> Result<()> {
        let _ = epochs;
        unimplemented!()
    }

    /// Reads and checks everything, and mends what is redundant inside the region.
    ///
    /// # Errors
    /// `Unavailable` if the disk has failed.
    pub async fn scrub(&self) -> Result<ScrubReport> {
        unimplemented!()
    }

    /// Brings the index up to date, so that the next open replays nothing. Later calls are
    /// answered with `ShuttingDown`.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn close(&self) -> Result<()> {
        unimplemented!()
    }
}
