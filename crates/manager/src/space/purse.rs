//! The half that gets slices and spends them.

use super::{RecallNumber, Statement, Want};
use crate::planted::Planted;

/// What one holder has of a pool. Writes *take* room before they are accepted, and then either
/// *spend* it (the bytes are in the pool) or *put it back*.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Purse {
    granted: u64,
    /// By writes under way.
    taken: u64,
    said: Statement,
    wants: u64,
    planted: Option<Planted>,
}

impl Purse {
    /// A fault for a test.
    pub fn plant(&mut self, fault: Planted) {
        self.planted = Some(fault);
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
    /// again when something was granted.
    pub fn take(&mut self, bytes: u64) -> bool {
        if self.available() >= bytes {
            self.taken += bytes;
            self.said.want = None;
            return true;
        }
        let lacking = bytes + self.taken;
        if self.said.want.is_none_or(|want| want.bytes != lacking) {
            self.wants += 1;
            self.said.want = Some(Want {
                number: self.wants,
                // The ledger compares it with all that is held.
                bytes: lacking,
            });
        }
        false
    }

    /// The write that lacked room was given up.
    pub fn forget_want(&mut self) {
        self.said.want = None;
    }

    /// The bytes of a write are in the pool.
    pub fn spend(&mut self, bytes: u64) {
        self.put_back(bytes);
        self.said.consumed += bytes;
    }

    /// A write didn't happen.
    pub fn put_back(&mut self, bytes: u64) {
        let rest = self.taken.checked_sub(bytes);
        self.taken = rest.expect("only what was taken is put back");
        // What is lacking is counted with what is taken.
        if let Some(want) = self.said.want.take() {
            self.wants += 1;
            self.said.want = Some(Want {
                number: self.wants,
                bytes: want.bytes - bytes,
            });
        }
    }

    /// Bytes were deleted from the pool.
    pub fn free(&mut self, bytes: u64) {
        self.said.freed += bytes;
    }

    /// What to say now; to be said again until it is answered.
    pub fn state(&mut self) -> Statement {
        self.said.number += 1;
        self.said
    }

    /// The ledger has given so much since the beginning.
    pub fn granted(&mut self, total: u64) {
        self.granted = self.granted.max(total);
    }

    /// The ledger wants back what no write needs.
    pub fn recalled(&mut self, number: RecallNumber) {
        if number > self.said.obeyed {
            self.said.obeyed = number;
            let idle = self.available();
            if self.planted != Some(Planted::KeepIdle) {
                self.said.returned += idle;
            }
        }
    }

    /// There is no room for the want of this number: the write fails. False if it wants something
    /// else by now.
    pub fn full(&mut self, want: u64) -> bool {
        let is_meant = self.said.want.is_some_and(|it| it.number == want);
        if is_meant {
            self.said.want = None;
        }
        is_meant
    }
}
