//! What the manager of a cluster knows of work on the pool, in the answer to `shale repair status`.

use serde::{Deserialize, Serialize};

/// Work on a cluster's pool: what is restored, moved and looked at, and which part each node has in it.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct ClusterRepair {
    /// What is lost is rebuilt, and slots move to other NSDs.
    pub repair: RepairLine,
    /// Data moves to the newest groups, and gets their scheme.
    pub rewrite: RewriteLine,
    /// Data moves to NSDs that hold less than others: owners of so many shards do that now.
    pub balancing_shards: u64,
    /// Groups that are swept now: what nobody needs is looked for.
    pub sweeps: u64,
    /// Groups that are scrubbed now: everything is read and verified.
    pub scrubs: u64,
    /// Bytes per second that repair, sweep and scrub together may read or write at one node.
    pub limit_bytes_per_second: u64,
    /// The part of each node in repair, sweep and scrub.
    pub nodes: Vec<NodePartLine>,
}

/// Repair of groups. Bytes are those of pieces.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
pub struct RepairLine {
    /// `idle`, `running`, or `waiting` for NSDs.
    pub state: String,
    /// Groups that are repaired now, or will be.
    pub groups: u64,
    /// Those among them that lose data with the next NSD. They come first.
    pub groups_critical: u64,
    /// Groups that lack an NSD now.
    pub groups_degraded: u64,
    /// Groups that can't be read before an NSD comes back.
    pub groups_unreadable: u64,
    /// Bytes that are still to be looked at, in groups that lose data with the next NSD.
    pub critical_bytes_left: u64,
    /// The same, in others.
    pub normal_bytes_left: u64,
    /// Bytes that were looked at in the last minute, for each second of it.
    pub bytes_per_second: u64,
    /// Seconds until all is repaired, if it goes on like this; `None`: not known.
    pub seconds_left: Option<u64>,
    /// Pieces that were written since this manager began.
    pub pieces_done: u64,
    /// Their bytes.
    pub bytes_done: u64,
    /// Slots that move to another NSD.
    pub slots_moving: u64,
    /// Slots that have moved since this manager began.
    pub slots_moved: u64,
}

/// Rewriting of what is in old groups.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
pub struct RewriteLine {
    /// `idle` or `running`.
    pub state: String,
    /// Generations of groups that are being emptied.
    pub generations: u64,
    /// Segments in them that are still to be rewritten; `None`: they aren't counted yet.
    pub segments_left: Option<u64>,
    /// Seconds until they are, if it goes on as in the last minute; `None`: not known.
    pub seconds_left: Option<u64>,
}

/// A node's part in repair, sweep and scrub.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
pub struct NodePartLine {
    /// Its number.
    pub node: u32,
    /// Groups of which it leads the work.
    pub led: u64,
    /// Groups under work that have an NSD of this node.
    pub taking_part: u64,
    /// Bytes per second that these may read or write there together.
    pub bytes_per_second: u64,
    /// Pieces that it has written since this manager began, to NSDs of any node.
    pub pieces_done: u64,
    /// Their bytes.
    pub bytes_done: u64,
}
