//! Joins blocks of files that are scattered over too many places, for their readers.

use crate::background::Pace;
use crate::background::rewrite::{Part, Rewriter, segment_of};
use crate::host::Host;
use crate::host::SCAN_PAGE;
use crate::room::Room;
use model::{CommitNumber, DataId, Extent, FilesetId, InodeId, Result, limits};
use namespace::{Key, Record, Table};
use parking_lot::Mutex;
use shard::successor;
use std::sync::Arc;
use std::time::Duration;
use world::Instant;

/// A pass begins this often.
const EVERY: Duration = Duration::from_secs(30);
/// Pages of extents examined by one gentle round.
const PAGES_MAX: usize = 8;
/// Most parts of one rewrite, unless one block has more.
const PARTS_MAX: usize = 64;
/// A block in more extents than this is rewritten, if that halves them.
const BLOCK_EXTENTS_MAX: usize = 64;
/// Bytes of a block for this purpose.
const BLOCK_BYTES: u64 = limits::BLOCK_BYTES_DEFAULT as u64;

/// Progress of the passes.
#[derive(Default)]
struct Progress {
    /// Where the running pass continues.
    next: Option<Key>,
    /// When the last pass began, and the newest durable commit then.
    begun: Option<(Instant, CommitNumber)>,
    /// Blocks changed after this commit aren't resting: they were published since the previous pass
    /// began. In the first pass no block is known to rest.
    resting: CommitNumber,
}

#[derive(Default)]
struct Block {
    place: Option<(FilesetId, DataId, u64)>,
    extents: Vec<Extent>,
}

/// Joins blocks in passes.
pub(super) struct Blocks {
    host: Arc<Host>,
    rewriter: Rewriter,
    room: Arc<Room>,
    progress: Mutex<Progress>,
}

impl Blocks {
    pub(super) fn new(host: Arc<Host>, rewriter: Rewriter, room: Arc<Room>) -> Self {
        Self {
            host,
            rewriter,
            room,
            progress: Mutex::default(),
        }
    }

    /// Rewrites blocks scattered over too many places, once they haven't changed since the previous
    /// pass began: a block under random overwrites would be rewritten completely for every few
    /// changed pages, and be scattered again before it is read.
    pub(super) async fn join_blocks(&self, pace: Pace) -> Result<u64> {
        // It takes space before it frees any.
        if self.room.is_short() {
            return Ok(0);
        }
        let shard = self.host.shard();
        let (first, to) = Table::Extents.range();
        let now = self.host.world().now();
        let (mut from, resting) = {
            let mut progress = self.progress.lock();
            let from = match progress.next.take() {
                Some(from) => from,
                None => {
                    let last = progress.begun;
                    let is_due = last.is_none_or(|(begun, _)| now - begun >= EVERY);
                    if pace == Pace::Gentle && !is_due {
                        return Ok(0);
                    }
                    progress.begun = Some((now, shard.durable()));
                    progress.resting = last.map_or(CommitNumber(0), |(_, durable)| durable);
                    first
                }
            };
            (from, progress.resting)
        };
        let (pages, resting) = match pace {
            Pace::Drain => (usize::MAX, CommitNumber(u64::MAX)),
            Pace::Gentle => (PAGES_MAX, resting),
        };
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
            if ended || parts.len() >= PARTS_MAX {
                break;
            }
        }
        parts.extend(self.scattered(block, resting).await?);
        self.progress.lock().next = (!ended).then_some(from);
        Ok(if parts.is_empty() {
            0
        } else {
            self.rewriter.rewrite(parts).await?.replaced
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
            let Some(Record::Segment(record)) =
                self.host.shard().record(&Key::Segment(segment)).await?
            else {
                continue;
            };
            if record.data == data && record.inode.fileset() == fileset {
                let is_current = self
                    .host
                    .inode_record(record.inode)
                    .await?
                    .is_some_and(|inode| inode.data == data);
                return Ok(is_current.then_some(record.inode));
            }
        }
        Ok(None)
    }
}
