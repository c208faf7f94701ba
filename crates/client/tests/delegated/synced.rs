//! What an fsync waits for where programs make files under a delegation.

use super::Maker;
use crate::names::messages;
use crate::rig::{self, new_file, run_patient as run};
use crate::waits::{program, wait_of, work};
use futures::future::join;
use model::{InodeId, ShardId};
use std::sync::atomic::Ordering;
use std::time::Duration;
use testkit::inodes::name;
use world::{Part, Work};

/// Would be broken if who syncs a file waited for those that other programs go on making, as often as they do so.
#[test]
fn an_fsync_waits_for_what_was_made_before_it_began_and_for_nothing_later() {
    run(9_967, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let (client, directory) = (maker.client.clone(), maker.directory);
        let file = maker.open_one().await;
        client.write(file, 0, b"before").await.unwrap();
        client.fsync(file, false).await.unwrap();
        let make = async |text: &str| {
            let new = client.create_and_open(directory, name(text), new_file());
            new.await.unwrap().inode
        };
        client.write(file, 0, b"after").await.unwrap();
        // Sooner than what is made meanwhile goes by itself.
        maker.way.publish_ms.store(10, Ordering::Relaxed);
        let making = async {
            world.sleep(Duration::from_millis(2)).await;
            make("later").await
        };
        let syncing = messages(&maker.way, client.fsync(file, false));
        let ((synced, asked), later) = join(syncing, making).await;
        synced.unwrap();
        assert_eq!(asked, 1, "what was written");

        let earlier = make("earlier").await;
        let (synced, asked) = messages(&maker.way, client.fsync(file, false)).await;
        synced.unwrap();
        assert_eq!(asked, 1, "both files");
        let (synced, asked) = messages(&maker.way, client.fsync(later, false)).await;
        synced.unwrap();
        assert_eq!(asked, 0, "the owner has answered");
        for inode in [file, later, earlier] {
            client.release(inode).await;
        }
        assert_eq!(rig::read(&node.client, file, 0, 6).await, b"aftere");
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if what a program sends itself, because it waits for it, stayed where it is when the program is interrupted.
#[test]
fn what_an_interrupted_fsync_was_sending_goes_all_the_same() {
    run(9_968, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let (client, way) = (maker.client.clone(), maker.way.clone());
        let file = maker.open_one().await;
        client.write(file, 0, b"interrupted").await.unwrap();
        way.slow_ms.store(400, Ordering::Relaxed);
        let syncing = client.fsync(file, false);
        let synced = world.timeout(Duration::from_millis(1), syncing).await;
        assert!(synced.is_err(), "it is on its way");
        way.slow_ms.store(0, Ordering::Relaxed);
        // Nobody waits for it, and nothing of the next one is waited for but its own.
        let next = maker.open_one().await;
        client.write(next, 0, b"next").await.unwrap();
        client.fsync(next, false).await.unwrap();
        client.fsync(file, false).await.unwrap();
        for (inode, content) in [(file, &b"interrupted"[..]), (next, b"next")] {
            let there = rig::read(&node.client, inode, 0, content.len()).await;
            assert_eq!(there, content);
            client.release(inode).await;
        }
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if the owner were told on nobody's errand, or who waits for that weren't tied to it: the one that tells it
/// itself, or any other one.
#[test]
fn who_waits_for_what_was_made_to_be_told_waits_for_the_owner() {
    run(9_969, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let (client, way) = (maker.client.clone(), maker.way.clone());
        let written = maker.open_one().await;
        let empty = maker.open_one().await;
        way.cut.store(true, Ordering::Relaxed);
        client.write(written, 0, b"written").await.unwrap();
        let sync = |file: InodeId| {
            let client = client.clone();
            async move { client.fsync(file, false).await }
        };
        let (teller, tells) = program(&world, sync(written)).await;
        let (other, waits) = program(&world, sync(empty)).await;
        // Until the first attempt is over.
        world.sleep(Duration::from_secs(1)).await;
        for errand in [teller, other] {
            let wait = wait_of(&client, errand);
            assert_eq!(wait.part, Part::ForWork(Work::Stream), "{wait:?}");
        }
        let telling = wait_of(&client, work(&world, Work::Stream).errand);
        assert_eq!(telling.part, Part::ForOwner(ShardId(0)));
        way.cut.store(false, Ordering::Relaxed);
        tells.await.unwrap();
        waits.await.unwrap();
        for file in [written, empty] {
            client.release(file).await;
        }
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if who syncs sent what was made since, or left it to a message of its own each time.
#[test]
fn files_that_are_synced_one_by_one_take_one_message_each() {
    run(9_964, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let (client, way) = (maker.client.clone(), maker.way.clone());
        for _ in 0..20 {
            // Also when the time is over that what isn't waited for has.
            world.sleep(Duration::from_millis(7)).await;
            let file = maker.open_one().await;
            client.write(file, 0, b"synced").await.unwrap();
            let (synced, asked) = messages(&way, client.fsync(file, false)).await;
            synced.unwrap();
            assert_eq!(asked, 1, "what makes it and what it contains");
            client.release(file).await;
        }
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}
