//! Room for the metadata itself: what the log and the tree need to go on is kept away from users,
//! and operations that make records more are refused before it is gone.
//!
//! A log that can't be appended to takes its shard down, and deleting needs the log: a pool that is
//! full of names would be full for ever.

use crate::metanode::Metanode;
use crate::waiters::SPACE_WAIT;
use model::operation::RangeChange;
use model::{Error, ErrorKind, Operation, Reply, Result};
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
/// Users of a pool with less than this left wait for what is freed: it is freed ahead of them.
const SHORT: u64 = PLENTY;
/// The part of a small and of a large pool that is little.
const SHORT_PART: u64 = 4;
const SHORT_PART_OF_LARGE: u64 = 16;
/// An operation is refused if others have used up for so long what was freed.
const PATIENCE: Duration = Duration::from_secs(60);

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
        if self.pool.usage().available_to_users == 0 {
            self.pool.look_again();
        }
        let space = self.pool.usage();
        // Without any NSD nothing is known of space; who needs one says so.
        if space.available_to_users > 0 || space.raw_capacity == 0 {
            return Ok(());
        }
        if !self.grows_now(operation).await {
            return Ok(());
        }
        // Boxed: rare and large, and every operation's future would carry it.
        if Box::pin(self.wait_for_space()).await? {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NoSpace,
            "the pool is full: what is left is for log, compaction and deletes",
        ))
    }

    /// Whether an operation that may leave more records does so as things are: a punch only if one
    /// extent reaches beyond both of its ends.
    async fn grows_now(&self, operation: &Operation) -> bool {
        let Operation::ChangeRange {
            inode,
            offset,
            length,
            change: RangeChange::Punch,
            ..
        } = operation
        else {
            return true;
        };
        let around = Operation::ReadExtents {
            inode: *inode,
            offset: offset.saturating_sub(1),
            length: length.saturating_add(2),
            limit: 1,
        };
        match self.run(&around, &self.stamp()).await {
            Ok(Reply::Extents { extents, .. }) => extents.first().is_some_and(|extent| {
                extent.offset < *offset && extent.end() > offset.saturating_add(*length)
            }),
            // The operation itself says what is wrong.
            _ => false,
        }
    }

    /// Frees until there is space, or until nothing can be freed. Whether there is.
    async fn wait_for_space(&self) -> Result<bool> {
        let begun = self.world.now();
        let _listed = self.waiters.enter(SPACE_WAIT, None, begun);
        while self.world.now() - begun < PATIENCE {
            let freed = self.world.timeout(PATIENCE, self.make_room()).await;
            let has_freed = freed.unwrap_or(Ok(false))?;
            if self.pool.usage().available_to_users > 0 {
                return Ok(true);
            }
            if !has_freed {
                break;
            }
        }
        Ok(false)
    }

    /// Whether so little is left that it should be freed ahead of those who need it.
    pub(crate) fn is_short(&self) -> bool {
        let space = self.pool.usage();
        let little = SHORT.min(space.capacity / SHORT_PART);
        let little = little.max(space.capacity / SHORT_PART_OF_LARGE);
        space.raw_capacity > 0 && space.available_to_users < little
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
            | Operation::ChangeRange { .. }
    )
}
