//! Empties closed generations of the pool: rewrites what lives in them into the newest one, says so in
//! coordination, and takes an empty one out of the map. `docs/protocols/generations.md` has the rules.
//!
//! The first pass only counts, so that people see how much is left. Nothing of it is remembered but the shard's floor
//! in coordination: a crash only repeats a pass.

mod dropping;
mod walk;

use crate::background::Pace;
use crate::background::allowance::Allowance;
use crate::background::rewrite::Rewriter;
use crate::background::segments::Segments;
use crate::host::Host;
use model::map::PoolMap;
use model::{ErrorKind, GroupId, Result, ShardEpoch};
use namespace::{Key, Segment, Table};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use world::{Instant, Planted};

/// Pages of records examined by one gentle round.
const PAGES_MAX: usize = 8;
/// Pause after a pass that could move nothing, for want of space or because data can't be read.
const STUCK_PAUSE: Duration = Duration::from_secs(30);
/// Pause while tables are compacted, dead segments are deleted or other shards are waited for.
const WAIT_PAUSE: Duration = Duration::from_secs(2);

/// Empties closed generations in passes over the shard's segments.
pub(super) struct Emptying {
    host: Arc<Host>,
    segments: Segments,
    /// Of what no segment's record leads to.
    rewriter: Rewriter,
    allowance: Allowance,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    pass: Option<Pass>,
    /// Nothing is done until then.
    not_before: Option<Instant>,
    /// How many segments are still to be moved into the generation that begins with this group, once they were
    /// counted.
    left: Option<(GroupId, u64)>,
    /// No record names a group below this, by this owner's word in coordination.
    told: GroupId,
}

/// What a pass is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Aim {
    /// To tell how much there is to do.
    Count,
    /// To move what is in closed generations.
    Move,
    /// The same, begun after publishes into those groups were refused: it proves that nothing is there.
    Confirm,
}

/// A pass over all segments of the shard.
struct Pass {
    /// The owner's: after a take-over a pass proves nothing.
    epoch: ShardEpoch,
    /// Groups below this are to be left.
    target: GroupId,
    aim: Aim,
    /// Where it continues.
    from: Key,
    /// Segments that were to be moved when it began, as far as that was known.
    before: u64,
    /// Segments in closed generations.
    found: u64,
    /// Those that nothing should be in any more.
    moved: u64,
    /// Extents that were replaced.
    replaced: u64,
    /// Some bytes are shared with files that the segments' records don't name.
    is_shared: bool,
    /// After the segments: where to continue among all files.
    walk: Option<Key>,
}

impl Emptying {
    pub(super) fn new(host: Arc<Host>, rewriter: Rewriter, allowance: Allowance) -> Self {
        let segments = Segments::new(host.clone(), rewriter.clone());
        Self {
            segments: segments.within(allowance.clone()),
            host,
            rewriter,
            allowance,
            progress: Mutex::default(),
        }
    }

    /// Segments of this shard that are still to be moved out of closed generations. `None`: they aren't counted yet.
    pub(super) fn left(&self) -> Option<u64> {
        let map = self.host.pool().map();
        if map.closed().is_empty() {
            return Some(0);
        }
        let left = self.progress.lock().left;
        let (of, left) = left?;
        (of == map.newest().first_group).then_some(left)
    }

    /// Moves some data out of closed generations. Returns how many extents or maps it changed; 0 also while what was
    /// moved before isn't paid.
    pub(super) async fn empty_some(&self, pace: Pace) -> Result<u64> {
        let map = self.host.pool().map();
        if map.closed().is_empty() {
            *self.progress.lock() = Progress::default();
            return Ok(0);
        }
        if self.host.world().has_planted(Planted::DropEarly) {
            return self.drop_oldest(&map).await;
        }
        let now = self.host.world().now();
        let not_before = self.progress.lock().not_before;
        if pace == Pace::Gentle && not_before.is_some_and(|time| now < time) {
            return Ok(0);
        }
        // Segments written now would have less redundancy than the scheme says.
        if !self.host.pool().keeps_redundancy() {
            return Ok(self.pause(STUCK_PAUSE));
        }
        if self.progress.lock().told >= map.newest().first_group {
            let dropped = self.drop_oldest(&map).await?;
            if dropped == 0 {
                self.pause(WAIT_PAUSE);
            }
            return Ok(dropped);
        }
        match self.go_on(&map, pace).await {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                tracing::warn!(%error, "data can't be moved to the pool's newest groups");
                Ok(self.pause(STUCK_PAUSE))
            }
            done => done,
        }
    }

    /// Does nothing for a while. Returns 0.
    fn pause(&self, time: Duration) -> u64 {
        self.progress.lock().not_before = Some(self.host.world().now() + time);
        0
    }

    /// Continues a pass, or begins one.
    async fn go_on(&self, map: &PoolMap, pace: Pace) -> Result<u64> {
        let shard = self.host.shard();
        let target = map.newest().first_group;
        let mut pass = {
            let mut progress = self.progress.lock();
            let running = progress.pass.take();
            let is_current = |pass: &Pass| pass.epoch == shard.epoch() && pass.target == target;
            let next = match progress.left {
                Some((of, left)) if of == target => (Aim::Move, left),
                _ => (Aim::Count, 0),
            };
            running
                .filter(is_current)
                .unwrap_or_else(|| Pass::new(shard.epoch(), target, next))
        };
        if pass.walk.is_some() {
            if self.allowance.of_round(pace) == 0 {
                self.progress.lock().pass = Some(pass);
                return Ok(0);
            }
            let replaced = self.walk_some(&mut pass, pace).await?;
            return match pass.walk {
                Some(_) => {
                    self.progress.lock().pass = Some(pass);
                    Ok(replaced.max(1))
                }
                None => self.end_pass(pass).await,
            };
        }
        let pages = match pace {
            Pace::Drain => usize::MAX,
            Pace::Gentle => PAGES_MAX,
        };
        for _ in 0..pages {
            if pass.aim == Aim::Count {
                if self.count_some(&mut pass).await? {
                    self.progress.lock().left = Some((target, pass.found));
                    pass = Pass::new(pass.epoch, target, (Aim::Move, pass.found));
                }
                continue;
            }
            let bytes_max = self.allowance.of_round(pace);
            if bytes_max == 0 {
                self.progress.lock().pass = Some(pass);
                return Ok(0);
            }
            let (replaced, ended) = self.segments_some(&mut pass, bytes_max).await?;
            if ended {
                if pass.is_shared && pass.replaced == 0 {
                    pass.walk = Some(Table::Inodes.first());
                    self.progress.lock().pass = Some(pass);
                    return Ok(1);
                }
                return self.end_pass(pass).await;
            }
            if replaced > 0 && pace == Pace::Gentle {
                break;
            }
        }
        self.progress.lock().pass = Some(pass);
        Ok(1)
    }

    /// Counts the segments of a page that are to be moved. Returns whether there are no more.
    async fn count_some(&self, pass: &mut Pass) -> Result<bool> {
        let (found, target) = (&mut pass.found, pass.target);
        let count = |segment: &Segment| *found += u64::from(segment.place.group < target);
        self.segments.see_page(&mut pass.from, count).await
    }

    /// Rewrites some of the segments of a page, with about so many bytes. Returns the number of extents
    /// replaced, and whether there are no more segments.
    async fn segments_some(&self, pass: &mut Pass, bytes_max: u64) -> Result<(u64, bool)> {
        let mut chosen = Vec::new();
        let target = pass.target;
        let is_to_move = |_, segment: &Segment| segment.place.group < target;
        let page =
            self.segments
                .choose_from_page(&mut pass.from, &mut chosen, bytes_max, is_to_move);
        let ended = page.await?;
        pass.found += chosen.len() as u64;
        let mut shared = 0;
        let rewritten = self.segments.rewrite(chosen, |_, live| {
            shared += u64::from(live.unfound > 0);
            true
        });
        let done = rewritten.await?;
        pass.is_shared |= shared > 0;
        pass.moved += done.segments.saturating_sub(shared);
        pass.replaced += done.replaced;
        let left = pass.before.max(pass.found).saturating_sub(pass.moved);
        self.progress.lock().left = Some((target, left));
        Ok((done.replaced, ended))
    }

    /// Concludes from a pass over all segments.
    async fn end_pass(&self, pass: Pass) -> Result<u64> {
        let left = pass.found.saturating_sub(pass.moved);
        self.progress.lock().left = Some((pass.target, left));
        if pass.found > 0 {
            if pass.replaced == 0 {
                return Ok(self.pause(STUCK_PAUSE));
            }
            tracing::info!(
                segments = pass.found,
                extents = pass.replaced,
                "moved data to the pool's newest groups"
            );
            return Ok(pass.replaced);
        }
        let shard = self.host.shard();
        let tables = shard.catalog().live_segments();
        if tables.iter().any(|place| place.group < pass.target) {
            // Only a compaction replaces them; when it is done, another pass looks.
            if !shard.tree().is_compacting() {
                shard.tree().compact().await?;
            }
            return Ok(self.pause(WAIT_PAUSE));
        }
        if pass.aim != Aim::Confirm {
            // Somebody may be publishing by an old map: from now on that is refused, and another
            // pass sees what came before.
            shard.refuse_below(pass.target).await;
            let confirming = Pass::new(pass.epoch, pass.target, (Aim::Confirm, 0));
            self.progress.lock().pass = Some(confirming);
            return Ok(1);
        }
        // What the pass saw must outlive this owner.
        self.host.sync().await?;
        let coordination = self.host.coordination();
        coordination
            .raise_floor(self.host.id(), pass.epoch, pass.target)
            .await?;
        self.progress.lock().told = pass.target;
        tracing::info!(
            below = pass.target.0,
            "this shard has left the pool's closed groups"
        );
        Ok(1)
    }
}

impl Pass {
    /// `before`: how many segments are to be moved, as far as that is known.
    fn new(epoch: ShardEpoch, target: GroupId, (aim, before): (Aim, u64)) -> Self {
        Self {
            epoch,
            target,
            aim,
            from: Segments::first(),
            before,
            found: 0,
            moved: 0,
            replaced: 0,
            is_shared: false,
            walk: None,
        }
    }
}
