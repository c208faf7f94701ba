//! The metanode itself: composes its parts; the interface for clients.

mod callers;
mod granting;
mod near;
mod opens;
mod operations;
mod reclaim;
mod rounds;
mod serving;
mod streams;
mod upkeep;

use crate::background::{Background, Surveys};
use crate::holders::Holders;
use crate::host::{FORMER_RUNS_BUDGET, Host, TAKE_OVER};
use crate::in_use::InodesInUse;
use crate::judging::Judging;
use crate::lease::OwnerLease;
use crate::locks::Locks;
use crate::metanode::reclaim::Reclaim;
use crate::metanode::rounds::Rounds;
use crate::metanode::serving::replays::Replays;
use crate::metanode::streams::Streams;
use crate::report::{InUse, ShardStatus};
use crate::room::Room;
use crate::sessions::ClientSessions;
use crate::tokens::Tokens;
use coordination::{Coordination, FileSystem, NewFileSystem};
use model::owner::{Tenure, Usage};
use model::{
    FamilyId, NodeId, NodeRun, Result, SessionId, ShardId, TokenMode, TokenObject, TokenRange,
};
use parking_lot::Mutex;
use pool::Pool;
use shard::{Shard, ShardMemory, Touch, within};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use world::{Waiter, Work, World};

/// Everything needed to open a metanode.
#[derive(Clone)]
pub struct Opening {
    /// The machine.
    pub world: World,
    /// The shard to host; created if it doesn't exist.
    pub shard: ShardId,
    /// The first family of a shard that is created; one that exists has those in its record.
    pub family: FamilyId,
    /// Epochs, sessions, maps.
    pub coordination: Coordination,
    /// Stores data, tables and log.
    pub pool: Arc<Pool>,
    /// This run of this node: the shard's record must name it, or it isn't taken over.
    pub run: NodeRun,
    /// The memory of all shards of this process.
    pub memory: ShardMemory,
    /// Until when this process may answer other nodes.
    pub lease: OwnerLease,
    /// Who looks through the pool's groups.
    pub surveys: Surveys,
    /// Whether the cluster hears this node.
    pub touch: Arc<dyn Touch>,
}

/// One file system's metadata service in this process.
pub struct Metanode {
    world: World,
    host: Arc<Host>,
    room: Arc<Room>,
    judging: Judging,
    background: Background,
    rounds: Rounds,
    holders: Arc<Holders>,
    locks: Locks,
    tokens: Arc<Tokens>,
    lease: OwnerLease,
    /// Set while inodes without names must stay and new locks must wait; read by every operation.
    in_grace: Arc<AtomicBool>,
    /// Set while some session has yet to say what it holds; read by every operation.
    is_owed: AtomicBool,
    /// Set while some session may replace what it has said by something else; read by every request in order.
    is_unsettled: AtomicBool,
    reclaim: Mutex<Reclaim>,
    /// A metanode has one: it ends for good when another owner follows it.
    tenure: Tenure,
    /// What the records don't say of clients' sessions.
    sessions: Arc<ClientSessions>,
    /// Their last requests, of those on other nodes.
    replays: Replays,
    /// What they have answered before this owner did.
    streams: Streams,
}

impl Metanode {
    /// Makes the shard with an empty file system, assigned to the run; doesn't open it.
    ///
    /// # Errors
    /// `Exists` if it exists; `Unavailable` if the pool has no NSD for its log, or if coordination
    /// doesn't answer: then it may exist.
    pub async fn create(opening: &Opening) -> Result<()> {
        Shard::create(&of_shard(opening)).await
    }

    /// Makes a file system that was drafted, empty, with its shard; doesn't open it. `assigned`: who
    /// shall own the shard; `None`: the cluster's manager says who.
    ///
    /// # Errors
    /// `Changed`: its name or numbers aren't free any more; nothing was made. `Unavailable` if the pool has no
    /// NSD for its log, or if coordination doesn't answer: then it may have been made.
    pub async fn create_file_system(
        opening: &Opening,
        new: &NewFileSystem,
        assigned: Option<NodeRun>,
    ) -> Result<FileSystem> {
        Shard::create_file_system(&of_shard(opening), new, assigned).await
    }

    /// Takes the shard over and opens it; creates an empty file system if the shard doesn't exist.
    /// Work left by a crash (inodes without names, queued data ids) is finished in the background.
    ///
    /// # Errors
    /// `Unavailable` if too few NSDs answer, `OldEpoch` if the shard is assigned to another process,
    /// and errors of coordination.
    pub async fn open(opening: Opening) -> Result<Arc<Self>> {
        let (world, work) = (opening.world.clone(), Work::TakeOver(opening.shard));
        let opened = world.at_work(TAKE_OVER, work, Self::take_over(opening));
        opened.await
    }

    async fn take_over(opening: Opening) -> Result<Arc<Self>> {
        let of_shard = of_shard(&opening);
        let Opening {
            world,
            run,
            lease,
            surveys,
            ..
        } = opening;
        let holders = Arc::<Holders>::default();
        let in_grace = Arc::new(AtomicBool::new(true));
        let in_use = InodesInUse::new(holders.clone(), in_grace.clone());
        let host = Host::open(of_shard, Arc::new(in_use)).await?;
        let shard = host.shard();
        let sessions = Arc::<ClientSessions>::default();
        let judging = Judging::new(host.clone(), sessions.clone());
        let room = Arc::new(Room::new(host.clone()));
        let tenure = Tenure(shard.epoch().0);
        let metanode = Arc::new(Self {
            tokens: Arc::new(Tokens::new(&world, tenure, lease.clone())),
            lease,
            background: Background::new(&host, &judging, &room, &surveys),
            rounds: Rounds::default(),
            holders,
            locks: Locks::new(),
            in_grace,
            is_owed: AtomicBool::new(true),
            is_unsettled: AtomicBool::new(true),
            reclaim: Mutex::new(Reclaim::begin(&shard.sessions(), world.now())),
            tenure,
            sessions,
            replays: Replays::default(),
            streams: Streams::default(),
            world,
            host,
            room,
            judging,
        });
        let prepared = metanode.prepare(run).await;
        prepared.inspect_err(|error| metanode.host.abandon(error))?;
        metanode.room.measure();
        let watch = watch_tokens(Arc::downgrade(&metanode));
        metanode
            .rounds
            .watch(metanode.world.spawn("watches tokens", watch));
        Ok(metanode)
    }

    /// What an owner does before it serves: ends the sessions of earlier runs of this node, begins the
    /// grace time, and ends it at once if no session is open.
    async fn prepare(&self, run: NodeRun) -> Result<()> {
        let (step, shard) = ("end the sessions of former runs", self.shard());
        let ending = self.end_former_runs(&shard, run);
        within(&self.world, FORMER_RUNS_BUDGET, step, ending).await?;
        self.begin_grace();
        let sessions = self.shard().sessions();
        let clients = sessions.of_clients().map(|(session, _)| session);
        self.tokens.begin(clients.collect());
        self.begin_releases().await
    }

    /// Makes everything answered so far durable. Concurrent calls share one commit.
    ///
    /// # Errors
    /// `Unavailable` if that isn't possible now; it is retried in the background.
    pub async fn sync(&self) -> Result<()> {
        self.host.sync().await
    }

    /// Whether every change is durable.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.shard().is_clean()
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
        self.host.usage().await
    }

    /// Waits for causes outside the operations themselves, longest first.
    #[must_use]
    pub fn waiters(&self) -> Vec<Waiter> {
        let (mut waiters, _) = self.room.waits();
        waiters.extend(self.tokens.waiters());
        waiters.sort_by_key(|waiter| std::cmp::Reverse(waiter.since));
        waiters.truncate(world::WAITERS_MAX);
        waiters
    }

    /// The same with what they wait for, and the waits of clients' requests about tokens and locks: for chains of waits.
    /// Of each kind at most [`WAITERS_MAX`](world::WAITERS_MAX) with what they wait for, and how many more there are.
    #[must_use]
    pub fn waits(&self) -> (Vec<Waiter>, usize) {
        let sessions = self.shard().sessions();
        let nodes = sessions.of_clients();
        let nodes: BTreeMap<SessionId, NodeId> =
            nodes.map(|(session, run)| (session, run.node)).collect();
        let of_locks = self.locks.waits(&nodes, self.world.now());
        world::joined_waits([self.room.waits(), self.tokens.waits(&nodes), of_locks])
    }

    /// Whether this owner knows that a session holds at least this; `None` while sessions may hold what they
    /// haven't said yet. For those who look from outside.
    #[must_use]
    pub fn knows_token(
        &self,
        session: SessionId,
        object: TokenObject,
        range: TokenRange,
        mode: TokenMode,
    ) -> Option<bool> {
        self.tokens.knows(session, object, range, mode)
    }

    /// What clients have here. For those who look from outside.
    #[must_use]
    pub fn in_use(&self) -> InUse {
        InUse {
            sessions: self.shard().sessions().of_clients().count(),
            inodes: self.holders.count(),
            locks: self.locks.count(),
        }
    }

    /// State of the shard.
    #[must_use]
    pub fn shard_status(&self) -> ShardStatus {
        self.host.status()
    }

    /// Adds a family with an empty fileset to the shard; durable when it returns. Its root is
    /// [`FamilyId::root`].
    ///
    /// # Errors
    /// `Exists` if a shard has the family; `InvalidArgument` if there is no such number; `Unavailable` while
    /// the shard is being taken over: ask again.
    pub async fn add_family(&self, family: FamilyId) -> Result<()> {
        self.shard().add_family(family).await
    }

    /// Returns once another owner has followed this one, which then refuses everything for good. The
    /// process may open the shard anew.
    pub async fn superseded(&self) {
        self.host.superseded().await;
    }

    /// Stops background work, makes everything durable, closes the tree.
    ///
    /// # Errors
    /// `Unavailable` if the last commit couldn't be made durable.
    pub async fn close(&self) -> Result<()> {
        self.host.begin_close();
        self.rounds.stop();
        self.background.stop();
        let _round = self.background.begin_round().await;
        let closed = self.host.close().await;
        self.room.leave();
        closed
    }

    /// The shard hosted now, for status and tests; a different one after a take-over.
    #[must_use]
    pub fn hosted(&self) -> Arc<Shard> {
        self.shard()
    }

    /// The shard hosted now.
    fn shard(&self) -> Arc<Shard> {
        self.host.shard()
    }
}

fn of_shard(opening: &Opening) -> shard::Opening {
    shard::Opening {
        world: opening.world.clone(),
        shard: opening.shard,
        family: opening.family,
        coordination: opening.coordination.clone(),
        pool: opening.pool.clone(),
        memory: opening.memory.clone(),
        run: opening.run,
        touch: opening.touch.clone(),
    }
}

/// Until the metanode ends.
async fn watch_tokens(metanode: Weak<Metanode>) {
    while let Some(it) = metanode.upgrade() {
        if !it.watch_tokens().await {
            return;
        }
    }
}
