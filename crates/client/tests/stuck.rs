//! Files with data that is old, hard to store or can't be stored, and their effect on other files.

use crate::rig::{Node, Place, content, file, name, read, run, settings};
use bytes::Bytes;
use client::{Allocate, Client, ClientSettings};
use futures::future::join;
use model::{
    ErrorKind, Extent, ExtentKind, FamilyId, InodeId, Operation, Reply, Scheme, SessionId,
    SetAttributes,
};
use namespace::{Key, Record};
use pool::{SegmentOwner, SegmentSource};
use std::time::Duration;
use world::sim::Simulation;

const BLOCK: u64 = 64 * 1024;

#[test]
fn what_is_older_than_five_seconds_survives_however_busy_its_file_is() {
    let sim = Simulation::new(11);
    let faults = sim.faults();
    let place = Place::default();
    let (first, second) = (place.clone(), place);
    let outcome = sim.run(|world| async move {
        Node::create(&world, &first).await;
        let node = Node::open(&world, &first, settings()).await;
        let (client, inode) = (&node.client, node.file("f").await);
        client.write(inode, 0, &content(1, 600)).await.unwrap();
        // A stream that never pauses: every write completes a block.
        for block in 0..200 {
            if block == 50 {
                client
                    .write(inode, 2 * BLOCK + 7, &content(2, 70))
                    .await
                    .unwrap();
            }
            let at = (16 + block) * BLOCK;
            client
                .write(inode, at, &content(block, BLOCK as usize))
                .await
                .unwrap();
            world.sleep(Duration::from_millis(40)).await;
        }
        faults.cut_now();
        world.sleep(Duration::from_secs(1)).await;
    });
    assert!(outcome.is_crashed());
    sim.run(|world| async move {
        let node = Node::open(&world, &second, settings()).await;
        let found = node.client.lookup(InodeId::ROOT, name("f")).await.unwrap();
        assert!(read(&node.client, found.inode, 0, 600).await == content(1, 600));
        assert!(read(&node.client, found.inode, 2 * BLOCK + 7, 70).await == content(2, 70));
    })
    .finished();
}

#[test]
fn one_write_over_thousands_of_small_ones_is_stored() {
    run(12, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        for at in (0..4096).rev().map(|number| number * 2) {
            client.write(inode, at, b"x").await.unwrap();
            if at % 128 == 0 {
                client.fsync(inode, false).await.unwrap();
            }
        }
        let bytes = content(1, 8191);
        client.write(inode, 0, &bytes).await.unwrap();
        client.fsync(inode, false).await.unwrap();
        assert_eq!(client.page_pool_bytes().0, 0);
        client.forget_clean();
        assert!(read(client, inode, 0, 10_000).await == bytes);
        client.sync_all().await.unwrap();
    });
}

async fn extents(node: &Node, inode: InodeId) -> Vec<Extent> {
    let operation = Operation::ReadExtents {
        inode,
        offset: 0,
        length: 1 << 40,
        limit: 1000,
    };
    let stamp = model::operation::Stamp::own(node.world.wall(), model::SessionId(1));
    match node.metanode.execute(&operation, &stamp).await.unwrap() {
        Reply::Extents { extents, .. } => extents,
        other => panic!("{other:?}"),
    }
}

async fn forge(node: &Node, key: Key, record: Option<Record>) {
    testkit::forge::forge(&node.metanode.hosted(), vec![(key, record)]).await;
    // The first operation takes the shard over again.
    node.metanode.usage().await.unwrap();
}

#[test]
fn a_file_that_cannot_be_stored_leaves_room_to_others() {
    run(13, |node| async move {
        let client = &node.client;
        let (bad, good) = (file(client, "bad").await, file(client, "good").await);
        client.write(bad, 0, &content(1, 100_000)).await.unwrap();
        client.fsync(bad, false).await.unwrap();
        // Its segment's record is lost: its data can't be replaced.
        let ExtentKind::Data { place, .. } = extents(&node, bad).await[0].kind.clone() else {
            panic!("100 KB are in a segment")
        };
        let key = Key::Segment(place.segment);
        let record = node.metanode.hosted().record(&key).await.unwrap();
        forge(&node, key.clone(), None).await;
        client.write(bad, 0, &content(2, 100_000)).await.unwrap();
        assert!(client.fsync(bad, false).await.is_err());
        // It takes as much memory as allowed, then gets the error.
        let mut at = 0;
        let refused = loop {
            match client.write(bad, at, &content(at, BLOCK as usize)).await {
                Ok(()) => at += BLOCK,
                Err(error) => break error,
            }
        };
        assert_eq!(refused.errno(), 5, "EIO: {refused}");
        assert!(at > 0 && at <= settings().page_pool_bytes / 4);
        let begun = node.world.now();
        for at in (0..8 << 20).step_by(BLOCK as usize) {
            client
                .write(good, at, &content(at, BLOCK as usize))
                .await
                .unwrap();
        }
        client.fsync(good, false).await.unwrap();
        assert!(node.world.now() - begun < settings().patience);
        assert!(
            client.sync_all().await.is_err(),
            "the bad file isn't stored"
        );
        assert!(
            read(client, good, 1 << 20, BLOCK as usize).await == content(1 << 20, BLOCK as usize)
        );
        // Its data was kept, and is stored once that is possible.
        forge(&node, key, record).await;
        client.sync_all().await.unwrap();
        assert_eq!(client.page_pool_bytes().0, 0);
        client.forget_clean();
        assert!(read(client, bad, 0, BLOCK as usize).await == content(0, BLOCK as usize));
        client.write(bad, 0, &content(3, 8 << 20)).await.unwrap();
        client.fsync(bad, false).await.unwrap();
    });
}

#[test]
fn a_copy_from_a_file_that_is_cut_meanwhile_answers_what_it_shared() {
    run(14, |node| async move {
        let client = &node.client;
        let (from, to) = (file(client, "from").await, file(client, "to").await);
        let bytes = content(1, 300_000);
        client.write(from, 0, &bytes).await.unwrap();
        client.fsync(from, false).await.unwrap();
        client.write(to, 0, &content(2, 100_000)).await.unwrap();
        // The copy waits for the destination's own data, and the source is truncated meanwhile.
        let cut = SetAttributes {
            size: Some(100_000),
            ..SetAttributes::default()
        };
        let (copied, cut) = join(
            client.copy_range(from, 0, to, 0, 300_000),
            client.set_attributes(from, cut),
        )
        .await;
        cut.unwrap();
        assert_eq!(copied.unwrap(), 100_000);
        assert!(read(client, to, 0, 1 << 20).await == bytes[..100_000]);
        assert_eq!(
            client.copy_range(from, 100_000, to, 0, 10).await.unwrap(),
            0
        );
    });
}

#[test]
fn reservations_fit_into_the_pool() {
    run(15, |node| async move {
        let client = &node.client;
        let capacity = node.pool.usage().capacity;
        let inode = file(client, "f").await;
        let most = model::limits::FILE_BYTES_MAX;
        for how in [
            Allocate::Zero { keep_size: true },
            Allocate::Zero { keep_size: false },
            Allocate::Reserve { keep_size: false },
        ] {
            let refused = client.allocate(inode, how, 0, most).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NoSpace);
            let after = client.get_attributes(inode).await.unwrap();
            assert_eq!((after.size, after.allocated), (0, 0));
        }
        // Nor in several steps.
        let how = Allocate::Zero { keep_size: true };
        let mut steps = 0;
        let refused = loop {
            let at = steps * (capacity / 4);
            match client.allocate(inode, how, at, capacity / 4).await {
                Ok(()) => steps += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        assert!((1..=4).contains(&steps), "{steps} quarters fitted");
        assert!(client.get_attributes(inode).await.unwrap().allocated <= capacity);
        // Space already reserved costs nothing more.
        client.allocate(inode, how, 0, capacity / 4).await.unwrap();
    });
}

#[test]
fn what_was_written_is_stored_however_cut_up_the_free_space_is() {
    let sim = Simulation::new(31);
    let place = Place {
        nsds: 1,
        scheme: Scheme::Replicate(1),
        ..Place::default()
    };
    sim.run(|world| async move {
        Node::create(&world, &place).await;
        let settings = ClientSettings {
            page_pool_bytes: 64 << 20,
            block_bytes: 4 << 20,
            ..settings()
        };
        let node = Node::open(&world, &place, settings).await;
        // Small segments to the last place, then every second one is deleted.
        let source = SegmentSource::new(SessionId(1 << 40));
        let owner = SegmentOwner::table(FamilyId(9));
        let mut places = Vec::new();
        let small = Bytes::from(content(1, 20_000));
        while let Ok(place) = node.pool.write(&source, owner, small.clone()).await {
            places.push(place);
            assert!(places.len() < 10_000, "the disk holds less");
        }
        places.retain(|place| place.segment.counter % 2 == 0);
        node.pool.delete(&places).await.unwrap();
        let (client, inode) = (&node.client, node.file("f").await);
        let bytes = content(2, 12 << 20);
        for (at, block) in (0..).step_by(1 << 20).zip(bytes.chunks(1 << 20)) {
            client.write(inode, at, block).await.unwrap();
        }
        client.fsync(inode, false).await.unwrap();
        client.forget_clean();
        assert!(read(client, inode, 0, 12 << 20).await == bytes);
        node.close().await;
    })
    .finished();
}

#[test]
fn what_is_tried_again_and_again_takes_no_more_space_each_time() {
    let sim = Simulation::new(32);
    let place = Place {
        nsds: 1,
        scheme: Scheme::Replicate(1),
        ..Place::default()
    };
    sim.run(|world| async move {
        Node::create(&world, &place).await;
        let settings = ClientSettings {
            page_pool_bytes: 64 << 20,
            block_bytes: 4 << 20,
            dirty_idle_max: Duration::from_secs(3_600),
            dirty_age_max: Duration::from_secs(3_600),
            ..settings()
        };
        let node = Node::open(&world, &place, settings).await;
        let (client, inode) = (&node.client, node.file("f").await);
        // Seven segments, and some small pieces that share one; few enough to wait in memory.
        let bytes = content(1, 2 << 20);
        let small = content(2, 100_000);
        for part in 0..7u64 {
            client.write(inode, part << 22, &bytes).await.unwrap();
            let behind = (part << 22) + (3 << 20);
            client.write(inode, behind, &small).await.unwrap();
        }
        // The space reserved for them is taken by another writer, without a reservation.
        let source = SegmentSource::new(SessionId(1 << 40));
        let owner = SegmentOwner::table(FamilyId(9));
        let other = Bytes::from(content(3, 1 << 20));
        let mut others = Vec::new();
        while let Ok(place) = node.pool.write(&source, owner, other.clone()).await {
            others.push(place);
            assert!(others.len() < 1_000, "the disk holds less");
        }
        node.pool
            .delete(&others.split_off(others.len() - 6))
            .await
            .unwrap();
        let refused = client.fsync(inode, false).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        // It is freed in small steps, and all of it goes to the waiting data.
        let mut freed = 6;
        while client.fsync(inode, false).await.is_err() {
            assert!(freed < 22, "{freed} MiB are not enough for 15");
            let gone = others.split_off(others.len() - 1);
            node.pool.delete(&gone).await.unwrap();
            freed += 1;
            world.sleep(Duration::from_secs(5)).await;
        }
        client.forget_clean();
        for part in 0..7u64 {
            assert!(read(client, inode, part << 22, 2 << 20).await == bytes);
        }
        node.pool.delete(&others).await.unwrap();
        node.close().await;
    })
    .finished();
}

/// Writes until not even a byte fits.
async fn fill(client: &Client, inode: InodeId) -> u64 {
    let mut at = 0;
    let mut part = 100_000;
    while part > 0 {
        match client.write(inode, at, &content(at, part)).await {
            Ok(()) => at += part as u64,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                part /= 2;
            }
        }
    }
    at
}

#[test]
fn a_full_pool_refuses_ranges_that_make_records_and_takes_those_that_free() {
    let sim = Simulation::new(16);
    let place = Place {
        nsd_bytes: 48 << 20,
        ..Place::default()
    };
    sim.run(|world| async move {
        Node::create(&world, &place).await;
        let node = Node::open(&world, &place, settings()).await;
        let client = &node.client;
        let (other, inode) = (file(client, "other").await, file(client, "f").await);
        client.write(other, 0, &content(1, 100_000)).await.unwrap();
        client
            .allocate(
                other,
                Allocate::Reserve { keep_size: false },
                1 << 20,
                1 << 20,
            )
            .await
            .unwrap();
        let written = fill(client, inode).await;
        client.sync_all().await.unwrap();
        // Space freed by storing is filled again, until nothing more can be freed.
        let mut rounds = 0;
        while node.metanode.make_room().await.unwrap() || node.pool.usage().available_to_users > 0 {
            let _ = fill(client, inode).await;
            client.sync_all().await.unwrap();
            rounds += 1;
            assert!(rounds < 100, "{:?}", node.pool.usage());
        }
        for (how, at) in [
            (Allocate::Punch, 100),
            (Allocate::Punch, (1 << 20) + 4096),
            (Allocate::Zero { keep_size: true }, 100),
            (Allocate::Zero { keep_size: true }, 500_000),
        ] {
            let refused = client.allocate(other, how, at, 10).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NoSpace, "{how:?} at {at}");
        }
        assert!(read(client, other, 0, 100_000).await == content(1, 100_000));
        let punch = |at, length| client.allocate(other, Allocate::Punch, at, length);
        punch(0, 1000).await.unwrap();
        punch(50_000, 1 << 20).await.unwrap();
        punch(0, 4 << 20).await.unwrap();
        assert_eq!(client.get_attributes(other).await.unwrap().allocated, 0);
        client
            .allocate(inode, Allocate::Punch, 0, written / 2)
            .await
            .unwrap();
        client.unlink(InodeId::ROOT, name("other")).await.unwrap();
    })
    .finished();
}
