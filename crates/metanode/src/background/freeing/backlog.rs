//! Queue of removals: dead segments, data ids to reclaim, truncates to continue.
//!
//! Remembered as it arrives, because finding it in its tables means scanning past everything
//! removed earlier. The tables are read after an opening, and when more arrived than is remembered.

use crate::background::freeing::Freeing;
use crate::host::SCAN_PAGE;
use model::{CommitNumber, Result, SegmentId, ShardEpoch};
use namespace::{Dead, Key, Record, Table};
use shard::{Shard, successor};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use world::Instant;

/// Most items remembered of each kind; the others stay in the tables until these are done.
const REMEMBERED_MAX: usize = 131_072;

/// How long after dropping deleted deaths, whose writers may still publish, their table is searched
/// for them again: only their records are left.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Most removals remembered as impossible; further ones are tried whenever they are found.
const DAMAGED_MAX: usize = 1024;

/// Removals later than this after an opening count as made after it.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// The kinds, in the order in which one leads to the next.
const TABLES: [Table; 3] = [Table::Cuts, Table::Reclaims, Table::Deads];

/// Known remaining work.
#[derive(Default)]
pub(super) struct Backlog {
    /// The opening to which this belongs.
    epoch: Option<ShardEpoch>,
    /// Truncates and data ids.
    pub(super) removals: BTreeSet<Key>,
    /// Dead segments whose blobs are still to be deleted.
    pub(super) deaths: BTreeMap<SegmentId, Death>,
    /// Dead segments whose blobs are deleted. Their records stay as long as the writer may try to
    /// publish part of the segment, which the record refuses.
    pub(super) deleted: BTreeSet<SegmentId>,
    /// Removals that damaged records make impossible: they must not block the others. The next
    /// opening tries them again.
    damaged: BTreeSet<Key>,
    /// For each table with items that aren't remembered: where to continue reading.
    unread: BTreeMap<Table, Key>,
    /// The newest durable commit when the walk through the deaths began.
    walk_from: Option<CommitNumber>,
    /// All deaths up to this commit are deleted, except for remembered ones.
    deleted_to: Option<CommitNumber>,
    /// When to search the table for deleted deaths that were dropped.
    look_again: Option<Instant>,
    /// Until then, removals found by the opening may not all be done.
    recovers_until: Option<Instant>,
}

/// A dead segment.
#[derive(Clone)]
pub(super) struct Death {
    pub(super) dead: Arc<Dead>,
    /// When it was first seen here.
    pub(super) since: Instant,
}

impl Backlog {
    fn begin(&mut self, epoch: ShardEpoch, now: Instant) {
        *self = Self {
            epoch: Some(epoch),
            unread: TABLES.iter().map(|table| (*table, table.first())).collect(),
            recovers_until: Some(now + RECOVERY_MAX),
            ..Self::default()
        };
    }

    /// Adds one item; items beyond the maximum are found by a later walk.
    fn add(&mut self, key: Key, record: &Record, now: Instant) {
        match (&key, record) {
            (Key::Dead(segment), Record::Dead(dead)) => {
                if self.is_remembered(*segment) {
                    return;
                }
                if !self.has_place_for_death() {
                    self.make_place(now);
                }
                if !self.has_place_for_death() {
                    self.reread(Table::Deads);
                    return;
                }
                let (dead, since) = (dead.clone(), now);
                self.deaths.insert(*segment, Death { dead, since });
            }
            (Key::Reclaim { .. }, _) if self.removals.len() >= REMEMBERED_MAX => {
                self.reread(Table::Reclaims);
            }
            (Key::Cut(_), _) if self.removals.len() >= REMEMBERED_MAX => self.reread(Table::Cuts),
            (Key::Reclaim { .. } | Key::Cut(_), _) if !self.damaged.contains(&key) => {
                self.removals.insert(key);
            }
            _ => {}
        }
    }

    /// Sets a removal aside that turned out to be impossible.
    pub(super) fn set_aside(&mut self, key: &Key) {
        self.removals.remove(key);
        if self.damaged.len() < DAMAGED_MAX {
            self.damaged.insert(key.clone());
        }
    }

    /// Drops deleted deaths, which only wait for their writers, in favour of undeleted ones.
    /// Searching the table for them again at once and from its beginning would delete the same ones
    /// in an endless loop and never reach those after them.
    fn make_place(&mut self, now: Instant) {
        if !self.deleted.is_empty() {
            self.deleted.clear();
            self.look_again(now);
        }
    }

    fn look_again(&mut self, now: Instant) {
        self.look_again.get_or_insert(now + LOOK_AGAIN_AFTER);
    }

    /// Starts to search for deleted deaths that were dropped, if it is time.
    fn look_again_if_due(&mut self, now: Instant) {
        if self.look_again.is_some_and(|at| at <= now) && !self.unread.contains_key(&Table::Deads) {
            self.look_again = None;
            self.reread(Table::Deads);
        }
    }

    /// Takes in a page of a table, read from a key on when everything up to a commit was durable.
    /// Writers can no longer publish segments for which `is_settled` holds.
    fn take_page(
        &mut self,
        (table, from): (Table, Key),
        page: Vec<(Key, Record)>,
        durable: CommitNumber,
        now: Instant,
        is_settled: impl Fn(SegmentId) -> bool,
    ) {
        if table == Table::Deads && from == table.first() {
            self.walk_from = Some(durable);
        }
        let is_end = page.len() < SCAN_PAGE;
        match page.last() {
            // Set before the records are added, which may restart the walk.
            Some((last, _)) if !is_end => self.unread.insert(table, successor(last)),
            _ => self.unread.remove(&table),
        };
        for (key, record) in page {
            match self.deleted_before(&key, &record) {
                Some(segment) if is_settled(segment) && self.has_place_for_death() => {
                    self.deleted.insert(segment);
                }
                Some(_) => self.look_again(now),
                None => self.add(key, &record, now),
            }
        }
        if table == Table::Deads && is_end && !self.unread.contains_key(&table) {
            self.deleted_to = self.deleted_to.max(self.walk_from.take());
        }
    }

    /// The segment of a death that an earlier walk has seen and that was dropped.
    fn deleted_before(&self, key: &Key, record: &Record) -> Option<SegmentId> {
        let (Key::Dead(segment), Record::Dead(dead)) = (key, record) else {
            return None;
        };
        let is_known = self.deleted_to.is_some_and(|all| dead.died <= all);
        (is_known && !self.is_remembered(*segment)).then_some(*segment)
    }

    fn is_remembered(&self, segment: SegmentId) -> bool {
        self.deaths.contains_key(&segment) || self.deleted.contains(&segment)
    }

    /// Notes that the blobs of a dead segment are deleted.
    pub(super) fn note_deleted(&mut self, segment: SegmentId) {
        if self.deaths.remove(&segment).is_some() {
            self.deleted.insert(segment);
        }
    }

    fn has_place_for_death(&self) -> bool {
        self.deaths.len() + self.deleted.len() < REMEMBERED_MAX
    }

    fn reread(&mut self, table: Table) {
        self.unread.insert(table, table.first());
    }

    /// The table to continue reading, if its remembered items are running out.
    fn next_unread(&self) -> Option<(Table, Key)> {
        let has_place = |table: &Table| match table {
            Table::Deads => self.deaths.len() < SCAN_PAGE,
            _ => self.removals.len() < SCAN_PAGE,
        };
        let (table, from) = self.unread.iter().find(|(table, _)| has_place(table))?;
        Some((*table, from.clone()))
    }

    /// Whether the remaining items were removed before the shard was opened, so that no reads use
    /// them.
    pub(super) fn is_recovering(&self, now: Instant) -> bool {
        self.recovers_until.is_some_and(|until| now < until)
    }

    /// Whether everything is done, except for deaths that wait for their writers.
    pub(super) fn is_done(&self) -> bool {
        self.unread.is_empty() && self.removals.is_empty() && self.deaths.is_empty()
    }

    /// The removals found by the opening are done.
    pub(super) fn end_recovery(&mut self) {
        self.recovers_until = None;
    }
}

impl Freeing {
    /// Updates the backlog. Returns the shard to which it belongs.
    pub(super) async fn look_at_backlog(&self) -> Result<Arc<Shard>> {
        let shard = self.host.shard();
        let now = self.host.world().now();
        {
            let mut backlog = self.backlog.lock();
            if backlog.epoch != Some(shard.epoch()) {
                backlog.begin(shard.epoch(), now);
            }
            backlog.look_again_if_due(now);
            let work = shard.take_work();
            for (key, record) in work.records {
                backlog.add(key, &record, now);
            }
            if work.is_cut {
                TABLES.iter().for_each(|table| backlog.reread(*table));
            }
        }
        let mut decided = None;
        loop {
            let (unread, is_again) = {
                let backlog = self.backlog.lock();
                (backlog.next_unread(), backlog.deleted_to.is_some())
            };
            let Some((table, from)) = unread else {
                return Ok(shard);
            };
            if table == Table::Deads && is_again && decided.is_none() {
                decided = Some(self.judging.decided().await?);
            }
            let durable = shard.durable();
            let page = shard.scan(&from, &table.range().1, SCAN_PAGE).await?;
            let is_settled = |segment| {
                decided
                    .as_ref()
                    .is_some_and(|decided| decided.covers(segment))
            };
            let mut backlog = self.backlog.lock();
            backlog.take_page((table, from), page, durable, now, is_settled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{GroupId, InodeId, Scheme, SegmentPlace, SessionId};

    fn dead(counter: u64) -> (Key, Record) {
        let segment = SegmentId {
            session: SessionId(1),
            counter,
        };
        let place = SegmentPlace {
            segment,
            group: GroupId(0),
            scheme: Scheme::Replicate(1),
            skipped_slots: 0,
            missing: 0,
            length: 1,
            crc: 0,
        };
        let died = CommitNumber(1);
        let dead = Arc::new(Dead { place, died });
        (Key::Dead(segment), Record::Dead(dead))
    }

    /// Walks through a table and deletes as rounds do. Returns the number of deletions.
    fn walk(
        backlog: &mut Backlog,
        table: &BTreeMap<Key, Record>,
        now: Instant,
        settled: u64,
    ) -> usize {
        let mut deleted = 0;
        let is_settled = |segment: SegmentId| segment.counter <= settled;
        for _ in 0..2 * table.len() / SCAN_PAGE {
            while let Some((of, from)) = backlog.next_unread() {
                let rows = table.range(from.clone()..).take(SCAN_PAGE);
                let page = rows.map(|(key, record)| (key.clone(), record.clone()));
                let page = if of == Table::Deads {
                    page.collect()
                } else {
                    Vec::new()
                };
                backlog.take_page((of, from), page, CommitNumber(1), now, is_settled);
            }
            let todo: Vec<SegmentId> = backlog.deaths.keys().copied().collect();
            let before = deleted;
            deleted += todo.len();
            todo.into_iter().for_each(|dead| backlog.note_deleted(dead));
            if deleted == before {
                return deleted;
            }
        }
        panic!("the same is deleted round and round");
    }

    #[test]
    fn deaths_that_wait_for_their_writers_are_deleted_once_however_many() {
        let simulation = world::sim::Simulation::new(1);
        let mut now = simulation
            .run(async |world: world::World| world.now())
            .finished();
        let count = REMEMBERED_MAX + SCAN_PAGE;
        let mut table: BTreeMap<Key, Record> = (0..count as u64).map(dead).collect();
        let mut backlog = Backlog::default();
        backlog.begin(ShardEpoch(1), now);
        assert_eq!(walk(&mut backlog, &table, now, 0), count);
        assert!(backlog.is_done());
        // Their records are removed as their writers settle, some at a time.
        for settled in [0, 3000, count as u64] {
            backlog.look_again_if_due(now);
            assert!(backlog.is_done(), "not yet");
            now = now + LOOK_AGAIN_AFTER;
            backlog.look_again_if_due(now);
            assert!(!backlog.is_done());
            assert_eq!(walk(&mut backlog, &table, now, settled), 0);
            let is_settled =
                |key: &Key| matches!(key, Key::Dead(segment) if segment.counter <= settled);
            let gone = backlog
                .deleted
                .extract_if(.., |dead| dead.counter <= settled);
            gone.for_each(|dead| drop(table.remove(&Key::Dead(dead))));
            assert!(!table.keys().any(is_settled), "{settled}");
        }
        assert!(table.is_empty());
    }

    #[test]
    fn what_is_not_remembered_is_read_again() {
        let simulation = world::sim::Simulation::new(1);
        let now = simulation
            .run(async |world: world::World| world.now())
            .finished();
        let mut backlog = Backlog::default();
        let cut = |number: usize| Key::Cut(InodeId(number as u64));
        for number in 0..REMEMBERED_MAX {
            backlog.add(cut(number), &Record::Mark, now);
        }
        assert_eq!(backlog.next_unread(), None);
        backlog.add(cut(REMEMBERED_MAX), &Record::Mark, now);
        assert_eq!(backlog.removals.len(), REMEMBERED_MAX);
        // Only when the remembered items are nearly done.
        assert_eq!(backlog.next_unread(), None);
        assert!(!backlog.is_done());
        backlog.removals.clear();
        assert_eq!(
            backlog.next_unread(),
            Some((Table::Cuts, Table::Cuts.first()))
        );
    }
}
