//! Slots of groups that move from one NSD to another, and NSDs that leave.

use crate::background::counts::count;
use crate::host::{DATA_POOL, Host};
use coordination::Coordination;
use model::map::{GroupStanding, NsdState, PoolMap};
use model::nsd::{GroupFence, NsdHealth};
use model::{ErrorKind, GroupId, NsdId, Operation, Result};
use parking_lot::Mutex;
use pool::{MemberState, Pool};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use world::{Instant, Point, World};

/// The shard commits this often while an earlier view holds entries.
const LOG_PUSH_EVERY: Duration = Duration::from_secs(5);
/// Pause before a drained NSD's failed hand-over is tried again.
const HAND_OVER_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Changes the pool's map when something has arrived or left.
pub(super) struct Slots {
    host: Arc<Host>,
    progress: Mutex<Progress>,
    /// Slots that this process has made current.
    moved: AtomicU64,
}

#[derive(Default)]
struct Progress {
    /// When a commit was last made so that the log could leave an earlier view.
    log_pushed: Option<Instant>,
    /// When a drained NSD last failed to hand over its pieces.
    hand_over_failed: Option<Instant>,
}

impl Slots {
    pub(super) fn new(host: Arc<Host>) -> Self {
        Self {
            host,
            progress: Mutex::default(),
            moved: AtomicU64::default(),
        }
    }

    /// Slots that this process has made current.
    pub(super) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// The groups whose blobs an NSD holds without being a member; none if it doesn't serve.
    pub(super) async fn groups_left_by(&self, nsd: NsdId) -> Result<Vec<GroupId>> {
        match self.find_left_by(nsd).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => Ok(Vec::new()),
            found => found,
        }
    }

    /// The groups whose blobs an NSD holds without being a member.
    ///
    /// # Errors
    /// As [`Pool::groups_on`].
    async fn find_left_by(&self, nsd: NsdId) -> Result<Vec<GroupId>> {
        let held = self.host.pool().groups_on(nsd).await?;
        let groups = self.host.pool().groups();
        // Those of a newer map aren't known to be left.
        let is_known = |group: &GroupId| groups.map().standing(*group) != GroupStanding::Future;
        let is_left = |group: &GroupId| is_known(group) && !groups.is_member(nsd, *group);
        Ok(held.into_iter().filter(is_left).collect())
    }

    /// Hands over blobs that an NSD without slots still holds and that may be the last copies. What was on one that says
    /// that it failed is rebuilt from the others.
    ///
    /// # Errors
    /// If it doesn't answer, or an NSD that should get them is away or full.
    async fn hand_over_all(&self, nsd: NsdId) -> Result<()> {
        let handle = self.host.pool().handle(nsd);
        if handle.is_some_and(|handle| handle.health() == NsdHealth::Failed) {
            return Ok(());
        }
        // It may have been away when its slots left it, and nothing must come any more once it was looked through.
        self.host.pool().fence_all(nsd).await?;
        for group in self.find_left_by(nsd).await? {
            self.host.pool().leave_group(nsd, group).await?;
        }
        Ok(())
    }

    /// Moves the log off NSDs of earlier views, and gives up drained NSDs that hold nothing any
    /// more.
    pub(super) async fn finish_leaving(&self) -> Result<u64> {
        let shard = self.host.shard();
        let log = shard.tree().log().clone();
        if log.closed_end().is_some() {
            let now = self.host.world().now();
            {
                let mut progress = self.progress.lock();
                let is_due = progress
                    .log_pushed
                    .is_none_or(|last| now - last >= LOG_PUSH_EVERY);
                if !is_due {
                    return Ok(0);
                }
                progress.log_pushed = Some(now);
            }
            // The tree's replay begins after a commit: an idle shard needs one.
            let operation = Operation::NoteAccess {
                inode: self.host.families()[0].root(),
                at: self.host.world().wall(),
            };
            self.host.run_own(&operation).await?;
            self.host.sync().await?;
            return Ok(0);
        }
        let groups = self.host.pool().groups();
        let entries = groups.map().nsds.iter();
        let mut drained: Vec<NsdId> = entries
            .filter(|entry| entry.state == NsdState::Draining)
            .map(|entry| entry.nsd)
            .filter(|nsd| groups.slots_of(*nsd).is_empty())
            .collect();
        if drained.is_empty() {
            return Ok(0);
        }
        // Other shards keep their logs in the same pool, and only their records tell.
        let shards = self.host.coordination().shards().await?;
        drained.retain(|nsd| !shards.iter().any(|it| it.log_holders().contains(nsd)));
        let now = self.host.world().now();
        let failed = self.progress.lock().hand_over_failed;
        if failed.is_some_and(|last| now - last < HAND_OVER_AGAIN_AFTER) {
            return Ok(0);
        }
        let mut given_up = 0;
        for nsd in &drained {
            // Its node may only be starting again, and doesn't open an NSD that was given up.
            if self.host.pool().is_away(*nsd) {
                tracing::debug!(%nsd, "a drained NSD is away; it may have pieces that no other one has");
                continue;
            }
            // A crash, or an NSD that now has its slots, may have prevented it from handing
            // everything over.
            if let Err(error) = self.hand_over_all(*nsd).await {
                tracing::warn!(%nsd, %error, "a drained NSD still holds pieces that others should have");
                self.progress.lock().hand_over_failed = Some(now);
                continue;
            }
            let Some(fact) = self.host.coordination().pool_map(DATA_POOL).await? else {
                return Ok(0);
            };
            // Its drain may have been taken back meanwhile.
            let entry = fact.value.nsd(*nsd);
            if entry.is_none_or(|it| it.state != NsdState::Draining) {
                continue;
            }
            let next = pool::mark_lost(&fact.value, *nsd)?;
            self.host
                .coordination()
                .set_pool_map(DATA_POOL, fact.version, &next)
                .await?;
            self.host.pool().set_map(next).await?;
            tracing::info!(%nsd, "a drained NSD is empty; its region may be removed");
            given_up += 1;
        }
        Ok(given_up)
    }

    /// As [`switch_slots`]; counts them, and lets the NSDs before, which each is named with, delete the moved pieces.
    pub(super) async fn switch(
        &self,
        seen: &PoolMap,
        moved: &[(GroupId, u8, NsdId)],
    ) -> Result<u64> {
        let (coordination, pool) = (self.host.coordination(), self.host.pool());
        let arrived = moved.iter().map(|(group, slot, _)| (*group, *slot));
        let arrived: Vec<_> = arrived.collect();
        let fences = switch_slots(self.host.world(), coordination, pool, seen, &arrived).await?;
        let Some(fences) = fences else {
            return Ok(0);
        };
        let switched = moved.len() as u64;
        count(&self.moved, switched);
        let left = moved.iter().map(|(group, _, nsd)| (*nsd, *group));
        let left: Vec<_> = left.collect();
        pool.leave_slots(&fences, &left).await;
        Ok(switched)
    }
}

/// Makes the next NSDs of these slots current, in coordination and here. Returns what has to be told to NSDs, as
/// [`Pool::use_map`] does: they and those before are seen to by [`Pool::leave_slots`], for which nobody has to wait. `None`:
/// nothing was changed, because the map isn't the one that was looked at.
///
/// # Errors
/// Those of coordination.
pub async fn switch_slots(
    world: &World,
    coordination: &Coordination,
    pool: &Pool,
    seen: &PoolMap,
    arrived: &[(GroupId, u8)],
) -> Result<Option<BTreeMap<NsdId, Vec<GroupFence>>>> {
    let Some(fact) = coordination.pool_map(DATA_POOL).await? else {
        return Ok(None);
    };
    if fact.value.epoch != seen.epoch {
        return Ok(None);
    }
    let next = pool::finish_moves(&fact.value, arrived);
    world.at(Point::SlotArrived).await;
    match coordination
        .set_pool_map(DATA_POOL, fact.version, &next)
        .await
    {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::Changed => return Ok(None),
        Err(error) => return Err(error),
    }
    let fences = pool.use_map(next);
    tracing::info!(slots = arrived.len(), "slots have moved");
    world.at(Point::SlotSwitched).await;
    Ok(Some(fences))
}

/// NSDs that don't serve and weren't given up.
pub(super) fn nsds_away(pool: &Pool) -> Vec<NsdId> {
    let is_away = |state: MemberState| matches!(state, MemberState::Failed | MemberState::Missing);
    let states = pool.nsd_states();
    states
        .iter()
        .filter(|state| is_away(state.member) && state.entry.state != NsdState::Lost)
        .map(|state| state.entry.nsd)
        .collect()
}
