//! Repair: rebuilds segments that readers and writers found incomplete, switches slots that have
//! moved, and reports to `shale repair status`.

use crate::background::balance::Balance;
use crate::background::clean::Clean;
use crate::background::emptying::Emptying;
use crate::background::slots::nsds_away;
use crate::background::survey::Survey;
use crate::background::unreadable::{Repaired, Unreadable};
use crate::host::Host;
use crate::judging::{Judge, Judging, Standing};
use crate::report::RepairStatus;
use model::Result;
use pool::{Depth, Suspect, SuspectCause};
use std::sync::Arc;
use std::time::Duration;

/// Most suspects per round.
const SUSPECTS_MAX: usize = 64;
/// A suspect that isn't published for this long is left to the next survey: its writer gave it up,
/// or its object is gone.
const UNDECIDED_FOR: Duration = Duration::from_secs(30);

/// Repairs what the pool suspects.
pub(super) struct Repair {
    host: Arc<Host>,
    judging: Judging,
    unreadable: Arc<Unreadable>,
    survey: Arc<Survey>,
    clean: Arc<Clean>,
    emptying: Arc<Emptying>,
    balance: Arc<Balance>,
}

impl Repair {
    pub(super) fn new(
        host: Arc<Host>,
        judging: Judging,
        unreadable: Arc<Unreadable>,
        survey: Arc<Survey>,
        clean: Arc<Clean>,
        emptying: Arc<Emptying>,
        balance: Arc<Balance>,
    ) -> Self {
        Self {
            host,
            judging,
            unreadable,
            survey,
            clean,
            emptying,
            balance,
        }
    }

    /// Progress of repair.
    pub(super) fn status(&self) -> RepairStatus {
        let progress = self.host.pool().repair_progress();
        let mut status = self.survey.status();
        status.segments_repaired = self.unreadable.repaired();
        status.offline = nsds_away(self.host.pool());
        status.slots_without_nsd = progress.lost_slots;
        status.slots_moving = progress.moving_slots;
        status.groups_critical = self.host.pool().critical_groups();
        status.segments_queued = self.queued();
        status.pieces_rebuilt = progress.rebuilt_pieces;
        status.bytes_rebuilt = progress.rebuilt_bytes;
        let shard = self.host.shard();
        let log = shard.tree().log();
        status.unreadable = self.unreadable.data();
        status.log_moving = log.closed_end().is_some();
        let view = log.view();
        let together = self.host.pool().log_together(&view);
        status.log_copies = (view.len() - together.len()) as u64;
        status.log_copies_wanted = self.host.pool().map().scheme().tolerance() as u64 + 1;
        status.narrow = self.clean.is_narrow_left();
        status.closed_generations = self.host.pool().map().closed().len() as u64;
        status.segments_to_move = self.emptying.left().unwrap_or(0);
        status.balancing = self.balance.is_moving();
        status.complete &= !status.narrow
            && !status.balancing
            && status.closed_generations == 0
            && self.clean.is_widened()
            && status.log_copies >= status.log_copies_wanted
            && status.segments_queued == 0
            && progress.lost_slots == 0
            && progress.moving_slots == 0
            && !status.log_moving;
        status
    }

    /// How many suspects wait that may be this shard's.
    fn queued(&self) -> u64 {
        let pool = self.host.pool();
        pool.count_suspects(|family| self.host.holds(family)) as u64
    }

    /// Repairs suspects of readers and writers, the most endangered first. One that can't be
    /// repaired now is retried later and doesn't block the others.
    pub(super) async fn repair_suspects(&self) -> Result<u64> {
        if self.queued() == 0 {
            return Ok(0);
        }
        let judge = self.judging.judge(self.judging.decided().await?).await?;
        let mut result = Ok(0);
        let is_own = |family| self.host.holds(family);
        let taken = self.host.pool().take_suspects(SUSPECTS_MAX, is_own);
        let mut suspects = taken.into_iter();
        for suspect in suspects.by_ref() {
            match self.repair_suspect(&judge, &suspect).await {
                Ok(rebuilt) => result = result.map(|changed| changed + rebuilt),
                Err(error) => {
                    self.host.pool().retry_suspect(&suspect);
                    result = result.and(Err(error));
                    // The others can't be repaired before the take-over either.
                    if self.host.shard().check_alive().is_err() {
                        break;
                    }
                }
            }
        }
        suspects.for_each(|untried| self.host.pool().return_suspect(&untried));
        result
    }

    async fn repair_suspect(&self, judge: &Judge, suspect: &Suspect) -> Result<u64> {
        let mut suspect = *suspect;
        let standing = self
            .judging
            .standing_of(judge, suspect.place.segment)
            .await?;
        let is_unknown = matches!(standing, Standing::Undecided | Standing::Garbage);
        if is_unknown && suspect.family.is_none() {
            // Readers don't know whose it is, and all shards of the process share the queue.
            suspect.family = self.host.pool().family_of(&suspect.place).await;
            if suspect
                .family
                .is_some_and(|family| !self.host.holds(family))
            {
                self.host.pool().return_suspect(&suspect);
                return Ok(0);
            }
        }
        let suspect = &suspect;
        match standing {
            Standing::Live(place) => {
                let damaged = suspect.cause >= SuspectCause::Damaged;
                let depth = if damaged { Depth::Bytes } else { Depth::Index };
                match self.unreadable.repair_live(&place, depth).await? {
                    Repaired::Done(outcome) => {
                        // Surveys look for missing pieces, not for damaged ones.
                        if damaged && outcome.missing & suspect.pieces != 0 {
                            self.host.pool().retry_suspect(suspect);
                        }
                        return Ok(u64::from(outcome.rebuilt));
                    }
                    Repaired::Later => self.host.pool().retry_suspect(suspect),
                    Repaired::Gone | Repaired::Unreadable => {}
                }
            }
            // Its writer hasn't published it yet.
            Standing::Undecided if self.host.world().now() - suspect.since < UNDECIDED_FOR => {
                self.host.pool().return_suspect(suspect);
            }
            Standing::Damaged => self.host.pool().retry_suspect(suspect),
            Standing::Undecided | Standing::Dead | Standing::Garbage => {}
        }
        Ok(0)
    }
}
