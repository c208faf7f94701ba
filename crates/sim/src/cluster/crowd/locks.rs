//! Who holds which file lock, as programs were told, and what was counted under them.

use crate::witness::ClientNumber;
use model::LockKind;
use std::collections::{BTreeMap, BTreeSet};

/// The name of the file with the counters: none that other operations use.
pub(super) const FILE: &str = "counters";
/// So many other locks may be asked for until an owner has heard for certain that a program gave one up.
const LATE_MAX: u64 = 200;

/// What programs have locked, as they were told.
#[derive(Default)]
pub(super) struct Locks {
    held: BTreeMap<u64, Held>,
    /// All that were asked for, until they were given back or refused; those of clients that were lost stay.
    asked: BTreeMap<u64, Held>,
    /// Those of the same that have ended, with the number of the newest one that they may have stopped.
    ended: Vec<(Held, u64)>,
    numbers: u64,
    granted: usize,
    refused: usize,
    /// Who has counted on from a number, by counter and number.
    counted: BTreeMap<(usize, u32), Vec<ClientNumber>>,
    /// What mustn't be, unless one of these clients has lost its session.
    broken: Vec<(Vec<ClientNumber>, String)>,
}

/// A lock that a client has: on cells from the first to the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) client: ClientNumber,
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) kind: LockKind,
}

impl Held {
    fn conflicts(&self, other: &Self) -> bool {
        let overlaps = self.first <= other.last && other.first <= self.last;
        overlaps && (self.kind, other.kind) != (LockKind::Shared, LockKind::Shared)
    }
}

impl Locks {
    /// A program is about to ask for a lock.
    pub(super) fn ask(&mut self, wanted: Held) -> u64 {
        self.numbers += 1;
        self.asked.insert(self.numbers, wanted);
        self.numbers
    }

    /// Whether any other program may have had a lock that conflicts with this one since it was asked for.
    pub(super) fn has_conflict(&self, number: u64) -> bool {
        let wanted = &self.asked[&number];
        let others = self.asked.iter().filter(|(other, _)| **other != number);
        let ended = self.ended.iter().filter(|(_, at)| *at >= number);
        let mut all = others.map(|(_, it)| it).chain(ended.map(|(it, _)| it));
        all.any(|other| wanted.conflicts(other))
    }

    /// A lock was refused.
    pub(super) fn refuse(&mut self) {
        self.refused += 1;
    }

    /// How many locks were granted, and how many refused.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.granted, self.refused)
    }

    /// A client is told that it has a lock.
    pub(super) fn begin(&mut self, number: u64, new: Held) {
        for held in self.held.values() {
            if new.conflicts(held) {
                let text = format!(
                    "clients {} and {} have one lock: {:?} {}..={} and {:?} {}..={}",
                    held.client,
                    new.client,
                    held.kind,
                    held.first,
                    held.last,
                    new.kind,
                    new.first,
                    new.last
                );
                self.broken.push((vec![held.client, new.client], text));
            }
        }
        self.held.insert(number, new);
        self.granted += 1;
    }

    /// It is about to give it back.
    pub(super) fn end(&mut self, number: u64) {
        self.held.remove(&number);
    }

    /// It has given it back, and the owner has said so; or it gave up, and the owner may hear of that later.
    pub(super) fn ended(&mut self, number: u64, is_acknowledged: bool) {
        let late = if is_acknowledged { 0 } else { LATE_MAX };
        let ended = self.asked.remove(&number);
        self.ended.extend(ended.map(|it| (it, self.numbers + late)));
    }

    /// A client that is gone has none.
    pub(super) fn lose(&mut self, client: ClientNumber) {
        self.held.retain(|_, held| held.client != client);
    }

    /// A client has counted on from a number under an exclusive lock.
    pub(super) fn count(&mut self, counter: usize, from: u32, client: ClientNumber) {
        let counted = self.counted.entry((counter, from)).or_default();
        counted.push(client);
    }

    /// What mustn't be, unless this client has lost its session.
    pub(super) fn breaks(&mut self, client: ClientNumber, what: String) {
        self.broken.push((vec![client], what));
    }

    /// What was wrong with them, although no client that has to do with it was lost.
    pub(super) fn broken(&self, lost: &BTreeSet<ClientNumber>) -> Option<String> {
        let held_by_both = self.broken.iter();
        let mut told =
            held_by_both.filter(|(clients, _)| clients.iter().all(|it| !lost.contains(it)));
        if let Some((_, text)) = told.next() {
            return Some(text.clone());
        }
        self.counted.iter().find_map(|((counter, from), clients)| {
            let good = clients.iter().filter(|it| !lost.contains(it));
            (good.count() > 1).then(|| {
                format!("clients {clients:?} have counted on from {from} in counter {counter}, each under an exclusive lock")
            })
        })
    }
}
