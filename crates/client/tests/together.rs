//! What is stored while a publish is under way is published together, and a few blocks of a stream anyway.

use crate::rig::way::{Way, Which, client_through};
use crate::rig::{self, Node, content, run_patient as run};
use client::{Client, OpenFlags};
use futures::future::{join, join_all};
use futures::poll;
use model::{ErrorKind, InodeId, Operation};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use world::World;

const MS: Duration = Duration::from_millis(1);
const BLOCK: usize = 1 << 16;
/// Blocks that are written while a publish is under way.
const BLOCKS: u64 = 8;
/// The block that can't be published.
const REFUSED: u64 = 2;

fn publishes(operation: &Operation) -> bool {
    matches!(operation, Operation::Publish(_))
}

fn is_refused(operation: &Operation) -> bool {
    let Operation::Publish(publish) = operation else {
        return false;
    };
    let mut offsets = publish.extents.iter().map(|extent| extent.offset);
    offsets.any(|offset| offset == REFUSED * BLOCK as u64)
}

async fn write(far: &Client, file: InodeId, block: u64) {
    let bytes = content(block, BLOCK);
    far.write(file, block * BLOCK as u64, &bytes).await.unwrap();
}

/// Waits until all that was written is on the NSDs.
async fn until_stored(world: &World) {
    loop {
        world.sleep(MS).await;
        let (waits, _) = world.waits();
        if !waits.iter().any(|wait| wait.cause == "stores data") {
            break;
        }
    }
    // The client takes it down.
    world.sleep(MS).await;
}

/// A client on another node has a file open, and the publish of its first block isn't answered until `late` is `None`.
async fn held_up(node: &Node) -> (Arc<Way>, Arc<Client>, InodeId) {
    let way = Way::new(&node.world, &node.metanode, 0);
    let far = client_through(node, &way).await;
    let file = rig::file(&node.client, "f").await;
    far.open(file, OpenFlags::default()).await.unwrap();
    let late: Which = publishes;
    *way.late.lock() = Some(late);
    write(&far, file, 0).await;
    way.until_late().await;
    (way, far, file)
}

async fn check_and_close(node: Node, far: &Client, file: InodeId, blocks: u64) {
    for block in 0..blocks {
        let seen = rig::read(&node.client, file, block * BLOCK as u64, BLOCK).await;
        assert!(seen == content(block, BLOCK), "block {block}");
    }
    let attributes = node.client.get_attributes(file).await.unwrap();
    assert_eq!(attributes.size, blocks * BLOCK as u64);
    far.release(file).await;
    far.close().await.unwrap();
    node.check_and_close().await;
}

/// Would be slow if each block waited for a commit of its own: the memory of one is free only after that.
#[test]
fn blocks_that_are_stored_while_a_publish_is_under_way_are_published_together() {
    run(9_560, |world, node| async move {
        let (way, far, file) = held_up(&node).await;
        // Last ones first: only that none lies over another matters.
        for block in (1..=BLOCKS).rev() {
            write(&far, file, block).await;
        }
        until_stored(&world).await;
        *way.late.lock() = None;
        far.fsync(file, false).await.unwrap();
        assert_eq!(*way.published.lock(), [1, BLOCKS as usize]);
        assert_eq!(far.page_pool_bytes().0, 0);
        check_and_close(node, &far, file, BLOCKS + 1).await;
    });
}

/// Would be published one by one as they are stored, with a commit for each.
#[test]
fn blocks_of_a_stream_wait_for_a_few_of_them_before_they_are_published() {
    run(9_563, |world, node| async move {
        let way = Way::new(&node.world, &node.metanode, 0);
        let far = client_through(&node, &way).await;
        let file = rig::file(&node.client, "f").await;
        far.open(file, OpenFlags::default()).await.unwrap();
        // Who waits for the only one doesn't wait for more.
        write(&far, file, 0).await;
        far.fsync(file, false).await.unwrap();
        assert_eq!(*way.published.lock(), [1]);
        join_all((1..=BLOCKS).map(|block| write(&far, file, block))).await;
        // Nobody asks for it: the last ones have none to wait for.
        while far.page_pool_bytes().0 > 0 {
            world.sleep(MS).await;
        }
        let published = way.published.lock().clone();
        assert!(published[1] >= 4, "{published:?}");
        check_and_close(node, &far, file, BLOCKS + 1).await;
    });
}

/// What is wrong with one of several is told to who waits for that one, and nobody waits for more than what was written
/// before.
#[test]
fn a_block_that_cannot_be_published_holds_up_only_what_was_written_after_it() {
    run(9_561, |world, node| async move {
        let (way, far, file) = held_up(&node).await;
        write(&far, file, 1).await;
        let mut before = pin!(far.fsync(file, false));
        assert!(poll!(before.as_mut()).is_pending());
        let refuses: Which = is_refused;
        *way.refuses.lock() = Some(refuses);
        write(&far, file, REFUSED).await;
        write(&far, file, 3).await;
        let mut after = pin!(far.fsync(file, false));
        assert!(poll!(after.as_mut()).is_pending());
        until_stored(&world).await;
        *way.late.lock() = None;
        let (before, after) = join(before, after).await;
        before.unwrap();
        assert_eq!(after.unwrap_err().kind(), ErrorKind::Corrupt);
        // All three together, then each by itself.
        assert_eq!(way.published.lock()[..4], [1, 3, 1, 1]);
        *way.refuses.lock() = None;
        far.fsync(file, false).await.unwrap();
        assert_eq!(far.page_pool_bytes().0, 0);
        check_and_close(node, &far, file, 4).await;
    });
}

/// Each later one replaces the one before: in one operation nobody could say which is the last.
#[test]
fn what_overwrites_unpublished_bytes_is_published_after_them() {
    run(9_562, |world, node| async move {
        let (way, far, file) = held_up(&node).await;
        write(&far, file, 1).await;
        for number in 2..5 {
            let bytes = content(number, BLOCK);
            far.write(file, 0, &bytes).await.unwrap();
        }
        until_stored(&world).await;
        *way.late.lock() = None;
        far.fsync(file, false).await.unwrap();
        assert_eq!(*way.published.lock(), [1, 2, 1, 1]);
        let seen = rig::read(&node.client, file, 0, BLOCK).await;
        assert!(seen == content(4, BLOCK));
        far.write(file, 0, &content(0, BLOCK)).await.unwrap();
        check_and_close(node, &far, file, 2).await;
    });
}
