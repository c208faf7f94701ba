//! The manager's side, too: makes the next NSDs of slots current when a repair has found that all pieces have
//! arrived, and rids NSDs of what they hold of groups that they have left.
//!
//! The planner may not know yet that an NSD was away and missed something, so the NSDs are asked again
//! before; the map is changed by compare-and-set of the one that was looked at. A manager that isn't one any
//! more and doesn't know it does no harm: what it changes is right by what the NSDs say.

use super::Parts;
use model::map::GroupStanding;
use model::{ErrorKind, GroupId, NsdId, Result};
use pool::MemberState;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use world::Planted;

/// How often slots are switched: a long drain shows how far it is, and space returns meanwhile.
const SWITCH_EVERY: Duration = Duration::from_secs(1);
/// How often a node that doesn't plan looks whether it does.
const IDLE_LOOK: Duration = Duration::from_secs(2);
/// Most groups that are looked at each time.
const GROUPS_MAX: usize = 256;
/// How often NSDs are looked through for groups that they have left.
const STRANGERS_EVERY: Duration = Duration::from_secs(30);

/// A slot that goes from one NSD to its next.
type Moved = (GroupId, u8, NsdId);

/// The task that switches slots while this run is the manager.
pub(super) async fn switch_all(parts: Arc<Parts>) {
    let world = &parts.world;
    while !parts.lease.has_ended() {
        let is_planning = parts.jobs.desk.is_planning();
        let pause = match is_planning {
            true => SWITCH_EVERY,
            false => IDLE_LOOK,
        };
        tokio::select! {
            () = world.sleep(pause) => {}
            () = parts.lease.ended() => return,
        }
        if !is_planning {
            continue;
        }
        if let Err(error) = parts.switch_arrived().await {
            tracing::debug!(%error, "slots that have moved aren't switched yet");
        }
    }
}

/// The task that rids NSDs of groups that they have left, while this run is the manager. Apart from the one
/// that switches slots, because it copies and deletes as long as it takes.
pub(super) async fn rid_of_strangers(parts: Arc<Parts>) {
    while !parts.lease.has_ended() {
        tokio::select! {
            () = parts.world.sleep(STRANGERS_EVERY) => {}
            () = parts.lease.ended() => return,
        }
        if parts.jobs.desk.is_planning() {
            parts.delete_strangers().await;
        }
    }
}

impl Parts {
    async fn switch_arrived(&self) -> Result<()> {
        let pool = &self.nsds.pool;
        let groups = pool.groups();
        let map = groups.map();
        let mut arrived = self.jobs.desk.to_switch(map.epoch);
        if self.world.has_planted(Planted::ArriveEarly) {
            let moving: BTreeSet<_> = groups.moving().into_iter().map(|it| it.0).collect();
            arrived = moving.into_iter().collect();
        }
        let mut moved: Vec<Moved> = Vec::new();
        for group in arrived.into_iter().take(GROUPS_MAX) {
            for slot in pool.arrived_slots(group).await? {
                let members = groups.members(group)[usize::from(slot)];
                moved.push((group, slot, members.current));
            }
        }
        if moved.is_empty() || pool.map().epoch != map.epoch {
            return Ok(());
        }
        let facts = &self.coordination;
        let switched = metanode::switch_slots(&self.world, facts, pool, map, &moved).await?;
        self.jobs.desk.note_switched(switched);
        Ok(())
    }

    /// An NSD deletes what it holds of a group that it has left, after those that have its slots have it.
    async fn leave(&self, nsd: NsdId, group: GroupId, silent: &mut BTreeSet<NsdId>) {
        if let Err(error) = self.nsds.pool.leave_group(nsd, group).await {
            tracing::debug!(%nsd, %group, %error, "pieces of a group that the NSD has left stay for now");
            if matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable) {
                silent.insert(nsd);
            }
        }
    }

    /// Rids NSDs of groups that they have left, when those are whole without them: until then each piece may be
    /// the last copy.
    async fn delete_strangers(&self) {
        let pool = &self.nsds.pool;
        let groups = pool.groups();
        let map = groups.map();
        for state in pool.nsd_states() {
            let nsd = state.entry.nsd;
            if matches!(state.member, MemberState::Failed | MemberState::Missing) {
                continue;
            }
            let Ok(held) = pool.groups_on(nsd).await else {
                continue;
            };
            let mut silent = BTreeSet::new();
            for group in held {
                let is_left = match map.standing(group) {
                    GroupStanding::Known => {
                        !groups.is_member(nsd, group) && self.jobs.desk.is_sound(group, map.epoch)
                    }
                    GroupStanding::Gone => true,
                    // It isn't known whether that was left.
                    GroupStanding::Future => false,
                };
                if !self.jobs.desk.is_planning() {
                    return;
                }
                if is_left && !silent.contains(&nsd) {
                    self.leave(nsd, group, &mut silent).await;
                }
            }
        }
    }
}
