//! Files that a client on another node makes and opens in one step, whatever others do with their names.

use crate::rig::way::{Map, Way, Which, client_through, next_on_another_node};
use crate::rig::{self, Node, content, name, new_file, run_patient as run};
use client::{Client, OpenFlags};
use model::{Attributes, InodeId, Operation, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use world::{Task, World};

const ROOT: InodeId = InodeId::ROOT;
const MS: Duration = Duration::from_millis(1);

fn makes_held(operation: &Operation) -> bool {
    operation.makes_held()
}

/// A client on another node, the way to its owner, and the map that says so.
async fn far(node: &Node) -> (Arc<Client>, Arc<Way>, Arc<Map>) {
    let way = Way::new(&node.world, &node.metanode, 0);
    let map = Map::to(&way);
    let owner = map.remote_owner();
    let session = owner.open_session(&node.world).await.unwrap();
    let pool = node.pool.clone();
    let client = Client::new(node.world.clone(), owner, pool, session, rig::patient());
    (client, way, map)
}

/// A program that makes and opens a file.
fn making(world: &World, client: &Arc<Client>, text: &str) -> Task<Result<Attributes>> {
    let (client, text) = (client.clone(), name(text));
    let making = async move { client.create_and_open(ROOT, text, new_file()).await };
    world.spawn("a program", making)
}

async fn inodes(client: &Client) -> u64 {
    client.usage(ROOT).await.unwrap().inodes
}

/// Waits until a name is there.
async fn until_found(client: &Client, text: &str) -> InodeId {
    loop {
        match client.lookup(ROOT, name(text)).await {
            Ok(found) => return found.inode,
            Err(_) => client.world().sleep(MS).await,
        }
    }
}

#[test]
fn a_file_is_made_and_opened_with_one_message() {
    run(9_800, |world, node| async move {
        let (far, way, _) = far(&node).await;
        // Until the owner has answered it.
        world.sleep(Duration::from_secs(3)).await;
        let before = way.asked.load(Ordering::Relaxed);
        let file = rig::file(&far, "f").await;
        assert_eq!(way.asked.load(Ordering::Relaxed) - before, 1);
        far.flush(file).await.unwrap();
        far.release(file).await;
        assert_eq!(way.asked.load(Ordering::Relaxed) - before, 2);
        assert_eq!(node.metanode.in_use().inodes, 0);
        far.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if the program's kernel, which asks for the file's attributes next, heard that it is gone: it makes it
/// once more, and others have removed it twice.
#[test]
fn a_file_that_another_client_removes_while_it_is_made_is_open() {
    run(9_810, |world, node| async move {
        let (far, way, _) = far(&node).await;
        let there = inodes(&far).await;
        let late: Which = makes_held;
        *way.late.lock() = Some(late);
        let making = making(&world, &far, "f");
        way.until_late().await;
        node.client.unlink(ROOT, name("f")).await.unwrap();
        *way.late.lock() = None;
        let file = making.await.unwrap().inode;
        assert_eq!(far.get_attributes(file).await.unwrap().links, 0);
        let written = content(1, 100_000);
        far.write(file, 0, &written).await.unwrap();
        far.fsync(file, false).await.unwrap();
        far.forget_clean();
        assert!(rig::read(&far, file, 0, 100_000).await == written);
        // Another open of it ends, and it stays.
        far.open(file, OpenFlags::default()).await.unwrap();
        far.release(file).await;
        assert!(rig::read(&far, file, 0, 100_000).await == written);
        far.release(file).await;
        assert_eq!(inodes(&far).await, there);
        far.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// The owner changes before the answer comes, and the name goes before the program's client asks again.
#[test]
fn a_file_that_is_removed_under_the_next_owner_before_its_making_is_answered_is_open() {
    run(9_820, |world, node| async move {
        let (far, way, map) = far(&node).await;
        let there = inodes(&far).await;
        way.deaf.store(true, Ordering::Relaxed);
        let making = making(&world, &far, "f");
        let made = until_found(&node.client, "f").await;
        node.metanode.sync().await.unwrap();
        let (next, next_way) = next_on_another_node(&node).await;
        let late: Which = makes_held;
        *next_way.late.lock() = Some(late);
        *map.owner.lock() = Some(next_way.clone());
        way.deaf.store(false, Ordering::Relaxed);
        // It says what it may have made, and asks again; the answer gets lost.
        next_way.until_late().await;
        let other = client_through(&node, &next_way).await;
        other.unlink(ROOT, name("f")).await.unwrap();
        *next_way.late.lock() = None;
        let file = making.await.unwrap().inode;
        assert_eq!(file, made);
        far.write(file, 0, &content(2, 5_000)).await.unwrap();
        far.fsync(file, false).await.unwrap();
        assert!(rig::read(&far, file, 0, 5_000).await == content(2, 5_000));
        far.release(file).await;
        // Until the grace time is over others may hold it as well.
        for _ in 0..300 {
            if inodes(&far).await == there {
                break;
            }
            world.sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(inodes(&far).await, there);
        other.close().await.unwrap();
        far.close().await.unwrap();
        next.close().await.unwrap();
    });
}

/// What a client has open by its creation it says to the next owner like any other open.
#[test]
fn a_file_that_was_made_open_stays_open_under_the_next_owner() {
    run(9_830, |world, node| async move {
        let (far, _, map) = far(&node).await;
        let there = inodes(&far).await;
        let file = rig::file(&far, "f").await;
        far.write(file, 0, &content(3, 70_000)).await.unwrap();
        far.fsync(file, false).await.unwrap();
        let (next, next_way) = next_on_another_node(&node).await;
        *map.owner.lock() = Some(next_way.clone());
        let other = client_through(&node, &next_way).await;
        other.unlink(ROOT, name("f")).await.unwrap();
        // For longer than the grace time.
        world.sleep(Duration::from_secs(30)).await;
        far.forget_clean();
        assert!(rig::read(&far, file, 0, 70_000).await == content(3, 70_000));
        far.release(file).await;
        assert_eq!(inodes(&far).await, there);
        other.close().await.unwrap();
        far.close().await.unwrap();
        next.close().await.unwrap();
    });
}

/// Its program is killed before the answer comes, or its client ends: nobody has it open any more.
#[test]
fn a_file_that_nobody_waits_for_or_whose_client_ends_goes_with_its_name() {
    run(9_840, |world, node| async move {
        let (far, way, _) = far(&node).await;
        let there = inodes(&node.client).await;
        let late: Which = makes_held;
        *way.late.lock() = Some(late);
        let killed = far.create_and_open(ROOT, name("killed"), new_file());
        let killed = world.timeout(Duration::from_secs(1), killed).await;
        assert!(killed.is_err());
        *way.late.lock() = None;
        // Its client goes on asking, and closes it.
        world.sleep(Duration::from_secs(10)).await;
        assert_eq!(node.metanode.in_use().inodes, 0);
        node.client.unlink(ROOT, name("killed")).await.unwrap();
        assert_eq!(inodes(&node.client).await, there);

        rig::file(&far, "left").await;
        node.client.unlink(ROOT, name("left")).await.unwrap();
        assert_eq!(inodes(&node.client).await, there + 1);
        far.close().await.unwrap();
        assert_eq!(inodes(&node.client).await, there);
        node.check_and_close().await;
    });
}

/// A program is killed while it opens a file that is there, or doesn't wait any longer: it doesn't stay open.
#[test]
fn an_open_that_nobody_waits_for_ends() {
    run(9_850, |world, node| async move {
        let (far, way, _) = far(&node).await;
        let there = inodes(&node.client).await;
        let file = rig::file(&node.client, "f").await;
        node.client.release(file).await;
        way.deaf.store(true, Ordering::Relaxed);
        let killed = far.open(file, OpenFlags::default());
        let killed = world.timeout(Duration::from_secs(1), killed).await;
        assert!(killed.is_err());
        assert_eq!(node.metanode.in_use().inodes, 1, "the owner has done it");
        way.deaf.store(false, Ordering::Relaxed);
        // Its client goes on asking, and closes it.
        world.sleep(Duration::from_secs(10)).await;
        assert_eq!(node.metanode.in_use().inodes, 0);
        node.client.unlink(ROOT, name("f")).await.unwrap();
        assert_eq!(inodes(&node.client).await, there);
        far.close().await.unwrap();
        node.check_and_close().await;
    });
}
