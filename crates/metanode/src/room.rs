//! Room for the metadata itself: what the log and the tree need to go on is kept away from users,
//! and operations that make records more are refused before it is gone.
//!
//! A log that can't be appended to takes its shard down, and deleting needs the log: a pool that is
//! full of names would be full for ever.

use crate::metanode::Metanode;
use model::{Error, ErrorKind, Operation, Result};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use world::Instant;

/// How old the measure may be. What is created meanwhile fits into the margin.
const MEASURE_TIME: Duration = Duration::from_millis(100);
/// While users have at least so much, nobody looks again before the next measure: in its time not
/// even writing at full speed uses it up, and who writes reserves.
const PLENTY: u64 = 256 << 20;
/// Bytes of log and tables beyond those that are measured, at most, and which part of the pool.
const MARGIN_MAX: u64 = 16 << 20;
const MARGIN_PART: u64 = 64;
/// After freeing that freed nothing, the next attempt waits this long.
const FREE_AGAIN: Duration = Duration::from_secs(1);

/// What was measured, and when.
pub(crate) struct Room {
    begun: Instant,
    /// Until when there is plenty, in nanoseconds after `begun`: all that most operations read.
    plenty_until: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    measured: Option<Instant>,
    freed_nothing: Option<Instant>,
}

impl Room {
    /// Nothing is measured yet.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            begun: now,
            plenty_until: AtomicU64::new(0),
            seen: Mutex::default(),
        }
    }

    fn nanoseconds(&self, now: Instant) -> u64 {
        u64::try_from((now - self.begun).as_nanos()).unwrap_or(u64::MAX)
    }

    fn has_plenty(&self, now: Instant) -> bool {
        self.nanoseconds(now) < self.plenty_until.load(Ordering::Relaxed)
    }
}

impl Metanode {
    /// Refuses an operation that makes the metadata more when the pool is full. What was removed
    /// is freed first.
    pub(crate) async fn check_room(&self, operation: &Operation) -> Result<()> {
        if !grows(operation) {
            return Ok(());
        }
        if self.measure_room() {
            return Ok(());
        }
        let space = self.pool.usage();
        // Without any NSD nothing is known of space; who needs one says so.
        if space.available_to_users > 0 || space.raw_capacity == 0 {
            return Ok(());
        }
        let now = self.world.now();
        let is_vain = |at: Instant| now - at < FREE_AGAIN;
        if !self.room.seen.lock().freed_nothing.is_some_and(is_vain) {
            // Boxed: rare and large, and every operation's future would carry it.
            let freed = Box::pin(self.make_room()).await?;
            self.room.seen.lock().freed_nothing = (!freed).then_some(now);
            if self.pool.usage().available_to_users > 0 {
                return Ok(());
            }
        }
        Err(Error::new(
            ErrorKind::NoSpace,
            "the pool is full: what is left is for log, compaction and deletes",
        ))
    }

    /// Tells the pool what the metadata needs to go on: a second copy of its tables, because a
    /// compaction may rewrite all of them, and a table for what is only in the log so far. True
    /// if users have plenty beside it.
    pub(crate) fn measure_room(&self) -> bool {
        let now = self.world.now();
        if self.room.has_plenty(now) {
            return true;
        }
        {
            let mut seen = self.room.seen.lock();
            if seen.measured.is_some_and(|at| now - at < MEASURE_TIME) {
                return self.room.has_plenty(now);
            }
            seen.measured = Some(now);
        }
        let shard = self.shard();
        let margin = (self.pool.usage().capacity / MARGIN_PART).min(MARGIN_MAX);
        let needed = shard.catalog().usage().bytes + shard.tree().log().bytes() + margin;
        self.pool.keep_for_metadata(needed);
        let plenty = self.pool.usage().available_to_users >= PLENTY;
        if plenty {
            let until = self.room.nanoseconds(now + MEASURE_TIME);
            self.room.plenty_until.store(until, Ordering::Relaxed);
        }
        plenty
    }
}

/// Whether an operation leaves more records than there were. Publishes don't count: their bytes
/// were promised when they were written.
fn grows(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Create { .. }
            | Operation::CreateUnnamed { .. }
            | Operation::Link { .. }
            | Operation::SetXattr { .. }
            | Operation::Share { .. }
    )
}
