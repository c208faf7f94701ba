//! Cleaning for a pool that runs short: starts with the segments that free most for their cost, in
//! small steps that fit into the space kept for cleaning, so that writers get space at the pace of
//! freeing.

use crate::background::counts::count;
use crate::background::freeing::Freeing;
use crate::background::live::{Chosen, Live};
use crate::background::rewrite::Part;
use crate::background::width::{Width, width};
use crate::host::SCAN_PAGE;
use model::{Result, SegmentId, limits};
use namespace::{Key, Record, Segment, Table};
use pool::pack;
use shard::successor;
use std::collections::{BTreeMap, BTreeSet};
use world::Instant;

/// Most live bytes rewritten by one step.
pub(in crate::background) const STEP_BYTES: u64 = 16 << 20;
/// A step's copies need space until the originals are deleted: at most this fraction of the free,
/// unreserved space; less if even that is too much.
pub(super) const STEP_PARTS: [u64; 2] = [4, 32];
/// Most candidates remembered: the best ones found.
const CANDIDATES_MAX: usize = 4096;
/// Pages of segments examined before the best of them are taken.
const WINDOW_PAGES: usize = 64;
/// After a walk over all segments that found nothing, the next one waits this many times its
/// duration ...
const REST: u32 = 10;
/// ... or until there was one change per this many segments.
const SEGMENTS_PER_CHANGE: u64 = 64;
/// Most segments that one step examines without success: a table may name as many files as it has
/// ranges, and writers that need space wait for each other's steps.
const REFUSED_MAX: usize = 64;
/// Most segments remembered as impossible to clean.
const STUBBORN_MAX: usize = 65_536;

/// How urgently space is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::background) enum Need {
    /// The pool runs short: clean segments that are half dead.
    Soon,
    /// A writer waits: clean everything that frees more than it takes.
    Now,
}

impl Need {
    /// How many eighths of the units must be dead.
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

/// Result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cleaned {
    /// Extents were replaced.
    Some,
    /// Nothing is left that is worth cleaning.
    Nothing,
    /// Nothing so far; the next step continues the search.
    NotYet,
}

/// Knowledge about partly dead segments.
#[derive(Default)]
pub(super) struct Sparse {
    /// Candidates, by their live share in thousandths.
    best: BTreeSet<(u64, SegmentId)>,
    walk: Option<Walk>,
    /// The last walk that found nothing.
    vain: Option<Vain>,
    /// Segments that couldn't be cleaned, with their live bytes and the NSDs at that time: other
    /// files share them, or they couldn't be read.
    stubborn: BTreeMap<SegmentId, (u64, Width)>,
    /// Candidates found stubborn since the last success or the last walk without success.
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

/// Delays the next walk after one that found nothing until a time has passed or enough has changed;
/// otherwise a full pool would do nothing else.
#[derive(Clone, Copy)]
struct Vain {
    until: Instant,
    changes: u64,
}

impl Sparse {
    /// Notes a segment that can't be cleaned until more of it dies or NSDs change.
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

    /// A walk has examined all segments. Returns whether another one makes sense: this one found
    /// candidates, and not only ones whose stubbornness was forgotten.
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

impl Freeing {
    /// Rewrites the live parts of some segments, so that the segments die.
    ///
    /// The caller holds `freeing`.
    pub(super) async fn clean_sparse(&self, need: Need, step_part: u64) -> Result<Cleaned> {
        let mut parts: Vec<Part> = Vec::new();
        let (mut bytes, mut segments, mut too_large, mut refused) = (0, 0, 0, 0);
        let width = width(self.host.pool());
        let space = self.host.pool().usage();
        let most = STEP_BYTES.min(space.free.saturating_sub(space.held) / step_part);
        while bytes < most {
            let Some(id) = self.next_sparse(parts.is_empty() && too_large == 0).await? else {
                break;
            };
            let found = self.host.shard().record(&Key::Segment(id)).await?;
            let Some(Record::Segment(segment)) = found else {
                continue;
            };
            if !need.is_met_by(segment.live, &segment) {
                // The best one left, kept for more urgent needs.
                self.sparse.lock().offer(id, &segment, width);
                break;
            }
            if bytes + segment.live > most {
                // Its turn comes once the others are deleted; alone it must fit somehow.
                if !parts.is_empty() {
                    self.sparse.lock().offer(id, &segment, width);
                    break;
                }
                if segment.live > most * (step_part - 1) {
                    too_large += 1;
                    continue;
                }
            }
            let chosen = [Chosen {
                id,
                segment: (*segment).clone(),
            }];
            let mut found = self.live.live_parts(&chosen).await?;
            let mut live = found.remove(0);
            if !frees(&live, &segment, need)
                || self.live.load(&segment.place, &mut live).await.is_err()
            {
                let mut sparse = self.sparse.lock();
                sparse.note_stubborn(id, &segment, width);
                sparse.refused += 1;
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
        // Neighbours in a file become neighbours in the pack, and one extent.
        parts.sort_by_key(Part::place);
        let done = self.rewriter.rewrite(parts).await?;
        count(&self.counts.segments_cleaned, segments);
        if done.replaced == 0 {
            return Ok(Cleaned::Nothing);
        }
        self.sparse.lock().refused = 0;
        Ok(Cleaned::Some)
    }

    /// The best candidate, after a walk if none is remembered and a walk is allowed.
    async fn next_sparse(&self, may_walk: bool) -> Result<Option<SegmentId>> {
        loop {
            let best = self.sparse.lock().best.pop_first();
            if let Some((_, id)) = best {
                return Ok(Some(id));
            }
            if !may_walk || !self.walk_segments().await? {
                return Ok(None);
            }
        }
    }

    /// Examines some segments. False once all were examined without success.
    async fn walk_segments(&self) -> Result<bool> {
        let (first, to) = Table::Segments.range();
        let shard = self.host.shard();
        let (now, changes) = (self.host.world().now(), shard.changes());
        let width = width(self.host.pool());
        let mut walk = {
            let mut sparse = self.sparse.lock();
            let rests = |vain: Vain| now < vain.until && changes < vain.changes;
            if sparse.vain.is_some_and(rests) {
                return Ok(false);
            }
            sparse.walk.take().unwrap_or(Walk {
                from: first,
                begun: now,
                changes,
                segments: 0,
                found: false,
            })
        };
        for _ in 0..WINDOW_PAGES {
            let page = shard.scan(&walk.from, &to, SCAN_PAGE).await?;
            let now = self.host.world().now();
            let mut sparse = self.sparse.lock();
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
        self.sparse.lock().walk = Some(walk);
        Ok(true)
    }
}

/// Units of storage that so many bytes take.
pub(in crate::background) fn units(bytes: u64) -> u64 {
    bytes.div_ceil(u64::from(limits::UNIT_BYTES))
}

/// Whether rewriting frees the segment, and more space than it takes. A pack of many tiny ranges is
/// mostly table: judged by its live bytes alone, it would be rewritten forever.
pub(in crate::background) fn frees(live: &Live, segment: &Segment, need: Need) -> bool {
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

    /// A segment with a quarter of its bytes live.
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
        panic!("walks never end");
    }
}
