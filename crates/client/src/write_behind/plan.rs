//! The plan of a store: which runs become segments of their own, and which share packs. Pure.

use super::job::Job;
use bytes::Bytes;
use model::{CommitNumber, DataId, Extent, ExtentKind, SegmentPlace, limits};
use pool::pack::{ENTRIES_MAX, ENTRY_BYTES, FOOTER_BYTES, PackWriter};

/// Runs of at least this size get their own segment.
const OWN_SEGMENT_BYTES: usize = 1024 * 1024;

/// Place of one job's run in a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) job: usize,
    pub(super) run: usize,
    at: u32,
}

/// A segment to be written.
#[derive(Debug, Default)]
pub(super) struct Plan {
    parts: Vec<Part>,
    bytes: usize,
}

impl Plan {
    /// In the order in which they are in the segment; there is at least one.
    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Whether it has parts of several files: one can die before another is published.
    pub(super) fn is_of_several(&self, jobs: &[Job]) -> bool {
        let mut inodes = self.parts.iter().map(|part| jobs[part.job].inode());
        let first = inodes.next();
        inodes.any(|inode| Some(inode) != first)
    }

    /// The jobs that have parts in it, in order.
    pub(super) fn jobs(&self) -> impl Iterator<Item = usize> {
        let mut last = None;
        let jobs = self.parts.iter().map(|part| part.job);
        jobs.filter(move |job| last.replace(*job) != Some(*job))
    }

    fn add(&mut self, job: usize, run: usize, bytes: usize) {
        let at = u32::try_from(self.bytes).expect("a segment is at most a block");
        self.parts.push(Part { job, run, at });
        self.bytes += bytes;
    }

    /// The bytes of a pack: its parts one after another, then the table.
    pub(super) fn packed(&self, jobs: &[Job]) -> Bytes {
        let mut pack = PackWriter::new(limits::SEGMENT_BYTES_MAX);
        for part in &self.parts {
            let job = &jobs[part.job];
            let run = &job.runs()[part.run];
            let entry = pack.add(job.inode(), DataId(0), run.offset, &run.bytes);
            assert_eq!(
                entry.at, part.at,
                "a pack has its parts in the planned order"
            );
        }
        pack.finish().0
    }

    /// The extents of a pack that is at `place`, each with its job.
    pub(super) fn extents(&self, jobs: &[Job], place: &SegmentPlace) -> Vec<(usize, Extent)> {
        let extent = |part: &Part| {
            let run = &jobs[part.job].runs()[part.run];
            let kind = ExtentKind::Data {
                place: *place,
                at: part.at,
                codec: 0,
                key_id: 0,
            };
            let extent = Extent {
                offset: run.offset,
                length: run.bytes.len() as u64,
                kind,
                birth: CommitNumber(0),
            };
            (part.job, extent)
        };
        self.parts.iter().map(extent).collect()
    }
}

/// Large runs alone, small ones together up to the size of a block.
pub(super) fn plan(jobs: &[Job], block_bytes: usize) -> Vec<Plan> {
    let mut plans = Vec::new();
    let mut pack = Plan::default();
    let mut family = None;
    for (job, runs) in jobs.iter().map(Job::runs).enumerate() {
        for (run, bytes) in runs.iter().map(|run| run.bytes.len()).enumerate() {
            if bytes >= OWN_SEGMENT_BYTES.min(block_bytes) {
                let mut own = Plan::default();
                own.add(job, run, bytes);
                plans.push(own);
                continue;
            }
            let table = (pack.parts.len() + 1) * ENTRY_BYTES + FOOTER_BYTES;
            let is_full =
                pack.bytes + bytes + table > block_bytes || pack.parts.len() == ENTRIES_MAX;
            // A family moves to another shard with its segments.
            let own = jobs[job].inode().fileset().family();
            let is_of_other = family.replace(own).is_some_and(|other| other != own);
            if (is_full || is_of_other) && !pack.parts.is_empty() {
                plans.push(std::mem::take(&mut pack));
            }
            pack.add(job, run, bytes);
        }
    }
    if !pack.parts.is_empty() {
        plans.push(pack);
    }
    plans
}

/// The pack that contains the whole plan, if it is in one.
pub(super) fn pack_of(extents: &[(usize, Extent)]) -> Option<SegmentPlace> {
    let place = |(_, extent): &(usize, Extent)| match extent.kind {
        ExtentKind::Data { place, .. } => Some(place),
        _ => None,
    };
    let first = extents.first().and_then(place)?;
    let is_pack = extents.len() > 1 && extents.iter().all(|one| place(one) == Some(first));
    is_pack.then_some(first)
}

/// The segments that hold nothing but one of these extents. Packs aren't among them: what else they
/// hold is for the sweep to know.
pub(super) fn alone(extents: impl IntoIterator<Item = Extent>) -> Vec<SegmentPlace> {
    let place = |extent: Extent| match extent.kind {
        ExtentKind::Data { place, at: 0, .. } if extent.length == u64::from(place.length) => {
            Some(place)
        }
        _ => None,
    };
    extents.into_iter().filter_map(place).collect()
}
