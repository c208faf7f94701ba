//! A client whose owner is reached through messages that get lost, late and doubled.

use crate::rig::way::{Map, Way, next_on_another_node};
use crate::rig::{self, Node, content, name, new_file, patient};
use client::{Client, OpenFlags};
use futures::future::{join, join_all};
use metanode::CheckOptions;
use model::lock::{LockOwner, LockTaker};
use model::operation::{NewInode, RenameMode};
use model::{ErrorKind, FileKind, InodeId, LockKind, LockRange, SetAttributes};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use world::World;
use world::sim::Simulation;

/// Runs `scenario` with a client on another node.
fn run<F>(seed: u64, faults: u64, scenario: impl FnOnce(Node, Arc<Map>, Arc<Way>) -> F)
where
    F: Future<Output = ()>,
{
    let sim = Simulation::new(seed);
    sim.limit_time(Duration::from_secs(24 * 60 * 60));
    sim.run(|world| async move {
        let place = rig::Place::default();
        Node::create(&world, &place).await;
        let mut made = None;
        let node = Node::open_with(&world, &place, patient(), |metanode| {
            let way = Way::new(&world, metanode, faults);
            let map = Map::to(&way);
            made = Some((map.clone(), way));
            map.remote_owner()
        });
        let node = node.await;
        let (map, way) = made.unwrap();
        scenario(node, map, way).await;
    })
    .finished();
}

/// Random changes of names in one directory, each of which fails if it is applied twice or not at
/// all.
async fn change_names(client: &Client, world: &World, number: u64) {
    let directory = NewInode {
        kind: FileKind::Directory,
        ..new_file()
    };
    let directory = client
        .create(InodeId::ROOT, name(&format!("d{number}")), directory)
        .await
        .unwrap()
        .inode;
    let mut names: BTreeMap<String, (InodeId, u32)> = BTreeMap::new();
    for step in 0..60 {
        let text = format!("n{}", world.random_u64() % 5);
        match (names.get(&text).copied(), world.random_u64() % 4) {
            (None, 0) => {
                let other = names.values().next().copied();
                let Some((inode, mode)) = other else { continue };
                client.link(inode, directory, name(&text)).await.unwrap();
                names.insert(text, (inode, mode));
            }
            (None, _) => {
                let made = client.create(directory, name(&text), new_file()).await;
                names.insert(text, (made.unwrap().inode, 0o644));
            }
            (Some(_), 0) => {
                client.unlink(directory, name(&text)).await.unwrap();
                names.remove(&text);
            }
            (Some((inode, _)), 1) => {
                let mode = 0o600 + step % 64;
                let set = SetAttributes {
                    mode: Some(mode),
                    ..SetAttributes::default()
                };
                client.set_attributes(inode, set).await.unwrap();
                let all = names.values_mut().filter(|(other, _)| *other == inode);
                all.for_each(|(_, known)| *known = mode);
            }
            (Some(moved), 2) => {
                let target = format!("m{step}");
                client
                    .rename(
                        directory,
                        name(&text),
                        directory,
                        name(&target),
                        RenameMode::NoReplace,
                    )
                    .await
                    .unwrap();
                names.remove(&text);
                names.insert(target, moved);
            }
            (Some(_), _) => {
                let made = client.create(directory, name(&text), new_file()).await;
                assert_eq!(made.unwrap_err().kind(), ErrorKind::Exists);
            }
        }
    }
    // Whatever is still under way arrives.
    world.sleep(Duration::from_secs(100)).await;
    let listing = client
        .read_directory(directory, 0, 1000, true)
        .await
        .unwrap();
    let found: BTreeMap<String, (InodeId, u32)> = listing
        .entries
        .into_iter()
        .map(|entry| {
            let text = String::from_utf8(entry.name.as_bytes().to_vec()).unwrap();
            let mode = entry.attributes.unwrap().mode & 0o7777;
            (text, (entry.inode, mode))
        })
        .collect();
    assert_eq!(found, names);
}

#[test]
fn each_operation_is_applied_once_however_messages_go() {
    for seed in 1..=4 {
        run(seed, 50, |node, _, _| async move {
            let tasks = (0..6).map(|number| change_names(&node.client, &node.world, number));
            join_all(tasks).await;
            node.close().await;
        });
    }
}

#[test]
fn opens_and_their_ends_count_once_however_messages_go() {
    run(7, 50, |node, _, _| async move {
        let inodes = node.client.usage(InodeId::ROOT).await.unwrap().inodes;
        let client = &node.client;
        let use_one = async |number: u64| {
            let text = format!("f{number}");
            let inode = rig::file(client, &text).await;
            let written = content(number, 10_000);
            client.write(inode, 0, &written).await.unwrap();
            client.open(inode, OpenFlags::default()).await.unwrap();
            client.unlink(InodeId::ROOT, name(&text)).await.unwrap();
            client.release(inode).await;
            // Late messages of the first open and of its end arrive.
            node.world.sleep(Duration::from_secs(40)).await;
            client.fsync(inode, false).await.unwrap();
            client.forget_clean();
            assert_eq!(rig::read(client, inode, 0, 10_000).await, written);
            client.release(inode).await;
        };
        join_all((0..20).map(use_one)).await;
        node.world.sleep(Duration::from_secs(100)).await;
        assert_eq!(client.usage(InodeId::ROOT).await.unwrap().inodes, inodes);
        while node.metanode.run_background_once().await.unwrap().steps > 0 {}
        let report = node.metanode.check(CheckOptions { deep: true }).await;
        assert_eq!(report.unwrap().faults, []);
        node.close().await;
    });
}

#[test]
fn a_lock_has_one_holder_however_messages_go() {
    run(8, 50, |node, _, _| async move {
        let client = &node.client;
        let door = client.begin_lock_door().await.unwrap();
        let inode = node.file("locked").await;
        let inside = Mutex::new(0);
        let (exclusive, all) = (LockKind::Exclusive, LockRange::ALL);
        let use_lock = async |id: u64| {
            let owner = LockOwner { door, id };
            let taker = LockTaker {
                open: id,
                pid: id as u32,
                user: 1,
            };
            for _ in 0..5 {
                let never = Some(std::future::pending());
                let lock = client.set_lock(inode, owner, all, Some(exclusive), taker, never);
                lock.await.unwrap();
                *inside.lock() += 1;
                assert_eq!(*inside.lock(), 1);
                node.world.sleep(Duration::from_secs(3)).await;
                let other = LockOwner { door, id: 99 };
                let held = client.get_lock(inode, other, all, exclusive).await;
                assert_eq!(held.unwrap().unwrap().owner, owner);
                *inside.lock() -= 1;
                client.release_process_locks(inode, owner).await;
            }
        };
        join_all((1..=4).map(use_lock)).await;
        node.world.sleep(Duration::from_secs(100)).await;
        let other = LockOwner { door, id: 99 };
        let held = client.get_lock(inode, other, all, exclusive).await;
        assert_eq!(held, Ok(None));
        client.end_lock_door(door);
        client.release(inode).await;
        node.close().await;
    });
}

#[test]
fn programs_wait_for_an_owner_and_then_get_an_error() {
    run(9, 0, |node, map, way| async move {
        let client = &node.client;
        let begun = node.world.now();
        *map.owner.lock() = None;
        let made = client.create(InodeId::ROOT, name("a"), new_file()).await;
        assert_eq!(made.unwrap_err().kind(), ErrorKind::Unavailable);
        let waited = node.world.now() - begun;
        assert!(waited >= patient().patience && waited < patient().patience * 2);

        // Whether the second one was made isn't known, so its slot waits for the answer.
        *map.owner.lock() = Some(way.clone());
        way.cut.store(true, Ordering::Relaxed);
        let made = client.create(InodeId::ROOT, name("b"), new_file()).await;
        assert_eq!(made.unwrap_err().kind(), ErrorKind::Unknown);
        node.world.sleep(Duration::from_secs(1)).await;
        let listed = client.waiters();
        assert!(
            listed
                .iter()
                .any(|waiter| waiter.cause == "the owner of the metadata")
        );

        way.cut.store(false, Ordering::Relaxed);
        node.world.sleep(Duration::from_secs(60)).await;
        let found = async |text| client.lookup(InodeId::ROOT, name(text)).await.is_ok();
        assert!(!found("a").await, "it certainly didn't run");
        assert!(found("b").await, "it was asked until it was decided");
        assert_eq!(client.waiters(), []);
        node.close().await;
    });
}

/// Would be broken if programs got errors because nobody could renew their node's lease for longer than they wait, or if their
/// client couldn't be closed meanwhile, or another one's opening waited as well.
#[test]
fn programs_wait_on_while_nobody_renews_the_lease_of_their_node() {
    run(11, 0, |node, map, way| async move {
        let (client, patience) = (&node.client, patient().patience);
        let hold_up = |is_held_up: bool| {
            *map.owner.lock() = (!is_held_up).then(|| way.clone());
            map.is_held_up.store(is_held_up, Ordering::Relaxed);
        };
        hold_up(true);
        // Whoever has no session yet is told what is missing.
        let another = map.remote_owner();
        let opening = another.open_session(&node.world);
        let opened = node.world.timeout(patience * 2, opening).await;
        let refused = opened.unwrap().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);

        let mut made = pin!(client.create(InodeId::ROOT, name("a"), new_file()));
        let early = node.world.timeout(patience * 5, made.as_mut()).await;
        assert!(early.is_err(), "it waits");
        assert!(!client.waiters().is_empty());
        hold_up(false);
        made.await.unwrap();

        // Whoever ends the node doesn't wait for that, nor do those that have waited for longer than their patience.
        hold_up(true);
        let mut made = pin!(client.create(InodeId::ROOT, name("b"), new_file()));
        let early = node.world.timeout(patience * 5, made.as_mut()).await;
        assert!(early.is_err(), "it waits");
        let begun = node.world.now();
        let told = async {
            let made = made.await;
            (made, node.world.now() - begun)
        };
        let ((made, told_after), closed) = join(told, client.close()).await;
        assert!(made.is_err() && closed.is_err());
        assert!(told_after <= patience, "{told_after:?}");
        assert!(node.world.now() - begun < patience * 4);
        // Its session is ended as soon as there is an owner again.
        hold_up(false);
        node.world.sleep(patience).await;
        node.metanode.close().await.unwrap();
    });
}

/// Would be broken if a client that has waited for seconds waited as long again while the next owner, which it knows,
/// takes the shard over.
#[test]
fn the_next_owner_is_asked_again_soon_however_long_there_was_none() {
    const AWAY: Duration = Duration::from_secs(3);
    const TAKE_OVER: Duration = Duration::from_millis(300);
    run(11, 0, |node, map, way| async move {
        let client = &node.client;
        way.is_away.store(true, Ordering::Relaxed);
        let moves_at = node.world.now() + AWAY;
        *map.moves_at.lock() = Some(moves_at);
        let takes_over = async {
            node.world.sleep(AWAY + TAKE_OVER).await;
            way.is_away.store(false, Ordering::Relaxed);
        };
        let making = client.create(InodeId::ROOT, name("a"), new_file());
        let (made, ()) = futures::join!(making, takes_over);
        made.unwrap();
        let waited = node.world.now() - moves_at;
        assert!(waited < TAKE_OVER * 2 + TAKE_OVER / 2, "{waited:?}");
        node.close().await;
    });
}

/// Would be broken if a client waited for the end of a long attempt at an owner that fell silent, although it knows the
/// next one.
#[test]
fn what_waits_for_a_silent_owner_is_asked_of_the_next_one_as_soon_as_that_is_known() {
    // In the middle of the second attempt.
    const SILENT: Duration = Duration::from_secs(3);
    run(12, 0, |node, map, way| async move {
        let client = &node.client;
        way.cut.store(true, Ordering::Relaxed);
        let followed_at = node.world.now() + SILENT;
        let next = Way::new(&node.world, &node.metanode, 0);
        let follows = async {
            node.world.sleep(SILENT).await;
            map.move_to(&next);
        };
        let making = client.create(InodeId::ROOT, name("a"), new_file());
        let (made, ()) = futures::join!(making, follows);
        made.unwrap();
        let waited = node.world.now() - followed_at;
        assert!(waited < Duration::from_millis(100), "{waited:?}");
        node.close().await;
    });
}

/// The owner falls silent as a client begins to say what it holds. Would be broken if that were waited for although the next
/// one is known: nothing that the client holds can be asked for meanwhile.
#[test]
fn what_is_held_is_said_to_the_next_owner_as_soon_as_that_is_known() {
    // In the middle of the first attempt.
    const SILENT: Duration = Duration::from_secs(1);
    run(13, 0, |node, map, _| async move {
        let client = &node.client;
        let (next, silent) = next_on_another_node(&node).await;
        silent.no_reclaims.store(true, Ordering::Relaxed);
        map.move_to(&silent);
        let followed_at = node.world.now() + SILENT;
        let follows = async {
            node.world.sleep(SILENT).await;
            map.move_to(&Way::new(&node.world, &next, 0));
        };
        let making = client.create(InodeId::ROOT, name("a"), new_file());
        let (made, ()) = futures::join!(making, follows);
        made.unwrap();
        let waited = node.world.now() - followed_at;
        assert!(waited < SILENT / 2, "{waited:?}");
        client.close().await.unwrap();
        next.close().await.unwrap();
    });
}

/// The program that makes the file is killed before the answer, and then nobody owns the shard for
/// longer than the client's patience.
#[test]
fn a_file_without_a_name_that_nobody_waits_for_is_released_however_long_it_takes() {
    run(10, 0, |node, _, way| async move {
        let client = &node.client;
        let inodes = client.usage(InodeId::ROOT).await.unwrap().inodes;
        way.leaves.store(true, Ordering::Relaxed);
        let making = client.create_unnamed(InodeId::ROOT, new_file());
        let killed = node.world.timeout(Duration::from_nanos(1), making).await;
        assert!(killed.is_err());
        node.world.sleep(patient().patience * 3).await;
        assert!(way.is_away.swap(false, Ordering::Relaxed), "it was made");
        let made = node.metanode.usage().await.unwrap().inodes;
        assert_eq!(made, inodes + 1);
        node.world.sleep(Duration::from_secs(60)).await;
        let left = client.usage(InodeId::ROOT).await.unwrap().inodes;
        assert_eq!(left, inodes);
        assert_eq!(client.waiters(), []);
        node.close().await;
    });
}
