//! The doors of one client in one process: several mounts of the same file system, each with its
//! own kernel caches.
//!
//! A single door lets its kernel cache answers, since every change goes through that kernel. With
//! two or more, no kernel may cache: the answer to a change can't wait until another kernel has
//! dropped its copy, because that kernel may hold locks for a change that in turn waits for this
//! one.

use crate::notifier::{Notice, Notifier};
use model::InodeId;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use world::{Instant, Set};

/// By then the kernel has every answer that was prepared before a sibling joined.
const IN_FLIGHT_MAX: Duration = Duration::from_millis(250);

/// The doors of one client.
#[derive(Debug, Default)]
pub struct Siblings {
    next: AtomicU64,
    several: AtomicBool,
    state: Mutex<SiblingsState>,
    /// One of several doors has changed an inode's owner.
    any_owner: AtomicBool,
    owners: Mutex<Owners>,
}

/// Inodes whose owner or group was changed by one of several doors.
#[derive(Debug, Default)]
struct Owners {
    inodes: Set<InodeId>,
    /// `inodes` overflowed: every inode counts as a member.
    everywhere: bool,
}

/// Most inodes remembered; beyond that, every inode counts as a member.
const OWNERS_MAX: usize = 65_536;

#[derive(Debug, Default)]
struct SiblingsState {
    doors: Vec<JoinedDoor>,
    /// Until then a kernel may trust answers cached while its door was the only one.
    believed_until: Option<Instant>,
}

#[derive(Debug)]
struct JoinedDoor {
    id: u64,
    /// The directory that is the root of its mount.
    root: InodeId,
    /// None until it is mounted.
    notifier: Option<Notifier>,
}

/// The node id of one of the client's inodes in the kernel of a door to the directory `root`; none if it
/// is never there.
pub(crate) fn node_of(root: InodeId, inode: InodeId) -> Option<InodeId> {
    match inode {
        _ if inode == root => Some(InodeId::ROOT),
        // Above the root of the mount, and its number there means another directory.
        InodeId::ROOT => None,
        _ => Some(inode),
    }
}

impl Siblings {
    /// Whether more than one door exists.
    #[must_use]
    pub fn are_several(&self) -> bool {
        self.several.load(Ordering::Acquire)
    }

    /// Notes an inode whose owner is about to change. The kernels of other doors check changes
    /// through a descriptor (fchmod and the like) against the owner that they saw last, without
    /// asking again.
    pub(crate) fn note_owner(&self, inode: InodeId) {
        if !self.are_several() {
            return;
        }
        let mut owners = self.owners.lock();
        if owners.inodes.len() < OWNERS_MAX {
            owners.inodes.insert(inode);
        } else if !owners.inodes.contains(&inode) {
            owners.everywhere = true;
        }
        self.any_owner.store(true, Ordering::Release);
    }

    /// Whether a kernel may have an outdated owner or group of the inode.
    pub(crate) fn may_be_old(&self, inode: InodeId) -> bool {
        if !self.any_owner.load(Ordering::Acquire) {
            return false;
        }
        let owners = self.owners.lock();
        owners.everywhere || owners.inodes.contains(&inode)
    }

    /// Adds a door to the directory `root`. From now on the kernels of the others cache nothing
    /// new; older answers stay valid until they expire.
    pub(crate) fn join(self: &Arc<Self>, root: InodeId, now: Instant, valid: Duration) -> Sibling {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        state.doors.push(JoinedDoor {
            id,
            root,
            notifier: None,
        });
        if state.doors.len() == 2 {
            state.believed_until = Some(now + valid + IN_FLIGHT_MAX);
        }
        self.several.store(state.doors.len() > 1, Ordering::Release);
        Sibling {
            id,
            all: Arc::clone(self),
        }
    }
}

/// One door's membership among its siblings; ends when dropped.
#[derive(Debug)]
pub(crate) struct Sibling {
    id: u64,
    all: Arc<Siblings>,
}

impl Sibling {
    /// How long from now a sibling's kernel may still have something cached.
    pub(crate) fn believed_for(&self, now: Instant) -> Duration {
        let state = self.all.state.lock();
        match state.believed_until {
            Some(until) if state.doors.len() > 1 && until > now => until - now,
            _ => Duration::ZERO,
        }
    }

    /// Sets how this door's kernel is notified, once it is mounted.
    pub(crate) fn reach_by(&self, notifier: Notifier) {
        let mut state = self.all.state.lock();
        if let Some(door) = state.doors.iter_mut().find(|door| door.id == self.id) {
            door.notifier = Some(notifier);
        }
    }

    /// Makes the other kernels drop the pages of an inode soon: those of mapped files, and copies of
    /// directories that were opened while their door was the only one. Kernels ask for everything
    /// else each time. If a queue is full, the next change notifies them.
    pub(crate) fn tell_others(&self, inode: InodeId) {
        let others: Vec<(Notifier, InodeId)> = {
            let state = self.all.state.lock();
            let others = state.doors.iter().filter(|door| door.id != self.id);
            others
                .filter_map(|door| Some((door.notifier.clone()?, node_of(door.root, inode)?)))
                .collect()
        };
        for (other, inode) in others {
            other.post(Notice::Inode {
                inode,
                offset: 0,
                length: 0,
            });
        }
    }
}

impl Drop for Sibling {
    fn drop(&mut self) {
        let mut state = self.all.state.lock();
        state.doors.retain(|door| door.id != self.id);
        self.all
            .several
            .store(state.doors.len() > 1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_door_is_alone_and_two_wait_for_what_the_first_kernel_believes() {
        let all = Arc::new(Siblings::default());
        let valid = Duration::from_secs(6);
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let start = runtime.block_on(async { world::World::real() }).now();
        let first = all.join(InodeId::ROOT, start, valid);
        assert!(!all.are_several());
        assert_eq!(first.believed_for(start), Duration::ZERO);
        let second = all.join(InodeId::ROOT, start, valid);
        assert!(all.are_several());
        assert!(second.believed_for(start) >= valid);
        let later = start + 2 * valid;
        let third = all.join(InodeId::ROOT, later, valid);
        assert_eq!(third.believed_for(later), Duration::ZERO);
        drop((first, third));
        assert!(!all.are_several());
    }

    #[test]
    fn an_inode_has_the_number_that_each_kernel_knows() {
        let (whole, part) = (InodeId::ROOT, InodeId(7));
        assert_eq!(node_of(whole, InodeId::ROOT), Some(InodeId::ROOT));
        assert_eq!(node_of(whole, InodeId(7)), Some(InodeId(7)));
        assert_eq!(node_of(part, InodeId(7)), Some(InodeId::ROOT));
        assert_eq!(node_of(part, InodeId(8)), Some(InodeId(8)));
        assert_eq!(node_of(part, InodeId::ROOT), None);
    }
}
