//! Putting and deleting blobs and log entries.

use crate::checksum::{UNIT, table_checksum, unit_checksums};
use crate::commit::ROOM_WAIT_MAX;
use crate::core::Core;
use crate::entry::{INLINE_CHECKSUMS_MAX, IndexEntry, Place, RUNS_MAX, header_units};
use crate::extent::{placed, writes_of};
use crate::key::Key;
use crate::queue::Fences;
use crate::record::Record;
use crate::space::Purpose;
use crate::state::CoreState;
use bytes::Bytes;
use futures::future::try_join_all;
use model::limits::{DELETE_NAMES_MAX, LOG_ENTRY_BYTES_MAX, SEGMENT_BYTES_MAX};
use model::nsd::{BlobDelete, BlobHeader, BlobPut, GroupFence, LogPut};
use model::{
    EntryNumber, Error, ErrorKind, GroupId, GroupVersion, Payload, Result, ShardEpoch, ShardId,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use world::{Deadline, Planted};

/// Largest blob stored in the journal record.
const BLOB_IN_JOURNAL_MAX: u64 = 16 * 1024;
/// Largest log entry stored in the journal record. Such an entry moves to the data area later,
/// where only the number of its units is promised. With its header it must therefore fit into any
/// [`RUNS_MAX`] units, however fragmented, or the journal could never be emptied again.
const LOG_IN_JOURNAL_MAX: u64 = 28 * 1024;
const _: () = assert!(LOG_IN_JOURNAL_MAX as usize <= (RUNS_MAX - 1) * UNIT);
const _: () = assert!(BLOB_IN_JOURNAL_MAX as usize <= (RUNS_MAX - 1) * UNIT);
const _: () = assert!(LOG_IN_JOURNAL_MAX as usize <= INLINE_CHECKSUMS_MAX * UNIT);
/// Names in one delete record; it fits into a group of the smallest journal.
const DELETE_RECORD_NAMES_MAX: usize = 1000;

/// Units for which changes of so many bytes are admitted. None at all count as a unit each: what waits for them takes memory,
/// too.
pub(crate) fn units_under_way(changes: impl Iterator<Item = usize>) -> usize {
    changes.map(|bytes| bytes.div_ceil(UNIT).max(1)).sum()
}

/// An entry to be stored.
struct Piece {
    key: Key,
    writer: u64,
    header: Option<BlobHeader>,
    payload: Payload,
    purpose: Purpose,
    in_journal_max: u64,
}

impl Core {
    /// As [`crate::Nsd::put`], of a put that was admitted.
    pub(crate) async fn put_blob(self: Arc<Self>, put: BlobPut) -> Result<()> {
        self.check_serving()?;
        let length = put.payload.len();
        if length == 0 || length > SEGMENT_BYTES_MAX as usize {
            let text = format!(
                "blob {} has {length} bytes, not 1 to {SEGMENT_BYTES_MAX}",
                put.name
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        // Whoever repairs or sweeps the group computes with it.
        if !put.header.fits(put.name.piece) {
            let text = format!("blob {} can't be of a segment: {:?}", put.name, put.header);
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let fence = GroupFence {
            group: put.name.group,
            version: put.fence,
        };
        let key = Key::blob(put.name);
        let _claim = self.claim(key).await?;
        if let Some(old) = self.locate(&key).await? {
            if old.writer == put.nonce && old.length as usize == length {
                self.prove_stored(&key, &old, self.blob_in_journal_max())
                    .await?;
                return self.clone().learn(fence).await;
            }
            let text = format!("blob {} was put by another writer", put.name);
            return Err(Error::new(ErrorKind::Exists, text));
        }
        let piece = Piece {
            key,
            writer: put.nonce,
            header: Some(put.header),
            payload: put.payload,
            purpose: Purpose::Blob,
            in_journal_max: self.blob_in_journal_max(),
        };
        let takes_all = self.world.has_planted(Planted::IgnoreVersion);
        let check = |fences: &mut Fences| match fences.meet_version(fence) {
            Err(_) if takes_all => Ok(Vec::new()),
            met => met.map(Vec::from_iter),
        };
        self.store(piece, check).await
    }

    /// As [`crate::Nsd::log_put`], of a put that was admitted.
    pub(crate) async fn put_log(self: Arc<Self>, put: LogPut) -> Result<()> {
        self.check_serving()?;
        self.check_confirmed("log puts wait")?;
        if put.bytes.len() > LOG_ENTRY_BYTES_MAX {
            let text = format!(
                "log entry {} has {} bytes; the maximum is {LOG_ENTRY_BYTES_MAX}",
                put.number,
                put.bytes.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let key = Key::log(put.shard, put.number);
        let _claim = self.claim(key).await?;
        let floor = self.state.lock().floor(put.shard);
        if put.number < floor {
            let text = format!("{key} was trimmed: the log begins at {floor}");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if let Some(old) = self.locate(&key).await?
            && old.writer >= put.epoch.0
        {
            return self.repeated_log_put(&key, &old, &put).await;
        }
        let piece = Piece {
            key,
            writer: put.epoch.0,
            header: None,
            payload: put.bytes.into(),
            purpose: Purpose::Log,
            in_journal_max: self.log_in_journal_max(),
        };
        let ignores_seals = self.world.has_planted(Planted::IgnoreSeal);
        let check = |fences: &mut Fences| {
            // The entry itself seals the log for its epoch.
            let met = fences.meet_epoch(put.shard, put.epoch);
            met.map(|_| Vec::new())
                .or_else(|error| match ignores_seals {
                    true => Ok(Vec::new()),
                    false => Err(error),
                })
        };
        self.store(piece, check).await
    }

    /// The answer to a put of an entry that already exists with this or a higher epoch.
    async fn repeated_log_put(&self, key: &Key, old: &IndexEntry, put: &LogPut) -> Result<()> {
        if old.writer > put.epoch.0 {
            let text = format!("{key} was written by epoch {}", old.writer);
            return Err(Error::new(ErrorKind::OldEpoch, text));
        }
        self.queue
            .lock()
            .fences()
            .check_epoch(put.shard, put.epoch)?;
        let table = unit_checksums(key, &put.bytes.clone().into());
        if old.length as usize == put.bytes.len() && old.table_crc == table_checksum(key, &table) {
            return self.prove_stored(key, old, self.log_in_journal_max()).await;
        }
        let text = format!("{key} exists with different bytes from the same epoch");
        Err(Error::new(ErrorKind::Exists, text))
    }

    fn blob_in_journal_max(&self) -> u64 {
        BLOB_IN_JOURNAL_MAX.min(self.ring.bytes() / 16)
    }

    fn log_in_journal_max(&self) -> u64 {
        LOG_IN_JOURNAL_MAX.min(self.ring.bytes() / 16)
    }

    /// Refuses a repeated put of what can't be read: a rebuild of the index goes by headers, and a power cut may have left one
    /// without its data, for which nobody was answered. What was put in the journal can't be without its data; a take-over, which
    /// puts thousands of small log entries again, must not read them.
    async fn prove_stored(&self, key: &Key, old: &IndexEntry, in_journal_max: u64) -> Result<()> {
        if u64::from(old.length) <= in_journal_max {
            return Ok(());
        }
        match self.read_proven(key, None).await {
            // It was stored, and is deleted by now.
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    async fn store(
        self: &Arc<Self>,
        piece: Piece,
        check: impl FnOnce(&mut Fences) -> Result<Vec<Record>>,
    ) -> Result<()> {
        let table = unit_checksums(&piece.key, &piece.payload);
        let small = piece.payload.len() as u64 <= piece.in_journal_max;
        let entry = IndexEntry {
            length: u32::try_from(piece.payload.len()).expect("checked by the caller"),
            writer: piece.writer,
            birth: 0,
            header: piece.header,
            place: Place::Journal(0),
            table_crc: table_checksum(&piece.key, &table),
            checksums: (table.len() <= INLINE_CHECKSUMS_MAX).then(|| table.clone().into()),
        };
        if small {
            self.store_in_journal(piece, entry, check).await
        } else {
            self.store_in_extent(piece, entry, table, check).await
        }
    }

    async fn store_in_journal(
        self: &Arc<Self>,
        piece: Piece,
        mut entry: IndexEntry,
        check: impl FnOnce(&mut Fences) -> Result<Vec<Record>>,
    ) -> Result<()> {
        let (units, purpose) = (entry.extent_units(), piece.purpose);
        let promise = move |state: &mut CoreState| {
            let promised = state.space.promise(units, purpose);
            promised.then(|| state.next_birth())
        };
        entry.birth = self.take_room(piece.key, purpose, promise).await?;
        let record = Record::Put {
            key: piece.key,
            entry: Arc::new(entry),
            payload: piece.payload.bytes().clone(),
        };
        let stored = self.submit(record, check).await;
        if stored.is_err() {
            self.state.lock().space.cancel_promise(units);
        }
        stored
    }

    async fn store_in_extent(
        self: &Arc<Self>,
        piece: Piece,
        entry: IndexEntry,
        table: Vec<u32>,
        check: impl FnOnce(&mut Fences) -> Result<Vec<Record>>,
    ) -> Result<()> {
        let (units, head) = (entry.extent_units(), header_units(entry.units()));
        let purpose = piece.purpose;
        let allocate = move |state: &mut CoreState| {
            let runs = state.space.allocate(units, head, purpose)?;
            Some((runs, state.next_birth()))
        };
        let (runs, birth) = self.take_room(piece.key, purpose, allocate).await?;
        let entry = Arc::new(IndexEntry {
            birth,
            ..placed(&entry, runs.clone())
        });
        let writes = writes_of(
            self.stamp.region,
            &piece.key,
            &entry,
            &table,
            piece.payload.bytes(),
        );
        let writes = writes.into_iter().map(|write| {
            let offset = self.unit_offset(write.unit);
            self.disk.write(offset, write.bytes)
        });
        let written = try_join_all(writes).await;
        written.map_err(|error| self.fail("writing a blob", &error))?;
        // The group of the journal that takes the record is flushed together with these writes.
        let record = Record::Put {
            key: piece.key,
            entry,
            payload: Bytes::new(),
        };
        let stored = self.submit(record, check).await;
        let mut state = self.state.lock();
        match &stored {
            Ok(()) => state.remember_table(piece.key, birth, &table.into()),
            Err(_) => state.space.release(&runs),
        }
        stored
    }

    /// What `take` takes of the space for a put. What was freed while a checkpoint runs can be used when that has ended: it is
    /// waited for, rather than refuse a put for which there is room.
    async fn take_room<T>(
        &self,
        key: Key,
        purpose: Purpose,
        mut take: impl FnMut(&mut CoreState) -> Option<T>,
    ) -> Result<T> {
        let deadline = Deadline::after(&self.world, ROOM_WAIT_MAX);
        loop {
            let checkpointed = self.checkpointed.notified();
            {
                let mut state = self.state.lock();
                if self.index_refuses(&state, purpose) {
                    return Err(self.no_space(&key));
                }
                if let Some(taken) = take(&mut state) {
                    return Ok(taken);
                }
                if state.freed_units() == 0 {
                    return Err(self.no_space(&key));
                }
            }
            // One that fails with its disk frees nothing.
            self.check_serving()?;
            if deadline.bound(&self.world, checkpointed).await.is_err() {
                return Err(self.no_space(&key));
            }
        }
    }

    /// Whether the index has no room for another entry. Log puts may fill it a little further than
    /// blobs.
    fn index_refuses(&self, state: &CoreState, purpose: Purpose) -> bool {
        let most = self.index.entry_bytes_max();
        let most = match purpose {
            Purpose::Blob => most,
            Purpose::Log | Purpose::Promised => most + most / 8,
        };
        state.ledger.bytes_in_index() > most
    }

    fn no_space(&self, key: &Key) -> Error {
        let text = format!("NSD {} has no space for {key}", self.identity.nsd);
        Error::new(ErrorKind::NoSpace, text)
    }

    /// As [`crate::Nsd::delete`], of a delete that was admitted.
    pub(crate) async fn delete_blobs(self: Arc<Self>, delete: BlobDelete) -> Result<()> {
        let BlobDelete { names, fences } = delete;
        if names.len() > DELETE_NAMES_MAX {
            let text = format!(
                "a delete names {} blobs; the maximum is {DELETE_NAMES_MAX}",
                names.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        if fences.len() > DELETE_NAMES_MAX {
            let text = format!(
                "a delete has versions of {} groups; the maximum is {DELETE_NAMES_MAX}",
                fences.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let fenced: BTreeSet<GroupId> = fences.iter().map(|fence| fence.group).collect();
        if let Some(name) = names.iter().find(|name| !fenced.contains(&name.group)) {
            let text = format!("a delete of {name} has no version of its group");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        self.check_serving()?;
        for names in names.chunks(DELETE_RECORD_NAMES_MAX) {
            let keys: Vec<Key> = names.iter().map(|name| Key::blob(*name)).collect();
            // So that who writes the journal, for whom all others wait, mostly finds them in memory.
            self.bring(&keys).await?;
            self.submit(Record::Delete(keys), |known| known.meet_versions(&fences))
                .await?;
        }
        Ok(())
    }

    pub(crate) async fn learn(self: Arc<Self>, fence: GroupFence) -> Result<()> {
        let known = self.state.lock().ledger.version(fence.group);
        if known == fence.version {
            return self.check_serving();
        }
        let record = Record::Learn(fence.group, fence.version);
        let check = |fences: &mut Fences| {
            fences.meet_version(fence)?;
            Ok(Vec::new())
        };
        self.submit(record, check).await
    }

    pub(crate) async fn trim(
        self: Arc<Self>,
        shard: ShardId,
        epoch: ShardEpoch,
        below: EntryNumber,
    ) -> Result<()> {
        self.check_confirmed("log entries aren't trimmed")?;
        if self.state.lock().floor(shard) >= below {
            self.check_serving()?;
            return self.queue.lock().fences().check_epoch(shard, epoch);
        }
        let check = |fences: &mut Fences| fences.meet_epoch(shard, epoch).map(Vec::from_iter);
        self.submit(Record::Trim(shard, below), check).await
    }

    pub(crate) async fn discard(
        self: Arc<Self>,
        shard: ShardId,
        epoch: ShardEpoch,
        above: EntryNumber,
    ) -> Result<()> {
        self.check_confirmed("log entries aren't discarded")?;
        let is_unfenced = self.world.has_planted(Planted::DiscardUnfenced);
        let check = |fences: &mut Fences| match is_unfenced {
            true => Ok(Vec::new()),
            false => fences.meet_epoch(shard, epoch).map(Vec::from_iter),
        };
        self.submit(Record::Discard(shard, above), check).await
    }

    pub(crate) async fn seal_log(self: Arc<Self>, shard: ShardId, epoch: ShardEpoch) -> Result<()> {
        let record = Record::Seal(shard, epoch);
        if self.world.has_planted(Planted::ForgetSeal) {
            return self.queue.lock().fences().check_epoch(shard, epoch);
        }
        let check = |fences: &mut Fences| {
            fences.meet_epoch(shard, epoch)?;
            Ok(Vec::new())
        };
        self.submit(record, check).await
    }

    /// The logs of all shards are sealed for their epochs.
    pub(crate) async fn confirm(self: Arc<Self>) -> Result<()> {
        let mut superblock = self.superblock.lock().await;
        superblock.flags &= !crate::superblock::FLAG_UNCONFIRMED;
        let stored = superblock.store(&self.disk).await;
        stored.map_err(|error| self.fail("writing its superblock", &error))?;
        self.set_confirmed();
        Ok(())
    }
}

impl Fences {
    /// Refuses an epoch below the one for which the log is sealed.
    fn check_epoch(&self, shard: ShardId, epoch: ShardEpoch) -> Result<()> {
        match self.epochs.get(&shard) {
            Some(known) if *known > epoch => Err(Error::new(
                ErrorKind::OldEpoch,
                format!("shard {shard}'s log is sealed for epoch {known}, not {epoch}"),
            )),
            _ => Ok(()),
        }
    }

    /// Refuses an epoch below the one for which the log is sealed. A higher one seals the log; the
    /// record makes that durable.
    fn meet_epoch(&mut self, shard: ShardId, epoch: ShardEpoch) -> Result<Option<Record>> {
        self.check_epoch(shard, epoch)?;
        let most = self.most.logs;
        if self.epochs.len() >= most && !self.epochs.contains_key(&shard) {
            let text = format!(
                "shard {shard}'s log would be one too many: those of {most} shards are known"
            );
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        let is_news = self.epochs.insert(shard, epoch) != Some(epoch);
        Ok(is_news.then_some(Record::Seal(shard, epoch)))
    }

    /// Refuses an older version of a group than the known one, which it returns.
    fn check_version(&self, fence: GroupFence) -> Result<GroupVersion> {
        let GroupFence { group, version } = fence;
        let known = self.versions.get(&group).copied();
        let known = known.unwrap_or(GroupVersion::FIRST);
        if known > version {
            let text = format!("group {group} is at version {known}, not {version}");
            return Err(Error::new(ErrorKind::OldEpoch, text));
        }
        Ok(known)
    }

    /// Refuses an older version of a group than the known one. A newer one is learnt; the record
    /// makes that durable.
    fn meet_version(&mut self, fence: GroupFence) -> Result<Option<Record>> {
        let GroupFence { group, version } = fence;
        if self.check_version(fence)? == version {
            return Ok(None);
        }
        if !self.can_learn_of(group) {
            let most = self.most.groups;
            let text = format!(
                "version {version} of group {group} can't be learnt: those of {most} groups are known"
            );
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        self.versions.insert(group, version);
        Ok(Some(Record::Learn(group, version)))
    }

    /// Whether a version of the group can be remembered.
    fn can_learn_of(&self, group: GroupId) -> bool {
        self.versions.len() < self.most.groups || self.versions.contains_key(&group)
    }

    /// As [`Fences::meet_version`] for several groups: if one is refused, nothing is learnt. Of groups that can't be
    /// remembered nothing is, either: whoever deletes is never refused for lack of room.
    fn meet_versions(&mut self, fences: &[GroupFence]) -> Result<Vec<Record>> {
        for fence in fences {
            self.check_version(*fence)?;
        }
        let mut learnt = Vec::new();
        for fence in fences {
            if self.can_learn_of(fence.group) {
                learnt.extend(self.meet_version(*fence)?);
            }
        }
        Ok(learnt)
    }
}

#[cfg(test)]
mod tests;
