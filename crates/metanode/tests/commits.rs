//! When operations are ready at once, when they become durable, and how they are read back from the
//! tree.

use crate::rig::{self, Rig};
use futures::FutureExt;
use futures::future::join;
use model::{FileKind, InodeId, Operation, Reply, Scheme};
use std::sync::Arc;
use std::time::Duration;
use world::Point;
use world::sim::Simulation;

const ROOT: InodeId = InodeId::ROOT;

#[test]
fn in_a_directory_made_here_every_operation_is_ready_at_once() {
    let simulation = Simulation::new(60);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let directory = rig
                .make(ROOT, "d", FileKind::Directory)
                .await
                .unwrap()
                .inode;
            for number in 0..5000 {
                let text = format!("f{number}");
                let file = rig
                    .make(directory, &text, FileKind::File)
                    .now_or_never()
                    .expect("a create is ready")
                    .unwrap();
                rig.write_inline(file.inode, 0, b"small")
                    .now_or_never()
                    .expect("a small write is ready");
                assert!(
                    rig.look(directory, "nothing")
                        .now_or_never()
                        .expect("a lookup is ready")
                        .is_none()
                );
                if number % 3 == 0 {
                    rig.unlink(directory, &text)
                        .now_or_never()
                        .expect("an unlink is ready");
                }
                if number % 1000 == 0 {
                    rig.metanode.sync().await.unwrap();
                }
            }
            rig.must_be_clean("after the burst").await;
        })
        .finished();
}

#[test]
fn syncs_at_the_same_time_share_a_commit() {
    let simulation = Simulation::new(61);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = Arc::new(rig::open(&world).await);
            rig.metanode.sync().await.unwrap();
            let before = rig.metanode.shard_status().durable;
            let tasks: Vec<_> = (0..64)
                .map(|number| {
                    let rig = rig.clone();
                    world.spawn("writer", async move {
                        rig.file(ROOT, &format!("f{number}")).await;
                        rig.metanode.sync().await.unwrap();
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
            assert!(rig.metanode.is_clean());
            let commits = rig.metanode.shard_status().durable.0 - before.0;
            assert!(commits <= 8, "{commits} commits for 64 syncs");
        })
        .finished();
}

/// Would be broken if each answer that must be durable waited until the tree has begun to take its commit.
#[test]
fn a_sync_ends_before_the_tree_is_given_its_commit() {
    let simulation = Simulation::new(68);
    let machine = &simulation;
    machine
        .run(|world| async move {
            let given = || machine.points().get(&Point::CommitDurable).copied();
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            rig.metanode.sync().await.unwrap();
            for number in 0..10 {
                world.sleep(Duration::from_secs(1)).await;
                let before = given();
                rig.file(ROOT, &format!("f{number}")).await;
                // Of two that wait for it neither goes on with it when the other one leaves.
                let other = async {
                    if number % 2 == 1 {
                        rig.metanode.sync().await.unwrap();
                    }
                };
                let (synced, ()) = join(rig.metanode.sync(), other).await;
                synced.unwrap();
                assert!(rig.metanode.is_clean());
                assert_eq!(given(), before, "commit {number}");
                // Nobody who waits for durability is needed for the rest.
                world.sleep(Duration::from_secs(1)).await;
                assert!(given() > before, "commit {number}");
            }
            rig.must_be_clean("after the syncs").await;
        })
        .finished();
}

#[test]
fn unsynced_changes_are_durable_after_a_second_of_quiet_and_after_five_at_most() {
    let simulation = Simulation::new(62);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            rig.file(ROOT, "quiet").await;
            assert!(!rig.metanode.is_clean());
            world.sleep(Duration::from_millis(1800)).await;
            assert!(rig.metanode.is_clean());
            let before = rig.metanode.shard_status().durable;
            for number in 0..60 {
                rig.file(ROOT, &format!("busy{number}")).await;
                world.sleep(Duration::from_millis(100)).await;
            }
            assert!(rig.metanode.shard_status().durable > before);
        })
        .finished();
}

async fn list(rig: &Rig, directory: InodeId) -> Vec<String> {
    let mut names = Vec::new();
    let mut after = 0;
    loop {
        let asked = Operation::ReadDirectory {
            directory,
            after,
            limit: 300,
            with_attributes: true,
        };
        let Reply::Listing { entries, end } = rig.run(asked).await.unwrap() else {
            panic!("a listing")
        };
        for entry in &entries {
            assert!(entry.attributes.is_some());
            names.push(entry.name.to_string());
        }
        match entries.last() {
            Some(last) if !end => after = last.position,
            _ => break,
        }
    }
    names.sort();
    names
}

#[test]
fn an_old_directory_comes_back_from_the_tree_and_mixes_with_changes() {
    let simulation = Simulation::new(63);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let directory = rig
                .make(ROOT, "d", FileKind::Directory)
                .await
                .unwrap()
                .inode;
            for number in 0..2000 {
                rig.file(directory, &format!("f{number:04}")).await;
            }
            rig.close().await;
        })
        .finished();
    simulation
        .run(|world| async move {
            let rig = rig::open(&world).await;
            let directory = rig.look(ROOT, "d").await.unwrap().inode;
            for number in (0..2000).step_by(2) {
                rig.unlink(directory, &format!("f{number:04}")).await;
            }
            for number in 2000..2500 {
                rig.file(directory, &format!("f{number:04}")).await;
            }
            let wanted: Vec<String> = (1..2000)
                .step_by(2)
                .chain(2000..2500)
                .map(|number| format!("f{number:04}"))
                .collect();
            assert_eq!(list(&rig, directory).await, wanted);
            rig.metanode.sync().await.unwrap();
            assert_eq!(list(&rig, directory).await, wanted);
            rig.must_be_clean("after changes").await;
            rig.close().await;
        })
        .finished();
    simulation
        .run(|world| async move {
            let rig = rig::open(&world).await;
            let directory = rig.look(ROOT, "d").await.unwrap().inode;
            for text in list(&rig, directory).await {
                rig.unlink(directory, &text).await;
            }
            assert_eq!(list(&rig, directory).await, Vec::<String>::new());
            rig.run(Operation::RemoveDirectory {
                directory: ROOT,
                name: rig::name("d"),
            })
            .await
            .unwrap();
            rig.must_be_clean("empty").await;
            rig.close().await;
        })
        .finished();
}

#[test]
fn a_look_at_a_directory_reads_no_more_for_names_that_are_long_gone() {
    const FILES: u64 = 1200;
    let simulation = Simulation::new(66);
    let directory = simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let directory = rig.make(ROOT, "d", FileKind::Directory).await.unwrap();
            for number in 0..FILES {
                rig.file(directory.inode, &format!("f{number}")).await;
            }
            rig.close().await;
            directory.inode
        })
        .finished();
    simulation
        .run(|world| async move {
            let rig = rig::open(&world).await;
            for number in 0..FILES / 2 {
                rig.unlink(directory, &format!("f{number}")).await;
            }
            rig.metanode.sync().await.unwrap();
            // The commit is in the tree too.
            world.sleep(Duration::from_secs(1)).await;
            let (before, _) = rig.metanode.hosted().hot_records();
            let look = Operation::ReadDirectory {
                directory,
                after: 0,
                limit: 10,
                with_attributes: false,
            };
            let Reply::Listing { entries, end } = rig.run(look).await.unwrap() else {
                panic!("a listing is a listing");
            };
            assert_eq!((entries.len(), end), (10, false));
            let (after, _) = rig.metanode.hosted().hot_records();
            assert!(after - before < 50, "{} more in memory", after - before);
        })
        .finished();
}
