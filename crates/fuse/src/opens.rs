//! The opens of a mount, and the locks taken through them: everything that must be released when
//! the kernel goes away without closing files.

use crate::verbs::Lock;
use model::InodeId;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use world::Map;

/// Partitions of the tables, so that threads rarely contend.
const PARTS: usize = 64;

/// The opens of one mount by their handles. The kernel limits their number.
pub(crate) struct Opens {
    next: AtomicU64,
    opens: [Mutex<Map<u64, Open>>; PARTS],
    /// A range lock was requested through this mount. Every close on every CPU reads this first, so
    /// closes don't contend on a mutex while no program uses range locks.
    any_lock: AtomicBool,
    /// For each inode, the number of opens through which range locks were requested.
    locked: [Mutex<Map<InodeId, u64>>; PARTS],
}

/// One open.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) inode: InodeId,
    /// O_WRONLY or O_RDWR.
    pub(crate) is_writing: bool,
    /// A lock was requested through it.
    pub(crate) may_have_locks: bool,
    /// A range lock was requested.
    may_have_ranges: bool,
}

impl Default for Opens {
    fn default() -> Self {
        Self {
            next: AtomicU64::new(1),
            opens: std::array::from_fn(|_| Mutex::default()),
            any_lock: AtomicBool::new(false),
            locked: std::array::from_fn(|_| Mutex::default()),
        }
    }
}

impl Opens {
    /// Adds an open and returns its handle.
    pub(crate) fn add(&self, inode: InodeId, is_writing: bool) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        let open = Open {
            inode,
            is_writing,
            may_have_locks: false,
            may_have_ranges: false,
        };
        self.part(handle).insert(handle, open);
        handle
    }

    /// Ends an open. None if there is no such open.
    pub(crate) fn remove(&self, handle: u64) -> Option<Open> {
        let open = self.part(handle).remove(&handle)?;
        if open.may_have_ranges {
            self.forget_lock(open.inode);
        }
        Some(open)
    }

    /// Whether the open may write.
    pub(crate) fn is_writing(&self, handle: u64) -> bool {
        let part = self.part(handle);
        part.get(&handle).is_some_and(|open| open.is_writing)
    }

    /// Notes a lock request. Must happen before the lock is granted, since a close may follow at
    /// once.
    pub(crate) fn note_lock(&self, lock: &Lock) {
        let mut part = self.part(lock.handle);
        let Some(open) = part.get_mut(&lock.handle) else {
            return;
        };
        open.may_have_locks = true;
        if !lock.flock && !std::mem::replace(&mut open.may_have_ranges, true) {
            *self.locked_part(open.inode).entry(open.inode).or_default() += 1;
            self.any_lock.store(true, Ordering::Release);
        }
    }

    /// Whether range locks may be held on the inode through this mount.
    pub(crate) fn may_be_locked(&self, inode: InodeId) -> bool {
        self.any_lock.load(Ordering::Acquire) && self.locked_part(inode).contains_key(&inode)
    }

    /// The inodes that are open.
    pub(crate) fn inodes(&self) -> BTreeSet<InodeId> {
        let mut all = BTreeSet::new();
        for part in &self.opens {
            all.extend(part.lock().values().map(|open| open.inode));
        }
        all
    }

    /// Ends all opens and returns their inodes.
    pub(crate) fn take_all(&self) -> Vec<InodeId> {
        let mut all = Vec::new();
        for part in &self.opens {
            all.extend(part.lock().drain().map(|(_, open)| open.inode));
        }
        all
    }

    fn forget_lock(&self, inode: InodeId) {
        let mut part = self.locked_part(inode);
        let count = part.get_mut(&inode).expect("its opens are counted");
        *count -= 1;
        if *count == 0 {
            part.remove(&inode);
        }
    }

    fn part(&self, handle: u64) -> MutexGuard<'_, Map<u64, Open>> {
        self.opens[handle as usize % PARTS].lock()
    }

    fn locked_part(&self, inode: InodeId) -> MutexGuard<'_, Map<InodeId, u64>> {
        self.locked[inode.0 as usize % PARTS].lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{LockKind, LockRange};

    #[test]
    fn an_inode_may_be_locked_until_the_last_open_that_locked_it_ends() {
        let opens = Opens::default();
        let inode = InodeId(7);
        let (first, second, third) = (
            opens.add(inode, true),
            opens.add(inode, false),
            opens.add(InodeId(8), true),
        );
        let lock = |handle, flock| Lock {
            inode,
            handle,
            owner: 100,
            range: LockRange { start: 0, end: 9 },
            kind: Some(LockKind::Shared),
            pid: 1,
            flock,
        };
        assert!(!opens.may_be_locked(inode));
        opens.note_lock(&lock(first, true));
        assert!(!opens.may_be_locked(inode), "closes don't end flocks");
        opens.note_lock(&lock(first, false));
        opens.note_lock(&lock(first, false));
        opens.note_lock(&lock(second, false));
        assert!(opens.may_be_locked(inode) && !opens.may_be_locked(InodeId(8)));
        assert!(opens.is_writing(first) && !opens.is_writing(second));
        let ended = opens.remove(first).expect("it is open");
        assert!(ended.inode == inode && ended.may_have_locks);
        assert!(opens.may_be_locked(inode));
        assert!(opens.remove(second).is_some() && opens.remove(second).is_none());
        assert!(!opens.may_be_locked(inode));
        assert!(opens.remove(third).is_some_and(|open| !open.may_have_locks));
        let fourth = opens.add(inode, true);
        assert_eq!(opens.take_all(), [inode]);
        assert!(opens.remove(fourth).is_none());
    }
}
