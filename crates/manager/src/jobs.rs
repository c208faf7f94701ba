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
pub use planner::{Planner, Status};
pub use waiting::Settings;
pub use worker::Worker;

use model::member::Term;
use model::{GroupId, GroupVersion};
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

/// What is done to a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Its NSDs' inventories are compared, and what is missing is rebuilt or moved.
    Repair,
    /// What no shard calls live is deleted.
    Sweep,
    /// All its pieces are read and verified.
    Scrub,
}

/// A job: there is at most one of a kind for a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobId {
    /// What.
    pub kind: Kind,
    /// To which group.
    pub group: GroupId,
}

/// The state of a group that a job saw: another one may have other pieces to rebuild.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stamp {
    /// Of the group in the map.
    pub version: GroupVersion,
    /// How often its NSDs were opened, together: one that was away missed something.
    pub opened: u64,
}

/// How far a job has come: what is before it is done, for its stamp. Only workers know what it means.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Cursor(pub u64);

/// Tells assignments of the same job apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Attempt {
    /// Of the manager that assigned it first.
    pub term: Term,
    /// Counts that manager's.
    pub number: u64,
}

/// A job that a server shall do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Assignment {
    /// The job.
    pub job: JobId,
    /// The group's state.
    pub stamp: Stamp,
    /// Which assignment it is.
    pub attempt: Attempt,
    /// Where it begins.
    pub from: Cursor,
    /// What it may read or write at each NSD server of its group.
    pub bytes_per_second: u64,
}

/// What came of a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Outcome {
    /// All that was to be done is done.
    Complete,
    /// Something couldn't be done now.
    Partial,
}

/// A job under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Running {
    /// The job.
    pub job: JobId,
    /// As assigned.
    pub stamp: Stamp,
    /// As assigned.
    pub attempt: Attempt,
    /// How far it has come.
    pub at: Cursor,
    /// Bytes that this attempt has looked at.
    pub bytes: u64,
}

/// A job that a server has ended. It remembers the last one of each kind and group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Finished {
    /// The job.
    pub job: JobId,
    /// As assigned.
    pub stamp: Stamp,
    /// As assigned.
    pub attempt: Attempt,
    /// What came of it.
    pub outcome: Outcome,
    /// How long ago.
    pub ago: Duration,
}

/// What a server says every now and then.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Statement {
    /// The newest manager that it knows.
    pub term: Term,
    /// Grows with each statement.
    pub number: u64,
    /// All that it runs.
    pub running: Vec<Running>,
    /// All that it has finished and this manager hasn't heard.
    pub finished: Vec<Finished>,
}

/// The answer to a statement.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Orders {
    /// Of the manager.
    pub term: Term,
    /// Grows with each answer of a manager.
    pub number: u64,
    /// The newest statement that counted.
    pub heard: u64,
    /// All that the server shall run.
    pub assignments: Vec<Assignment>,
}
