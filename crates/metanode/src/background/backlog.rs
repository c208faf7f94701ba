//! What waits to be removed: dead segments, data ids to reclaim, truncates to go on with.
//!
//! Remembered as it comes, because to find it in its tables costs a walk over everything that was
//! removed before. After an opening, and when more came than is remembered, the tables are read.

use crate::metanode::{Metanode, SCAN_PAGE};
use model::{Result, ShardEpoch};
use namespace::{Dead, Key, Record, Table};
use shard::{Shard, successor};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use world::Instant;

/// Things of one kind that are remembered; the others stay in the tables until these are done.
const REMEMBERED_MAX: usize = 131_072;

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
                    self.make_place();
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

    /// What is deleted and waits only for its writer makes place for what isn't.
    fn make_place(&mut self) {
        let before = self.deaths.len();
        self.deaths.retain(|_, death| !death.is_deleted);
        if self.deaths.len() < before {
            self.reread(Table::Deads);
        }
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
            let work = shard.take_work();
            for (key, record) in work.records {
                backlog.add(key, &record, now);
            }
            if work.is_cut {
                TABLES.iter().for_each(|table| backlog.reread(*table));
            }
        }
        loop {
            let Some((table, from)) = self.background.memory.lock().backlog.next_unread() else {
                return Ok(shard);
            };
            let page = shard.scan(&from, &table.range().1, SCAN_PAGE).await?;
            let mut memory = self.background.memory.lock();
            let backlog = &mut memory.backlog;
            match page.last() {
                // Set before the records are added, which may begin the walk anew.
                Some((last, _)) if page.len() == SCAN_PAGE => {
                    backlog.unread.insert(table, successor(last));
                }
                _ => {
                    backlog.unread.remove(&table);
                }
            }
            for (key, record) in page {
                backlog.add(key, &record, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::InodeId;

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
