//! The exclusive use of an inode, which truncates, allocations and copies need.

use super::InodeState;
use crate::session::Session;
use model::Result;
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};

/// No write to an inode begins while this lives.
pub(crate) struct Exclusive<'a> {
    state: &'a InodeState,
    _gate: RwLockWriteGuard<'a, ()>,
}

impl InodeState {
    /// Waits for its turn, then excludes writers.
    pub(crate) async fn exclude_writers(&self, session: &Session) -> Result<Exclusive<'_>> {
        let gate = match self.gate.try_write() {
            Ok(gate) => gate,
            Err(_) => {
                let turn = self.gate.write();
                session
                    .wait("a truncate of the same file", Some(self.id), turn)
                    .await?
            }
        };
        self.lock().set_exclusive(true);
        Ok(Exclusive {
            state: self,
            _gate: gate,
        })
    }
}

/// No truncate or the like begins while this lives.
pub(crate) struct Turn<'a> {
    _gate: RwLockReadGuard<'a, ()>,
}

impl InodeState {
    /// Waits until what runs, or waits before, has ended. In their order, so that a program that changes a file all
    /// the time doesn't keep readers waiting for ever. Readers that follow each other go on together. Who has a turn
    /// must give it up before it waits for another one.
    pub(crate) async fn turn(&self) -> Turn<'_> {
        Turn {
            _gate: self.gate.read().await,
        }
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.state.lock().set_exclusive(false);
        self.state.signal();
    }
}
