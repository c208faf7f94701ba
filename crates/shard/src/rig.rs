//! Test machines: coordination, NSDs and a pool on simulated disks, with a shard on them. The crate
//! for tests can't have them: they take over with parts of this crate that others don't see.

use crate::frame::CommitFrame;
use crate::memory::{HOT_RECORDS_BYTES_DEFAULT, ShardMemory};
use crate::takeover::{self, Lineage, Opened, Opening};
use crate::touch::Whole;
use bytes::Bytes;
use coordination::{Coordination, EMBEDDED_REGION_BYTES};
use model::map::{Generation, PoolMap};
use model::{
    CommitNumber, FamilyId, GroupId, MapEpoch, NodeId, NodeRun, NsdId, Result, Scheme, ShardId,
};
use nsd::{Nsd, NsdServer};
use pool::Pool;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;
use world::World;
use world::sim::{Loopback, Simulation};

pub(crate) const SHARD: ShardId = ShardId(7);
pub(crate) const COORDINATION: &str = "coordination";
pub(crate) const DISK_BYTES: u64 = 512 << 20;
const POOL: &str = "system";
/// The run that the shard is assigned to.
const RUN: NodeRun = NodeRun {
    node: NodeId(1),
    incarnation: 1,
};

/// A machine with formatted disks "1".."nsds" and a shard that was created but never opened.
pub(crate) fn machine(seed: u64, scheme: Scheme, nsds: u32) -> Simulation {
    let simulation = Simulation::new(seed);
    simulation.disk(COORDINATION, EMBEDDED_REGION_BYTES);
    for nsd in 1..=nsds {
        simulation.disk(&nsd.to_string(), DISK_BYTES);
    }
    simulation
        .run(|world| async move {
            for nsd in 1..=nsds {
                let disk = world.open_disk(Path::new(&nsd.to_string())).unwrap();
                testkit::disks::format(&world, &disk, 1, nsd).await;
            }
            let disk = world.open_disk(Path::new(COORDINATION)).unwrap();
            let coordination = Coordination::embedded(&world, disk).await.unwrap();
            coordination
                .set_pool_map(POOL, 0, &map(scheme, nsds))
                .await
                .unwrap();
            drop(coordination);
            takeover::create(&power_on(&world, &[]).await)
                .await
                .unwrap();
        })
        .finished();
    simulation
}

/// A daemon's start, without the NSDs in `without`.
pub(crate) async fn power_on(world: &World, without: &[u32]) -> Opening {
    let thread = std::thread::current();
    let is_far = thread.name().is_some_and(|test| test.contains("by_call"));
    switch_on(world, without, |_| !is_far).await
}

/// The start of a daemon that has one of the NSDs; the others are of another node.
pub(crate) async fn power_on_beside(world: &World, own: NsdId) -> Opening {
    switch_on(world, &[], |nsd| nsd == own).await
}

async fn switch_on(world: &World, without: &[u32], is_own: impl Fn(NsdId) -> bool) -> Opening {
    let disk = world.open_disk(Path::new(COORDINATION)).unwrap();
    let coordination = Coordination::embedded(world, disk).await.unwrap();
    let map = coordination.pool_map(POOL).await.unwrap().unwrap().value;
    let mut nsds = Vec::new();
    for entry in &map.nsds {
        if !without.contains(&entry.nsd.0) {
            nsds.push(open_nsd(world, entry.nsd.0).await);
        }
    }
    Opening {
        world: world.clone(),
        shard: SHARD,
        family: FamilyId(0),
        coordination,
        pool: connect(world, map, nsds, is_own).await,
        memory: ShardMemory::new(HOT_RECORDS_BYTES_DEFAULT, 8 << 20),
        run: RUN,
        touch: Arc::new(Whole),
    }
}

/// A pool of these NSDs; those that aren't own ones are another node's. In tests with "by_call" in their path all are.
async fn connect(
    world: &World,
    map: PoolMap,
    nsds: Vec<Arc<Nsd>>,
    is_own: impl Fn(NsdId) -> bool,
) -> Arc<Pool> {
    let weak = nsds.iter().map(|nsd| (nsd.id(), Arc::downgrade(nsd)));
    OPENED.set(weak.collect());
    let (own, far): (Vec<_>, Vec<_>) = nsds.into_iter().partition(|nsd| is_own(nsd.id()));
    let pool = Pool::new(world.clone(), map, own);
    let server = Arc::new(NsdServer::default());
    for nsd in far {
        let id = nsd.id();
        server.add(nsd);
        let node = Loopback::new(world, server.clone(), Duration::from_millis(1));
        LOOPBACKS.with_borrow_mut(|loopbacks| loopbacks.insert(id, Arc::downgrade(&node)));
        pool.add_remote_nsd(id, node);
        let handle = pool.handle(id).expect("just added");
        while !handle.is_heard() {
            world.sleep(Duration::from_millis(1)).await;
        }
    }
    pool
}

thread_local! {
    static OPENED: RefCell<BTreeMap<NsdId, Weak<Nsd>>> = RefCell::default();
    static LOOPBACKS: RefCell<BTreeMap<NsdId, Weak<Loopback>>> = RefCell::default();
}

/// An NSD of the machine that is on.
pub(crate) fn opened_nsd(nsd: NsdId) -> Arc<Nsd> {
    OPENED.with_borrow(|opened| opened[&nsd].upgrade()).unwrap()
}

/// The way to an NSD, in tests by call.
pub(crate) fn loopback(nsd: NsdId) -> Arc<Loopback> {
    let loopback = LOOPBACKS.with_borrow(|loopbacks| loopbacks[&nsd].upgrade());
    loopback.unwrap()
}

/// Takes the shard over.
pub(crate) async fn open(opening: Opening) -> Result<Opened> {
    takeover::open(opening, &mut Lineage::new(None)).await
}

pub(crate) async fn open_nsd(world: &World, nsd: u32) -> Arc<Nsd> {
    testkit::disks::open(world, Path::new(&nsd.to_string())).await
}

pub(crate) fn map(scheme: Scheme, nsds: u32) -> PoolMap {
    let nsds = testkit::disks::entries(nsds);
    PoolMap {
        epoch: MapEpoch(1),
        names: Vec::new(),
        generations: vec![Generation {
            first_group: GroupId(0),
            groups: 32,
            scheme,
            block_bytes: None,
            seed: 5,
            seeded: nsds.clone(),
            exceptions: BTreeMap::new(),
            versions: BTreeMap::new(),
        }],
        nsds,
    }
}

/// Appends and applies one commit.
pub(crate) async fn commit(
    opened: &Opened,
    number: u64,
    rows: &[(&str, Option<&str>)],
) -> Result<()> {
    let frame = frame(number, rows);
    let entry = opened.log.append_commit(&frame).await?;
    opened.tree.apply(entry, &frame).await
}

pub(crate) fn frame(number: u64, rows: &[(&str, Option<&str>)]) -> CommitFrame {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    CommitFrame {
        commit: CommitNumber(number),
        operations: Vec::new(),
        rows: rows
            .iter()
            .map(|(key, value)| (bytes(key), value.map(bytes)))
            .collect(),
    }
}

pub(crate) async fn value(opened: &Opened, key: &str) -> Option<String> {
    let value = opened.tree.get(key.as_bytes()).await.unwrap()?;
    Some(String::from_utf8(value.to_vec()).unwrap())
}
