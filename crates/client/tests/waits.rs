//! What waits in a client leads on to what it waits for: to the owner, or to work that is listed itself.

use crate::rig::way::{Map, Way};
use crate::rig::{self, Node, Place, content, patient, run_patient as run, settings};
use client::{Client, OpenFlags};
use model::{InodeId, Operation, SetAttributes, ShardId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::oneshot;
use world::sim::{Faults, Simulation};
use world::{Errand, Part, Task, Waiter, Work, World, errand};

const SECOND: Duration = Duration::from_secs(1);
const MIB: u64 = 1 << 20;

/// A client on another node, with the map by which it finds the owner and the way there.
async fn far(node: &Node) -> (Arc<Client>, Arc<Map>, Arc<Way>) {
    let way = Way::new(&node.world, &node.metanode, 0);
    let map = Map::to(&way);
    let owner = map.remote_owner();
    let session = owner.open_session(&node.world).await.unwrap();
    let (world, pool) = (node.world.clone(), node.pool.clone());
    let client = Client::new(world, owner, pool, session, patient());
    (client, map, way)
}

/// A program that has done this, or has waited for a second; and its errand.
pub(crate) async fn program<T: Send + 'static>(
    world: &World,
    work: impl Future<Output = T> + Send + 'static,
) -> (Errand, Task<T>) {
    let (tell, told) = oneshot::channel();
    let its = world.clone();
    let work = async move {
        tell.send(its.errand()).unwrap();
        work.await
    };
    let task = world.spawn("a program", errand::begin(work));
    let errand = told.await.unwrap();
    world.sleep(SECOND).await;
    (errand, task)
}

/// What a program waits for in a client.
#[track_caller]
pub(crate) fn wait_of(client: &Client, errand: Errand) -> Waiter {
    let waits = client.waiters();
    let found = waits.iter().find(|it| it.errand == errand);
    found
        .unwrap_or_else(|| panic!("{errand:?} isn't in {waits:#?}"))
        .clone()
}

/// Such work that is under way.
#[track_caller]
pub(crate) fn work(world: &World, work: Work) -> Waiter {
    let (waits, _) = world.waits();
    let found = waits.iter().find(|it| it.part == Part::Work(work));
    found
        .unwrap_or_else(|| panic!("{work:?} isn't in {waits:#?}"))
        .clone()
}

/// Would be broken if the read were listed as one for which the owner is asked: that is answered, and the chain would end there.
#[test]
fn a_read_of_what_is_held_without_a_lease_waits_for_the_owner() {
    run(9_601, |world, node| async move {
        let (far, map, _) = far(&node).await;
        let file = rig::file(&node.client, "f").await;
        node.client.write(file, 0, b"x").await.unwrap();
        far.open(file, OpenFlags::default()).await.unwrap();
        assert_eq!(rig::read(&far, file, 0, 1).await, b"x");
        // Whatever its owner answers from now on, tokens may be used no longer.
        *map.usable_until.lock() = Some(world.now());
        world.sleep(tokens::TOKEN_TIME * 2).await;
        assert!(far.usable().is_empty());
        let reading = {
            let far = far.clone();
            async move { rig::read(&far, file, 0, 1).await }
        };
        let (errand, reading) = program(&world, reading).await;
        let wait = wait_of(&far, errand);
        let expected = (Some(file), Part::ForOwner(ShardId(0)));
        assert_eq!((wait.inode, wait.part), expected);
        *map.usable_until.lock() = Some(world.now() + SECOND * 3_600);
        assert_eq!(reading.await, b"x");
        far.release(file).await;
        far.close().await.unwrap();
        node.close().await;
    });
}

/// Would be broken if the write were listed as one for which the owner is asked: it isn't before the other client has the file.
#[test]
fn a_write_to_what_another_client_wants_back_waits_for_the_return() {
    run(9_602, |world, node| async move {
        let (far, _, way) = far(&node).await;
        let file = rig::file(&node.client, "f").await;
        far.open(file, OpenFlags::default()).await.unwrap();
        way.no_publishes.store(true, Ordering::Relaxed);
        far.write(file, 0, b"old").await.unwrap();
        let other = {
            let client = node.client.clone();
            async move { rig::read(&client, file, 0, 3).await }
        };
        let (_, other) = program(&world, other).await;
        let writing = {
            let far = far.clone();
            async move { far.write(file, 0, b"new").await }
        };
        let (errand, writing) = program(&world, writing).await;
        let returning = Work::Return(file);
        assert_eq!(wait_of(&far, errand).part, Part::ForWork(returning));
        work(&world, returning);
        way.no_publishes.store(false, Ordering::Relaxed);
        assert_eq!(other.await, b"old");
        writing.await.unwrap();
        far.release(file).await;
        far.close().await.unwrap();
        node.close().await;
    });
}

/// Would be broken if the next session were begun on nobody's errand: nothing said that the owner is waited for.
#[test]
fn programs_whose_session_has_ended_wait_for_the_owner_that_opens_the_next_one() {
    run(9_603, |world, node| async move {
        let (far, _, way) = far(&node).await;
        let file = rig::file(&node.client, "f").await;
        far.open(file, OpenFlags::default()).await.unwrap();
        assert!(rig::read(&far, file, 0, 1).await.is_empty());
        way.no_sessions.store(true, Ordering::Relaxed);
        let ended = far.session();
        node.metanode.close_session(ended).await.unwrap();
        world.sleep(SECOND * 3).await;
        let (reads, looks) = (far.clone(), far.clone());
        let reading = async move { rig::read(&reads, file, 0, 1).await };
        let looking = async move { looks.get_attributes(file).await };
        let (reader, reading) = program(&world, reading).await;
        let (looker, looking) = program(&world, looking).await;
        for errand in [reader, looker] {
            let wait = wait_of(&far, errand);
            assert_eq!(wait.part, Part::ForWork(Work::NextSession), "{wait:?}");
        }
        let beginning = work(&world, Work::NextSession).errand;
        let opening = wait_of(&far, beginning);
        assert_eq!(opening.part, Part::ForOwner(ShardId(0)));
        way.no_sessions.store(false, Ordering::Relaxed);
        assert!(reading.await.is_empty());
        assert_eq!(looking.await.unwrap().inode, file);
        assert_ne!(far.session(), ended);
        far.release(file).await;
        far.close().await.unwrap();
        node.close().await;
    });
}

fn sets_attributes(operation: &Operation) -> bool {
    matches!(operation, Operation::SetAttributes { .. })
}

/// Would be broken if what became of it were asked on nobody's errand, or who waits for that weren't tied to it.
#[test]
fn who_waits_for_a_truncate_that_was_given_up_waits_for_the_owner_that_knows_of_it() {
    run(9_604, |world, node| async move {
        let (far, _, way) = far(&node).await;
        let file = rig::file(&node.client, "f").await;
        far.open(file, OpenFlags::default()).await.unwrap();
        *way.loses.lock() = Some(sets_attributes);
        let empty = SetAttributes {
            size: Some(0),
            ..SetAttributes::default()
        };
        let given_up = world.timeout(SECOND, far.set_attributes(file, empty)).await;
        assert!(given_up.is_err(), "it was answered");
        let (reads, writes) = (far.clone(), far.clone());
        let reading = async move { reads.read(file, 0, 1).await };
        let writing = async move { writes.write(file, 0, b"x").await };
        let (reader, reading) = program(&world, reading).await;
        let (writer, writing) = program(&world, writing).await;
        let finds_out = Work::Decide(Some(file));
        for errand in [reader, writer] {
            let wait = wait_of(&far, errand);
            assert_eq!(wait.part, Part::ForWork(finds_out), "{wait:?}");
        }
        let asking = wait_of(&far, work(&world, finds_out).errand);
        assert_eq!(asking.part, Part::ForOwner(ShardId(0)));
        *way.loses.lock() = None;
        reading.await.unwrap();
        writing.await.unwrap();
        far.release(file).await;
        far.close().await.unwrap();
        node.close().await;
    });
}

/// Runs `scenario` with a file on disks that it can slow down.
fn run_slow<F>(seed: u64, scenario: impl FnOnce(Node, InodeId, Disks) -> F)
where
    F: Future<Output = ()>,
{
    let simulation = Simulation::new(seed);
    simulation.limit_time(SECOND * 3_600);
    let faults = simulation.faults();
    let ran = simulation.run(|world| async move {
        let place = Place::default();
        Node::create(&world, &place).await;
        let node = Node::open(&world, &place, settings()).await;
        let file = rig::file(&node.client, "f").await;
        scenario(node, file, Disks { place, faults }).await;
    });
    ran.finished();
}

/// The disks of a file system.
struct Disks {
    place: Place,
    faults: Faults,
}

impl Disks {
    fn each(&self, change: impl Fn(&Faults, &str)) {
        for nsd in 1..=self.place.nsds {
            change(&self.faults, &self.place.nsd(nsd).display().to_string());
        }
    }

    /// Each request takes seconds from now on.
    fn slow_down(&self) {
        self.each(|faults, disk| faults.slow(disk, SECOND * 2));
    }

    fn heal(&self) {
        self.each(Faults::heal);
    }
}

/// Waits until a program waits for work while `is_its` work waits for a disk.
async fn until_at_a_disk(
    node: &Node,
    errand: Errand,
    for_work: Work,
    is_its: impl Fn(Work) -> bool,
) {
    for _ in 0..600 {
        let mut own = node.client.waiters().into_iter();
        let waits = own.any(|it| it.errand == errand && it.part == Part::ForWork(for_work));
        let (all, _) = node.world.waits();
        let is_at_work = |errand: Errand| {
            let mut works = all.iter().filter(|it| it.errand == errand);
            works.any(|it| matches!(it.part, Part::Work(work) if is_its(work)))
        };
        let mut disks = all.iter().filter(|it| matches!(it.part, Part::ForNsd(_)));
        if waits && disks.any(|it| is_at_work(it.errand)) {
            return;
        }
        node.world.sleep(SECOND / 10).await;
    }
    let (own, all) = (node.client.waiters(), node.world.waits());
    panic!("{for_work:?} isn't waited for, or for no disk: {own:#?}, {all:#?}");
}

/// Would be broken if a program that writes more than the disks take only heard that there is no memory.
#[test]
fn who_waits_for_memory_waits_for_what_is_being_stored() {
    run_slow(9_605, |node, file, disks| async move {
        disks.slow_down();
        let writing = {
            let client = node.client.clone();
            async move {
                for at in (0..16 * MIB).step_by(1 << 20) {
                    let bytes = content(at, 1 << 20);
                    client.write(file, at, &bytes).await.unwrap();
                }
            }
        };
        let (errand, writing) = program(&node.world, writing).await;
        let stores = |work: Work| matches!(work, Work::Store(_));
        until_at_a_disk(&node, errand, Work::Store(None), stores).await;
        disks.heal();
        writing.await;
        node.close().await;
    });
}

/// Would be broken if what is read ahead were nobody's: who has come that far waits for it.
#[test]
fn who_waits_for_what_is_read_ahead_waits_for_its_disk() {
    run_slow(9_606, |node, file, disks| async move {
        let size = 4 * MIB;
        let bytes = content(1, size as usize);
        node.client.write(file, 0, &bytes).await.unwrap();
        node.client.fsync(file, false).await.unwrap();
        node.client.forget_clean();
        disks.slow_down();
        let reading = {
            let client = node.client.clone();
            async move {
                for at in (0..size).step_by(1 << 17) {
                    let read = rig::read(&client, file, at, 1 << 17).await;
                    assert!(read == bytes[at as usize..][..1 << 17]);
                }
            }
        };
        let (errand, reading) = program(&node.world, reading).await;
        let fetches = |work: Work| work == Work::Fetch(file);
        until_at_a_disk(&node, errand, Work::Fetch(file), fetches).await;
        disks.heal();
        reading.await;
        node.close().await;
    });
}
