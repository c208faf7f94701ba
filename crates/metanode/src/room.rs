//! Space for the metadata itself: keeps what the log and the tree need away from users, and refuses
//! operations that add records before it is used up.
//!
//! A log that can't be appended to takes its shard down, and deleting needs the log: a pool filled
//! with names would stay full forever.
//!
//! Files that clients make under a delegation were answered before the owner hears of them, so it can't refuse them: the
//! room for them is kept from when their numbers are reserved until these are used, or their session ends.

use crate::host::Host;
use model::limits::RESERVED_MAX;
use model::operation::RangeChange;
use model::{Error, ErrorKind, Operation, Reply, Result};
use parking_lot::Mutex;
use pool::MetadataSpace;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use world::{Instant, SPACE_WAIT, Waiter, Waiters};

/// Longest time between two measurements. Records created meanwhile fit into the margin.
const MEASURE_TIME: Duration = Duration::from_millis(100);
/// With at least this much left for users, the next check waits for the next measurement: in that
/// time not even writing at full speed uses it up, and writers reserve space.
const PLENTY: u64 = 256 << 20;
/// Margin for log and tables beyond their measured bytes: its maximum, and its share of the pool.
const MARGIN_MAX: u64 = 16 << 20;
const MARGIN_PART: u64 = 64;
/// What a file that is made with a reserved number takes at most: its inode and a name of 255 bytes need less than 512 bytes
/// in the log, and as much in a table before the log can be trimmed.
const MADE_BYTES: u64 = 2 * 512;
/// With less than this left, the pool counts as short: space is freed before writers need it.
const SHORT: u64 = PLENTY;
/// Upper limit of the same as a fraction of a small pool, lower limit as a fraction of a large one.
const SHORT_PART: u64 = 4;
const SHORT_PART_OF_LARGE: u64 = 16;
/// An operation is refused if other writers take all freed space for this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures the space for metadata, and waits for it.
pub(crate) struct Room {
    host: Arc<Host>,
    /// What the pool keeps for this shard.
    kept: MetadataSpace,
    waiters: Waiters,
    /// The last measurement's reference.
    begun: Instant,
    /// Until when there is plenty, in nanoseconds after `begun`: most operations read only this.
    plenty_until: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    measured: Option<Instant>,
}

impl Room {
    /// Nothing measured yet.
    pub(crate) fn new(host: Arc<Host>) -> Self {
        Self {
            begun: host.world().now(),
            kept: host.pool().metadata_space(),
            waiters: Waiters::new(host.world()),
            host,
            plenty_until: AtomicU64::new(0),
            seen: Mutex::default(),
        }
    }

    /// The shard leaves: the pool keeps nothing more for it.
    pub(crate) fn leave(&self) {
        self.kept.give_back();
    }

    fn nanoseconds(&self, now: Instant) -> u64 {
        u64::try_from((now - self.begun).as_nanos()).unwrap_or(u64::MAX)
    }

    fn has_plenty(&self, now: Instant) -> bool {
        self.nanoseconds(now) < self.plenty_until.load(Ordering::Relaxed)
    }

    /// Waits for space, longest first, and how many more there are.
    pub(crate) fn waits(&self) -> (Vec<Waiter>, usize) {
        self.waiters.list(self.host.world().now())
    }

    /// Whether nothing need be looked at for an operation: it adds no metadata, or there is plenty.
    pub(crate) fn has_plenty_for(&self, operation: &Operation) -> bool {
        if !grows(operation) {
            return true;
        }
        match needed(operation) {
            1 => self.measure(),
            // What others have reserved since the last measurement isn't there any more: together they can use up plenty at
            // once.
            _ => self.measure_at(self.host.world().now()),
        }
    }

    /// Refuses an operation that adds metadata if the pool is full. First frees removed data with
    /// steps of `free`, each of which says whether it freed something.
    pub(crate) async fn check<F>(&self, operation: &Operation, free: impl Fn() -> F) -> Result<()>
    where
        F: Future<Output = Result<bool>>,
    {
        if self.has_plenty_for(operation) {
            return Ok(());
        }
        let needed = needed(operation);
        if self.host.pool().usage().available_to_users < needed {
            self.host.pool().refresh();
        }
        let space = self.host.pool().usage();
        // Without any NSD the space is unknown; operations that need one will report it.
        if space.available_to_users >= needed || space.raw_capacity == 0 {
            return Ok(());
        }
        if !self.grows_now(operation).await {
            return Ok(());
        }
        // Boxed because it is rare and large: otherwise every operation's future would contain it.
        if Box::pin(self.wait_for_space(needed, free)).await? {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NoSpace,
            "the pool is full: the rest is kept for log, compaction and deletes",
        ))
    }

    /// Whether an operation that may add records really does so: a punch only if one extent extends
    /// beyond both of its ends.
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
        match self.host.run(&around, &self.host.stamp()).await {
            Ok(Reply::Extents { extents, .. }) => extents.first().is_some_and(|extent| {
                extent.offset < *offset && extent.end() > offset.saturating_add(*length)
            }),
            // The operation itself will report the error.
            _ => false,
        }
    }

    /// Frees until there is the space that is needed, or nothing can be freed and the NSDs have said how much they hold.
    /// Returns whether there is.
    async fn wait_for_space<F>(&self, needed: u64, free: impl Fn() -> F) -> Result<bool>
    where
        F: Future<Output = Result<bool>>,
    {
        let begun = self.host.world().now();
        let _listed = self.waiters.enter(SPACE_WAIT, None, begun);
        let mut is_known = self.host.pool().usage().unknown == 0;
        while self.host.world().now() - begun < PATIENCE {
            let freed = self.host.world().timeout(PATIENCE, free()).await;
            let has_freed = freed.unwrap_or(Ok(false))?;
            if self.host.pool().usage().available_to_users >= needed {
                return Ok(true);
            }
            if has_freed {
                continue;
            }
            if std::mem::replace(&mut is_known, true) {
                break;
            }
            self.host.pool().until_known().await;
        }
        Ok(false)
    }

    /// Whether so little space is left that it should be freed before writers need it.
    pub(crate) fn is_short(&self) -> bool {
        let space = self.host.pool().usage();
        let little = SHORT.min(space.capacity / SHORT_PART);
        let little = little.max(space.capacity / SHORT_PART_OF_LARGE);
        space.raw_capacity > 0 && space.available_to_users < little
    }

    /// Tells the pool how much the metadata needs: a second copy of its tables (not of those that a
    /// compaction has replaced), because a compaction may rewrite all of them, a table for records that are only in the log so far, and
    /// log and table for what is made with reserved numbers. True if users have plenty besides.
    pub(crate) fn measure(&self) -> bool {
        let now = self.host.world().now();
        if self.has_plenty(now) {
            return true;
        }
        {
            let mut seen = self.seen.lock();
            if seen.measured.is_some_and(|at| now - at < MEASURE_TIME) {
                return self.has_plenty(now);
            }
            seen.measured = Some(now);
        }
        self.measure_at(now)
    }

    /// As [`Room::measure`], however little time has passed since the last one.
    fn measure_at(&self, now: Instant) -> bool {
        let shard = self.host.shard();
        let margin = (self.host.pool().usage().capacity / MARGIN_PART).min(MARGIN_MAX);
        let promised = shard.reserved_numbers().saturating_mul(MADE_BYTES);
        let needed = shard.tree().bytes() + shard.tree().log().bytes() + margin;
        self.kept.keep(needed.saturating_add(promised));
        let plenty = self.host.pool().usage().available_to_users >= PLENTY;
        if plenty {
            let until = self.nanoseconds(now + MEASURE_TIME);
            self.plenty_until.store(until, Ordering::Relaxed);
        }
        plenty
    }
}

/// Bytes that must be left for an operation that adds records. One by one they count for nothing, but room for what is
/// made with reserved numbers is kept all at once.
fn needed(operation: &Operation) -> u64 {
    match operation {
        // More than may be asked for is refused when it is applied.
        Operation::Reserve { inodes, .. } => {
            (u64::from((*inodes).min(RESERVED_MAX)) * MADE_BYTES).max(1)
        }
        _ => 1,
    }
}

/// Whether an operation adds records. Publishes don't count: their space was reserved when the data
/// was written. Who reserves numbers makes files with them, which are answered before the owner hears of them: a full
/// pool refuses the reservation.
fn grows(operation: &Operation) -> bool {
    match operation {
        Operation::Create { .. }
        | Operation::CreateHeld { .. }
        | Operation::CreateUnnamed { .. }
        | Operation::Link { .. }
        | Operation::SetXattr { .. }
        | Operation::Share { .. }
        | Operation::ChangeRange { .. } => true,
        // With none of both kinds some are given back.
        Operation::Reserve { inodes, data, .. } => (*inodes, *data) != (0, 0),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::InodeId;

    /// Would be broken if a full pool refused to take back what it keeps room for.
    #[test]
    fn numbers_that_are_given_back_need_no_room() {
        let reserve = |inodes, data| Operation::Reserve {
            inode: InodeId::ROOT,
            inodes,
            data,
        };
        assert!(!grows(&reserve(0, 0)));
        assert!(grows(&reserve(1, 0)) && grows(&reserve(0, 1)));
    }
}
