//! `shale cluster stop`: what people ask for and are told, and the steps that nodes ask of each other for it.

use serde::{Deserialize, Serialize};

/// Body of `cluster stop`.
#[derive(Serialize, Deserialize, Debug)]
pub struct StopCluster {
    /// Programs that use mounts don't hold it up, nor what can't be made durable.
    pub force: bool,
}

/// Answer of `cluster stop`. The node that answers ends last, after this answer.
#[derive(Serialize, Deserialize, Debug, Clone)]
pub struct ClusterStopped {
    /// Whether nodes end; otherwise all go on, and their lines say why.
    pub stops: bool,
    /// All nodes that were asked, and those that were no members.
    pub nodes: Vec<StoppedNode>,
}

/// What became of a node.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct StoppedNode {
    /// Its number.
    pub node: u32,
    /// Its name; empty if it isn't known.
    pub name: String,
    /// It is the node that answers.
    pub is_here: bool,
    /// `ended`; `ends`: it was told to end, and wasn't seen to have ended; `up`; `silent`: it gave no answer; `away`: it was
    /// no member.
    pub state: String,
    /// What is wrong with it, or with what it had.
    pub why: Option<String>,
    /// What to do about that.
    pub remedy: Option<String>,
    /// Places there that still show the file system, which is dead.
    pub left: Vec<String>,
}

/// A step that a node takes when the whole cluster stops, between nodes. No node takes one before all others have taken
/// the one before.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum StopStep {
    /// Say who uses the mounts. Nothing changes.
    Look,
    /// End the mounts.
    Unmount,
    /// Make the mounts again that were ended: the cluster goes on.
    Resume,
    /// Make everything durable that was written there.
    Sync,
    /// Close the clients. From here on there is no way back.
    CloseClients,
    /// Close the shards where they are.
    CloseShards,
    /// Don't be the cluster's manager any more.
    Retire,
    /// End the daemon.
    End,
}

/// Body of a step.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct TakeStep {
    /// The step.
    pub step: StopStep,
    /// The node whose people stop the cluster, and its run. If that is gone, another node asks in its place.
    pub by: (u32, u64),
    /// The run of the asked node that is meant: the one that has taken the steps before. `None`, to look: whichever is there.
    pub run: Option<u64>,
    /// As in [`StopCluster`].
    pub force: bool,
}

/// Answer to a step that was taken, or that was meant for another run of the node.
#[derive(Serialize, Deserialize, Debug, Clone, Default, PartialEq, Eq)]
pub struct StepTaken {
    /// The run that answers. If it isn't the one that was meant, it has done nothing.
    pub run: u64,
    /// The node runs a member of the cluster's etcd.
    pub has_etcd: bool,
    /// Who uses its mounts.
    pub busy: Vec<String>,
    /// Places that still show the file system.
    pub left: Vec<String>,
}

/// A question of one node to another: what part it has in a stop. Nothing changes.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskPart {
    /// The node whose people stop the cluster, and its run.
    pub by: (u32, u64),
}

/// Its answer.
#[derive(Serialize, Deserialize, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StopPart {
    /// The run that answers.
    pub run: u64,
    /// It has nodes take the steps of a stop just now.
    pub drives: bool,
    /// It has begun to stop, and doesn't go on again.
    pub takes_part: bool,
    /// There is no way back for it.
    pub is_final: bool,
    /// It takes the run whose people stop the cluster for gone: from now on it takes steps of who goes on in its place,
    /// and none of that run itself.
    pub is_orphaned: bool,
}
