//! Storing: frozen runs become segments on the NSDs; small ones of one flush share packs.

use super::dirty_inodes::DirtyInodes;
use super::job::Job;
use super::plan::{Part, Plan, alone, pack_of, plan};
use super::turns::Turns;
use crate::inode::{InodeRef, Stored};
use crate::page_pool::PagePool;
use crate::session::Session;
use futures::channel::mpsc::UnboundedSender;
use futures::future::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use model::{DataId, Error, ErrorKind, Extent, InodeNumber, Result, SegmentPlace};
use pool::{Pool, SegmentOwner};
use std::sync::Arc;
use tracing::warn;
use world::{Point, Work};

/// Stores batches.
pub(super) struct Store {
    session: Arc<Session>,
    pages: Arc<PagePool>,
    pool: Arc<Pool>,
    dirty_inodes: Arc<DirtyInodes>,
    turns: Arc<Turns>,
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

impl Store {
    pub(super) fn new(
        session: Arc<Session>,
        pages: Arc<PagePool>,
        pool: Arc<Pool>,
        dirty_inodes: Arc<DirtyInodes>,
        turns: Arc<Turns>,
    ) -> Self {
        Self {
            session,
            pages,
            pool,
            dirty_inodes,
            turns,
        }
    }

    /// Stores jobs together. Names the inode of each in `ready` as soon as all the job's data is
    /// durable, or couldn't be stored. Those of a session that has ended are lost already.
    pub(super) async fn store(&self, mut jobs: Vec<Job>, ready: UnboundedSender<InodeRef>) {
        let session = self.session.id();
        jobs.retain(|job| job.mark().session() == session);
        let jobs = &jobs[..];
        let plans = plan(jobs, self.pages.block_bytes() as usize);
        let mut progress: Vec<Progress> = jobs.iter().map(|_| Progress::default()).collect();
        for plan in &plans {
            let in_pack = plan.is_of_several(jobs);
            for job in plan.jobs() {
                progress[job].segments_left += 1;
                progress[job].in_pack |= in_pack;
            }
        }
        let mut writes: FuturesUnordered<_> = plans
            .iter()
            .map(|plan| self.write(jobs, plan).map(move |place| (plan, place)))
            .collect();
        let mut packs = Vec::new();
        while let Some((plan, result)) = writes.next().await {
            self.session.world().at(Point::BytesStored).await;
            match result {
                Ok(extents) => {
                    packs.extend(pack_of(&extents).map(|place| (plan, place)));
                    for (job, extent) in extents {
                        progress[job].extents.push(extent);
                    }
                }
                Err(error) => {
                    for part in plan.parts() {
                        progress[part.job].failed = Some(error.clone());
                    }
                }
            }
            for job in plan.jobs() {
                progress[job].segments_left -= 1;
                if progress[job].segments_left == 0 {
                    self.note_stored(&jobs[job], &mut progress[job]);
                    let _listening = ready.unbounded_send(jobs[job].state().clone());
                }
            }
        }
        // Packs from which nothing will be published; others are deleted when all their data is
        // dead.
        let is_lost = |plan: &Plan| plan.jobs().all(|job| progress[job].is_lost);
        packs.retain(|(plan, _)| is_lost(plan));
        self.session
            .give_up(packs.into_iter().map(|(_, place)| place).collect());
    }

    /// Waits until no segment is in flight, for at most the patience.
    pub(super) async fn drain(&self, cause: &'static str) {
        let ended = self.turns.none_left();
        let _ended = self.session.wait(cause, None, ended).await;
    }

    /// Writes a plan's segment; returns its extents, each with its job.
    async fn write(&self, jobs: &[Job], plan: &Plan) -> Result<Vec<(usize, Extent)>> {
        let inode = match plan.parts() {
            [part] => Some(jobs[part.job].inode()),
            _ => None,
        };
        let writing = std::pin::pin!(self.write_in_turn(jobs, plan));
        let world = self.session.world();
        world
            .at_work("stores data", Work::Store(inode), writing)
            .await
    }

    async fn write_in_turn(&self, jobs: &[Job], plan: &Plan) -> Result<Vec<(usize, Extent)>> {
        let inodes = plan.parts().iter().map(|part| jobs[part.job].inode());
        let _turn = self.turns.turn(inodes).await;
        let first = plan.parts().first().expect("a segment holds something");
        if plan.parts().len() == 1 {
            return self.write_run(jobs, first).await;
        }
        let owner = SegmentOwner {
            family: jobs[first.job].family(),
            inode: InodeNumber(0),
            data: DataId(0),
            file_offset: 0,
        };
        let pack = plan.packed(jobs);
        let written = self
            .pool
            .write(jobs[first.job].mark().source(), owner, pack);
        match written.await {
            Ok(place) => Ok(plan.extents(jobs, &place)),
            // A pack can't be split, but its parts may fit separately.
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                let mut extents = Vec::new();
                for part in plan.parts() {
                    match self.write_run(jobs, part).await {
                        Ok(more) => extents.extend(more),
                        Err(error) => {
                            let unneeded = extents.into_iter().map(|(_, extent)| extent);
                            self.session.give_up(alone(unneeded));
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
        let run = &job.runs()[part.run];
        let owner = SegmentOwner {
            family: job.family(),
            inode: job.inode().number(),
            data: DataId(0),
            file_offset: run.offset,
        };
        let segments = job.mark().source();
        let written = self.pool.write_parts(segments, owner, run.bytes.clone());
        let mut offset = run.offset;
        let extent = |place: SegmentPlace| {
            let extent = Extent::of_segment(offset, place);
            offset = extent.end();
            (part.job, extent)
        };
        Ok(written.await?.into_iter().map(extent).collect())
    }

    fn note_stored(&self, job: &Job, progress: &mut Progress) {
        let mut inner = job.state().lock();
        let Some(batch) = inner.batches_mut().find(job.number()) else {
            // Its file was removed meanwhile.
            progress.is_lost = true;
            let unneeded = std::mem::take(&mut progress.extents);
            self.session.give_up(alone(unneeded));
            return;
        };
        match progress.failed.take() {
            Some(error) => {
                warn!(inode = %job.inode(), %error, "written data couldn't be stored; it is kept and will be retried");
                self.pages.note_store(Some(error.clone()));
                batch.fail(error);
                let now = self.session.now();
                self.dirty_inodes.note_failing(job.inode(), &mut inner, now);
                // The whole batch will be stored again. Segments already written must be deleted
                // now: the sweep spares them while this batch lives, and each attempt would take as
                // much space again.
                progress.is_lost = true;
                let unneeded = std::mem::take(&mut progress.extents);
                self.session.give_up(alone(unneeded));
            }
            None => {
                let mut extents = std::mem::take(&mut progress.extents);
                extents.sort_by_key(|extent| extent.offset);
                let at = self.session.now();
                batch.place(Stored {
                    extents: Extent::joined(extents),
                    at,
                    in_pack: progress.in_pack,
                });
                self.pages.note_store(None);
            }
        }
        drop(inner);
        job.state().signal();
    }
}
