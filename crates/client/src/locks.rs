//! File locks: passed to the owner's tables, with this client's session in front.

use crate::client::Client;
use crate::types::{FileLock, LockKind, LockOwner, LockRange};
use metanode::locks as owner_locks;
use model::{InodeId, Result};

impl Client {
    /// F_GETLK: the first lock that is in the way of `lock`, or `lock` with kind `Unlock`.
    ///
    /// # Errors
    /// None today; an owner on another node may be away.
    pub async fn get_lock(
        &self,
        inode: InodeId,
        owner: LockOwner,
        lock: FileLock,
    ) -> Result<FileLock> {
        let Some(kind) = kind_of(lock.kind) else {
            return Ok(lock);
        };
        let in_the_way =
            self.metanode
                .locks()
                .conflict(inode, self.process(owner), range_of(lock.range), kind);
        Ok(match in_the_way {
            None => FileLock {
                kind: LockKind::Unlock,
                ..lock
            },
            Some(held) => FileLock {
                range: LockRange {
                    start: held.range.start,
                    end: held.range.end,
                },
                kind: match held.kind {
                    owner_locks::LockKind::Shared => LockKind::Shared,
                    owner_locks::LockKind::Exclusive => LockKind::Exclusive,
                },
                pid: held.pid,
            },
        })
    }

    /// F_SETLK, and F_SETLKW with `wait`. Dropping the future cancels the wait; a wait for
    /// another program has no deadline and shows in `waiters`.
    ///
    /// # Errors
    /// `WouldBlock` without `wait`, `WouldDeadlock`.
    pub async fn set_lock(
        &self,
        inode: InodeId,
        owner: LockOwner,
        lock: FileLock,
        wait: bool,
    ) -> Result<()> {
        self.check_open()?;
        let _listed = wait.then(|| {
            self.waiters
                .enter("a file lock", Some(inode), self.world.now())
        });
        let (range, kind) = (range_of(lock.range), kind_of(lock.kind));
        let locks = self.metanode.locks();
        locks
            .set_range(inode, self.process(owner), range, kind, lock.pid, wait)
            .await
    }

    /// flock(2): whole-file locks, a space of their own beside POSIX locks.
    ///
    /// # Errors
    /// `WouldBlock` without `wait`.
    pub async fn flock(
        &self,
        inode: InodeId,
        owner: LockOwner,
        kind: LockKind,
        wait: bool,
    ) -> Result<()> {
        self.check_open()?;
        let _listed = wait.then(|| self.waiters.enter("a flock", Some(inode), self.world.now()));
        self.metanode
            .locks()
            .flock(inode, self.open_file(owner), kind_of(kind), wait)
            .await
    }

    /// Drops the POSIX locks of an owner on an inode (FLUSH) or its flock (RELEASE of the
    /// descriptor that took it).
    pub async fn release_locks(&self, inode: InodeId, owner: LockOwner, flock: bool) {
        let owner = if flock {
            self.open_file(owner)
        } else {
            self.process(owner)
        };
        self.metanode.locks().release_owner(inode, owner);
    }

    fn process(&self, owner: LockOwner) -> owner_locks::LockOwner {
        owner_locks::LockOwner::Process(self.session, owner.0)
    }

    fn open_file(&self, owner: LockOwner) -> owner_locks::LockOwner {
        owner_locks::LockOwner::OpenFile(self.session, owner.0)
    }
}

fn kind_of(kind: LockKind) -> Option<owner_locks::LockKind> {
    match kind {
        LockKind::Shared => Some(owner_locks::LockKind::Shared),
        LockKind::Exclusive => Some(owner_locks::LockKind::Exclusive),
        LockKind::Unlock => None,
    }
}

fn range_of(range: LockRange) -> owner_locks::LockRange {
    owner_locks::LockRange {
        start: range.start,
        end: range.end,
    }
}
