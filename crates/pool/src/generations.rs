//! Generations of groups: which one a segment is in, how a closed one becomes empty, and readers that
//! are ahead of their map. The rules are in `docs/protocols/generations.md`.

use crate::Pool;
use crate::members::MemberState;
use model::map::{Generation, GroupStanding, NsdState, PoolMap};
use model::nsd::GroupFence;
use model::{Error, ErrorKind, GroupId, MapEpoch, NsdId, Result, SegmentPlace};
use placement::{Groups, SlotMembers};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a reader waits for the map that has a segment's group. The map is in coordination before
/// any writer uses it, so it comes as soon as coordination is reached.
const MAP_PATIENCE: Duration = Duration::from_secs(10);

/// What a group has left.
struct GroupNeed {
    group: GroupId,
    /// How many further losses its whole segments survive.
    spare: i64,
    /// Slots whose pieces are lost or away.
    lacking: usize,
}

impl Pool {
    /// Whether a segment is in a generation that takes no new segments: rewriting it moves it into
    /// the newest.
    #[must_use]
    pub fn is_closed(&self, place: &SegmentPlace) -> bool {
        self.map.read().is_closed(place.group)
    }

    /// Most plain bytes of a new segment of a file, if the pool says so.
    #[must_use]
    pub fn block_bytes(&self) -> Option<u32> {
        self.map.read().newest().block_bytes
    }

    /// Whether a segment written now gets all the redundancy of the pool's scheme.
    #[must_use]
    pub fn keeps_redundancy(&self) -> bool {
        let states = self.nsd_states();
        let serving = states.iter().filter(|state| {
            let is_there = matches!(state.member, MemberState::Online | MemberState::Suspect);
            is_there && state.entry.state == NsdState::Active
        });
        let failure_groups: BTreeSet<_> = serving.map(|state| state.entry.failure_group).collect();
        failure_groups.len() > self.map().scheme().tolerance()
    }

    /// All groups, those first that survive the fewest further losses: repair looks at them in this
    /// order.
    #[must_use]
    pub fn groups_by_need(&self) -> Vec<GroupId> {
        let mut all = self.needs_of_groups();
        all.sort_by_key(|standing| standing.spare);
        all.into_iter().map(|standing| standing.group).collect()
    }

    /// Whether some group of a map, which may be newer than the one in use, couldn't be read without an NSD. A slot
    /// that moves counts only while both its NSDs serve: each may have what the other lacks. So it is while an NSD is
    /// drained, which gets nothing new, and when that was taken back, as most is at the next NSD then.
    #[must_use]
    pub fn is_needed(&self, map: &PoolMap, nsd: NsdId) -> bool {
        let groups = Groups::new(map);
        let serving = self.serving(map);
        let has_all = |slot: &&SlotMembers| {
            let mut nsds = slot.in_reading_order();
            slot.current != NsdId::NONE && nsds.all(|it| it != nsd && serving.contains(&it))
        };
        let mut all = groups.all();
        all.any(|group| {
            let others = groups.members(group).iter().filter(has_all).count();
            let needed = groups.scheme_of(group).map_or(0, |it| it.data_pieces());
            others < needed && groups.is_member(nsd, group)
        })
    }

    /// Groups that lack a slot and can't lose another one, or can't be read until an NSD comes back.
    #[must_use]
    pub fn critical_groups(&self) -> u64 {
        let all = self.needs_of_groups();
        let is_critical = |it: &&GroupNeed| it.spare <= 0 && it.lacking > 0;
        all.iter().filter(is_critical).count() as u64
    }

    /// What each group has left. A slot that moves counts by the NSD that has its pieces: the next one
    /// gets them only now. NSDs that don't answer well count as lost, because they may be.
    fn needs_of_groups(&self) -> Vec<GroupNeed> {
        let groups = self.groups();
        let serving = self.serving(groups.map());
        let need = |group: GroupId| {
            let slots = groups.members(group).iter();
            let filled = slots.clone().filter(|slot| slot.current != NsdId::NONE);
            let has = slots.filter(|slot| serving.contains(&slot.current)).count();
            let scheme = groups.scheme_of(group);
            GroupNeed {
                group,
                spare: has as i64 - scheme.map_or(0, |it| it.data_pieces() as i64),
                lacking: filled.count() - has,
            }
        };
        groups.all().map(need).collect()
    }

    /// The NSDs of a map that serve. Those that don't answer well may be lost.
    fn serving(&self, map: &PoolMap) -> BTreeSet<NsdId> {
        let now = self.world.now();
        let serves = |nsd: &NsdId| {
            let state = self.member(*nsd).map(|member| member.state(now));
            matches!(state, Some(MemberState::Online | MemberState::Full))
        };
        let kept = map.nsds.iter().filter(|it| it.state != NsdState::Lost);
        kept.map(|entry| entry.nsd).filter(serves).collect()
    }

    /// The groups of which an NSD holds blobs, in order.
    ///
    /// # Errors
    /// `Unavailable` if it is away; `Unknown` if it doesn't answer.
    pub async fn groups_on(&self, nsd: NsdId) -> Result<Vec<GroupId>> {
        let away = || {
            let text = format!("list the groups on NSD {nsd}: it is away");
            Error::new(ErrorKind::Unavailable, text)
        };
        let member = self
            .member(nsd)
            .filter(|member| member.is_readable())
            .ok_or_else(away)?;
        member.nsd.groups(self.list_deadline()).await
    }

    /// Tells every NSD that has a slot of a closed generation that it is closed, so that puts by
    /// older maps are refused, then looks whether any NSD of the pool holds a blob of it. From the
    /// time that this returns true, none ever will. Lost NSDs don't count.
    ///
    /// # Errors
    /// `Unavailable`, `Unknown`: an NSD doesn't answer. What it holds isn't known.
    pub async fn is_emptied(&self, closed: &Generation) -> Result<bool> {
        let groups = self.groups();
        let map = groups.map();
        let present = map.nsds.iter().filter(|it| it.state != NsdState::Lost);
        for nsd in present.clone().map(|entry| entry.nsd) {
            let slots = groups.slots_of(nsd);
            let own: BTreeSet<GroupId> = slots
                .into_iter()
                .map(|(group, _)| group)
                .filter(|group| closed.contains(*group))
                .collect();
            let fences = own.into_iter().map(|group| GroupFence {
                group,
                version: map.version(group),
            });
            self.tell(nsd, &fences.collect::<Vec<_>>()).await?;
        }
        for nsd in present.map(|entry| entry.nsd) {
            let held = self.groups_on(nsd).await?;
            if held.into_iter().any(|group| closed.contains(group)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The groups of a map that has this group, which a segment's writer knew.
    ///
    /// # Errors
    /// `NotFound`: its generation has left the map. `Unavailable`: no map with it came in time.
    pub(crate) async fn groups_with(&self, group: GroupId) -> Result<Arc<Groups>> {
        let groups = self.groups();
        match groups.map().standing(group) {
            GroupStanding::Known => Ok(groups),
            GroupStanding::Gone => {
                let text = format!("group {group} was emptied and is no more: the place is stale");
                Err(Error::new(ErrorKind::NotFound, text))
            }
            // Boxed because it is rare, and every read's future would contain it otherwise.
            GroupStanding::Future => Box::pin(self.wait_for_group(group)).await,
        }
    }

    /// Waits until this process knows a map with a higher epoch, for at most [`MAP_PATIENCE`].
    pub(crate) async fn wait_for_map_after(&self, epoch: MapEpoch) {
        let mut known = self.newest_epoch.subscribe();
        let newer = known.wait_for(|known| *known > epoch);
        // Whether it came or not, the caller tries again.
        let _came = self.world.timeout(MAP_PATIENCE, newer).await;
    }

    /// There is a newer map than that of this epoch: an NSD has refused what was put by it, or a segment is in a group that it
    /// hasn't.
    pub(crate) fn note_behind(&self, epoch: MapEpoch) {
        self.outdated_epoch.fetch_max(epoch.0, Ordering::Relaxed);
    }

    /// Whether it has shown that there is a newer map than that of this process. What can't be written or read now may be as
    /// soon as that has come.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        let outdated = self.outdated_epoch.load(Ordering::Relaxed);
        outdated > 0 && outdated >= self.map.read().epoch.0
    }

    async fn wait_for_group(&self, group: GroupId) -> Result<Arc<Groups>> {
        let mut epoch = self.newest_epoch.subscribe();
        let is_known = epoch.wait_for(|_| self.groups().contains(group));
        // The sender lives as long as the pool.
        let known = self.world.timeout(MAP_PATIENCE, is_known).await.is_ok();
        let groups = self.groups();
        if known && groups.contains(group) {
            return Ok(groups);
        }
        self.note_behind(groups.map().epoch);
        let text = format!(
            "group {group} isn't in the map of this node (epoch {}), and no newer map came for {} s",
            groups.map().epoch,
            MAP_PATIENCE.as_secs()
        );
        Err(Error::new(ErrorKind::Unavailable, text))
    }
}
