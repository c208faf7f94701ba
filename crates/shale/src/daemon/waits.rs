//! What waits on this node, for `shale waiters`: programs' requests, the waits inside, and what is to be known to put
//! them together with those of other nodes.

use super::mounts::HOLDS;
use super::running::Running;
use super::serving::Serving;
use crate::admin::{BECOMES_FIRST, Wait, WaitPart, Waits};
use coordination::Roster;
use fuse::{HeldBack, WaitingRequest};
use model::call::Method;
use model::jobs::JOBS;
use model::nsd::NSD_METHOD;
use model::owner::OWNER;
use model::space::{SPACE_STATE, SPACE_TELL};
use model::{NodeId, NsdId, ShardId};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use world::{Errand, Part, Waiter, Work};

/// Most waits that a node tells of, the longest ones.
const TOLD_MAX: usize = 8192;

/// Where things are, as far as this node knows.
struct Places {
    homes: BTreeMap<NsdId, NodeId>,
    roster: Option<Arc<Roster>>,
}

impl Serving {
    /// `shale waiters`.
    pub fn waits(&self) -> Waits {
        let here = self.running.in_cluster().ok();
        let homes = self.running.homes().into_iter();
        let places = Places {
            homes: homes.map(|(nsd, home)| (nsd, home.node)).collect(),
            roster: here.map(|here| here.member().roster()),
        };
        let (inside, left_out) = match &self.running {
            Running::Alone(node) => node.waits(),
            Running::InCluster(here) => here.member().waits(),
        };
        let requests = self.mounts.waiting();
        let mut waits: Vec<Wait> = requests.iter().map(of_request).collect();
        let held = self.mounts.held_back();
        waits.extend(held.iter().map(|(place, held)| of_held_back(place, *held)));
        let held_for = self.mounts.held_for();
        waits.extend(held_for.map(|held_for| of_all(held_for, HOLDS)));
        waits.extend(inside.iter().map(|waiter| places.of_waiter(waiter)));
        waits.sort_by_key(|wait| std::cmp::Reverse(wait.milliseconds));
        let more = waits.len().saturating_sub(TOLD_MAX);
        waits.truncate(TOLD_MAX);
        Waits {
            waits,
            left_out: (left_out + more) as u64,
            ..here.map(|here| here.facts_for_waits()).unwrap_or_default()
        }
    }
}

impl Places {
    fn of_waiter(&self, waiter: &Waiter) -> Wait {
        let operation = waiter.inode.map_or("an operation".to_string(), |inode| {
            format!("an operation on inode {inode}")
        });
        let (what, cause) = match waiter.part {
            Part::Work(_) | Part::Call(_) => (waiter.cause.into(), ""),
            _ => (operation, waiter.cause),
        };
        Wait {
            what,
            cause: cause.into(),
            milliseconds: milliseconds(waiter.since),
            trace: trace(waiter.errand),
            from: waiter.errand.from.map(|node| node.0),
            is_link: is_link(waiter.part),
            part: self.part_of(waiter.part),
        }
    }

    fn part_of(&self, part: Part) -> WaitPart {
        let number = |node: NodeId| node.0;
        match part {
            Part::Wait => WaitPart::Wait,
            Part::ForWork(work) => WaitPart::ForWork { work: key(work) },
            Part::ForAnswer { node, method } => WaitPart::ForAnswer {
                node: node.0,
                of: subject(method).into(),
            },
            Part::ForOwner(shard) => WaitPart::ForOwner {
                shard: shard.0,
                node: self.owner(shard).map(number),
            },
            Part::ForNsd(nsd) => WaitPart::ForNsd {
                nsd: nsd.0,
                node: self.homes.get(&nsd).copied().map(number),
            },
            Part::ForCoordination => WaitPart::ForCoordination,
            Part::ForToken {
                inode,
                node,
                runs_out,
            } => WaitPart::ForToken {
                inode: inode.to_string(),
                node: node.map(number),
                runs_out_milliseconds: milliseconds(runs_out),
            },
            Part::ForLock { inode, node, pid } => WaitPart::ForLock {
                inode: inode.to_string(),
                node: node.map(number),
                pid,
            },
            Part::Work(work) => WaitPart::Work { work: key(work) },
            Part::Call(method) => WaitPart::Call {
                of: subject(method).into(),
            },
        }
    }

    fn owner(&self, shard: ShardId) -> Option<NodeId> {
        let assigned = self.roster.as_ref()?.assigned(shard)?;
        Some(assigned.node)
    }
}

fn of_request(request: &WaitingRequest) -> Wait {
    Wait {
        what: format!(
            "{} of process {} on inode {}",
            request.request, request.pid, request.inode
        ),
        cause: "the file system's answer".into(),
        milliseconds: milliseconds(request.since),
        trace: trace(request.errand),
        from: None,
        is_link: false,
        part: WaitPart::Program,
    }
}

/// The kernel tells how many there are, not which.
fn of_held_back(place: &Path, held: HeldBack) -> Wait {
    Wait {
        what: format!("a queue of {} more requests in the kernel", held.requests),
        cause: format!(
            "another request of the mount at {}: as many wait as may, for what is listed here",
            place.display()
        ),
        milliseconds: milliseconds(held.since),
        trace: String::new(),
        from: None,
        is_link: false,
        part: WaitPart::Wait,
    }
}

/// All requests of programs are held, because their node becomes the first one of a cluster, which waits for this.
pub fn of_all(held_for: Duration, why: &str) -> Wait {
    Wait {
        what: "every request of programs".into(),
        cause: format!("{BECOMES_FIRST}: {why}"),
        milliseconds: milliseconds(held_for),
        trace: String::new(),
        from: None,
        is_link: false,
        part: WaitPart::Wait,
    }
}

/// Whether a wait says nothing that isn't said by whatever it is a link of.
fn is_link(part: Part) -> bool {
    match part {
        Part::Wait | Part::ForOwner(_) => false,
        Part::ForWork(work) => matches!(work, Work::Commit(_)),
        Part::ForAnswer { .. }
        | Part::ForNsd(_)
        | Part::ForCoordination
        | Part::ForToken { .. }
        | Part::ForLock { .. }
        | Part::Work(_)
        | Part::Call(_) => true,
    }
}

/// The name of work, by which waits for it find it.
fn key(work: Work) -> String {
    match work {
        Work::Commit(shard) => format!("commit {shard}"),
        Work::Ask(inode) => format!("ask {inode}"),
        Work::Return(inode) => format!("return {inode}"),
        Work::Store(Some(inode)) => format!("store {inode}"),
        Work::Store(None) => "store".into(),
        Work::Fetch(inode) => format!("fetch {inode}"),
        Work::TakeOver(shard) => format!("take-over {shard}"),
        Work::NextSession => "session".into(),
        Work::Decide(Some(inode)) => format!("decide {inode}"),
        Work::Decide(None) => "decide".into(),
        Work::EndLocks => "locks".into(),
        Work::Stream => "stream".into(),
    }
}

/// What a call is about.
fn subject(method: Method) -> &'static str {
    match method {
        OWNER => "the owner of the metadata",
        NSD_METHOD => "an NSD",
        JOBS => "repair",
        SPACE_STATE | SPACE_TELL => "room in the pool",
        _ => "the cluster",
    }
}

fn trace(errand: Errand) -> String {
    match errand.is_none() {
        true => String::new(),
        false => format!("{:016x}", errand.trace),
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
