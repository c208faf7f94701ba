//! Eviction: clean bytes and known extents make room, those used lately last. Nothing here may be
//! called with an inode's lock held.

use super::PagePool;
use crate::pages::clean::Visit;
use std::sync::atomic::Ordering;

/// Entries examined per insertion to make room, in addition to those per piece that it adds.
const EVICTIONS_MAX: usize = 64;

/// Entries examined per added piece, so that a pool in which everything was read lately is passed
/// before the slack is used up: entries read since the last visit get another round.
const EVICTIONS_PER_PIECE: usize = 3 * SLACK_PART as usize / 2;

/// Most entries examined once a second.
const EVICTIONS_TIDY_MAX: usize = 16_384;

/// Eviction starts when less than this fraction of the budget is free, so that writers needn't wait
/// for it.
const SLACK_PART: u64 = 8;

/// Known extents are forgotten above this fraction of the budget, to leave room for data.
const EXTENTS_PART: u64 = 4;

/// Most cached pieces, however small.
const PIECES_MAX: usize = 131_072;

impl PagePool {
    /// Whether clean bytes must be evicted.
    pub(super) fn is_over_budget(&self) -> bool {
        let budget = self.blocks.budget();
        self.blocks.in_use() > budget - budget / SLACK_PART || self.ring.lock().len() > PIECES_MAX
    }

    /// Makes room for `bytes` of a write, as far as evicting clean bytes can.
    pub(crate) fn make_room(&self, bytes: u64) {
        // Visits each piece twice: those read lately get another round.
        let most = self.ring.lock().len() * 2 + EVICTIONS_MAX;
        self.evict(most, || !self.lacks_memory(bytes));
    }

    /// Returns block buffers to the system that nothing has needed since the last call.
    pub(crate) fn give_back_idle(&self) {
        self.blocks.give_back_idle();
    }

    /// Once a second: evicts what is over the budget. Known extents are dropped when nothing else is left to
    /// evict.
    pub(crate) fn tidy(&self) {
        self.evict(EVICTIONS_TIDY_MAX, || !self.is_over_budget());
        self.limit_extents();
        if self.is_over_budget() && self.ring.lock().is_empty() {
            self.forget_extents();
        }
    }

    /// Forgets known extents if they take too much: they grow with each open file, whatever else is
    /// cached.
    pub(crate) fn limit_extents(&self) {
        let is_too_much = || self.blocks.held_for_extents() > self.blocks.budget() / EXTENTS_PART;
        if !is_too_much() {
            return;
        }
        // One thread does it for all.
        if let Some(_turn) = self.forgetting.try_lock()
            && is_too_much()
        {
            self.forget_extents();
        }
    }

    fn forget_extents(&self) {
        self.inodes.each(|state| state.lock().forget_all_extents());
    }

    /// Evicts clean bytes until the budget holds, if it doesn't: those read lately last. Examines
    /// more pieces than the `brought` ones just added, or many small ones would pile up.
    pub(crate) fn shrink(&self, brought: usize) {
        if self.is_over_budget() {
            let most = EVICTIONS_MAX + brought * EVICTIONS_PER_PIECE;
            self.evict(most, || !self.is_over_budget());
        }
    }

    fn evict(&self, most: usize, is_enough: impl Fn() -> bool) {
        for _ in 0..most {
            if is_enough() {
                return;
            }
            let Some((inode, offset, stamp)) = self.ring.lock().pop_front() else {
                return;
            };
            let Some(state) = self.inodes.find(inode) else {
                continue;
            };
            let copy = |bytes: &[u8]| self.blocks.copy(bytes);
            let visit = state.lock().clean_mut().come_by(offset, stamp, copy);
            match visit {
                Visit::Keep => self.ring.lock().push_back((inode, offset, stamp)),
                Visit::Dropped { bytes, wasted } => {
                    self.clean.fetch_sub(bytes, Ordering::Relaxed);
                    self.ahead.note(0, wasted);
                }
                Visit::Unknown => {}
            }
        }
    }

    /// Drops all clean bytes.
    pub(crate) fn forget_clean(&self) {
        let pieces = std::mem::take(&mut *self.ring.lock());
        for (inode, _, _) in pieces {
            if let Some(state) = self.inodes.find(inode) {
                self.uncache(inode, &mut state.lock(), 0, u64::MAX);
            }
        }
    }
}
