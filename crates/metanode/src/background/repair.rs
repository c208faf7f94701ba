//! Repair: rebuilds segments that readers and writers found incomplete, switches slots that have
//! moved, and reports to `shale repair status`.

use crate::background::{Judge, Repaired, Standing};
use crate::metanode::{DATA_POOL, Metanode};
use crate::report::RepairStatus;
use model::map::{NsdState, PoolMap};
use model::{ErrorKind, GroupId, InodeId, NsdId, Operation, Result};
use pool::{Depth, MemberState, RepairOutcome, Suspect, SuspectCause};
use std::collections::BTreeSet;
use std::time::Duration;

/// Most suspects per round.
const SUSPECTS_MAX: usize = 64;
/// The shard commits this often while an earlier view holds entries.
const LOG_PUSH_EVERY: Duration = Duration::from_secs(5);
/// Pause before a drained NSD's failed hand-over is tried again.
const HAND_OVER_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// A suspect that isn't published for this long is left to the next survey: its writer gave it up,
/// or its object is gone.
const UNDECIDED_FOR: Duration = Duration::from_secs(30);

impl Metanode {
    /// Progress of repair.
    #[must_use]
    pub fn repair_status(&self) -> RepairStatus {
        let progress = self.pool.repair_progress();
        let mut status = self.background.repair.lock().clone();
        status.offline = self.nsds_away();
        status.slots_without_nsd = progress.lost_slots;
        status.slots_moving = progress.moving_slots;
        status.segments_queued = progress.queued;
        status.pieces_rebuilt = progress.rebuilt_pieces;
        status.bytes_rebuilt = progress.rebuilt_bytes;
        let shard = self.shard();
        let log = shard.tree().log();
        status.unreadable = self.unreadable_data();
        status.log_moving = log.closed_end().is_some();
        status.log_copies = log.view().len() as u64;
        status.log_copies_wanted = self.pool.map().scheme.tolerance() as u64 + 1;
        status.narrow = self.is_narrow_left();
        status.complete &= !status.narrow
            && self.is_widened()
            && status.log_copies >= status.log_copies_wanted
            && progress.queued == 0
            && progress.lost_slots == 0
            && progress.moving_slots == 0
            && !status.log_moving;
        status
    }

    /// NSDs that don't serve and weren't given up.
    pub(super) fn nsds_away(&self) -> Vec<NsdId> {
        let is_away =
            |state: MemberState| matches!(state, MemberState::Failed | MemberState::Missing);
        let states = self.pool.nsd_states();
        states
            .iter()
            .filter(|state| is_away(state.member) && state.entry.state != NsdState::Lost)
            .map(|state| state.entry.nsd)
            .collect()
    }

    /// Repairs suspects of readers and writers, the most endangered first. One that can't be
    /// repaired now is retried later and doesn't block the others.
    pub(super) async fn repair_suspects(&self) -> Result<u64> {
        if !self.pool.has_suspects() {
            return Ok(0);
        }
        let judge = self.judge(self.decided().await?).await?;
        let mut result = Ok(0);
        let mut suspects = self.pool.take_suspects(SUSPECTS_MAX).into_iter();
        for suspect in suspects.by_ref() {
            match self.repair_suspect(&judge, &suspect).await {
                Ok(rebuilt) => result = result.map(|changed| changed + rebuilt),
                Err(error) => {
                    self.pool.retry_suspect(&suspect);
                    result = result.and(Err(error));
                    // The others can't be repaired before the take-over either.
                    if self.shard().check_alive().is_err() {
                        break;
                    }
                }
            }
        }
        suspects.for_each(|untried| self.pool.return_suspect(&untried));
        result
    }

    async fn repair_suspect(&self, judge: &Judge, suspect: &Suspect) -> Result<u64> {
        match self.standing_of(judge, suspect.place.segment).await? {
            Standing::Live(place) => {
                let damaged = suspect.cause >= SuspectCause::Damaged;
                let depth = if damaged { Depth::Bytes } else { Depth::Index };
                match self.repair_live(&place, depth).await? {
                    Repaired::Done(outcome) => {
                        // Surveys look for missing pieces, not for damaged ones.
                        if damaged && outcome.missing & suspect.pieces != 0 {
                            self.pool.retry_suspect(suspect);
                        }
                        return Ok(u64::from(outcome.rebuilt));
                    }
                    Repaired::Later => self.pool.retry_suspect(suspect),
                    Repaired::Gone | Repaired::Unreadable => {}
                }
            }
            // Its writer hasn't published it yet.
            Standing::Undecided if self.world.now() - suspect.since < UNDECIDED_FOR => {
                self.pool.return_suspect(suspect);
            }
            Standing::Damaged => self.pool.retry_suspect(suspect),
            Standing::Undecided | Standing::Dead | Standing::Garbage => {}
        }
        Ok(0)
    }

    /// Moves the log off NSDs of earlier views, and gives up drained NSDs that hold nothing any
    /// more.
    pub(super) async fn finish_leaving(&self) -> Result<u64> {
        let shard = self.shard();
        let log = shard.tree().log().clone();
        if log.closed_end().is_some() {
            let now = self.world.now();
            {
                let mut memory = self.background.memory.lock();
                let is_due = memory
                    .log_pushed
                    .is_none_or(|last| now - last >= LOG_PUSH_EVERY);
                if !is_due {
                    return Ok(0);
                }
                memory.log_pushed = Some(now);
            }
            // The tree's replay begins after a commit: an idle shard needs one.
            let operation = Operation::NoteAccess {
                inode: InodeId::ROOT,
                at: self.world.wall(),
            };
            self.execute(&operation, &self.stamp()).await?;
            self.sync().await?;
            return Ok(0);
        }
        let Some(holders) = log.holders() else {
            return Ok(0);
        };
        let groups = self.pool.groups();
        let entries = groups.map().nsds.iter();
        let drained: Vec<NsdId> = entries
            .filter(|entry| entry.state == NsdState::Draining)
            .map(|entry| entry.nsd)
            .filter(|nsd| groups.slots_of(*nsd).is_empty() && !holders.contains(nsd))
            .collect();
        let now = self.world.now();
        let failed = self.background.memory.lock().hand_over_failed;
        if failed.is_some_and(|last| now - last < HAND_OVER_AGAIN_AFTER) {
            return Ok(0);
        }
        let mut given_up = 0;
        for nsd in &drained {
            // A crash, or an NSD that now has its slots, may have prevented it from handing
            // everything over.
            if let Err(error) = self.hand_over_all(*nsd).await {
                tracing::warn!(%nsd, %error, "a drained NSD still holds pieces that others should have");
                self.background.memory.lock().hand_over_failed = Some(now);
                continue;
            }
            let Some(fact) = self.coordination.pool_map(DATA_POOL).await? else {
                return Ok(0);
            };
            let next = pool::mark_lost(&fact.value, *nsd)?;
            self.coordination
                .set_pool_map(DATA_POOL, fact.version, &next)
                .await?;
            self.pool.set_map(next).await?;
            tracing::info!(%nsd, "a drained NSD is empty; its region may be removed");
            given_up += 1;
        }
        Ok(given_up)
    }

    pub(super) fn note_repaired(&self, outcome: &RepairOutcome) {
        self.background.repair.lock().segments_repaired += u64::from(outcome.rebuilt > 0);
    }

    /// Makes the next NSD of these slots current, in coordination and here, then lets the previous
    /// NSDs delete the moved pieces.
    pub(super) async fn switch_slots(
        &self,
        seen: &PoolMap,
        moved: &[(GroupId, u8, NsdId)],
    ) -> Result<u64> {
        let Some(fact) = self.coordination.pool_map(DATA_POOL).await? else {
            return Ok(0);
        };
        if fact.value.epoch != seen.epoch {
            return Ok(0);
        }
        let arrived: Vec<(GroupId, u8)> = moved
            .iter()
            .map(|(group, slot, _)| (*group, *slot))
            .collect();
        let next = pool::finish_moves(&fact.value, &arrived);
        match self
            .coordination
            .set_pool_map(DATA_POOL, fact.version, &next)
            .await
        {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Changed => return Ok(0),
            Err(error) => return Err(error),
        }
        if let Err(error) = self.pool.set_map(next).await {
            tracing::warn!(%error, "not every NSD knows the new group versions yet; writers will tell them");
        }
        tracing::info!(slots = moved.len(), "slots have moved");
        // Each NSD is asked until it fails to answer: a hanging one would block the round for every
        // group.
        let mut silent = BTreeSet::from([NsdId::NONE]);
        for (group, _, left) in moved {
            if !silent.contains(left)
                && self.pool.nsd(*left).is_some()
                && let Err(error) = self.pool.leave_group(*left, *group).await
            {
                tracing::debug!(nsd = %left, %group, %error, "moved pieces stay until the NSD is gone");
                if error.kind() == ErrorKind::Unknown {
                    silent.insert(*left);
                }
            }
        }
        Ok(moved.len() as u64)
    }
}
