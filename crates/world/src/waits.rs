//! What waits on this machine, with the errand that it is part of and what it waits for: bounded, so
//! that `shale waiters` can put the waits of several nodes together.
//!
//! A wait costs a lock and no memory, and only if it isn't over at once.

use crate::given_up::Unwanted;
use crate::waiters::Waiter;
use crate::{Errand, Instant};
use model::call::Method;
use model::{InodeId, NodeId, NsdId, ShardId};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Most waits listed at once of a machine, besides those that its parts list themselves.
pub const WAITS_MAX: usize = 4096;

/// Work of a node that its own waits, and those of other nodes, may be for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Work {
    /// The commit of a shard's changes.
    Commit(ShardId),
    /// Asking an owner for a token of an inode.
    Ask(InodeId),
    /// Giving a token of an inode back to its owner.
    Return(InodeId),
    /// Storing and publishing what was written to an inode; `None`: to several small files, and of waits, to any.
    Store(Option<InodeId>),
    /// Reading ahead in a file.
    Fetch(InodeId),
    /// Taking a shard over.
    TakeOver(ShardId),
    /// Beginning the session that follows one that has ended.
    NextSession,
    /// Finding out what became of changes of an inode that were given up; `None`: of file locks.
    Decide(Option<InodeId>),
    /// Telling an owner of file locks that have ended.
    EndLocks,
    /// Telling an owner what was done under delegations.
    Stream,
}

/// What a listed wait is in a chain of waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// A wait for what its cause says, or for what else is listed of its errand.
    Wait,
    /// A wait for work of this node.
    ForWork(Work),
    /// A wait for the answer of a node.
    ForAnswer {
        /// The node.
        node: NodeId,
        /// What it was asked.
        method: Method,
    },
    /// A wait for a shard's owner, wherever it is.
    ForOwner(ShardId),
    /// A wait for an NSD: for its disk, if that is here.
    ForNsd(NsdId),
    /// A wait for coordination.
    ForCoordination,
    /// A wait for what a session has cached or changed.
    ForToken {
        /// Of this inode.
        inode: InodeId,
        /// The session's node, if it is known.
        node: Option<NodeId>,
        /// The time until the session's tokens have run out, unless it says something before.
        runs_out: Duration,
    },
    /// A wait for a program's lock of a file.
    ForLock {
        /// The file.
        inode: InodeId,
        /// The program's node, if it is known.
        node: Option<NodeId>,
        /// The program; 0 if it is unknown.
        pid: u32,
    },
    /// Work that others wait for.
    Work(Work),
    /// The work on another node's call.
    Call(Method),
}

impl Part {
    /// The inode concerned, if any.
    #[must_use]
    pub fn inode(self) -> Option<InodeId> {
        match self {
            Self::ForWork(work) | Self::Work(work) => match work {
                Work::Ask(inode) | Work::Return(inode) | Work::Fetch(inode) => Some(inode),
                Work::Store(inode) | Work::Decide(inode) => inode,
                Work::Commit(_)
                | Work::TakeOver(_)
                | Work::NextSession
                | Work::EndLocks
                | Work::Stream => None,
            },
            Self::ForToken { inode, .. } | Self::ForLock { inode, .. } => Some(inode),
            Self::Wait
            | Self::ForAnswer { .. }
            | Self::ForOwner(_)
            | Self::ForNsd(_)
            | Self::ForCoordination
            | Self::Call(_) => None,
        }
    }
}

/// The waits of a machine, and the numbers of the errands that begin there.
pub(crate) struct Waits {
    traces: AtomicU64,
    slots: Mutex<Slots>,
    unwanted: Arc<Unwanted>,
}

#[derive(Default)]
struct Slots {
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
    /// Waits that found no room.
    left_out: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    cause: &'static str,
    errand: Errand,
    part: Part,
    since: Instant,
}

/// A wait; leaves the list on drop.
pub(crate) struct Listed<'a> {
    waits: &'a Waits,
    slot: Option<usize>,
}

impl Waits {
    /// Errands get numbers from `first` on.
    pub(crate) fn new(first: u64) -> Self {
        Self {
            traces: AtomicU64::new(first),
            slots: Mutex::default(),
            unwanted: Arc::default(),
        }
    }

    /// The errands that are given up.
    pub(crate) fn unwanted(&self) -> &Arc<Unwanted> {
        &self.unwanted
    }

    /// The number of another errand; never 0.
    pub(crate) fn number(&self) -> u64 {
        loop {
            let number = self.traces.fetch_add(1, Ordering::Relaxed);
            if number != 0 {
                return number;
            }
        }
    }

    /// Lists a wait that begins now.
    pub(crate) fn enter(
        &self,
        cause: &'static str,
        errand: Errand,
        part: Part,
        since: Instant,
    ) -> Listed<'_> {
        let entry = Entry {
            cause,
            errand,
            part,
            since,
        };
        let mut slots = self.slots.lock();
        let slot = match slots.free.pop() {
            Some(slot) => {
                slots.entries[slot] = Some(entry);
                Some(slot)
            }
            None if slots.entries.len() < WAITS_MAX => {
                slots.entries.push(Some(entry));
                Some(slots.entries.len() - 1)
            }
            None => {
                slots.left_out += 1;
                None
            }
        };
        Listed { waits: self, slot }
    }

    /// All that are listed, oldest first, and how many found no room.
    pub(crate) fn list(&self, now: Instant) -> (Vec<Waiter>, usize) {
        let slots = self.slots.lock();
        let entries = slots.entries.iter().flatten();
        let mut all: Vec<Waiter> = entries
            .map(|entry| Waiter {
                cause: entry.cause,
                inode: entry.part.inode(),
                since: now - entry.since,
                errand: entry.errand,
                part: entry.part,
            })
            .collect();
        let left_out = slots.left_out;
        drop(slots);
        all.sort_by_key(|waiter| std::cmp::Reverse(waiter.since));
        (all, left_out)
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut slots = self.waits.slots.lock();
        match self.slot {
            Some(slot) => {
                slots.entries[slot] = None;
                slots.free.push(slot);
            }
            None => slots.left_out -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::World;
    use crate::errand;
    use crate::sim::Simulation;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_waits_shows_with_its_errand_until_it_is_over_and_the_rest_is_counted() {
        let run = Simulation::new(1).run(async |world: World| {
            let disk = Part::ForNsd(NsdId(3));
            let ready = world.listed("a disk", disk, std::future::ready(4));
            assert_eq!(errand::begin(ready).await, 4);
            assert_eq!(world.waits(), (Vec::new(), 0));
            // Nobody's waits aren't anybody's matter here.
            let nobodys = world.spawn("nobody's", {
                let world = world.clone();
                async move { world.listed("a disk", disk, world.sleep(SECOND)).await }
            });
            let commit = Work::Commit(ShardId(2));
            let works = world.spawn("works", {
                let world = world.clone();
                async move {
                    let waits = world.listed("a disk", disk, world.sleep(SECOND * 10));
                    world.at_work("a commit", commit, waits).await;
                }
            });
            world.sleep(SECOND * 2).await;
            let (all, left_out) = world.waits();
            let parts: Vec<Part> = all.iter().map(|waiter| waiter.part).collect();
            assert_eq!(parts.len(), 2, "{all:?}");
            assert!(parts.contains(&disk) && parts.contains(&Part::Work(commit)));
            assert_eq!((all[0].errand, left_out), (all[1].errand, 0));
            assert!(!all[0].errand.is_none() && all[0].since >= SECOND);
            works.await;
            nobodys.await;
            assert_eq!(world.waits(), (Vec::new(), 0));
        });
        run.finished();
    }

    #[test]
    fn no_more_waits_are_kept_than_written_and_room_is_used_again() {
        let run = Simulation::new(2).run(async |world: World| {
            let (waits, now) = (Waits::new(0), world.now());
            let errand = Errand {
                trace: waits.number(),
                from: None,
            };
            assert!(!errand.is_none());
            let enter = || waits.enter("a disk", errand, Part::Wait, now);
            let mut all: Vec<_> = (0..WAITS_MAX + 3).map(|_| enter()).collect();
            let (listed, left_out) = waits.list(now);
            assert_eq!((listed.len(), left_out), (WAITS_MAX, 3));
            drop(all.drain(..10));
            all.extend((0..4).map(|_| enter()));
            let (listed, left_out) = waits.list(now);
            assert_eq!((listed.len(), left_out), (WAITS_MAX - 6, 3));
            drop(all);
            assert_eq!(waits.list(now), (Vec::new(), 0));
        });
        run.finished();
    }
}
