//! Cleans for a pool that runs short: the segments first whose cleaning frees most for what it
//! costs, a little at a time, so that it fits into what is kept for it and writers get the space
//! at the pace at which it comes.

use crate::background::clean::units;
use crate::background::count;
use crate::background::live::Live;
use crate::background::rewrite::Part;
use crate::metanode::{Metanode, SCAN_PAGE};
use crate::pack;
use model::{Result, SegmentId};
use namespace::{Key, Record, Segment, Table};
use shard::successor;
use std::collections::{BTreeMap, BTreeSet};
use world::Instant;

/// Live bytes that one step writes anew at most.
pub(super) const STEP_BYTES: u64 = 16 << 20;
/// They lie beside what is there until that is deleted: no more than this part of what is free and
/// promised to nobody; less if even that turns out to be too much.
pub(super) const STEP_PARTS: [u64; 2] = [4, 32];
/// Candidates that are remembered, the best of those that were met.
const CANDIDATES_MAX: usize = 4096;
/// Pages of segments that are looked at before the best of them are taken.
const WINDOW_PAGES: usize = 64;
/// A walk over all segments that found nothing rests this many times as long as it took ...
const REST: u32 = 10;
/// ... or until one operation for so many segments has changed something.
const SEGMENTS_PER_CHANGE: u64 = 64;
/// Segments that are remembered because they can't be cleaned.
const STUBBORN_MAX: usize = 65_536;

/// How much is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// The pool runs short: segments that are half dead.
    Soon,
    /// Somebody waits: all that frees more than it takes.
    Now,
}

impl Need {
    /// Of eight units, so many must be dead.
    fn dead_eighths(self) -> u64 {
        match self {
            Self::Soon => 4,
            Self::Now => 1,
        }
    }

    fn is_met_by(self, live_bytes: u64, segment: &Segment) -> bool {
        let all = units(u64::from(segment.place.length));
        let dead = all.saturating_sub(units(live_bytes));
        dead > 0 && dead * 8 >= all * self.dead_eighths()
    }
}

/// What is known of segments that are partly dead.
#[derive(Default)]
pub(crate) struct Sparse {
    /// Candidates by how many thousandths of them are live.
    best: BTreeSet<(u64, SegmentId)>,
    walk: Option<Walk>,
    /// The last walk that found nothing.
    vain: Option<Vain>,
    /// Segments that couldn't be cleaned with so many live bytes: other files share them.
    stubborn: BTreeMap<SegmentId, u64>,
}

/// A walk over all segments.
struct Walk {
    from: Key,
    begun: Instant,
    /// [`shard::Shard::changes`] when it began.
    changes: u64,
    segments: u64,
    found: bool,
}

/// A walk that found nothing isn't repeated before it can find more, or a full pool would do
/// nothing else: not until a time has passed, or so much has changed.
#[derive(Clone, Copy)]
struct Vain {
    until: Instant,
    changes: u64,
}

impl Sparse {
    /// A segment can't be cleaned as long as nothing of it dies.
    pub(super) fn note_stubborn(&mut self, id: SegmentId, segment: &Segment) {
        if self.stubborn.len() >= STUBBORN_MAX {
            self.stubborn.clear();
        }
        self.stubborn.insert(id, segment.live);
    }

    pub(super) fn is_stubborn(&self, id: SegmentId, segment: &Segment) -> bool {
        self.stubborn.get(&id) == Some(&segment.live)
    }

    fn offer(&mut self, id: SegmentId, segment: &Segment) {
        if !Need::Now.is_met_by(segment.live, segment) || self.is_stubborn(id, segment) {
            return;
        }
        let share = segment.live * 1000 / u64::from(segment.place.length).max(1);
        self.best.insert((share, id));
        if self.best.len() > CANDIDATES_MAX {
            self.best.pop_last();
        }
    }
}

impl Metanode {
    /// Writes the live parts of some segments anew, so that the segments die. Answers how many
    /// extents were replaced; 0 when nothing is left that is worth it.
    ///
    /// Held under `freeing`.
    pub(super) async fn clean_sparse(&self, need: Need, step_part: u64) -> Result<u64> {
        let mut parts: Vec<Part> = Vec::new();
        let (mut bytes, mut segments, mut too_large) = (0, 0, 0);
        let space = self.pool.usage();
        let most = STEP_BYTES.min(space.free.saturating_sub(space.held) / step_part);
        while bytes < most {
            let Some(id) = self.next_sparse(parts.is_empty() && too_large == 0).await? else {
                break;
            };
            let found = self.shard().record(&Key::Segment(id)).await?;
            let Some(Record::Segment(segment)) = found else {
                continue;
            };
            if !need.is_met_by(segment.live, &segment) {
                // The best that there is. It is there for those who need more.
                self.background.memory.lock().sparse.offer(id, &segment);
                break;
            }
            if bytes + segment.live > most {
                // Its turn comes when the others are deleted; alone it must fit somehow.
                if !parts.is_empty() {
                    self.background.memory.lock().sparse.offer(id, &segment);
                    break;
                }
                if segment.live > most * (step_part - 1) {
                    too_large += 1;
                    continue;
                }
            }
            let mut live = self.live_parts(id, &segment).await?;
            if !frees(&live, &segment, need) || self.load(&segment.place, &mut live).await.is_err()
            {
                let mut memory = self.background.memory.lock();
                memory.sparse.note_stubborn(id, &segment);
                continue;
            }
            bytes += live.bytes();
            segments += 1;
            parts.extend(live.parts);
        }
        if parts.is_empty() {
            return Ok(0);
        }
        // Neighbours in a file come to lie side by side, and become one extent.
        parts.sort_by_key(Part::place);
        let done = self.rewrite(parts).await?;
        count(&self.background.counts.segments_cleaned, segments);
        Ok(done.replaced)
    }

    /// The best candidate, after a walk if none is remembered and one may begin.
    async fn next_sparse(&self, may_walk: bool) -> Result<Option<SegmentId>> {
        loop {
            let best = self.background.memory.lock().sparse.best.pop_first();
            if let Some((_, id)) = best {
                return Ok(Some(id));
            }
            if !may_walk || !self.walk_segments().await? {
                return Ok(None);
            }
        }
    }

    /// Looks at some segments. False when all were looked at in vain.
    async fn walk_segments(&self) -> Result<bool> {
        let (first, to) = Table::Segments.range();
        let shard = self.shard();
        let (now, changes) = (self.world.now(), shard.changes());
        let mut walk = {
            let mut memory = self.background.memory.lock();
            let rests = |vain: Vain| now < vain.until && changes < vain.changes;
            if memory.sparse.vain.is_some_and(rests) {
                return Ok(false);
            }
            memory.sparse.walk.take().unwrap_or(Walk {
                from: first,
                begun: now,
                changes,
                segments: 0,
                found: false,
            })
        };
        for _ in 0..WINDOW_PAGES {
            let page = shard.scan(&walk.from, &to, SCAN_PAGE).await?;
            let now = self.world.now();
            let mut memory = self.background.memory.lock();
            let sparse = &mut memory.sparse;
            for (key, record) in &page {
                if let (Key::Segment(id), Record::Segment(segment)) = (key, record) {
                    sparse.offer(*id, segment);
                }
            }
            walk.segments += page.len() as u64;
            walk.found |= !sparse.best.is_empty();
            match page.last() {
                Some((last, _)) if page.len() == SCAN_PAGE => walk.from = successor(last),
                _ => {
                    if !walk.found {
                        sparse.vain = Some(Vain {
                            until: now + (now - walk.begun) * REST,
                            changes: walk.changes + 1 + walk.segments / SEGMENTS_PER_CHANGE,
                        });
                    }
                    return Ok(walk.found);
                }
            }
        }
        self.background.memory.lock().sparse.walk = Some(walk);
        Ok(true)
    }
}

/// Whether rewriting frees the segment, and more than it takes. A pack of many tiny ranges is
/// mostly table, so that by its live bytes alone it would be rewritten for ever.
pub(super) fn frees(live: &Live, segment: &Segment, need: Need) -> bool {
    let table = live.extents().count() * pack::ENTRY_BYTES + pack::FOOTER_BYTES;
    let is_whole = live.unfound == 0 && !live.parts.is_empty();
    is_whole && need.is_met_by(live.bytes() + table as u64, segment)
}
