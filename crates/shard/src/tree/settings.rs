//! SlateDB's settings for one shard among many: bounded memory, short polls (answered by the
//! in-memory catalog), garbage deleted within a minute.

use namespace::Table;
use slatedb::config::{
    CompactionWorkerOptions, CompactorOptions, GarbageCollectorDirectoryOptions,
    GarbageCollectorOptions, ObjectStoreCacheOptions, ScanOptions, Settings,
    SizeTieredCompactionSchedulerOptions,
};
use slatedb::{BloomFilterPolicy, FilterPolicy, PrefixExtractor, PrefixTarget};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

const MIB: usize = 1024 * 1024;
/// A flushed table has at most this fraction of the pool, so that unmerged tables leave room in a
/// small pool.
const MEMTABLE_PART: u64 = 64;
const MEMTABLE_BYTES_MIN: u64 = 4 * MIB as u64;
const MEMTABLE_BYTES_MAX: u64 = 32 * MIB as u64;
/// Tables that fit into the memory for rows: one that is filled, and those that are being flushed.
const MEMTABLES: usize = 3;
const TABLE_BYTES_MAX: usize = 64 * MIB;
/// Number of tables or runs of similar size merged into one: each row is rewritten once for every
/// factor of eight by which the shard exceeds a table. SlateDB's default of four merges half as
/// often again. Filters keep reads from the additional tables cheap.
const MERGE_MIN: usize = 8;
/// Most tables merged at once, so that a merge soon makes room for new tables.
const MERGE_MAX: usize = 8;
/// With more runs than this, they are merged even if fewer than eight have similar sizes.
const RUNS_MAX: usize = 24;
/// Read-ahead of a merge for each of its sources.
const MERGE_READ_BYTES: usize = MIB;
/// With more unmerged tables than this, flushes wait.
const TABLES_MAX: usize = 24;
const BLOOM_BITS: u32 = 10;
/// Offset of the table tag in a key: after the family.
const TAG_AT: usize = 4;
/// Family, table, and inode or similar.
const PREFIX_BYTES: usize = 13;
/// Family, table, fileset, data id.
const EXTENT_PREFIX_BYTES: usize = 16;
/// A scan of at most this many rows is a lookup, not a listing.
const FEW_ROWS: usize = 64;
/// Smaller tables have no filter: probing it would cost more than reading.
const FILTER_KEYS_MIN: u32 = 64;
/// How often compaction looks for work: in memory, for microseconds.
const COMPACTION_POLL: Duration = Duration::from_millis(200);
/// Unneeded objects are kept this long for running reads, then collected at this interval.
const GARBAGE_AGE: Duration = Duration::from_secs(60);
const GARBAGE_INTERVAL: Duration = Duration::from_secs(30);

/// For a pool of this many bytes. With more than `unflushed` bytes in memory, commits wait.
pub(super) fn settings(pool_bytes: u64, unflushed: usize) -> Settings {
    let memtable = (pool_bytes / MEMTABLE_PART).clamp(MEMTABLE_BYTES_MIN, MEMTABLE_BYTES_MAX);
    let memtable = usize::try_from(memtable).expect("at most 32 MiB");
    Settings {
        flush_interval: None,
        manifest_poll_interval: Duration::from_millis(500),
        manifest_update_timeout: Duration::from_secs(30),
        min_filter_keys: FILTER_KEYS_MIN,
        l0_sst_size_bytes: memtable.min(unflushed / MEMTABLES),
        l0_max_ssts: TABLES_MAX,
        l0_max_ssts_per_key: TABLES_MAX,
        l0_flush_parallelism: 2,
        max_unflushed_bytes: unflushed,
        compactor_options: Some(compactor()),
        compression_codec: None,
        object_store_cache_options: ObjectStoreCacheOptions {
            root_folder: None,
            ..ObjectStoreCacheOptions::default()
        },
        garbage_collector_options: Some(garbage()),
        default_ttl_millis: None,
        ..Settings::default()
    }
}

fn compactor() -> CompactorOptions {
    CompactorOptions {
        poll_interval: COMPACTION_POLL,
        manifest_update_timeout: Duration::from_secs(30),
        max_concurrent_compactions: 2,
        scheduler_options: SizeTieredCompactionSchedulerOptions {
            min_compaction_sources: MERGE_MIN,
            max_compaction_sources: MERGE_MAX,
            sorted_run_consolidation_threshold: RUNS_MAX,
            ..SizeTieredCompactionSchedulerOptions::default()
        }
        .into(),
        worker: Some(CompactionWorkerOptions {
            max_concurrent_compactions: 2,
            compactions_poll_interval: COMPACTION_POLL,
            heartbeat_interval: Duration::from_secs(10),
            max_sst_size: TABLE_BYTES_MAX,
            bytes_to_fetch: MERGE_READ_BYTES,
            max_fetch_tasks: 2,
            max_subcompactions: 1,
            min_filter_keys: FILTER_KEYS_MIN,
            ..CompactionWorkerOptions::default()
        }),
        commit_compacted_interval: Duration::from_millis(250),
        // How long compaction inputs are kept; the default of 15 minutes breaks P8
        // (`docs/promises.md`).
        checkpoint_lifetime: GARBAGE_AGE,
        ..CompactorOptions::default()
    }
}

fn garbage() -> GarbageCollectorOptions {
    let sweep = GarbageCollectorDirectoryOptions {
        interval: Some(GARBAGE_INTERVAL),
        min_age: GARBAGE_AGE,
        dry_run: false,
    };
    GarbageCollectorOptions {
        manifest_options: Some(sweep),
        // The owner trims the log; the parent's owner makes and detaches clones.
        wal_options: None,
        wal_fence_options: None,
        detach_options: None,
        compacted_options: Some(sweep),
        compactions_options: Some(sweep),
        ..GarbageCollectorOptions::default()
    }
}

pub(super) fn filters() -> Vec<Arc<dyn FilterPolicy>> {
    vec![Arc::new(
        BloomFilterPolicy::new(BLOOM_BITS).with_prefix_extractor(Arc::new(ObjectPrefix)),
    )]
}

/// Read-ahead depends on the number of rows wanted: 128 KiB for listings, a few blocks for lookups.
pub(super) fn scan(limit: usize) -> ScanOptions {
    let is_long = limit > FEW_ROWS;
    ScanOptions {
        read_ahead_bytes: if is_long { 128 * 1024 } else { 8 * 1024 },
        max_fetch_tasks: if is_long { 2 } else { 1 },
        cache_blocks: true,
        ..ScanOptions::default()
    }
}

/// Family, table and object: an inode, or a file's data id. All records of one object in one table
/// share this many leading bytes.
fn prefix_bytes(key: &[u8]) -> Option<usize> {
    let length = if *key.get(TAG_AT)? == Table::Extents.tag() {
        EXTENT_PREFIX_BYTES
    } else {
        PREFIX_BYTES
    };
    (key.len() >= length).then_some(length)
}

/// Bounds of keys after a common prefix.
type KeyRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// If all keys of `from..to` belong to one object: their common prefix, and the range after it.
pub(super) fn within_object<'a>(from: &'a [u8], to: &[u8]) -> Option<(&'a [u8], KeyRange)> {
    let prefix = &from[..prefix_bytes(from)?];
    let start = Bound::Included(from[prefix.len()..].to_vec());
    let end = match to.strip_prefix(prefix) {
        Some(rest) => Bound::Excluded(rest.to_vec()),
        None if begins_next(prefix, to) => Bound::Unbounded,
        None => return None,
    };
    Some((prefix, (start, end)))
}

/// Whether `to` is the first key of the next object (zeros may follow its prefix).
fn begins_next(prefix: &[u8], to: &[u8]) -> bool {
    let mut next = prefix.to_vec();
    for byte in next.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            break;
        }
    }
    next[..] > *prefix
        && to
            .strip_prefix(&next[..])
            .is_some_and(|rest| rest.iter().all(|byte| *byte == 0))
}

struct ObjectPrefix;

impl PrefixExtractor for ObjectPrefix {
    fn name(&self) -> &str {
        "object1"
    }

    fn prefix_len(&self, target: &PrefixTarget) -> Option<usize> {
        let (PrefixTarget::Point(bytes) | PrefixTarget::Prefix(bytes)) = target;
        prefix_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{DataId, FilesetId, InodeId};
    use namespace::Key;

    #[test]
    fn a_directorys_names_and_a_files_extents_are_looked_for_by_their_prefix() {
        let name = |directory, position| {
            Key::Name {
                directory: InodeId(directory),
                position,
            }
            .to_bytes()
        };
        let extent = |data, end| {
            Key::Extent {
                fileset: FilesetId(0),
                data: DataId(data),
                end,
            }
            .to_bytes()
        };
        let (from, to) = (name(255, 3), name(256, 0));
        let (prefix, range) = within_object(&from, &to).unwrap();
        assert_eq!(prefix, &from[..13]);
        assert_eq!(
            range,
            (Bound::Included(from[13..].to_vec()), Bound::Unbounded)
        );
        assert!(within_object(&name(1, 0), &name(3, 0)).is_none());
        assert!(within_object(&name(1, 0), &name(2, 1)).is_none());
        let (from, to) = (extent(1, 5), extent(1, 9));
        let (prefix, range) = within_object(&from, &to).unwrap();
        assert_eq!(prefix.len(), 16);
        assert_eq!(range.1, Bound::Excluded(to[16..].to_vec()));
        assert!(within_object(&extent(1, 5), &extent(2, 9)).is_none());
        assert!(within_object(b"short", b"shorter").is_none());
    }
}
