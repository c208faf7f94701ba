//! Cleans: rewrites the live parts of mostly dead segments, and segments written narrower while NSDs
//! were missing.

use crate::background::Pace;
use crate::background::counts::{Counts, count};
use crate::background::freeing::{Freeing, Need, frees, units};
use crate::background::rewrite::Rewriter;
use crate::background::segments::{SEGMENTS_MAX, Segments};
use crate::background::width::{Width, width};
use crate::host::Host;
use model::Result;
use model::map::NsdState;
use namespace::{Key, Segment};
use parking_lot::Mutex;
use pool::MemberState;
use std::sync::Arc;
use std::time::Duration;
use world::Instant;

/// A pass begins this often.
const EVERY: Duration = Duration::from_secs(30);
/// Pages of segments examined by one gentle round.
const PAGES_MAX: usize = 8;
/// A pass begins early if this many bytes, and this fraction of those in use, have died since the
/// last one. A pass reads the records of all segments, some 0.5 s per TiB.
const DIED_MIN: u64 = 128 << 20;
const DIED_PART: u64 = 256;

/// Progress of the passes.
#[derive(Default)]
struct Progress {
    /// Where the running pass continues.
    next: Option<Key>,
    /// When the last pass began.
    begun: Option<Instant>,
    /// The fewest bytes in use that nothing points at, since then.
    unfreed: Option<u64>,
    /// The pool for which the running pass widens narrow ones, if it does.
    widening: Option<Width>,
    /// The pool for which narrow segments were last widened. Once is enough: a segment that became
    /// narrow again met an NSD in trouble.
    widened: Option<Width>,
    /// [`pool::Pool::changes_of_members`] when the first pass began.
    changes_at_start: Option<u64>,
    /// The pool for which widening was last started.
    tried: Option<Width>,
    /// Narrow segments found by the running pass.
    narrow: u64,
    /// Those found by the pass before it: without progress there is no further pass.
    narrow_before: Option<u64>,
}

impl Progress {
    /// Whether so much has died since the last pass that the next one is worth its cost. Random
    /// overwrites leave a little in each of many segments.
    fn has_much_died(&mut self, unfreed: u64, used: u64) -> bool {
        let least = self.unfreed.unwrap_or(unfreed).min(unfreed);
        self.unfreed = Some(least);
        unfreed - least >= DIED_MIN.max(used / DIED_PART)
    }

    /// The pass that found `narrow` segments has ended. The next one checks whether they are wide
    /// now.
    fn end_widening(&mut self, width: Width) {
        let makes_progress = self.narrow_before.is_none_or(|before| self.narrow < before);
        if self.narrow > 0 && makes_progress {
            self.narrow_before = Some(self.narrow);
        } else {
            self.narrow_before = None;
            self.widened = Some(width);
        }
    }
}

/// Cleans in passes over all segments.
pub(super) struct Clean {
    host: Arc<Host>,
    segments: Segments,
    freeing: Arc<Freeing>,
    counts: Arc<Counts>,
    progress: Mutex<Progress>,
}

impl Clean {
    pub(super) fn new(
        host: Arc<Host>,
        rewriter: Rewriter,
        freeing: Arc<Freeing>,
        counts: Arc<Counts>,
    ) -> Self {
        Self {
            segments: Segments::new(host.clone(), rewriter),
            host,
            freeing,
            counts,
            progress: Mutex::default(),
        }
    }

    /// Whether segments were written narrow since NSDs came or went, and haven't been widened.
    pub(super) fn is_narrow_left(&self) -> bool {
        let came_or_went = {
            let clean = self.progress.lock();
            clean.narrow_before.is_some()
                || clean
                    .changes_at_start
                    .is_some_and(|changes| changes != self.host.pool().changes_of_members())
        };
        self.host.shard().tree().is_compacting() || (came_or_went && !self.is_widened())
    }

    /// Whether everything that can be widened in the current pool has been.
    pub(super) fn is_widened(&self) -> bool {
        // A suspect member is only late and will be used again soon.
        let is_there =
            |state: MemberState| matches!(state, MemberState::Online | MemberState::Suspect);
        !self.is_pool(is_there) || self.progress.lock().widened == Some(width(self.host.pool()))
    }

    /// Examines some segments and cleans those worth it. Returns the number of extents replaced.
    pub(super) async fn clean_segments(&self, pace: Pace) -> Result<u64> {
        if !self.begin_pass(pace).await? {
            return Ok(0);
        }
        let pages = if pace == Pace::Drain {
            usize::MAX
        } else {
            PAGES_MAX
        };
        self.clean_pages(pages).await
    }

    /// Whether a pass is running; begins one if it is due.
    async fn begin_pass(&self, pace: Pace) -> Result<bool> {
        let now = self.host.world().now();
        let space = self.host.pool().usage();
        let used = space.capacity.saturating_sub(space.free);
        let width = width(self.host.pool());
        {
            let mut progress = self.progress.lock();
            if progress.next.is_some() {
                return Ok(true);
            }
            progress.changes_at_start.get_or_insert(width.1);
            let widens = progress.widened != Some(width) && self.is_pool_whole();
            let is_due = progress.begun.is_none_or(|last| now - last >= EVERY)
                || progress.has_much_died(self.freeing.unfreed(), used)
                || (widens && (progress.narrow_before.is_some() || progress.tried != Some(width)));
            if pace == Pace::Gentle && !is_due {
                return Ok(false);
            }
            progress.begun = Some(now);
            progress.unfreed = None;
            progress.widening = widens.then_some(width);
            progress.narrow = 0;
            if !widens {
                return Ok(true);
            }
            progress.tried = Some(width);
        }
        self.widen_tables().await?;
        Ok(true)
    }

    /// Whether new segments are as wide as the pool's scheme.
    fn is_pool_whole(&self) -> bool {
        self.is_pool(|state| state == MemberState::Online)
    }

    /// Whether all NSDs of the map are in such a state, and no slot is moving.
    fn is_pool(&self, is_good: impl Fn(MemberState) -> bool) -> bool {
        let states = self.host.pool().nsd_states();
        let mut kept = states
            .iter()
            .filter(|state| state.entry.state != NsdState::Lost);
        kept.all(|state| is_good(state.member)) && self.host.pool().groups().moving().is_empty()
    }

    /// Rewrites tables of the tree that have too little redundancy. Segments of files can be
    /// matched to their extents; tables are only replaced by compaction.
    async fn widen_tables(&self) -> Result<()> {
        let shard = self.host.shard();
        let tables = shard.catalog().live_segments();
        let narrow = tables
            .iter()
            .filter(|place| self.host.pool().is_narrow(place));
        let count = narrow.count();
        if count > 0 && shard.tree().compact().await? {
            tracing::info!(count, "rewriting tables with too little redundancy");
        }
        Ok(())
    }

    async fn clean_pages(&self, pages: usize) -> Result<u64> {
        let mut from = self
            .progress
            .lock()
            .next
            .take()
            .unwrap_or_else(Segments::first);
        let widening = self.progress.lock().widening;
        let width = width(self.host.pool());
        let is_narrow =
            |segment: &Segment| widening.is_some() && self.host.pool().is_narrow(&segment.place);
        let mut chosen = Vec::new();
        let mut ended = false;
        for _ in 0..pages {
            let page =
                self.segments
                    .choose_from_page(&mut from, &mut chosen, u64::MAX, |id, segment| {
                        let is_stubborn = || self.freeing.is_stubborn(id, segment, width);
                        is_narrow(segment) || (is_mostly_dead(segment) && !is_stubborn())
                    });
            ended = page.await?;
            if ended || chosen.len() >= SEGMENTS_MAX {
                break;
            }
        }
        // An unfinished pass means more work.
        let goes_on = !ended && !chosen.is_empty();
        let mut narrow = 0;
        let done = self.segments.rewrite(chosen, |of, live| {
            if is_narrow(&of.segment) && !live.parts.is_empty() {
                narrow += 1;
                return true;
            }
            let frees = frees(live, &of.segment, Need::Soon);
            if !frees {
                self.freeing.note_stubborn(of.id, &of.segment, width);
            }
            frees
        });
        let done = done.await?;
        if narrow > 0 {
            tracing::info!(
                segments = narrow,
                extents = done.replaced,
                "rewrote data with too little redundancy"
            );
        }
        count(&self.counts.segments_cleaned, done.segments);
        {
            let mut progress = self.progress.lock();
            progress.narrow += narrow;
            progress.next = (!ended).then_some(from);
            if ended && let Some(width) = progress.widening.take() {
                progress.end_widening(width);
            }
        }
        Ok(done.replaced.max(u64::from(goes_on)))
    }
}

/// Whether less than half of the units are live.
fn is_mostly_dead(segment: &Segment) -> bool {
    units(segment.live) * 2 < units(u64::from(segment.place.length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_begins_early_when_much_has_died_since_the_last_one_and_not_for_what_was_dead() {
        const MIB: u64 = 1 << 20;
        let mut progress = Progress::default();
        let used = 1024 * MIB;
        assert!(!progress.has_much_died(5000 * MIB, used), "dead before");
        assert!(!progress.has_much_died(5100 * MIB, used));
        assert!(progress.has_much_died(5128 * MIB, used));
        // Freed meanwhile; then more dies.
        assert!(!progress.has_much_died(100 * MIB, used));
        assert!(!progress.has_much_died(227 * MIB, used));
        assert!(progress.has_much_died(228 * MIB, used));
        // Much is in use: a pass is expensive.
        assert!(!progress.has_much_died(1123 * MIB, 256 * 1024 * MIB));
        assert!(progress.has_much_died(1124 * MIB, 256 * 1024 * MIB));
    }
}
