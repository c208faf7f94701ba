//! What waits for what, since when: bounded, for `shale waiters`.

use crate::types::Waiter;
use model::InodeId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use world::Instant;

/// Waits that are remembered at once; more aren't listed.
const WAITERS_MAX: usize = 1024;

/// The list of waits.
#[derive(Default)]
pub(crate) struct Waiters {
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    next: u64,
    waits: BTreeMap<u64, (&'static str, Option<InodeId>, Instant)>,
}

/// A wait; leaves the list when dropped.
pub(crate) struct Wait<'a> {
    waiters: &'a Waiters,
    ticket: u64,
}

impl Waiters {
    pub(crate) fn enter(
        &self,
        cause: &'static str,
        inode: Option<InodeId>,
        now: Instant,
    ) -> Wait<'_> {
        let mut list = self.list.lock();
        let ticket = list.next;
        list.next += 1;
        if list.waits.len() < WAITERS_MAX {
            list.waits.insert(ticket, (cause, inode, now));
        }
        Wait {
            waiters: self,
            ticket,
        }
    }

    /// Oldest first.
    pub(crate) fn list(&self, now: Instant) -> Vec<Waiter> {
        let list = self.list.lock();
        let waits = list.waits.values();
        waits
            .map(|(cause, inode, at)| Waiter {
                cause,
                inode: *inode,
                since: now - *at,
            })
            .collect()
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.waiters.list.lock().waits.remove(&self.ticket);
    }
}
