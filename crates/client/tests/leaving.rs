//! A client goes on in the session of another one of its process, when the owner that was the whole cluster is none any more.

use crate::rig::near::Map;
use crate::rig::way::RUN;
use crate::rig::{Node, content, file, name, new_file, read, run, settings};
use client::{Client, Legacy};
use metanode::{CheckOptions, Metanode, OwnerLease};
use model::lock::{LockDoor, LockOwner, LockTaker};
use model::{ErrorKind, InodeId, LockKind, LockRange};
use std::future::Pending;
use std::sync::Arc;

/// Too much for a record.
const BYTES: usize = 200_000;
const TAKER: LockTaker = LockTaker {
    open: 1,
    pid: 7,
    user: 1,
};

fn owner(door: LockDoor, id: u64) -> LockOwner {
    LockOwner { door, id }
}

async fn set_lock(client: &Client, inode: InodeId, owner: LockOwner, kind: Option<LockKind>) {
    let never = None::<Pending<()>>;
    let set = client.set_lock(inode, owner, LockRange::ALL, kind, TAKER, never);
    set.await.unwrap();
}

/// The process that has a lock in the way of another one.
async fn in_the_way(client: &Client, inode: InodeId, door: LockDoor) -> Option<u32> {
    let other = owner(door, 2);
    let held = client.get_lock(inode, other, LockRange::ALL, LockKind::Shared);
    held.await.unwrap().map(|held| held.pid)
}

/// The next owner of the shard in this process, and the client that goes on there.
async fn go_on(node: &Node, legacy: Legacy) -> (Arc<Metanode>, Arc<Client>) {
    node.metanode.close().await.unwrap();
    let next = node.next_owner(RUN).await;
    next.start_background();
    let map = Map::new(&node.world, OwnerLease::endless());
    map.is_near(&next);
    let (world, pool) = (node.world.clone(), node.pool.clone());
    let client = Client::go_on(world, map.owner(), pool, legacy, settings());
    (next, client.unwrap())
}

/// Would be broken if a file without names went with the client before, if others got a lock that a program has, or if two
/// segments had one name.
#[test]
fn what_programs_have_open_and_lock_outlasts_the_client_that_they_had_it_from() {
    run(31, |node| async move {
        let before = &node.client;
        let door = before.begin_lock_door().await.unwrap();
        let ended = before.begin_lock_door().await.unwrap();
        let kept = file(before, "kept").await;
        let gone = file(before, "gone").await;
        before.unlink(InodeId::ROOT, name("gone")).await.unwrap();
        let unnamed = before.create_unnamed(InodeId::ROOT, new_file());
        let unnamed = unnamed.await.unwrap().inode;
        let closed = file(before, "closed").await;
        before.release(closed).await;
        let all = [(kept, 1), (gone, 2), (unnamed, 3)];
        for (inode, number) in all {
            before
                .write(inode, 0, &content(number, BYTES))
                .await
                .unwrap();
        }
        set_lock(before, kept, owner(door, 1), Some(LockKind::Exclusive)).await;
        set_lock(before, gone, owner(ended, 1), Some(LockKind::Exclusive)).await;
        before.end_lock_door(ended);
        let legacy = before.leave().await.unwrap();
        let refused = before.unlink(InodeId::ROOT, name("kept")).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ShuttingDown);
        let (next, client) = go_on(&node, legacy).await;
        for (inode, number) in all {
            assert_eq!(read(&client, inode, 0, BYTES).await, content(number, BYTES));
        }
        assert_eq!(next.in_use().inodes, 3, "nothing is held that is closed");
        assert_eq!(in_the_way(&client, kept, door).await, Some(TAKER.pid));
        assert_eq!(
            in_the_way(&client, gone, door).await,
            None,
            "it ended before"
        );
        set_lock(&client, kept, owner(door, 1), None).await;
        assert_eq!(in_the_way(&client, kept, door).await, None);
        assert_eq!(client.losses(), client::Losses::default());
        let third = client.begin_lock_door().await.unwrap();
        assert_ne!(third, door);
        // What is written now has names of its own.
        for (inode, number) in all {
            client
                .write(inode, 0, &content(number + 3, BYTES))
                .await
                .unwrap();
            client.fsync(inode, false).await.unwrap();
        }
        client.forget_clean();
        for (inode, number) in all {
            let expected = content(number + 3, BYTES);
            assert_eq!(read(&client, inode, 0, BYTES).await, expected);
        }
        for inode in [gone, unnamed] {
            client.release(inode).await;
        }
        assert_eq!(next.in_use().inodes, 1);
        client.close().await.unwrap();
        let report = next.check(CheckOptions { deep: true }).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(report.inodes, 3, "the root, and those with names");
        next.close().await.unwrap();
    });
}

/// Would be broken if a node that was ended in the middle kept files without names for ever.
#[test]
fn what_nobody_goes_on_with_ends_with_the_run_of_its_node() {
    run(32, |node| async move {
        let gone = file(&node.client, "gone").await;
        node.client
            .unlink(InodeId::ROOT, name("gone"))
            .await
            .unwrap();
        drop(node.client.leave().await.unwrap());
        node.metanode.close().await.unwrap();
        let run = node.coordination.begin_run(RUN.node).await.unwrap();
        let next = node.next_owner(run).await;
        assert_eq!(next.in_use().sessions, 0);
        let report = next.check(CheckOptions { deep: true }).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        // Only the root is left.
        assert_eq!(report.inodes, 1, "{gone} is removed");
        next.close().await.unwrap();
    });
}
