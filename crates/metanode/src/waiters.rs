//! What waits for what, since when: bounded, for `shale waiters`.

use model::InodeId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use world::Instant;

/// Waits that are remembered at once; more aren't listed.
pub const WAITERS_MAX: usize = 1024;
/// Of them those that programs make as long and as many as they like, so that the others show.
const OF_PROGRAMS_MAX: usize = WAITERS_MAX / 2;

/// The cause of a wait for space that removed and overwritten data still holds.
pub const SPACE_WAIT: &str = "space that removed data holds";

/// Something that waits, for `shale waiters`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiter {
    /// What is being waited for, as "memory for dirty data".
    pub cause: &'static str,
    /// The inode on whose behalf, if one.
    pub inode: Option<InodeId>,
    /// For how long.
    pub since: Duration,
}

/// The list of waits.
#[derive(Default)]
pub struct Waiters {
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    next: u64,
    waits: BTreeMap<u64, (&'static str, Option<InodeId>, Instant)>,
    of_programs: usize,
}

/// A wait; leaves the list when dropped.
pub struct Wait<'a> {
    waiters: &'a Waiters,
    ticket: u64,
    of_program: bool,
}

impl Waiters {
    /// Notes a wait that begins now.
    pub fn enter(&self, cause: &'static str, inode: Option<InodeId>, now: Instant) -> Wait<'_> {
        self.put(cause, inode, now, false)
    }

    /// A wait of one program for another.
    pub fn enter_for_program(&self, cause: &'static str, inode: InodeId, now: Instant) -> Wait<'_> {
        self.put(cause, Some(inode), now, true)
    }

    fn put(
        &self,
        cause: &'static str,
        inode: Option<InodeId>,
        now: Instant,
        of_program: bool,
    ) -> Wait<'_> {
        let mut list = self.list.lock();
        let ticket = list.next;
        list.next += 1;
        let has_room =
            list.waits.len() < WAITERS_MAX && (!of_program || list.of_programs < OF_PROGRAMS_MAX);
        if has_room {
            list.waits.insert(ticket, (cause, inode, now));
            list.of_programs += usize::from(of_program);
        }
        Wait {
            waiters: self,
            ticket,
            of_program,
        }
    }

    /// Oldest first.
    #[must_use]
    pub fn list(&self, now: Instant) -> Vec<Waiter> {
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
        let mut list = self.waiters.list.lock();
        if list.waits.remove(&self.ticket).is_some() {
            list.of_programs -= usize::from(self.of_program);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_locks_are_waited_for_other_waits_show() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let now = world::World::real().now();
        let waiters = Waiters::default();
        let lock = || waiters.enter_for_program("a file lock", InodeId(7), now);
        let locks: Vec<_> = (0..2 * WAITERS_MAX).map(|_| lock()).collect();
        let space = waiters.enter("space", None, now);
        let list = waiters.list(now);
        assert_eq!(list.len(), OF_PROGRAMS_MAX + 1);
        assert_eq!(list.last().map(|waiter| waiter.cause), Some("space"));
        drop(locks);
        assert_eq!(waiters.list(now).len(), 1);
        let again = lock();
        assert_eq!(waiters.list(now).len(), 2);
        drop((space, again));
        assert!(waiters.list(now).is_empty());
    }
}
