//! A complete file system on simulated disks, for the client's tests.

#![allow(dead_code, unreachable_pub, reason = "an example uses a part of it")]

pub mod near;
pub mod way;

use client::{Client, ClientSettings, Owner};
use coordination::Coordination;
use metanode::{CheckOptions, Metanode, Opening, OwnerLease, ShardMemory};
use model::operation::NewInode;
use model::{FamilyId, FileKind, InodeId, NodeRun, Scheme, ShardId};
use nsd::Nsd;
use pool::Pool;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
pub use testkit::content::content;
use testkit::disks::entries;
pub use testkit::inodes::name;
use testkit::inodes::new_inode;
use world::sim::Simulation;
use world::{Planted, World};

/// The regions of a file system, and their number.
#[derive(Clone)]
pub struct Place {
    pub directory: PathBuf,
    pub nsds: u32,
    pub nsd_bytes: u64,
    pub scheme: Scheme,
    pub lease: OwnerLease,
}

impl Default for Place {
    fn default() -> Self {
        let scheme = Scheme::Replicate(2);
        Self {
            directory: PathBuf::from("sim"),
            nsds: 3,
            nsd_bytes: 96 << 20,
            scheme,
            lease: OwnerLease::endless(),
        }
    }
}

impl Place {
    pub fn nsd(&self, nsd: u32) -> PathBuf {
        self.directory.join(format!("nsd{nsd}"))
    }

    fn coordination(&self) -> PathBuf {
        self.directory.join("coordination")
    }
}

/// An opened file system.
pub struct Node {
    pub world: World,
    pub pool: Arc<Pool>,
    pub metanode: Arc<Metanode>,
    pub client: Arc<Client>,
    pub coordination: Coordination,
}

/// Small blocks, so that small tests have many.
pub fn settings() -> ClientSettings {
    ClientSettings {
        page_pool_bytes: 16 << 20,
        block_bytes: 64 * 1024,
        ..ClientSettings::default()
    }
}

/// For clients whose messages get lost.
pub fn patient() -> ClientSettings {
    ClientSettings {
        patience: Duration::from_secs(300),
        ..settings()
    }
}

/// Plays a scenario of up to a day on a new file system.
pub fn run_patient<F>(seed: u64, scenario: impl FnOnce(World, Node) -> F)
where
    F: Future<Output = ()>,
{
    run_planted(seed, None, scenario);
}

/// As `run_patient`, with a fault in the program.
pub fn run_planted<F>(seed: u64, planted: Option<Planted>, scenario: impl FnOnce(World, Node) -> F)
where
    F: Future<Output = ()>,
{
    let sim = Simulation::new(seed);
    sim.plant(planted);
    sim.limit_time(Duration::from_secs(24 * 60 * 60));
    sim.run(|world| async move {
        let place = Place::default();
        Node::create(&world, &place).await;
        let node = Node::open(&world, &place, patient()).await;
        scenario(world, node).await;
    })
    .finished();
}

/// How many seeds a storm of clients has; the environment may say so.
pub fn storm_seeds(usual: u64) -> u64 {
    std::env::var("SHARING_SEEDS").map_or(usual, |seeds| seeds.parse().unwrap())
}

impl Node {
    /// Makes an empty file system.
    pub async fn create(world: &World, place: &Place) {
        let disk = world
            .create_disk(&place.coordination(), coordination::EMBEDDED_REGION_BYTES)
            .unwrap();
        let coordination = Coordination::embedded(world, disk).await.unwrap();
        for nsd in 1..=place.nsds {
            let disk = world.create_disk(&place.nsd(nsd), place.nsd_bytes).unwrap();
            testkit::disks::format(world, &disk, 7, nsd).await;
        }
        let map = placement::new_pool(place.scheme, entries(place.nsds), 1).unwrap();
        coordination.set_pool_map("data", 0, &map).await.unwrap();
        coordination.set_cluster(7).await.unwrap();
    }

    /// Opens it, as after a crash.
    pub async fn open(world: &World, place: &Place, settings: ClientSettings) -> Node {
        Self::open_with(world, place, settings, |metanode| {
            Owner::Here(metanode.clone())
        })
        .await
    }

    /// As `open`, with a client that reaches the metanode in this way.
    pub async fn open_with(
        world: &World,
        place: &Place,
        settings: ClientSettings,
        owner: impl FnOnce(&Arc<Metanode>) -> Owner,
    ) -> Node {
        let disk = world.open_disk(&place.coordination()).unwrap();
        let coordination = Coordination::embedded(world, disk).await.unwrap();
        let map = coordination.pool_map("data").await.unwrap().unwrap().value;
        let mut nsds = Vec::new();
        for nsd in 1..=place.nsds {
            let disk = world.open_disk(&place.nsd(nsd)).unwrap();
            nsds.push(Nsd::open(world, disk).await.unwrap());
        }
        let pool = Pool::new(world.clone(), map, nsds);
        let run = metanode::begin_alone(&coordination, ShardId(0)).await;
        let metanode = Metanode::open(Opening {
            world: world.clone(),
            shard: ShardId(0),
            family: FamilyId(0),
            coordination: coordination.clone(),
            pool: pool.clone(),
            run: run.unwrap(),
            memory: ShardMemory::of_machine(world),
            lease: place.lease.clone(),
            surveys: metanode::Surveys::Own,
            touch: Arc::new(metanode::Whole),
        })
        .await
        .unwrap();
        let owner = owner(&metanode);
        let session = owner.open_session(world).await.unwrap();
        let client = Client::new(world.clone(), owner, pool.clone(), session, settings);
        Node {
            world: world.clone(),
            pool,
            metanode,
            client,
            coordination,
        }
    }

    /// The shard's next owner, in this run of a node; the one before stays as it is and doesn't know.
    pub async fn next_owner(&self, run: NodeRun) -> Arc<Metanode> {
        let shard = ShardId(0);
        let record = self.coordination.shard(shard).await.unwrap().unwrap().value;
        let assigned = self.coordination.assign_shard(shard, record.assigned, run);
        assigned.await.unwrap();
        Metanode::open(Opening {
            world: self.world.clone(),
            shard,
            family: FamilyId(0),
            coordination: self.coordination.clone(),
            pool: self.pool.clone(),
            run,
            memory: ShardMemory::of_machine(&self.world),
            lease: OwnerLease::endless(),
            surveys: metanode::Surveys::Own,
            touch: Arc::new(metanode::Whole),
        })
        .await
        .unwrap()
    }

    /// A deep check finds nothing; then it closes.
    pub async fn check_and_close(self) {
        let report = self.metanode.check(CheckOptions { deep: true }).await;
        assert!(report.as_ref().unwrap().is_clean(), "{report:?}");
        self.close().await;
    }

    pub async fn close(self) {
        self.client.close().await.unwrap();
        self.metanode.close().await.unwrap();
        for standing in self.pool.nsd_states() {
            self.pool
                .nsd(standing.entry.nsd)
                .unwrap()
                .close()
                .await
                .unwrap();
        }
    }

    pub async fn file(&self, text: &str) -> InodeId {
        file(&self.client, text).await
    }
}

/// Runs `scenario` in a new file system on one seed.
pub fn run<T, F>(seed: u64, scenario: impl FnOnce(Node) -> F) -> T
where
    F: Future<Output = T>,
{
    run_with(seed, settings(), scenario)
}

/// As `run`, with other settings.
pub fn run_with<T, F>(seed: u64, settings: ClientSettings, scenario: impl FnOnce(Node) -> F) -> T
where
    F: Future<Output = T>,
{
    let sim = Simulation::new(seed);
    // Some scenarios last for days of simulated time, but none does much.
    sim.limit_time(Duration::from_secs(100 * 60 * 60));
    sim.run(|world| async move {
        let place = Place::default();
        Node::create(&world, &place).await;
        let node = Node::open(&world, &place, settings).await;
        scenario(node).await
    })
    .finished()
}

pub fn new_file() -> NewInode {
    NewInode {
        mode: 0o644,
        uid: 1,
        gid: 1,
        ..new_inode(FileKind::File)
    }
}

/// Makes and opens a file in the root directory.
pub async fn file(client: &Client, text: &str) -> InodeId {
    client
        .create_and_open(InodeId::ROOT, name(text), new_file())
        .await
        .unwrap()
        .inode
}

pub async fn read(client: &Client, inode: InodeId, offset: u64, length: usize) -> Vec<u8> {
    client.read(inode, offset, length).await.unwrap().concat()
}
