//! How SlateDB is set up for one shard among many: little memory, short polls (the catalog
//! answers them from memory), garbage gone within a minute.

use slatedb::config::{
    CompactionWorkerOptions, CompactorOptions, GarbageCollectorDirectoryOptions,
    GarbageCollectorOptions, ObjectStoreCacheOptions, Settings,
};
use slatedb::{BloomFilterPolicy, FilterPolicy, PrefixExtractor, PrefixTarget};
use std::sync::Arc;
use std::time::Duration;

const MIB: usize = 1024 * 1024;
/// A table's size when memory is written.
const MEMTABLE_BYTES: usize = 16 * MIB;
/// More than this in memory: commits wait.
const UNFLUSHED_BYTES_MAX: usize = 64 * MIB;
const TABLE_BYTES_MAX: usize = 64 * MIB;
const BLOOM_BITS: u32 = 10;
/// Family, table and inode (or the like) of a key.
const PREFIX_BYTES: usize = 13;
/// Smaller tables have no filter: probing costs more than looking.
const FILTER_KEYS_MIN: u32 = 64;
/// Unneeded objects are kept so long for reads that are under way, then looked for so often.
const GARBAGE_AGE: Duration = Duration::from_secs(60);
const GARBAGE_INTERVAL: Duration = Duration::from_secs(30);

pub(super) fn settings() -> Settings {
    Settings {
        flush_interval: None,
        manifest_poll_interval: Duration::from_millis(500),
        manifest_update_timeout: Duration::from_secs(30),
        min_filter_keys: FILTER_KEYS_MIN,
        l0_sst_size_bytes: MEMTABLE_BYTES,
        l0_max_ssts: 16,
        l0_max_ssts_per_key: 16,
        l0_flush_parallelism: 2,
        max_unflushed_bytes: UNFLUSHED_BYTES_MAX,
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
        poll_interval: Duration::from_millis(500),
        manifest_update_timeout: Duration::from_secs(30),
        max_concurrent_compactions: 2,
        worker: Some(CompactionWorkerOptions {
            max_concurrent_compactions: 2,
            compactions_poll_interval: Duration::from_millis(500),
            heartbeat_interval: Duration::from_secs(10),
            max_sst_size: TABLE_BYTES_MAX,
            max_fetch_tasks: 2,
            max_subcompactions: 1,
            min_filter_keys: FILTER_KEYS_MIN,
            ..CompactionWorkerOptions::default()
        }),
        commit_compacted_interval: Duration::from_millis(250),
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
        // The log is trimmed by its owner; clones are made and detached by the parent's owner.
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
        BloomFilterPolicy::new(BLOOM_BITS).with_prefix_extractor(Arc::new(InodePrefix)),
    )]
}

/// The first bytes of a key: an inode's records are neighbours in several tables of records.
struct InodePrefix;

impl PrefixExtractor for InodePrefix {
    fn name(&self) -> &str {
        "first13"
    }

    fn prefix_len(&self, target: &PrefixTarget) -> Option<usize> {
        let (PrefixTarget::Point(bytes) | PrefixTarget::Prefix(bytes)) = target;
        (bytes.len() >= PREFIX_BYTES).then_some(PREFIX_BYTES)
    }
}
