//! Jobs of placement groups in a cluster: what the servers of NSDs and the manager say to each other
//! about repair, sweep and scrub. `docs/protocols/jobs.md` tells how it is used.
//!
//! *A server* states every second or two what it runs and has ended ([`JobsRequest::State`]); the answer
//! is all that it shall run. Both may be lost, repeated or late.

use crate::call::{Class, Method};
use crate::member::Term;
use crate::{GroupId, GroupVersion, MapEpoch, NodeId, NsdId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What the manager answers about jobs: a [`JobsRequest`] with a [`JobsReply`].
pub const JOBS: Method = Method(0x0400);

/// The class of the requests: small, and few.
pub const JOBS_CLASS: Class = Class::Metadata;

/// Most ended jobs in a statement.
pub const FINISHED_MAX: usize = 4_096;

/// Most jobs that a statement says a server runs.
pub const STATED_MAX: usize = 64;

/// Most NSDs of a node in a statement.
pub const STATED_NSDS_MAX: usize = 1_024;

/// Most nodes in a [`RepairReport`].
pub const REPORTED_NODES_MAX: usize = 4_096;

/// What is done to a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// Its NSDs' inventories are compared, and what is missing is rebuilt or moved.
    Repair,
    /// What no shard calls live is deleted.
    Sweep,
    /// All its pieces are read and verified.
    Scrub,
}

/// A job: there is at most one of a kind for a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct JobId {
    /// What.
    pub kind: Kind,
    /// To which group.
    pub group: GroupId,
}

/// The state of a group that a job saw: another one may have other pieces to rebuild.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Stamp {
    /// Of the group in the map.
    pub version: GroupVersion,
    /// How often its NSDs were opened, together: one that was away missed something.
    pub opened: u64,
}

/// How far a job has come: what is before it is done, for its stamp. Only workers know what it means.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Cursor(pub u128);

/// Tells assignments of the same job apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Attempt {
    /// Of the manager that assigned it first.
    pub term: Term,
    /// Counts that manager's.
    pub number: u64,
}

/// A job that a server shall do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// All that was to be done is done.
    Complete,
    /// Something couldn't be done now.
    Partial,
}

/// A job under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
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
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
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
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Statement {
    /// The newest manager that it knows.
    pub term: Term,
    /// Grows with each statement.
    pub number: u64,
    /// All that it runs.
    pub running: Vec<Running>,
    /// What it has finished and this manager hasn't heard: at most [`FINISHED_MAX`].
    pub finished: Vec<Finished>,
    /// There is more of that.
    pub has_more: bool,
}

/// The answer to a statement.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
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

/// An NSD of a server, as itself says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct StatedNsd {
    /// The NSD.
    pub nsd: NsdId,
    /// It answers.
    pub serves: bool,
    /// How often it was opened: grows when it comes back.
    pub opened: u64,
}

/// What a server's repairs have done since its run began.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Rebuilt {
    /// Pieces written.
    pub pieces: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What the owners of the shards on a node have to do with the pool's data by themselves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct OwnersWork {
    /// The first group of the newest generation, as they know the map.
    pub newest: GroupId,
    /// Shards whose owners have counted what they have to rewrite into it.
    pub counted: u64,
    /// Segments that they have to rewrite: those in generations of groups that are being emptied.
    pub to_rewrite: u64,
    /// Shards whose owners move data to NSDs that hold less than others.
    pub balancing: u64,
}

/// What the manager is asked.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum JobsRequest {
    /// A server says how it is. → `Orders`
    State {
        /// Its jobs.
        statement: Statement,
        /// Its NSDs that were opened: at most [`STATED_NSDS_MAX`].
        nsds: Vec<StatedNsd>,
        /// What it has done.
        rebuilt: Rebuilt,
        /// What its owners do.
        owners: OwnersWork,
    },
    /// How repair is. → `Status`
    Status,
}

/// What the manager answers.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum JobsReply {
    /// What the server shall run.
    Orders {
        /// The jobs.
        orders: Orders,
        /// NSDs that don't serve: the groups' stamps count without them. At most [`STATED_NSDS_MAX`].
        away: Vec<NsdId>,
        /// No repair runs, and none that could be done waits for its first try.
        is_calm: bool,
    },
    /// How repair is.
    Status(RepairReport),
}

/// How repair of a cluster's pool is, and which part the nodes have in it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct RepairReport {
    /// Of the whole pool.
    pub progress: RepairProgress,
    /// Of each node that has said what it does, or has a part in a job, in the order of their numbers: at most
    /// [`REPORTED_NODES_MAX`].
    pub nodes: Vec<NodePart>,
}

/// A node's part in repair, sweep and scrub.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct NodePart {
    /// The node.
    pub node: NodeId,
    /// Jobs that it leads.
    pub led: u64,
    /// Jobs that one of its NSDs takes part in.
    pub taking_part: u64,
    /// What these may read or write there together, per second.
    pub bytes_per_second: u64,
    /// What it has rebuilt since this manager began, on any NSD.
    pub rebuilt: Rebuilt,
}

/// How repair of a cluster's pool is, as its manager knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct RepairProgress {
    /// The manager's: what it counts begins with it.
    pub term: Term,
    /// The newest map that it knows: of later changes this tells nothing.
    pub map: MapEpoch,
    /// It has heard what servers do. Until then the numbers of groups and repairs mean nothing.
    pub is_known: bool,
    /// Groups that can't lose anything more without losing data.
    pub groups_critical: u64,
    /// Groups that have lost more than they survive, until an NSD comes back.
    pub groups_unreadable: u64,
    /// Groups that lack a slot.
    pub groups_degraded: u64,
    /// Repairs that wait or run, looks at groups that have just changed included.
    pub repairs: u64,
    /// Jobs of all kinds that run.
    pub running: u64,
    /// Sweeps among them.
    pub sweeps: u64,
    /// Scrubs among them.
    pub scrubs: u64,
    /// Servers that lead them.
    pub servers: u64,
    /// What all jobs together may read or write at one node, per second.
    pub limit: u64,
    /// Slots that are moving to another NSD.
    pub slots_moving: u64,
    /// Slots that have moved since this manager began.
    pub slots_moved: u64,
    /// What servers have rebuilt since this manager began.
    pub rebuilt: Rebuilt,
    /// Bytes that repairs still have to look at, about.
    pub bytes_left: u64,
    /// Those of groups that can't lose anything more, among them.
    pub bytes_critical: u64,
    /// Bytes that repairs looked at in the last minute, or since the first of those that are left was wanted, for
    /// each second of it.
    pub bytes_per_second: u64,
    /// When all repairs will be done, if it goes on like this. `None` while nobody knows.
    pub done_in: Option<Duration>,
    /// All groups were repaired since they last changed, and lack nothing.
    pub is_complete: bool,
    /// Generations of groups that are being emptied: what is in them is rewritten into the newest one.
    pub closed: u64,
    /// Segments in them that owners still have to rewrite. `None`: not all owners have counted them.
    pub to_rewrite: Option<u64>,
    /// When that will be done, if it goes on as in the last minute. `None` while nobody knows.
    pub rewritten_in: Option<Duration>,
    /// Shards whose owners move data to NSDs that hold less than others.
    pub balancing: u64,
}
