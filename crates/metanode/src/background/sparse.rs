//! Cleans for a pool that runs short: the segments first whose cleaning frees most for what it
//! costs, a little at a time, so that it fits into what is kept for it and writers get the space
//! at the pace at which it comes.

use crate::background::clean::{Width, units};
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
/// Segments that one step looks at in vain: a table may lead to as many files as it has ranges, and
/// those who need space wait for each other's steps.
const REFUSED_MAX: usize = 64;
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

/// What came of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cleaned {
    /// Extents were replaced.
    Some,
    /// Nothing is left that is worth it.
    Nothing,
    /// Nothing so far; the next step looks on.
    NotYet,
}

/// What is known of segments that are partly dead.
#[derive(Default)]
pub(crate) struct Sparse {
    /// Candidates by how many thousandths of them are live.
    best: BTreeSet<(u64, SegmentId)>,
    walk: Option<Walk>,
    /// The last walk that found nothing.
    vain: Option<Vain>,
    /// Segments that couldn't be cleaned with so many live bytes and these NSDs: other files share
    /// them, or they couldn't be read.
    stubborn: BTreeMap<SegmentId, (u64, Width)>,
    /// Candidates that turned out to be stubborn since something was cleaned or a walk ended in vain.
    refused: usize,
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
    /// A segment can't be cleaned as long as nothing of it dies and no NSD comes.
    pub(super) fn note_stubborn(&mut self, id: SegmentId, segment: &Segment, width: Width) {
        if self.stubborn.len() >= STUBBORN_MAX {
            self.stubborn.clear();
        }
        self.stubborn.insert(id, (segment.live, width));
    }

    pub(super) fn is_stubborn(&self, id: SegmentId, segment: &Segment, width: Width) -> bool {
        self.stubborn.get(&id) == Some(&(segment.live, width))
    }

    fn offer(&mut self, id: SegmentId, segment: &Segment, width: Width) {
        if !Need::Now.is_met_by(segment.live, segment) || self.is_stubborn(id, segment, width) {
            return;
        }
        let share = segment.live * 1000 / u64::from(segment.place.length).max(1);
        self.best.insert((share, id));
        if self.best.len() > CANDIDATES_MAX {
            self.best.pop_last();
        }
    }

    /// A walk has seen all segments. Whether another one makes sense: this one found something, and
    /// not only segments that were forgotten to be stubborn.
    fn end_walk(&mut self, walk: &Walk, now: Instant) -> bool {
        if walk.found && self.refused < STUBBORN_MAX {
            return true;
        }
        self.refused = 0;
        self.vain = Some(Vain {
            until: now + (now - walk.begun) * REST,
            changes: walk.changes + 1 + walk.segments / SEGMENTS_PER_CHANGE,
        });
        false
    }
}

impl Metanode {
    /// Writes the live parts of some segments anew, so that the segments die.
    ///
    /// Held under `freeing`.
    pub(super) async fn clean_sparse(&self, need: Need, step_part: u64) -> Result<Cleaned> {
        let mut parts: Vec<Part> = Vec::new();
        let (mut bytes, mut segments, mut too_large, mut refused) = (0, 0, 0, 0);
        let width = self.width();
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
                self.background
                    .memory
                    .lock()
                    .sparse
                    .offer(id, &segment, width);
                break;
            }
            if bytes + segment.live > most {
                // Its turn comes when the others are deleted; alone it must fit somehow.
                if !parts.is_empty() {
                    self.background
                        .memory
                        .lock()
                        .sparse
                        .offer(id, &segment, width);
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
                memory.sparse.note_stubborn(id, &segment, width);
                memory.sparse.refused += 1;
                refused += 1;
                if refused < REFUSED_MAX {
                    continue;
                }
                break;
            }
            bytes += live.bytes();
            segments += 1;
            parts.extend(live.parts);
        }
        if parts.is_empty() {
            return Ok(if refused < REFUSED_MAX {
                Cleaned::Nothing
            } else {
                Cleaned::NotYet
            });
        }
        // Neighbours in a file come to lie side by side, and become one extent.
        parts.sort_by_key(Part::place);
        let done = self.rewrite(parts).await?;
        count(&self.background.counts.segments_cleaned, segments);
        if done.replaced == 0 {
            return Ok(Cleaned::Nothing);
        }
        self.background.memory.lock().sparse.refused = 0;
        Ok(Cleaned::Some)
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
        let width = self.width();
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
                    sparse.offer(*id, segment, width);
                }
            }
            walk.segments += page.len() as u64;
            walk.found |= !sparse.best.is_empty();
            match page.last() {
                Some((last, _)) if page.len() == SCAN_PAGE => walk.from = successor(last),
                _ => return Ok(sparse.end_walk(&walk, now)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use model::{
        CommitNumber, DataId, GroupId, InodeId, MapEpoch, Scheme, SegmentPlace, SessionId,
    };

    /// A segment of which a quarter is live.
    fn quarter(id: SegmentId) -> Segment {
        Segment {
            place: SegmentPlace {
                segment: id,
                group: GroupId(0),
                scheme: Scheme::Replicate(1),
                skipped_slots: 0,
                missing: 0,
                length: 65_536,
                crc: 0,
            },
            live: 16_384,
            birth: CommitNumber(1),
            inode: InodeId::ROOT,
            data: DataId(1),
            file_offset: 0,
        }
    }

    #[test]
    fn the_search_ends_however_many_segments_cannot_be_cleaned() {
        let simulation = world::sim::Simulation::new(1);
        let now = simulation
            .run(async |world: world::World| world.now())
            .finished();
        let width = (MapEpoch(1), 0);
        let mut sparse = Sparse::default();
        let all = (STUBBORN_MAX + CANDIDATES_MAX) as u64 + 1;
        for _ in 0..2 * STUBBORN_MAX / CANDIDATES_MAX {
            let mut walk = Walk {
                from: Table::Segments.first(),
                begun: now,
                changes: 0,
                segments: all,
                found: false,
            };
            for counter in 0..all {
                let session = SessionId(1);
                let id = SegmentId { session, counter };
                sparse.offer(id, &quarter(id), width);
            }
            walk.found = !sparse.best.is_empty();
            while let Some((_, id)) = sparse.best.pop_first() {
                sparse.note_stubborn(id, &quarter(id), width);
                sparse.refused += 1;
            }
            if !sparse.end_walk(&walk, now) {
                return;
            }
        }
        panic!("walks go on for ever");
    }
}
