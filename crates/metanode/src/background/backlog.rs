//! What waits to be removed: dead segments, data ids to reclaim, truncates to go on with.
//!
//! Remembered as it comes, because to find it in its tables costs a walk over everything that was
//! removed before. After an opening, and when more came than is remembered, the tables are read.

use crate::metanode::{Metanode, SCAN_PAGE};
use model::{CommitNumber, Result, SegmentId, ShardEpoch};
use namespace::{Dead, Key, Record, Table};
use shard::{Shard, successor};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use world::Instant;

/// Things of one kind that are remembered; the others stay in the tables until these are done.
const REMEMBERED_MAX: usize = 131_072;

/// Deaths that are deleted, but had no place because their writers may still publish, are looked for
/// again so late: only their records are left.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Removals that are remembered as impossible; more are tried whenever they are met.
const DAMAGED_MAX: usize = 1024;

/// What is removed so long after an opening counts as removed after it.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// The kinds, in the order in which one leads to the next.
const TABLES: [Table; 3] = [Table::Cuts, Table::Reclaims, Table::Deads];

/// What is known to be left to do.
#[derive(Default)]
pub(crate) struct Backlog {
    /// The opening that this is about.
    epoch: Option<ShardEpoch>,
    /// Truncates and data ids.
    pub(super) removals: BTreeSet<Key>,
    pub(super) deaths: BTreeMap<Key, Death>,
    /// Removals that damaged records make impossible: they must not hold up the others. The next
    /// opening tries them again.
    damaged: BTreeSet<Key>,
    /// Where the walk through each table goes on that has things that aren't remembered.
    unread: BTreeMap<Table, Key>,
    /// What was durable when the walk through the deaths began.
    walk_from: Option<CommitNumber>,
    /// All deaths up to this commit are deleted, but for those that are remembered otherwise.
    deleted_to: Option<CommitNumber>,
    /// When the table has to be looked through for deaths that are deleted and not remembered.
    look_again: Option<Instant>,
    /// Until then what an opening found may not all have been removed.
    recovers_until: Option<Instant>,
}

/// A dead segment.
#[derive(Clone)]
pub(super) struct Death {
    pub(super) dead: Arc<Dead>,
    /// When it was first seen here.
    pub(super) since: Instant,
    /// Its blobs are gone. Its record stays as long as its writer may try to publish a part of it,
    /// which the record refuses.
    pub(super) is_deleted: bool,
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

    /// Takes in one thing; what is beyond the maximum is found by a walk later.
    fn add(&mut self, key: Key, record: &Record, now: Instant) {
        match (&key, record) {
            (Key::Dead(_), Record::Dead(dead)) => {
                if self.deaths.len() >= REMEMBERED_MAX && !self.deaths.contains_key(&key) {
                    self.make_place(now);
                }
                if self.deaths.len() >= REMEMBERED_MAX {
                    self.reread(Table::Deads);
                    return;
                }
                self.deaths.entry(key).or_insert_with(|| Death {
                    dead: dead.clone(),
                    since: now,
                    is_deleted: false,
                });
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

    /// A removal turned out to be impossible.
    pub(super) fn set_aside(&mut self, key: &Key) {
        self.removals.remove(key);
        if self.damaged.len() < DAMAGED_MAX {
            self.damaged.insert(key.clone());
        }
    }

    /// What is deleted and waits only for its writer makes place for what isn't. To look for it
    /// again at once, and from the beginning of its table, would delete it round and round, and
    /// never come to what lies behind it.
    fn make_place(&mut self, now: Instant) {
        let before = self.deaths.len();
        self.deaths.retain(|_, death| !death.is_deleted);
        if self.deaths.len() < before {
            self.look_again(now);
        }
    }

    fn look_again(&mut self, now: Instant) {
        self.look_again.get_or_insert(now + LOOK_AGAIN_AFTER);
    }

    /// Begins to look for what is deleted and wasn't remembered, if it is time to.
    fn look_again_if_due(&mut self, now: Instant) {
        if self.look_again.is_some_and(|at| at <= now) && !self.unread.contains_key(&Table::Deads) {
            self.look_again = None;
            self.reread(Table::Deads);
        }
    }

    /// Takes in a page of a table, read from a key on when all up to a commit was durable. Writers
    /// can't publish what `is_settled` any more.
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
            // Set before the records are added, which may begin the walk anew.
            Some((last, _)) if !is_end => self.unread.insert(table, successor(last)),
            _ => self.unread.remove(&table),
        };
        for (key, record) in page {
            match self.deleted_before(&key, &record) {
                Some((segment, death)) if is_settled(segment) && self.has_place_for_death() => {
                    self.deaths.insert(
                        key,
                        Death {
                            dead: death,
                            since: now,
                            is_deleted: true,
                        },
                    );
                }
                Some(_) => self.look_again(now),
                None => self.add(key, &record, now),
            }
        }
        if table == Table::Deads && is_end && !self.unread.contains_key(&table) {
            self.deleted_to = self.deleted_to.max(self.walk_from.take());
        }
    }

    /// The segment of a death that an earlier walk has seen and that isn't remembered any more.
    fn deleted_before(&self, key: &Key, record: &Record) -> Option<(SegmentId, Arc<Dead>)> {
        let (Key::Dead(segment), Record::Dead(dead)) = (key, record) else {
            return None;
        };
        let is_known = self.deleted_to.is_some_and(|all| dead.died <= all);
        (is_known && !self.deaths.contains_key(key)).then(|| (*segment, dead.clone()))
    }

    fn has_place_for_death(&self) -> bool {
        self.deaths.len() < REMEMBERED_MAX
    }

    fn reread(&mut self, table: Table) {
        self.unread.insert(table, table.first());
    }

    /// The table that is to be read on, if what is remembered of it runs out.
    fn next_unread(&self) -> Option<(Table, Key)> {
        let has_place = |table: &Table| match table {
            Table::Deads => {
                let todo = self.deaths.values().filter(|death| !death.is_deleted);
                todo.take(SCAN_PAGE).count() < SCAN_PAGE
            }
            _ => self.removals.len() < SCAN_PAGE,
        };
        let (table, from) = self.unread.iter().find(|(table, _)| has_place(table))?;
        Some((*table, from.clone()))
    }

    /// Whether what is there was removed before the shard was opened: nobody reads it.
    pub(super) fn is_recovering(&self, now: Instant) -> bool {
        self.recovers_until.is_some_and(|until| now < until)
    }

    /// Whether nothing is left but what waits for its writer.
    pub(super) fn is_done(&self) -> bool {
        self.unread.is_empty()
            && self.removals.is_empty()
            && self.deaths.values().all(|death| death.is_deleted)
    }

    /// An opening's rest is removed.
    pub(super) fn end_recovery(&mut self) {
        self.recovers_until = None;
    }
}

impl Metanode {
    /// Brings the backlog up to date. Answers the shard that it is about.
    pub(super) async fn look_at_backlog(&self) -> Result<Arc<Shard>> {
        let shard = self.shard();
        let now = self.world.now();
        {
            let mut memory = self.background.memory.lock();
            let backlog = &mut memory.backlog;
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
                let memory = self.background.memory.lock();
                let backlog = &memory.backlog;
                (backlog.next_unread(), backlog.deleted_to.is_some())
            };
            let Some((table, from)) = unread else {
                return Ok(shard);
            };
            if table == Table::Deads && is_again && decided.is_none() {
                decided = Some(self.decided().await?);
            }
            let durable = shard.durable();
            let page = shard.scan(&from, &table.range().1, SCAN_PAGE).await?;
            let is_settled = |segment| {
                decided
                    .as_ref()
                    .is_some_and(|decided| decided.covers(segment))
            };
            let mut memory = self.background.memory.lock();
            let backlog = &mut memory.backlog;
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

    /// Walks through a table and deletes what is to be deleted, as rounds do. Answers how often.
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
            let todo = backlog
                .deaths
                .values_mut()
                .filter(|death| !death.is_deleted);
            let before = deleted;
            todo.for_each(|death| {
                death.is_deleted = true;
                deleted += 1;
            });
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
        // Their records go when their writers have decided, some at a time.
        for settled in [0, 3000, count as u64] {
            backlog.look_again_if_due(now);
            assert!(backlog.is_done(), "not yet");
            now = now + LOOK_AGAIN_AFTER;
            backlog.look_again_if_due(now);
            assert!(!backlog.is_done());
            assert_eq!(walk(&mut backlog, &table, now, settled), 0);
            let is_settled =
                |key: &Key| matches!(key, Key::Dead(segment) if segment.counter <= settled);
            let gone = backlog.deaths.extract_if(.., |key, _| is_settled(key));
            gone.for_each(|(key, _)| drop(table.remove(&key)));
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
        // Not before what is remembered is nearly done.
        assert_eq!(backlog.next_unread(), None);
        assert!(!backlog.is_done());
        backlog.removals.clear();
        assert_eq!(
            backlog.next_unread(),
            Some((Table::Cuts, Table::Cuts.first()))
        );
    }
}
