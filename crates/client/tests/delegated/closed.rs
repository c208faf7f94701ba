//! Closes of files that a client has made: many go with one message, for which nobody waits.

use super::{Maker, ROOT};
use crate::rig::run_patient as run;
use crate::rig::way::next_on_another_node;
use client::{Losses, OpenFlags};
use metanode::Metanode;
use model::FileName;
use model::operation::RenameMode;
use std::sync::atomic::Ordering;
use std::time::Duration;
use testkit::inodes::name;
use world::World;

/// Makes the next file with bytes that are synced, and closes it. Its name.
async fn make_synced(maker: &mut Maker) -> FileName {
    let file = maker.open_one().await;
    let client = &maker.client;
    client.write(file, 0, b"synced").await.unwrap();
    client.fsync(file, false).await.unwrap();
    client.release(file).await;
    name(&format!("n{}", maker.names.len() - 1))
}

/// Waits until an owner knows that nobody has a file open.
async fn until_unused(world: &World, metanode: &Metanode) {
    for _ in 0..600 {
        if metanode.in_use().inodes == 0 {
            return;
        }
        world.sleep(Duration::from_millis(100)).await;
    }
    panic!("{} files are in use", metanode.in_use().inodes);
}

/// Would be broken if each close had a message of its own.
#[test]
fn files_that_are_synced_and_closed_one_by_one_are_told_of_together() {
    run(10_230, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        let way = maker.way.clone();
        let closed = || way.closed.load(Ordering::Relaxed);
        let before = closed();
        for _ in 0..40 {
            make_synced(&mut maker).await;
        }
        until_unused(&world, &node.metanode).await;
        let told = closed() - before;
        assert!((1..20).contains(&told), "{told} messages for 40 files");
        maker.client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if the owner kept a file as one in use that its own client has closed before.
#[test]
fn a_file_that_is_removed_just_after_its_close_is_gone_at_once() {
    run(10_231, |world, node| async move {
        let inodes = async || node.client.usage(ROOT).await.unwrap().inodes;
        let mut maker = Maker::new(&world, &node).await;
        let (client, directory) = (maker.client.clone(), maker.directory);
        let there = inodes().await;
        let removed = make_synced(&mut maker).await;
        client.unlink(directory, removed).await.unwrap();
        assert_eq!(inodes().await, there);
        // One that was opened again meanwhile was closed twice.
        let again = make_synced(&mut maker).await;
        let inode = client.lookup(directory, again.clone()).await.unwrap().inode;
        client.open(inode, OpenFlags::default()).await.unwrap();
        client.release(inode).await;
        client.unlink(directory, again).await.unwrap();
        assert_eq!(inodes().await, there);
        let replaced = make_synced(&mut maker).await;
        let moved = make_synced(&mut maker).await;
        let moving = client.rename(directory, moved, directory, replaced, RenameMode::Replace);
        moving.await.unwrap();
        assert_eq!(inodes().await, there + 1);
        until_unused(&world, &node.metanode).await;
        client.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// The owner ends before it hears of closes, or before its client has its answer.
#[test]
fn the_next_owner_hears_of_closes_that_were_on_their_way() {
    for (seed, is_deaf) in [(10_232, false), (10_233, true)] {
        run(seed, move |world, node| async move {
            let (mut maker, map) = Maker::with_map(&world, &node).await;
            let (client, way) = (maker.client.clone(), maker.way.clone());
            let mut closed = Vec::new();
            for _ in 0..5 {
                closed.push(make_synced(&mut maker).await);
            }
            let silence = if is_deaf { &way.deaf } else { &way.cut };
            silence.store(true, Ordering::Relaxed);
            world.sleep(Duration::from_millis(500)).await;
            node.metanode.sync().await.unwrap();
            let (next, next_way) = next_on_another_node(&node).await;
            map.move_to(&next_way);
            silence.store(false, Ordering::Relaxed);
            // It says what it holds, and then that it is closed.
            client.get_attributes(maker.directory).await.unwrap();
            until_unused(&world, &next).await;
            for text in closed {
                client.unlink(maker.directory, text).await.unwrap();
            }
            assert_eq!(next.in_use().inodes, 0);
            assert_eq!(client.losses(), Losses::default());
            client.close().await.unwrap();
            next.close().await.unwrap();
        });
    }
}
