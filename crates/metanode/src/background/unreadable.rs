//! Live segments that can't be read any more: met by readers, scrub, repair, surveys or checks,
//! told with the files in them, and forgotten once they are readable again or nobody needs them.

use crate::background::{Pace, Standing, recorded};
use crate::files::Files;
use crate::metanode::Metanode;
use crate::report::UnreadableData;
use model::{ErrorKind, MapEpoch, Result, SegmentId, SegmentPlace};
use namespace::{Key, Record};
use pool::{Depth, PieceCondition, RepairOutcome};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use world::{Instant, Task};

/// Segments that are remembered.
const SEGMENTS_MAX: usize = 16_384;
/// Of these so many are looked up per gentle round: are they still needed?
const LOOK_UPS: usize = 512;
/// And so many read again.
const READS: usize = 4;
/// One that couldn't be read is tried again after so long, and as soon as NSDs come or go.
const TRY_EVERY: Duration = Duration::from_secs(300);
/// Names are looked up anew when the segments changed, but not more often than this, and not
/// longer than a tenth of the time.
const NAME_EVERY: Duration = Duration::from_secs(10);
const NAME_SHARE: u32 = 10;

/// What is remembered; losing it costs only that somebody has to meet it again.
#[derive(Default)]
pub(crate) struct Unreadable {
    segments: BTreeMap<SegmentId, Known>,
    beyond: Beyond,
    /// Counts changes of `segments`.
    version: u64,
    /// The files in the segments of a version.
    named: (u64, Files),
    /// No new look at names before this.
    name_after: Option<Instant>,
    naming: Option<Task<()>>,
    /// Where the rounds' looks go on.
    cursor: Option<SegmentId>,
}

/// Segments that couldn't be read and have no place among those that are remembered. What became
/// of them shows only when all segments were looked at again.
#[derive(Clone, Copy, Default)]
struct Beyond {
    /// How often one was met.
    met: u64,
    /// By their NSDs' indexes: surveys see such.
    by_index: bool,
    /// By their bytes: only a check reads all of them.
    by_bytes: bool,
}

/// How a segment shows that it can't be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loss {
    /// Too few pieces are there.
    ByIndex,
    /// What is there can't be read, or isn't right.
    ByBytes,
}

/// When and in which pool a segment couldn't be read.
#[derive(Clone, Copy)]
struct Known {
    tried: Instant,
    pool: PoolState,
}

/// What decides whether another attempt makes sense.
type PoolState = (MapEpoch, u64);

/// What came of a repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Repaired {
    /// As far as NSDs are there.
    Done(RepairOutcome),
    /// It died meanwhile.
    Gone,
    /// The data can't be read.
    Unreadable,
    /// It can be read, but a piece couldn't be written.
    Later,
}

impl Unreadable {
    fn insert(&mut self, segment: SegmentId, known: Known, loss: Loss) {
        if self.segments.len() >= SEGMENTS_MAX && !self.segments.contains_key(&segment) {
            self.beyond.met += 1;
            match loss {
                Loss::ByIndex => self.beyond.by_index = true,
                Loss::ByBytes => self.beyond.by_bytes = true,
            }
        } else if self.segments.insert(segment, known).is_none() {
            self.version += 1;
        }
    }

    fn remove(&mut self, segment: SegmentId) {
        if self.segments.remove(&segment).is_some() {
            self.version += 1;
        }
    }

    /// There may be more than are remembered.
    fn has_more(&self) -> bool {
        self.beyond.by_index || self.beyond.by_bytes
    }

    /// All segments were looked at since so many were met: those that can't be read are remembered,
    /// unless there was no place for one again.
    fn saw_all(&mut self, met: u64, by: Loss) {
        if self.beyond.met != met {
            return;
        }
        self.beyond.by_index = false;
        self.beyond.by_bytes &= by == Loss::ByIndex;
    }

    /// The next segments after the cursor, round and round.
    fn next(&mut self, limit: usize) -> Vec<SegmentId> {
        let from = self.cursor.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.segments.range((from, Bound::Unbounded));
        let found: Vec<SegmentId> = rest.take(limit).map(|(id, _)| *id).collect();
        self.cursor = found.last().copied().filter(|_| found.len() == limit);
        found
    }

    /// No names are looked up any more.
    pub(super) fn end_naming(&mut self) {
        drop(self.naming.take());
    }

    fn needs_names(&self) -> bool {
        self.named.0 != self.version
    }
}

impl Metanode {
    /// Data that can't be read, as far as somebody has met it.
    pub(crate) fn unreadable_data(&self) -> UnreadableData {
        let unreadable = self.background.unreadable.lock();
        let (_, files) = &unreadable.named;
        let is_empty = unreadable.segments.is_empty();
        UnreadableData {
            segments: unreadable.segments.len() as u64,
            has_more: unreadable.has_more(),
            files: if is_empty { 0 } else { files.count },
            names: if is_empty {
                Vec::new()
            } else {
                files.names.clone()
            },
            is_named: !unreadable.needs_names(),
        }
    }

    /// How many unreadable segments had no place so far.
    pub(crate) fn unreadable_beyond(&self) -> u64 {
        self.background.unreadable.lock().beyond.met
    }

    /// Whether more segments may be unreadable than are remembered.
    pub(super) fn may_be_more_unreadable(&self) -> bool {
        self.background.unreadable.lock().has_more()
    }

    /// A survey has looked at all segments since [`Metanode::unreadable_beyond`] was so many.
    pub(super) fn surveyed_all(&self, beyond: u64) {
        let mut unreadable = self.background.unreadable.lock();
        unreadable.saw_all(beyond, Loss::ByIndex);
    }

    /// A check has read all segments since [`Metanode::unreadable_beyond`] was so many.
    pub(crate) fn checked_all(&self, beyond: u64) {
        let mut unreadable = self.background.unreadable.lock();
        unreadable.saw_all(beyond, Loss::ByBytes);
    }

    /// Repairs a live segment and remembers whether it can be read.
    pub(crate) async fn repair_live(&self, place: &SegmentPlace, depth: Depth) -> Result<Repaired> {
        if self.is_known_unreadable(place.segment) {
            return Ok(Repaired::Unreadable);
        }
        let repaired = self.pool.repair_segment(place, depth).await;
        if !self.is_live(place.segment).await? {
            self.background.unreadable.lock().remove(place.segment);
            // It may have been deleted before the last piece was back: its pieces go once more.
            if self.is_gone_for_good(place.segment).await? {
                self.pool.delete(&[*place]).await?;
            }
            return Ok(Repaired::Gone);
        }
        match repaired {
            // Pieces that nobody could be asked for don't fail a repair.
            Ok(outcome)
                if outcome.missing.count_ones() as usize > place.scheme.tolerance()
                    && self.note_if_unreadable(place).await? =>
            {
                Ok(Repaired::Unreadable)
            }
            Ok(outcome) => {
                self.background.unreadable.lock().remove(place.segment);
                self.note_repaired(&outcome);
                Ok(Repaired::Done(outcome))
            }
            Err(_) if self.note_if_unreadable(place).await? => Ok(Repaired::Unreadable),
            Err(_) => Ok(Repaired::Later),
        }
    }

    /// Whether it couldn't be read a short while ago, and nothing has changed since.
    fn is_known_unreadable(&self, segment: SegmentId) -> bool {
        let (now, pool) = (self.world.now(), self.pool_state());
        let unreadable = self.background.unreadable.lock();
        unreadable
            .segments
            .get(&segment)
            .is_some_and(|known| known.pool == pool && now - known.tried < TRY_EVERY)
    }

    fn pool_state(&self) -> PoolState {
        (self.pool.map().epoch, self.pool.changes_of_members())
    }

    /// Looks whether a segment that should live can be read, and remembers it if not.
    pub(crate) async fn note_if_unreadable(&self, place: &SegmentPlace) -> Result<bool> {
        let state = self.pool_state();
        let loss = self.look_for_loss(place).await;
        match loss {
            Some(loss) if self.is_live(place.segment).await? => {
                self.note_unreadable(place.segment, state, loss);
                Ok(true)
            }
            _ => {
                self.background.unreadable.lock().remove(place.segment);
                Ok(false)
            }
        }
    }

    fn note_unreadable(&self, segment: SegmentId, pool: PoolState, loss: Loss) {
        let tried = self.world.now();
        let mut unreadable = self.background.unreadable.lock();
        if unreadable.segments.is_empty() {
            tracing::error!(%segment, "data can't be read: more pieces are gone than its scheme tolerates");
        }
        unreadable.insert(segment, Known { tried, pool }, loss);
    }

    /// A check has read this segment, or couldn't.
    pub(crate) fn note_checked(
        &self,
        segment: SegmentId,
        read: std::result::Result<(), ErrorKind>,
    ) {
        let loss = match read {
            Ok(()) => return self.background.unreadable.lock().remove(segment),
            Err(ErrorKind::NotFound | ErrorKind::Unavailable) => Loss::ByIndex,
            Err(_) => Loss::ByBytes,
        };
        self.note_unreadable(segment, self.pool_state(), loss);
    }

    /// How it shows that a segment can't be read, if so.
    async fn look_for_loss(&self, place: &SegmentPlace) -> Option<Loss> {
        // Indexes first: they cost nothing, and say it already where NSDs are gone.
        let Ok(states) = self.pool.verify(place, Depth::Index).await else {
            // No group of this pool could hold it: surveys don't see it.
            return Some(Loss::ByBytes);
        };
        let good: BTreeSet<u8> = states
            .iter()
            .filter(|state| state.condition == PieceCondition::Good)
            .map(|state| state.piece)
            .collect();
        if good.len() < place.scheme.data_pieces() {
            return Some(Loss::ByIndex);
        }
        let read = self.pool.read_whole(place).await;
        let is_lost = read.is_err_and(|error| is_loss(error.kind()));
        is_lost.then_some(Loss::ByBytes)
    }

    /// Whether something still points at a segment, or may: its record can't be decoded.
    pub(crate) async fn is_live(&self, segment: SegmentId) -> Result<bool> {
        let shard = self.shard();
        let recorded = recorded(&shard, segment).await?;
        if matches!(recorded, Some(Standing::Live(_) | Standing::Damaged)) {
            return Ok(true);
        }
        let tables = shard.catalog().live_segments();
        Ok(tables.iter().any(|table| table.segment == segment))
    }

    /// Whether nothing points at a segment any more, and nothing will after a power cut: what was
    /// removed a moment ago comes back with it.
    pub(super) async fn is_gone_for_good(&self, segment: SegmentId) -> Result<bool> {
        self.sync().await?;
        let shard = self.shard();
        match shard.record(&Key::Dead(segment)).await? {
            Some(Record::Dead(dead)) => Ok(dead.died <= shard.durable()),
            _ => Ok(!self.is_live(segment).await?),
        }
    }

    /// Looks at some of what couldn't be read: forgets what nobody needs any more, reads what is
    /// due. Answers how many were forgotten.
    pub(super) async fn revisit_unreadable(&self, pace: Pace) -> Result<u64> {
        let is_drain = pace == Pace::Drain;
        let limit = if is_drain { SEGMENTS_MAX } else { LOOK_UPS };
        let looks = self.background.unreadable.lock().next(limit);
        if looks.is_empty() {
            return Ok(0);
        }
        let judge = self.judge(self.decided().await?).await?;
        let mut forgotten = 0;
        let mut reads = 0;
        for segment in looks {
            let Standing::Live(place) = self.standing_of(&judge, segment).await? else {
                self.background.unreadable.lock().remove(segment);
                forgotten += 1;
                continue;
            };
            if (is_drain || reads < READS) && !self.is_known_unreadable(segment) {
                reads += 1;
                forgotten += u64::from(!self.note_if_unreadable(&place).await?);
            }
        }
        Ok(forgotten)
    }

    /// Looks up which files lie in the unreadable segments, now.
    ///
    /// # Errors
    /// When the records can't be read.
    pub(crate) async fn name_unreadable(&self) -> Result<()> {
        let (version, segments) = {
            let unreadable = self.background.unreadable.lock();
            if !unreadable.needs_names() {
                return Ok(());
            }
            let segments: BTreeSet<SegmentId> = unreadable.segments.keys().copied().collect();
            (unreadable.version, segments)
        };
        let begun = self.world.now();
        let files = self.files_in(&segments).await?;
        let now = self.world.now();
        let mut unreadable = self.background.unreadable.lock();
        if version > unreadable.named.0 {
            unreadable.named = (version, files);
        }
        unreadable.name_after = Some(now + NAME_EVERY.max((now - begun) * NAME_SHARE));
        Ok(())
    }

    /// Begins to look up names beside the rounds, if it is time to.
    pub(super) fn begin_naming(self: &Arc<Self>) {
        let now = self.world.now();
        let mut unreadable = self.background.unreadable.lock();
        let is_running = unreadable
            .naming
            .as_ref()
            .is_some_and(|task| !task.is_finished());
        let is_early = unreadable.name_after.is_some_and(|after| now < after);
        if is_running || is_early || !unreadable.needs_names() {
            return;
        }
        unreadable.name_after = Some(now + NAME_EVERY);
        let metanode = Arc::downgrade(self);
        let task = async move {
            if let Some(metanode) = metanode.upgrade()
                && let Err(error) = metanode.name_unreadable().await
            {
                tracing::debug!(%error, "the names of unreadable files are looked up later");
            }
        };
        unreadable.naming = Some(self.world.spawn("names of unreadable files", task));
    }
}

/// Whether an error of a read says that the data can't be had.
fn is_loss(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unavailable
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::SessionId;

    #[test]
    fn more_than_are_remembered_stay_told_until_all_segments_were_looked_at() {
        let simulation = world::sim::Simulation::new(1);
        let tried = simulation
            .run(async |world: world::World| world.now())
            .finished();
        let pool = (MapEpoch(1), 0);
        let mut unreadable = Unreadable::default();
        let segment = |counter: usize| SegmentId {
            session: SessionId(1),
            counter: counter as u64,
        };
        let lose = |unreadable: &mut Unreadable, counter: usize, loss: Loss| {
            unreadable.insert(segment(counter), Known { tried, pool }, loss);
        };
        for counter in 0..=SEGMENTS_MAX {
            lose(&mut unreadable, counter, Loss::ByIndex);
        }
        (0..SEGMENTS_MAX).for_each(|counter| unreadable.remove(segment(counter)));
        assert!(unreadable.segments.is_empty() && unreadable.has_more());
        // One had no place while a survey looked: it may be that one.
        unreadable.saw_all(0, Loss::ByIndex);
        assert!(unreadable.has_more());
        unreadable.saw_all(1, Loss::ByIndex);
        assert!(!unreadable.has_more());
        // What only its bytes show is seen by a check alone.
        for counter in 0..=SEGMENTS_MAX {
            lose(&mut unreadable, counter, Loss::ByBytes);
        }
        unreadable.saw_all(2, Loss::ByIndex);
        assert!(unreadable.has_more());
        unreadable.saw_all(2, Loss::ByBytes);
        assert!(!unreadable.has_more());
    }
}
