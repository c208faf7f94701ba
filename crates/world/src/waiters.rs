//! The list of waits with their causes and durations: bounded, for `shale waiters`.

use crate::waits::Part;
use crate::{Errand, Instant, World};
use model::InodeId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// Most waits listed at once.
pub const WAITERS_MAX: usize = 1024;
/// Most of them caused by programs, which may wait as long and as often as they like, so that
/// others are listed too.
const OF_PROGRAMS_MAX: usize = WAITERS_MAX / 2;

/// The cause of waiting for space of removed and overwritten data.
pub const SPACE_WAIT: &str = "space that removed data holds";

/// One wait, for `shale waiters`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiter {
    /// The cause, such as "memory for dirty data".
    pub cause: &'static str,
    /// The inode concerned, if any.
    pub inode: Option<InodeId>,
    /// Time waited so far.
    pub since: Duration,
    /// For whom; `NONE` if no program waits for it.
    pub errand: Errand,
    /// What it is in a chain of waits.
    pub part: Part,
}

/// The list of waits.
pub struct Waiters {
    world: World,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    next: u64,
    waits: BTreeMap<u64, Entry>,
    of_programs: usize,
    /// Waits that found no room.
    left_out: usize,
}

struct Entry {
    cause: &'static str,
    inode: Option<InodeId>,
    begun: Instant,
    errand: Errand,
    part: Part,
}

/// A wait; leaves the list on drop.
pub struct Wait<'a> {
    waiters: &'a Waiters,
    ticket: u64,
    of_program: bool,
}

impl Waiters {
    /// An empty list.
    #[must_use]
    pub fn new(world: &World) -> Self {
        Self {
            world: world.clone(),
            list: Mutex::default(),
        }
    }

    /// Lists a wait that begins now.
    pub fn enter(&self, cause: &'static str, inode: Option<InodeId>, now: Instant) -> Wait<'_> {
        self.enter_as(Part::Wait, cause, inode, now)
    }

    /// Lists a wait that begins now, as this part of a chain.
    pub fn enter_as(
        &self,
        part: Part,
        cause: &'static str,
        inode: Option<InodeId>,
        now: Instant,
    ) -> Wait<'_> {
        self.put(self.entry(part, cause, inode, now), false)
    }

    /// Lists a wait of one program for another.
    pub fn enter_for_program(&self, cause: &'static str, inode: InodeId, now: Instant) -> Wait<'_> {
        self.put(self.entry(Part::Wait, cause, Some(inode), now), true)
    }

    fn entry(
        &self,
        part: Part,
        cause: &'static str,
        inode: Option<InodeId>,
        begun: Instant,
    ) -> Entry {
        Entry {
            cause,
            inode,
            begun,
            errand: self.world.errand(),
            part,
        }
    }

    fn put(&self, entry: Entry, of_program: bool) -> Wait<'_> {
        let mut list = self.list.lock();
        let ticket = list.next;
        list.next += 1;
        let has_room =
            list.waits.len() < WAITERS_MAX && (!of_program || list.of_programs < OF_PROGRAMS_MAX);
        if has_room {
            list.waits.insert(ticket, entry);
            list.of_programs += usize::from(of_program);
        } else {
            list.left_out += 1;
        }
        Wait {
            waiters: self,
            ticket,
            of_program,
        }
    }

    /// Lists all waits, oldest first; also how many found no room.
    #[must_use]
    pub fn list(&self, now: Instant) -> (Vec<Waiter>, usize) {
        let list = self.list.lock();
        let waits = list.waits.values();
        let waits = waits
            .map(|entry| Waiter {
                cause: entry.cause,
                inode: entry.inode,
                since: now - entry.begun,
                errand: entry.errand,
                part: entry.part,
            })
            .collect();
        (waits, list.left_out)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut list = self.waiters.list.lock();
        if list.waits.remove(&self.ticket).is_some() {
            list.of_programs -= usize::from(self.of_program);
        } else {
            list.left_out -= 1;
        }
    }
}

/// Several lists of waits as one; with each, how many more there are than it has room for.
#[must_use]
pub fn joined_waits(lists: impl IntoIterator<Item = (Vec<Waiter>, usize)>) -> (Vec<Waiter>, usize) {
    let (mut waits, mut left_out) = (Vec::new(), 0);
    for (more, rest) in lists {
        waits.extend(more);
        left_out += rest;
    }
    (waits, left_out)
}

/// The longest waits of a list, longest first, as many as there is room for; the others count as left out.
#[must_use]
pub fn longest_waits(
    (mut waits, left_out): (Vec<Waiter>, usize),
    room: usize,
) -> (Vec<Waiter>, usize) {
    waits.sort_by_key(|waiter| std::cmp::Reverse(waiter.since));
    let left_out = left_out + waits.len().saturating_sub(room);
    waits.truncate(room);
    (waits, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_locks_are_waited_for_other_waits_show_and_the_rest_is_counted() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let world = World::real();
        let now = world.now();
        let waiters = Waiters::new(&world);
        let lock = || waiters.enter_for_program("a file lock", InodeId(7), now);
        let locks: Vec<_> = (0..2 * WAITERS_MAX).map(|_| lock()).collect();
        let space = waiters.enter("space", None, now);
        let (list, left_out) = waiters.list(now);
        assert_eq!(list.len(), OF_PROGRAMS_MAX + 1);
        assert_eq!(left_out, 2 * WAITERS_MAX - OF_PROGRAMS_MAX);
        assert_eq!(list.last().map(|waiter| waiter.cause), Some("space"));
        drop(locks);
        let (list, left_out) = waiters.list(now);
        assert_eq!((list.len(), left_out), (1, 0));
        let again = lock();
        assert_eq!(waiters.list(now).0.len(), 2);
        drop((space, again));
        assert_eq!(waiters.list(now), (Vec::new(), 0));
    }
}
