//! The manager's side, too: makes the next NSDs of slots current when a repair has found that all pieces have
//! arrived, and rids NSDs of what they hold of groups that they have left.
//!
//! The planner may not know yet that an NSD was away and missed something, so the NSDs are asked again
//! before; the map is changed by compare-and-set of the one that was looked at. A manager that isn't one any
//! more and doesn't know it does no harm: what it changes is right by what the NSDs say.
//!
//! *An NSD that hangs* holds up no slots but its own: each group is looked at by itself, and each NSD is told by itself what
//! has become of its slots, while others are looked at and switched.

use super::Parts;
use futures::FutureExt;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use model::map::GroupStanding;
use model::{ErrorKind, GroupId, MapEpoch, NsdId, Result};
use pool::{Groups, MemberState};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use world::{Planted, Task};

/// How often slots are switched: a long drain shows how far it is, and space returns meanwhile.
const SWITCH_EVERY: Duration = Duration::from_secs(1);
/// How often a node that doesn't plan looks whether it does.
const IDLE_LOOK: Duration = Duration::from_secs(2);
/// Most groups that are looked at at the same time.
const GROUPS_MAX: usize = 256;
/// How long what they hold is waited for each time; what comes later counts the next time, if the map is the same then.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// So many times slots were switched and an NSD of them hasn't heard of it, or hasn't deleted everything: no more are
/// switched until one of these is over.
const LEAVING_MAX: usize = 64;
/// How often NSDs are looked through for groups that they have left.
const STRANGERS_EVERY: Duration = Duration::from_secs(30);

/// A slot that goes from one NSD to its next.
type Moved = (GroupId, u8, NsdId);

/// The slots of a group that have arrived, by the map of this epoch.
struct Looked {
    group: GroupId,
    map: MapEpoch,
    moved: Vec<Moved>,
}

/// Groups that are looked at.
#[derive(Default)]
struct Looks {
    running: FuturesUnordered<Task<Looked>>,
    groups: BTreeSet<GroupId>,
    found: Vec<Looked>,
}

impl Looks {
    /// Begins to look at these groups, but those that are being looked at.
    fn begin(&mut self, parts: &Arc<Parts>, groups: &Arc<Groups>, wanted: Vec<GroupId>) {
        for group in wanted {
            if self.groups.len() < GROUPS_MAX && self.groups.insert(group) {
                let look = look(parts.clone(), groups.clone(), group);
                let task = parts.world.spawn("looks at a group", look);
                self.running.push(task);
            }
        }
    }

    /// Waits until all have ended. Giving it up loses nothing.
    async fn end(&mut self) {
        while let Some(looked) = self.running.next().await {
            self.groups.remove(&looked.group);
            self.found.push(looked);
        }
    }
}

/// Finds out which slots of a group have arrived.
async fn look(parts: Arc<Parts>, groups: Arc<Groups>, group: GroupId) -> Looked {
    let arrived = parts.nsds.pool.arrived_slots(group).await;
    let members = groups.members(group);
    let moved = arrived.unwrap_or_default().into_iter().filter_map(|slot| {
        let members = members.get(usize::from(slot))?;
        Some((group, slot, members.current))
    });
    Looked {
        group,
        map: groups.map().epoch,
        moved: moved.collect(),
    }
}

/// The task that switches slots while this run is the manager.
pub(super) async fn switch_all(parts: Arc<Parts>) {
    let world = &parts.world;
    let mut looks = Looks::default();
    // What follows for the NSDs of slots that were switched.
    let mut leaving: FuturesUnordered<Task<()>> = FuturesUnordered::new();
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
        // Those that are over.
        while let Some(Some(())) = leaving.next().now_or_never() {}
        if !is_planning {
            looks = Looks::default();
            continue;
        }
        if leaving.len() >= LEAVING_MAX {
            continue;
        }
        match switch_arrived(&parts, &mut looks).await {
            Ok(left) => leaving.extend(left),
            Err(error) => tracing::debug!(%error, "slots that have moved aren't switched yet"),
        }
    }
}

/// Switches the slots that have arrived, as far as that is known soon. Returns what goes on then.
async fn switch_arrived(parts: &Arc<Parts>, looks: &mut Looks) -> Result<Option<Task<()>>> {
    let (world, pool) = (&parts.world, &parts.nsds.pool);
    let groups = pool.groups();
    let map = groups.map();
    let mut wanted = parts.jobs.desk.to_switch(map.epoch);
    if world.has_planted(Planted::ArriveEarly) {
        let moving: BTreeSet<_> = groups.moving().into_iter().map(|it| it.0).collect();
        wanted = moving.into_iter().collect();
    }
    looks.begin(parts, &groups, wanted);
    let _ = world.timeout(LOOK_MAX, looks.end()).await;
    let found = std::mem::take(&mut looks.found).into_iter();
    let found = found.filter(|looked| looked.map == map.epoch);
    let moved: Vec<Moved> = found.flat_map(|looked| looked.moved).collect();
    if moved.is_empty() || pool.map().epoch != map.epoch {
        return Ok(None);
    }
    let arrived = moved.iter().map(|(group, slot, _)| (*group, *slot));
    let arrived: Vec<_> = arrived.collect();
    let facts = &parts.coordination;
    let Some(fences) = metanode::switch_slots(world, facts, pool, map, &arrived).await? else {
        return Ok(None);
    };
    parts.jobs.desk.note_switched(moved.len() as u64);
    let left = moved.iter().map(|(group, _, nsd)| (*nsd, *group));
    let left: Vec<_> = left.collect();
    let pool = pool.clone();
    let leaving = async move { pool.leave_slots(&fences, &left).await };
    Ok(Some(world.spawn("leaves slots", leaving)))
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
