//! Compares the NSDs' inventories with the shard's live segments: deletes garbage, rebuilds missing
//! pieces of live segments, switches slots that have moved.

mod strangers;

use crate::background::Pace;
use crate::background::counts::{Counts, count};
use crate::background::slots::Slots;
use crate::background::unreadable::{Repaired, Unreadable};
use crate::host::Host;
use crate::host::SCAN_PAGE;
use crate::judging::{Judge, Judging, Standing};
use crate::report::RepairStatus;
use crate::sessions::Decided;
use model::{GroupId, MapEpoch, NsdId, Result, SegmentId, SegmentPlace};
use namespace::{Key, Record, Table};
use parking_lot::Mutex;
use pool::{Depth, MemberState, Pool, SurveyedSegment};
use shard::successor;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use world::{Instant, Planted};

/// A full survey of the NSDs is made this often, and at once after they change.
const SURVEY_EVERY: Duration = Duration::from_secs(300);
/// Groups with moving slots are surveyed this often until the slots have moved.
const MOVING_EVERY: Duration = Duration::from_secs(5);
/// Slots whose pieces have arrived are switched this often during a pass, so that a long one shows how far
/// it is, and space returns meanwhile.
const SWITCH_EVERY: Duration = Duration::from_secs(1);
/// Segments per step.
const STEP_SEGMENTS: usize = 512;
/// Steps per gentle round.
const STEPS_MAX: usize = 4;

/// Determines whether a pass is needed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Nsds {
    map: MapEpoch,
    /// A reopened NSD missed writes made meanwhile.
    changes: u64,
    serving: Vec<(NsdId, bool)>,
}

impl Nsds {
    fn now(pool: &Pool) -> Self {
        let serves =
            |state: MemberState| !matches!(state, MemberState::Failed | MemberState::Missing);
        let states = pool.nsd_states();
        let serving = states
            .iter()
            .map(|state| (state.entry.nsd, serves(state.member)))
            .collect();
        Self {
            map: pool.map().epoch,
            changes: pool.changes_of_members(),
            serving,
        }
    }
}

/// The running pass, and results of the last one.
#[derive(Default)]
struct Progress {
    running: Option<Pass>,
    /// The last full pass: its end, and the NSDs that it covered.
    last: Option<(Instant, Nsds)>,
    /// When the last pass of any kind ended.
    last_of_any: Option<Instant>,
    /// The NSDs over which unlisted live segments were last searched for.
    looked_for_unlisted: Option<Nsds>,
    /// When the last pass ended that looked for nothing else.
    last_search: Option<Instant>,
    /// Garbage among these was deleted by the last full pass; `None` if it couldn't be.
    swept: Option<Decided>,
    /// The NSDs over which a full pass deleted blobs of groups that they had left.
    rid_of_strangers: Option<Nsds>,
}

struct Pass {
    nsds: Nsds,
    /// The segments decided when it began.
    decided: Decided,
    /// Groups to survey; the first is in progress.
    groups: VecDeque<GroupId>,
    /// Groups with moving slots that were surveyed since slots were last switched, and when that was.
    may_switch: Vec<GroupId>,
    switched: Instant,
    /// All groups, not only those with moving slots.
    is_whole: bool,
    after: Option<SegmentId>,
    checked: u64,
    degraded: u64,
    /// Garbage may be left.
    incomplete: bool,
    /// Nothing else is looked for.
    only_unlisted: bool,
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

/// Surveys in passes over all groups.
pub(super) struct Survey {
    host: Arc<Host>,
    judging: Judging,
    unreadable: Arc<Unreadable>,
    slots: Arc<Slots>,
    counts: Arc<Counts>,
    /// Gentle rounds look through the groups. In a cluster servers do (`docs/protocols/jobs.md`), and only
    /// live segments that no NSD lists are looked for here.
    surveys: bool,
    progress: Mutex<Progress>,
    /// What the passes have found.
    status: Mutex<RepairStatus>,
}

impl Survey {
    pub(super) fn new(
        host: Arc<Host>,
        judging: Judging,
        unreadable: Arc<Unreadable>,
        slots: Arc<Slots>,
        counts: Arc<Counts>,
        surveys: bool,
    ) -> Self {
        Self {
            host,
            judging,
            unreadable,
            slots,
            counts,
            surveys,
            progress: Mutex::default(),
            status: Mutex::default(),
        }
    }

    /// What the passes have found.
    pub(super) fn status(&self) -> RepairStatus {
        RepairStatus {
            slots_moved: self.slots.moved(),
            ..self.status.lock().clone()
        }
    }

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
        let judge = self.judging.judge(pass.decided.clone()).await?;
        let mut changed = 0;
        for _ in 0..steps {
            let Some(group) = pass.groups.front().copied() else {
                if let Some(from) = pass.unlisted.take() {
                    self.find_unlisted(&mut pass, &from).await?;
                    continue;
                }
                if pass.only_unlisted {
                    let mut progress = self.progress.lock();
                    progress.last_search = Some(self.host.world().now());
                    progress.looked_for_unlisted = Some(pass.nsds);
                    return Ok(changed);
                }
                let all = self.moving_groups();
                changed += self.switch_arrived(&pass, all).await?;
                if pass.found_all_whole() {
                    changed += self.delete_strangers(&pass).await?;
                }
                self.end_pass(pass);
                return Ok(changed);
            };
            changed += self.survey_step(&mut pass, group, &judge).await?;
            changed += self.switch_on_the_way(&mut pass).await?;
        }
        self.show(&pass, true);
        self.progress.lock().running = Some(pass);
        Ok(changed.max(1))
    }

    async fn survey_due(&self, pace: Pace) -> Result<Option<Pass>> {
        let nsds = Nsds::now(self.host.pool());
        if !self.surveys && pace == Pace::Gentle {
            return self.search_due(nsds).await;
        }
        let mut is_whole = true;
        {
            let mut progress = self.progress.lock();
            match progress.running.take() {
                Some(pass) if pass.nsds == nsds && !pass.only_unlisted => return Ok(Some(pass)),
                // The NSDs changed: earlier results may be wrong.
                Some(_) => {}
                None => {
                    let now = self.host.world().now();
                    let is_recent =
                        |(at, seen): &(Instant, Nsds)| *seen == nsds && now - *at < SURVEY_EVERY;
                    if pace == Pace::Gentle && progress.last.as_ref().is_some_and(is_recent) {
                        // Segments being written or deleted then may be settled now.
                        let is_moving = !self.host.pool().groups().moving().is_empty();
                        let is_late = progress
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
        let is_news = || self.progress.lock().looked_for_unlisted.as_ref() != Some(&nsds);
        let is_away = nsds.serving.iter().any(|(_, serves)| !serves);
        let looks_for_unlisted =
            is_whole && (self.unreadable.may_be_more_unreadable() || (is_away && is_news()));
        Ok(Some(Pass {
            nsds,
            decided: self.judging.decided().await?,
            groups: {
                let mut groups = self.host.pool().groups_by_need();
                if !is_whole {
                    let moving = self.moving_groups();
                    groups.retain(|group| moving.contains(group));
                }
                groups.into()
            },
            may_switch: Vec::new(),
            switched: self.host.world().now(),
            is_whole,
            looks_for_unlisted,
            unlisted: looks_for_unlisted.then(|| Table::Segments.first()),
            after: None,
            checked: 0,
            degraded: 0,
            incomplete: false,
            only_unlisted: false,
            beyond: self.unreadable.unreadable_beyond(),
        }))
    }

    /// A search for live segments that no NSD lists, if one runs or is due.
    async fn search_due(&self, nsds: Nsds) -> Result<Option<Pass>> {
        let now = self.host.world().now();
        {
            let mut progress = self.progress.lock();
            let running = progress.running.take();
            let is_current = |pass: &Pass| pass.only_unlisted && pass.nsds == nsds;
            if let Some(pass) = running.filter(is_current) {
                return Ok(Some(pass));
            }
            let is_away = nsds.serving.iter().any(|(_, serves)| !serves);
            let is_news = is_away && progress.looked_for_unlisted.as_ref() != Some(&nsds);
            let is_late = progress
                .last_search
                .is_none_or(|at| now - at >= SURVEY_EVERY);
            let is_due = is_news || (is_late && self.unreadable.may_be_more_unreadable());
            if !is_due {
                return Ok(None);
            }
        }
        Ok(Some(Pass {
            nsds,
            decided: self.judging.decided().await?,
            groups: VecDeque::new(),
            may_switch: Vec::new(),
            switched: now,
            is_whole: false,
            looks_for_unlisted: true,
            unlisted: Some(Table::Segments.first()),
            after: None,
            checked: 0,
            degraded: 0,
            incomplete: false,
            only_unlisted: true,
            beyond: self.unreadable.unreadable_beyond(),
        }))
    }

    async fn survey_step(&self, pass: &mut Pass, group: GroupId, judge: &Judge) -> Result<u64> {
        let survey = self
            .host
            .pool()
            .survey(group, pass.after, STEP_SEGMENTS)
            .await?;
        let serves = |nsd: &NsdId| pass.nsds.serving.contains(&(*nsd, true));
        pass.incomplete |= survey.unreachable.iter().any(serves);
        let mut garbage: Vec<SegmentPlace> = Vec::new();
        let mut changed = 0;
        for segment in &survey.segments {
            match self.judging.standing(judge, segment).await? {
                Standing::Live(place) => {
                    changed += self.repair_surveyed(pass, segment, &place).await?;
                }
                Standing::Garbage => garbage.push(segment.place),
                Standing::Dead | Standing::Undecided => {}
                // It may lack pieces that only an NSD has that left its group.
                Standing::Damaged => pass.incomplete = true,
            }
        }
        count(&self.counts.garbage_deleted, garbage.len() as u64);
        changed += garbage.len() as u64;
        if self.host.world().has_planted(Planted::SweepOpen) {
            self.host.pool().delete(&garbage).await?;
            garbage.clear();
        }
        self.host.condemn(garbage).await?;
        pass.after = survey.resume;
        if pass.after.is_none() {
            pass.groups.pop_front();
            pass.may_switch.push(group);
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
                self.unreadable.note_if_unreadable(place).await?;
            }
            pass.degraded += u64::from(!is_whole);
            return Ok(0);
        }
        match self.unreadable.repair_live(place, Depth::Index).await? {
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
        let page = self
            .host
            .shard()
            .scan_readable(from, &to, SCAN_PAGE)
            .await?;
        for (_, record) in &page {
            let Record::Segment(segment) = record else {
                continue;
            };
            if self.host.pool().is_unlisted(&segment.place).await
                && self.unreadable.note_if_unreadable(&segment.place).await?
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
            self.unreadable.surveyed_all(pass.beyond);
        }
        let now = self.host.world().now();
        let mut progress = self.progress.lock();
        progress.last_of_any = Some(now);
        if pass.is_whole {
            progress.swept = (!pass.incomplete).then_some(pass.decided);
            if pass.looks_for_unlisted {
                progress.looked_for_unlisted = Some(pass.nsds.clone());
            }
            progress.last = Some((now, pass.nsds));
        }
    }

    fn show(&self, pass: &Pass, running: bool) {
        if !pass.is_whole {
            return;
        }
        let mut status = self.status.lock();
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

    /// The segments among which garbage was deleted from the current NSDs, if it was.
    pub(crate) fn swept(&self) -> Option<Decided> {
        let progress = self.progress.lock();
        let (_, nsds) = progress.last.as_ref()?;
        progress
            .swept
            .clone()
            .filter(|_| *nsds == Nsds::now(self.host.pool()))
    }

    fn moving_groups(&self) -> BTreeSet<GroupId> {
        let moving = self.host.pool().groups().moving();
        moving.into_iter().map(|(group, _)| group).collect()
    }

    /// From time to time, makes slots current that a running pass has moved. The pass goes on: such a
    /// change of the map makes nothing wrong that it has found.
    async fn switch_on_the_way(&self, pass: &mut Pass) -> Result<u64> {
        let now = self.host.world().now();
        if now - pass.switched < SWITCH_EVERY {
            return Ok(0);
        }
        pass.switched = now;
        let moving = self.moving_groups();
        let mut surveyed: BTreeSet<GroupId> = pass.may_switch.drain(..).collect();
        surveyed.retain(|group| moving.contains(group));
        let switched = self.switch_arrived(pass, surveyed).await?;
        if switched > 0 {
            let mut expected = pass.nsds.clone();
            expected.map = expected.map.next();
            if Nsds::now(self.host.pool()) == expected {
                pass.nsds = expected;
            }
        }
        Ok(switched)
    }

    /// Makes slots of these groups current whose next NSD has all pieces, under a new map.
    async fn switch_arrived(&self, pass: &Pass, among: BTreeSet<GroupId>) -> Result<u64> {
        let map = self.host.pool().map();
        if map.epoch != pass.nsds.map {
            return Ok(0);
        }
        let groups = self.host.pool().groups();
        let mut moved: Vec<(GroupId, u8, NsdId)> = Vec::new();
        for group in among {
            for slot in self.host.pool().arrived_slots(group).await? {
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
        self.slots.switch(&map, &moved).await
    }
}
