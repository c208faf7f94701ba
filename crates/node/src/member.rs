//! One node of a cluster: serves its NSDs to the others, hosts each shard while coordination's record
//! of it names this run, and opens clients of any shard wherever its owner is.
//!
//! But for the manager, a member decides nothing about other nodes. Coordination says where daemons listen, which node
//! has which NSD, what the pool's map is and which run owns each shard ([`coordination::Roster`]); a
//! task follows it (`follow`), another one has a task for each shard that is hosted here (`hosting`).
//!
//! *A read* of a client here: the owner's extents by a call (`owners` finds its node), then pieces
//! from the pool's handles: functions for NSDs of this node, calls through `peers` for others.
//! *A write*: pieces to the handles, then a publish to the owner. *A create*: one call to the owner. If that is on another
//! node, its answer is durable before it is given, so that it survives both. If it is here, it is a function call whose answer
//! is durable soon, and which is lost with this node if at all. *A failure* of the owner: calls to it end as
//! unknown or not run; the client asks `owners` for another owner until its patience ends, and sends
//! the same request under the same number. A member whose shard was assigned to another run refuses
//! its requests from then on, and gives the shard up; one that hasn't heard of it is refused by the
//! sealed log.
//!
//! *The lease*: `lease` says to the cluster's manager every two seconds what the node does; owners here answer
//! nothing when the manager's last answer is too old. Then other nodes are asked whether this run has ended (`ending`). One of
//! the members is the manager (`managing`): it expels nodes that have died or fallen silent, and gives their shards to others.
//! A node that can't be reached from here although the manager hears it is reported to that (`reach`), and one of both goes.

mod commands;
mod ending;
mod file_systems;
mod follow;
mod founding;
mod hold_ups;
mod hosting;
mod jobs;
mod lease;
mod managing;
mod owners;
mod peers;
mod reach;
mod renewing;
mod services;
mod spaces;
mod stopping;
mod storage;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
mod touch;

pub use commands::Commands;
pub use file_systems::FIRST_FILE_SYSTEM;
pub use founding::{Founding, FoundingNsd};
pub use renewing::Renew;

use crate::nsds::{Failures, LocalNsds, NsdView};
use crate::{LOOK_EVERY, ROOT_FAMILY, ROOT_SHARD, block_bytes};
use client::{Client, ClientSettings, Legacy, Owner, Owners, RemoteOwner};
use coordination::{Coordination, NodeAddress, Roster};
use file_systems::Creations;
use jobs::Jobs;
use lease::RunLease;
use manager::Moment;
use managing::Office;
use metanode::{DATA_POOL, Metanode, ShardMemory};
use model::{Error, ErrorKind, FamilyId, NodeId, NodeRun, NsdId, Result, ShardId};
use owners::ShardOwners;
use parking_lot::Mutex;
use peers::Peers;
use pool::Pool;
use reach::Reach;
use rpc::security::{Admit, Security};
use rpc::{Addresses, Admission, Connections, Credit, Identity, LaneView, ServedView, Server};
use services::Services;
use spaces::{Desk, Holding};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use touch::NodeTouch;
use world::call::Remote;
use world::{Deadline, Instant, Task, World};

/// What this node takes on for others: of each class, from lease to repair, so many requests and
/// MiB on each connection whose lane carries it. A request of file data or repair may carry the largest
/// piece both ways (34 MiB). With the default of two connections for file data another node can have 337
/// MiB under way here, with eight 961, and 1,770 if it breaks the rules (`Admission::node_bytes_max`).
const ADMISSION: Admission = Admission {
    credits: [
        credit(16, 1),
        // Of each session of the other node up to 256 that wait for locks, and as many threads of each of its mounts.
        credit(1_024, 96),
        credit(32, 64),
        credit(8, 40),
    ],
    // Reads of 4 KiB, many at a time; of those at the threshold of 512 KiB fewer.
    small_data: credit(128, 32),
    // Requests that wait for another's lock are metadata requests too: they are cheap, and many. What they wait for is one
    // as well, so it must find room however many nodes wait.
    running: [64, 65_536, 256, 64],
    connections: 4_096,
};

/// How long a closing member waits for the requests of others that it has begun.
const GOODBYE_MAX: Duration = Duration::from_secs(2);

/// How long other nodes have to leave connections that this one takes no more, and then to end what is under way: longer
/// than the longest call between members, with which each learns that the other has ended.
const UNTAKEN_MAX: Duration = Duration::from_secs(12);

/// How long a member that leaves waits for the manager.
const LEAVE_MAX: Duration = Duration::from_secs(60);

/// How long a new client waits for enough NSDs to say how much they hold, and how often it looks.
const SPACE_KNOWN_MAX: Duration = Duration::from_secs(3);
const SPACE_LOOK_EVERY: Duration = Duration::from_millis(10);

const fn credit(requests: u32, mebibytes: u64) -> Credit {
    Credit {
        requests,
        bytes: mebibytes << 20,
    }
}

/// How a member's connections are protected.
#[derive(Clone)]
pub struct Protection {
    /// Who it is, and whom it believes.
    pub security: Arc<Security>,
    /// Decides which machines may join through this node; `None`: none may.
    pub admit: Option<Arc<dyn Admit>>,
}

/// How a member is started.
#[derive(Clone)]
pub struct MemberSettings {
    /// Its node.
    pub node: NodeId,
    /// Where it listens for other nodes; port 0 stands for any free port.
    pub listen: SocketAddr,
    /// The regions of its NSDs.
    pub nsds: BTreeMap<NsdId, PathBuf>,
    /// How its connections are protected; `None`: not at all, as in simulations.
    pub protection: Option<Protection>,
}

/// A running node of a cluster. Dropping it ends its tasks; [`Member::close`] does so in order.
pub struct Member {
    parts: Arc<Parts>,
    server: Server,
    block_bytes: u32,
    /// Clients that were opened here, for the lists of waits.
    clients: Mutex<Vec<Weak<Client>>>,
    creations: Creations,
    tasks: Mutex<Vec<Task<()>>>,
    /// Those that host shards and do the pool's jobs.
    duties: Mutex<Vec<Task<()>>>,
    /// The one that is the cluster's manager whenever nobody else is.
    managing: Mutex<Option<Task<()>>>,
}

/// What the tasks of a member share.
struct Parts {
    world: World,
    coordination: Coordination,
    run: NodeRun,
    nsds: LocalNsds,
    peers: Arc<Peers>,
    services: Arc<Services>,
    lease: Arc<RunLease>,
    reach: Arc<Reach>,
    office: Arc<Office>,
    desk: Arc<Desk>,
    holding: Arc<Holding>,
    jobs: Arc<Jobs>,
    /// Of all shards that are here.
    memory: ShardMemory,
    /// What coordination said last.
    roster: watch::Sender<Arc<Roster>>,
    /// Somebody needs to know it as of now.
    ask: Notify,
}

impl Member {
    /// Joins the cluster that coordination describes: a new run of the node, its NSDs opened and
    /// served. Those that don't open are left out, as long as redundancy allows.
    ///
    /// # Errors
    /// `NotFound` if no file system was founded; `OldEpoch` if a newer run of the node exists; `Unavailable` if it can't
    /// listen at the address, perhaps not yet; those of coordination. Nothing was promised to anyone: start it again.
    pub async fn start(
        world: &World,
        coordination: Coordination,
        settings: MemberSettings,
    ) -> Result<Arc<Self>> {
        Self::start_in(world, coordination, settings, None).await
    }

    /// As [`Member::start`], in a run that the node has begun when it was alone: it goes on with its shard, whose sessions stay
    /// open. Nobody else may have seen a member in this run that has ended.
    ///
    /// # Errors
    /// As [`Member::start`].
    pub async fn go_on(
        world: &World,
        coordination: Coordination,
        settings: MemberSettings,
        run: NodeRun,
    ) -> Result<Arc<Self>> {
        Self::start_in(world, coordination, settings, Some(run)).await
    }

    async fn start_in(
        world: &World,
        coordination: Coordination,
        settings: MemberSettings,
        run: Option<NodeRun>,
    ) -> Result<Arc<Self>> {
        let cluster = coordination.cluster().await?.ok_or_else(|| {
            let text = "coordination knows no file system; found one first";
            Error::new(ErrorKind::NotFound, text)
        })?;
        let listener = world.urgent().listen(settings.listen).await.map_err(|error| {
            // Perhaps the network isn't up yet, or a daemon that ended still has it.
            let text = format!(
                "{error}; it must be an address of this machine, whose network is up, and nothing else may listen there"
            );
            Error::new(ErrorKind::Unavailable, text)
                .while_doing(format!("listening at {}", settings.listen))
        })?;
        let run = match run {
            Some(run) => run,
            None => coordination.begin_run(settings.node).await?,
        };
        let roster = Roster::read(&coordination).await?;
        let map =
            roster.pools.get(DATA_POOL).cloned().ok_or_else(|| {
                Error::new(ErrorKind::Corrupt, "coordination knows no storage pool")
            })?;
        let failures = Failures::ByNode(settings.node);
        let nsds =
            LocalNsds::open(world, &coordination, cluster, failures, map, &settings.nsds).await?;
        let block_bytes = block_bytes(&coordination, &nsds.pool).await?;
        let identity = Identity { cluster, run };
        let lease = Arc::new(RunLease::new(world, run));
        let reach = Reach::new(world, &lease, &roster, run);
        let office = Arc::<Office>::default();
        let (desk, holding) = (Arc::<Desk>::default(), Holding::new(world));
        nsds.pool.share(holding.clone(), block_bytes);
        let space = (&desk, &holding);
        let jobs = Arc::<Jobs>::default();
        let server = nsds.server().clone();
        let roster = watch::Sender::new(Arc::new(roster));
        let known = roster.subscribe();
        let services = Services::new(world, server, &office, space, &lease, &jobs, known);
        let mut server = Server::new(world, identity, ADMISSION, services.clone());
        let mut addresses = Addresses::new(world);
        if let Some(Protection { security, admit }) = settings.protection {
            addresses = addresses.with_security(security.clone());
            server = server.with_security(security, admit);
        }
        let own = NodeAddress {
            run,
            address: listener.address(),
        };
        server.listen(listener);
        for opened in nsds
            .views()
            .iter()
            .filter(|it| nsds.pool.nsd(it.nsd).is_some())
        {
            coordination.set_home(opened.nsd, settings.node).await?;
        }
        coordination.set_address(own).await?;
        let parts = Arc::new(Parts {
            world: world.clone(),
            coordination,
            run,
            nsds,
            peers: Peers::new(
                world,
                identity,
                Arc::new(addresses),
                services.clone(),
                &reach,
            ),
            services,
            lease,
            reach,
            office,
            desk,
            holding,
            jobs,
            memory: ShardMemory::of_machine(world),
            roster,
            ask: Notify::new(),
        });
        parts.services.set_peers(&parts.peers);
        parts.use_roster();
        tracing::info!(%run, address = %own.address, "the node has joined the cluster");
        let mut tasks = vec![
            world.spawn("follows the cluster", follow::follow(parts.clone())),
            world.spawn("follows the pool's map", follow::follow_map(parts.clone())),
        ];
        let hosting = world.spawn("hosts the shards", hosting::supervise(parts.clone()));
        let mut duties = vec![hosting];
        tasks.extend([
            world
                .urgent()
                .spawn("keeps the lease", lease::keep(parts.clone())),
            world
                .urgent()
                .spawn("looks whom it reaches", reach::look(parts.clone())),
            world
                .urgent()
                .spawn("asks whether it has ended", ending::ask(parts.clone())),
        ]);
        let managing = world.spawn("manages the cluster", managing::manage(parts.clone()));
        tasks.extend([
            world.spawn("states its room", spaces::state(parts.clone())),
            world.spawn("looks for NSDs", look_for_nsds(parts.clone())),
        ]);
        duties.extend(jobs::begin(&parts));
        Ok(Arc::new(Self {
            parts,
            server,
            block_bytes,
            clients: Mutex::default(),
            creations: Creations::default(),
            tasks: Mutex::new(tasks),
            duties: Mutex::new(duties),
            managing: Mutex::new(Some(managing)),
        }))
    }

    /// Makes an empty shard with one family, owned by this run; `Metanode::add_family` gives it more. Of several nodes that ask at the same
    /// time for the same shard, or for the same family, one succeeds: shard and family are one change
    /// of coordination's facts. After an unknown outcome, ask again: the same shard and family of this
    /// run change nothing.
    ///
    /// # Errors
    /// `Exists` if the shard exists, or another one has the family; `InvalidArgument` for a family
    /// that no file system has; `Unavailable`: its outcome is unknown, ask again.
    pub async fn create_shard_of(&self, shard: ShardId, family: FamilyId) -> Result<()> {
        if family.0 >= FamilyId::COUNT {
            let text = format!("families have numbers below {}", FamilyId::COUNT);
            return Err(Error::new(ErrorKind::InvalidArgument, text)
                .while_doing(format!("create shard {shard} for family {family}")));
        }
        let parts = &self.parts;
        match parts.coordination.shard(shard).await? {
            None => Metanode::create(&parts.opening(shard, family)).await,
            Some(record) => {
                let record = record.value;
                if record.assigned == Some(parts.run) && record.families == [family] {
                    return Ok(());
                }
                let text = format!(
                    "shard {shard} exists, with families {:?}: choose a number that no shard has",
                    record.families
                );
                Err(Error::new(ErrorKind::Exists, text))
            }
        }
    }

    /// Opens a client of a shard, with a session of its own. Its root directory is that of the
    /// shard's family ([`FamilyId::root`]). Waits for an owner as long as the client's patience.
    ///
    /// # Errors
    /// `Unavailable` if no owner answers within the client's patience.
    pub async fn open_client_of(
        &self,
        shard: ShardId,
        settings: ClientSettings,
    ) -> Result<Arc<Client>> {
        self.open_client_through(shard, settings, |owners| owners)
            .await
    }

    /// As [`Member::open_client_of`]; the client reaches its owners through what `wrap` makes of the
    /// way to them, so that a test can listen.
    ///
    /// # Errors
    /// As [`Member::open_client_of`].
    pub async fn open_client_through(
        &self,
        shard: ShardId,
        settings: ClientSettings,
        wrap: impl FnOnce(Arc<dyn Owners>) -> Arc<dyn Owners>,
    ) -> Result<Arc<Client>> {
        let parts = &self.parts;
        let owners = wrap(ShardOwners::new(parts, shard));
        let owner = RemoteOwner::new(parts.world.clone(), shard, owners, settings.patience);
        let owner = Owner::There(owner);
        let session = owner.open_session(&parts.world).await?;
        let settings = ClientSettings {
            block_bytes: self.block_bytes,
            ..settings
        };
        let pool = parts.nsds.pool.clone();
        // Until then its first writes would be refused for want of space.
        self.until_space_known().await;
        let client = Client::new(parts.world.clone(), owner, pool, session, settings);
        self.note_client(&client);
        Ok(client)
    }

    /// A client of the first file system that goes on with what one has left which this node had in the same run, when it was
    /// alone. It has told the owner what programs have open, and their locks, when this returns.
    ///
    /// # Errors
    /// `SessionEnded`: all that is lost. `Unavailable` if the owner doesn't answer within the client's patience.
    pub async fn open_left(&self, legacy: Legacy, settings: ClientSettings) -> Result<Arc<Client>> {
        let parts = &self.parts;
        let owners = ShardOwners::new(parts, ROOT_SHARD);
        let owner = RemoteOwner::new(parts.world.clone(), ROOT_SHARD, owners, settings.patience);
        let settings = ClientSettings {
            block_bytes: self.block_bytes,
            ..settings
        };
        let pool = parts.nsds.pool.clone();
        self.until_space_known().await;
        let (world, owner) = (parts.world.clone(), Owner::There(owner));
        let session = legacy.session();
        let client = Client::go_on(world, owner, pool, legacy, settings)?;
        self.note_client(&client);
        // Nothing is answered before what is held is told.
        let told = client.get_attributes(ROOT_FAMILY.root()).await;
        if told.is_ok() && client.session() == session {
            return Ok(client);
        }
        // Nobody uses it: what it can't end, the node's next run does.
        let _ = client.close().await;
        let ended = || ErrorKind::SessionEnded.into();
        Err(told.err().unwrap_or_else(ended))
    }

    /// Waits of this client are among those of the node.
    fn note_client(&self, client: &Arc<Client>) {
        let mut clients = self.clients.lock();
        clients.retain(|client| client.strong_count() > 0);
        clients.push(Arc::downgrade(client));
    }

    /// Waits until it is known how large the pool is, but not for long.
    async fn until_space_known(&self) {
        let parts = &self.parts;
        let deadline = Deadline::after(&parts.world, SPACE_KNOWN_MAX);
        while parts.nsds.pool.usage().capacity == 0 && !deadline.has_passed(&parts.world) {
            parts.world.sleep(SPACE_LOOK_EVERY).await;
        }
    }

    /// This run of the node.
    #[must_use]
    pub fn run(&self) -> NodeRun {
        self.parts.run
    }

    /// Returns when the cluster doesn't count on this run any more: it was expelled. It answers nothing from
    /// then on; close it, and start another one. May wait for ever.
    pub async fn ended(&self) {
        self.parts.lease.ended().await;
    }

    /// Leaves the cluster: others get the shards that are here, each once it was given up here, and the manager's
    /// place. Returns when the membership says that this run has left; it answers nothing from then on: close it.
    /// Its NSDs are away then, so a node whose data must stay readable without redundancy is drained first
    /// ([`Member::drain_node`]). Clients of this node should have been closed before. A run that
    /// [waits to join](Self::waits_to_join) has nothing to leave.
    ///
    /// # Errors
    /// `Unavailable` if no manager has let it go within a minute: close it all the same, and others go on as after
    /// a kill.
    pub async fn leave(&self) -> Result<()> {
        if self.waits_to_join() {
            return Ok(());
        }
        self.parts.lease.leave();
        let left = self.parts.world.timeout(LEAVE_MAX, self.ended()).await;
        left.map_err(|_| {
            let text = format!("no manager has let node {} go", self.run().node);
            Error::new(ErrorKind::Unavailable, text)
        })
    }

    /// Whether the cluster's manager is here.
    #[must_use]
    pub fn is_manager(&self) -> bool {
        self.parts.office.is_open()
    }

    /// The metadata service of the root shard, while it is here.
    #[must_use]
    pub fn hosted(&self) -> Option<Arc<Metanode>> {
        self.hosted_of(ROOT_SHARD)
    }

    /// The metadata service of a shard, while it is here.
    #[must_use]
    pub fn hosted_of(&self, shard: ShardId) -> Option<Arc<Metanode>> {
        self.parts.services.hosted(shard)
    }

    /// The shards that are here, in the order of their numbers.
    #[must_use]
    pub fn hosted_shards(&self) -> Vec<ShardId> {
        let hosted = self.parts.services.all_hosted();
        hosted.into_iter().map(|(shard, _)| shard).collect()
    }

    /// How many connections this node wants to each other one, and what they are used for, from now on.
    /// The smaller wish of two nodes counts; calls under way go on.
    ///
    /// # Errors
    /// `InvalidArgument`: a value is out of its range; nothing has changed.
    pub fn set_connections(&self, connections: Connections) -> Result<()> {
        self.parts.peers.set_connections(connections)?;
        self.server.set_connections(connections)
    }

    /// This machine's network is a bond of so many links with `xmit_hash_policy=layer3+4`: connections opened from
    /// now on are spread over them. 0 or 1: it isn't.
    pub fn set_bond_links(&self, links: u8) {
        self.parts.peers.set_bond_links(links);
    }

    /// The node's security takes less than before, or believes others: calls go over new connections, and those of other
    /// nodes that wouldn't be let in any more are ended, in good order where they do the same. Returns when there are none,
    /// within some seconds.
    pub async fn renew_connections(&self) {
        self.parts.peers.renew();
        self.server.end_untaken(UNTAKEN_MAX).await;
    }

    /// The connections to each node that was called, by lanes.
    #[must_use]
    pub fn lanes(&self) -> BTreeMap<NodeId, Vec<LaneView>> {
        self.parts.peers.lanes()
    }

    /// The connections of other nodes to this one.
    #[must_use]
    pub fn served(&self) -> Vec<ServedView> {
        self.server.connections()
    }

    /// The storage pool, as this node sees it.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.parts.nsds.pool
    }

    /// The NSDs of the cluster as this node sees them; of those of other nodes it knows no more than that they answer.
    #[must_use]
    pub fn nsds(&self) -> Vec<NsdView> {
        self.parts.nsds.views()
    }

    /// What the memory of the metadata services here is used for.
    #[must_use]
    pub fn memory_uses(&self) -> Vec<metanode::MemoryUse> {
        self.parts.memory.uses()
    }

    /// Bytes per block of clients that open now.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Small facts that the cluster agrees on.
    #[must_use]
    pub fn coordination(&self) -> &Coordination {
        &self.parts.coordination
    }

    /// Time and tasks.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.parts.world
    }

    /// Until when this node may act, as far as it knows; the past before its first lease.
    #[must_use]
    pub fn lease_ends(&self) -> Instant {
        self.parts.lease.ends()
    }

    /// The members that this node needs and can't reach, and for how long; while it [waits to join](Self::waits_to_join)
    /// those that didn't answer the last time.
    #[must_use]
    pub fn unreached(&self) -> Vec<(NodeId, Duration)> {
        self.parts.reach.unreached()
    }

    /// The run before was expelled because it and another node couldn't reach each other, and this one waits until it
    /// reaches all nodes that it needs: it is no member before, and has no lease.
    #[must_use]
    pub fn waits_to_join(&self) -> bool {
        !self.parts.reach.may_join()
    }

    /// What this node knows of the cluster.
    #[must_use]
    pub fn roster(&self) -> Arc<Roster> {
        self.parts.roster.borrow().clone()
    }

    /// All waits of this node's clients and of the metadata services here, longest first.
    #[must_use]
    pub fn waiters(&self) -> Vec<world::Waiter> {
        let (mut waiters, _) = self.waits_of_clients();
        let hosted = self.parts.services.all_hosted();
        waiters.extend(hosted.iter().flat_map(|(_, metanode)| metanode.waiters()));
        waiters.sort_by_key(|waiter| std::cmp::Reverse(waiter.since));
        waiters.truncate(world::WAITERS_MAX);
        waiters
    }

    /// All waits of this node with what they wait for, longest first, and how many more found no room: for chains of
    /// waits. Of clients at most [`WAITERS_MAX`](world::WAITERS_MAX), of each metadata service as many as it lists, and
    /// [`WAITS_MAX`](world::WAITS_MAX) of the rest.
    #[must_use]
    pub fn waits(&self) -> (Vec<world::Waiter>, usize) {
        let of_clients = world::longest_waits(self.waits_of_clients(), world::WAITERS_MAX);
        let hosted = self.parts.services.all_hosted();
        let of_services = hosted.iter().map(|(_, metanode)| metanode.waits());
        let others = [self.parts.world.waits(), of_clients].into_iter();
        world::longest_waits(world::joined_waits(others.chain(of_services)), usize::MAX)
    }

    /// And how many more there are than the clients list.
    fn waits_of_clients(&self) -> (Vec<world::Waiter>, usize) {
        let clients: Vec<_> = self
            .clients
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        world::joined_waits(clients.iter().map(|client| client.waits()))
    }

    /// How long the lease of each member lasts still, unless it is heard before; nothing if the cluster's manager isn't
    /// here.
    #[must_use]
    pub fn lease_rests(&self) -> Vec<(NodeId, Duration)> {
        self.parts.office.lease_rests(self.parts.moment())
    }

    /// Gives up the shards that are here, ends all connections, and closes the NSDs. Clients should
    /// have been closed before.
    ///
    /// # Errors
    /// The first NSD that couldn't be closed.
    pub async fn close(&self) -> Result<()> {
        // Before nobody keeps it any more.
        self.parts.lease.closes();
        let tasks = std::mem::take(&mut *self.tasks.lock());
        let duties = std::mem::take(&mut *self.duties.lock());
        let managing = self.managing.lock().take();
        drop((tasks, duties, managing));
        let parts = &self.parts;
        parts.leave_shards().await;
        // When the whole cluster stops, nobody asks them any more, and whoever sees that this node doesn't listen knows
        // that all of it is closed.
        let closed_first = match parts.office.is_retired() {
            true => Some(parts.nsds.close().await),
            false => None,
        };
        let goodbye = Deadline::after(&parts.world, GOODBYE_MAX);
        self.server.close(goodbye).await;
        parts.peers.close(goodbye).await;
        match closed_first {
            Some(closed) => closed,
            None => parts.nsds.close().await,
        }
    }
}

impl Parts {
    /// Now, as the rules of `manager` count time.
    fn moment(&self) -> Moment {
        self.lease.moment(self.world.now())
    }

    /// The way to a run's node; another run may answer.
    fn way_to(&self, run: NodeRun) -> Arc<dyn Remote> {
        match run.node == self.run.node {
            true => self.peers.own(),
            false => self.peers.to(run.node),
        }
    }

    /// What a shard is opened with here.
    fn opening(&self, shard: ShardId, family: FamilyId) -> metanode::Opening {
        metanode::Opening {
            world: self.world.clone(),
            shard,
            family,
            coordination: self.coordination.clone(),
            pool: self.nsds.pool.clone(),
            run: self.run,
            memory: self.memory.clone(),
            lease: self.lease.owners().clone(),
            surveys: metanode::Surveys::ByServers(self.jobs.servers.clone()),
            touch: Arc::new(NodeTouch {
                lease: self.lease.clone(),
                office: self.office.clone(),
                roster: self.roster.subscribe(),
            }),
        }
    }
}

/// Takes NSDs of this node into use again that failed and came back.
async fn look_for_nsds(parts: Arc<Parts>) {
    loop {
        parts.world.sleep(LOOK_EVERY).await;
        parts.nsds.look_for_returned().await;
    }
}
