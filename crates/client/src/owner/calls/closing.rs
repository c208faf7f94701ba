//! Closes of files that were made here: nobody waits until the owner knows of them, and it hears of many with one message.
//!
//! A program that makes files, syncs and closes them one after the other would keep its client and the owner busy with a
//! message for each close, just when it waits for the next file. Until the owner has heard of a close the file counts as in
//! use: if others remove its last name meanwhile, it takes its space for so much longer. A client that removes it itself says
//! first that it is closed ([`Calls::take_close`]), or the owner would keep it for nothing.

use super::{Calls, PAUSE_MAX};
use model::operation::Stamp;
use model::owner::{OwnerRequest, UNHELD_MAX};
use model::{ErrorKind, InodeId, SessionId};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long closes are collected.
const CLOSE_DELAY: Duration = Duration::from_millis(50);
/// Most that wait. The owner is told of more as of all other closes.
const WAITING_MAX: usize = 4_096;

/// The closes of which the owner hasn't heard.
#[derive(Default)]
pub(super) struct Closing(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// The oldest ones first. A file that was opened and closed twice is there twice.
    inodes: VecDeque<InodeId>,
    /// A task tells of them.
    is_telling: bool,
}

impl Waiting {
    /// A file is closed. False if so many wait that this one must be told at once.
    fn add(&mut self, inode: InodeId) -> bool {
        let has_room = self.inodes.len() < WAITING_MAX;
        if has_room {
            self.inodes.push_back(inode);
        }
        has_room
    }

    /// Whether a task must be begun that tells of them.
    fn begin_telling(&mut self) -> bool {
        !std::mem::replace(&mut self.is_telling, true)
    }

    /// Those that go next; `None` if there are none, and their task ends.
    fn next(&mut self) -> Option<Vec<InodeId>> {
        self.is_telling = !self.inodes.is_empty();
        let count = self.inodes.len().min(UNHELD_MAX);
        self.is_telling
            .then(|| self.inodes.drain(..count).collect())
    }

    /// Takes a close of a file out. Whether there was one.
    fn take(&mut self, inode: InodeId) -> bool {
        let at = self.inodes.iter().position(|it| *it == inode);
        at.is_some_and(|at| self.inodes.remove(at).is_some())
    }
}

impl Calls {
    /// A program has closed a file that was made here: this session's owner hears of it soon. False if it must be told now,
    /// because it is in this process, or too many wait.
    pub(in crate::owner) fn unhold_later(&self, session: SessionId, inode: InodeId) -> bool {
        let is_own = self.session.get() == Some(&session) && !self.has_ended();
        if !is_own || self.is_near() {
            return false;
        }
        if self.close_unsent(inode) {
            return true;
        }
        let begins = {
            let mut waiting = self.closing.0.lock();
            if !waiting.add(inode) {
                return false;
            }
            waiting.begin_telling()
        };
        if begins {
            let calls = self.me.upgrade().expect("an owner is used through its Arc");
            let telling = async move { calls.tell_closes().await };
            let task = self.world.spawn("tells of closed files", telling);
            task.detach();
        }
        true
    }

    /// A file's name is about to be removed. If it was closed and the owner hasn't been told: the session that had it open, and
    /// who asks tells it.
    pub(in crate::owner) fn take_close(&self, inode: InodeId) -> Option<SessionId> {
        let is_closed = self.closing.0.lock().take(inode);
        self.session.get().copied().filter(|_| is_closed)
    }

    /// Tells the owner of closed files until it knows of all, or the session has ended.
    async fn tell_closes(&self) {
        loop {
            let is_much = self.closing.0.lock().inodes.len() >= UNHELD_MAX;
            if !is_much {
                self.world.sleep(CLOSE_DELAY).await;
            }
            let Some(inodes) = self.closing.0.lock().next() else {
                return;
            };
            // A use that the owner hasn't heard of can't end. What has become of it is known as well if the session has ended.
            let _ended = self.all_streamed(&inodes).await;
            let session = self.session.get().copied().unwrap_or_default();
            let tells = OwnerRequest::UnholdAll {
                inodes,
                stamp: Stamp::own(self.world.wall(), session),
            };
            let Err(error) = self.ask(&tells).await else {
                continue;
            };
            tracing::debug!(%error, "the owner can't be told of closed files");
            let OwnerRequest::UnholdAll { inodes, .. } = tells else {
                unreachable!("made above");
            };
            // Any other error says that it was done, or that another task goes on asking.
            if error.kind() == ErrorKind::Unavailable && !self.has_ended() {
                self.closing.0.lock().inodes.extend(inodes);
                self.world.sleep(PAUSE_MAX).await;
            }
        }
    }

    /// Whether nothing of the session matters any more.
    fn has_ended(&self) -> bool {
        self.is_over.load(Ordering::Acquire) || self.closed.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_closes_are_told_at_a_time_and_each_once() {
        let mut waiting = Waiting::default();
        let inode = |number: usize| InodeId(number as u64);
        assert!((0..UNHELD_MAX + 3).all(|number| waiting.add(inode(number))));
        assert!(waiting.begin_telling() && !waiting.begin_telling());
        // It was open twice.
        assert!(waiting.add(inode(5)) && waiting.take(inode(5)));
        let first = waiting.next().expect("some wait");
        assert_eq!(first.len(), UNHELD_MAX);
        assert_eq!(waiting.next().map(|rest| rest.len()), Some(3));
        assert!(!waiting.take(inode(5)), "it was told");
        assert!(!waiting.begin_telling(), "the task looks once more");
        assert_eq!(waiting.next(), None);
        assert!(waiting.begin_telling());
    }

    #[test]
    fn no_more_closes_wait_than_may() {
        let mut waiting = Waiting::default();
        for number in 0..WAITING_MAX as u64 {
            assert!(waiting.add(InodeId(number)));
        }
        assert!(!waiting.add(InodeId(9)));
        waiting.next();
        assert!(waiting.add(InodeId(9)));
    }
}
