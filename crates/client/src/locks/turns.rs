//! Requests about the locks that one program has on one file: one after the other.
//!
//! What a new owner is told of locks follows from the answers of the one before (`owner/book.rs`). Of two requests that are under
//! way at the same time nobody knows here which one the owner has done first, and answers overtake each other. What one thread of
//! a program has locked and another one has unlocked would be told as a lock, and be taken from who has got it since.

use model::InodeId;
use model::lock::LockOwner;
use model::owner::LockCall;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::OwnedMutexGuard;

/// A file, and whose locks there.
pub(super) type Whose = (InodeId, LockOwner);

/// Those of which a request is under way, or waits for its turn.
#[derive(Default)]
pub(super) struct Turns(Mutex<BTreeMap<Whose, Arc<tokio::sync::Mutex<()>>>>);

/// The turn of a request, until this is dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    whose: Whose,
    /// `None` while it waits.
    held: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// The turn of a request, if nobody has it.
    pub(super) fn try_enter(&self, whose: Whose) -> Option<Turn<'_>> {
        let held = self.line(whose).try_lock_owned().ok()?;
        Some(Turn {
            turns: self,
            whose,
            held: Some(held),
        })
    }

    /// Waits for the turn of a request.
    pub(super) async fn enter(&self, whose: Whose) -> Turn<'_> {
        // First: who stops waiting leaves nothing behind either.
        let mut turn = Turn {
            turns: self,
            whose,
            held: None,
        };
        turn.held = Some(self.line(whose).lock_owned().await);
        turn
    }

    fn line(&self, whose: Whose) -> Arc<tokio::sync::Mutex<()>> {
        self.0.lock().entry(whose).or_default().clone()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        drop(self.held.take());
        let mut all = self.turns.0.lock();
        // Whoever waits has a copy, which is made with all of them locked.
        let line = all.get(&self.whose);
        if line.is_some_and(|line| Arc::strong_count(line) == 1) {
            all.remove(&self.whose);
        }
    }
}

/// Whose locks a request changes, if those of one program on one file.
pub(super) fn whose(call: &LockCall) -> Option<Whose> {
    match call {
        LockCall::Set(request) | LockCall::Queue { request, .. } => {
            Some((request.inode, request.owner))
        }
        LockCall::EndProcess { inode, owner } => Some((*inode, *owner)),
        LockCall::BeginDoor(_)
        | LockCall::EndDoor(_)
        | LockCall::EndOpen { .. }
        | LockCall::Await { .. }
        | LockCall::EndWait { .. }
        | LockCall::Test { .. } => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::pin::pin;

    /// Would be broken if two could have the same turn, or if those that are over or given up were remembered.
    #[test]
    fn one_has_the_turn_and_the_last_one_leaves_nothing_behind() {
        let turns = Turns::default();
        let whose = |id| {
            let owner = LockOwner {
                id,
                ..LockOwner::FIRST
            };
            (InodeId(7), owner)
        };
        let first = turns.try_enter(whose(1)).unwrap();
        assert!(turns.try_enter(whose(1)).is_none());
        assert!(turns.try_enter(whose(2)).is_some());
        let mut second = pin!(turns.enter(whose(1)));
        assert!(second.as_mut().now_or_never().is_none());
        let mut given_up = Box::pin(turns.enter(whose(1)));
        assert!(given_up.as_mut().now_or_never().is_none());
        drop(first);
        let second = second.now_or_never().unwrap();
        assert!(turns.try_enter(whose(1)).is_none());
        drop(second);
        drop(given_up);
        assert!(turns.0.lock().is_empty());
    }
}
