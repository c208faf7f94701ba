//! Surveys: lists a group's segments on all its NSDs and compares the lists.

use crate::Pool;
use crate::members::Member;
use crate::read::fits_pool;
use crate::repair::holders;
use crate::segment::{SegmentOwner, place_of};
use futures::StreamExt;
use futures::future::{join, join_all};
use futures::stream::FuturesUnordered;
use model::map::NsdState;
use model::nsd::{BlobInfo, GroupDigest};
use model::{BlobName, FamilyId, GroupId, NsdId, Result, SegmentId, SegmentPlace};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use world::Planted;
use world::call::Deadline;

/// Fewest blobs listed in one step per NSD.
const STEP_MIN: usize = 16;
/// An NSD that hasn't answered a listing, a digest or an info after this time counts as away.
const LIST_DEADLINE: Duration = Duration::from_secs(30);
/// Segments examined in one step of an arrival check.
const ARRIVAL_STEP: usize = 1000;

/// A segment of which at least one NSD of a group holds a piece.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SurveyedSegment {
    /// The segment as described by its blobs; `missing` names the pieces that no NSD holds.
    pub place: SegmentPlace,
    /// What it was written for: names the shard that knows whether it is live.
    pub owner: SegmentOwner,
    /// Pieces that should be on a reachable NSD but aren't.
    pub absent: Vec<(u8, NsdId)>,
    /// Blobs found, with their NSDs.
    pub present: Vec<(BlobName, NsdId)>,
}

/// A part of the segments of a group, in order of their ids.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupSurvey {
    /// The segments.
    pub segments: Vec<SurveyedSegment>,
    /// Where to continue; `None` at the end.
    pub resume: Option<SegmentId>,
    /// Members that did not answer: segments that only they hold are not in the list.
    pub unreachable: Vec<NsdId>,
}

impl Pool {
    /// When an NSD that hasn't answered a listing, a digest or an info counts as away.
    pub(crate) fn list_deadline(&self) -> Deadline {
        Deadline::after(&self.world, LIST_DEADLINE)
    }

    fn reachable(&self, nsd: NsdId) -> Option<Arc<Member>> {
        self.member(nsd).filter(|member| member.is_readable())
    }

    /// Whether two NSDs say that they hold the same of a group.
    async fn hold_the_same(&self, group: GroupId, one: NsdId, other: NsdId) -> bool {
        let digests = join(self.digest_of(one, group), self.digest_of(other, group));
        matches!(digests.await, (Some(one), Some(other)) if one == other)
    }

    /// What an NSD says it holds of a group; `None` if it is away.
    async fn digest_of(&self, nsd: NsdId, group: GroupId) -> Option<GroupDigest> {
        let member = self.reachable(nsd)?;
        member.nsd.digest(group, self.list_deadline()).await.ok()
    }

    /// Lists about `limit` segments of a group after `after`, with their absent pieces. Repair uses
    /// this to find what to rebuild, and a sweep to find what to ask shards about.
    ///
    /// # Errors
    /// None yet: members that fail count as unreachable.
    pub async fn survey(
        &self,
        group: GroupId,
        after: Option<SegmentId>,
        limit: usize,
    ) -> Result<GroupSurvey> {
        let groups = self.groups();
        let members: BTreeSet<NsdId> = groups
            .members(group)
            .iter()
            .flat_map(|slot| slot.in_reading_order())
            .collect();
        let limit = limit.max(STEP_MIN);
        // After the last possible piece of `after`.
        let start = after.map(|segment| BlobName {
            group,
            segment,
            piece: u8::MAX,
        });
        let mut blobs: BTreeMap<SegmentId, Vec<(NsdId, BlobInfo)>> = BTreeMap::new();
        let mut unreachable = Vec::new();
        let mut known_to: Option<SegmentId> = None;
        for nsd in members {
            let listing = match self.reachable(nsd) {
                Some(member) => member
                    .nsd
                    .list(group, start, limit, self.list_deadline())
                    .await
                    .ok(),
                None => None,
            };
            let Some(listing) = listing else {
                unreachable.push(nsd);
                continue;
            };
            if listing.len() >= limit {
                let last = listing.last().map(|info| info.name.segment);
                known_to = [known_to, last].into_iter().flatten().min();
            }
            // What no segment can be is computed with by nobody, and stays. An NSD takes it no more, but may lie.
            let sound = listing.into_iter();
            for info in sound.filter(|info| info.header.fits(info.name.piece)) {
                blobs
                    .entry(info.name.segment)
                    .or_default()
                    .push((nsd, info));
            }
        }
        if let Some(known_to) = known_to {
            blobs.retain(|segment, _| *segment <= known_to);
        }
        let segments = blobs
            .values()
            .map(|blobs| self.compare(&groups, blobs, &unreachable))
            .collect();
        Ok(GroupSurvey {
            segments,
            resume: known_to,
            unreachable,
        })
    }

    fn compare(
        &self,
        groups: &placement::Groups,
        blobs: &[(NsdId, BlobInfo)],
        unreachable: &[NsdId],
    ) -> SurveyedSegment {
        let described = described(blobs);
        let mut place = place_of(described.name, &described.header);
        let has = |piece: u8, nsd: NsdId| {
            blobs
                .iter()
                .any(|(holder, info)| *holder == nsd && info.name.piece == piece)
        };
        let mut absent = Vec::new();
        let mut held = 0u32;
        for (piece, _, nsd, is_wanted) in holders(groups, &place) {
            // The next NSD of a slot is before the one that the slot leaves, which then needs no copy.
            let has_next = held & (1 << piece) != 0;
            if has(piece, nsd) {
                held |= 1 << piece;
            } else if is_wanted && !has_next && !unreachable.contains(&nsd) {
                absent.push((piece, nsd));
            }
        }
        let all = (1u32 << place.scheme.width()) - 1;
        place.missing = all & !held;
        SurveyedSegment {
            place,
            owner: SegmentOwner::of_header(&described.header),
            absent,
            present: blobs.iter().map(|(nsd, info)| (info.name, *nsd)).collect(),
        }
    }

    /// The moving slots of a group whose next NSD holds everything it should: these may become
    /// current with [`placement::change::finish_moves`]. Equal digests of a slot's two NSDs prove it at
    /// once (those of different slots always differ, because these hold different pieces), otherwise the
    /// listings are compared. Garbage that only the old NSD holds counts as not arrived until it is swept.
    ///
    /// # Errors
    /// None yet.
    pub async fn arrived_slots(&self, group: GroupId) -> Result<Vec<u8>> {
        let groups = self.groups();
        let members = groups.members(group);
        let moving = |slot: u8| {
            members[usize::from(slot)]
                .next
                .filter(|next| self.reachable(*next).is_some())
        };
        let mut open: BTreeMap<u8, NsdId> = (0..members.len() as u8)
            .filter_map(|slot| moving(slot).map(|next| (slot, next)))
            .collect();
        if open.is_empty() {
            return Ok(Vec::new());
        }
        if self.world.has_planted(Planted::ArriveEarly) {
            return Ok(open.into_keys().collect());
        }
        // Nobody else is asked: an NSD of the group that hangs has nothing to do with it.
        let same = open.iter().map(|(slot, next)| {
            let (slot, next) = (*slot, *next);
            let current = members[usize::from(slot)].current;
            async move {
                let is_same = self.hold_the_same(group, current, next).await;
                is_same.then_some(slot)
            }
        });
        let mut arrived: Vec<u8> = join_all(same).await.into_iter().flatten().collect();
        open.retain(|slot, _| !arrived.contains(slot));
        let mut after = None;
        while !open.is_empty() {
            let survey = self.survey(group, after, ARRIVAL_STEP).await?;
            open.retain(|_, next| !survey.unreachable.contains(next));
            if !sees_all(&groups, group, &survey.unreachable) {
                open.clear();
            }
            for (_, nsd) in survey.segments.iter().flat_map(|segment| &segment.absent) {
                open.retain(|_, next| next != nsd);
            }
            after = survey.resume;
            if after.is_none() {
                break;
            }
        }
        arrived.extend(open.into_keys());
        arrived.sort_unstable();
        Ok(arrived)
    }

    /// The place of a blob's segment and what it was written for, from the blob's header.
    ///
    /// # Errors
    /// `NotFound` if the NSD hasn't the blob (any more); `Unavailable` if it is away; `Unknown` if it
    /// doesn't answer; `Corrupt` if there can't be such a segment.
    pub async fn described_on(
        &self,
        nsd: NsdId,
        name: BlobName,
    ) -> Result<(SegmentPlace, SegmentOwner)> {
        let away = || {
            let text = format!("look up blob {name}: NSD {nsd} is away");
            model::Error::new(model::ErrorKind::Unavailable, text)
        };
        let member = self.reachable(nsd).ok_or_else(away)?;
        let info = member.nsd.info(name, self.list_deadline()).await?;
        if !info.header.fits(name.piece) {
            let text = format!("blob {name} of NSD {nsd} can't be of a segment");
            return Err(model::Error::new(model::ErrorKind::Corrupt, text));
        }
        let owner = SegmentOwner::of_header(&info.header);
        Ok((place_of(name, &info.header), owner))
    }

    /// The family of a segment, from the first of its blobs whose NSD answers; `None` if none does.
    /// Waits as long as for a listing.
    pub async fn family_of(&self, place: &SegmentPlace) -> Option<FamilyId> {
        let groups = self.groups();
        if !fits_pool(&groups, place) {
            return None;
        }
        let blobs = holders(&groups, place).into_iter();
        let asked = blobs.map(|(piece, _, nsd, _)| self.described_on(nsd, place.blob(piece)));
        let mut answers: FuturesUnordered<_> = asked.collect();
        while let Some(answer) = answers.next().await {
            if let Ok((_, owner)) = answer {
                return Some(owner.family);
            }
        }
        None
    }

    /// Blobs of a group on an NSD, member or not, after `after` in name order.
    ///
    /// # Errors
    /// `Unavailable` if the NSD is away.
    pub async fn list(
        &self,
        nsd: NsdId,
        group: GroupId,
        after: Option<BlobName>,
        limit: usize,
    ) -> Result<Vec<BlobInfo>> {
        let away = || {
            model::Error::new(
                model::ErrorKind::Unavailable,
                format!("list group {group}: NSD {nsd} is away"),
            )
        };
        self.reachable(nsd)
            .ok_or_else(away)?
            .nsd
            .list(group, after, limit, self.list_deadline())
            .await
    }
}

/// The description of a segment by most of the NSDs that have a piece of it; the first one if as many say otherwise. Whoever
/// lies alone doesn't hide what the others lack, nor whose segment it is.
fn described(blobs: &[(NsdId, BlobInfo)]) -> &BlobInfo {
    let (_, first) = &blobs[0];
    if blobs.iter().all(|(_, info)| info.header == first.header) {
        return first;
    }
    let agreeing = |info: &BlobInfo| {
        let same = blobs.iter().filter(|it| it.1.header == info.header);
        let nsds: BTreeSet<NsdId> = same.map(|(nsd, _)| *nsd).collect();
        nsds.len()
    };
    // Backwards: of equals the last one is taken.
    let most = blobs.iter().rev().max_by_key(|it| agreeing(&it.1));
    most.map_or(first, |(_, info)| info)
}

/// Whether the members that answer show every segment of a group: no more NSDs are unreachable
/// than the scheme tolerates, or all of these are lost, so that waiting won't help. A pool of two failure groups writes
/// single copies while NSDs are away, so any NSD may have the only one; and with a scheme that two can carry nobody knows
/// whether the pool was of two when something was written.
fn sees_all(groups: &placement::Groups, group: GroupId, unreachable: &[NsdId]) -> bool {
    let is_lost = |nsd: &&NsdId| {
        groups
            .map()
            .nsd(**nsd)
            .is_none_or(|entry| entry.state == NsdState::Lost)
    };
    let tolerance = groups.scheme_of(group).map_or(0, |it| it.tolerance());
    let may_be_single = tolerance <= 1 || groups.allows_degraded_writes();
    let may_lack = if may_be_single { 0 } else { tolerance };
    unreachable.iter().all(|nsd| is_lost(&nsd)) || unreachable.len() <= may_lack
}
