//! Empties closed generations of the pool: rewrites what lives in them into the newest one, says so in
//! coordination, and takes an empty one out of the map. `docs/protocols/generations.md` has the rules.
//!
//! Nothing of it is remembered but the shard's floor in coordination: a crash only repeats a pass.

mod dropping;
mod walk;

use crate::background::Pace;
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
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    pass: Option<Pass>,
    /// Nothing is done until then.
    not_before: Option<Instant>,
    /// Segments in closed generations that the last whole pass found.
    left: u64,
    /// No record names a group below this, by this owner's word in coordination.
    told: GroupId,
}

/// A pass over all segments of the shard.
struct Pass {
    /// The owner's: after a take-over a pass proves nothing.
    epoch: ShardEpoch,
    /// Groups below this are to be left.
    target: GroupId,
    /// It began after publishes into those groups were refused.
    confirms: bool,
    /// Where it continues.
    from: Key,
    /// Segments in closed generations.
    found: u64,
    /// Extents that were replaced.
    replaced: u64,
    /// Some bytes are shared with files that the segments' records don't name.
    is_shared: bool,
    /// After the segments: where to continue among all files.
    walk: Option<Key>,
}

impl Emptying {
    pub(super) fn new(host: Arc<Host>, rewriter: Rewriter) -> Self {
        Self {
            segments: Segments::new(host.clone(), rewriter.clone()),
            host,
            rewriter,
            progress: Mutex::default(),
        }
    }

    /// Segments of this shard in closed generations, as the last pass found them.
    pub(super) fn left(&self) -> u64 {
        let progress = self.progress.lock();
        let running = progress.pass.as_ref().map_or(0, |pass| pass.found);
        progress.left.max(running)
    }

    /// Moves some data out of closed generations. Returns how many extents or maps it changed.
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
        let pages = if pace == Pace::Drain {
            usize::MAX
        } else {
            PAGES_MAX
        };
        match self.go_on(&map, pages).await {
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
    async fn go_on(&self, map: &PoolMap, pages: usize) -> Result<u64> {
        let shard = self.host.shard();
        let target = map.newest().first_group;
        let mut pass = {
            let mut progress = self.progress.lock();
            let running = progress.pass.take();
            let is_current = |pass: &Pass| pass.epoch == shard.epoch() && pass.target == target;
            running
                .filter(is_current)
                .unwrap_or_else(|| Pass::new(shard.epoch(), target, false))
        };
        if pass.walk.is_some() {
            let replaced = self.walk_some(&mut pass).await?;
            return match pass.walk {
                Some(_) => {
                    self.progress.lock().pass = Some(pass);
                    Ok(replaced.max(1))
                }
                None => self.end_pass(pass).await,
            };
        }
        for _ in 0..pages {
            let (replaced, ended) = self.segments_some(&mut pass).await?;
            if ended {
                if pass.is_shared && pass.replaced == 0 {
                    pass.walk = Some(Table::Inodes.first());
                    self.progress.lock().pass = Some(pass);
                    return Ok(1);
                }
                return self.end_pass(pass).await;
            }
            if replaced > 0 && pages != usize::MAX {
                break;
            }
        }
        self.progress.lock().pass = Some(pass);
        Ok(1)
    }

    /// Rewrites some of the segments of a page. Returns the number of extents replaced, and whether
    /// there are no more segments.
    async fn segments_some(&self, pass: &mut Pass) -> Result<(u64, bool)> {
        let mut chosen = Vec::new();
        let target = pass.target;
        let is_to_move = |_, segment: &Segment| segment.place.group < target;
        let page = self
            .segments
            .choose_from_page(&mut pass.from, &mut chosen, is_to_move);
        let ended = page.await?;
        pass.found += chosen.len() as u64;
        let rewritten = self.segments.rewrite(chosen, |_, live| {
            pass.is_shared |= live.unfound > 0;
            true
        });
        let replaced = rewritten.await?.replaced;
        pass.replaced += replaced;
        Ok((replaced, ended))
    }

    /// Concludes from a pass over all segments.
    async fn end_pass(&self, pass: Pass) -> Result<u64> {
        self.progress.lock().left = pass.found;
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
        if !pass.confirms {
            // Somebody may be publishing by an old map: from now on that is refused, and another
            // pass sees what came before.
            shard.refuse_below(pass.target).await;
            let confirming = Pass::new(pass.epoch, pass.target, true);
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
    fn new(epoch: ShardEpoch, target: GroupId, confirms: bool) -> Self {
        Self {
            epoch,
            target,
            confirms,
            from: Segments::first(),
            found: 0,
            replaced: 0,
            is_shared: false,
            walk: None,
        }
    }
}
