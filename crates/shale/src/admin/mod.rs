//! Requests and answers of the daemon's admin API: JSON over a UNIX socket in the node's directory.

pub mod client;
pub mod repair;
pub mod stopping;
mod waits;

pub use waits::{
    BECOMES_FIRST, BECOMES_FIRST_REMEDY, LeaseRest, MemberLine, Wait, WaitPart, Waits,
};

use repair::ClusterRepair;
use serde::{Deserialize, Serialize};

/// The answer to a request that failed, to be shown to a person.
#[derive(Serialize, Deserialize, Debug)]
pub struct Refusal {
    /// Stable name of the error kind.
    pub kind: String,
    /// What was attempted, on what, why it failed, what to do.
    pub message: String,
}

/// Progress of a long request (`GET /v1/work/ID`).
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct Progress {
    /// What is being done, such as `reading segments`.
    pub phase: String,
    /// How much of this phase is done.
    pub done: u64,
    /// The whole of this phase, if known.
    pub total: Option<u64>,
    /// What both count, such as `bytes`.
    pub unit: String,
}

/// `shale status`.
#[derive(Serialize, Deserialize, Debug)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Seconds since the daemon began to serve.
    pub up_seconds: u64,
    /// The mount point of the node's own mount, mounted or not.
    pub mount: String,
    /// Options of the node's own mount.
    pub options: String,
    /// The node's mounts.
    pub mounts: Vec<MountLine>,
    /// Why the node's own mount isn't made yet, while the daemon tries to make it.
    #[serde(default)]
    pub mount_missing: Option<String>,
    /// The pool's scheme.
    pub scheme: String,
    /// Bytes per block.
    pub block_bytes: u64,
    /// Shards served here.
    pub shards: Vec<ShardStatus>,
    /// The memory budget, largest first.
    pub memory: Vec<MemoryLine>,
    /// Resident bytes of the daemon.
    pub resident_bytes: u64,
    /// Background work since the daemon began to serve. Missing in answers of older versions.
    #[serde(default)]
    pub background: metanode::Counters,
    /// The node in its cluster; `None`: it is alone.
    #[serde(default)]
    pub cluster: Option<ClusterStatus>,
}

/// One mount.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct MountLine {
    /// Mount point.
    pub path: String,
    /// Options, as given to `-o`.
    pub options: String,
    /// `mounted`; `detached`: unmounted lazily and still in use, or visible only through bind
    /// mounts; `ending`: unmounted, and being made durable.
    pub state: String,
    /// How requests come from the kernel: `io_uring` or `/dev/fuse`.
    pub transport: String,
    /// Why io_uring isn't used although `/dev/fuse` wasn't asked for, and what would change that.
    pub slower_because: Option<String>,
}

/// Body of `mount`.
#[derive(Serialize, Deserialize, Debug)]
pub struct MountRequest {
    /// Mount point; none: the node's own mount.
    pub path: Option<String>,
    /// Options, as given to `-o`.
    pub options: String,
}

/// Body of `umount`.
#[derive(Serialize, Deserialize, Debug)]
pub struct UnmountRequest {
    /// Mount point.
    pub path: String,
    /// How to end the mount.
    pub how: How,
    /// The kernel's id of the mount that the client sees there: bind mounts, and copies in other
    /// mount namespaces, have other ids than the node's own mount.
    #[serde(default)]
    pub id: Option<u64>,
}

/// How a mount is ended.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Only if no program uses it.
    IfIdle,
    /// Disappears from the tree of files now; served until its last user is gone.
    Lazy,
    /// Now.
    Forced,
}

impl How {
    /// What `--lazy` and `--force` (umount(8): `-l` and `-f`) mean together.
    pub fn of(lazy: bool, force: bool) -> Self {
        match (lazy, force) {
            (true, _) => Self::Lazy,
            (_, true) => Self::Forced,
            _ => Self::IfIdle,
        }
    }
}

impl From<How> for fuse::Unmount {
    fn from(how: How) -> Self {
        match how {
            How::IfIdle => Self::IfIdle,
            How::Lazy => Self::Lazy,
            How::Forced => Self::Forced,
        }
    }
}

/// Answer to `umount`.
#[derive(Serialize, Deserialize, Debug)]
pub struct Unmounted {
    /// Whether the daemon ends too: this was its last mount.
    pub daemon_ends: bool,
}

/// Body of `shutdown`.
#[derive(Serialize, Deserialize, Debug)]
pub struct Shutdown {
    /// Programs that use the mounts don't hold it up.
    pub force: bool,
}

/// Answer to `shutdown`.
#[derive(Serialize, Deserialize, Debug)]
pub struct Stopping {
    /// Places that still show the file system, which is dead there.
    pub left: Vec<String>,
}

/// One shard.
#[derive(Serialize, Deserialize, Debug)]
pub struct ShardStatus {
    /// Its number.
    pub shard: u32,
    /// Epoch of this owner.
    pub epoch: u64,
    /// Commits so far.
    pub durable_commit: u64,
    /// Sessions that clients have with it: one of each node that uses the file system. Missing in answers of older versions.
    #[serde(default)]
    pub sessions: Option<u64>,
}

/// One line of the memory budget.
#[derive(Serialize, Deserialize, Debug)]
pub struct MemoryLine {
    /// The use.
    pub what: String,
    /// Bytes used now, if known.
    pub used: Option<u64>,
    /// Bytes at most.
    pub budget: u64,
}

/// A node in its cluster, in `shale status`.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct ClusterStatus {
    /// The cluster, as 32 hex digits.
    pub cluster: String,
    /// The node's number.
    pub node: u32,
    /// Its name.
    pub name: String,
    /// How often its daemon has started.
    pub incarnation: u64,
    /// Where it listens for other nodes.
    pub address: String,
    /// The cluster's manager runs here.
    pub is_manager: bool,
    /// Milliseconds for which the node may still serve; 0: it has no lease.
    pub lease_milliseconds: u64,
    /// Nodes that are members now.
    pub members: u64,
    /// How connections between nodes are protected here: the value of `cipher_list`, or `NEW also OLD` while it changes.
    /// Missing in answers of older versions.
    #[serde(default)]
    pub cipher_list: String,
}

/// `shale cluster show`.
#[derive(Serialize, Deserialize, Debug)]
pub struct ClusterView {
    /// The cluster, as 32 hex digits.
    pub cluster: String,
    /// The manager's node, if there is one.
    pub manager: Option<u32>,
    /// Where coordination is.
    pub coordination: Vec<String>,
    /// Its nodes.
    pub nodes: Vec<NodeLine>,
    /// Its file systems.
    pub file_systems: Vec<FileSystemLine>,
}

/// One line of `shale node list`.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct NodeLine {
    /// Its number.
    pub node: u32,
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: String,
    /// It runs a member of the cluster's etcd, or shall.
    pub quorum: bool,
    /// It has the key of the cluster's authority: it admits machines that join.
    pub authority: bool,
    /// Where that member answers; none until it has its vote.
    pub etcd: Option<String>,
    /// `up`, `leaving`, `down` (it left), `expelled`, `barred` (expelled by hand), or `new` (it never joined).
    pub state: String,
    /// Why it was expelled.
    pub cause: Option<String>,
    /// Where it listens.
    pub address: Option<String>,
    /// The cluster's manager runs there.
    pub manager: bool,
    /// Shards that it owns.
    pub shards: Vec<u32>,
    /// NSDs that it has.
    pub nsds: Vec<u32>,
}

/// One line of `shale fs list`.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct FileSystemLine {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u32,
    /// Its shard.
    pub shard: u32,
    /// The node that owns the shard.
    pub owner: Option<u32>,
}

/// Body of `fs create`.
#[derive(Serialize, Deserialize, Debug)]
pub struct CreateFileSystem {
    /// Its name.
    pub name: String,
}

/// Body of `cluster join-token`.
#[derive(Serialize, Deserialize, Debug, Default)]
pub struct MakeJoinToken {
    /// The machine becomes a quorum node, and gets the key of the cluster's authority.
    pub quorum: bool,
}

/// Answer of `cluster join-token`.
#[derive(Serialize, Deserialize, Debug)]
pub struct JoinTokenMade {
    /// What `shale node join` takes.
    pub token: String,
    /// Seconds for which it is good.
    pub seconds: u64,
}

/// A step of a rotation of the cluster's keys that a person asks for.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum RotationStep {
    /// Another authority is to take the place of the cluster's.
    Begin,
    /// The old one isn't to be trusted any more.
    Finish,
    /// The new one isn't to be trusted any more.
    Cancel,
}

/// Body of `cluster rotate-keys`.
#[derive(Serialize, Deserialize, Debug)]
pub struct RotateKeys {
    /// What is asked for.
    pub step: RotationStep,
    /// To finish: the fingerprint of the authority that is to be ended, if it must be that one.
    #[serde(default)]
    pub old: Option<String>,
}

/// Answer of `cluster rotate-keys`.
#[derive(Serialize, Deserialize, Debug)]
pub struct RotationView {
    /// `none`: nothing is under way. `trust`: nodes begin to trust the next authority. `certify`: it certifies all nodes.
    pub step: String,
    /// SHA-256 of the certificate of the authority that counts, in hexadecimal digits.
    pub current: String,
    /// The same of the authority that takes its place.
    pub next: Option<String>,
    /// The same of those that don't count any more, and were ended just now or that nodes trust still.
    pub old: Vec<String>,
    /// The nodes that haven't made this step.
    pub waits_for: Vec<RotationLine>,
    /// Why nodes that are up can't make it, and what to do.
    pub held_up: Option<String>,
}

/// A node that hasn't made a step of a rotation.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct RotationLine {
    /// Its number.
    pub node: u32,
    /// Its name.
    pub name: String,
    /// `up` or `down`.
    pub state: String,
    /// What it hasn't made, in words.
    pub lacks: String,
}

/// Answer of `node drain` and of its end.
#[derive(Serialize, Deserialize, Debug)]
pub struct Drained {
    /// The NSDs that are being emptied, or that stay in use.
    pub nsds: Vec<u32>,
}

/// Body of a change of a node.
#[derive(Serialize, Deserialize, Debug, Default)]
pub struct ChangeNode {
    /// Its new class.
    pub class: Option<String>,
    /// Whether it is barred.
    pub barred: Option<bool>,
}

/// One line of `shale config list`.
#[derive(Serialize, Deserialize, Debug)]
pub struct SettingLine {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// `default`, `cluster`, `class NAME` or `node N`: where the value comes from.
    pub from: String,
    /// Unit, range and purpose.
    pub help: String,
}

/// Body of `config set`.
#[derive(Serialize, Deserialize, Debug)]
pub struct ChangeSetting {
    /// Its name.
    pub name: String,
    /// Its new value; `None`: as it was before anybody set it.
    pub value: Option<String>,
    /// For this node only.
    pub node: Option<u32>,
    /// For the nodes of this class only.
    pub class: Option<String>,
}

/// One line of `shale events`.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct EventLine {
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// What kind, such as `node-expelled`.
    pub event: String,
    /// The thing concerned.
    pub subject: String,
    /// What happened.
    pub message: String,
    /// What to do about it, if it is a problem that begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// One health event.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct HealthEvent {
    /// `critical` (data or service at risk), `warning` (degraded), `hint` (all is well).
    pub severity: String,
    /// The thing concerned.
    pub subject: String,
    /// Description of the problem.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
}

/// `shale health`.
#[derive(Serialize, Deserialize, Debug)]
pub struct Health {
    /// `healthy`, `degraded` or `critical`.
    pub state: String,
    /// Worst first.
    pub events: Vec<HealthEvent>,
}

/// `shale fs df`.
#[derive(Serialize, Deserialize, Debug)]
pub struct Df {
    /// Bytes that users could store in an empty pool.
    pub size: u64,
    /// Bytes that files occupy, before redundancy.
    pub used: u64,
    /// Bytes that users can still store.
    pub available: u64,
    /// Sum of the sizes of files.
    pub logical: Option<u64>,
    /// Inodes in use.
    pub inodes: u64,
    /// Bytes on all NSDs.
    pub raw_size: u64,
    /// Bytes used on all NSDs.
    pub raw_used: u64,
}

/// `shale fs check`.
#[derive(Serialize, Deserialize, Debug)]
pub struct CheckResult {
    /// Whether no fault was found.
    pub clean: bool,
    /// Inodes examined.
    pub inodes: u64,
    /// Extents examined.
    pub extents: u64,
    /// Segments examined.
    pub segments: u64,
    /// Bytes read and verified.
    pub bytes: u64,
    /// One sentence per fault.
    pub faults: Vec<String>,
    /// Files that can't be read.
    pub unreadable_files: u64,
    /// Paths of the first thousand.
    pub unreadable: Vec<String>,
}

/// One NSD in `shale nsd list`.
#[derive(Serialize, Deserialize, Debug)]
pub struct NsdLine {
    /// Its number.
    pub nsd: u32,
    /// The node that has it and serves it to the others; `None` on a node that is alone.
    #[serde(default)]
    pub node: Option<u32>,
    /// The name of that node; `None` if it was removed.
    #[serde(default)]
    pub node_name: Option<String>,
    /// Where the newest daemon of that node listens.
    #[serde(default)]
    pub address: Option<String>,
    /// Where its region is.
    pub path: String,
    /// The name of its failure group; `None`: it fails alone.
    #[serde(default)]
    pub failure_group: Option<String>,
    /// `active`, `draining` or `lost` in the map.
    pub state: String,
    /// `online`, `full`, `failed` or `missing` here.
    pub health: String,
    /// Bytes for blobs.
    pub capacity: u64,
    /// Bytes in use.
    pub used: u64,
    /// Blobs.
    pub blobs: u64,
    /// Bytes of pieces that the daemon that answers has read from it since it has opened it.
    #[serde(default)]
    pub bytes_read: u64,
    /// Bytes of pieces that the daemon that answers has put to it since then.
    #[serde(default)]
    pub bytes_written: u64,
}

/// `shale nsd scrub`.
#[derive(Serialize, Deserialize, Debug)]
pub struct ScrubLine {
    /// The NSD.
    pub nsd: u32,
    /// Blobs and log entries read.
    pub checked: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Damaged blobs found.
    pub damaged: u64,
    /// Damaged blobs rebuilt from the others.
    pub rebuilt: u64,
    /// Damaged blobs whose data can't be read any more.
    pub lost: u64,
    /// Damaged blobs left for repair: they can't be written now, or belong to data that is still
    /// being written.
    pub left: u64,
    /// Structures repaired from their own redundancy.
    pub mended: Vec<String>,
}

/// `shale repair status`.
#[derive(Serialize, Deserialize, Debug)]
pub struct RepairStatus {
    /// `idle`, `running` or `waiting` (for NSDs).
    pub state: String,
    /// Segments that lack pieces.
    pub segments_to_do: u64,
    /// Segments repaired since the daemon began to serve.
    pub segments_done: u64,
    /// Pieces rebuilt since then.
    #[serde(default)]
    pub pieces_done: u64,
    /// Bytes written by repair since then.
    pub bytes_done: u64,
    /// Segments examined by the running scan, or by the last one.
    pub segments_checked: u64,
    /// Segments in total, as far as known.
    pub segments_total: u64,
    /// Why repair waits, if it does.
    pub reason: String,
    /// All work on the pool of a cluster; `None` on a node that is alone.
    #[serde(default)]
    pub cluster: Option<ClusterRepair>,
}

/// One line of `shale pool list`: groups that were made together.
#[derive(Serialize, Deserialize, Debug)]
pub struct PoolLine {
    /// The number of their first group.
    pub first_group: u32,
    /// How many groups.
    pub groups: u32,
    /// Their scheme.
    pub scheme: String,
    /// Most bytes of a new segment of a file.
    pub block_bytes: u64,
    /// NSDs that hold parts of them.
    pub nsds: u64,
    /// `current`: takes new data; `emptying`: its data moves to the current ones.
    pub state: String,
    /// Segments that are still to be moved, once they are counted; only while emptying.
    pub segments_left: Option<u64>,
}

/// Body of `nsd change`.
#[derive(Serialize, Deserialize, Debug)]
pub struct ChangeNsds {
    /// Their numbers.
    pub nsds: Vec<u32>,
    /// The name of what they fail with; `None`: each fails alone.
    pub failure_group: Option<String>,
}

/// Body of `pool change`.
#[derive(Serialize, Deserialize, Debug)]
pub struct ChangePool {
    /// The scheme, as text.
    pub scheme: Option<String>,
    /// Bytes per block.
    pub block_bytes: Option<u64>,
}

/// Body of `nsd add`.
#[derive(Serialize, Deserialize, Debug)]
pub struct AddNsd {
    /// Bytes of a new region file.
    pub bytes: Option<u64>,
    /// A block device or the path of a new region.
    pub path: Option<String>,
}

#[cfg(test)]
mod tests;
