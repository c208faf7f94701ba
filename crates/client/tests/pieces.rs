//! Files with very many pieces, and files that are nearly all hole.

use crate::rig::{self, Node, Place, content, file, read, run, run_with, settings};
use client::{Client, ClientSettings, OpenFlags, ReadTraces, Seek};
use futures::FutureExt;
use metanode::CheckOptions;
use model::{ErrorKind, InodeId, SetAttributes, limits};
use std::time::Duration;
use world::sim::Simulation;

/// Writes `count` single bytes, every second one from `from` on.
async fn write_bytes(client: &Client, inode: InodeId, from: u64, count: u64) {
    for number in 0..count {
        client.write(inode, from + 2 * number, b"x").await.unwrap();
    }
}

#[test]
fn a_seek_passes_the_largest_hole_at_once() {
    run(1, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        let set = SetAttributes {
            size: Some(limits::FILE_BYTES_MAX),
            ..SetAttributes::default()
        };
        client.set_attributes(inode, set).await.unwrap();
        // Its known extents are dropped with its last user.
        client.release(inode).await;
        client.open(inode, OpenFlags::default()).await.unwrap();
        let none = client.seek(inode, 0, Seek::Data).await.unwrap_err();
        assert_eq!(none.kind(), ErrorKind::NoSuchDeviceOrAddress);
        let late = 7 << 60;
        client.write(inode, late, b"x").await.unwrap();
        for _ in ["dirty", "published"] {
            assert_eq!(client.seek(inode, 5, Seek::Data).await.unwrap(), late);
            assert_eq!(client.seek(inode, 5, Seek::Hole).await.unwrap(), 5);
            let behind = client.seek(inode, late, Seek::Hole).await.unwrap();
            assert_eq!(behind, late + 1);
            assert!(client.seek(inode, late + 1, Seek::Data).await.is_err());
            client.fsync(inode, false).await.unwrap();
        }
    });
}

#[test]
fn a_seek_passes_more_pieces_than_are_remembered() {
    const COUNT: u64 = 9_000;
    run(2, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        for from in [0, 1] {
            write_bytes(client, inode, from, COUNT).await;
            client.fsync(inode, false).await.unwrap();
        }
        assert_eq!(client.seek(inode, 0, Seek::Hole).await.unwrap(), 2 * COUNT);
        assert_eq!(client.seek(inode, 7, Seek::Data).await.unwrap(), 7);
        // Every second byte after that: dirty and published bytes alternate.
        write_bytes(client, inode, 2 * COUNT, COUNT).await;
        client.fsync(inode, false).await.unwrap();
        write_bytes(client, inode, 2 * COUNT + 1, COUNT - 1).await;
        let end = 4 * COUNT - 1;
        assert_eq!(client.seek(inode, 0, Seek::Hole).await.unwrap(), end);
    });
}

#[test]
fn seeking_in_what_is_no_file_ends() {
    run(3, |node| async move {
        let refused = node.client.seek(InodeId::ROOT, 0, Seek::Data).await;
        assert!(refused.is_err());
    });
}

#[test]
fn any_number_of_pieces_is_read_from_memory_and_from_the_nsds() {
    const COUNT: u64 = 20_000;
    run(4, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        write_bytes(client, inode, 0, COUNT).await;
        let expected = b"x\0".repeat(COUNT as usize);
        let expected = &expected[..2 * COUNT as usize - 1];
        assert!(read(client, inode, 0, 1 << 20).await == expected, "dirty");
        client.fsync(inode, false).await.unwrap();
        assert!(read(client, inode, 0, 1 << 20).await == expected, "cached");
        for cached in [false, true] {
            client.forget_clean();
            let traces = ReadTraces {
                kept: None,
                atime: true,
                cached,
            };
            let pieces = client.read_leaving(inode, 0, 1 << 20, traces).await;
            assert!(pieces.unwrap().concat() == expected, "from the NSDs");
        }
    });
}

/// A reader finds the runs of a batch near each gap by search: walking over all of them would block
/// the inode for minutes.
#[test]
fn very_many_pieces_of_several_batches_are_read_while_they_are_on_their_way() {
    const COUNT: u64 = 40_000;
    let settings = ClientSettings {
        page_pool_bytes: 256 << 20,
        ..rig::settings()
    };
    run_with(5, settings, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        let mut syncs = Vec::new();
        for from in [0, 2 * COUNT, 1, 2 * COUNT + 1] {
            write_bytes(client, inode, from, COUNT).await;
            let mut sync = Box::pin(client.fsync(inode, false));
            assert!((&mut sync).now_or_never().is_none(), "it has begun");
            syncs.push(sync);
        }
        let all = b"x".repeat(4 * COUNT as usize);
        let found = client.read(inode, 0, 1 << 20).now_or_never();
        assert!(found.expect("all is in memory").unwrap().concat() == all);
        assert_eq!(client.page_pool_bytes().0, 4 * COUNT);
        for sync in syncs {
            sync.await.unwrap();
        }
        assert!(read(client, inode, 0, 1 << 20).await == all);
    });
}

#[test]
fn what_is_known_of_pieces_stays_in_the_budget_however_many_files_are_open() {
    const COUNT: u64 = 1_000;
    run(6, |node| async move {
        let client = &node.client;
        let first = file(client, "f").await;
        for from in [0, 1] {
            write_bytes(client, first, from, COUNT).await;
            client.fsync(first, false).await.unwrap();
        }
        let (_, budget) = client.page_pool_memory();
        for number in 0..100 {
            let inode = file(client, &format!("f{number}")).await;
            let copied = client.copy_range(first, 0, inode, 0, 2 * COUNT).await;
            assert_eq!(copied.unwrap(), 2 * COUNT);
            assert_eq!(client.seek(inode, 0, Seek::Hole).await.unwrap(), 2 * COUNT);
            let (held, _) = client.page_pool_memory();
            assert!(
                held <= budget,
                "{held} bytes are held with {number} files open"
            );
            let (_, cached) = client.page_pool_bytes();
            assert!(cached > 0, "other files' bytes stay");
        }
    });
}

#[test]
fn many_small_pieces_that_are_read_stay_in_the_budget() {
    const COUNT: u64 = 15_000;
    const PIECE: u64 = 512;
    run(7, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        for from in [0, 1] {
            for number in 0..COUNT {
                let at = (from + 2 * number) * PIECE;
                client.write(inode, at, &[7; 512]).await.unwrap();
            }
            client.fsync(inode, false).await.unwrap();
        }
        client.forget_clean();
        let (_, budget) = client.page_pool_memory();
        for at in (0..2 * COUNT * PIECE).step_by(128 << 10) {
            let pieces = client.read(inode, at, 128 << 10).await.unwrap();
            drop(pieces);
            let (held, _) = client.page_pool_memory();
            assert!(held <= budget, "{held} bytes are held at {at}");
        }
    });
}

/// Random writes to a file of which nothing is cached, more than fit into memory: more pieces than
/// one publish carries, over extents that must be fetched.
#[test]
fn small_writes_all_over_a_cold_file_wait_little_and_stay() {
    const BYTES: u64 = 16 << 20;
    const PIECE: u64 = 4096;
    const WRITES: u64 = 6000;
    let sim = Simulation::new(7);
    sim.limit_time(Duration::from_secs(60 * 60));
    sim.run(|world| async move {
        let place = Place::default();
        Node::create(&world, &place).await;
        let node = Node::open(&world, &place, settings()).await;
        let inode = node.file("f").await;
        let mut expected = content(1, BYTES as usize);
        node.client.write(inode, 0, &expected).await.unwrap();
        node.close().await;

        let node = Node::open(&world, &place, settings()).await;
        let client = &node.client;
        client.open(inode, OpenFlags::default()).await.unwrap();
        let mut longest = Duration::ZERO;
        for number in 0..WRITES {
            let at = world.random_u64() % (BYTES / PIECE) * PIECE;
            // Some aren't aligned to units.
            let at = at + (number % 7 / 6) * 100;
            let data = content(number, PIECE as usize);
            let data = &data[..data.len().min((BYTES - at) as usize)];
            let begun = world.now();
            client.write(inode, at, data).await.unwrap();
            longest = longest.max(world.now() - begun);
            expected[at as usize..at as usize + data.len()].copy_from_slice(data);
        }
        assert!(longest < Duration::from_millis(200), "{longest:?}");
        client.forget_clean();
        assert!(read(client, inode, 0, BYTES as usize).await == expected);
        client.fsync(inode, false).await.unwrap();
        assert_eq!(client.page_pool_bytes().0, 0);
        node.close().await;

        let node = Node::open(&world, &place, settings()).await;
        assert!(read(&node.client, inode, 0, BYTES as usize).await == expected);
        let deep = CheckOptions { deep: true };
        let report = node.metanode.check(deep).await.unwrap();
        assert!(report.is_clean(), "{:?}", report.faults);
        node.close().await;
    })
    .finished();
}
