//! Compares the NSDs' inventories with the shard's live segments: deletes garbage, rebuilds missing
//! pieces of live segments, switches slots that have moved.

use crate::background::{MOVING_EVERY, Pace, Repaired, SURVEY_EVERY, count};
use crate::metanode::{Metanode, SCAN_PAGE};
use crate::sessions::Decided;
use model::{ErrorKind, GroupId, MapEpoch, NsdId, Result, SegmentId, SegmentPlace, SessionId};
use namespace::{Key, Record, Table};
use pool::{Depth, MemberState, SurveyedSegment};
use shard::{Shard, successor};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use world::Instant;

/// Segments per step.
const STEP_SEGMENTS: usize = 512;
/// Steps per gentle round.
const STEPS_MAX: usize = 4;

/// The shard's knowledge of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// An extent or the tree points at it.
    Live(SegmentPlace),
    /// On the dead list: its blobs will be deleted soon.
    Dead,
    /// Its writer may still publish it, or another shard knows it.
    Undecided,
    /// Its record can't be decoded: it can't be relied on, and its pieces must not be deleted.
    Damaged,
    /// Nothing will ever point at it.
    Garbage,
}

/// Determines whether a pass is needed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Nsds {
    map: MapEpoch,
    /// A reopened NSD missed writes made meanwhile.
    changes: u64,
    serving: Vec<(NsdId, bool)>,
}

/// The running pass, and results of the last one.
#[derive(Default)]
pub(crate) struct Progress {
    running: Option<Pass>,
    /// The last full pass: its end, and the NSDs that it covered.
    last: Option<(Instant, Nsds)>,
    /// When the last pass of any kind ended.
    last_of_any: Option<Instant>,
    /// The NSDs over which unlisted live segments were last searched for.
    looked_for_unlisted: Option<Nsds>,
    /// Garbage among these was deleted by the last full pass; `None` if it couldn't be.
    swept: Option<Decided>,
    /// The NSDs over which a full pass deleted blobs of groups that they had left.
    pub(super) rid_of_strangers: Option<Nsds>,
}

pub(super) struct Pass {
    pub(super) nsds: Nsds,
    /// The segments decided when it began.
    decided: Decided,
    /// Groups to survey; the first is in progress.
    groups: VecDeque<GroupId>,
    /// All groups, not only those with moving slots.
    is_whole: bool,
    after: Option<SegmentId>,
    checked: u64,
    degraded: u64,
    /// Garbage may be left.
    incomplete: bool,
    /// After the groups: where to continue searching for live segments that no NSD lists.
    unlisted: Option<Key>,
    looks_for_unlisted: bool,
    /// Unreadable segments beyond those remembered when it began.
    beyond: u64,
}

impl Pass {
    /// Whether each live segment has all its pieces on members of its group.
    fn found_all_whole(&self) -> bool {
        self.is_whole && !self.incomplete && self.degraded == 0
    }
}

/// Everything needed to judge segments.
pub(crate) struct Judge {
    pub(crate) decided: Decided,
    tables: BTreeMap<SegmentId, SegmentPlace>,
    table_session: SessionId,
}

impl Judge {
    /// Whether the segment belongs to the tree.
    pub(crate) fn is_table(&self, segment: SegmentId) -> bool {
        self.tables.contains_key(&segment) || segment.session == self.table_session
    }

    /// Whether its writer has published it or given it up. Not for the tree's tables, which have no
    /// records.
    fn decides(&self, segment: SegmentId) -> bool {
        self.decided.covers(segment) && segment.session != self.table_session
    }
}

impl Metanode {
    /// Part of a pass, or a full one. Returns how many blobs, pieces and slots it changed; a gentle
    /// round also counts an unfinished pass.
    pub(super) async fn survey_some(&self, pace: Pace) -> Result<u64> {
        let Some(mut pass) = self.survey_due(pace).await? else {
            return Ok(0);
        };
        let steps = if pace == Pace::Drain {
            usize::MAX
        } else {
            STEPS_MAX
        };
        let judge = self.judge(pass.decided.clone()).await?;
        let mut changed = 0;
        for _ in 0..steps {
            let Some(group) = pass.groups.front().copied() else {
                if let Some(from) = pass.unlisted.take() {
                    self.find_unlisted(&mut pass, &from).await?;
                    continue;
                }
                changed += self.switch_arrived(&pass).await?;
                if pass.found_all_whole() {
                    changed += self.delete_strangers(&pass).await?;
                }
                self.end_pass(pass);
                return Ok(changed);
            };
            changed += self.survey_step(&mut pass, group, &judge).await?;
        }
        self.show(&pass, true);
        self.background.memory.lock().survey.running = Some(pass);
        Ok(changed.max(1))
    }

    async fn survey_due(&self, pace: Pace) -> Result<Option<Pass>> {
        let nsds = self.nsds_now();
        let mut is_whole = true;
        {
            let mut memory = self.background.memory.lock();
            match memory.survey.running.take() {
                Some(pass) if pass.nsds == nsds => return Ok(Some(pass)),
                // The NSDs changed: earlier results may be wrong.
                Some(_) => {}
                None => {
                    let now = self.world.now();
                    let is_recent =
                        |(at, seen): &(Instant, Nsds)| *seen == nsds && now - *at < SURVEY_EVERY;
                    if pace == Pace::Gentle && memory.survey.last.as_ref().is_some_and(is_recent) {
                        // Segments being written or deleted then may be settled now.
                        let is_moving = !self.pool.groups().moving().is_empty();
                        let is_late = memory
                            .survey
                            .last_of_any
                            .is_none_or(|at| now - at >= MOVING_EVERY);
                        if !is_moving || !is_late {
                            return Ok(None);
                        }
                        is_whole = false;
                    }
                }
            }
        }
        // If all NSDs serve, and did at the last search, they list everything. Unreadable segments
        // beyond those remembered are gone only when none is found any more.
        let is_news = || {
            self.background
                .memory
                .lock()
                .survey
                .looked_for_unlisted
                .as_ref()
                != Some(&nsds)
        };
        let is_away = nsds.serving.iter().any(|(_, serves)| !serves);
        let looks_for_unlisted =
            is_whole && (self.may_be_more_unreadable() || (is_away && is_news()));
        Ok(Some(Pass {
            nsds,
            decided: self.decided().await?,
            groups: if is_whole {
                (0..self.pool.map().groups).map(GroupId).collect()
            } else {
                self.moving_groups().into_iter().collect()
            },
            is_whole,
            looks_for_unlisted,
            unlisted: looks_for_unlisted.then(|| Table::Segments.first()),
            after: None,
            checked: 0,
            degraded: 0,
            incomplete: false,
            beyond: self.unreadable_beyond(),
        }))
    }

    pub(super) fn nsds_now(&self) -> Nsds {
        let serves =
            |state: MemberState| !matches!(state, MemberState::Failed | MemberState::Missing);
        let states = self.pool.nsd_states();
        let serving = states
            .iter()
            .map(|state| (state.entry.nsd, serves(state.member)))
            .collect();
        Nsds {
            map: self.pool.map().epoch,
            changes: self.pool.changes_of_members(),
            serving,
        }
    }

    async fn survey_step(&self, pass: &mut Pass, group: GroupId, judge: &Judge) -> Result<u64> {
        let survey = self.pool.survey(group, pass.after, STEP_SEGMENTS).await?;
        let serves = |nsd: &NsdId| pass.nsds.serving.contains(&(*nsd, true));
        pass.incomplete |= survey.unreachable.iter().any(serves);
        let mut garbage: Vec<SegmentPlace> = Vec::new();
        let mut changed = 0;
        for segment in &survey.segments {
            match self.standing(judge, segment).await? {
                Standing::Live(place) => {
                    changed += self.repair_surveyed(pass, segment, &place).await?;
                }
                Standing::Garbage => garbage.push(segment.place),
                Standing::Dead | Standing::Undecided => {}
                // It may lack pieces that only an NSD has that left its group.
                Standing::Damaged => pass.incomplete = true,
            }
        }
        count(
            &self.background.counts.garbage_deleted,
            garbage.len() as u64,
        );
        changed += garbage.len() as u64;
        self.condemn(garbage).await?;
        pass.after = survey.resume;
        if pass.after.is_none() {
            pass.groups.pop_front();
        }
        Ok(changed)
    }

    async fn repair_surveyed(
        &self,
        pass: &mut Pass,
        found: &SurveyedSegment,
        place: &SegmentPlace,
    ) -> Result<u64> {
        pass.checked += 1;
        let is_whole = found.place.missing == 0;
        if found.absent.is_empty() {
            let is_lost = found.place.missing.count_ones() as usize > place.scheme.tolerance();
            if is_lost {
                self.note_if_unreadable(place).await?;
            }
            pass.degraded += u64::from(!is_whole);
            return Ok(0);
        }
        match self.repair_live(place, Depth::Index).await? {
            Repaired::Done(outcome) => {
                pass.degraded += u64::from(!outcome.is_complete());
                Ok(u64::from(outcome.rebuilt))
            }
            Repaired::Gone => Ok(0),
            Repaired::Unreadable | Repaired::Later => {
                pass.degraded += 1;
                Ok(0)
            }
        }
    }

    /// Searches a page of the live segments for those that no survey shows, because no serving NSD
    /// holds a piece of them.
    async fn find_unlisted(&self, pass: &mut Pass, from: &Key) -> Result<()> {
        let (_, to) = Table::Segments.range();
        let page = self.shard().scan_readable(from, &to, SCAN_PAGE).await?;
        for (_, record) in &page {
            let Record::Segment(segment) = record else {
                continue;
            };
            if self.pool.is_unlisted(&segment.place).await
                && self.note_if_unreadable(&segment.place).await?
            {
                pass.checked += 1;
                pass.degraded += 1;
            }
        }
        if let Some((last, _)) = page.last()
            && page.len() == SCAN_PAGE
        {
            pass.unlisted = Some(successor(last));
        }
        Ok(())
    }

    fn end_pass(&self, pass: Pass) {
        self.show(&pass, false);
        if pass.is_whole && pass.looks_for_unlisted && !pass.incomplete {
            self.surveyed_all(pass.beyond);
        }
        let now = self.world.now();
        let mut memory = self.background.memory.lock();
        memory.survey.last_of_any = Some(now);
        if pass.is_whole {
            memory.survey.swept = (!pass.incomplete).then_some(pass.decided);
            if pass.looks_for_unlisted {
                memory.survey.looked_for_unlisted = Some(pass.nsds.clone());
            }
            memory.survey.last = Some((now, pass.nsds));
        }
    }

    fn show(&self, pass: &Pass, running: bool) {
        if !pass.is_whole {
            return;
        }
        let mut status = self.background.repair.lock();
        status.running = running;
        status.segments_checked = pass.checked;
        // A pass that has just begun doesn't clear the findings of the last one.
        status.segments_degraded = if running {
            status.segments_degraded.max(pass.degraded)
        } else {
            pass.degraded
        };
        if !running {
            status.segments_total = pass.checked;
        }
        status.complete = !running && pass.degraded == 0;
    }

    /// Everything needed to judge. Must be taken before the segments are listed.
    pub(crate) async fn judge(&self, decided: Decided) -> Result<Judge> {
        let shard = self.shard();
        let tables = shard
            .catalog()
            .live_segments()
            .into_iter()
            .map(|place| (place.segment, place))
            .collect();
        Ok(Judge {
            decided,
            tables,
            table_session: shard.session(),
        })
    }

    /// The standing of a segment that NSDs hold.
    pub(crate) async fn standing(
        &self,
        judge: &Judge,
        found: &SurveyedSegment,
    ) -> Result<Standing> {
        if found.owner.family != self.family {
            return Ok(Standing::Undecided);
        }
        self.standing_of(judge, found.place.segment).await
    }

    /// As [`Metanode::standing`], for a segment of this shard's family.
    pub(crate) async fn standing_of(&self, judge: &Judge, id: SegmentId) -> Result<Standing> {
        if let Some(place) = judge.tables.get(&id) {
            return Ok(Standing::Live(*place));
        }
        let shard = self.shard();
        // The session first: a segment published after this check must not count as garbage.
        let is_decided = judge.decides(id) && id.session != shard.session();
        let unknown = if is_decided {
            Standing::Garbage
        } else {
            Standing::Undecided
        };
        Ok(recorded(&shard, id).await?.unwrap_or(unknown))
    }

    /// The segments that are published or given up now.
    pub(crate) async fn decided(&self) -> Result<Decided> {
        // The sessions before the marks: one that is opened in between has no mark, or has none of
        // its segments decided.
        let below = self.coordination.sessions_taken_below().await?;
        let sessions = self.shard().sessions();
        let mut decided = Decided::new(below, sessions, self.sessions.marks());
        decided.up_to(
            self.segments.session(),
            self.unpublished.settled(&self.segments),
        );
        Ok(decided)
    }

    /// The segments among which garbage was deleted from the current NSDs, if it was.
    pub(crate) fn swept(&self) -> Option<Decided> {
        let memory = self.background.memory.lock();
        let (_, nsds) = memory.survey.last.as_ref()?;
        memory
            .survey
            .swept
            .clone()
            .filter(|_| *nsds == self.nsds_now())
    }

    fn moving_groups(&self) -> BTreeSet<GroupId> {
        let moving = self.pool.groups().moving();
        moving.into_iter().map(|(group, _)| group).collect()
    }

    /// Makes slots current whose next NSD has all pieces, under a new map.
    async fn switch_arrived(&self, pass: &Pass) -> Result<u64> {
        let map = self.pool.map();
        if map.epoch != pass.nsds.map {
            return Ok(0);
        }
        let groups = self.pool.groups();
        let mut moved: Vec<(GroupId, u8, NsdId)> = Vec::new();
        for group in self.moving_groups() {
            for slot in self.pool.arrived_slots(group).await? {
                moved.push((
                    group,
                    slot,
                    groups.members(group)[usize::from(slot)].current,
                ));
            }
        }
        if moved.is_empty() {
            return Ok(0);
        }
        self.switch_slots(&map, &moved).await
    }
}

/// The standing of a segment according to the records; `None` if none names it.
pub(crate) async fn recorded(shard: &Shard, id: SegmentId) -> Result<Option<Standing>> {
    match recorded_well(shard, id).await {
        Err(error) if is_undecodable(error.kind()) => Ok(Some(Standing::Damaged)),
        standing => standing,
    }
}

async fn recorded_well(shard: &Shard, id: SegmentId) -> Result<Option<Standing>> {
    if let Some(Record::Segment(segment)) = shard.record(&Key::Segment(id)).await? {
        return Ok(Some(Standing::Live(segment.place)));
    }
    let dead = shard.record(&Key::Dead(id)).await?;
    Ok(dead.map(|_| Standing::Dead))
}

/// Whether a record was read that can't be decoded.
pub(crate) fn is_undecodable(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Corrupt | ErrorKind::NotSupported)
}
