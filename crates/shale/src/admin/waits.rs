//! What waits on a node, as nodes tell it, so that a command can put the waits of several nodes together.

use serde::{Deserialize, Serialize};

/// What programs wait for in the pause in which their node becomes the first one of a cluster; a colon follows, and for what that
/// waits.
pub const BECOMES_FIRST: &str = "the node to become the first one of a cluster";
/// What can be done about that.
pub const BECOMES_FIRST_REMEDY: &str = "nothing: they go on by themselves, mostly within seconds; if it lasts, `etcd.log` and `daemon.log` in the node's \
     directory say why, and `shale down` ends it: what programs have open is lost then, what was synced is not";

/// Answer of `waiters`.
#[derive(Serialize, Deserialize, Debug, Clone, Default)]
pub struct Waits {
    /// The node; `None`: it is alone.
    pub node: Option<u32>,
    /// What waits there, longest first; at most 8,192.
    pub waits: Vec<Wait>,
    /// How many more wait there.
    pub left_out: u64,
    /// Milliseconds for which the node may still serve; 0: it has no lease. `None`: it is alone.
    pub lease_milliseconds: Option<u64>,
    /// The cluster's manager, as far as the node knows.
    pub manager: Option<u32>,
    /// The leases of all members, if the node is the manager.
    pub leases: Vec<LeaseRest>,
}

/// How long a node's lease lasts still.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct LeaseRest {
    /// The node.
    pub node: u32,
    /// Milliseconds until others go on without it, unless it is heard before.
    pub milliseconds: u64,
}

/// One wait, or work that others wait for.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct Wait {
    /// The operation that waits.
    pub what: String,
    /// What it waits for.
    pub cause: String,
    /// Milliseconds so far.
    pub milliseconds: u64,
    /// The errand: the same 16 hex digits for all that is done for one request of a program. Empty: nobody's.
    pub trace: String,
    /// The node whose call is served; `None`: the errand began on this node.
    pub from: Option<u32>,
    /// It is only a link between others: not listed by itself.
    pub is_link: bool,
    /// What it is in a chain of waits.
    pub part: WaitPart,
}

/// What a wait is in a chain of waits.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum WaitPart {
    /// A program's request.
    Program,
    /// A wait for what its cause says, or for what else is listed of its errand.
    Wait,
    /// A wait for work of this node.
    ForWork {
        /// Which.
        work: String,
    },
    /// A wait for a node's answer.
    ForAnswer {
        /// The node.
        node: u32,
        /// Of what.
        of: String,
    },
    /// A wait for the owner of a shard.
    ForOwner {
        /// The shard.
        shard: u32,
        /// The node that owns it, as far as is known.
        node: Option<u32>,
    },
    /// A wait for an NSD.
    ForNsd {
        /// The NSD.
        nsd: u32,
        /// The node that has it, as far as is known.
        node: Option<u32>,
    },
    /// A wait for coordination.
    ForCoordination,
    /// A wait for what a client has cached or changed.
    ForToken {
        /// Of this inode.
        inode: String,
        /// The client's node, as far as is known.
        node: Option<u32>,
        /// Milliseconds until the client's tokens have run out, unless it is heard before.
        runs_out_milliseconds: u64,
    },
    /// A wait for a program's lock of a file.
    ForLock {
        /// The file.
        inode: String,
        /// The program's node, as far as is known.
        node: Option<u32>,
        /// The program; 0: unknown.
        pid: u32,
    },
    /// Work that others wait for.
    Work {
        /// Which.
        work: String,
    },
    /// The work on another node's call.
    Call {
        /// What for.
        of: String,
    },
}

/// A member of the cluster, as a node knows it without asking coordination.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct MemberLine {
    /// Its number.
    pub node: u32,
    /// Its name; empty if it isn't known.
    pub name: String,
    /// It is the node that tells this.
    pub is_here: bool,
}
