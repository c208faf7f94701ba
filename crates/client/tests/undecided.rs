//! A publish that nobody waits for any more may still run. It must not run after what was published later.

use crate::rig::way::{Way, client_through};
use crate::rig::{self, Node, run_patient as run};
use client::{Client, OpenFlags};
use model::{ErrorKind, InodeId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use world::World;

const MS: Duration = Duration::from_millis(1);

/// A client on another node has written to a file, and nothing that it publishes arrives.
async fn cut_off(node: &Node) -> (Arc<Way>, Arc<Client>, InodeId) {
    let way = Way::new(&node.world, &node.metanode, 0);
    let far = client_through(node, &way).await;
    let file = rig::file(&node.client, "f").await;
    far.open(file, OpenFlags::default()).await.unwrap();
    far.write(file, 0, b"old").await.unwrap();
    way.no_publishes.store(true, Ordering::Relaxed);
    (way, far, file)
}

/// The publish is asked for once more, which is lost, and again after a while. Before that others of the file arrive.
async fn go_on(world: &World, node: Node, way: &Way, far: &Client, file: InodeId) {
    world.sleep(MS).await;
    way.no_publishes.store(false, Ordering::Relaxed);
    far.fsync(file, false).await.unwrap();
    far.write(file, 0, b"new").await.unwrap();
    far.fsync(file, false).await.unwrap();
    world.sleep(Duration::from_secs(60)).await;
    assert_eq!(rig::read(&node.client, file, 0, 3).await, b"new");
    far.release(file).await;
    far.close().await.unwrap();
    node.check_and_close().await;
}

#[test]
fn a_publish_that_nobody_waits_for_replaces_nothing_newer() {
    run(9_570, |world, node| async move {
        let (way, far, file) = cut_off(&node).await;
        let given_up = world.timeout(MS, far.fsync(file, false)).await;
        assert!(given_up.is_err());
        go_on(&world, node, &way, &far, file).await;
    });
}

#[test]
fn a_publish_that_took_too_long_replaces_nothing_newer() {
    run(9_571, |world, node| async move {
        let (way, far, file) = cut_off(&node).await;
        let unknown = far.fsync(file, false).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Unknown);
        go_on(&world, node, &way, &far, file).await;
    });
}
