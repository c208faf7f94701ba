//! Does one job for one group: goes through what its NSDs hold, in the order of the segments, asks owners
//! what is live, and rebuilds or moves that.
//!
//! *Twice, or by two servers at once*: a piece has one content, so a second copy of a job finds it there. *An
//! owner that changes*: it doesn't answer, or its commit of what it condemns fails; the job is partial and
//! comes again. *A run that is expelled*: it begins nothing once its lease is over; a piece that it still puts
//! is of a segment that was live when it began, and a sweep finds it if that has died.
//!
//! How far a job has come is the last segment before which nothing is left to do. Once something couldn't
//! be done it doesn't grow any more: who goes on after this server does that again.

use super::pace::Pace;
use super::{Jobs, Parts};
use manager::jobs::{Assignment, Cursor, Kind, Outcome};
use model::map::NsdState;
use model::owner::{MENDED_MAX, Mended, Verdict};
use model::{GroupVersion, NsdId, SegmentId, SegmentPlace, SessionId};
use placement::layout;
use pool::{Depth, SurveyedSegment};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use world::Planted;

/// Segments that are listed at once.
const STEP_SEGMENTS: usize = 128;
/// How often a repair goes through a group whose slots move until they have arrived, and the pause before it
/// does so again: what was being written, or had no owner for a moment, is settled then.
const PASSES_MAX: usize = 6;
const PASS_AFTER: Duration = Duration::from_secs(1);
/// How long a job waits for the map by which it was planned.
const MAP_MAX: Duration = Duration::from_secs(5);
const MAP_LOOK_EVERY: Duration = Duration::from_millis(100);

/// A job under way.
pub(super) struct Work {
    pub(super) parts: Arc<Parts>,
    pub(super) assignment: Assignment,
    pub(super) pace: Arc<Pace>,
    /// NSDs that don't serve, as the manager said last.
    pub(super) away: Arc<parking_lot::Mutex<BTreeSet<NsdId>>>,
}

/// What a job has found so far.
struct Course {
    /// Nothing was left that should have been done.
    is_complete: bool,
    /// To be said to owners.
    mended: Vec<Mended>,
}

/// The place of a cursor: all up to this segment is done.
fn segment_of(cursor: Cursor) -> Option<SegmentId> {
    (cursor != Cursor::default()).then_some(SegmentId {
        session: SessionId((cursor.0 >> 64) as u64),
        counter: cursor.0 as u64,
    })
}

fn cursor_of(segment: SegmentId) -> Cursor {
    Cursor(u128::from(segment.session.0) << 64 | u128::from(segment.counter))
}

impl Work {
    /// Does the job, and says what came of it.
    pub(super) async fn run(self, from: Cursor) {
        let outcome = self.outcome(from).await;
        let Assignment { job, attempt, .. } = self.assignment;
        tracing::debug!(?job, ?outcome, "a job has ended here");
        let now = self.parts.moment();
        self.jobs().worker.lock().end(job, attempt, outcome, now);
        self.jobs().ended.notify_one();
    }

    fn jobs(&self) -> &Jobs {
        &self.parts.jobs
    }

    async fn outcome(&self, from: Cursor) -> Outcome {
        if !self.has_map().await {
            return Outcome::Partial;
        }
        let mut from = from;
        for _ in 0..PASSES_MAX {
            let skips = self.parts.world.has_planted(Planted::SkipFailed);
            let is_done = self.pass(from).await || skips;
            let is_same = self.version() == self.assignment.stamp.version;
            if is_done && is_same {
                return Outcome::Complete;
            }
            if !is_same || !self.is_moving() || !self.may_act() {
                break;
            }
            from = Cursor::default();
            self.parts.world.sleep(PASS_AFTER).await;
        }
        Outcome::Partial
    }

    /// Goes through the group. Whether nothing is left to be done.
    async fn pass(&self, from: Cursor) -> bool {
        let group = self.assignment.job.group;
        let pool = &self.parts.nsds.pool;
        let mut course = Course {
            is_complete: true,
            mended: Vec::new(),
        };
        let mut after = segment_of(from);
        loop {
            if !self.may_act() {
                return false;
            }
            let Ok(survey) = pool.survey(group, after, STEP_SEGMENTS).await else {
                return false;
            };
            course.is_complete &= survey.unreachable.iter().all(|nsd| self.is_away(*nsd));
            self.look_at(&survey.segments, &mut course).await;
            course.is_complete &= self.parts.report_mended(&course.mended).await;
            course.mended.clear();
            after = survey.resume;
            match after {
                Some(segment) => self.advance(&course, segment, 0),
                None => break,
            }
        }
        course.is_complete && (self.assignment.job.kind != Kind::Repair || self.has_arrived().await)
    }

    fn version(&self) -> GroupVersion {
        let map = self.parts.nsds.pool.map();
        map.version(self.assignment.job.group)
    }

    /// Waits for the map by which the job was planned. False if it doesn't come, or a newer one is here.
    async fn has_map(&self) -> bool {
        let (group, wanted) = (self.assignment.job.group, self.assignment.stamp.version);
        let is_there = || self.parts.nsds.pool.groups().contains(group) && self.version() == wanted;
        let looks = MAP_MAX.as_millis() / MAP_LOOK_EVERY.as_millis();
        for _ in 0..looks {
            if is_there() {
                return true;
            }
            self.parts.world.sleep(MAP_LOOK_EVERY).await;
        }
        is_there()
    }

    /// The cluster counts on this run.
    fn may_act(&self) -> bool {
        let lease = &self.parts.lease;
        !lease.has_ended() && lease.ends() > self.parts.world.now()
    }

    /// An NSD needn't answer: nothing can be rebuilt there before the group's stamp changes.
    fn is_away(&self, nsd: NsdId) -> bool {
        let map = self.parts.nsds.pool.map();
        let entry = map.nsd(nsd);
        entry.is_none_or(|entry| entry.state == NsdState::Lost) || self.away.lock().contains(&nsd)
    }

    /// None of the NSDs that should have a piece needs to answer.
    fn is_piece_away(&self, place: &SegmentPlace, piece: u8) -> bool {
        let groups = self.parts.nsds.pool.groups();
        if !groups.contains(place.group) {
            return false;
        }
        let slot = groups
            .members(place.group)
            .get(usize::from(place.slot_of(piece)));
        slot.is_some_and(|slot| slot.in_reading_order().all(|nsd| self.is_away(nsd)))
    }

    fn advance(&self, course: &Course, segment: SegmentId, bytes: u64) {
        let Assignment { job, attempt, .. } = self.assignment;
        let at = match course.is_complete {
            true => cursor_of(segment),
            false => Cursor::default(),
        };
        let mut worker = self.jobs().worker.lock();
        worker.advance(job, attempt, at, bytes);
    }

    /// Whether an owner must say what a segment is.
    fn is_asked_for(&self, segment: &SurveyedSegment) -> bool {
        match self.assignment.job.kind {
            Kind::Repair => !segment.absent.is_empty() || is_lost(&segment.place),
            Kind::Sweep | Kind::Scrub => true,
        }
    }

    /// Has segments judged, and does what is to be done.
    async fn look_at(&self, segments: &[SurveyedSegment], course: &mut Course) {
        let asked = segments.iter().filter(|it| self.is_asked_for(it));
        let asked: Vec<_> = asked.collect();
        let verdicts = self.parts.examine(&asked).await;
        for segment in segments {
            if self.is_asked_for(segment) {
                match verdicts.of.get(&segment.place.segment) {
                    Some(Verdict::Live(place)) => self.mend(segment, place, course).await,
                    Some(Verdict::Dead | Verdict::Undecided) => {}
                    Some(Verdict::Damaged) => course.is_complete = false,
                    // Its owner didn't answer, or no shard has its family yet.
                    None => course.is_complete &= !verdicts.is_partial,
                }
            }
            let piece = layout::piece_length(segment.place.scheme, segment.place.length);
            let bytes = u64::from(piece) * segment.present.len() as u64;
            self.advance(course, segment.place.segment, bytes);
            if course.mended.len() >= MENDED_MAX {
                course.is_complete &= self.parts.report_mended(&course.mended).await;
                course.mended.clear();
            }
        }
    }

    /// Puts all pieces of a live segment where they belong.
    async fn mend(&self, found: &SurveyedSegment, place: &SegmentPlace, course: &mut Course) {
        let depth = match self.assignment.job.kind {
            Kind::Scrub => Depth::Bytes,
            Kind::Repair | Kind::Sweep if found.absent.is_empty() => {
                if is_lost(&found.place) {
                    course.mended.push(report(found, place, false));
                }
                return;
            }
            Kind::Repair | Kind::Sweep => Depth::Index,
        };
        let piece = u64::from(layout::piece_length(place.scheme, place.length));
        let pieces = found.absent.len() as u64 + 1;
        self.pace.take(&self.parts.world, piece * pieces).await;
        if !self.may_act() {
            course.is_complete = false;
            return;
        }
        let pool = &self.parts.nsds.pool;
        match pool.repair_segment(place, depth).await {
            Ok(done) => {
                let absent = found.absent.iter().fold(0, |bits, it| bits | 1 << it.0);
                course.is_complete &= done.missing & absent == 0;
                // A piece that wasn't read wasn't verified, unless its NSD is away for now.
                if depth == Depth::Bytes {
                    let mut unread = (0..place.scheme.width() as u8)
                        .filter(|piece| done.missing & 1 << piece != 0);
                    course.is_complete &= unread.all(|piece| self.is_piece_away(place, piece));
                }
                if done.rebuilt > 0 {
                    course.mended.push(report(found, place, true));
                }
            }
            Err(_) => {
                course.is_complete = false;
                course.mended.push(report(found, place, false));
            }
        }
    }

    /// Whether the next NSDs of all slots that move have everything.
    async fn has_arrived(&self) -> bool {
        let moving = self.slots_moving();
        if moving == 0 {
            return true;
        }
        let group = self.assignment.job.group;
        let arrived = self.parts.nsds.pool.arrived_slots(group).await;
        arrived.is_ok_and(|arrived| arrived.len() == moving)
    }

    fn slots_moving(&self) -> usize {
        let groups = self.parts.nsds.pool.groups();
        let group = self.assignment.job.group;
        match groups.contains(group) {
            true => groups
                .members(group)
                .iter()
                .filter(|it| it.next.is_some())
                .count(),
            false => 0,
        }
    }

    fn is_moving(&self) -> bool {
        self.assignment.job.kind == Kind::Repair && self.slots_moving() > 0
    }
}

/// More pieces are on no NSD that answers than the segment survives.
fn is_lost(place: &SegmentPlace) -> bool {
    place.missing.count_ones() as usize > place.scheme.tolerance()
}

fn report(found: &SurveyedSegment, place: &SegmentPlace, is_rebuilt: bool) -> Mended {
    Mended {
        place: *place,
        family: found.owner.family,
        is_rebuilt,
    }
}
