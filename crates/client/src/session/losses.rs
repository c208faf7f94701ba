//! Counts what the client lost with its sessions.

use std::ops::Add;
use std::sync::atomic::{AtomicU64, Ordering};

/// What was lost with sessions that the owner ended, since the client began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Losses {
    /// Sessions.
    pub sessions: u64,
    /// Files with written data that wasn't in the file system yet.
    pub files_with_data: u64,
    /// Files on which programs had locks.
    pub files_with_locks: u64,
    /// Open files that had no names any more.
    pub files_without_names: u64,
}

impl Add for Losses {
    type Output = Self;

    /// What two clients have lost together.
    fn add(self, other: Self) -> Self {
        Self {
            sessions: self.sessions + other.sessions,
            files_with_data: self.files_with_data + other.files_with_data,
            files_with_locks: self.files_with_locks + other.files_with_locks,
            files_without_names: self.files_without_names + other.files_without_names,
        }
    }
}

/// The counters.
#[derive(Default)]
pub(crate) struct Counters {
    sessions: AtomicU64,
    with_data: AtomicU64,
    with_locks: AtomicU64,
    without_names: AtomicU64,
}

impl Counters {
    pub(super) fn add(&self, losses: Losses) {
        let add = |counter: &AtomicU64, count| counter.fetch_add(count, Ordering::Relaxed);
        add(&self.sessions, losses.sessions);
        add(&self.with_data, losses.files_with_data);
        add(&self.with_locks, losses.files_with_locks);
        add(&self.without_names, losses.files_without_names);
    }

    pub(super) fn read(&self) -> Losses {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Losses {
            sessions: read(&self.sessions),
            files_with_data: read(&self.with_data),
            files_with_locks: read(&self.with_locks),
            files_without_names: read(&self.without_names),
        }
    }
}
