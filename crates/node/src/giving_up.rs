//! Which NSDs may be given up: not those that answer and have what nobody else has.

use coordination::{Coordination, ShardRecord};
use model::map::{NsdState, PoolMap};
use model::{Error, ErrorKind, NsdId, Result};
use pool::Pool;

/// Whether data would be lost with an NSD that answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// All has enough copies elsewhere.
    Never,
    /// Some of what it has was written while another one was away, and has no other copy yet.
    ForNow,
    /// The others are too few for the pool's scheme.
    Always,
}

/// Whether something is on an NSD only, because it was written while another one was away: in a pool of two failure groups,
/// which goes on writing then. Says nothing of what the scheme keeps in one copy.
///
/// # Errors
/// `Unavailable`: it doesn't list what it has. Those of coordination.
pub(super) async fn has_only_copies(
    coordination: &Coordination,
    pool: &Pool,
    nsd: NsdId,
) -> Result<bool> {
    if !pool.groups().allows_degraded_writes() {
        return Ok(false);
    }
    let shards = coordination.shards().await?;
    let map = pool.map();
    let has_log = shards.iter().any(|shard| has_only_log(shard, nsd, &map));
    Ok(has_log || pool.has_only_copies(nsd).await?)
}

/// Whether entries of a shard's log that a take-over needs are on this NSD only, of those in use.
fn has_only_log(shard: &ShardRecord, nsd: NsdId, map: &PoolMap) -> bool {
    let is_kept = |it: &NsdId| {
        let entry = map.nsd(*it);
        entry.is_some_and(|entry| entry.state != NsdState::Lost)
    };
    let closed = shard.closed.iter().map(|closed| &closed.view);
    let mut views = closed.chain([&shard.view]);
    views.any(|view| view.contains(&nsd) && !view.iter().any(|it| *it != nsd && is_kept(it)))
}

/// Adds the way out to the error of an NSD that the others can't replace.
pub(super) fn or_gone(error: Error, nsd: NsdId, need: Need) -> Error {
    if error.kind() != ErrorKind::NoSpace {
        return error;
    }
    let way_out = match need {
        Need::Always => return error,
        Need::ForNow => {
            "it has the only copy of what was written while another NSD was away: don't give it up before that is written \
             again, which begins when all NSDs serve (`shale repair status` shows what is left)"
                .to_owned()
        }
        Need::Never => format!(
            "if it is gone for good, or its data may have less redundancy until an NSD is added: \
             `shale nsd remove {nsd} --gone`"
        ),
    };
    Error::new(ErrorKind::NoSpace, format!("{error}; {way_out}"))
}

/// Why an NSD that answers isn't given up.
pub(super) fn not_gone(nsd: NsdId, need: Need) -> Error {
    let text = match need {
        Need::ForNow => format!(
            "give up NSD {nsd}: it answers, and has the only copy of what was written while another NSD was away: wait until \
             that is written again, which begins when all NSDs serve and may take some minutes longer than \
             `shale repair status` shows something left; one that doesn't answer any more may be given up at once"
        ),
        Need::Never | Need::Always => format!(
            "give up NSD {nsd}: it answers, and may have the only copy of data: remove it without saying that it is gone, so \
             that what it has moves to the others first"
        ),
    };
    Error::new(ErrorKind::InvalidArgument, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coordination::ClosedFragment;
    use model::{EntryNumber, FamilyId, Scheme, SessionId, ShardEpoch, ShardId};
    use testkit::disks::entries;

    const ONE: NsdId = NsdId(1);
    const TWO: NsdId = NsdId(2);

    fn refused(kind: ErrorKind) -> Error {
        Error::new(kind, "add an NSD")
    }

    /// Would be broken if whoever can't drain an NSD was told to throw away what nobody else has.
    #[test]
    fn who_cannot_drain_an_nsd_is_not_told_to_lose_data() {
        let text = |need: Need| or_gone(refused(ErrorKind::NoSpace), ONE, need).to_string();
        assert!(text(Need::Never).contains("shale nsd remove 1 --gone"));
        assert!(!text(Need::Always).contains("--gone"));
        let for_now = text(Need::ForNow);
        assert!(!for_now.contains("--gone"), "{for_now}");
        assert!(for_now.contains("shale repair status"), "{for_now}");
        let other = or_gone(refused(ErrorKind::NotFound), ONE, Need::Never);
        assert_eq!(other, refused(ErrorKind::NotFound));
        let wait = not_gone(ONE, Need::ForNow);
        assert_eq!(wait.kind(), ErrorKind::InvalidArgument);
        assert!(wait.to_string().contains("shale repair status"), "{wait}");
    }

    fn fragment(view: &[NsdId]) -> ClosedFragment {
        ClosedFragment {
            view: view.to_vec(),
            first: EntryNumber(1),
            last: EntryNumber(2),
        }
    }

    fn shard(closed: Vec<ClosedFragment>, view: &[NsdId]) -> ShardRecord {
        ShardRecord {
            shard: ShardId(1),
            families: vec![FamilyId(1)],
            assigned: None,
            epoch: ShardEpoch(1),
            owner: SessionId(1),
            view: view.to_vec(),
            first_entry: EntryNumber(3),
            closed,
            ended: Vec::new(),
            trimmed_below: EntryNumber(1),
            marker: 1,
        }
    }

    #[test]
    fn a_log_is_on_one_nsd_only_while_a_view_of_it_has_no_other_that_is_in_use() {
        let map = placement::new_pool(Scheme::Replicate(2), entries(2), 5).expect("a legal pool");
        let whole = shard(Vec::new(), &[ONE, TWO]);
        assert!(!has_only_log(&whole, ONE, &map));
        assert!(has_only_log(&shard(Vec::new(), &[ONE]), ONE, &map));
        let narrowed = shard(vec![fragment(&[ONE, TWO]), fragment(&[ONE])], &[ONE, TWO]);
        assert!(has_only_log(&narrowed, ONE, &map));
        assert!(!has_only_log(&narrowed, TWO, &map));
        let alone = placement::mark_lost(&map, TWO).expect("it was in use");
        assert!(has_only_log(&whole, ONE, &alone));
    }
}
