//! Cleans: rewrites the live parts of segments that are mostly dead, blocks of files that lie in
//! too many places, and segments that were written narrower while NSDs were missing.

use crate::background::rewrite::Part;
use crate::background::{CLEAN_EVERY, Pace, count};
use crate::metanode::{Metanode, SCAN_PAGE};
use crate::pack;
use model::map::NsdState;
use model::{DataId, Extent, ExtentKind, FilesetId, InodeId, MapEpoch, Result, SegmentId, limits};
use namespace::{Key, Record, Segment, Table};
use pool::MemberState;
use shard::successor;
use std::collections::BTreeSet;
use std::sync::Arc;
use world::Instant;

/// Pages of segments, and of extents, that one gentle round looks at.
const PAGES_MAX: usize = 8;
/// Segments that one round cleans.
const SEGMENTS_MAX: usize = 64;
/// A block in more extents than this is rewritten, if that halves them.
const BLOCK_EXTENTS_MAX: usize = 64;
/// Extents that are looked through for those of one segment.
const LOOK_MAX: usize = 8192;
/// What counts as a block here.
const BLOCK_BYTES: u64 = limits::BLOCK_BYTES_DEFAULT as u64;

/// Where the passes are.
#[derive(Default)]
pub(crate) struct Progress {
    segments: Option<Key>,
    extents: Option<Key>,
    last_pass: Option<Instant>,
    /// The pool for which the running pass over segments widens narrow ones, if it does.
    widening: Option<Width>,
    /// The pool for which narrow segments were last widened: once is enough, since a segment
    /// that became narrow again met an NSD in trouble.
    widened: Option<Width>,
    /// [`pool::Pool::changes_of_members`] when the first pass began.
    changes_at_start: Option<u64>,
    /// The pool for which widening was last begun.
    tried: Option<Width>,
    /// Narrow segments that the running pass met.
    narrow: u64,
    /// Those that the pass before it met: without progress there is no further pass.
    narrow_before: Option<u64>,
}

/// What decides how wide segments can be: the map, and the changes of members under it.
type Width = (MapEpoch, u64);

impl Progress {
    /// The pass that met `narrow` segments has ended. The next one looks whether they are wide now.
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

impl Metanode {
    /// Whether something was written narrow since NSDs came or went, and hasn't been widened.
    pub(super) fn is_narrow_left(&self) -> bool {
        let came_or_went = {
            let clean = &self.background.memory.lock().clean;
            clean.narrow_before.is_some()
                || clean
                    .changes_at_start
                    .is_some_and(|changes| changes != self.pool.changes_of_members())
        };
        self.shard().tree().is_compacting() || (came_or_went && !self.is_widened())
    }

    /// Whether everything that can be widened in the pool as it is now has been.
    pub(super) fn is_widened(&self) -> bool {
        // One that is only late now will be asked again soon.
        let is_there =
            |state: MemberState| matches!(state, MemberState::Online | MemberState::Suspect);
        !self.is_pool(is_there) || self.background.memory.lock().clean.widened == Some(self.width())
    }

    fn width(&self) -> Width {
        (self.pool.map().epoch, self.pool.changes_of_members())
    }

    /// Looks at some segments and blocks, cleans what is worth it. Answers how many extents
    /// were replaced.
    pub(super) async fn clean_some(&self, pace: Pace) -> Result<u64> {
        let now = self.world.now();
        let widens_from_here = {
            let mut memory = self.background.memory.lock();
            let progress = &mut memory.clean;
            let is_between = progress.segments.is_none() && progress.extents.is_none();
            let width = self.width();
            progress.changes_at_start.get_or_insert(width.1);
            let widens = progress.widened != Some(width) && self.is_pool_whole();
            let is_due = progress
                .last_pass
                .is_none_or(|last| now - last >= CLEAN_EVERY)
                || (widens && (progress.narrow_before.is_some() || progress.tried != Some(width)));
            if pace == Pace::Gentle && is_between && !is_due {
                return Ok(0);
            }
            if is_between {
                progress.last_pass = Some(now);
                progress.widening = widens.then_some(width);
                if widens {
                    progress.tried = Some(width);
                }
                progress.narrow = 0;
            }
            is_between && progress.widening.is_some()
        };
        if widens_from_here {
            self.widen_tables().await?;
        }
        let pages = if pace == Pace::Drain {
            usize::MAX
        } else {
            PAGES_MAX
        };
        let replaced = self.clean_segments(pages).await? + self.clean_blocks(pages).await?;
        Ok(replaced)
    }

    /// Whether segments written now are as wide as the pool's scheme.
    fn is_pool_whole(&self) -> bool {
        self.is_pool(|state| state == MemberState::Online)
    }

    /// Whether all NSDs that are kept are in such a state, and nothing moves between them.
    fn is_pool(&self, is_good: impl Fn(MemberState) -> bool) -> bool {
        let states = self.pool.nsd_states();
        let mut kept = states
            .iter()
            .filter(|state| state.entry.state != NsdState::Lost);
        kept.all(|state| is_good(state.member)) && self.pool.groups().moving().is_empty()
    }

    /// Tables of the tree that were written with less redundancy than they should have are
    /// written anew: the segments of files find their extents, tables only their compaction.
    async fn widen_tables(&self) -> Result<()> {
        let shard = self.shard();
        let tables = shard.catalog().live_segments();
        let narrow = tables.iter().filter(|place| self.pool.is_narrow(place));
        let count = narrow.count();
        if count > 0 && shard.tree().compact().await? {
            tracing::info!(count, "tables with too little redundancy are written anew");
        }
        Ok(())
    }

    async fn clean_segments(&self, pages: usize) -> Result<u64> {
        let shard = self.shard();
        let (first, to) = Table::Segments.range();
        let mut from = self
            .background
            .memory
            .lock()
            .clean
            .segments
            .take()
            .unwrap_or(first);
        let widening = self.background.memory.lock().clean.widening;
        let mut parts = Vec::new();
        let (mut chosen, mut narrow) = (0, 0);
        for _ in 0..pages {
            let page = shard.scan(&from, &to, SCAN_PAGE).await?;
            if let Some((last, _)) = page.last() {
                from = successor(last);
            }
            for (key, record) in &page {
                let (Key::Segment(id), Record::Segment(segment)) = (key, record) else {
                    continue;
                };
                let is_narrow = widening.is_some() && self.pool.is_narrow(&segment.place);
                if chosen == SEGMENTS_MAX || !(is_narrow || is_mostly_dead(segment)) {
                    self.background.memory.lock().clean.narrow += u64::from(is_narrow);
                    continue;
                }
                let live = self.live_parts(*id, segment).await?;
                if is_narrow && !live.is_empty() {
                    self.background.memory.lock().clean.narrow += 1;
                    narrow += 1;
                }
                if (is_narrow && !live.is_empty()) || is_worth_it(&live, segment) {
                    chosen += 1;
                    parts.extend(live);
                }
            }
            let ended = page.len() < SCAN_PAGE;
            let mut memory = self.background.memory.lock();
            memory.clean.segments = (!ended).then(|| from.clone());
            if ended {
                if let Some(width) = memory.clean.widening.take() {
                    memory.clean.end_widening(width);
                }
                break;
            }
        }
        if parts.is_empty() {
            return Ok(0);
        }
        let done = self.rewrite(parts).await?;
        if narrow > 0 {
            tracing::info!(
                segments = narrow,
                extents = done.replaced,
                "data with too little redundancy was written anew"
            );
        }
        count(&self.background.counts.segments_cleaned, chosen as u64);
        Ok(done.replaced)
    }

    /// The extents that point at a segment, as far as they are found: in the file that it was
    /// published for, and in those that its table names if it is packed.
    async fn live_parts(&self, id: SegmentId, segment: &Arc<Segment>) -> Result<Vec<Part>> {
        let mut places: BTreeSet<(InodeId, DataId, u64)> = BTreeSet::new();
        places.insert((segment.inode, segment.data, segment.file_offset));
        // What can't be read now is for repair; cleaning waits.
        let Ok(plain) = self.pool.read_whole(&segment.place).await else {
            return Ok(Vec::new());
        };
        for entry in pack::decode(&plain).unwrap_or_default().unwrap_or_default() {
            places.insert((entry.inode, entry.data, entry.file_offset));
        }
        let mut found: BTreeSet<(InodeId, DataId, u64)> = BTreeSet::new();
        let mut parts = Vec::new();
        let mut left = segment.live;
        for (inode, data, offset) in places {
            if left == 0 {
                break;
            }
            let Some(record) = self.inode_record(inode).await? else {
                continue;
            };
            // Clients don't know data ids when they pack: what points here now is what counts.
            let data = if data == DataId(0) { record.data } else { data };
            if record.data != data {
                continue;
            }
            let mut extents: Vec<Extent> = Vec::new();
            let mut looked = 0;
            self.each_extent(inode, data, offset, |extent| {
                looked += 1;
                if points_at(extent, id) && found.insert((inode, data, extent.offset)) {
                    left = left.saturating_sub(extent.length);
                    extents.push(extent.clone());
                }
                left > 0 && looked < LOOK_MAX
            })
            .await?;
            for run in extents.chunk_by(|a, b| a.end() == b.offset) {
                parts.push(Part {
                    inode,
                    data,
                    extents: run.to_vec(),
                });
            }
        }
        Ok(parts)
    }

    async fn clean_blocks(&self, pages: usize) -> Result<u64> {
        let shard = self.shard();
        let (first, to) = Table::Extents.range();
        let mut from = self
            .background
            .memory
            .lock()
            .clean
            .extents
            .take()
            .unwrap_or(first);
        let mut block = Block::default();
        let mut parts = Vec::new();
        let mut ended = false;
        for _ in 0..pages {
            let page = shard.scan(&from, &to, SCAN_PAGE).await?;
            ended = page.len() < SCAN_PAGE;
            let Some((last, _)) = page.last() else { break };
            from = successor(last);
            for (key, record) in &page {
                let (Key::Extent { fileset, data, .. }, Record::Extent(extent)) = (key, record)
                else {
                    continue;
                };
                let place = (*fileset, *data, extent.offset / BLOCK_BYTES);
                if block.place != Some(place) {
                    parts.extend(self.scattered(std::mem::take(&mut block)).await?);
                    block.place = Some(place);
                }
                block.extents.push((**extent).clone());
            }
            if ended || parts.len() >= SEGMENTS_MAX {
                break;
            }
        }
        parts.extend(self.scattered(block).await?);
        self.background.memory.lock().clean.extents = (!ended).then_some(from);
        Ok(if parts.is_empty() {
            0
        } else {
            self.rewrite(parts).await?.replaced
        })
    }

    /// The parts of a block to rewrite, if it is worth it.
    async fn scattered(&self, block: Block) -> Result<Vec<Part>> {
        let Some((fileset, data, _)) = block.place else {
            return Ok(Vec::new());
        };
        let extents: Vec<Extent> = block
            .extents
            .into_iter()
            .filter(|extent| segment_of(extent).is_some())
            .collect();
        let runs: Vec<Vec<Extent>> = extents
            .chunk_by(|a, b| a.end() == b.offset)
            .map(<[Extent]>::to_vec)
            .collect();
        if extents.len() <= BLOCK_EXTENTS_MAX || runs.len() * 2 > extents.len() {
            return Ok(Vec::new());
        }
        let Some(inode) = self.inode_of(fileset, data, &extents).await? else {
            return Ok(Vec::new());
        };
        Ok(runs
            .into_iter()
            .map(|extents| Part {
                inode,
                data,
                extents,
            })
            .collect())
    }

    /// The inode whose data id this is: a segment of it tells for whom it was published.
    async fn inode_of(
        &self,
        fileset: FilesetId,
        data: DataId,
        extents: &[Extent],
    ) -> Result<Option<InodeId>> {
        for extent in extents.iter().take(BLOCK_EXTENTS_MAX) {
            let Some(segment) = segment_of(extent) else {
                continue;
            };
            let Some(Record::Segment(record)) = self.shard().record(&Key::Segment(segment)).await?
            else {
                continue;
            };
            if record.data == data && record.inode.fileset() == fileset {
                let is_current = self
                    .inode_record(record.inode)
                    .await?
                    .is_some_and(|inode| inode.data == data);
                return Ok(is_current.then_some(record.inode));
            }
        }
        Ok(None)
    }
}

#[derive(Default)]
struct Block {
    place: Option<(FilesetId, DataId, u64)>,
    extents: Vec<Extent>,
}

/// Whether less than half of the units are live.
fn is_mostly_dead(segment: &Segment) -> bool {
    units(segment.live) * 2 < units(u64::from(segment.place.length))
}

/// Whether rewriting frees more than it takes. A pack of many tiny ranges is mostly table, so
/// that by its live bytes alone it would be rewritten for ever.
fn is_worth_it(parts: &[Part], segment: &Segment) -> bool {
    let extents = || parts.iter().flat_map(|part| &part.extents);
    let bytes: u64 = extents().map(|extent| extent.length).sum();
    let table = extents().count() * pack::ENTRY_BYTES + pack::FOOTER_BYTES;
    bytes > 0 && units(bytes + table as u64) * 2 < units(u64::from(segment.place.length))
}

fn units(bytes: u64) -> u64 {
    bytes.div_ceil(u64::from(limits::UNIT_BYTES))
}

fn segment_of(extent: &Extent) -> Option<SegmentId> {
    match &extent.kind {
        ExtentKind::Data { place, .. } => Some(place.segment),
        _ => None,
    }
}

fn points_at(extent: &Extent, segment: SegmentId) -> bool {
    segment_of(extent) == Some(segment)
}
