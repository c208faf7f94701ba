//! Who may use how much of a storage pool: space is given out in slices before it is written to, so that
//! a write that was accepted always finds room.
//!
//! [`Ledger`] is the manager's: it gives slices of a pool to nodes. [`Purse`] is a node's: its clients and
//! owners write to what it was given. All messages carry totals since the ledger's beginning, so one that is
//! lost, repeated or late changes nothing that a newer one said.
//!
//! *A write wants room*: the purse has it, or asks; the ledger gives a slice, or recalls what others
//! hold and don't need; only when all have answered, and the pool was measured, and it still isn't
//! enough, the pool is full.
//!
//! *Writes use a slice up*: the purse asks for the next one before any write lacks it, and gets it as long as there
//! is plenty and nobody waits for room anywhere.
//!
//! *A new ledger* (a new manager's) knows nothing: each holder claims what it has, then the pool is
//! measured, then it gives. *A holder ends*: what it may have written counts as used until the pool was
//! measured.

mod ledger;
mod measuring;
mod purse;

pub use ledger::{Given, Ledger};
pub use model::space::{RecallNumber, Statement, Want};
pub use purse::Purse;

use model::NodeRun;

/// Bytes of a slice while there is plenty.
pub const SLICE_BYTES: u64 = 64 << 20;
/// With less than that left after a write, its holder asks for the next slice: one that lacks room waits for the
/// manager's answer.
const AHEAD_BELOW: u64 = SLICE_BYTES / 2;
/// Slices aren't made smaller than that, unless nothing else is left.
pub const SLICE_BYTES_MIN: u64 = 1 << 20;
/// Of what is free, one request gets at most this part of each holder's even share.
const SHARE_PART: u64 = 4;
/// Most holders of a ledger.
pub const HOLDERS_MAX: usize = 16_384;
/// So often others may be given something while a want waits; then they wait until it is answered.
pub const OVERTAKEN_MAX: u32 = 16;

/// Counts how often a ledger has measured its pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Round(pub u64);

/// What a pool's NSDs say.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Counted {
    /// Bytes in use.
    pub used: u64,
    /// Bytes that there are altogether, as far as segments can fill them.
    pub capacity: u64,
    /// Bytes of them that aren't given: log, compaction and deletes need them.
    pub reserve: u64,
}

/// What a ledger says, under its term.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Say {
    /// Bytes that it was given since it began, its claim included.
    Granted {
        /// The holder.
        to: NodeRun,
        /// The total.
        total: u64,
    },
    /// Give back what no write needs now.
    Recall {
        /// The holder.
        to: NodeRun,
        /// The number.
        number: RecallNumber,
    },
    /// There is no room for this want, and nobody has any to give back.
    Full {
        /// The holder.
        to: NodeRun,
        /// The want's number.
        want: u64,
    },
    /// Ask all NSDs of the pool what is in use, from now on, and say it with [`Ledger::measured`].
    Measure(Round),
}

/// Bytes of a slice, when `free` may still be given to `holders`.
#[must_use]
pub fn slice_bytes(free: u64, holders: usize) -> u64 {
    let share = free / (SHARE_PART * holders.max(1) as u64);
    share.clamp(SLICE_BYTES_MIN, SLICE_BYTES).min(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_shrink_when_little_is_left_and_never_exceed_it() {
        assert_eq!(slice_bytes(1 << 40, 100), SLICE_BYTES);
        assert_eq!(slice_bytes(1 << 30, 10), (1 << 30) / 40);
        assert_eq!(slice_bytes(3 << 20, 10), SLICE_BYTES_MIN);
        assert_eq!(slice_bytes(5_000, 10), 5_000);
        assert_eq!(slice_bytes(0, 10), 0);
    }
}
