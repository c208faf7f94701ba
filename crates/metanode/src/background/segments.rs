//! Goes over the records of all segments of a shard, and rewrites what lives in some of them. Cleaning,
//! emptying and balancing differ in their choice.

use crate::background::allowance::Allowance;
use crate::background::freeing::STEP_BYTES;
use crate::background::live::{Chosen, Live, LiveParts};
use crate::background::rewrite::{Part, Rewriter};
use crate::host::{Host, SCAN_PAGE};
use model::{Result, SegmentId};
use namespace::{Key, Record, Segment, Table};
use shard::successor;
use std::sync::Arc;
use world::Planted;

/// Most segments that are chosen and rewritten at once.
pub(super) const SEGMENTS_MAX: usize = 64;

/// The segments of a shard.
pub(super) struct Segments {
    host: Arc<Host>,
    live: LiveParts,
    rewriter: Rewriter,
    /// What is rewritten counts there.
    allowance: Option<Allowance>,
}

/// What [`Segments::rewrite`] did.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Done {
    /// Segments whose live parts could be read.
    pub(super) segments: u64,
    /// Extents replaced.
    pub(super) replaced: u64,
}

impl Segments {
    pub(super) fn new(host: Arc<Host>, rewriter: Rewriter) -> Self {
        Self {
            live: LiveParts::new(host.clone()),
            host,
            rewriter,
            allowance: None,
        }
    }

    /// What is rewritten counts against an allowance.
    pub(super) fn within(self, allowance: Allowance) -> Self {
        Self {
            allowance: Some(allowance),
            ..self
        }
    }

    /// Where a pass over all segments begins.
    pub(super) fn first() -> Key {
        Table::Segments.first()
    }

    /// Adds those segments of a page, beginning at `from`, to `chosen` that `choose` takes, until these
    /// are [`SEGMENTS_MAX`], or have `bytes_max` live bytes or more. `from` moves on behind the last one
    /// that was looked at. Returns whether the page was the last and all of it was looked at.
    pub(super) async fn choose_from_page(
        &self,
        from: &mut Key,
        chosen: &mut Vec<Chosen>,
        bytes_max: u64,
        mut choose: impl FnMut(SegmentId, &Segment) -> bool,
    ) -> Result<bool> {
        let (_, to) = Table::Segments.range();
        let page = self.host.shard().scan(from, &to, SCAN_PAGE).await?;
        let live = chosen.iter().map(|it| it.segment.live);
        let mut bytes = live.fold(0, u64::saturating_add);
        for (key, record) in &page {
            if chosen.len() >= SEGMENTS_MAX || bytes >= bytes_max {
                return Ok(false);
            }
            if let (Key::Segment(id), Record::Segment(segment)) = (key, record)
                && choose(*id, segment)
            {
                bytes = bytes.saturating_add(segment.live);
                chosen.push(Chosen {
                    id: *id,
                    segment: (**segment).clone(),
                });
            }
            *from = successor(key);
        }
        Ok(page.len() < SCAN_PAGE)
    }

    /// Looks at the segments of a page, as [`Segments::choose_from_page`]. Returns whether the page was the last.
    pub(super) async fn see_page(
        &self,
        from: &mut Key,
        mut see: impl FnMut(&Segment),
    ) -> Result<bool> {
        let seen = |_, segment: &Segment| {
            see(segment);
            false
        };
        self.choose_from_page(from, &mut Vec::new(), u64::MAX, seen)
            .await
    }

    /// Rewrites what lives in these segments, if `wants` it of each. Those of neighbouring places of a
    /// file go together: the search for them reads that part of the file's extents once, and they
    /// become neighbours in the pool. Unreadable data is left to repair.
    pub(super) async fn rewrite(
        &self,
        mut chosen: Vec<Chosen>,
        mut wants: impl FnMut(&Chosen, &Live) -> bool,
    ) -> Result<Done> {
        chosen.sort_by_key(|Chosen { segment, .. }| {
            (segment.inode, segment.data, segment.file_offset)
        });
        let mut done = Done::default();
        let mut chosen = &chosen[..];
        while !chosen.is_empty() {
            let (step, rest) = chosen.split_at(step_of(chosen));
            chosen = rest;
            let mut parts = Vec::new();
            for (of, mut live) in step.iter().zip(self.live.live_parts(step).await?) {
                if !wants(of, &live) || self.live.load(&of.segment.place, &mut live).await.is_err()
                {
                    continue;
                }
                done.segments += 1;
                if let Some(allowance) = &self.allowance {
                    allowance.take(live.bytes_to_load(&of.segment.place), live.bytes());
                }
                if self.host.world().has_planted(Planted::FreeLive) {
                    self.host.pool().delete(&[of.segment.place]).await?;
                    continue;
                }
                parts.extend(live.parts);
            }
            parts.sort_by_key(Part::place);
            done.replaced += self.rewriter.rewrite(parts).await?.replaced;
        }
        Ok(done)
    }
}

/// How many of these segments one step rewrites: at least one.
fn step_of(chosen: &[Chosen]) -> usize {
    let mut bytes = 0;
    let fits = chosen.iter().take_while(|of| {
        bytes += of.segment.live;
        bytes <= STEP_BYTES
    });
    fits.count().max(1)
}
