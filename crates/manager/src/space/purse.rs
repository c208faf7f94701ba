//! The half that gets slices and spends them.

use super::{AHEAD_BELOW, RecallNumber, SLICE_BYTES, Statement, Want};
use crate::planted::Planted;
use model::member::Term;

/// What one holder has of a pool. Writes *take* room before they are accepted, and *put it back* when their
/// bytes are stored or given up. What is *written* to the pool uses up what is there; while writes have taken
/// room, the rest is *owed* until they put it back. What is written beyond that (tables, repair) comes from the
/// pool's reserve, and the next measuring finds it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Purse {
    granted: u64,
    /// By writes under way.
    taken: u64,
    /// Written, and to be used up from what writes will put back.
    owed: u64,
    said: Statement,
    /// The largest write that lacks room: number and bytes.
    wanted: Option<(u64, u64)>,
    wants: u64,
    /// A write has left little, and nothing has made that more since.
    is_low: bool,
    planted: Option<Planted>,
}

impl Purse {
    /// A fault for a test.
    pub fn plant(&mut self, fault: Planted) {
        self.planted = Some(fault);
    }

    /// There is a new ledger: everything that is held is claimed from it. What earlier ones say from
    /// now on counts for nothing.
    pub fn begin_term(&mut self, term: Term) {
        if term <= self.said.term {
            return;
        }
        self.granted = self.available() + self.taken;
        self.is_low = false;
        self.said = Statement {
            term,
            number: self.said.number,
            claim: self.granted,
            ..Statement::default()
        };
        if self.planted == Some(Planted::ForgetClaim) {
            self.said.claim = 0;
        }
    }

    /// The ledger that it has to do with.
    #[must_use]
    pub fn term(&self) -> Term {
        self.said.term
    }

    /// Bytes that writes can take now.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.granted - self.said.consumed - self.said.returned - self.taken
    }

    /// Bytes that no write needs now. One that waits, and for which there is enough, takes that in a moment: it
    /// must not be given back in the message that brought it.
    #[must_use]
    pub fn idle(&self) -> u64 {
        let awaited = self.wanted.map_or(0, |(_, bytes)| bytes);
        let available = self.available();
        available.checked_sub(awaited).unwrap_or(available)
    }

    /// Bytes that writes under way have taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Takes room for a write. If there isn't enough, it is wanted from now on, and the caller asks
    /// again when something was granted. Of several writes that lack room the largest is wanted. One that
    /// leaves little makes the purse [ask ahead](Self::asks_ahead).
    pub fn take(&mut self, bytes: u64) -> bool {
        if self.take_if_there(bytes) {
            self.is_low |= self.available() < AHEAD_BELOW;
            return true;
        }
        let wanted = self.wanted.map_or(0, |(_, wanted)| wanted);
        if bytes > wanted {
            self.wants += 1;
            self.wanted = Some((self.wants, bytes));
        }
        false
    }

    /// Takes room, if it is there: a caller that would like more than it needs.
    pub fn take_if_there(&mut self, bytes: u64) -> bool {
        if self.available() < bytes {
            return false;
        }
        self.taken += bytes;
        // A smaller write leaves a larger one's want as it is.
        if self.wanted.is_some_and(|(_, wanted)| bytes >= wanted) {
            self.wanted = None;
        }
        true
    }

    /// Whether it says that it will soon lack room. While a write waits it says only what that lacks, and after a
    /// recall nothing before the next write: others lack what it would get.
    #[must_use]
    pub fn asks_ahead(&self) -> bool {
        self.is_low && self.wanted.is_none()
    }

    /// Whether a write waits for more than is there.
    #[must_use]
    pub fn lacks_room(&self) -> bool {
        let available = self.available();
        self.wanted.is_some_and(|(_, wanted)| wanted > available)
    }

    /// The write that lacked room was given up.
    pub fn forget_want(&mut self) {
        self.wanted = None;
    }

    /// A write's room isn't needed any more: its bytes are in the pool, and were said to be
    /// [written](Self::written), or never will be.
    pub fn put_back(&mut self, bytes: u64) {
        let rest = self.taken.checked_sub(bytes);
        self.taken = rest.expect("only what was taken is put back");
        self.pay();
    }

    /// Bytes are in the pool, whoever took room for them, or nobody.
    pub fn written(&mut self, bytes: u64) {
        self.owed += bytes;
        self.pay();
    }

    fn pay(&mut self) {
        let paid = self.available().min(self.owed);
        self.said.consumed += paid;
        self.owed = match self.planted {
            Some(Planted::ForgetOwed) => 0,
            _ => (self.owed - paid).min(self.taken),
        };
        self.is_low &= self.available() < AHEAD_BELOW;
    }

    /// What to say now; to be said again until it is answered.
    pub fn state(&mut self) -> Statement {
        self.said.number += 1;
        let want = self.wanted.map(|(number, bytes)| Want {
            number,
            bytes: bytes.saturating_add(self.taken),
        });
        let ahead = match self.asks_ahead() {
            true => SLICE_BYTES.saturating_add(self.taken),
            false => 0,
        };
        Statement {
            want,
            ahead,
            ..self.said
        }
    }

    /// The ledger has given so much since the beginning. Whether that is more than was known; it may be used up at once
    /// by what is owed.
    pub fn granted(&mut self, term: Term, total: u64) -> bool {
        let is_more = self.is_of(term) && total > self.granted;
        if is_more {
            self.granted = total;
            self.pay();
        }
        is_more
    }

    /// The ledger wants back what no write needs.
    pub fn recalled(&mut self, term: Term, number: RecallNumber) {
        if self.is_of(term) && number > self.said.obeyed {
            self.said.obeyed = number;
            self.is_low = false;
            let idle = self.idle();
            if self.planted != Some(Planted::KeepIdle) {
                self.said.returned += idle;
            }
        }
    }

    /// There is no room for the want of this number: the write fails. How many bytes that wanted, beside what
    /// is taken; `None` if something else is wanted by now.
    pub fn full(&mut self, term: Term, want: u64) -> Option<u64> {
        let is_of = self.is_of(term);
        let refused = self.wanted.take_if(|(number, _)| is_of && *number == want);
        refused.map(|(_, bytes)| bytes)
    }

    fn is_of(&self, term: Term) -> bool {
        term == self.said.term || self.planted == Some(Planted::HearEarlierLedger)
    }
}
