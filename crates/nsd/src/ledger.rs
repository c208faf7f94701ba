//! The small state beside the entries: counters, digests, seals, fences. Stored with each
//! checkpoint.

use crate::checksum::key_hash;
use crate::entry::IndexEntry;
use crate::key::{Key, Named};
use model::map::{GENERATIONS_MAX, GROUPS_MAX};
use model::nsd::GroupDigest;
use model::{EntryNumber, GroupId, GroupVersion, ShardEpoch, ShardId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const VERSION: u8 = 1;

/// Most groups of which an NSD knows a version: twice as many as the largest map has, so that there is room for those of
/// generations that have left it.
const GROUPS_KNOWN_MAX: usize = 2 * GENERATIONS_MAX * GROUPS_MAX as usize;
/// Most shards whose logs an NSD knows: of each the seal, and below which number it was trimmed.
const LOGS_KNOWN_MAX: usize = 65_536;
/// What is known of a group, and of a log, takes so much in the index, counted as entries are.
const GROUP_BYTES: u64 = 16;
const LOG_BYTES: u64 = 40;
/// Of the index's room for entries, a part of this size may be taken by groups, and one by logs.
const KNOWN_PART: u64 = 8;

/// Of how many groups and logs an NSD may get to know something. Any member can name groups and shards that there aren't.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KnownMax {
    pub(crate) groups: usize,
    pub(crate) logs: usize,
}

impl KnownMax {
    /// In an index with room for so many bytes of entries.
    pub(crate) fn of(entry_bytes_max: u64) -> Self {
        let part = entry_bytes_max / KNOWN_PART;
        let fit = |bytes: u64| usize::try_from(part / bytes).unwrap_or(usize::MAX);
        Self {
            groups: fit(GROUP_BYTES).min(GROUPS_KNOWN_MAX),
            logs: fit(LOG_BYTES).min(LOGS_KNOWN_MAX),
        }
    }
}

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

    /// Approximate bytes that all of it takes in the index: the entries, and what is known of groups and logs.
    pub(crate) fn bytes_in_index(&self) -> u64 {
        let (groups, logs) = (self.versions.len() as u64, self.seals.len() as u64);
        self.index_bytes + groups * GROUP_BYTES + logs * LOG_BYTES
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Would be broken if a cluster of the largest size had to do without fences, or what is known had no maximum.
    #[test]
    fn there_is_room_for_what_the_largest_map_has_and_for_no_more_than_a_small_index_holds() {
        const MIB: u64 = 1 << 20;
        let large = KnownMax::of(200 * MIB);
        assert_eq!((large.groups, large.logs), (524_288, 65_536));
        assert!(large.groups > GENERATIONS_MAX * GROUPS_MAX as usize);
        let small = KnownMax::of(400 << 10);
        assert_eq!((small.groups, small.logs), (3_200, 1_280));
        assert_eq!(KnownMax::of(0), KnownMax { groups: 0, logs: 0 });
    }

    /// Would be broken if an index could be full and then get what is known of groups and logs besides.
    #[test]
    fn what_is_known_of_groups_and_logs_counts_in_the_index() {
        let mut ledger = Ledger {
            index_bytes: 1000,
            ..Ledger::default()
        };
        ledger.raise_version(GroupId(u32::MAX), GroupVersion(u32::MAX));
        ledger.raise_seal(ShardId(u32::MAX), ShardEpoch(u64::MAX));
        ledger.raise_floor(ShardId(u32::MAX), EntryNumber(u64::MAX));
        assert_eq!(ledger.bytes_in_index(), 1056);
        let more = ledger.encode().len() - Ledger::default().encode().len();
        assert!(more as u64 <= GROUP_BYTES + LOG_BYTES, "{more}");
    }
}
