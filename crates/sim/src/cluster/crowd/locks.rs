//! Who holds which file lock, as programs were told, and what was counted under them.

use crate::witness::ClientNumber;
use model::LockKind;
use std::collections::{BTreeMap, BTreeSet};

/// The name of the file with the counters: none that other operations use.
pub(super) const FILE: &str = "counters";
/// What programs have locked, as they were told.
#[derive(Default)]
pub(super) struct Locks {
    held: BTreeMap<u64, Held>,
    numbers: u64,
    /// Who has counted on from a number, by counter and number.
    counted: BTreeMap<(usize, u32), Vec<ClientNumber>>,
    /// What mustn't be, unless one of these clients has lost its session.
    broken: Vec<(Vec<ClientNumber>, String)>,
}

/// A lock that a client has: on cells from the first to the last.
#[derive(Clone, Copy)]
pub(super) struct Held {
    pub(super) client: ClientNumber,
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) kind: LockKind,
}

impl Locks {
    pub(super) fn next(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// A client is told that it has a lock.
    pub(super) fn begin(&mut self, number: u64, new: Held) {
        for held in self.held.values() {
            let overlaps = new.first <= held.last && held.first <= new.last;
            if overlaps && (new.kind, held.kind) != (LockKind::Shared, LockKind::Shared) {
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
    }

    /// It gives it back.
    pub(super) fn end(&mut self, number: u64) {
        self.held.remove(&number);
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
