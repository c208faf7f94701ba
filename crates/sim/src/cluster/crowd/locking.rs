//! Programs that lock files, and change counters under their locks.
//!
//! Under an exclusive lock a program reads a cell of a file and writes a number there that nobody has
//! written before: no number may be read by two programs that did so. Under a shared lock a cell stays as
//! it is. And nobody is told that it has a lock while another one has what conflicts with it, unless one of
//! them has lost its session.

use super::known::lock;
use super::locks::Held;
use super::programs::{Lost, Programs};
use crate::witness::{Answer, Call};
use client::OpenFlags;
use model::lock::{LockDoor, LockOwner, LockTaker};
use model::{ErrorKind, InodeId, LockKind, LockRange};
use std::time::Duration;

/// Cells that are counters; a lock has one or two of them.
const COUNTERS: u64 = 3;
/// Longest time for which a program waits for a lock.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// How long locks of clients that are gone may stay: no longer than their sessions.
const FREE_MAX: Duration = Duration::from_secs(60);
/// Longest time for which it keeps one, in milliseconds: nearly always, and sometimes, so that it has one when
/// something breaks.
const KEEP_MAX: u64 = 40;
const LONG_MAX: u64 = 1_500;

impl Programs {
    /// Changes a counter under an exclusive lock, or looks at it under a shared one.
    pub(super) async fn use_a_lock(&self) -> Result<(), Lost> {
        let (inode, held, is_patient, number) = {
            let known = &mut *lock(&self.known);
            let Some(inode) = known.counters else {
                return Ok(());
            };
            let kind = match known.draw.below(3) {
                0 => LockKind::Shared,
                _ => LockKind::Exclusive,
            };
            let counter = known.draw.below(COUNTERS) as usize;
            let (is_wide, is_patient) = (known.draw.below(3) == 0, known.draw.below(3) > 0);
            let held = Held {
                client: self.number,
                first: counter,
                last: counter + usize::from(is_wide),
                kind,
            };
            (inode, held, is_patient, known.locks.ask(held))
        };
        let flags = OpenFlags {
            write: true,
            ..OpenFlags::default()
        };
        if let Err(error) = self.client.open(inode, flags).await {
            return self.locks_failed(&error);
        }
        let done = self.with_lock(inode, held, is_patient, number).await;
        lock(&self.known).locks.end(number);
        if done.is_ok() {
            // If it hasn't given it back, it goes with its door.
            lock(&self.known).locks.ended(number, false);
        }
        self.client.release(inode).await;
        done
    }

    async fn with_lock(
        &self,
        inode: InodeId,
        held: Held,
        is_patient: bool,
        number: u64,
    ) -> Result<(), Lost> {
        let door = match self.client.begin_lock_door().await {
            Ok(door) => door,
            Err(error) => return self.locks_failed(&error),
        };
        let done = self.in_door(inode, held, is_patient, (door, number)).await;
        self.client.end_lock_door(door);
        done
    }

    async fn in_door(
        &self,
        inode: InodeId,
        held: Held,
        is_patient: bool,
        (door, number): (LockDoor, u64),
    ) -> Result<(), Lost> {
        let bytes = self.cell_bytes() as u64;
        let range = LockRange {
            start: held.first as u64 * bytes,
            end: (held.last as u64 + 1) * bytes - 1,
        };
        let owner = LockOwner { door, id: number };
        let taker = LockTaker {
            open: number,
            pid: 1,
            user: 0,
        };
        let set = async |kind| {
            let interrupted = is_patient.then(|| self.world.sleep(WAIT_MAX));
            let client = &self.client;
            client
                .set_lock(inode, owner, range, kind, taker, interrupted)
                .await
        };
        match set(Some(held.kind)).await {
            Ok(()) => lock(&self.known).locks.begin(number, held),
            Err(error) if is_refusal(error.kind()) => {
                return self.lock_refused(held, number, error.kind());
            }
            Err(error) => return self.locks_failed(&error),
        }
        let cell = held.first;
        let read = Call::Read {
            inode,
            cell,
            cells: 1,
        };
        let from = first_of(&self.ask(true, read.clone()).await?);
        let pause = {
            let draw = &mut lock(&self.known).draw;
            let longest = if draw.below(8) == 0 {
                LONG_MAX
            } else {
                KEEP_MAX
            };
            Duration::from_millis(draw.below(longest))
        };
        self.world.sleep(pause).await;
        let is_good = match held.kind {
            LockKind::Shared => {
                let again = first_of(&self.ask(true, read).await?);
                if from.is_some() && again.is_some() && from != again {
                    let text = format!(
                        "counter {cell} became {again:?} from {from:?} under a shared lock"
                    );
                    let known = &mut *lock(&self.known);
                    known.locks.breaks(self.number, text);
                }
                false
            }
            LockKind::Exclusive => {
                let value = lock(&self.known).value();
                let write = Call::Write {
                    inode,
                    cell,
                    cells: 1,
                    value,
                };
                self.ask(true, write).await? == Answer::Done
            }
        };
        lock(&self.known).locks.end(number);
        let given_back = set(None).await;
        if given_back.is_ok() {
            lock(&self.known).locks.ended(number, true);
        }
        match (given_back, from) {
            (Ok(()), Some(from)) if is_good => {
                let known = &mut *lock(&self.known);
                known.locks.count(cell, from, self.number);
                Ok(())
            }
            (Ok(()), _) => Ok(()),
            (Err(error), _) => self.locks_failed(&error),
        }
    }

    /// A refusal needs somebody who has or wants what conflicts. No program wants two locks, so nobody waits in a
    /// circle.
    fn lock_refused(&self, wanted: Held, number: u64, kind: ErrorKind) -> Result<(), Lost> {
        let has_reason = {
            let known = &mut *lock(&self.known);
            known.locks.refuse();
            kind != ErrorKind::WouldDeadlock && known.locks.has_conflict(number)
        };
        match has_reason {
            true => Ok(()),
            false => self.breaks_unless_lost(format!("{kind:?} of {wanted:?}, for no reason")),
        }
    }

    /// At the end nobody has a lock any more: this one must be free in the end.
    pub(super) async fn all_locks_are_free(&self) {
        let Some(inode) = lock(&self.known).counters else {
            return;
        };
        let taken = async {
            self.client.open(inode, OpenFlags::default()).await?;
            let door = self.client.begin_lock_door().await?;
            let owner = LockOwner { door, id: 1 };
            let taker = LockTaker {
                open: 1,
                pid: 1,
                user: 0,
            };
            let range = LockRange {
                start: 0,
                end: u64::MAX,
            };
            let kind = Some(LockKind::Exclusive);
            let gives_up = self.world.sleep(FREE_MAX);
            let client = &self.client;
            let taken = client
                .set_lock(inode, owner, range, kind, taker, Some(gives_up))
                .await;
            client.end_lock_door(door);
            client.release(inode).await;
            taken
        };
        if let Err(error) = taken.await {
            let known = &mut *lock(&self.known);
            known.breaks(format!("{error} of a lock, though no program is left"));
        }
    }

    fn locks_failed(&self, error: &model::Error) -> Result<(), Lost> {
        let known = &mut *lock(&self.known);
        if matches!(error.kind(), ErrorKind::SessionEnded | ErrorKind::Unknown) {
            known.lose_client(self.number);
            return Err(Lost);
        }
        if !self.scenario.may_fail() {
            known.breaks(format!("client {} saw {error} of a lock", self.number));
        }
        Ok(())
    }
}

fn is_refusal(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::WouldDeadlock
    )
}

/// The cell that a read shows.
fn first_of(answer: &Answer) -> Option<u32> {
    match answer {
        Answer::Cells(cells) => Some(cells.first().copied().unwrap_or(0)),
        _ => None,
    }
}
