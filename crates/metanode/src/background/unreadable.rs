//! Live segments that can't be read: found by readers, scrub, repair, surveys or checks, reported
//! with their files, and forgotten once they are readable again or no longer live.

use crate::background::Pace;
use crate::files::{FileNames, Files};
use crate::host::Host;
use crate::judging::{Judging, Standing};
use crate::report::UnreadableData;
use model::{ErrorKind, MapEpoch, Result, SegmentId, SegmentPlace};
use parking_lot::Mutex;
use pool::{Depth, PieceCondition, RepairOutcome};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use world::{Instant, Task};

/// Most segments remembered.
const SEGMENTS_MAX: usize = 16_384;
/// How many of them one gentle round checks for still being live.
const LOOK_UPS: usize = 512;
/// How many of them it reads again.
const READS: usize = 4;
/// An unreadable one is tried again after this long, and as soon as NSDs come or go.
const TRY_EVERY: Duration = Duration::from_secs(300);
/// Names are looked up again when the segments changed, but at most this often, and for at most a
/// tenth of the time.
const NAME_EVERY: Duration = Duration::from_secs(10);
const NAME_SHARE: u32 = 10;

/// The remembered segments; a lost entry only has to be found again.
#[derive(Default)]
struct Memory {
    segments: BTreeMap<SegmentId, Known>,
    beyond: Beyond,
    /// Counts changes of `segments`.
    version: u64,
    /// The files in the segments, as of a version.
    named: (u64, Files),
    /// Earliest time of the next name look-up.
    name_after: Option<Instant>,
    naming: Option<Task<()>>,
    /// Where the rounds' checks continue.
    cursor: Option<SegmentId>,
}

/// Unreadable segments beyond those remembered. Their state is known only after all segments were
/// examined again.
#[derive(Clone, Copy, Default)]
struct Beyond {
    /// Number of times that one was found.
    met: u64,
    /// Found in their NSDs' indexes: surveys see these.
    by_index: bool,
    /// Found by reading bytes: only a check reads all of them.
    by_bytes: bool,
}

/// How a segment was found to be unreadable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loss {
    /// Too few pieces exist.
    ByIndex,
    /// Pieces can't be read, or are wrong.
    ByBytes,
}

/// When, and in which pool, a segment couldn't be read.
#[derive(Clone, Copy)]
struct Known {
    tried: Instant,
    pool: PoolState,
}

/// Determines whether another attempt makes sense.
type PoolState = (MapEpoch, u64);

/// Result of a repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Repaired {
    /// Done as far as NSDs are available.
    Done(RepairOutcome),
    /// The segment died meanwhile.
    Gone,
    /// The data can't be read.
    Unreadable,
    /// It can be read, but a piece couldn't be written.
    Later,
}

impl Memory {
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

    /// Whether there may be more than are remembered.
    fn has_more(&self) -> bool {
        self.beyond.by_index || self.beyond.by_bytes
    }

    /// All segments were examined since this many were found: the unreadable ones are remembered,
    /// unless there was again no room for one.
    fn saw_all(&mut self, met: u64, by: Loss) {
        if self.beyond.met != met {
            return;
        }
        self.beyond.by_index = false;
        self.beyond.by_bytes &= by == Loss::ByIndex;
    }

    /// The next segments after the cursor, cyclically.
    fn next(&mut self, limit: usize) -> Vec<SegmentId> {
        let from = self.cursor.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = self.segments.range((from, Bound::Unbounded));
        let found: Vec<SegmentId> = rest.take(limit).map(|(id, _)| *id).collect();
        self.cursor = found.last().copied().filter(|_| found.len() == limit);
        found
    }

    /// Stops looking up names.
    fn end_naming(&mut self) {
        drop(self.naming.take());
    }

    fn needs_names(&self) -> bool {
        self.named.0 != self.version
    }
}

/// Remembers them, and repairs live segments.
pub(super) struct Unreadable {
    host: Arc<Host>,
    judging: Judging,
    names: FileNames,
    known: Mutex<Memory>,
    /// Segments of which pieces were rebuilt.
    repaired: AtomicU64,
}

impl Unreadable {
    pub(super) fn new(host: Arc<Host>, judging: Judging) -> Self {
        Self {
            names: FileNames::new(host.clone()),
            host,
            judging,
            known: Mutex::default(),
            repaired: AtomicU64::new(0),
        }
    }

    /// How many segments were repaired.
    pub(super) fn repaired(&self) -> u64 {
        self.repaired.load(Ordering::Relaxed)
    }

    /// Stops looking up names.
    pub(super) fn end_naming(&self) {
        self.known.lock().end_naming();
    }

    /// The unreadable data found so far.
    pub(super) fn data(&self) -> UnreadableData {
        let unreadable = self.known.lock();
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

    /// How many unreadable segments couldn't be remembered so far.
    pub(super) fn unreadable_beyond(&self) -> u64 {
        self.known.lock().beyond.met
    }

    /// Whether there may be more unreadable segments than are remembered.
    pub(super) fn may_be_more_unreadable(&self) -> bool {
        self.known.lock().has_more()
    }

    /// A survey has examined all segments since [`Unreadable::unreadable_beyond`] had this value.
    pub(super) fn surveyed_all(&self, beyond: u64) {
        let mut unreadable = self.known.lock();
        unreadable.saw_all(beyond, Loss::ByIndex);
    }

    /// A check has read all segments since [`Unreadable::unreadable_beyond`] had this value.
    pub(super) fn checked_all(&self, beyond: u64) {
        let mut unreadable = self.known.lock();
        unreadable.saw_all(beyond, Loss::ByBytes);
    }

    /// Repairs a live segment and records whether it can be read.
    pub(super) async fn repair_live(&self, place: &SegmentPlace, depth: Depth) -> Result<Repaired> {
        if self.is_known_unreadable(place.segment) {
            return Ok(Repaired::Unreadable);
        }
        let repaired = self.host.pool().repair_segment(place, depth).await;
        if !self.judging.is_live(place.segment).await? {
            self.known.lock().remove(place.segment);
            // It may have been deleted before the last piece was rebuilt: delete its pieces again.
            if self.judging.is_gone_for_good(place.segment).await? {
                self.host.pool().delete(&[*place]).await?;
            }
            return Ok(Repaired::Gone);
        }
        match repaired {
            // A repair doesn't fail because of pieces whose NSDs couldn't be asked.
            Ok(outcome)
                if outcome.missing.count_ones() as usize > place.scheme.tolerance()
                    && self.note_if_unreadable(place).await? =>
            {
                Ok(Repaired::Unreadable)
            }
            Ok(outcome) => {
                self.known.lock().remove(place.segment);
                self.repaired
                    .fetch_add(u64::from(outcome.rebuilt > 0), Ordering::Relaxed);
                Ok(Repaired::Done(outcome))
            }
            Err(_) if self.note_if_unreadable(place).await? => Ok(Repaired::Unreadable),
            Err(_) => Ok(Repaired::Later),
        }
    }

    /// Another node has rebuilt pieces of a segment that was live, and is or isn't now.
    pub(super) fn note_rebuilt(&self, segment: SegmentId, is_live: bool) {
        self.known.lock().remove(segment);
        self.repaired
            .fetch_add(u64::from(is_live), Ordering::Relaxed);
    }

    /// Whether it couldn't be read recently, and nothing has changed since.
    fn is_known_unreadable(&self, segment: SegmentId) -> bool {
        let (now, pool) = (self.host.world().now(), self.pool_state());
        let unreadable = self.known.lock();
        unreadable
            .segments
            .get(&segment)
            .is_some_and(|known| known.pool == pool && now - known.tried < TRY_EVERY)
    }

    fn pool_state(&self) -> PoolState {
        (
            self.host.pool().map().epoch,
            self.host.pool().changes_of_members(),
        )
    }

    /// Checks whether a segment that should be live can be read, and remembers it if not.
    pub(super) async fn note_if_unreadable(&self, place: &SegmentPlace) -> Result<bool> {
        let state = self.pool_state();
        let loss = self.look_for_loss(place).await;
        match loss {
            Some(loss) if self.judging.is_live(place.segment).await? => {
                self.note_unreadable(place.segment, state, loss);
                Ok(true)
            }
            _ => {
                self.known.lock().remove(place.segment);
                Ok(false)
            }
        }
    }

    fn note_unreadable(&self, segment: SegmentId, pool: PoolState, loss: Loss) {
        let tried = self.host.world().now();
        let mut unreadable = self.known.lock();
        if unreadable.segments.is_empty() {
            tracing::error!(%segment, "data can't be read: more pieces are gone than its scheme tolerates");
        }
        unreadable.insert(segment, Known { tried, pool }, loss);
    }

    /// Notes whether a check could read this segment.
    pub(super) fn note_checked(
        &self,
        segment: SegmentId,
        read: std::result::Result<(), ErrorKind>,
    ) {
        let loss = match read {
            Ok(()) => return self.known.lock().remove(segment),
            Err(ErrorKind::NotFound | ErrorKind::Unavailable) => Loss::ByIndex,
            Err(_) => Loss::ByBytes,
        };
        self.note_unreadable(segment, self.pool_state(), loss);
    }

    /// How a segment is unreadable, if it is.
    async fn look_for_loss(&self, place: &SegmentPlace) -> Option<Loss> {
        // Indexes first: they cost nothing and suffice where NSDs are gone.
        let Ok(states) = self.host.pool().verify(place, Depth::Index).await else {
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
        let read = self.host.pool().read_whole(place).await;
        let is_lost = read.is_err_and(|error| is_loss(error.kind()));
        is_lost.then_some(Loss::ByBytes)
    }

    /// Checks some unreadable segments: forgets those no longer live, reads those due. Returns how
    /// many were forgotten.
    pub(super) async fn revisit_unreadable(&self, pace: Pace) -> Result<u64> {
        let is_drain = pace == Pace::Drain;
        let limit = if is_drain { SEGMENTS_MAX } else { LOOK_UPS };
        let looks = self.known.lock().next(limit);
        if looks.is_empty() {
            return Ok(0);
        }
        let judge = self.judging.judge(self.judging.decided().await?).await?;
        let mut forgotten = 0;
        let mut reads = 0;
        for segment in looks {
            let Standing::Live(place) = self.judging.standing_of(&judge, segment).await? else {
                self.known.lock().remove(segment);
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

    /// Looks up the files in the unreadable segments.
    ///
    /// # Errors
    /// If the records can't be read.
    pub(super) async fn name_unreadable(&self) -> Result<()> {
        let (version, segments) = {
            let unreadable = self.known.lock();
            if !unreadable.needs_names() {
                return Ok(());
            }
            let segments: BTreeSet<SegmentId> = unreadable.segments.keys().copied().collect();
            (unreadable.version, segments)
        };
        let begun = self.host.world().now();
        let files = self.names.files_in(&segments).await?;
        let now = self.host.world().now();
        let mut unreadable = self.known.lock();
        if version > unreadable.named.0 {
            unreadable.named = (version, files);
        }
        unreadable.name_after = Some(now + NAME_EVERY.max((now - begun) * NAME_SHARE));
        Ok(())
    }

    /// Starts to look up names concurrently with the rounds, if it is time.
    pub(super) fn begin_naming(self: &Arc<Self>) {
        let now = self.host.world().now();
        let mut unreadable = self.known.lock();
        let is_running = unreadable
            .naming
            .as_ref()
            .is_some_and(|task| !task.is_finished());
        let is_early = unreadable.name_after.is_some_and(|after| now < after);
        if is_running || is_early || !unreadable.needs_names() {
            return;
        }
        unreadable.name_after = Some(now + NAME_EVERY);
        let weak = Arc::downgrade(self);
        let task = async move {
            if let Some(this) = weak.upgrade()
                && let Err(error) = this.name_unreadable().await
            {
                tracing::debug!(%error, "the names of unreadable files are looked up later");
            }
        };
        unreadable.naming = Some(self.host.world().spawn("names of unreadable files", task));
    }
}

/// Whether a read error means that the data is unavailable.
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
        let mut unreadable = Memory::default();
        let segment = |counter: usize| SegmentId {
            session: SessionId(1),
            counter: counter as u64,
        };
        let lose = |unreadable: &mut Memory, counter: usize, loss: Loss| {
            unreadable.insert(segment(counter), Known { tried, pool }, loss);
        };
        for counter in 0..=SEGMENTS_MAX {
            lose(&mut unreadable, counter, Loss::ByIndex);
        }
        (0..SEGMENTS_MAX).for_each(|counter| unreadable.remove(segment(counter)));
        assert!(unreadable.segments.is_empty() && unreadable.has_more());
        // One found no room while a survey ran: it may be that one.
        unreadable.saw_all(0, Loss::ByIndex);
        assert!(unreadable.has_more());
        unreadable.saw_all(1, Loss::ByIndex);
        assert!(!unreadable.has_more());
        // Losses found by reading bytes are only seen by checks.
        for counter in 0..=SEGMENTS_MAX {
            lose(&mut unreadable, counter, Loss::ByBytes);
        }
        unreadable.saw_all(2, Loss::ByIndex);
        assert!(unreadable.has_more());
        unreadable.saw_all(2, Loss::ByBytes);
        assert!(!unreadable.has_more());
    }
}
