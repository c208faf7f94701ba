//! Cleans: rewrites the live parts of mostly dead segments, blocks of files that are scattered over
//! too many places, and segments written narrower while NSDs were missing.

use crate::background::rewrite::Part;
use crate::background::sparse::{Need, STEP_BYTES, frees};
use crate::background::{CLEAN_EVERY, Pace, count};
use crate::metanode::{Metanode, SCAN_PAGE};
use model::map::NsdState;
use model::{
    CommitNumber, DataId, Extent, ExtentKind, FilesetId, InodeId, MapEpoch, Result, SegmentId,
    limits,
};
use namespace::{Key, Record, Segment, Table};
use pool::MemberState;
use shard::successor;
use world::Instant;

/// Pages of segments, and of extents, examined by one gentle round.
const PAGES_MAX: usize = 8;
/// Segments whose live parts one round searches for.
const SEGMENTS_MAX: usize = 64;
/// A block in more extents than this is rewritten, if that halves them.
const BLOCK_EXTENTS_MAX: usize = 64;
/// Bytes of a block for this purpose.
const BLOCK_BYTES: u64 = limits::BLOCK_BYTES_DEFAULT as u64;

/// Progress of the passes.
#[derive(Default)]
pub(crate) struct Progress {
    segments: Option<Key>,
    extents: Option<Key>,
    last_pass: Option<Instant>,
    /// The newest durable commit when the last pass began.
    last_durable: Option<CommitNumber>,
    /// Blocks changed after this commit aren't resting: they were published since the previous pass
    /// began. In the first pass no block is known to rest.
    resting: Option<CommitNumber>,
    /// The pool for which the running pass over segments widens narrow ones, if it does.
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

/// The possible width of segments depends on this: the map, and the changes of members under it.
pub(super) type Width = (MapEpoch, u64);

impl Progress {
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

impl Metanode {
    /// Whether segments were written narrow since NSDs came or went, and haven't been widened.
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

    /// Whether everything that can be widened in the current pool has been.
    pub(super) fn is_widened(&self) -> bool {
        // A suspect member is only late and will be used again soon.
        let is_there =
            |state: MemberState| matches!(state, MemberState::Online | MemberState::Suspect);
        !self.is_pool(is_there) || self.background.memory.lock().clean.widened == Some(self.width())
    }

    pub(super) fn width(&self) -> Width {
        (self.pool.map().epoch, self.pool.changes_of_members())
    }

    /// Examines some segments and blocks and cleans those worth it. Returns the number of extents
    /// replaced.
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
                let durable = self.shard().durable();
                progress.resting = progress.last_durable.replace(durable);
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
        let mut replaced = self.clean_segments(pages).await?;
        // Reassembling blocks helps only readers; it takes space before it frees any.
        if !self.is_short() {
            replaced += self.clean_blocks(pages, pace).await?;
        }
        Ok(replaced)
    }

    /// Whether new segments are as wide as the pool's scheme.
    fn is_pool_whole(&self) -> bool {
        self.is_pool(|state| state == MemberState::Online)
    }

    /// Whether all NSDs of the map are in such a state, and no slot is moving.
    fn is_pool(&self, is_good: impl Fn(MemberState) -> bool) -> bool {
        let states = self.pool.nsd_states();
        let mut kept = states
            .iter()
            .filter(|state| state.entry.state != NsdState::Lost);
        kept.all(|state| is_good(state.member)) && self.pool.groups().moving().is_empty()
    }

    /// Rewrites tables of the tree that have too little redundancy. Segments of files can be
    /// matched to their extents; tables are only replaced by compaction.
    async fn widen_tables(&self) -> Result<()> {
        let shard = self.shard();
        let tables = shard.catalog().live_segments();
        let narrow = tables.iter().filter(|place| self.pool.is_narrow(place));
        let count = narrow.count();
        if count > 0 && shard.tree().compact().await? {
            tracing::info!(count, "rewriting tables with too little redundancy");
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
        let width = self.width();
        let mut parts = Vec::new();
        let (mut looked, mut chosen, mut narrow) = (0, 0, 0);
        let (mut bytes, mut replaced) = (0, 0);
        let mut ended = false;
        'pages: for _ in 0..pages {
            let page = shard.scan(&from, &to, SCAN_PAGE).await?;
            for (key, record) in &page {
                let (Key::Segment(id), Record::Segment(segment)) = (key, record) else {
                    continue;
                };
                let is_narrow = widening.is_some() && self.pool.is_narrow(&segment.place);
                let is_stubborn = || {
                    self.background
                        .memory
                        .lock()
                        .sparse
                        .is_stubborn(*id, segment, width)
                };
                if !is_narrow && (!is_mostly_dead(segment) || is_stubborn()) {
                    continue;
                }
                if looked == SEGMENTS_MAX {
                    from = key.clone();
                    break 'pages;
                }
                looked += 1;
                let mut live = self.live_parts(*id, segment).await?;
                let widens = is_narrow && !live.parts.is_empty();
                if widens {
                    self.background.memory.lock().clean.narrow += 1;
                    narrow += 1;
                }
                if !widens && !frees(&live, segment, Need::Soon) {
                    let mut memory = self.background.memory.lock();
                    memory.sparse.note_stubborn(*id, segment, width);
                    continue;
                }
                // Unreadable data is left to repair; cleaning skips it.
                if self.load(&segment.place, &mut live).await.is_err() {
                    continue;
                }
                chosen += 1;
                bytes += live.bytes();
                parts.extend(live.parts);
                if bytes >= STEP_BYTES {
                    bytes = 0;
                    replaced += self.rewrite(std::mem::take(&mut parts)).await?.replaced;
                }
            }
            if let Some((last, _)) = page.last() {
                from = successor(last);
            }
            ended = page.len() < SCAN_PAGE;
            if ended {
                break;
            }
        }
        {
            let mut memory = self.background.memory.lock();
            memory.clean.segments = (!ended).then_some(from);
            if ended && let Some(width) = memory.clean.widening.take() {
                memory.clean.end_widening(width);
            }
        }
        if !parts.is_empty() {
            replaced += self.rewrite(parts).await?.replaced;
        }
        if narrow > 0 {
            tracing::info!(
                segments = narrow,
                extents = replaced,
                "rewrote data with too little redundancy"
            );
        }
        count(&self.background.counts.segments_cleaned, chosen);
        // An unfinished pass means more work.
        let goes_on = !ended && looked > 0;
        Ok(replaced.max(u64::from(goes_on)))
    }

    /// Rewrites blocks scattered over too many places, once they haven't changed since the previous
    /// pass began: a block under random overwrites would be rewritten completely for every few
    /// changed pages, and be scattered again before it is read.
    async fn clean_blocks(&self, pages: usize, pace: Pace) -> Result<u64> {
        let resting = match pace {
            Pace::Drain => CommitNumber(u64::MAX),
            Pace::Gentle => {
                let resting = self.background.memory.lock().clean.resting;
                resting.unwrap_or(CommitNumber(0))
            }
        };
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
                    parts.extend(self.scattered(std::mem::take(&mut block), resting).await?);
                    block.place = Some(place);
                }
                block.extents.push((**extent).clone());
            }
            if ended || parts.len() >= SEGMENTS_MAX {
                break;
            }
        }
        parts.extend(self.scattered(block, resting).await?);
        self.background.memory.lock().clean.extents = (!ended).then_some(from);
        Ok(if parts.is_empty() {
            0
        } else {
            self.rewrite(parts).await?.replaced
        })
    }

    /// The parts of a block to rewrite, if worth it.
    async fn scattered(&self, block: Block, resting: CommitNumber) -> Result<Vec<Part>> {
        let Some((fileset, data, _)) = block.place else {
            return Ok(Vec::new());
        };
        if block.extents.iter().any(|extent| extent.birth > resting) {
            return Ok(Vec::new());
        }
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
                bytes: None,
            })
            .collect())
    }

    /// The inode of a data id: one of its segments says for which inode it was published.
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

pub(super) fn units(bytes: u64) -> u64 {
    bytes.div_ceil(u64::from(limits::UNIT_BYTES))
}

fn segment_of(extent: &Extent) -> Option<SegmentId> {
    match &extent.kind {
        ExtentKind::Data { place, .. } => Some(place.segment),
        _ => None,
    }
}
