//! What only one NSD has: as long as it answers, it mustn't be given up.

use crate::Pool;
use crate::survey::SurveyedSegment;
use model::{Error, ErrorKind, GroupId, NsdId, Result, SegmentId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Segments that are being written, or deleted, are on one NSD for less time than this.
const ON_THE_WAY_MAX: Duration = Duration::from_secs(2);
/// More segments aren't on the way at the same time.
const ON_THE_WAY_COUNT_MAX: usize = 50_000;
/// Segments listed in one step.
const STEP_SEGMENTS: usize = 1_000;

impl Pool {
    /// Whether an NSD has segments that couldn't be read without it, by what the NSDs list. Looked for only in a pool that
    /// writes single copies while NSDs are away: elsewhere the scheme says it ([`Pool::is_needed`]). Segments that nobody
    /// needs any more count until they are deleted.
    ///
    /// # Errors
    /// `Unavailable`: the NSD doesn't list what it has.
    pub async fn has_only_copies(&self, nsd: NsdId) -> Result<bool> {
        let groups = self.groups();
        if !groups.allows_degraded_writes() {
            return Ok(false);
        }
        let own: Vec<GroupId> = groups
            .all()
            .filter(|group| groups.is_member(nsd, *group))
            .collect();
        let mut found = BTreeMap::new();
        let mut count = 0;
        for group in own {
            let only_here = self.only_on(nsd, group).await?;
            count += only_here.len();
            if count > ON_THE_WAY_COUNT_MAX {
                return Ok(true);
            }
            if !only_here.is_empty() {
                found.insert(group, only_here);
            }
        }
        if found.is_empty() {
            return Ok(false);
        }
        self.world.sleep(ON_THE_WAY_MAX).await;
        for (group, before) in found {
            let still = self.only_on(nsd, group).await?;
            if !still.is_disjoint(&before) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The segments of a group of which an NSD has pieces and the others, as far as they answer, have too few.
    async fn only_on(&self, nsd: NsdId, group: GroupId) -> Result<BTreeSet<SegmentId>> {
        let mut found = BTreeSet::new();
        let mut after = None;
        loop {
            let survey = self.survey(group, after, STEP_SEGMENTS).await?;
            if survey.unreachable.contains(&nsd) {
                let text = format!("list what NSD {nsd} has of group {group}: it doesn't answer");
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            let segments = survey.segments.iter();
            let only_here = segments.filter(|segment| is_only_on(nsd, segment));
            found.extend(only_here.map(|segment| segment.place.segment));
            after = survey.resume;
            if after.is_none() {
                return Ok(found);
            }
        }
    }
}

/// Whether an NSD has pieces of a segment, and the others too few to read it.
fn is_only_on(nsd: NsdId, segment: &SurveyedSegment) -> bool {
    let present = segment.present.iter();
    let (own, others): (Vec<_>, Vec<_>) = present.partition(|(_, holder)| *holder == nsd);
    // Both NSDs of a slot that moves may have the same piece.
    let pieces: BTreeSet<u8> = others.into_iter().map(|(name, _)| name.piece).collect();
    !own.is_empty() && pieces.len() < segment.place.scheme.data_pieces()
}
