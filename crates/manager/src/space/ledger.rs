//! The half that gives slices. What it gave, what was used and what is left always add up to what it
//! has.

use super::{HOLDERS_MAX, RecallNumber, Say, Statement, slice_bytes};
use crate::planted::Planted;
use model::NodeRun;
use model::limits::RESERVED_PERCENT;
use std::collections::{BTreeMap, BTreeSet};

/// What a holder was given, and what it said last.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Account {
    granted: u64,
    said: Statement,
}

impl Account {
    fn held(&self) -> u64 {
        self.granted
            .checked_sub(self.said.consumed)
            .and_then(|rest| rest.checked_sub(self.said.returned))
            .expect("nobody uses more than it was given: its statement would have been refused")
    }
}

/// A want that waits for what others give back.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Waiting {
    want: u64,
    recall: RecallNumber,
    /// Holders that haven't obeyed the recall.
    missing: BTreeSet<NodeRun>,
}

/// The sums of a ledger.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Given {
    /// Bytes in use.
    pub used: u64,
    /// Bytes that holders may use.
    pub held: u64,
    /// Bytes that may still be given.
    pub free: u64,
    /// Bytes that are kept back.
    pub reserve: u64,
}

/// The slices of one pool, or of what an owner was given of one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ledger {
    capacity: u64,
    reserve: u64,
    used: u64,
    accounts: BTreeMap<NodeRun, Account>,
    waiting: BTreeMap<NodeRun, Waiting>,
    recalls: RecallNumber,
    planted: Option<Planted>,
}

impl Ledger {
    /// A pool with so many bytes, of which `used` are in use, without the log's reserve.
    #[must_use]
    pub fn of_pool(capacity: u64, used: u64) -> Self {
        let reserve = (capacity / 100).saturating_mul(RESERVED_PERCENT);
        Self {
            capacity,
            reserve,
            used,
            accounts: BTreeMap::new(),
            waiting: BTreeMap::new(),
            recalls: RecallNumber(0),
            planted: None,
        }
    }

    /// What an owner gives to its clients: nothing until it was given something itself.
    #[must_use]
    pub fn of_owner() -> Self {
        Self::of_pool(0, 0)
    }

    /// A fault for a test.
    pub fn plant(&mut self, fault: Planted) {
        self.planted = Some(fault);
    }

    /// What there is altogether, now: NSDs were added or lost, or the owner was given more.
    pub fn resize(&mut self, capacity: u64, reserve: u64) -> Vec<Say> {
        (self.capacity, self.reserve) = (capacity, reserve);
        self.settle()
    }

    /// What is where. The sums are exact; `free` is 0 if less is there than was given.
    #[must_use]
    pub fn given(&self) -> Given {
        let held = self.accounts.values().map(Account::held).sum::<u64>();
        let reserve = match self.planted {
            Some(Planted::GiveReserve) => 0,
            _ => self.reserve,
        };
        let given = self.used.saturating_add(held).saturating_add(reserve);
        Given {
            used: self.used,
            held,
            free: self.capacity.saturating_sub(given),
            reserve,
        }
    }

    /// Takes a holder's statement.
    ///
    /// A statement that is older than the last one counts for nothing; one that doesn't fit what was
    /// given neither: it is of another holder's past.
    pub fn hear(&mut self, from: NodeRun, statement: Statement) -> Vec<Say> {
        let is_new = !self.accounts.contains_key(&from);
        if is_new && self.accounts.len() >= HOLDERS_MAX {
            return Vec::new();
        }
        let account = self.accounts.entry(from).or_default();
        let before = account.said;
        let takes_any = self.planted == Some(Planted::TakeOldStatement);
        let fits = statement.consumed + statement.returned <= account.granted;
        let is_growing = takes_any
            || statement.consumed >= before.consumed
                && statement.returned >= before.returned
                && statement.freed >= before.freed;
        if !fits || !is_growing || (statement.number <= before.number && !takes_any && !is_new) {
            return Vec::new();
        }
        account.said = statement;
        if self.planted == Some(Planted::ForgetReturn) {
            account.granted += statement.returned.saturating_sub(before.returned);
        }
        let consumed = statement.consumed.saturating_sub(before.consumed);
        let freed = statement.freed.saturating_sub(before.freed);
        // Deletes of what was there before this ledger count too.
        self.used = (self.used + consumed).saturating_sub(freed);
        if statement.want.is_none() {
            self.waiting.remove(&from);
        }
        for waiting in self.waiting.values_mut() {
            if statement.obeyed >= waiting.recall {
                waiting.missing.remove(&from);
            }
        }
        let mut said = self.settle();
        // Said again each time: the last one may have been lost.
        let total = self.accounts[&from].granted;
        let granted = Say::Granted { to: from, total };
        if !said.contains(&granted) {
            said.push(granted);
        }
        said
    }

    /// The holder has ended: what it held and didn't use is free again.
    pub fn end(&mut self, run: NodeRun) -> Vec<Say> {
        if self.planted == Some(Planted::LoseSlice) {
            return Vec::new();
        }
        self.accounts.remove(&run);
        self.waiting.remove(&run);
        for waiting in self.waiting.values_mut() {
            waiting.missing.remove(&run);
        }
        self.settle()
    }

    /// Serves those who want something, as far as there is room.
    fn settle(&mut self) -> Vec<Say> {
        let mut said = Vec::new();
        let accounts = self.accounts.iter();
        let wants = accounts.filter_map(|(run, account)| Some((*run, account.said.want?)));
        for (run, want) in wants.collect::<Vec<_>>() {
            let account = self.accounts[&run];
            // What it was given since it said so counts.
            let lacking = want.bytes.saturating_sub(account.held());
            let free = self.given().free;
            if lacking == 0 {
                self.waiting.remove(&run);
            } else if free >= lacking {
                self.waiting.remove(&run);
                // While somebody waits, nobody is given more than its writes need.
                let slice = match self.waiting.is_empty() {
                    true => slice_bytes(free, self.accounts.len()).max(lacking),
                    false => lacking,
                };
                said.push(self.grant(run, slice));
            } else {
                self.wait(run, want.number, &mut said);
            }
        }
        said
    }

    fn grant(&mut self, run: NodeRun, bytes: u64) -> Say {
        assert!(bytes <= self.given().free, "what is given was free");
        let account = self.accounts.get_mut(&run).expect("it wants something");
        account.granted += bytes;
        Say::Granted {
            to: run,
            total: account.granted,
        }
    }

    /// Recalls what others have for this want, or says that it is in vain.
    fn wait(&mut self, run: NodeRun, want: u64, said: &mut Vec<Say>) {
        let full = Say::Full { to: run, want };
        if self.planted == Some(Planted::FullEarly) {
            return said.push(full);
        }
        let waiting = self.waiting.get(&run).filter(|it| it.want == want);
        let waiting = match waiting {
            Some(waiting) => waiting,
            None => {
                self.recalls = RecallNumber(self.recalls.0 + 1);
                let others = self.accounts.iter();
                let missing =
                    others.filter(|(other, account)| **other != run && account.held() > 0);
                let waiting = Waiting {
                    want,
                    recall: self.recalls,
                    missing: missing.map(|(other, _)| *other).collect(),
                };
                self.waiting.insert(run, waiting);
                &self.waiting[&run]
            }
        };
        if waiting.missing.is_empty() {
            said.push(full);
        }
        let number = waiting.recall;
        said.extend(
            waiting
                .missing
                .iter()
                .map(|to| Say::Recall { to: *to, number }),
        );
    }

    /// What waits for others to give something back is asked for again.
    #[must_use]
    pub fn recalls(&self) -> Vec<Say> {
        let waiting = self.waiting.values();
        let recalls = waiting.flat_map(|waiting| {
            let number = waiting.recall;
            waiting
                .missing
                .iter()
                .map(move |to| Say::Recall { to: *to, number })
        });
        recalls.collect()
    }
}
