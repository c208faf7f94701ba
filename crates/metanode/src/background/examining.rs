//! Answers the servers that repair, sweep and scrub the groups of a cluster: what is live, and what
//! becomes of what they did.
//!
//! Only the owner decides: what it calls garbage it condemns itself, so a server deletes nothing; the
//! blobs go as those of any dead segment, when that is durable. A server that heard "live" may be late
//! with what it rebuilds: it says so afterwards, and pieces of a segment that died meanwhile are deleted
//! again. If it dies before, the next sweep finds them.

use crate::background::counts::{Counts, count};
use crate::background::unreadable::Unreadable;
use crate::host::Host;
use crate::judging::{Judging, Standing};
use model::owner::{Mended, Verdict};
use model::{FamilyId, Result, SegmentPlace};
use std::sync::Arc;
use world::Planted;

/// Judges what others found.
pub(super) struct Examining {
    host: Arc<Host>,
    judging: Judging,
    unreadable: Arc<Unreadable>,
    counts: Arc<Counts>,
}

impl Examining {
    pub(super) fn new(
        host: Arc<Host>,
        judging: Judging,
        unreadable: Arc<Unreadable>,
        counts: Arc<Counts>,
    ) -> Self {
        Self {
            host,
            judging,
            unreadable,
            counts,
        }
    }

    /// What the segments of this shard's families are. What was decided is looked up now, after the
    /// server has listed them: that is right, because a segment that was decided and that no record
    /// names then never gets one again, whenever it was listed.
    ///
    /// # Errors
    /// If records can't be read, or the garbage couldn't be condemned. Nothing was answered then.
    pub(super) async fn examine(&self, found: &[(SegmentPlace, FamilyId)]) -> Result<Vec<Verdict>> {
        let judge = self.judging.judge(self.judging.decided().await?).await?;
        let mut garbage = Vec::new();
        let mut verdicts = Vec::with_capacity(found.len());
        for (place, family) in found {
            // Of others nothing is known here.
            let standing = match self.host.holds(*family) {
                true => self.judging.standing_of(&judge, place.segment).await?,
                false => Standing::Undecided,
            };
            verdicts.push(match standing {
                Standing::Live(place) => Verdict::Live(place),
                Standing::Dead => Verdict::Dead,
                Standing::Undecided => Verdict::Undecided,
                Standing::Damaged => Verdict::Damaged,
                // The blobs say whose they are, not who asks: what no record names here may be live in another shard.
                Standing::Garbage if self.is_of_here(place).await => {
                    garbage.push(*place);
                    Verdict::Dead
                }
                Standing::Garbage => Verdict::Undecided,
            });
        }
        count(&self.counts.garbage_deleted, garbage.len() as u64);
        if self.host.world().has_planted(Planted::SweepOpen) {
            self.host.pool().delete(&garbage).await?;
            garbage.clear();
        }
        self.host.condemn(garbage).await?;
        Ok(verdicts)
    }

    /// Takes note of what a server did to segments that were live.
    ///
    /// # Errors
    /// If records can't be read.
    pub(super) async fn note_mended(&self, mended: &[Mended]) -> Result<()> {
        let judge = self.judging.judge(self.judging.decided().await?).await?;
        for it in mended.iter().filter(|it| self.host.holds(it.family)) {
            let segment = it.place.segment;
            match self.judging.standing_of(&judge, segment).await? {
                // Where the record says, whatever the server believes.
                Standing::Live(place) if !it.is_rebuilt => {
                    self.unreadable.note_if_unreadable(&place).await?;
                }
                _ if !it.is_rebuilt => {}
                Standing::Live(_) => self.unreadable.note_rebuilt(segment, true),
                // It may have been deleted before the last piece was rebuilt: its pieces go again. What was
                // condemned a moment ago waits for its turn.
                Standing::Dead if self.judging.is_gone_for_good(segment).await? => {
                    self.unreadable.note_rebuilt(segment, false);
                    self.host.pool().delete(&[it.place]).await?;
                }
                Standing::Garbage if self.is_of_here(&it.place).await => {
                    self.unreadable.note_rebuilt(segment, false);
                    self.host.condemn(vec![it.place]).await?;
                }
                Standing::Garbage | Standing::Dead | Standing::Undecided | Standing::Damaged => {}
            }
        }
        Ok(())
    }

    /// Whether a blob of the segment says that it is of a family of this shard.
    async fn is_of_here(&self, place: &SegmentPlace) -> bool {
        let family = self.host.pool().family_of(place).await;
        family.is_some_and(|family| self.host.holds(family))
    }
}
