//! The small state beside the entries: counters, digests, seals, fences. Stored with each
//! checkpoint.

use crate::checksum::key_hash;
use crate::entry::IndexEntry;
use crate::key::{Key, Named};
use model::nsd::GroupDigest;
use model::{EntryNumber, GroupId, GroupVersion, ShardEpoch, ShardId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const VERSION: u8 = 1;

/// An NSD's state besides its entries.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ledger {
    /// Everything in the journal below this position is in the index.
    pub(crate) applied: u64,
    pub(crate) blobs: u64,
    pub(crate) log_entries: u64,
    pub(crate) log_bytes: u64,
    /// Approximate bytes that the entries take in the index.
    pub(crate) index_bytes: u64,
    pub(crate) digests: BTreeMap<GroupId, GroupDigest>,
    pub(crate) seals: BTreeMap<ShardId, ShardEpoch>,
    /// All entries below these numbers were trimmed.
    pub(crate) floors: BTreeMap<ShardId, EntryNumber>,
    pub(crate) versions: BTreeMap<GroupId, GroupVersion>,
}

impl Ledger {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(postcard::to_stdvec(self).expect("counters and maps always encode"));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (version, body) = bytes.split_first()?;
        (*version == VERSION)
            .then(|| postcard::from_bytes(body).ok())
            .flatten()
    }

    /// Counts a new entry.
    pub(crate) fn count(&mut self, key: &Key, entry: &IndexEntry) {
        self.index_bytes += entry.index_bytes();
        match key.named() {
            Named::Blob(name) => {
                self.blobs += 1;
                let digest = self.digests.entry(name.group).or_default();
                digest.blobs += 1;
                digest.hash = digest.hash.wrapping_add(key_hash(key));
            }
            Named::Log(shard, _) => {
                self.log_entries += 1;
                self.log_bytes += u64::from(entry.length);
                self.raise_seal(shard, ShardEpoch(entry.writer));
            }
        }
    }

    /// Subtracts a removed entry.
    pub(crate) fn uncount(&mut self, key: &Key, entry: &IndexEntry) {
        self.index_bytes -= entry.index_bytes();
        match key.named() {
            Named::Blob(name) => {
                self.blobs -= 1;
                let digest = self.digests.entry(name.group).or_default();
                digest.blobs -= 1;
                digest.hash = digest.hash.wrapping_sub(key_hash(key));
                if digest.blobs == 0 {
                    self.digests.remove(&name.group);
                }
            }
            Named::Log(..) => {
                self.log_entries -= 1;
                self.log_bytes -= u64::from(entry.length);
            }
        }
    }

    pub(crate) fn raise_seal(&mut self, shard: ShardId, epoch: ShardEpoch) {
        let sealed = self.seals.entry(shard).or_default();
        *sealed = (*sealed).max(epoch);
    }

    pub(crate) fn raise_floor(&mut self, shard: ShardId, below: EntryNumber) {
        let floor = self.floors.entry(shard).or_default();
        *floor = (*floor).max(below);
    }

    /// The known version of a group.
    pub(crate) fn version(&self, group: GroupId) -> GroupVersion {
        let known = self.versions.get(&group).copied();
        known.unwrap_or(GroupVersion::FIRST)
    }

    pub(crate) fn raise_version(&mut self, group: GroupId, version: GroupVersion) {
        let known = self.versions.entry(group).or_default();
        *known = (*known).max(version);
    }
}
