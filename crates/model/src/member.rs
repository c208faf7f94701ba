//! The members of a cluster: what coordination keeps of them, and what nodes and the manager say to
//! each other. `docs/protocols/membership.md` tells how it is used.

use crate::call::Method;
use crate::{NodeId, NodeRun, ShardId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// What members answer: a [`Heartbeat`] if the node is the manager, and [`Attend`].
pub const HEARTBEAT: Method = Method(0x0300);
/// Answered when its time is over: a call that breaks off before tells that the node is gone.
pub const ATTEND: Method = Method(0x0301);
/// Longest time until that answer, whatever was asked for: it takes room from heartbeats.
pub const ATTEND_MAX: Duration = Duration::from_secs(10);

/// Asks a member who the manager is, as far as it knows; answered with a [`KnownManager`], if it knows one.
pub const WHO_MANAGES: Method = Method(0x0302);

/// Tells the manager which members a node can't reach: an [`Unreached`], answered with nothing.
pub const UNREACHED: Method = Method(0x0303);

/// Asks a member what it hears of a manager: its [`NodeRun`], answered with a [`Heard`].
pub const HEARD: Method = Method(0x0304);

/// Asks a member whether it reaches the node that asks, too: it calls that one, and answers with a bool.
pub const REACHES_BACK: Method = Method(0x0305);

/// Asks a member whether the run that asks has ended for the cluster; answered with a [`KnownEnd`], if the member can be sure
/// of it.
pub const HAS_ENDED: Method = Method(0x0306);

/// How long a node may serve after it sent the heartbeat that was answered last.
pub const NODE_LEASE: Duration = Duration::from_secs(6);
/// How often a node sends a heartbeat.
pub const HEARTBEAT_EVERY: Duration = Duration::from_secs(2);
/// Most members: nodes that own shards or serve NSDs.
pub const MEMBERS_MAX: usize = 4_096;
/// Most runs that one plan expels: a rack that dies is one change.
pub const EXPELLED_MAX: usize = 64;
/// Most members that a node says it can't reach: one that misses so many is the one that has to go.
pub const UNREACHED_MAX: usize = 64;
/// Most nodes with a lease, clients included.
pub const NODES_MAX: usize = 16_384;

const _: () = assert!(HEARTBEAT_EVERY.as_millis() * 3 <= NODE_LEASE.as_millis());
const _: () = assert!(MEMBERS_MAX <= NODES_MAX);

/// Counts the managers of a cluster.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Term(pub u64);

/// What coordination keeps of the members. Each manager writes its term into it before anything
/// else, so that a compare-and-set of an earlier manager fails from then on.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Membership {
    /// Of the manager that wrote it.
    pub term: Term,
    /// That manager; `None` before the first one.
    pub manager: Option<NodeRun>,
    /// The newest run of each node that was ever a member; of one that was removed, until another one needs its place.
    pub members: BTreeMap<NodeId, Member>,
    /// The change under way; there is one at most.
    pub plan: Option<Plan>,
}

/// A node in the membership.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Member {
    /// The run that is meant, or was the last one.
    pub run: NodeRun,
    /// It may own shards.
    pub may_own: bool,
    /// How it stands.
    pub standing: Standing,
    /// Its NSDs can't be expected to answer.
    pub nsds_away: bool,
}

/// How a run stands with the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Standing {
    /// A member.
    In,
    /// A member that gives up its shards, because it wants to leave.
    Leaving,
    /// It left: nothing of it runs any more.
    Left,
    /// It was expelled for this cause, and must not act any more. A new run of the node can join.
    Expelled(Cause),
}

/// A change of the membership as data: a new manager goes on where the record says.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// What is changed.
    pub change: Change,
    /// The step under way; all before it are done.
    pub step: Step,
    /// The shards that get another owner, in the step [`Step::Shards`].
    pub moves: Vec<Move>,
}

/// A kind of change.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Change {
    /// Runs have ended, or lost their leases: at most [`EXPELLED_MAX`].
    Expel(Vec<Expelled>),
    /// A run wants to end.
    Leave(NodeRun),
    /// Shards without an owner get one, or one moves to where there is less to do.
    Balance,
}

/// A run that a plan expels.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Expelled {
    /// The run.
    pub run: NodeRun,
    /// How it is known that it must be.
    pub cause: Cause,
}

/// How the manager knows that a run must be expelled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Cause {
    /// Its connection broke, and nobody listens at its addresses any more.
    Refused,
    /// A newer run of its node appeared.
    NewerRun,
    /// Its lease has ended by every clock.
    Silent,
    /// It and this node couldn't reach each other although the manager heard both, and one of both had to go. Its lease
    /// was renewed no more, and has ended by every clock.
    Apart(NodeId),
}

/// A step of a plan. The write that stores the plan is the fence: it makes an expelled run one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Step {
    /// Shards get their new owners.
    Shards,
    /// What the node's NSDs are from now on is stored.
    Nsds,
}

/// A shard that gets another owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Move {
    /// The shard.
    pub shard: ShardId,
    /// The run that it was assigned to. If it is a member, it gives the shard up first.
    pub from: Option<NodeRun>,
    /// The run that takes it over.
    pub to: NodeRun,
}

impl Membership {
    /// The run is a member, leaving ones included.
    #[must_use]
    pub fn is_member(&self, run: NodeRun) -> bool {
        let member = self.members.get(&run.node);
        member.is_some_and(|member| member.run == run && member.standing.is_member())
    }

    /// The run has ended for the cluster: it must not act any more, and never will be a member.
    #[must_use]
    pub fn has_ended(&self, run: NodeRun) -> bool {
        self.members.get(&run.node).is_some_and(|member| {
            run < member.run || (run == member.run && !member.standing.is_member())
        })
    }

    /// How the run has ended for the cluster, if it has.
    #[must_use]
    pub fn end_of(&self, run: NodeRun) -> Option<KnownEnd> {
        if !self.has_ended(run) {
            return None;
        }
        let member = self.members.get(&run.node)?;
        let has_left = member.run == run && member.standing == Standing::Left;
        Some(KnownEnd {
            term: self.term,
            has_left,
        })
    }

    /// The nodes whose NSDs can't be expected to answer.
    #[must_use]
    pub fn away(&self) -> BTreeSet<NodeId> {
        let away = self.members.values().filter(|member| member.nsds_away);
        away.map(|member| member.run.node).collect()
    }
}

impl Standing {
    /// Of a run that is part of the cluster.
    #[must_use]
    pub fn is_member(self) -> bool {
        matches!(self, Self::In | Self::Leaving)
    }
}

/// What a node says every [`HEARTBEAT_EVERY`] to the manager. The first one of a run asks to join.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Heartbeat {
    /// What the node is.
    pub role: Role,
    /// It wants to leave: its shards shall go to others.
    pub is_leaving: bool,
    /// The revision of coordination up to which it knows who owns what; 0 for clients.
    pub knows: u64,
    /// The shards that it serves or is taking over, with their weights. At most
    /// [`SHARDS_OF_PROCESS_MAX`](crate::limits::SHARDS_OF_PROCESS_MAX).
    pub hosts: Vec<(ShardId, Weight)>,
}

/// What a node does for the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Role {
    /// It uses file systems only. Coordination knows nothing of it.
    Client,
    /// It serves NSDs.
    Server,
    /// It may own shards and be the manager, and serves NSDs if it has any.
    Owner,
}

/// How much work a shard is, beside others: 1 if nothing is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Weight(pub u32);

impl Weight {
    /// Of a shard of which nothing is known.
    pub const ONE: Self = Self(1);
}

/// The manager's answer to a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct HeartbeatReply {
    /// The manager's. Answers of earlier ones than the newest that a node knows count for nothing.
    pub term: Term,
    /// What it says.
    pub verdict: Verdict,
}

/// What the manager says of a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Verdict {
    /// It has its lease: [`NODE_LEASE`] from when it sent the heartbeat.
    Renewed,
    /// It isn't a member yet; ask again.
    Wait,
    /// It was expelled or replaced, and must end. It may start again, as a new run.
    Ended,
    /// It has left, as it wanted to.
    Left,
}

/// Who the manager is, as coordination has shown it to a member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct KnownManager {
    /// Its term.
    pub term: Term,
    /// Its run.
    pub run: NodeRun,
}

/// A run has ended for the cluster, as the membership says ([`Membership::has_ended`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct KnownEnd {
    /// Of the manager that wrote that membership.
    pub term: Term,
    /// It has left, as it wanted to; otherwise it was expelled, or a newer run of its node has joined.
    pub has_left: bool,
}

/// The members that a node needs, as owners of shards or as servers of NSDs, and has asked in vain for long.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Unreached {
    /// Their runs; at most [`UNREACHED_MAX`], more aren't read. None: it reaches all that it needs again.
    pub runs: Vec<NodeRun>,
}

/// What a member hears of a manager.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Heard {
    /// It has asked that one in vain for long.
    pub is_unheard: bool,
    /// That one attends to it: its connection is open.
    pub is_attended: bool,
}

/// Asks a member to answer after a time, so that the end of its connection is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Attend {
    /// Milliseconds until the answer; at most [`ATTEND_MAX`].
    pub answer_after_ms: u32,
}
