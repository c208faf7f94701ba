//! The half that gets slices and spends them.

use super::{LedgerTerm, RecallNumber, Round, Statement, Want};
use crate::planted::Planted;

/// What one holder has of a pool. Writes *take* room before they are accepted, and then either
/// *spend* it (the bytes are in the pool) or *put it back*. Deletes *begin*, and end as *freed* or not.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Purse {
    granted: u64,
    /// By writes under way.
    taken: u64,
    said: Statement,
    /// The largest write that lacks room: number and bytes.
    wanted: Option<(u64, u64)>,
    wants: u64,
    planted: Option<Planted>,
}

impl Purse {
    /// A fault for a test.
    pub fn plant(&mut self, fault: Planted) {
        self.planted = Some(fault);
    }

    /// There is a new ledger: everything that is held is claimed from it. What earlier ones say from
    /// now on counts for nothing.
    pub fn begin_term(&mut self, term: LedgerTerm) {
        if term <= self.said.term {
            return;
        }
        self.granted = self.available() + self.taken;
        self.said = Statement {
            term,
            number: self.said.number,
            claim: self.granted,
            freeing: self.said.freeing,
            ..Statement::default()
        };
        if self.planted == Some(Planted::ForgetClaim) {
            self.said.claim = 0;
        }
    }

    /// The ledger that it has to do with.
    #[must_use]
    pub fn term(&self) -> LedgerTerm {
        self.said.term
    }

    /// Bytes that writes can take now.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.granted - self.said.consumed - self.said.returned - self.taken
    }

    /// Bytes that writes under way have taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Takes room for a write. If there isn't enough, it is wanted from now on, and the caller asks
    /// again when something was granted. Of several writes that lack room the largest is wanted.
    pub fn take(&mut self, bytes: u64) -> bool {
        let wanted = self.wanted.map_or(0, |(_, wanted)| wanted);
        if self.available() >= bytes {
            self.taken += bytes;
            // A smaller write leaves a larger one's want as it is.
            if bytes >= wanted {
                self.wanted = None;
            }
            return true;
        }
        if bytes > wanted {
            self.wants += 1;
            self.wanted = Some((self.wants, bytes));
        }
        false
    }

    /// The write that lacked room was given up.
    pub fn forget_want(&mut self) {
        self.wanted = None;
    }

    /// The bytes of a write are in the pool.
    pub fn spend(&mut self, bytes: u64) {
        self.put_back(bytes);
        self.said.consumed += bytes;
    }

    /// A write didn't happen: nothing of it is in the pool, nor will be.
    pub fn put_back(&mut self, bytes: u64) {
        let rest = self.taken.checked_sub(bytes);
        self.taken = rest.expect("only what was taken is put back");
    }

    /// A delete begins: from now on the bytes may be in the pool or not.
    pub fn begin_delete(&mut self, bytes: u64) {
        self.said.freeing += bytes;
    }

    /// Bytes whose delete had begun aren't in the pool any more.
    pub fn freed(&mut self, bytes: u64) {
        self.keep(bytes);
        self.said.freed += bytes;
    }

    /// Bytes whose delete had begun are in the pool still, or somebody else has freed them.
    pub fn keep(&mut self, bytes: u64) {
        let rest = self.said.freeing.checked_sub(bytes);
        self.said.freeing = rest.expect("a delete that ends had begun");
    }

    /// What to say now; to be said again until it is answered.
    pub fn state(&mut self) -> Statement {
        self.said.number += 1;
        let want = self.wanted.map(|(number, bytes)| Want {
            number,
            bytes: bytes.saturating_add(self.taken),
        });
        Statement { want, ..self.said }
    }

    /// The ledger has given so much since the beginning, and has measured so often.
    pub fn granted(&mut self, term: LedgerTerm, total: u64, round: Round) {
        if self.is_of(term) {
            self.granted = self.granted.max(total);
            self.said.round = self.said.round.max(round);
        }
    }

    /// The ledger wants back what no write needs.
    pub fn recalled(&mut self, term: LedgerTerm, number: RecallNumber) {
        if self.is_of(term) && number > self.said.obeyed {
            self.said.obeyed = number;
            let idle = self.available();
            if self.planted != Some(Planted::KeepIdle) {
                self.said.returned += idle;
            }
        }
    }

    /// There is no room for the want of this number: the write fails. False if it wants something
    /// else by now.
    pub fn full(&mut self, term: LedgerTerm, want: u64) -> bool {
        let is_meant = self.is_of(term) && self.wanted.is_some_and(|(number, _)| number == want);
        if is_meant {
            self.wanted = None;
        }
        is_meant
    }

    fn is_of(&self, term: LedgerTerm) -> bool {
        term == self.said.term || self.planted == Some(Planted::HearEarlierLedger)
    }
}
