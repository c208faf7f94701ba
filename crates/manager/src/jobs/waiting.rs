//! Which jobs are wanted, and in which order: repairs of groups that can lose the fewest slots first,
//! then sweeps, then scrubs, those that were done longest ago first.

use super::groups::{Group, Groups};
use super::{AGAIN_AFTER, JobId, Kind, Outcome, Stamp};
use crate::planted::Planted;
use model::{GroupId, Moment};
use std::collections::BTreeMap;
use std::time::Duration;

/// How often and how fast.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Settings {
    /// A group is swept again after this.
    pub sweep_every: Duration,
    /// A group is scrubbed again after this.
    pub scrub_every: Duration,
    /// What all jobs together may read or write at one node.
    pub node_bytes_per_second: u64,
}

/// How a job of which a server said that it ended was done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Done {
    pub(super) stamp: Stamp,
    pub(super) outcome: Outcome,
    pub(super) at: Moment,
}

/// What comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Urgency {
    /// A repair of a group that can lose so many slots.
    Repair(i32),
    /// A sweep or scrub.
    Idle(Kind),
}

/// What the planner knows of jobs that were done.
pub(super) type DoneJobs = BTreeMap<JobId, Done>;

/// The job is wanted now.
pub(super) fn is_wanted(
    job: JobId,
    group: &Group,
    done: Option<&Done>,
    settings: &Settings,
    now: Moment,
) -> bool {
    // Nothing can be read, or nobody is there: when an NSD comes back, that changes.
    if group.left < 0 || group.nodes.is_empty() {
        return false;
    }
    let Some(done) = done else {
        return true;
    };
    let passed = now.since(done.at);
    if done.outcome == Outcome::Partial && passed >= AGAIN_AFTER {
        return true;
    }
    match job.kind {
        Kind::Repair => done.stamp != group.stamp,
        Kind::Sweep => passed >= settings.sweep_every,
        Kind::Scrub => passed >= settings.scrub_every,
    }
}

/// All wanted jobs, the most urgent first.
pub(super) fn in_order(
    groups: &Groups,
    done: &DoneJobs,
    settings: &Settings,
    now: Moment,
    planted: Option<Planted>,
) -> Vec<(Urgency, JobId)> {
    let mut wanted: Vec<(Urgency, Moment, JobId)> = Vec::new();
    let mut look = |id: GroupId, group: &Group, kind: Kind| {
        let job = JobId { kind, group: id };
        let known = done.get(&job);
        if !is_wanted(job, group, known, settings, now) {
            return;
        }
        let urgency = match (kind, planted) {
            (Kind::Repair, Some(Planted::AnyOrder)) => Urgency::Repair(0),
            (Kind::Repair, _) => Urgency::Repair(group.left),
            _ => Urgency::Idle(kind),
        };
        let at = known.map_or(Moment::default(), |done| done.at);
        wanted.push((urgency, at, job));
    };
    for (id, group) in &groups.known {
        look(*id, group, Kind::Repair);
        look(*id, group, Kind::Sweep);
        look(*id, group, Kind::Scrub);
    }
    wanted.sort_unstable();
    let order = wanted.into_iter().map(|(urgency, _, job)| (urgency, job));
    order.collect()
}
