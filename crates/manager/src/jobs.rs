//! Who repairs, sweeps and scrubs which placement group: one job for each group, given by the manager to
//! a server that has one of the group's NSDs.
//!
//! [`Planner`] is the manager's half, one for each pool; [`Worker`] a server's. A *job* is data: which
//! group, in which state ([`Stamp`]), and how far it has come ([`Cursor`]). A statement of a server
//! says everything that it runs and has finished, and the answer everything that it shall run, so a
//! message that is lost, repeated or late changes nothing. A job that two servers run, or one twice, is
//! done twice, which is harmless: it only adds what is missing and deletes what is garbage.
//!
//! *An NSD is lost*: the map gives its slots to others, which changes the stamps of its groups, so each
//! wants a repair, the most endangered first. *A server dies*: its jobs go on elsewhere from the
//! cursors that it said last. *A new manager* hears from servers what runs and what is done; what
//! nobody says is done again. `docs/protocols/jobs.md`.

mod groups;
mod planner;
mod waiting;
mod worker;

pub use groups::{GroupFact, NsdFact, Slot};
pub use planner::{Planner, Share, Status};
pub use waiting::Settings;
pub use worker::Worker;

pub use model::jobs::{
    Assignment, Attempt, Cursor, FINISHED_MAX, Finished, JobId, Kind, Orders, Outcome, Running,
    Stamp, Statement,
};

use std::time::Duration;

/// Most jobs that a node leads at a time.
pub const LED_MAX: usize = 4;
/// Most jobs that a node takes part in, because one of its NSDs is in the group.
pub const SHARED_MAX: usize = 8;
/// Of these, sweeps and scrubs.
pub const IDLE_MAX: usize = 2;
/// Most ended jobs that a server remembers: the oldest are forgotten, and perhaps done again.
pub const REMEMBERED_MAX: usize = 65_536;
/// Most jobs of a pool at a time.
pub const RUNNING_MAX: usize = 1_024;
/// What couldn't be done completely is tried again after this, or when something has changed.
pub const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// So long a new manager waits to hear from all servers what they run.
pub const HEAR_FIRST: Duration = Duration::from_secs(5);
