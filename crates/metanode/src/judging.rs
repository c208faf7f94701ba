//! Judges segments: live, dead, not decided yet, or garbage.
//!
//! Reads the records and what the sessions have decided; changes nothing.

use crate::host::Host;
use crate::sessions::{ClientSessions, Decided};
use model::{ErrorKind, Result, SegmentId, SegmentPlace, SessionId};
use namespace::{Key, Record};
use pool::SurveyedSegment;
use shard::Shard;
use std::collections::BTreeMap;
use std::sync::Arc;
use world::Planted;

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

/// Judges as of now.
#[derive(Clone)]
pub(crate) struct Judging {
    host: Arc<Host>,
    sessions: Arc<ClientSessions>,
}

impl Judging {
    pub(crate) fn new(host: Arc<Host>, sessions: Arc<ClientSessions>) -> Self {
        Self { host, sessions }
    }

    /// Everything needed to judge. Must be taken before the segments are listed.
    pub(crate) async fn judge(&self, decided: Decided) -> Result<Judge> {
        let shard = self.host.shard();
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
        if !self.host.holds(found.owner.family) {
            return Ok(Standing::Undecided);
        }
        self.standing_of(judge, found.place.segment).await
    }

    /// As [`Judging::standing`], for a segment of this shard's families. Of others nothing is known
    /// here: a session that has ended may be open in another shard, and what no record names may be
    /// live there.
    pub(crate) async fn standing_of(&self, judge: &Judge, id: SegmentId) -> Result<Standing> {
        if let Some(place) = judge.tables.get(&id) {
            return Ok(Standing::Live(*place));
        }
        let shard = self.host.shard();
        // The session first: a segment published after this check must not count as garbage.
        let is_decided = (judge.decides(id) || self.host.world().has_planted(Planted::SweepOpen))
            && id.session != shard.session();
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
        let below = self.host.coordination().sessions_taken_below().await?;
        let sessions = self.host.shard().sessions();
        let mut decided = Decided::new(below, sessions, self.sessions.marks());
        let own = self.host.own();
        decided.up_to(own.session(), own.settled());
        Ok(decided)
    }

    /// Whether a segment is live, or may be: its record can't be decoded.
    pub(crate) async fn is_live(&self, segment: SegmentId) -> Result<bool> {
        let shard = self.host.shard();
        let recorded = recorded(&shard, segment).await?;
        if matches!(recorded, Some(Standing::Live(_) | Standing::Damaged)) {
            return Ok(true);
        }
        let tables = shard.catalog().live_segments();
        Ok(tables.iter().any(|table| table.segment == segment))
    }

    /// Whether a segment is dead even after a power cut, which would bring back segments removed
    /// just before it.
    pub(crate) async fn is_gone_for_good(&self, segment: SegmentId) -> Result<bool> {
        self.host.sync().await?;
        let shard = self.host.shard();
        match shard.record(&Key::Dead(segment)).await? {
            Some(Record::Dead(dead)) => Ok(dead.died <= shard.durable()),
            _ => Ok(!self.is_live(segment).await?),
        }
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
