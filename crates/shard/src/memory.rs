//! The memory that all shards of a process have together.
//!
//! *Hot records* are one budget. Each shard has an equal part of it for certain and may use what the
//! others leave. If together they use more than there is, because a shard was opened or came to life
//! while another held everything, those above their part give up records: those that are busy with
//! their next operation, idle ones when they are told ([`Share::pressed`]). *Table blocks* are one
//! cache, whoever's they are. *Rows that aren't in tables yet* have a limit for each shard, set when it is
//! opened: the first has the most.
//!
//! The path of a create: the operation adds records, [`Share::count`] says so if they have grown by
//! 64 KiB, and `Records::make_room` forgets others down to [`Share::limit`].

use crate::tree::TreeCache;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;
use world::World;

const MIB: usize = 1 << 20;
/// Memory for decoded records: the least, which simulations have.
pub const HOT_RECORDS_BYTES_DEFAULT: usize = 384 * MIB;
/// The most, and the fraction of the machine's memory between them. A million extents, or names and
/// inodes of half a million files, take about 350 MB; an operation that misses a record of a large
/// fragmented file costs as much as fifty that don't.
const HOT_RECORDS_BYTES_MAX: u64 = 8 << 30;
const HOT_RECORDS_PART: u64 = 24;
/// Memory for blocks of the trees' tables.
const TABLE_BYTES: u64 = 64 * MIB as u64;
/// A shard says how much its records take when that has changed by this much.
const COUNTED_BYTES: usize = 64 * 1024;
/// Rows that aren't in tables yet: of the first shard. The second has half, the third a third, …
const UNFLUSHED_BYTES_FIRST: usize = 96 * MIB;
/// The least that a shard works well with.
const UNFLUSHED_BYTES_MIN: usize = 16 * MIB;

/// What a part of the memory is for, the bytes in use if they are counted, and the most.
pub type MemoryUse = (&'static str, Option<u64>, u64);

/// Memory for decoded records on a machine with this much.
fn hot_records_bytes(machine: u64) -> usize {
    let least = HOT_RECORDS_BYTES_DEFAULT as u64;
    let bytes = (machine / HOT_RECORDS_PART).clamp(least, HOT_RECORDS_BYTES_MAX);
    usize::try_from(bytes).unwrap_or(HOT_RECORDS_BYTES_DEFAULT)
}

/// The memory of all shards of a process. Clones are the same memory.
#[derive(Clone)]
pub struct ShardMemory {
    tables: TreeCache,
    table_bytes: u64,
    records: Arc<RecordMemory>,
    unflushed: Arc<Mutex<Unflushed>>,
}

impl ShardMemory {
    /// At most so many bytes of decoded records, and of tables' blocks and indexes.
    #[must_use]
    pub fn new(records: usize, tables: u64) -> Self {
        Self {
            tables: TreeCache::new(tables),
            table_bytes: tables,
            records: Arc::new(RecordMemory {
                budget: records,
                used: AtomicUsize::new(0),
                shards: AtomicUsize::new(0),
                pressed: Notify::new(),
            }),
            unflushed: Arc::default(),
        }
    }

    /// For a process that has the machine to itself; a small one in simulations.
    #[must_use]
    pub fn of_machine(world: &World) -> Self {
        let machine = if world.is_simulated() {
            0
        } else {
            world::host::memory_bytes()
        };
        Self::new(hot_records_bytes(machine), TABLE_BYTES)
    }

    /// What the memory is used for. Records are counted to 64 KiB for each shard; a cache of blocks
    /// is taken as full.
    #[must_use]
    pub fn uses(&self) -> Vec<MemoryUse> {
        let records = self.records.used.load(Ordering::Relaxed) as u64;
        let unflushed = self.unflushed.lock().limits.values().sum::<usize>() as u64;
        vec![
            ("hot records", Some(records), self.records.budget as u64),
            ("table blocks", Some(self.table_bytes), self.table_bytes),
            ("rows not in tables", None, unflushed),
        ]
    }

    /// The blocks of tables.
    pub(crate) fn tables(&self) -> &TreeCache {
        &self.tables
    }

    /// A part of the records for a shard that is being opened.
    pub(crate) fn share(&self) -> Share {
        self.records.shards.fetch_add(1, Ordering::Relaxed);
        Share {
            memory: self.records.clone(),
            counted: 0,
        }
    }

    /// The memory for rows of a tree that is being opened, until they are in tables.
    pub(crate) fn unflushed_limit(&self) -> UnflushedLimit {
        let mut all = self.unflushed.lock();
        let bytes = (UNFLUSHED_BYTES_FIRST / (all.limits.len() + 1)).max(UNFLUSHED_BYTES_MIN);
        let number = all.next;
        all.next += 1;
        all.limits.insert(number, bytes);
        UnflushedLimit {
            all: self.unflushed.clone(),
            number,
            bytes,
        }
    }
}

/// The records of all shards.
struct RecordMemory {
    budget: usize,
    /// As the shards have said.
    used: AtomicUsize,
    shards: AtomicUsize,
    /// The shards use more than there is.
    pressed: Notify,
}

/// One shard's part of the memory for records.
pub(crate) struct Share {
    memory: Arc<RecordMemory>,
    /// What it has said of itself.
    counted: usize,
}

impl Share {
    /// The most that the shard may use now: its equal part, or more if the others leave it.
    pub(crate) fn limit(&self) -> usize {
        let RecordMemory {
            budget,
            used,
            shards,
            ..
        } = &*self.memory;
        let shards = shards.load(Ordering::Relaxed);
        if shards == 1 {
            return *budget;
        }
        let others = used.load(Ordering::Relaxed).saturating_sub(self.counted);
        (*budget / shards).max(budget.saturating_sub(others))
    }

    /// The shard's records take so many bytes.
    pub(crate) fn count(&mut self, bytes: usize) {
        if bytes.abs_diff(self.counted) >= COUNTED_BYTES {
            self.say(bytes);
        }
    }

    fn say(&mut self, bytes: usize) {
        let grows = bytes > self.counted;
        let used = &self.memory.used;
        let sum = if grows {
            let more = bytes - self.counted;
            used.fetch_add(more, Ordering::Relaxed) + more
        } else {
            let less = self.counted - bytes;
            used.fetch_sub(less, Ordering::Relaxed) - less
        };
        self.counted = bytes;
        if grows && sum > self.memory.budget {
            self.memory.pressed.notify_waiters();
        }
    }

    /// Resolves when shards that use more than their part should give records up.
    pub(crate) fn pressed(&self) -> impl Future<Output = ()> + Send + use<> {
        let memory = self.memory.clone();
        async move { memory.pressed.notified().await }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.say(0);
        self.memory.shards.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The limits of the open trees.
#[derive(Default)]
struct Unflushed {
    limits: BTreeMap<u64, usize>,
    next: u64,
}

/// One tree's limit for rows that aren't in tables yet. Returned when it is dropped.
pub(crate) struct UnflushedLimit {
    all: Arc<Mutex<Unflushed>>,
    number: u64,
    bytes: usize,
}

impl UnflushedLimit {
    /// The limit in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for UnflushedLimit {
    fn drop(&mut self) {
        self.all.lock().limits.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_for_records_grows_with_the_machines() {
        let bytes = |gib: u64| hot_records_bytes(gib << 30) as u64;
        assert_eq!(bytes(0), 384 << 20);
        assert_eq!(bytes(8), 384 << 20);
        assert_eq!(bytes(24), 1 << 30);
        assert_eq!(bytes(1024), 8 << 30);
    }

    #[test]
    fn a_shard_may_use_what_the_others_leave_and_its_part_for_certain() {
        let memory = ShardMemory::new(64 * MIB, 1 << 20);
        let mut first = memory.share();
        assert_eq!(first.limit(), 64 * MIB);
        first.count(60 * MIB);
        let mut second = memory.share();
        assert_eq!(second.limit(), 32 * MIB);
        assert_eq!(first.limit(), 64 * MIB);
        second.count(16 * MIB);
        assert_eq!(first.limit(), 48 * MIB);
        first.count(48 * MIB);
        assert_eq!(memory.uses()[0].1, Some(64 * MIB as u64));
        drop(first);
        assert_eq!(second.limit(), 64 * MIB);
        assert_eq!(memory.uses()[0].1, Some(16 * MIB as u64));
        drop(second);
        assert_eq!(memory.uses()[0].1, Some(0));
    }

    #[test]
    fn many_shards_have_less_memory_for_rows_each_and_return_it() {
        let memory = ShardMemory::new(64 * MIB, 1 << 20);
        let limits: Vec<_> = (0..64).map(|_| memory.unflushed_limit()).collect();
        assert_eq!(limits[0].bytes(), 96 * MIB);
        assert_eq!(limits[1].bytes(), 48 * MIB);
        assert_eq!(limits[63].bytes(), 16 * MIB);
        let sum = memory.uses()[2].2;
        assert!(sum < 1200 * MIB as u64, "{sum}");
        drop(limits);
        assert_eq!(memory.uses()[2].2, 0);
    }
}
