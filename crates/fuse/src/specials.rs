//! FIFOs, sockets and devices known to the kernel: programs open them without telling us, so they
//! are held from the kernel's first lookup to its last FORGET.

use model::{FileKind, InodeId};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use world::Map;

/// Most inodes held; further ones end with their last name.
const SPECIALS_MAX: usize = 65_536;
/// Each user's share of these, so that no user exhausts them for all others. Root has no limit of
/// its own: its inodes serve everyone.
const SPECIALS_OF_USER_MAX: usize = SPECIALS_MAX / 8;
const ROOT_USER: u32 = 0;

/// The kernel's lookups minus its FORGETs, by inode.
#[derive(Default)]
pub(crate) struct Specials {
    /// The number of inodes: FORGETs check it first.
    count: AtomicUsize,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    inodes: Map<InodeId, Held>,
    /// The number of inodes of each user except root.
    of_users: Map<u32, usize>,
}

struct Held {
    lookups: u64,
    /// Its owner when it was first looked up.
    owner: u32,
}

impl Known {
    fn is_full_for(&self, owner: u32) -> bool {
        let own = self.of_users.get(&owner).copied().unwrap_or(0);
        self.inodes.len() >= SPECIALS_MAX || own >= SPECIALS_OF_USER_MAX
    }

    fn remove(&mut self, inode: InodeId) {
        let Some(held) = self.inodes.remove(&inode) else {
            return;
        };
        if let Some(own) = self.of_users.get_mut(&held.owner) {
            *own -= 1;
            if *own == 0 {
                self.of_users.remove(&held.owner);
            }
        }
    }
}

/// What the caller of `look_up` must do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lookup {
    /// The inode is held already.
    Counted,
    /// The caller must hold the inode and then call `held`.
    HoldFirst,
    /// Too many are held; this one isn't.
    Ignored,
}

/// Whether the kernel opens this kind of inode itself.
pub(crate) fn is_special(kind: FileKind) -> bool {
    matches!(
        kind,
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice
    )
}

impl Specials {
    /// Counts a lookup whose answer is about to go to the kernel.
    pub(crate) fn look_up(&self, inode: InodeId, owner: u32) -> Lookup {
        let mut known = self.known.lock();
        if let Some(held) = known.inodes.get_mut(&inode) {
            held.lookups += 1;
            return Lookup::Counted;
        }
        match known.is_full_for(owner) {
            true => Lookup::Ignored,
            false => Lookup::HoldFirst,
        }
    }

    /// Adds an inode that the caller has just opened to hold it. False if another thread added it
    /// first: then the caller must release its own hold.
    pub(crate) fn held(&self, inode: InodeId, owner: u32) -> bool {
        let mut known = self.known.lock();
        if let Some(held) = known.inodes.get_mut(&inode) {
            held.lookups += 1;
            return false;
        }
        known.inodes.insert(inode, Held { lookups: 1, owner });
        if owner != ROOT_USER {
            *known.of_users.entry(owner).or_default() += 1;
        }
        self.count.store(known.inodes.len(), Ordering::Release);
        true
    }

    /// The kernel forgets this many lookups. True if none are left: the inode is no longer held for
    /// the kernel.
    pub(crate) fn forget(&self, inode: InodeId, forgotten: u64) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut known = self.known.lock();
        let Some(held) = known.inodes.get_mut(&inode) else {
            return false;
        };
        // More lookups are forgotten than counted only if some came while the table was full.
        held.lookups = held.lookups.saturating_sub(forgotten);
        let is_last = held.lookups == 0;
        if is_last {
            known.remove(inode);
            self.count.store(known.inodes.len(), Ordering::Release);
        }
        is_last
    }

    /// The kernel is gone: returns all inodes held.
    pub(crate) fn take_all(&self) -> Vec<InodeId> {
        let known = std::mem::take(&mut *self.known.lock());
        self.count.store(0, Ordering::Release);
        known.inodes.into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_held_from_the_first_lookup_to_the_last_forget() {
        let specials = Specials::default();
        let fifo = InodeId(7);
        assert!(!specials.forget(fifo, 1));
        assert_eq!(specials.look_up(fifo, 0), Lookup::HoldFirst);
        assert!(specials.held(fifo, 0));
        assert!(!specials.held(fifo, 0), "another thread was faster");
        assert_eq!(specials.look_up(fifo, 0), Lookup::Counted);
        assert!(!specials.forget(InodeId(8), 1));
        assert!(!specials.forget(fifo, 2));
        assert!(specials.forget(fifo, 1));
        assert_eq!(specials.look_up(fifo, 0), Lookup::HoldFirst);
        assert!(specials.held(fifo, 0));
        assert_eq!(specials.take_all(), [fifo]);
    }

    #[test]
    fn one_user_cannot_use_up_what_all_share() {
        let specials = Specials::default();
        let mut next = 0;
        let mut fill = |owner: u32| {
            let before = next;
            while specials.look_up(InodeId(next), owner) == Lookup::HoldFirst {
                assert!(specials.held(InodeId(next), owner));
                next += 1;
            }
            (next - before) as usize
        };
        assert_eq!(fill(1000), SPECIALS_OF_USER_MAX);
        assert_eq!(specials.look_up(InodeId(7), 1000), Lookup::Counted);
        assert_eq!(fill(1001), SPECIALS_OF_USER_MAX);
        // A user's forgotten inodes free its share again.
        assert!(specials.forget(InodeId(7), 2));
        assert_eq!(fill(1001), 0);
        assert_eq!(fill(1000), 1);
        assert_eq!(fill(0), SPECIALS_MAX - 2 * SPECIALS_OF_USER_MAX);
        assert_eq!(specials.take_all().len(), SPECIALS_MAX);
        assert_eq!(fill(1000), SPECIALS_OF_USER_MAX);
    }
}
