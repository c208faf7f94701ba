//! Asks the owners of shards what segments are, and tells them what was rebuilt.

use super::Parts;
use model::call::Call;
use model::owner::{
    CLASS, EXAMINED_MAX, MENDED_MAX, Mended, OWNER, OwnerCall, OwnerReply, OwnerRequest, Tenure,
    Verdict,
};
use model::{Error, ErrorKind, FamilyId, Result, SegmentId, SegmentPlace, SessionId, ShardId};
use pool::SurveyedSegment;
use std::collections::BTreeMap;
use std::time::Duration;
use world::Deadline;

/// How long a verdict is waited for.
const EXAMINE_MAX: Duration = Duration::from_secs(20);
/// How long an owner may take to look at what couldn't be repaired: it tries to read it.
const REPORT_MAX: Duration = Duration::from_secs(60);

/// What owners have said.
#[derive(Default)]
pub(super) struct Verdicts {
    pub(super) of: BTreeMap<SegmentId, Verdict>,
    /// An owner didn't answer: those that are missing aren't known.
    pub(super) is_partial: bool,
}

impl Parts {
    /// The shard that has a family.
    pub(super) fn shard_of(&self, family: FamilyId) -> Option<ShardId> {
        let roster = self.roster.borrow();
        let mut shards = roster.shards.iter();
        let found = shards.find(|(_, record)| record.value.families.contains(&family));
        found.map(|(shard, _)| *shard)
    }

    /// Has segments judged by the owners of the shards whose families they are of. What is garbage is
    /// condemned then.
    pub(super) async fn examine(&self, found: &[&SurveyedSegment]) -> Verdicts {
        let mut of_shards: BTreeMap<ShardId, Vec<(SegmentPlace, FamilyId)>> = BTreeMap::new();
        for segment in found {
            // What no shard knows yet stays.
            if let Some(shard) = self.shard_of(segment.owner.family) {
                let asked = of_shards.entry(shard).or_default();
                asked.push((segment.place, segment.owner.family));
            }
        }
        let mut verdicts = Verdicts::default();
        for (shard, asked) in of_shards {
            for part in asked.chunks(EXAMINED_MAX) {
                let request = OwnerRequest::Examine {
                    found: part.to_vec(),
                };
                match self.ask_owner(shard, request, EXAMINE_MAX).await {
                    Ok(OwnerReply::Judged(judged)) if judged.len() == part.len() => {
                        let segments = part.iter().map(|(place, _)| place.segment);
                        verdicts.of.extend(segments.zip(judged));
                    }
                    Ok(_) => verdicts.is_partial = true,
                    Err(error) => {
                        tracing::debug!(%shard, %error, "what is live isn't known now");
                        verdicts.is_partial = true;
                    }
                }
            }
        }
        verdicts
    }

    /// Tells owners what was rebuilt, or couldn't be. False if one doesn't answer.
    pub(super) async fn report_mended(&self, mended: &[Mended]) -> bool {
        let mut of_shards: BTreeMap<ShardId, Vec<Mended>> = BTreeMap::new();
        for it in mended {
            if let Some(shard) = self.shard_of(it.family) {
                of_shards.entry(shard).or_default().push(*it);
            }
        }
        let mut is_told = true;
        for (shard, mended) in of_shards {
            for part in mended.chunks(MENDED_MAX) {
                let request = OwnerRequest::ReportMended {
                    mended: part.to_vec(),
                };
                let told = self.ask_owner(shard, request, REPORT_MAX).await;
                is_told &= told.is_ok();
            }
        }
        is_told
    }

    async fn ask_owner(
        &self,
        shard: ShardId,
        request: OwnerRequest,
        patience: Duration,
    ) -> Result<OwnerReply> {
        let owner = self.roster.borrow().assigned(shard);
        let owner = owner.ok_or_else(|| {
            let text = format!("shard {shard} has no owner now");
            Error::new(ErrorKind::Unavailable, text)
        })?;
        let asked = OwnerCall {
            shard,
            session: SessionId::default(),
            tenure: Tenure::default(),
            order: None,
            request,
        };
        let call = Call::new(OWNER, CLASS, &asked);
        let deadline = Deadline::after(&self.world, patience);
        let answer = self.way_to(owner).call(call, deadline).await;
        let answer = answer.map_err(|_| {
            let text = format!("the owner of shard {shard} doesn't answer");
            Error::new(ErrorKind::Unavailable, text)
        })?;
        answer.reply.decode()
    }
}
