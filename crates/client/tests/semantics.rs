//! The promises of `docs/semantics.md`, by name.

use crate::rig::{self, content, file, name, read, run};
use client::{Allocate, OpenFlags, ReadTraces, Seek};
use model::operation::{RenameMode, XattrMode};
use model::{ErrorKind, InodeId, Privileges, SetAttributes, TimeChange, Timestamp};
use std::time::Duration;

fn size(size: u64) -> SetAttributes {
    SetAttributes {
        size: Some(size),
        ..SetAttributes::default()
    }
}

#[test]
fn stat_shows_a_write_at_once() {
    run(1, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        let before = client.get_attributes(inode).await.unwrap();
        node.world.sleep(Duration::from_millis(5)).await;
        client
            .write(inode, 100, &content(1, 200_000))
            .await
            .unwrap();
        let after = client.lookup(InodeId::ROOT, name("f")).await.unwrap();
        assert_eq!(after.size, 200_100);
        assert!(after.mtime > before.mtime && after.ctime == after.mtime);
        let listing = client
            .read_directory(InodeId::ROOT, 0, 10, true)
            .await
            .unwrap();
        assert_eq!(listing.entries[0].attributes.unwrap().size, 200_100);
        client.fsync(inode, false).await.unwrap();
        let published = client.get_attributes(inode).await.unwrap();
        assert_eq!(
            (published.size, published.mtime, published.ctime),
            (after.size, after.mtime, after.ctime)
        );
    });
}

#[test]
fn utimes_after_a_write_stays_when_the_data_is_stored_later() {
    run(2, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        client.write(inode, 0, &content(1, 100_000)).await.unwrap();
        let old = Timestamp::from_timespec(50, 0);
        let set = SetAttributes {
            mtime: Some(TimeChange::At(old)),
            ..SetAttributes::default()
        };
        client.set_attributes(inode, set).await.unwrap();
        client.flush(inode).await.unwrap();
        client.release(inode).await;
        client.sync_all().await.unwrap();
        node.world.sleep(Duration::from_secs(10)).await;
        assert_eq!(client.get_attributes(inode).await.unwrap().mtime, old);
        client.write(inode, 0, b"x").await.unwrap();
        assert!(client.get_attributes(inode).await.unwrap().mtime > old);
    });
}

#[test]
fn a_write_moves_both_times_to_now_also_if_mtime_is_ahead() {
    run(2, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        let ahead = node.world.wall().plus(Duration::from_secs(1_000));
        let set = SetAttributes {
            mtime: Some(TimeChange::At(ahead)),
            ..SetAttributes::default()
        };
        let before = client.set_attributes(inode, set).await.unwrap();
        node.world.sleep(Duration::from_secs(1)).await;
        client.write(inode, 0, b"x").await.unwrap();
        for _ in ["dirty", "published"] {
            let found = client.get_attributes(inode).await.unwrap();
            assert!(found.ctime > before.ctime && found.ctime <= node.world.wall());
            assert!(found.mtime > before.ctime && found.mtime <= node.world.wall());
            client.fsync(inode, false).await.unwrap();
        }
    });
}

/// Any privileges that an inode gets between two writes are dropped by the second one.
#[test]
fn each_write_takes_setuid_and_capabilities_however_often_they_come_back() {
    run(2, |node| async move {
        let client = &node.client;
        let capabilities = b"security.capability";
        let drop_all = Privileges::Drop { group: Some(7) };
        let inode = file(client, "f").await;
        let chmod = SetAttributes {
            mode: Some(0o4755),
            ..SetAttributes::default()
        };
        for round in 0..4 {
            let written = client.write_by(inode, None, b"x", drop_all).await.unwrap();
            assert!(!written.mode_changed, "nothing to take in round {round}");
            client.set_attributes(inode, chmod).await.unwrap();
            let by_root = Privileges::DropCapabilities;
            client.write_by(inode, None, b"x", by_root).await.unwrap();
            assert_eq!(client.get_attributes(inode).await.unwrap().mode, 0o4755);
            let written = client.write_by(inode, None, b"x", drop_all).await.unwrap();
            assert!(written.mode_changed);
            assert_eq!(client.get_attributes(inode).await.unwrap().mode, 0o755);
            client
                .set_xattr(inode, capabilities, b"all", XattrMode::Set)
                .await
                .unwrap();
            client.write_by(inode, None, b"x", by_root).await.unwrap();
            let found = client.get_xattr(inode, capabilities).await;
            assert_eq!(found.unwrap_err().kind(), ErrorKind::NoSuchAttribute);
        }
        // `write` without a caller keeps them.
        client.set_attributes(inode, chmod).await.unwrap();
        client.write(inode, 0, b"x").await.unwrap();
        assert_eq!(client.get_attributes(inode).await.unwrap().mode, 0o4755);
        let flags = OpenFlags {
            truncate: true,
            privileges: drop_all,
            ..OpenFlags::default()
        };
        let opened = client.open(inode, flags).await.unwrap();
        assert!(opened.mode_changed);
        assert_eq!(opened.attributes.mode, 0o755);
        assert!(!client.open(inode, flags).await.unwrap().mode_changed);
    });
}

#[test]
fn appends_of_several_tasks_never_overlap() {
    run(3, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        let mut tasks = Vec::new();
        for task in 0..8u8 {
            let client = client.clone();
            let world = node.world.clone();
            tasks.push(node.world.spawn("appender", async move {
                let mut places = Vec::new();
                for step in 0..50 {
                    let length = 100 + 37 * usize::from(task);
                    places.push((
                        client.append(inode, &vec![task; length]).await.unwrap(),
                        length,
                    ));
                    if step % 10 == 0 {
                        world.sleep(Duration::from_millis(u64::from(task))).await;
                        client.fsync(inode, false).await.unwrap();
                    }
                }
                places
            }));
        }
        let mut end = 0;
        for (task, places) in tasks.into_iter().enumerate() {
            for (at, length) in places.await {
                assert_eq!(
                    read(client, inode, at, length).await,
                    vec![task as u8; length]
                );
                end += length as u64;
            }
        }
        assert_eq!(client.get_attributes(inode).await.unwrap().size, end);
    });
}

#[test]
fn tens_of_thousands_of_single_bytes_go_out_in_several_packs() {
    run(20, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        for number in 0..70_000u64 {
            client.write(inode, number * 4096, b"x").await.unwrap();
        }
        client.fsync(inode, false).await.unwrap();
        assert_eq!(read(client, inode, 69_999 * 4096, 2).await, b"x");
        assert_eq!(read(client, inode, 4095, 3).await, [0, b'x', 0]);
    });
}

#[test]
fn a_file_cut_to_nothing_stays_so_whoever_syncs_meanwhile() {
    for seed in 30..60 {
        run(seed, |node| async move {
            let client = &node.client;
            let inode = file(client, "f").await;
            // Whole blocks are in flight, a tail is dirty.
            client
                .write(inode, 0, &content(seed, 300_000))
                .await
                .unwrap();
            let syncing = {
                let (client, world) = (client.clone(), node.world.clone());
                node.world.spawn("syncer", async move {
                    for _ in 0..4 {
                        world.sleep(Duration::from_millis(seed % 3)).await;
                        client.fsync(inode, false).await.unwrap();
                    }
                })
            };
            node.world.sleep(Duration::from_millis(seed % 5)).await;
            client.set_attributes(inode, size(0)).await.unwrap();
            syncing.await;
            client.sync_all().await.unwrap();
            assert_eq!(client.get_attributes(inode).await.unwrap().size, 0);
            assert!(read(client, inode, 0, 400_000).await.is_empty());
        });
    }
}

#[test]
fn a_cut_file_that_grows_again_shows_zeros() {
    run(4, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        for sync in [false, true] {
            client.write(inode, 0, &content(1, 150_000)).await.unwrap();
            if sync {
                client.fsync(inode, false).await.unwrap();
            }
            client.set_attributes(inode, size(70_001)).await.unwrap();
            client.set_attributes(inode, size(150_000)).await.unwrap();
            let mut expected = content(1, 150_000);
            expected[70_001..].fill(0);
            assert!(read(client, inode, 0, 200_000).await == expected);
            client.set_attributes(inode, size(0)).await.unwrap();
            assert!(read(client, inode, 0, 100).await.is_empty());
            client.set_attributes(inode, size(10)).await.unwrap();
            assert_eq!(read(client, inode, 0, 100).await, [0; 10]);
        }
    });
}

#[test]
fn seek_finds_data_and_holes_also_of_what_is_dirty() {
    run(5, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        client
            .write(inode, 100_000, &content(1, 50_000))
            .await
            .unwrap();
        for sync in [false, true] {
            if sync {
                client.fsync(inode, false).await.unwrap();
            }
            client.set_attributes(inode, size(1_000_000)).await.unwrap();
            let seek = |at, what| client.seek(inode, at, what);
            assert_eq!(seek(0, Seek::Data).await.unwrap(), 100_000);
            assert_eq!(seek(0, Seek::Hole).await.unwrap(), 0);
            assert_eq!(seek(100_010, Seek::Data).await.unwrap(), 100_010);
            assert_eq!(seek(100_010, Seek::Hole).await.unwrap(), 150_000);
            let none = seek(150_000, Seek::Data).await.unwrap_err();
            assert_eq!(none.kind(), ErrorKind::NoSuchDeviceOrAddress);
            assert_eq!(seek(999_999, Seek::Hole).await.unwrap(), 999_999);
            assert!(seek(1_000_000, Seek::Hole).await.is_err());
        }
        client
            .allocate(inode, Allocate::Punch, 110_000, 10_000)
            .await
            .unwrap();
        assert_eq!(
            client.seek(inode, 100_000, Seek::Hole).await.unwrap(),
            110_000
        );
        assert_eq!(
            client.seek(inode, 110_000, Seek::Data).await.unwrap(),
            120_000
        );
    });
}

#[test]
fn copies_share_bytes_until_one_side_changes() {
    run(6, |node| async move {
        let client = &node.client;
        let (from, to) = (file(client, "from").await, file(client, "to").await);
        let bytes = content(1, 300_000);
        client.write(from, 0, &bytes).await.unwrap();
        client.write(to, 0, b"before").await.unwrap();
        assert_eq!(
            client.copy_range(from, 1000, to, 6, 1 << 40).await.unwrap(),
            299_000
        );
        client.write(from, 0, &content(2, 300_000)).await.unwrap();
        client.fsync(from, false).await.unwrap();
        let copied = read(client, to, 0, 1 << 20).await;
        assert_eq!(copied[..6], *b"before");
        assert!(copied[6..] == bytes[1000..]);
        assert_eq!(
            client.copy_range(from, 300_000, to, 0, 10).await.unwrap(),
            0
        );
        let overlap = client.copy_range(from, 0, from, 10, 100).await.unwrap_err();
        assert_eq!(overlap.kind(), ErrorKind::InvalidArgument);
    });
}

#[test]
fn an_open_file_outlives_its_name() {
    run(7, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        client.write(inode, 0, &content(1, 100_000)).await.unwrap();
        client.unlink(InodeId::ROOT, name("f")).await.unwrap();
        client.write(inode, 100_000, &content(2, 10)).await.unwrap();
        client.fsync(inode, false).await.unwrap();
        assert_eq!(read(client, inode, 100_000, 100).await, content(2, 10));
        client.open(inode, OpenFlags::default()).await.unwrap();
        client.release(inode).await;
        client.write(inode, 0, &content(3, 10)).await.unwrap();
        client.release(inode).await;
        assert_eq!(
            client.page_pool_bytes().0,
            0,
            "the dirty bytes are no longer needed"
        );
        let gone = client.open(inode, OpenFlags::default()).await.unwrap_err();
        assert!(
            matches!(gone.kind(), ErrorKind::NotFound | ErrorKind::Stale),
            "{gone}"
        );
        client.sync_all().await.unwrap();
    });
}

#[test]
fn a_file_made_without_a_name_can_get_one() {
    run(8, |node| async move {
        let client = &node.client;
        let inode = client
            .create_unnamed(InodeId::ROOT, rig::new_file())
            .await
            .unwrap()
            .inode;
        client.write(inode, 0, &content(1, 70_000)).await.unwrap();
        client
            .link(inode, InodeId::ROOT, name("now"))
            .await
            .unwrap();
        client.release(inode).await;
        let found = client.lookup(InodeId::ROOT, name("now")).await.unwrap();
        assert_eq!((found.inode, found.links, found.size), (inode, 1, 70_000));
        assert!(read(client, inode, 0, 70_000).await == content(1, 70_000));
        let other = client
            .create_unnamed(InodeId::ROOT, rig::new_file())
            .await
            .unwrap()
            .inode;
        client.write(other, 0, b"lost").await.unwrap();
        client.release(other).await;
        assert!(client.get_attributes(other).await.is_err());
        client.sync_all().await.unwrap();
    });
}

#[test]
fn what_is_dirty_goes_out_by_age_and_when_its_file_rests() {
    run(9, |node| async move {
        let client = &node.client;
        let (busy, rests) = (file(client, "busy").await, file(client, "rests").await);
        client.write(rests, 0, &content(1, 10_000)).await.unwrap();
        for step in 0..12u64 {
            client
                .write(busy, step * 10, &content(step, 10))
                .await
                .unwrap();
            node.world.sleep(Duration::from_millis(500)).await;
            if step == 4 {
                assert!(
                    client.page_pool_bytes().0 <= 100,
                    "only the busy file is dirty"
                );
            }
        }
        assert!(
            client.page_pool_bytes().0 < 120,
            "the busy file went out by its age"
        );
        node.world.sleep(Duration::from_secs(2)).await;
        assert_eq!(client.page_pool_bytes().0, 0);
        assert!(read(client, rests, 0, 10_000).await == content(1, 10_000));
    });
}

#[test]
fn a_write_that_finds_no_memory_waits_until_something_is_stored() {
    run(10, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        let bytes = content(1, 1 << 20);
        for step in 0..40u64 {
            // Only every second block, so that no block is ever full.
            client
                .write(inode, step * (2 << 20) + 1, &bytes[1..])
                .await
                .unwrap();
            assert!(client.page_pool_bytes().0 <= 8 << 20);
        }
        client.sync_all().await.unwrap();
        for step in [0u64, 17, 39] {
            assert!(read(client, inode, step * (2 << 20) + 1, bytes.len() - 1).await == bytes[1..]);
        }
    });
}

#[test]
fn renames_replace_and_exchange_with_data_on_both_sides() {
    run(11, |node| async move {
        let client = &node.client;
        let (a, b) = (file(client, "a").await, file(client, "b").await);
        client.write(a, 0, &content(1, 50_000)).await.unwrap();
        client.write(b, 0, &content(2, 50_000)).await.unwrap();
        let root = InodeId::ROOT;
        client
            .rename(root, name("a"), root, name("b"), RenameMode::Exchange)
            .await
            .unwrap();
        assert_eq!(client.lookup(root, name("a")).await.unwrap().inode, b);
        client
            .rename(root, name("a"), root, name("b"), RenameMode::Replace)
            .await
            .unwrap();
        assert_eq!(client.lookup(root, name("b")).await.unwrap().inode, b);
        assert!(
            read(client, a, 0, 50_000).await == content(1, 50_000),
            "it is open"
        );
        client.release(a).await;
        assert!(client.get_attributes(a).await.is_err());
    });
}

#[test]
fn a_file_that_goes_while_its_data_is_on_the_way_leaves_nothing_behind() {
    run(12, |node| async move {
        let client = &node.client;
        for tenths in 0..100 {
            let inode = file(client, "f").await;
            client
                .write(inode, 0, &content(1, 1_000_000))
                .await
                .unwrap();
            let wait = Duration::from_micros(tenths * 100);
            node.world.sleep(wait).await;
            client.release(inode).await;
            client.unlink(InodeId::ROOT, name("f")).await.unwrap();
            client.sync_all().await.unwrap();
            node.world.sleep(Duration::from_secs(3)).await;
            assert_eq!(client.page_pool_bytes(), (0, 0));
            while node.metanode.run_background_once().await.unwrap().steps > 0 {}
            let counters = node.metanode.counters();
            assert_eq!(
                counters.garbage_deleted, 0,
                "left to the sweep after {wait:?}"
            );
        }
        assert!(node.metanode.counters().segments_given_up > 0);
        assert!(node.metanode.counters().segments_deleted > 0);
    });
}

#[test]
fn reads_move_atime_as_relatime_says() {
    run(13, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        client.write(inode, 0, b"x").await.unwrap();
        client.fsync(inode, false).await.unwrap();
        node.world.sleep(Duration::from_secs(1)).await;
        let written = client.get_attributes(inode).await.unwrap();
        read(client, inode, 0, 1).await;
        let once = client.get_attributes(inode).await.unwrap();
        assert!(
            once.atime > written.mtime,
            "a first read after a write counts"
        );
        node.world.sleep(Duration::from_secs(60)).await;
        read(client, inode, 0, 1).await;
        let again = client.get_attributes(inode).await.unwrap();
        assert_eq!(
            (again.atime, again.ctime),
            (once.atime, written.ctime),
            "one is enough for a day"
        );
        node.world.sleep(Duration::from_secs(25 * 60 * 60)).await;
        read(client, inode, 0, 1).await;
        client.sync_all().await.unwrap();
        let next_day = client.get_attributes(inode).await.unwrap();
        assert!(next_day.atime > again.atime);
        assert_eq!(next_day.ctime, written.ctime);
    });
}

#[test]
fn a_read_that_finds_the_end_of_the_file_moves_atime_too() {
    run(13, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        client.write(inode, 0, b"x").await.unwrap();
        client.fsync(inode, false).await.unwrap();
        node.world.sleep(Duration::from_secs(1)).await;
        let written = client.get_attributes(inode).await.unwrap();
        assert!(read(client, inode, 1, 0).await.is_empty());
        let asked_nothing = client.get_attributes(inode).await.unwrap();
        assert_eq!(asked_nothing.atime, written.atime, "a read of 0 bytes");
        assert!(read(client, inode, 1, 1).await.is_empty());
        let at_the_end = client.get_attributes(inode).await.unwrap();
        assert!(at_the_end.atime > written.mtime, "it asked for a byte");
    });
}

#[test]
fn a_read_around_the_cache_leaves_nothing_in_it() {
    run(14, |node| async move {
        let client = &node.client;
        let inode = file(client, "f").await;
        let bytes = content(1, 300_000);
        client.write(inode, 0, &bytes).await.unwrap();
        client.fsync(inode, false).await.unwrap();
        client.forget_clean();
        let around = ReadTraces {
            cached: false,
            ..ReadTraces::default()
        };
        let pieces = client
            .read_leaving(inode, 8192, 4096, around)
            .await
            .unwrap();
        assert_eq!(pieces.concat(), bytes[8192..12_288]);
        assert_eq!(client.page_pool_bytes(), (0, 0));
        // Cached bytes are used by both kinds of readers.
        read(client, inode, 8192, 4096).await;
        let (_, cached) = client.page_pool_bytes();
        assert!(cached >= 4096);
        let pieces = client
            .read_leaving(inode, 8192, 4096, around)
            .await
            .unwrap();
        assert_eq!(pieces.concat(), bytes[8192..12_288]);
        assert_eq!(client.page_pool_bytes().1, cached);
    });
}

/// The link waits for a take-over while the file is written and closed.
#[test]
fn what_is_written_before_the_last_close_stays_if_the_file_gets_a_name_at_that_moment() {
    run(45, |node| async move {
        let new = rig::new_file();
        let file = node
            .client
            .create_unnamed(InodeId::ROOT, new)
            .await
            .unwrap()
            .inode;
        let resigned = model::Error::new(ErrorKind::Unavailable, "a test wants it");
        node.metanode.hosted().resign(&resigned);
        let link = node.client.link(file, InodeId::ROOT, name("named"));
        let write_and_close = async {
            node.client.write(file, 0, b"content").await.unwrap();
            node.client.release(file).await;
        };
        let (linked, ()) = futures::future::join(link, write_and_close).await;
        linked.unwrap();
        node.client.sync_all().await.unwrap();
        assert_eq!(rig::read(&node.client, file, 0, 100).await, b"content");
        node.close().await;
    });
}
