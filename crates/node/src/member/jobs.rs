//! Repair, sweep and scrub of the cluster's pool, a job for each group: planned where the cluster's manager
//! is, done by the members that have the groups' NSDs. The rules are `manager::jobs`;
//! `docs/protocols/jobs.md` tells how they are used.
//!
//! *The manager's side* is a `desk`: it feeds the planner with the map and with what NSDs say of themselves,
//! and answers statements. *Every member's side* is `working`: it says to the manager what it runs, runs
//! what it is ordered (`group`), and stops the rest. What is live, only the owners of the shards say
//! (`examining`). `pace` keeps a job below its part of a node's bandwidth; `switching` gives slots to
//! their next NSDs when all pieces have arrived.

mod desk;
mod examining;
mod group;
mod pace;
mod report;
mod switching;
mod working;

use super::{Member, Parts};
use bytes::Bytes;
use coordination::Roster;
use desk::Desk;
use manager::Moment;
use manager::jobs::{Assignment, Cursor, Worker};
use metanode::Servers;
use model::call::{Call, Reply};
use model::jobs::{JOBS, JOBS_CLASS, JobsReply, JobsRequest, RepairProgress, RepairReport};
use model::{Error, ErrorKind, NodeRun, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use world::{Deadline, Instant, Task};

/// How long an answer of the manager is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// The settings of the cluster that say how fast, and how often.
const SPEED: &str = "repair_bytes_per_second";
const SCRUB_EVERY: &str = "scrub_every_seconds";
/// Attempts to change a setting that others change, too.
const ATTEMPTS_MAX: usize = 16;
/// The slowest repair that may be asked for, and the shortest time between two scrubs of a group.
const SPEED_MIN: u64 = 4_096;
const SCRUB_EVERY_MIN: Duration = Duration::from_secs(10);

/// This node's part in the pool's jobs.
#[derive(Default)]
pub(super) struct Jobs {
    desk: Desk,
    worker: Mutex<Worker>,
    /// A job here has ended: the manager wants to know.
    ended: Notify,
    /// What owners here hear: whether repair of the pool is under way, and what they may rewrite.
    pub(super) servers: Arc<Servers>,
}

/// The tasks of a member.
pub(super) fn begin(parts: &Arc<Parts>) -> [Task<()>; 4] {
    let world = &parts.world;
    [
        world.spawn("plans jobs", desk::keep(parts.clone())),
        world.spawn("works", working::work(parts.clone())),
        world.spawn("switches slots", switching::switch_all(parts.clone())),
        world.spawn(
            "empties left groups",
            switching::rid_of_strangers(parts.clone()),
        ),
    ]
}

impl Jobs {
    /// Owners here read and write no more than the cluster's settings say, from now on.
    pub(super) fn use_settings(&self, roster: &Roster, now: Instant) {
        let set = roster.settings.get(&format!("config/{SPEED}"));
        let set = set.and_then(|value| value.parse::<u64>().ok());
        let speed = set.unwrap_or(Member::REPAIR_SPEED).max(SPEED_MIN);
        self.servers.limit(speed, now);
    }

    /// Answers another member, if the manager is here.
    pub(super) fn serve(&self, from: NodeRun, call: &Call, now: Moment) -> Reply {
        let answer = call
            .decode()
            .and_then(|asked| self.desk.answer(from, asked, now));
        Reply::new::<JobsReply>(&answer, Bytes::new())
    }
}

/// The run that has the manager's place.
fn manager_of(roster: &Roster) -> Option<NodeRun> {
    roster.manager.as_ref().map(|place| place.value.run)
}

/// Asks the manager.
async fn ask(parts: &Parts, manager: NodeRun, request: &JobsRequest) -> Result<JobsReply> {
    let call = Call::new(JOBS, JOBS_CLASS, request);
    let deadline = Deadline::after(&parts.world, ANSWER_MAX);
    let answer = parts.way_to(manager).call(call, deadline).await;
    let answer = answer.map_err(|_| {
        let text = "the cluster's manager doesn't answer; ask again";
        Error::new(ErrorKind::Unavailable, text)
    })?;
    if answer.from != manager {
        return Err(Error::new(
            ErrorKind::OldEpoch,
            "another run answers for the manager",
        ));
    }
    answer.reply.decode()
}

impl Member {
    /// What repair, sweep and scrub together may read or write at one node unless the cluster says otherwise, in bytes per
    /// second; and as much again what the owners there move.
    pub const REPAIR_SPEED: u64 = 256 << 20;
    /// How often each group is scrubbed unless the cluster says otherwise.
    pub const SCRUB_PERIOD: Duration = Duration::from_secs(14 * 24 * 3_600);

    /// How repair of the cluster's pool is, as its manager says.
    ///
    /// # Errors
    /// `Unavailable`, `OldEpoch`: nobody is the manager now, or it doesn't answer; ask again.
    pub async fn repair_status(&self) -> Result<RepairProgress> {
        let report = self.repair_report().await?;
        Ok(report.progress)
    }

    /// How repair of the cluster's pool is, and which part each node has in it, as the manager says. Nothing is known if
    /// it hasn't heard yet of the pool's map that this node has. Waits for it for two seconds at most.
    ///
    /// # Errors
    /// As [`Member::repair_status`].
    pub async fn repair_report(&self) -> Result<RepairReport> {
        let parts = &self.parts;
        let manager = manager_of(&parts.roster.borrow());
        let manager = manager.ok_or_else(|| {
            let text = "the cluster has no manager now; ask again";
            Error::new(ErrorKind::Unavailable, text)
        })?;
        match ask(parts, manager, &JobsRequest::Status).await? {
            JobsReply::Status(mut report) => {
                let progress = &mut report.progress;
                progress.is_known &= progress.map >= parts.nsds.pool.map().epoch;
                Ok(report)
            }
            JobsReply::Orders { .. } => {
                let text = "the manager answers something else than was asked";
                Err(Error::new(ErrorKind::Corrupt, text))
            }
        }
    }

    /// The jobs that run on this node, and how far they are.
    #[must_use]
    pub fn jobs_here(&self) -> Vec<(Assignment, Cursor)> {
        let worker = self.parts.jobs.worker.lock();
        worker.jobs().collect()
    }

    /// What repair, sweep and scrub together may read or write at one node, from a few seconds on; and as much again
    /// what the owners of that node do when they move data that is safe where it is. A setting of the cluster, which
    /// later managers have, too.
    ///
    /// # Errors
    /// `InvalidArgument` below 4 KiB; those of coordination.
    pub async fn limit_repair(&self, bytes_per_second: u64) -> Result<()> {
        if bytes_per_second < SPEED_MIN {
            let text = format!("repair needs at least {SPEED_MIN} bytes per second");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        self.set(SPEED, bytes_per_second).await
    }

    /// How often each group is scrubbed, in whole seconds. A setting of the cluster.
    ///
    /// # Errors
    /// `InvalidArgument` below 10 s; those of coordination.
    pub async fn scrub_every(&self, time: Duration) -> Result<()> {
        if time < SCRUB_EVERY_MIN {
            let text = format!(
                "a group can't be scrubbed more often than every {} s",
                SCRUB_EVERY_MIN.as_secs()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        self.set(SCRUB_EVERY, time.as_secs()).await
    }

    async fn set(&self, name: &str, value: u64) -> Result<()> {
        let coordination = &self.parts.coordination;
        let value = value.to_string();
        for _ in 0..ATTEMPTS_MAX {
            let known = coordination.config(name).await?;
            if known.as_ref().is_some_and(|known| known.value == value) {
                return Ok(());
            }
            let version = known.map_or(0, |known| known.version);
            match coordination.set_config(name, version, &value).await {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Changed => {}
                Err(error) => return Err(error),
            }
        }
        let text = format!("the setting {name} was changed by others {ATTEMPTS_MAX} times");
        Err(Error::new(ErrorKind::Busy, text))
    }
}
