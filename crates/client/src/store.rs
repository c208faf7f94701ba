//! Storing: frozen runs become segments on the NSDs; small ones of one flush share packs.

use crate::client::Client;
use crate::inode::{InodeRef, Stage, Stored};
use crate::pages::dirty::Frozen;
use crate::session::Mark;
use bytes::Bytes;
use futures::channel::mpsc;
use futures::future::{FutureExt, join};
use futures::stream::{FuturesUnordered, Stream, StreamExt};
use model::{
    CommitNumber, DataId, Error, ErrorKind, Extent, ExtentKind, FamilyId, InodeNumber, Result,
    SegmentPlace, limits,
};
use pool::SegmentOwner;
use pool::pack::{ENTRIES_MAX, ENTRY_BYTES, FOOTER_BYTES, PackWriter};
use tracing::warn;

/// Runs of at least this size get their own segment.
const OWN_SEGMENT_BYTES: usize = 1024 * 1024;

/// Files that one task publishes concurrently, so that a waiting one delays few others.
const PUBLISHES_AT_ONCE: usize = 32;

/// A batch whose runs are to be stored.
pub(crate) struct Job {
    pub(crate) state: InodeRef,
    pub(crate) number: u64,
    pub(crate) runs: Vec<Frozen>,
    /// Keeps the session's low-water mark below this job's segments.
    pub(crate) _mark: Mark,
}

/// Place of one job's run in a segment.
#[derive(Clone, Copy, Debug)]
struct Part {
    job: usize,
    run: usize,
    at: u32,
}

/// A segment to be written.
#[derive(Debug, Default)]
struct Plan {
    parts: Vec<Part>,
    bytes: usize,
}

/// Progress of a job.
#[derive(Default)]
struct Progress {
    segments_left: usize,
    extents: Vec<Extent>,
    in_pack: bool,
    failed: Option<Error>,
    /// Its stored data won't be published.
    is_lost: bool,
}

impl Client {
    /// Stores jobs in a separate task, then publishes them.
    pub(crate) fn spawn_store(&self, jobs: Vec<Job>) {
        let client = self.shared();
        self.session
            .spawn("write-behind", async move { client.store(jobs).await });
    }

    /// Stores jobs together and publishes each as soon as all its data is durable.
    pub(crate) async fn store(&self, jobs: Vec<Job>) {
        let plans = plan(&jobs, self.blocks.block_bytes() as usize);
        let mut progress: Vec<Progress> = jobs.iter().map(|_| Progress::default()).collect();
        for plan in &plans {
            let in_pack = plan.is_of_several(&jobs);
            for job in plan.jobs() {
                progress[job].segments_left += 1;
                progress[job].in_pack |= in_pack;
            }
        }
        let mut writes: FuturesUnordered<_> = plans
            .iter()
            .map(|plan| self.write_plan(&jobs, plan).map(move |place| (plan, place)))
            .collect();
        // Publishing runs concurrently with the writes, never instead of them: a put that isn't
        // polled may be the one that the publish's commit waits for in an NSD's journal. At most
        // one message per job is queued.
        let (ready, stored) = mpsc::unbounded();
        let writing = async {
            let mut packs = Vec::new();
            while let Some((plan, result)) = writes.next().await {
                match result {
                    Ok(extents) => {
                        packs.extend(pack_of(&extents).map(|place| (plan, place)));
                        for (job, extent) in extents {
                            progress[job].extents.push(extent);
                        }
                    }
                    Err(error) => {
                        for part in &plan.parts {
                            progress[part.job].failed = Some(error.clone());
                        }
                    }
                }
                for job in plan.jobs() {
                    progress[job].segments_left -= 1;
                    if progress[job].segments_left == 0 {
                        self.note_stored(&jobs[job], &mut progress[job]);
                        let _listening = ready.unbounded_send(job);
                    }
                }
            }
            drop(ready);
            // Packs from which nothing will be published; others are deleted when all their data is
            // dead.
            let is_lost = |plan: &Plan| plan.jobs().all(|job| progress[job].is_lost);
            packs.retain(|(plan, _)| is_lost(plan));
            self.session
                .give_up(packs.into_iter().map(|(_, place)| place).collect());
        };
        let publishing = self.publish_each(stored.map(|job: usize| jobs[job].state.clone()));
        join(writing, publishing).await;
    }

    /// Publishes the ready batches of each inode.
    pub(crate) async fn publish_each(&self, states: impl Stream<Item = InodeRef>) {
        let publishes = states.map(|state| self.publish_one(state));
        publishes
            .for_each_concurrent(PUBLISHES_AT_ONCE, |publish| publish)
            .await;
    }

    async fn publish_one(&self, state: InodeRef) {
        self.publish_ready(&state).await;
    }

    /// Stores a plan; returns its extents, each with its job.
    async fn write_plan(&self, jobs: &[Job], plan: &Plan) -> Result<Vec<(usize, Extent)>> {
        let _permit = self
            .segments_in_flight
            .acquire()
            .await
            .expect("the semaphore is never closed");
        let first = plan.parts.first().expect("a segment holds something");
        if plan.parts.len() == 1 {
            return self.write_run(jobs, first).await;
        }
        let owner = SegmentOwner {
            family: family_of(&jobs[first.job]),
            inode: InodeNumber(0),
            data: DataId(0),
            file_offset: 0,
        };
        let pack = packed(jobs, plan);
        match self.pool.write(self.session.segments(), owner, pack).await {
            Ok(place) => {
                let parts = plan.parts.iter();
                Ok(parts
                    .map(|part| (part.job, extent_of(jobs, part, &place)))
                    .collect())
            }
            // A pack can't be split, but its parts may fit separately.
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                let mut extents = Vec::new();
                for part in &plan.parts {
                    match self.write_run(jobs, part).await {
                        Ok(more) => extents.extend(more),
                        Err(error) => {
                            self.give_up(extents.into_iter().map(|(_, extent)| extent).collect());
                            return Err(error);
                        }
                    }
                }
                Ok(extents)
            }
            Err(error) => Err(error),
        }
    }

    /// Stores a run in its own segments: one if it fits.
    async fn write_run(&self, jobs: &[Job], part: &Part) -> Result<Vec<(usize, Extent)>> {
        let job = &jobs[part.job];
        let run = &job.runs[part.run];
        let owner = SegmentOwner {
            family: family_of(job),
            inode: job.state.id.number(),
            data: DataId(0),
            file_offset: run.offset,
        };
        let written = self
            .pool
            .write_parts(self.session.segments(), owner, run.bytes.clone());
        let mut offset = run.offset;
        let extent = |place: SegmentPlace| {
            let extent = Extent {
                offset,
                length: u64::from(place.length),
                kind: ExtentKind::Data {
                    place,
                    at: 0,
                    codec: 0,
                    key_id: 0,
                },
                birth: CommitNumber(0),
            };
            offset = extent.end();
            (part.job, extent)
        };
        Ok(written.await?.into_iter().map(extent).collect())
    }

    fn note_stored(&self, job: &Job, progress: &mut Progress) {
        let mut inner = job.state.lock();
        let found = inner
            .flushing
            .iter_mut()
            .find(|batch| batch.number == job.number);
        let Some(batch) = found else {
            // Its file was removed meanwhile.
            progress.is_lost = true;
            self.give_up(std::mem::take(&mut progress.extents));
            return;
        };
        match progress.failed.take() {
            Some(error) => {
                warn!(inode = %job.state.id, %error, "written data couldn't be stored; it is kept and will be retried");
                self.pages.note_store(Some(error.clone()));
                batch.stage = Stage::Failed(error);
                self.note_failing(job.state.id, &mut inner);
                // The whole batch will be stored again. Segments already written must be deleted
                // now: the sweep spares them while this batch lives, and each attempt would take as
                // much space again.
                progress.is_lost = true;
                self.give_up(std::mem::take(&mut progress.extents));
            }
            None => {
                let mut extents = std::mem::take(&mut progress.extents);
                extents.sort_by_key(|extent| extent.offset);
                let at = self.session.now();
                batch.stored = Some(Stored {
                    extents: Extent::joined(extents),
                    at,
                    in_pack: progress.in_pack,
                });
                batch.stage = Stage::Written;
                self.pages.note_store(None);
            }
        }
        drop(inner);
        job.state.changed.notify_waiters();
    }

    /// These extents won't be published, except for those that already are: segments that hold
    /// nothing else are deleted now instead of waiting for the sweep. Packs are left to the sweep.
    pub(crate) fn give_up(&self, extents: Vec<Extent>) {
        let alone = |extent: Extent| match extent.kind {
            ExtentKind::Data { place, at: 0, .. } if extent.length == u64::from(place.length) => {
                Some(place)
            }
            _ => None,
        };
        self.session
            .give_up(extents.into_iter().filter_map(alone).collect());
    }
}

impl Plan {
    /// Whether it has parts of several files: one can die before another is published.
    fn is_of_several(&self, jobs: &[Job]) -> bool {
        let mut inodes = self.parts.iter().map(|part| jobs[part.job].state.id);
        let first = inodes.next();
        inodes.any(|inode| Some(inode) != first)
    }

    /// The jobs that have parts in it, in order.
    fn jobs(&self) -> impl Iterator<Item = usize> {
        let mut last = None;
        let jobs = self.parts.iter().map(|part| part.job);
        jobs.filter(move |job| last.replace(*job) != Some(*job))
    }

    fn add(&mut self, job: usize, run: usize, bytes: usize) {
        let at = u32::try_from(self.bytes).expect("a segment is at most a block");
        self.parts.push(Part { job, run, at });
        self.bytes += bytes;
    }
}

/// Large runs alone, small ones together up to the size of a block.
fn plan(jobs: &[Job], block_bytes: usize) -> Vec<Plan> {
    let mut plans = Vec::new();
    let mut pack = Plan::default();
    for (job, runs) in jobs.iter().map(|job| &job.runs).enumerate() {
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
            if is_full && !pack.parts.is_empty() {
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

/// The bytes of a pack: its parts one after another, then the table.
fn packed(jobs: &[Job], plan: &Plan) -> Bytes {
    let mut pack = PackWriter::new(limits::SEGMENT_BYTES_MAX);
    for part in &plan.parts {
        let job = &jobs[part.job];
        let run = &job.runs[part.run];
        let entry = pack.add(job.state.id, DataId(0), run.offset, &run.bytes);
        assert_eq!(
            entry.at, part.at,
            "a pack has its parts in the planned order"
        );
    }
    pack.finish().0
}

/// The pack that contains the whole plan, if it is in one.
fn pack_of(extents: &[(usize, Extent)]) -> Option<SegmentPlace> {
    let place = |(_, extent): &(usize, Extent)| match extent.kind {
        ExtentKind::Data { place, .. } => Some(place),
        _ => None,
    };
    let first = extents.first().and_then(place)?;
    let is_pack = extents.len() > 1 && extents.iter().all(|one| place(one) == Some(first));
    is_pack.then_some(first)
}

fn family_of(job: &Job) -> FamilyId {
    FamilyId(job.state.id.fileset().0)
}

fn extent_of(jobs: &[Job], part: &Part, place: &SegmentPlace) -> Extent {
    let run = &jobs[part.job].runs[part.run];
    Extent {
        offset: run.offset,
        length: run.bytes.len() as u64,
        kind: ExtentKind::Data {
            place: *place,
            at: part.at,
            codec: 0,
            key_id: 0,
        },
        birth: CommitNumber(0),
    }
}
