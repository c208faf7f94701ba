//! The metanode itself: the interface for clients.

use crate::background::{Background, Unpublished, count, recorded};
use crate::holders::Holders;
use crate::locks::Locks;
use crate::reclaim::Reclaim;
use crate::reopening::Reopening;
use crate::report::ShardStatus;
use crate::room::{Room, grows};
use crate::serving::replays::Replays;
use crate::sessions::ClientSessions;
use arc_swap::ArcSwap;
use coordination::Coordination;
use model::operation::Stamp;
use model::owner::{Tenure, Usage};
use model::{
    Error, ErrorKind, FamilyId, InodeId, NodeRun, Operation, Reply, Result, SegmentPlace,
    SessionId, ShardId,
};
use namespace::sessions::Standing;
use namespace::{Record, Table};
use parking_lot::Mutex;
use pool::{Pool, SegmentSource};
use shard::{Shard, ShardConfig, TreeCache, successor};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use world::call::Asked;
use world::{Waiter, Waiters, World};

/// Memory for blocks of the tree's tables.
const TREE_CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// Most segments condemned by one operation.
const CONDEMNED_MAX: usize = 1024;
/// Most steps of one truncate: 2^40 extents are more than any file has.
const CUT_STEPS_MAX: u64 = 1 << 28;
/// The pool of data, tables and logs, by its name in coordination.
pub const DATA_POOL: &str = "data";
/// Records per page of a scan.
pub(crate) const SCAN_PAGE: usize = 1024;

/// Everything needed to open a metanode.
#[derive(Clone)]
pub struct Opening {
    /// The machine.
    pub world: World,
    /// The shard to host; created if it doesn't exist.
    pub shard: ShardId,
    /// The family whose records it holds.
    pub family: FamilyId,
    /// Epochs, sessions, maps.
    pub coordination: Coordination,
    /// Stores data, tables and log.
    pub pool: Arc<Pool>,
    /// This run of this node: the shard's record must name it, or it isn't taken over.
    pub run: NodeRun,
}

/// One file system's metadata service in this process.
pub struct Metanode {
    pub(crate) world: World,
    pub(crate) coordination: Coordination,
    pub(crate) pool: Arc<Pool>,
    pub(crate) family: FamilyId,
    pub(crate) config: ShardConfig,
    /// Loaded by every operation; loading must not write to shared memory.
    pub(crate) shard: ArcSwap<Shard>,
    /// Held by the caller that drives it.
    pub(crate) reopening: tokio::sync::Mutex<Reopening>,
    /// Another owner has followed this one.
    pub(crate) is_superseded: tokio::sync::watch::Sender<bool>,
    pub(crate) holders: Arc<Holders>,
    locks: Locks,
    /// Set while inodes without names must stay and new locks must wait; read by every operation.
    pub(crate) in_grace: Arc<AtomicBool>,
    /// Set while some session has yet to say what it holds; read by every operation.
    pub(crate) is_owed: AtomicBool,
    pub(crate) reclaim: Mutex<Reclaim>,
    /// A metanode has one: it ends for good when another owner follows it.
    pub(crate) tenure: Tenure,
    /// What the records don't say of clients' sessions.
    pub(crate) sessions: ClientSessions,
    /// Their last requests, of those on other nodes.
    pub(crate) replays: Replays,
    /// The metanode's own session, for fold and clean.
    pub(crate) segments: SegmentSource,
    pub(crate) background: Background,
    pub(crate) unpublished: Unpublished,
    pub(crate) waiters: Waiters,
    pub(crate) room: Room,
    pub(crate) takeovers: AtomicU64,
    pub(crate) closed: AtomicBool,
}

impl Metanode {
    /// Makes the shard with an empty file system, assigned to the run; doesn't open it.
    ///
    /// # Errors
    /// `Exists` if it exists; `Unavailable` if the pool has no NSD for its log, or if coordination
    /// doesn't answer: then it may exist.
    pub async fn create(opening: &Opening) -> Result<()> {
        Shard::create(&config(opening)).await
    }

    /// Takes the shard over and opens it; creates an empty file system if the shard doesn't exist.
    /// Work left by a crash (inodes without names, queued data ids) is finished in the background.
    ///
    /// # Errors
    /// `Unavailable` if too few NSDs answer, `OldEpoch` if the shard is assigned to another process,
    /// and errors of coordination.
    pub async fn open(opening: Opening) -> Result<Arc<Self>> {
        let config = config(&opening);
        let Opening {
            world,
            shard,
            family,
            coordination,
            pool,
            run,
        } = opening;
        if coordination.shard(shard).await?.is_none() {
            Shard::create(&config).await?;
        }
        let shard = Shard::open(config.clone()).await?;
        let session = coordination.next_session().await?;
        let metanode = Arc::new(Self {
            family,
            config,
            shard: ArcSwap::new(shard.clone()),
            reopening: tokio::sync::Mutex::default(),
            is_superseded: tokio::sync::watch::Sender::new(false),
            holders: Arc::default(),
            locks: Locks::new(),
            in_grace: Arc::new(AtomicBool::new(true)),
            is_owed: AtomicBool::new(true),
            reclaim: Mutex::new(Reclaim::begin(&shard.sessions(), world.now())),
            tenure: Tenure(shard.epoch().0),
            sessions: ClientSessions::default(),
            replays: Replays::default(),
            segments: SegmentSource::new(session),
            background: Background::default(),
            unpublished: Unpublished::default(),
            waiters: Waiters::default(),
            room: Room::new(world.now()),
            takeovers: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            world,
            coordination,
            pool,
        });
        metanode.attach(&shard);
        shard.open_own_session(session).await?;
        metanode.end_former_runs(&shard, run).await?;
        metanode.begin_grace();
        metanode.end_grace_if_over().await?;
        metanode.measure_room();
        Ok(metanode)
    }

    /// Opens a client's session. Its id comes from coordination and is never reused, nor are
    /// segment ids, which begin with it. Waits for coordination.
    ///
    /// # Errors
    /// `Unavailable` if coordination doesn't answer.
    pub async fn open_session(&self) -> Result<SessionId> {
        self.open_session_once(None, self.config.opening.run).await
    }

    /// As [`Metanode::open_session`] for a run of a daemon. With a nonce: the session that was opened
    /// with it, if that is open.
    pub(crate) async fn open_session_once(
        &self,
        nonce: Option<u64>,
        run: NodeRun,
    ) -> Result<SessionId> {
        let _opening = self.sessions.opening.lock().await;
        if let Some(session) = nonce.and_then(|nonce| self.sessions.opened_with(nonce)) {
            return Ok(session);
        }
        // A run that asks has replaced those before it of its node.
        for dead in self.shard().sessions().of_former_runs(run) {
            let ended = self.close_session(dead).await;
            ended.map_err(|error| error.while_doing("ending the sessions of a former run"))?;
        }
        let session = self.coordination.next_session().await?;
        loop {
            let shard = self.shard();
            match shard.open_session(session, run).await {
                Err(_) if shard.check_alive().is_err() => {
                    Box::pin(self.take_over_again(&shard)).await?;
                }
                Err(error) => return Err(error.while_doing("opening a session")),
                Ok(()) => break,
            }
        }
        self.sessions.begin(session, nonce);
        Ok(session)
    }

    /// Ends the sessions of earlier runs of this node's daemon: it can't run twice, so they are
    /// dead. Those of other nodes stay open until they end themselves or are ended by name.
    async fn end_former_runs(&self, shard: &Shard, run: NodeRun) -> Result<()> {
        for session in shard.sessions().of_former_runs(run) {
            shard.end_session(session).await?;
        }
        Ok(())
    }

    /// Ends a client's session: its locks and holds end, and orphans that only it held are
    /// released.
    ///
    /// # Errors
    /// Errors of the releases; the session has ended in any case.
    pub async fn close_session(&self, session: SessionId) -> Result<()> {
        // First, so that no late request adds an open or a lock.
        self.sessions.end(session);
        self.replays.forget(session);
        self.locks.release_session(session);
        let stamp = self.stamp();
        let mut result = Ok(());
        for inode in self.holders.end_session(session) {
            result = result.and(self.release(inode, &stamp).await);
        }
        self.owes_nothing(session);
        result.and(self.shard().end_session(session).await)
    }

    /// Every segment of the session with a counter up to this one is published or given up: if
    /// nothing points at it, it is garbage. Never goes back.
    pub fn report_low_water(&self, session: SessionId, counter: u64) {
        let is_open = || self.shard().session_standing(session) == Standing::Open;
        if !self.sessions.settle(session, counter) && is_open() {
            // It was opened under an owner before this one.
            self.sessions.begin(session, None);
            let _ = self.sessions.settle(session, counter);
        }
    }

    /// Segments that their writer will never publish: those that nothing points at are condemned now
    /// instead of by a sweep. Pieces on absent NSDs are left to the sweep.
    ///
    /// # Errors
    /// Errors of reading records; what isn't deleted is left to a sweep.
    pub async fn give_up(&self, places: Vec<SegmentPlace>) -> Result<()> {
        let shard = self.shard();
        let mut garbage = Vec::with_capacity(places.len());
        for place in places {
            if recorded(&shard, place.segment).await?.is_none() {
                garbage.push(place);
            }
        }
        count(
            &self.background.counts.segments_given_up,
            garbage.len() as u64,
        );
        self.condemn(garbage.clone()).await?;
        self.sync().await?;
        // Nobody reads what was never published: it needs no time to be forgotten.
        self.pool.delete(&garbage).await
    }

    /// Puts segments on the dead list that nothing points at and nothing ever will: their blobs are
    /// deleted once that is durable, so that a new owner knows what an old one may be deleting.
    pub(crate) async fn condemn(&self, places: Vec<SegmentPlace>) -> Result<()> {
        for part in places.chunks(CONDEMNED_MAX) {
            let places = part.to_vec();
            self.execute(&Operation::Condemn { places }, &self.stamp())
                .await?;
        }
        Ok(())
    }

    /// Runs one operation. Ready at once if its records are in memory; otherwise reads them from
    /// the tree. The change is in the open commit: durable after [`Metanode::sync`], or without it
    /// after at most 5 s. Truncates of large files run to their end inside.
    ///
    /// With a slot in the stamp (shipped operations) it returns once the reply is durable.
    ///
    /// # Errors
    /// POSIX refusals as their kinds; `NoSpace` for an operation that would add metadata to a full
    /// pool; `Unavailable` if the shard couldn't be taken over for a minute.
    pub async fn execute(&self, operation: &Operation, stamp: &Stamp) -> Result<Reply> {
        self.execute_as(operation, stamp, false).await
    }

    /// As [`Metanode::execute`] for a client on another node: returns once everything that the
    /// answer shows is durable.
    ///
    /// # Errors
    /// As [`Metanode::execute`]; also `Unavailable` if it can't be made durable.
    pub async fn execute_durable(&self, operation: &Operation, stamp: &Stamp) -> Result<Reply> {
        self.execute_as(operation, stamp, true).await
    }

    async fn execute_as(
        &self,
        operation: &Operation,
        stamp: &Stamp,
        durable: bool,
    ) -> Result<Reply> {
        self.check_reclaimed(stamp.session)?;
        if !self.has_run(stamp).await? {
            self.check_room(operation).await?;
        }
        let reply = self.run_as(operation, stamp, durable).await;
        self.complete(operation, stamp, reply, durable).await
    }

    /// Whether the operation of the stamp's slot has been answered: it must not be refused now. Also
    /// if that can't be seen before the shard is taken over again.
    async fn has_run(&self, stamp: &Stamp) -> Result<bool> {
        let Some((slot, number)) = stamp.slot else {
            return Ok(false);
        };
        let session = stamp.session;
        let key = namespace::Key::Slot { session, slot };
        let shard = self.shard();
        match shard.record(&key).await {
            Ok(Some(Record::Slot(last))) => Ok(last.number == number),
            Ok(_) => Ok(false),
            Err(error) if is_of_given_up(&shard, &error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// As [`Metanode::execute`]: on this thread, ready unless something is missing.
    pub(crate) fn begin<'a>(
        &'a self,
        operation: &'a Operation,
        stamp: &'a Stamp,
    ) -> Asked<'a, Result<Reply>> {
        let in_grace = self.in_grace.load(Ordering::Relaxed);
        if stamp.slot.is_none() && !in_grace && (!grows(operation) || self.measure_room()) {
            let shard = self.shard.load();
            match shard.execute_now(operation, stamp) {
                Some(Err(error)) if is_of_given_up(&shard, &error) => {}
                Some(reply) if is_complete(operation, &reply) => return Asked::Ready(reply),
                Some(reply) => {
                    return Asked::Waits(Box::pin(self.complete(operation, stamp, reply, false)));
                }
                None => {}
            }
        }
        Asked::Waits(Box::pin(self.execute(operation, stamp)))
    }

    /// Does what an answer leaves to do, if it isn't [complete](is_complete).
    async fn complete(
        &self,
        operation: &Operation,
        stamp: &Stamp,
        reply: Result<Reply>,
        durable: bool,
    ) -> Result<Reply> {
        match reply {
            Ok(Reply::Removed { orphaned: true, .. } | Reply::Renamed { orphaned: true, .. }) => {
                // Boxed because it is rare: otherwise every operation's future would contain it.
                Box::pin(self.note_orphan(&reply, stamp)).await;
                reply
            }
            Ok(Reply::Entry { attributes, .. })
                if matches!(operation, Operation::CreateUnnamed { .. }) =>
            {
                self.holders.made_nameless(attributes.inode);
                reply
            }
            Ok(Reply::Attributes {
                unfinished: true, ..
            }) => {
                let inode =
                    cut_inodes(operation)[0].expect("only operations on an inode leave a cut");
                let reply = self.finish_cut(inode, stamp).await;
                if durable {
                    self.sync().await?;
                }
                reply
            }
            Err(error) if error.kind() == ErrorKind::Busy && cut_inodes(operation)[0].is_some() => {
                for inode in cut_inodes(operation).into_iter().flatten() {
                    self.finish_cut(inode, stamp).await?;
                }
                self.run_as(operation, stamp, durable).await
            }
            reply => reply,
        }
    }

    /// An inode in use lost its last name: its last close releases it. If that close came before
    /// this note, it is released here; if that fails, at the next start.
    async fn note_orphan(&self, reply: &Result<Reply>, stamp: &Stamp) {
        let Ok(
            Reply::Removed { attributes, .. }
            | Reply::Renamed {
                target: Some(attributes),
                ..
            },
        ) = reply
        else {
            return;
        };
        let inode = attributes.inode;
        if !self.holders.lost_names(inode) {
            return;
        }
        if let Err(error) = self.release(inode, stamp).await {
            tracing::warn!(%inode, %error, "an inode without names couldn't be released");
        }
    }

    /// Releases an inode that was just unused. If it is in use again, it is noted so that its last
    /// close asks again; if that close came first, this asks again itself.
    pub(crate) async fn release(&self, inode: InodeId, stamp: &Stamp) -> Result<()> {
        let stamp = Stamp {
            slot: None,
            ..*stamp
        };
        loop {
            let reply = self.run(&Operation::Release { inode }, &stamp).await?;
            let is_held = matches!(reply, Reply::Progress { more: true });
            // During the grace time everything counts as held; its end releases what isn't.
            let is_grace = self.in_grace.load(Ordering::SeqCst);
            if !is_held || is_grace || !self.holders.lost_names(inode) {
                return Ok(());
            }
        }
    }

    /// Makes everything answered so far durable. Concurrent calls share one commit.
    ///
    /// # Errors
    /// `Unavailable` if that isn't possible now; it is retried in the background.
    pub async fn sync(&self) -> Result<()> {
        loop {
            let shard = self.shard();
            match shard.sync().await {
                // Boxed: the take-over's future is large and rare, and every caller's would contain
                // it.
                Err(_) if shard.check_alive().is_err() => {
                    Box::pin(self.take_over_again(&shard)).await?
                }
                other => return other,
            }
        }
    }

    /// Whether every change is durable.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.shard().is_clean()
    }

    /// Adds a use of an inode (open, or looked up by a kernel), which then survives losing its last
    /// name. Counted; cheap; no I/O.
    pub fn hold(&self, session: SessionId, inode: InodeId) {
        self.holders.hold(session, inode);
    }

    /// Removes a use of the stamp's session. The last one of an inode without names releases it.
    ///
    /// # Errors
    /// Errors of the release; the use is removed in any case.
    pub async fn unhold(&self, inode: InodeId, stamp: &Stamp) -> Result<()> {
        if self.holders.unhold(stamp.session, inode) {
            self.release(inode, stamp).await?;
        }
        Ok(())
    }

    /// The lock tables.
    #[must_use]
    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// Space and inodes for `df` and statfs. No I/O if the counters are in memory.
    ///
    /// # Errors
    /// `Unavailable` while the shard is being taken over.
    pub async fn usage(&self) -> Result<Usage> {
        let reply = self
            .execute(
                &Operation::GetUsage {
                    inode: InodeId::ROOT,
                },
                &self.stamp(),
            )
            .await?;
        let Reply::Usage {
            inodes,
            logical,
            allocated,
        } = reply
        else {
            unreachable!("GetUsage answers Usage")
        };
        let pool = self.pool.usage();
        Ok(Usage {
            capacity: pool.capacity,
            used: pool.used,
            available: pool.available_to_users,
            inodes,
            logical,
            allocated,
        })
    }

    /// Waits for causes outside the operations themselves, longest first.
    #[must_use]
    pub fn waiters(&self) -> Vec<Waiter> {
        self.waiters.list(self.world.now())
    }

    /// State of the shard.
    #[must_use]
    pub fn shard_status(&self) -> ShardStatus {
        let shard = self.shard();
        ShardStatus {
            shard: shard.id(),
            epoch: shard.epoch(),
            durable: shard.durable(),
        }
    }

    /// Memory: purpose, bytes in use, budget in bytes.
    #[must_use]
    pub fn memory(&self) -> Vec<(&'static str, u64, u64)> {
        let (_, bytes) = self.shard().hot_records();
        vec![
            (
                "hot records",
                bytes as u64,
                self.config.hot_records_bytes as u64,
            ),
            ("table blocks", TREE_CACHE_BYTES, TREE_CACHE_BYTES),
        ]
    }

    /// Whether the metanode is being closed.
    pub(crate) fn closes(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Stops background work, makes everything durable, closes the tree.
    ///
    /// # Errors
    /// `Unavailable` if the last commit couldn't be made durable.
    pub async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::SeqCst);
        self.background.stop();
        let _round = self.background.round.lock().await;
        self.shard().close().await
    }

    /// The shard hosted now, for status and tests; a different one after a take-over.
    #[must_use]
    pub fn hosted(&self) -> Arc<Shard> {
        self.shard()
    }

    /// Puts records without checking any rule. Only for tests that checks find the damage.
    #[doc(hidden)]
    pub fn forge(&self, effects: namespace::Effects) {
        self.shard().forge(effects);
    }

    /// The shard hosted now.
    pub(crate) fn shard(&self) -> Arc<Shard> {
        self.shard.load_full()
    }

    /// The stamp of the metanode's own operations.
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp {
            now: self.world.wall(),
            session: self.segments.session(),
            slot: None,
        }
    }

    /// Runs an operation on the shard, taking it over again if it was given up. An operation
    /// refused by a given-up shard was not applied.
    pub(crate) async fn run(&self, operation: &Operation, stamp: &Stamp) -> Result<Reply> {
        self.run_as(operation, stamp, false).await
    }

    /// As [`Metanode::run`]; durable if it must be, or has a slot.
    async fn run_as(&self, operation: &Operation, stamp: &Stamp, durable: bool) -> Result<Reply> {
        loop {
            let shard = self.shard.load();
            let answer = if durable || stamp.slot.is_some() {
                shard.execute_durable(operation, stamp).await
            } else {
                let done = shard.execute(operation, stamp).await;
                done.map(|(reply, _)| reply)
            };
            match answer {
                Err(error) if is_of_given_up(&shard, &error) => {
                    Box::pin(self.take_over_again(&shard)).await?;
                }
                answer => return answer,
            }
        }
    }

    async fn finish_cut(&self, inode: InodeId, stamp: &Stamp) -> Result<Reply> {
        let stamp = Stamp {
            slot: None,
            ..*stamp
        };
        for _ in 0..CUT_STEPS_MAX {
            let reply = self.run(&Operation::ContinueCut { inode }, &stamp).await?;
            if !matches!(
                reply,
                Reply::Attributes {
                    unfinished: true,
                    ..
                }
            ) {
                return Ok(reply);
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("the truncate of inode {inode} doesn't end"),
        ))
    }

    pub(crate) fn attach(&self, shard: &Shard) {
        let holders = self.holders.clone();
        let in_grace = self.in_grace.clone();
        shard.set_holders(Arc::new(move |inode| {
            in_grace.load(Ordering::Relaxed) || holders.is_held(inode)
        }));
    }

    /// Releases all inodes without names that nothing holds.
    pub(crate) async fn release_orphans(&self, shard: &Shard) -> Result<()> {
        let (mut from, to) = Table::Orphans.range();
        let stamp = self.stamp();
        loop {
            let page = shard.scan_readable(&from, &to, SCAN_PAGE).await?;
            let Some((last, _)) = page.last() else {
                return Ok(());
            };
            from = successor(last);
            for (key, _) in &page {
                let namespace::Key::Orphan(inode) = key else {
                    continue;
                };
                let release = Operation::Release { inode: *inode };
                match shard.execute(&release, &stamp).await {
                    Ok(_) => {}
                    // One damaged inode must not make the whole file system unavailable.
                    Err(error) if is_damage(error.kind()) => {
                        tracing::error!(%inode, %error, "an inode without names can't be released: run `shale fs check`");
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

fn config(opening: &Opening) -> ShardConfig {
    ShardConfig {
        opening: shard::Opening {
            world: opening.world.clone(),
            shard: opening.shard,
            family: opening.family,
            coordination: opening.coordination.clone(),
            pool: opening.pool.clone(),
            cache: TreeCache::new(TREE_CACHE_BYTES),
            run: opening.run,
        },
        hot_records_bytes: shard::hot_records_bytes(if opening.world.is_simulated() {
            0
        } else {
            world::host::memory_bytes()
        }),
    }
}

/// Whether an operation was refused because its shard was given up: it was not applied.
fn is_of_given_up(shard: &Shard, error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable && shard.check_alive().is_err()
}

/// Whether an answer leaves nothing to do.
fn is_complete(operation: &Operation, reply: &Result<Reply>) -> bool {
    match reply {
        Ok(Reply::Removed { orphaned, .. } | Reply::Renamed { orphaned, .. }) => !orphaned,
        Ok(Reply::Entry { .. }) => !matches!(operation, Operation::CreateUnnamed { .. }),
        Ok(Reply::Attributes { unfinished, .. }) => !unfinished,
        Err(error) => error.kind() != ErrorKind::Busy || cut_inodes(operation)[0].is_none(),
        Ok(_) => true,
    }
}

/// Whether records contradict each other.
fn is_damage(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Corrupt | ErrorKind::Stale | ErrorKind::NotFound
    )
}

/// The inodes whose unfinished truncate an operation may leave or find.
fn cut_inodes(operation: &Operation) -> [Option<InodeId>; 2] {
    match operation {
        Operation::SetAttributes { inode, .. }
        | Operation::ContinueCut { inode }
        | Operation::ChangeRange { inode, .. } => [Some(*inode), None],
        Operation::Publish(publish) => [Some(publish.inode), None],
        Operation::Share { from, to, .. } => [Some(*to), Some(*from)],
        _ => [None, None],
    }
}
