//! Background work left by operations, in bounded, resumable rounds: queued data ids, dead
//! segments, inline extents, mostly dead segments, garbage, lost pieces.
//!
//! No state survives the process: every kind of work finds its tasks in the records and
//! inventories, so a crash at any point only repeats a step.
//!
//! Each kind is a job with its own state. Jobs know the [`Host`], to which they give operations as
//! any client does; none knows sessions' opens, locks or requests.

mod allowance;
mod balance;
mod blocks;
mod clean;
mod counts;
mod emptying;
mod examining;
mod fold;
mod freeing;
mod live;
mod repair;
mod rewrite;
mod scrub;
mod segments;
mod slots;
mod survey;
mod tree;
mod unreadable;
mod width;

use crate::background::allowance::Allowance;
use crate::background::balance::Balance;
use crate::background::blocks::Blocks;
use crate::background::clean::Clean;
use crate::background::counts::Counts;
use crate::background::emptying::Emptying;
use crate::background::examining::Examining;
use crate::background::fold::Fold;
use crate::background::freeing::Freeing;
use crate::background::repair::Repair;
use crate::background::rewrite::Rewriter;
use crate::background::scrub::Scrub;
use crate::background::slots::Slots;
use crate::background::survey::Survey;
use crate::background::tree::TreeTidying;
use crate::background::unreadable::Unreadable;
use crate::host::Host;
use crate::judging::Judging;
use crate::progress::Progress;
use crate::report::{Counters, Moves, RepairStatus, ScrubOutcome, UnreadableData};
use crate::room::Room;
use crate::sessions::Decided;
use model::owner::{Mended, Verdict};
use model::{ErrorKind, FamilyId, GroupId, NsdId, Result, SegmentId, SegmentPlace};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{Mutex, MutexGuard};

pub use allowance::Servers;
pub use slots::switch_slots;
pub(crate) use survey::Nsds;

/// How a round is paced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Everything now, without grace for readers: a caller waits for the end.
    Drain,
    /// Only work that is due.
    Gentle,
}

/// Who looks through the pool's groups for what is to be repaired, swept, scrubbed or switched.
#[derive(Clone, Debug)]
pub enum Surveys {
    /// The owner itself.
    Own,
    /// In a cluster servers do, and ask the owner what is live. With what all owners of a node hear of them.
    ByServers(Arc<Servers>),
}

/// The jobs, and the order in which a round does them.
pub(crate) struct Background {
    host: Arc<Host>,
    /// Held by a round: one at a time.
    round: Arc<Mutex<()>>,
    counts: Arc<Counts>,
    room: Arc<Room>,
    freeing: Arc<Freeing>,
    fold: Fold,
    clean: Arc<Clean>,
    blocks: Blocks,
    emptying: Arc<Emptying>,
    balance: Arc<Balance>,
    unreadable: Arc<Unreadable>,
    slots: Arc<Slots>,
    survey: Arc<Survey>,
    examining: Examining,
    repair: Repair,
    scrub: Scrub,
    tree: TreeTidying,
}

/// The right to do a round.
pub(crate) struct Round<'a> {
    of: &'a Background,
    _one_at_a_time: MutexGuard<'a, ()>,
}

impl Background {
    pub(crate) fn new(
        host: &Arc<Host>,
        judging: &Judging,
        room: &Arc<Room>,
        surveys: &Surveys,
    ) -> Self {
        let (host, judging, room) = (host.clone(), judging.clone(), room.clone());
        let (round, counts) = (Arc::default(), Arc::<Counts>::default());
        let rewriter = Rewriter::new(host.clone(), counts.clone());
        let freeing = Arc::new(Freeing::new(
            host.clone(),
            judging.clone(),
            rewriter.clone(),
            room.clone(),
            counts.clone(),
        ));
        let clean = Arc::new(Clean::new(
            host.clone(),
            rewriter.clone(),
            freeing.clone(),
            counts.clone(),
        ));
        let allowance = Allowance::new(host.clone(), surveys.clone());
        let emptying = Arc::new(Emptying::new(
            host.clone(),
            rewriter.clone(),
            allowance.clone(),
        ));
        let balance = Arc::new(Balance::new(
            host.clone(),
            rewriter.clone(),
            surveys.clone(),
            allowance,
        ));
        let unreadable = Arc::new(Unreadable::new(host.clone(), judging.clone()));
        let slots = Arc::new(Slots::new(host.clone()));
        let survey = Arc::new(Survey::new(
            host.clone(),
            judging.clone(),
            unreadable.clone(),
            slots.clone(),
            counts.clone(),
            matches!(surveys, Surveys::Own),
        ));
        Self {
            examining: Examining::new(
                host.clone(),
                judging.clone(),
                unreadable.clone(),
                counts.clone(),
            ),
            fold: Fold::new(host.clone(), rewriter.clone(), counts.clone()),
            blocks: Blocks::new(host.clone(), rewriter, room.clone()),
            repair: Repair::new(
                host.clone(),
                judging.clone(),
                unreadable.clone(),
                survey.clone(),
                clean.clone(),
                emptying.clone(),
                balance.clone(),
            ),
            scrub: Scrub::new(
                host.clone(),
                judging,
                unreadable.clone(),
                Arc::clone(&round),
            ),
            tree: TreeTidying::new(host.clone()),
            host,
            round,
            counts,
            room,
            freeing,
            clean,
            emptying,
            balance,
            unreadable,
            slots,
            survey,
        }
    }

    /// Waits for a running round to end. None begins until this is dropped.
    pub(crate) async fn begin_round(&self) -> Round<'_> {
        Round {
            of: self,
            _one_at_a_time: self.round.lock().await,
        }
    }

    /// Ends work that runs beside the rounds.
    pub(crate) fn stop(&self) {
        self.unreadable.end_naming();
    }

    /// Starts to look up the names of unreadable files concurrently with the rounds, if it is time.
    pub(crate) fn begin_naming(&self) {
        self.unreadable.begin_naming();
    }

    /// Totals since start.
    pub(crate) fn counters(&self) -> Counters {
        let counts = &self.counts;
        let [reclaim, deleted, folded, cleaned, void, garbage, given_up] = [
            &counts.reclaim_steps,
            &counts.segments_deleted,
            &counts.extents_folded,
            &counts.segments_cleaned,
            &counts.publishes_void,
            &counts.garbage_deleted,
            &counts.segments_given_up,
        ]
        .map(|counter| counter.load(Ordering::Relaxed));
        Counters {
            reclaim_steps: reclaim,
            segments_deleted: deleted,
            extents_folded: folded,
            segments_cleaned: cleaned,
            publishes_void: void,
            garbage_deleted: garbage,
            segments_given_up: given_up,
            pieces_rebuilt: self.host.pool().repair_progress().rebuilt_pieces,
            takeovers: self.host.takeovers(),
        }
    }

    /// As [`crate::Metanode::make_room`].
    pub(crate) async fn make_room(&self) -> Result<bool> {
        self.freeing.make_room().await
    }

    /// As [`crate::Metanode::unfreed`].
    pub(crate) fn unfreed(&self) -> u64 {
        self.freeing.unfreed()
    }

    /// As [`crate::Metanode::give_up`].
    pub(crate) async fn give_up(&self, places: Vec<SegmentPlace>) -> Result<()> {
        self.freeing.give_up(places).await
    }

    /// As [`model::owner::OwnerRequest::Examine`].
    pub(crate) async fn examine(&self, found: &[(SegmentPlace, FamilyId)]) -> Result<Vec<Verdict>> {
        self.examining.examine(found).await
    }

    /// As [`model::owner::OwnerRequest::ReportMended`].
    pub(crate) async fn note_mended(&self, mended: &[Mended]) -> Result<()> {
        self.examining.note_mended(mended).await
    }

    /// Progress of repair.
    pub(crate) fn repair_status(&self) -> RepairStatus {
        self.repair.status()
    }

    /// What the owner moves by itself.
    pub(crate) fn moves(&self) -> Moves {
        Moves {
            to_rewrite: self.emptying.left(),
            is_balancing: self.balance.is_moving(),
        }
    }

    /// As [`crate::Metanode::scrub_showing`].
    pub(crate) async fn scrub(
        &self,
        only: Option<NsdId>,
        progress: &Progress,
    ) -> Result<Vec<ScrubOutcome>> {
        self.scrub.scrub(only, progress).await
    }

    /// The unreadable data found so far.
    pub(crate) fn unreadable_data(&self) -> UnreadableData {
        self.unreadable.data()
    }

    /// Looks up the files in the unreadable segments.
    ///
    /// # Errors
    /// If the records can't be read.
    pub(crate) async fn name_unreadable(&self) -> Result<()> {
        self.unreadable.name_unreadable().await
    }

    /// How many unreadable segments couldn't be remembered so far.
    pub(crate) fn unreadable_beyond(&self) -> u64 {
        self.unreadable.unreadable_beyond()
    }

    /// A check has read all segments since [`Background::unreadable_beyond`] had this value.
    pub(crate) fn checked_all(&self, beyond: u64) {
        self.unreadable.checked_all(beyond);
    }

    /// Notes whether a check could read this segment.
    pub(crate) fn note_checked(
        &self,
        segment: SegmentId,
        read: std::result::Result<(), ErrorKind>,
    ) {
        self.unreadable.note_checked(segment, read);
    }

    /// The segments among which garbage was deleted from the current NSDs, if it was.
    pub(crate) fn swept(&self) -> Option<Decided> {
        self.survey.swept()
    }

    /// Serving NSDs, with the groups whose blobs they hold without being members.
    pub(crate) async fn strangers(&self) -> Result<Vec<(NsdId, GroupId)>> {
        self.survey.strangers().await
    }

    /// The NSDs and the map over which there should be none, if still unchanged.
    pub(crate) fn rid_of_strangers(&self) -> Option<Nsds> {
        self.survey.rid_of_strangers()
    }
}

impl Round<'_> {
    /// Does the round. Returns how many steps changed something.
    ///
    /// # Errors
    /// The first error that stopped a kind of work; the other kinds were done.
    pub(crate) async fn run(&self, pace: Pace) -> Result<u64> {
        let jobs = self.of;
        jobs.room.measure();
        let mut steps = 0;
        let mut result = Ok(());
        let mut add = |done: Result<u64>| match done {
            Ok(done) => steps += done,
            Err(error) => {
                if result.is_ok() {
                    result = Err(error);
                }
            }
        };
        add(jobs.freeing.free_some(pace).await);
        add(jobs.fold.fold_if_due(pace).await);
        add(jobs.clean.clean_segments(pace).await);
        add(jobs.blocks.join_blocks(pace).await);
        add(jobs.freeing.free_some(pace).await);
        add(jobs.freeing.note_unfreed().await);
        add(jobs.repair.repair_suspects().await);
        add(jobs.survey.survey_some(pace).await);
        add(jobs.unreadable.revisit_unreadable(pace).await);
        add(jobs.slots.finish_leaving().await);
        // After repair, which is more urgent.
        add(jobs.emptying.empty_some(pace).await);
        add(jobs.balance.balance_some(pace).await);
        if pace == Pace::Gentle {
            add(jobs.tree.tidy_tree().await);
        } else {
            add(jobs.unreadable.name_unreadable().await.map(|()| 0));
        }
        result.map(|()| steps)
    }
}
