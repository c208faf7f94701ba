//! Every member's side: says to the manager what runs here, and runs what it is ordered.
//!
//! A statement goes out every two seconds, every second while something runs, and at once when a job has
//! ended. Without an answer the jobs go on: whatever the manager has given to others meanwhile is done twice.
//! When the run has ended for the cluster, all of them stop.

use super::group::Work;
use super::pace::Pace;
use super::{Parts, ask, manager_of};
use manager::jobs::{Attempt, JobId};
use model::NsdId;
use model::jobs::{
    JobsReply, JobsRequest, OwnersWork, Rebuilt, STATED_MAX, STATED_NSDS_MAX, StatedNsd,
};
use model::nsd::NsdHealth;
use nsd::Nsd;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use world::Task;

/// Pause between two statements: while nothing runs, while something does, and when the manager is about
/// to decide what comes after what has just ended.
const IDLE_PAUSE: Duration = Duration::from_secs(2);
const BUSY_PAUSE: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(250);
/// Pause after a statement that wasn't answered.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Incarnations of a node, and how often one has opened an NSD, in one number.
pub(super) const OPENED_BITS: u32 = 16;

/// A job that runs here. Dropping it stops it.
struct Running {
    attempt: Attempt,
    pace: Arc<Pace>,
    _task: Task<()>,
}

/// The NSDs of this node, and how often this run has opened each.
#[derive(Default)]
struct OwnNsds {
    opened: BTreeMap<NsdId, (Weak<Nsd>, u64)>,
}

impl OwnNsds {
    fn look(&mut self, parts: &Parts) -> Vec<StatedNsd> {
        let pool = &parts.nsds.pool;
        let mut stated = Vec::new();
        for entry in &pool.map().nsds {
            let Some(nsd) = pool.nsd(entry.nsd) else {
                continue;
            };
            let now = Arc::downgrade(&nsd);
            let known = self.opened.entry(entry.nsd);
            let (last, count) = known.or_insert_with(|| (now.clone(), 0));
            if !last.ptr_eq(&now) {
                (*last, *count) = (now, *count + 1);
            }
            stated.push(StatedNsd {
                nsd: entry.nsd,
                serves: nsd.health() != NsdHealth::Failed,
                opened: (parts.run.incarnation << OPENED_BITS) + *count,
            });
        }
        stated.truncate(STATED_NSDS_MAX);
        stated
    }
}

/// The task that works, until the run has ended.
pub(super) async fn work(parts: Arc<Parts>) {
    let mut roster = parts.roster.subscribe();
    let mut running = BTreeMap::new();
    let mut own = OwnNsds::default();
    let away = Arc::new(Mutex::new(BTreeSet::new()));
    while !parts.lease.has_ended() {
        let known = roster.borrow_and_update().clone();
        let pause = match manager_of(&known) {
            Some(manager) => {
                let (request, has_news) = statement(&parts, &mut own);
                let reply = ask(&parts, manager, &request).await;
                match reply {
                    Ok(JobsReply::Orders {
                        orders,
                        away: now,
                        is_calm,
                    }) => {
                        parts.jobs.servers.set_calm(is_calm);
                        parts.jobs.worker.lock().ordered(&orders);
                        *away.lock() = now.into_iter().collect();
                        align(&parts, &away, &mut running);
                        match (has_news, running.is_empty()) {
                            (true, _) => SOON,
                            (false, false) => BUSY_PAUSE,
                            (false, true) => IDLE_PAUSE,
                        }
                    }
                    Ok(JobsReply::Status(_)) | Err(_) => AGAIN_AFTER,
                }
            }
            None => AGAIN_AFTER,
        };
        let before = manager_of(&known);
        let replaced = roster.wait_for(|roster| manager_of(roster) != before);
        tokio::select! {
            replaced = replaced => if replaced.is_err() {
                return;
            },
            () = parts.lease.ended() => return,
            () = parts.jobs.ended.notified() => {}
            () = parts.world.sleep(pause) => {}
        }
    }
}

/// What is said now, and whether the manager will have something new to order.
fn statement(parts: &Parts, own: &mut OwnNsds) -> (JobsRequest, bool) {
    let mut statement = parts.jobs.worker.lock().state(parts.moment());
    statement.running.truncate(STATED_MAX);
    let has_news = !statement.finished.is_empty();
    let done = parts.nsds.pool.repair_progress();
    let request = JobsRequest::State {
        statement,
        nsds: own.look(parts),
        rebuilt: Rebuilt {
            pieces: done.rebuilt_pieces,
            bytes: done.rebuilt_bytes,
        },
        owners: owners_here(parts),
    };
    (request, has_news)
}

/// What the owners of the shards that are here move by themselves.
fn owners_here(parts: &Parts) -> OwnersWork {
    let mut work = OwnersWork {
        newest: parts.nsds.pool.map().newest().first_group,
        ..OwnersWork::default()
    };
    for (_, metanode) in parts.services.all_hosted() {
        let moves = metanode.moves();
        work.counted += u64::from(moves.to_rewrite.is_some());
        work.to_rewrite += moves.to_rewrite.unwrap_or(0);
        work.balancing += u64::from(moves.is_balancing);
    }
    work
}

/// Stops what isn't ordered any more, and begins what is.
fn align(
    parts: &Arc<Parts>,
    away: &Arc<Mutex<BTreeSet<NsdId>>>,
    running: &mut BTreeMap<JobId, Running>,
) {
    let ordered: Vec<_> = parts.jobs.worker.lock().jobs().collect();
    let attempts: BTreeMap<_, _> = ordered
        .iter()
        .map(|(assigned, _)| (assigned.job, assigned.attempt))
        .collect();
    running.retain(|job, it| attempts.get(job) == Some(&it.attempt));
    for (assignment, from) in ordered {
        let speed = assignment.bytes_per_second;
        if let Some(known) = running.get(&assignment.job) {
            known.pace.set(speed);
            continue;
        }
        let pace = Arc::new(Pace::new(speed));
        let work = Work {
            parts: parts.clone(),
            assignment,
            pace: pace.clone(),
            away: away.clone(),
        };
        let task = parts.world.spawn("does a job", work.run(from));
        let attempt = assignment.attempt;
        let known = Running {
            attempt,
            pace,
            _task: task,
        };
        running.insert(assignment.job, known);
    }
}
