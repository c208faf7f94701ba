//! Stores write-once blobs on a local disk and never returns bytes that it can't prove.
//!
//! A region consists of a superblock ring, a ring journal, an index (redb) and a data area of 4 KiB
//! units (`docs/formats/superblock.md`, `nsd-journal.md`, `blob.md`). A put is durable once its
//! journal record is; checkpoints update the index later.

mod area;
mod cache;
mod checkpoint;
mod checksum;
mod commit;
mod core;
mod ends;
mod entry;
mod extent;
mod finish;
#[cfg(test)]
mod forged;
mod handle;
mod index;
mod journal;
mod key;
mod ledger;
mod lookup;
mod near;
mod open;
mod proof;
mod queue;
mod read;
mod rebuild;
mod record;
mod scrub;
mod server;
#[cfg(test)]
mod small;
mod space;
mod state;
mod superblock;
mod wanted;
mod wire;
mod write;

pub use crate::entry::blob_bytes;
pub use crate::handle::Handle;
pub use crate::server::NsdServer;

use crate::core::{Admitted, Core, NAME_BYTES};
use crate::finish::Finish;
use crate::index::Found;
use crate::key::{Key, Named};
use crate::write::units_under_way;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use futures::stream;
use model::nsd::{
    BlobDelete, BlobInfo, BlobPut, GroupDigest, GroupFence, LOG_READ_BYTES, LogEntry, LogPut,
    NsdCondition, NsdHealth, NsdUsage, ScrubReport,
};
use model::{BlobName, EntryNumber, Error, ErrorKind, GroupId, NsdId, Result, ShardEpoch, ShardId};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::OwnedSemaphorePermit;
use world::{Disk, World};

/// An NSD's identity; written once, on formatting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NsdIdentity {
    /// The cluster that it belongs to.
    pub cluster: u128,
    /// Its number in the cluster.
    pub nsd: NsdId,
    /// The storage pool that it belongs to.
    pub pool: u32,
}

/// Sizes of a region's parts, for tests and unusual disks. `None` uses the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FormatOptions {
    /// Bytes of the ring journal.
    pub journal_bytes: Option<u64>,
    /// Bytes of the index area.
    pub index_bytes: Option<u64>,
}

/// One network shared disk: blobs and log entries in one region of a local disk.
///
/// Used as `Arc<Nsd>`. Any number of tasks may call any method. Dropping a call's future never
/// leaves a change half done: the work continues in the background. A put or delete that waits for its turn hasn't begun.
pub struct Nsd {
    core: Arc<Core>,
}

/// Most log entries that [`Nsd::log_read`] returns, whatever the limit.
pub const LOG_READ_MAX: usize = 1024;
/// Most entries that one request reads from the disk at the same time; fewer if they are large.
const LOG_READS_AT_ONCE: usize = 64;
/// Most versions of groups that one request has the journal take at the same time.
const LEARNT_AT_ONCE: usize = 1024;
/// Most blobs that [`Nsd::list`] returns, whatever the limit.
pub const LIST_MAX: usize = 65_536;

impl Nsd {
    /// Prepares a region: superblock, empty journal, empty index. Everything is durable when it
    /// returns.
    ///
    /// # Errors
    /// `Exists` if the disk already carries a superblock; `InvalidArgument` if it is too small
    /// (below 8 MiB); `Unavailable` if it can't be written.
    pub async fn format(world: &World, disk: &Disk, identity: NsdIdentity) -> Result<()> {
        Self::format_with(world, disk, identity, FormatOptions::default()).await
    }

    /// Like [`Nsd::format`], with the given sizes.
    ///
    /// # Errors
    /// As for [`Nsd::format`].
    pub async fn format_with(
        world: &World,
        disk: &Disk,
        identity: NsdIdentity,
        options: FormatOptions,
    ) -> Result<()> {
        open::format(world, disk, identity, options).await
    }

    /// Undoes [`Nsd::format`] of an NSD that was never used: its region can be formatted again. Nothing if another NSD is
    /// there, or none. While nobody has it open.
    ///
    /// # Errors
    /// `Unavailable` if the disk can't be read or written; those of [`Nsd::open`] if it can't be said which NSD is there.
    pub async fn unformat(disk: &Disk, identity: NsdIdentity) -> Result<()> {
        superblock::erase(disk, identity).await
    }

    /// The identity of the NSD in a region. Changes nothing.
    ///
    /// # Errors
    /// As for [`Nsd::open`].
    pub async fn identify(disk: &Disk) -> Result<NsdIdentity> {
        Ok(open::load_superblock(disk).await?.identity)
    }

    /// Whether a region holds nothing because [`Nsd::format`] hasn't come to its end there, or hasn't begun: it writes the
    /// superblock last, and where that would be are zeros. Changes nothing.
    pub async fn is_unformatted(disk: &Disk) -> bool {
        superblock::is_never_written(disk).await
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

    /// Rebuilds the index from the headers of the region's blobs. Until [`Nsd::confirm_epochs`],
    /// log puts are refused and an absent blob is reported as `Unavailable`.
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

    /// Its identity.
    #[must_use]
    pub fn identity(&self) -> NsdIdentity {
        self.core.identity
    }

    /// Health, usage, and whether epochs must be confirmed.
    #[must_use]
    pub fn condition(&self) -> NsdCondition {
        NsdCondition {
            health: self.health(),
            usage: self.usage(),
            needs_confirmation: self.needs_confirmation(),
        }
    }

    /// Whether it serves requests.
    #[must_use]
    pub fn health(&self) -> NsdHealth {
        self.core.health()
    }

    /// How much it holds.
    #[must_use]
    pub fn usage(&self) -> NsdUsage {
        self.core.usage()
    }

    /// How often readers and scrub found damaged bytes since it was opened.
    #[must_use]
    pub fn damage_found(&self) -> u64 {
        self.core.damage()
    }

    /// Whether the index was rebuilt and log puts wait for [`Nsd::confirm_epochs`].
    #[must_use]
    pub fn needs_confirmation(&self) -> bool {
        self.core.is_unconfirmed()
    }

    /// Creates a blob; durable when it returns. Repeating the same put succeeds.
    ///
    /// # Errors
    /// `Exists` if another writer has put this name, `OldEpoch` if the group has a newer version,
    /// `NoSpace`, `InvalidArgument` (empty, longer than a segment, or described as a piece of one that can't be),
    /// `Unavailable` if the disk has failed.
    pub async fn put(&self, put: BlobPut) -> Result<()> {
        let units = units_under_way(std::iter::once(put.payload.len()));
        let room = self.core.admit(Admitted::Blobs, units).await?;
        self.finish_in(room, self.core.clone().put_blob(put)).await
    }

    /// Exactly the bytes `offset..offset + length` of a blob, proven by their checksums.
    ///
    /// # Errors
    /// `NotFound` if the blob is provably absent, `Corrupt` if its bytes don't match their
    /// checksums, `InvalidArgument` if the range exceeds the blob, `Unavailable`.
    pub async fn get(&self, name: BlobName, offset: u32, length: u32) -> Result<Bytes> {
        let end = offset.checked_add(length).ok_or_else(|| {
            let text = format!("{length} bytes at {offset} of blob {name}");
            Error::new(ErrorKind::InvalidArgument, text)
        })?;
        let key = Key::blob(name);
        let (_, proven) = self.core.read_proven(&key, Some(offset..end)).await?;
        Ok(proven.exact())
    }

    /// A blob's description of itself.
    ///
    /// # Errors
    /// `NotFound`, `Unavailable`.
    pub async fn info(&self, name: BlobName) -> Result<BlobInfo> {
        self.core.check_serving()?;
        let key = Key::blob(name);
        let entry = self.core.locate(&key).await?;
        let info = entry.and_then(|entry| entry.info(&key));
        info.ok_or_else(|| self.core.absent(&key))
    }

    /// Deletes blobs; ignores names that don't exist. Durable when it returns.
    ///
    /// # Errors
    /// `OldEpoch` if a group has a newer version; `InvalidArgument` for more than
    /// `DELETE_NAMES_MAX` names, or versions, or a name without its group's version; `Unavailable`.
    pub async fn delete(&self, delete: BlobDelete) -> Result<()> {
        let named = delete.names.len() + delete.fences.len();
        let units = units_under_way(std::iter::once(named * NAME_BYTES));
        let room = self.core.admit(Admitted::Deletes, units).await?;
        let work = self.core.clone().delete_blobs(delete);
        self.finish_in(room, work).await
    }

    /// At most `limit` blobs of a group after `after`, in name order.
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
        let found = self.core.range(&from, &last, limit.min(LIST_MAX)).await?;
        let infos = found.iter().filter_map(|(key, entry)| entry.info(key));
        Ok(infos.collect())
    }

    /// Count and hash of a group's blobs.
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

    /// The groups of which it holds blobs, from `from` on, in order; at most `limit`.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn groups(&self, from: GroupId, limit: usize) -> Result<Vec<GroupId>> {
        self.core.check_serving()?;
        let state = self.core.state.lock();
        let held = state.ledger.digests.range(from..);
        Ok(held.map(|(group, _)| *group).take(limit).collect())
    }

    /// Refuses puts and deletes with an older version of the group from now on. Durable. Puts and
    /// deletes with a newer version teach it as well.
    ///
    /// # Errors
    /// `OldEpoch` if a newer version is known, `NoSpace` if those of as many groups are as may be, `Unavailable`.
    pub async fn learn_group(&self, fence: GroupFence) -> Result<()> {
        self.finish(self.core.clone().learn(fence)).await
    }

    /// As [`Nsd::learn_group`] for several groups, many at once; groups with newer versions keep these. Of those of a call that
    /// is dropped, or that fails, any may be known.
    ///
    /// # Errors
    /// `NoSpace` as there, `Unavailable`.
    pub async fn learn_groups(&self, fences: &[GroupFence]) -> Result<()> {
        for part in fences.chunks(LEARNT_AT_ONCE) {
            let learnt = part.iter().map(|fence| self.learn_group(*fence));
            for result in join_all(learnt).await {
                match result {
                    Err(error) if error.kind() != ErrorKind::OldEpoch => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Stores an entry of a shard's log; durable when it returns. Repeating the same put succeeds;
    /// a higher epoch replaces the entry of a lower one.
    ///
    /// # Errors
    /// `OldEpoch` if the log is sealed for a higher epoch, `Exists` if the same epoch wrote other
    /// bytes under this number, `InvalidArgument` if the number was trimmed or the entry is too
    /// large, `NoSpace`, `Unavailable` (also until epochs are confirmed after a rebuild).
    pub async fn log_put(&self, put: LogPut) -> Result<()> {
        let units = units_under_way(std::iter::once(put.bytes.len()));
        let room = self.core.admit(Admitted::Logs, units).await?;
        self.finish_in(room, self.core.clone().put_log(put)).await
    }

    /// As [`Nsd::log_put`] for several entries at once, which few writes of the journal make durable. Of those that are put
    /// when one is refused, any may be stored.
    ///
    /// # Errors
    /// As [`Nsd::log_put`].
    pub async fn log_puts(&self, puts: Vec<LogPut>) -> Result<()> {
        let units = units_under_way(puts.iter().map(|put| put.bytes.len()));
        let room = self.core.admit(Admitted::Logs, units).await?;
        let core = self.core.clone();
        let work = async move {
            let mut stored = Vec::with_capacity(puts.len());
            for put in puts {
                stored.push(core.clone().put_log(put));
            }
            let stored = join_all(stored).await.into_iter();
            stored.collect::<Result<()>>()
        };
        self.finish_in(room, work).await
    }

    /// At most `limit` entries from number `from` on, in order, proven by their checksums. Fewer
    /// don't mean the end, since one answer has about [`LOG_READ_BYTES`] at most; none do.
    ///
    /// # Errors
    /// `Corrupt` if the first entry's bytes don't match their checksums; an answer ends before a later one that is damaged.
    /// `Unavailable`.
    pub async fn log_read(
        &self,
        shard: ShardId,
        from: EntryNumber,
        limit: usize,
    ) -> Result<Vec<LogEntry>> {
        self.core.check_serving()?;
        let limit = limit.min(LOG_READ_MAX);
        let mut found = self.log_range(shard, from, limit).await?;
        // More than the answer may have isn't read.
        let mut bytes = 0;
        found.retain(|(_, entry)| {
            let has_room = bytes < LOG_READ_BYTES;
            bytes += entry.length as usize;
            has_room
        });
        let largest = found.iter().map(|(_, entry)| entry.length as usize).max();
        let at_once = LOG_READ_BYTES / largest.unwrap_or(1).max(1);
        let near = self.core.read_near(&found).await;
        let both = found.into_iter().zip(near);
        let reads = both.filter_map(|((key, entry), near)| match key.named() {
            Named::Log(_, number) => Some(async move {
                if let Some(bytes) = near {
                    return (number, Ok((entry.writer, bytes)));
                }
                let read = self.core.read_proven(&key, None).await;
                let read = read.map(|(entry, proven)| (entry.writer, proven.exact()));
                (number, read)
            }),
            _ => None,
        });
        // A take-over waits for thousands of entries, most of them small: one after the other they
        // would take a disk's latency each.
        let mut reads = stream::iter(reads).buffered(at_once.clamp(1, LOG_READS_AT_ONCE));
        let mut entries = Vec::new();
        let mut bytes = 0;
        while let Some((number, read)) = reads.next().await {
            match read {
                Ok((writer, exact)) => {
                    bytes += exact.len();
                    entries.push(LogEntry {
                        epoch: ShardEpoch(writer),
                        number,
                        bytes: exact,
                    });
                }
                // Trimmed during the read.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                // Those before it are whole. Who asks goes on with it, and needn't read them one by one to find it.
                Err(_) if !entries.is_empty() => break,
                Err(error) => return Err(error),
            }
            if bytes >= LOG_READ_BYTES {
                break;
            }
        }
        Ok(entries)
    }

    /// At most `limit` entries of a log from `from` on, in order; none only if there are none.
    async fn log_range(&self, shard: ShardId, from: EntryNumber, limit: usize) -> Result<Found> {
        let key = |number| Key::log(shard, number);
        // Entries have no holes between them. All that is in memory of a range is looked at, so a whole log would be looked at
        // for each part that is read of it.
        let near = EntryNumber(from.0.saturating_add(limit as u64));
        let found = self.core.range(&key(from), &key(near), limit).await?;
        if !found.is_empty() {
            return Ok(found);
        }
        let last = EntryNumber(u64::MAX);
        self.core.range(&key(from), &key(last), limit).await
    }

    /// Removes the entries below `below`, on behalf of an owner. Durable.
    ///
    /// # Errors
    /// `OldEpoch` if the log is sealed for a higher epoch, `NoSpace` as [`Nsd::seal`], `Unavailable` (also until epochs are
    /// confirmed after a rebuild).
    pub async fn log_trim(
        &self,
        shard: ShardId,
        epoch: ShardEpoch,
        below: EntryNumber,
    ) -> Result<()> {
        self.finish(self.core.clone().trim(shard, epoch, below))
            .await
    }

    /// Removes the entries above `above`, which are garbage after an epoch's recorded end, on
    /// behalf of an owner. Durable.
    ///
    /// # Errors
    /// As for [`Nsd::log_trim`].
    pub async fn log_discard(
        &self,
        shard: ShardId,
        epoch: ShardEpoch,
        above: EntryNumber,
    ) -> Result<()> {
        self.finish(self.core.clone().discard(shard, epoch, above))
            .await
    }

    /// Refuses log puts, trims and discards of epochs below `epoch` from now on. Durable when it returns.
    ///
    /// # Errors
    /// `OldEpoch` if the log is sealed for a higher epoch, `NoSpace` if logs of as many other shards are known as may be,
    /// `Unavailable`.
    pub async fn seal(&self, shard: ShardId, epoch: ShardEpoch) -> Result<()> {
        self.finish(self.core.clone().seal_log(shard, epoch)).await
    }

    /// After a rebuild: provides the current epochs of all shards, so that log puts are accepted
    /// again.
    ///
    /// # Errors
    /// `NoSpace` as [`Nsd::seal`], `Unavailable`.
    pub async fn confirm_epochs(&self, epochs: &[(ShardId, ShardEpoch)]) -> Result<()> {
        for (shard, epoch) in epochs {
            self.seal(*shard, *epoch).await?;
        }
        self.finish(self.core.clone().confirm()).await
    }

    /// Reads and checks everything, and mends damage from redundant copies in the region. Only one
    /// scrub can run at a time.
    ///
    /// # Errors
    /// `Busy` if a scrub is already running; `Unavailable` if the disk has failed.
    pub async fn scrub(&self) -> Result<ScrubReport> {
        self.scrub_counting(&Arc::default()).await
    }

    /// As [`Nsd::scrub`]; adds the bytes to `read` as they are read.
    ///
    /// # Errors
    /// As [`Nsd::scrub`].
    pub async fn scrub_counting(&self, read: &Arc<AtomicU64>) -> Result<ScrubReport> {
        self.finish(self.core.clone().scrub(read.clone())).await
    }

    /// Brings the index up to date, so that the next open replays nothing. Later calls get
    /// `ShuttingDown`.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn close(&self) -> Result<()> {
        self.core.check_serving()?;
        self.core.set_closed();
        let core = self.core.clone();
        self.finish(async move { core.close().await }).await
    }

    /// Checks that the region still exists and hasn't been truncated. A truncated region fails the
    /// NSD at once: its content is lost, and it must get no more data. Cheap.
    ///
    /// # Errors
    /// `Unavailable` if it was truncated; `NotFound` if it was removed, in which case the NSD keeps
    /// serving until it is closed.
    pub fn check_region(&self) -> Result<()> {
        self.core.check_serving()?;
        let Err(error) = self.core.disk.check() else {
            return Ok(());
        };
        if error.kind() == std::io::ErrorKind::NotFound {
            return Err(Error::new(ErrorKind::NotFound, error.to_string()));
        }
        Err(self.core.fail("checking its region", &error))
    }

    /// Gives up a failed NSD and releases its region, so that the region can be opened again while
    /// other tasks still hold this one. Serves and writes nothing afterwards.
    pub async fn abandon(&self) {
        self.core
            .fail("being abandoned", &"its region is to be opened again");
        self.core.disk.release().await;
    }

    /// Releases the region of one that was closed, so that it can be opened again while others still have this one.
    pub async fn release(&self) {
        self.core.disk.release().await;
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

    /// As [`Nsd::finish`], of what was admitted; it has its room among what is under way until it has ended.
    fn finish_in<T: Send + 'static>(
        &self,
        room: OwnedSemaphorePermit,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Finish<Result<T>> {
        self.finish(async move {
            let done = work.await;
            drop(room);
            done
        })
    }

    fn finish<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Finish<Result<T>> {
        Finish::new(&self.core.world, work)
    }
}
