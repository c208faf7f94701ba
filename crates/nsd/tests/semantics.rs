//! The promises of each NSD operation, one at a time, on a simulated disk.

use crate::scene::{self, DISK, IDENTITY, blob, content, deletion, name, on_disk, small_region};
use bytes::Bytes;
use futures::future::{Either, join, join_all, poll_fn, select};
use futures::stream::{FuturesUnordered, StreamExt};
use model::limits::SEGMENT_BYTES_MAX;
use model::nsd::{BlobPut, LogPut};
use model::{EntryNumber, ErrorKind, GroupId, ShardEpoch, ShardId};
use nsd::Nsd;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use world::sim::Simulation;

fn entry(shard: u32, epoch: u64, number: u64, length: usize) -> LogPut {
    LogPut {
        shard: ShardId(shard),
        epoch: ShardEpoch(epoch),
        number: EntryNumber(number),
        bytes: content(number * 1000 + epoch, length),
    }
}

#[test]
fn blobs_of_every_size_read_back_in_any_range() {
    on_disk(1, async |scene| {
        let nsd = scene.open().await;
        let lengths = [
            1,
            100,
            4095,
            4096,
            4097,
            16384,
            16385,
            70_000,
            300_001,
            1 << 20,
            5_000_001,
        ];
        for (number, length) in (1u64..).zip(lengths) {
            nsd.put(blob(number, length)).await.unwrap();
        }
        for round in 0..3 {
            for (number, length) in (1u64..).zip(lengths) {
                let bytes = content(number, length);
                for (at, want) in [
                    (0, length),
                    (length / 3, length / 2),
                    (length - 1, 1),
                    (length, 0),
                ] {
                    let want = want.min(length - at);
                    let got = nsd.get(name(number), at as u32, want as u32).await.unwrap();
                    assert!(
                        got == bytes[at..at + want],
                        "round {round}, {number}, {at}+{want}"
                    );
                }
                let info = nsd.info(name(number)).await.unwrap();
                assert_eq!((info.length as usize, info.nonce), (length, number));
                let outside = nsd.get(name(number), length as u32, 1).await.unwrap_err();
                assert_eq!(outside.kind(), ErrorKind::InvalidArgument);
            }
            nsd.checkpoint().await.unwrap();
        }
        assert_eq!(
            nsd.get(name(99), 0, 1).await.unwrap_err().kind(),
            ErrorKind::NotFound
        );
        assert_eq!(nsd.usage().blobs, lengths.len() as u64);
        let report = nsd.scrub().await.unwrap();
        assert_eq!(
            (report.damaged.len(), report.mended.len()),
            (0, 0),
            "{report:?}"
        );
        assert_eq!(report.checked, lengths.len() as u64);
    });
}

#[test]
fn the_same_put_again_succeeds_and_another_writers_never_does() {
    on_disk(2, async |scene| {
        let nsd = scene.open().await;
        for length in [100, 50_000] {
            let number = length as u64;
            nsd.put(blob(number, length)).await.unwrap();
            for _ in 0..2 {
                nsd.put(blob(number, length)).await.unwrap();
                let mut other = blob(number, length);
                other.nonce += 1;
                let refused = nsd.put(other).await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Exists);
                nsd.checkpoint().await.unwrap();
            }
        }
        // At the same time: exactly one writer wins.
        let puts = (0..5).map(|nonce| {
            let mut put = blob(7, 40_000);
            put.nonce = nonce;
            nsd.put(put)
        });
        let answers = futures::future::join_all(puts).await;
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1);
        let used = nsd.usage().used;
        nsd.delete(deletion(&[name(7)])).await.unwrap();
        assert_eq!(
            nsd.usage().used,
            used - 11 * 4096,
            "losers leave nothing behind"
        );
    });
}

/// Would be broken if any node could have such a blob stored: all daemons that have a part in the group's repair compute
/// with what it says of its segment, and end.
#[test]
fn a_blob_of_what_no_segment_can_be_is_refused() {
    on_disk(41, async |scene| {
        let nsd = scene.open().await;
        let sound = blob(3, 5000);
        let wrong: [fn(&mut BlobPut); 3] = [
            |put| put.header.skipped_slots = !3,
            |put| put.header.segment_bytes = SEGMENT_BYTES_MAX + 1,
            |put| put.name.piece = 3,
        ];
        for change in wrong {
            let mut put = sound.clone();
            change(&mut put);
            let refused = nsd.put(put).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        }
        assert_eq!(nsd.usage().blobs, 0);
        nsd.put(sound).await.unwrap();
    });
}

#[test]
fn deleted_blobs_are_gone_and_their_space_returns() {
    on_disk(3, async |scene| {
        let nsd = scene.open().await;
        for round in 0..6u64 {
            for number in 1..40 {
                nsd.put(blob(number, 100_000 + number as usize))
                    .await
                    .unwrap();
                nsd.put(blob(100 + number, 300)).await.unwrap();
            }
            if round % 2 == 0 {
                nsd.checkpoint().await.unwrap();
            }
            let names: Vec<_> = (1..40).chain(101..140).chain(500..510).map(name).collect();
            nsd.delete(deletion(&names)).await.unwrap();
            nsd.delete(deletion(&names)).await.unwrap();
            for name in names {
                assert_eq!(
                    nsd.get(name, 0, 1).await.unwrap_err().kind(),
                    ErrorKind::NotFound
                );
            }
            if round % 3 == 0 {
                nsd.checkpoint().await.unwrap();
            }
            if nsd.usage().used > 0 {
                // Space that a checkpoint in the background was moving is free once it ends.
                nsd.checkpoint().await.unwrap();
            }
            let usage = nsd.usage();
            assert_eq!((usage.used, usage.blobs), (0, 0), "round {round}");
        }
    });
}

#[test]
fn listings_and_digests_agree_with_what_is_there() {
    on_disk(4, async |scene| {
        let nsd = scene.open().await;
        for number in 1..=30 {
            nsd.put(blob(number, 200 + 1000 * number as usize))
                .await
                .unwrap();
            if number % 10 == 0 {
                nsd.checkpoint().await.unwrap();
            }
        }
        nsd.delete(deletion(&[name(3), name(13), name(27)]))
            .await
            .unwrap();
        for group in 0..4 {
            let group = GroupId(group);
            let mut listed = Vec::new();
            loop {
                let part = nsd.list(group, listed.last().copied(), 2).await.unwrap();
                if part.is_empty() {
                    break;
                }
                listed.extend(part.iter().map(|info| info.name));
            }
            let mut expected: Vec<_> = (1..=30)
                .filter(|number| ![3, 13, 27].contains(number))
                .map(name)
                .filter(|name| name.group == group)
                .collect();
            expected.sort();
            assert_eq!(listed, expected);
            assert_eq!(
                nsd.digest(group).await.unwrap().blobs,
                expected.len() as u64
            );
        }
        let before = nsd.digest(GroupId(1)).await.unwrap();
        nsd.put(blob(33, 10)).await.unwrap();
        assert_ne!(nsd.digest(GroupId(1)).await.unwrap(), before);
        nsd.delete(deletion(&[name(33)])).await.unwrap();
        let nsd = scene.reopen(nsd).await;
        assert_eq!(nsd.digest(GroupId(1)).await.unwrap(), before);
    });
}

#[test]
fn a_sealed_log_takes_no_entry_of_an_older_epoch() {
    on_disk(6, async |scene| {
        let nsd = scene.open().await;
        for number in 1..=5 {
            nsd.log_put(entry(1, 3, number, 5000)).await.unwrap();
        }
        nsd.log_put(entry(2, 1, 77, 50)).await.unwrap();
        nsd.seal(ShardId(1), ShardEpoch(5)).await.unwrap();
        let mut nsd = nsd;
        for round in 0..3 {
            nsd = scene.reopen(nsd).await;
            let old = nsd.log_put(entry(1, 4, 6, 10)).await.unwrap_err();
            assert_eq!(old.kind(), ErrorKind::OldEpoch, "round {round}");
            let old = nsd.seal(ShardId(1), ShardEpoch(4)).await.unwrap_err();
            assert_eq!(old.kind(), ErrorKind::OldEpoch);
            nsd.log_put(entry(1, 5, 6, 10)).await.unwrap();
            nsd.log_put(entry(2, 1, 78 + round, 50)).await.unwrap();
            nsd.checkpoint().await.unwrap();
        }
        nsd.seal(ShardId(9), ShardEpoch(1)).await.unwrap();
    });
}

#[test]
fn log_entries_are_repeated_replaced_trimmed_and_discarded() {
    on_disk(7, async |scene| {
        let nsd = scene.open().await;
        let shard = ShardId(1);
        for number in 1..=20 {
            nsd.log_put(entry(1, 1, number, number as usize * 3000))
                .await
                .unwrap();
            if number == 10 {
                nsd.checkpoint().await.unwrap();
            }
        }
        nsd.log_put(entry(1, 1, 20, 60_000)).await.unwrap();
        let mut other = entry(1, 1, 20, 60_000);
        other.bytes = content(1, 60_000);
        assert_eq!(
            nsd.log_put(other).await.unwrap_err().kind(),
            ErrorKind::Exists
        );
        nsd.log_trim(shard, ShardEpoch(1), EntryNumber(5))
            .await
            .unwrap();
        let below = nsd.log_put(entry(1, 1, 4, 10)).await.unwrap_err();
        assert_eq!(below.kind(), ErrorKind::InvalidArgument);
        nsd.seal(shard, ShardEpoch(2)).await.unwrap();
        nsd.log_put(entry(1, 2, 18, 100)).await.unwrap();
        let entries = nsd.log_read(shard, EntryNumber(0), 100).await.unwrap();
        let numbers: Vec<u64> = entries.iter().map(|entry| entry.number.0).collect();
        assert_eq!(numbers, (5..=20).collect::<Vec<_>>());
        nsd.log_discard(shard, ShardEpoch(2), EntryNumber(18))
            .await
            .unwrap();
        let mut nsd = nsd;
        for round in 0..2 {
            nsd = scene.reopen(nsd).await;
            let entries = nsd.log_read(shard, EntryNumber(7), 100).await.unwrap();
            let numbers: Vec<u64> = entries.iter().map(|entry| entry.number.0).collect();
            assert_eq!(numbers, (7..=18).collect::<Vec<_>>(), "round {round}");
            assert_eq!(entries[0].bytes, content(7001, 21_000));
            assert_eq!(entries[11].bytes, content(18_002, 100));
            assert_eq!(entries[11].epoch, ShardEpoch(2));
            nsd.checkpoint().await.unwrap();
        }
        let nsd = scene.reopen(nsd).await;
        nsd.log_trim(shard, ShardEpoch(2), EntryNumber(100))
            .await
            .unwrap();
        assert_eq!(
            nsd.log_read(shard, EntryNumber(0), 10).await.unwrap(),
            vec![]
        );
        let usage = nsd.usage();
        assert_eq!((usage.log_entries, usage.log_bytes, usage.used), (0, 0, 0));
    });
}

#[test]
fn a_full_region_refuses_blobs_but_takes_log_entries_and_deletes() {
    on_disk(8, async |scene| {
        let nsd = scene.open().await;
        let mut put = 0;
        let refused = loop {
            match nsd.put(blob(put + 1, 200_000)).await {
                Ok(()) => put += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        assert!(put > 50, "{put}");
        let mut small = 0;
        while nsd.put(blob(10_000 + small, 10)).await.is_ok() {
            small += 1;
        }
        assert_eq!(nsd.health(), model::nsd::NsdHealth::Full);
        for number in 1..=10 {
            nsd.log_put(entry(1, 1, number, 20_000)).await.unwrap();
        }
        nsd.checkpoint().await.unwrap();
        let nsd = scene.reopen(nsd).await;
        for number in 1..=put {
            let got = nsd.get(name(number), 0, 200_000).await.unwrap();
            assert_eq!(got, content(number, 200_000));
        }
        let names: Vec<_> = (1..=put).chain(10_000..10_000 + small).map(name).collect();
        nsd.delete(deletion(&names)).await.unwrap();
        nsd.put(blob(1, 1 << 20)).await.unwrap();
        assert_eq!(nsd.usage().blobs, 1);
    });
}

#[test]
fn a_call_that_is_dropped_leaves_nothing_half_done() {
    on_disk(9, async |scene| {
        let nsd = scene.open().await;
        for number in 1..200u64 {
            let length = [50, 30_000, 400_000][number as usize % 3];
            let patience = std::time::Duration::from_millis(number % 4);
            let put = nsd.put(blob(number, length));
            if scene.world.timeout(patience, put).await.is_err() {
                nsd.put(blob(number, length)).await.unwrap();
            }
            nsd.delete(deletion(&[name(number.saturating_sub(20))]))
                .await
                .unwrap();
        }
        for number in 181..200u64 {
            let length = [50, 30_000, 400_000][number as usize % 3];
            let got = nsd.get(name(number), 0, length as u32).await.unwrap();
            assert_eq!(got, content(number, length));
        }
    });
}

#[test]
fn formatting_never_overwrites_an_nsd() {
    on_disk(10, async |scene| {
        let nsd = scene.open().await;
        nsd.put(blob(1, 10)).await.unwrap();
        nsd.close().await.unwrap();
        assert_eq!(
            nsd.put(blob(2, 10)).await.unwrap_err().kind(),
            ErrorKind::ShuttingDown
        );
        drop(nsd);
        let disk = scene.world.open_disk(scene.path()).unwrap();
        let refused = Nsd::format(&scene.world, &disk, scene::IDENTITY)
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Exists);
        drop(disk);
        let empty = scene
            .world
            .create_disk("empty".as_ref(), small_region())
            .unwrap();
        let refused = Nsd::open(&scene.world, empty).await.err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        let nsd = scene.open().await;
        assert_eq!(nsd.get(name(1), 0, 10).await.unwrap(), content(1, 10));
        assert_eq!(nsd.identity(), scene::IDENTITY);
    });
}

#[test]
fn empty_and_oversized_requests_are_refused() {
    on_disk(11, async |scene| {
        let nsd = scene.open().await;
        let mut put = blob(1, 1);
        put.payload = Bytes::new().into();
        assert_eq!(
            nsd.put(put).await.unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
        assert!(nsd.put(blob(1, (16 << 20) + 1)).await.is_err());
        assert!(nsd.delete(deletion(&vec![name(1); 10_001])).await.is_err());
        nsd.delete(deletion(&vec![name(1); 10_000])).await.unwrap();
        nsd.log_put(entry(1, 1, 1, 0)).await.unwrap();
        let entries = nsd.log_read(ShardId(1), EntryNumber(1), 1).await.unwrap();
        assert_eq!(entries[0].bytes, Bytes::new());
    });
}

#[test]
fn a_log_put_does_not_queue_behind_blobs() {
    let simulation = Simulation::new(20);
    simulation.disk(DISK, 256 << 20);
    let faults = simulation.faults();
    simulation
        .run(async |world| {
            let disk = world.open_disk(DISK.as_ref()).unwrap();
            Nsd::format(&world, &disk, IDENTITY).await.unwrap();
            let nsd = Nsd::open(&world, disk).await.unwrap();
            faults.slow(DISK, Duration::from_secs(1));
            // Four of them are under way; the others wait until one of those has ended.
            let blobs = (1..=6).map(|number| nsd.put(blob(number, 16 << 20)));
            let mut blobs: FuturesUnordered<_> = blobs.collect();
            let log = pin!(nsd.log_put(entry(1, 1, 1, 100)));
            match select(blobs.next(), log).await {
                Either::Right((put, _)) => put.unwrap(),
                Either::Left((put, _)) => {
                    panic!("a blob, which takes three I/Os, was faster: {put:?}")
                }
            }
            while let Some(put) = blobs.next().await {
                put.unwrap();
            }
        })
        .finished();
}

/// Would be broken if a take-over waited for one read of the disk after the other: each entry of its log, of which there may be
/// ten thousand, costs as much as a few kilobytes.
#[test]
fn small_log_entries_are_read_many_at_a_time() {
    const ENTRIES: u64 = 600;
    let simulation = Simulation::new(41);
    simulation.disk(DISK, small_region());
    let ios = || simulation.io_count();
    simulation
        .run(async |world| {
            let scene = scene::Scene { world };
            // It isn't emptied by itself.
            let mut nsd = scene.formatted(8 << 20).await;
            for number in 1..=ENTRIES {
                // Between them lies what others store.
                if number % 3 == 0 {
                    nsd.put(blob(number, 3000)).await.unwrap();
                }
                nsd.log_put(entry(1, 1, number, 700)).await.unwrap();
            }
            // In the journal, and out of it.
            for round in 0..2 {
                let before = ios();
                let read = nsd.log_read(ShardId(1), EntryNumber(1), 1000).await;
                let took = ios() - before;
                let read = read.unwrap();
                assert!(read.iter().zip(1..).all(|(found, number)| {
                    let put = entry(1, 1, number, 700);
                    found.number == put.number && found.bytes == put.bytes
                }));
                assert_eq!(read.len() as u64, ENTRIES);
                assert!(took < ENTRIES / 4, "{took} in round {round}");
                nsd.checkpoint().await.unwrap();
                nsd = scene.reopen(nsd).await;
            }
        })
        .finished();
}

/// Would be broken if each attempt of a caller that has given up kept its bytes here until a slow disk had taken what came
/// before, or for half a minute: its credits are another attempt's by then, so that nothing bounds the memory.
#[test]
fn a_put_that_waits_for_its_turn_ends_with_its_caller() {
    let simulation = Simulation::new(43);
    simulation.disk(DISK, 256 << 20);
    let faults = simulation.faults();
    simulation
        .run(async |world| {
            let disk = world.open_disk(DISK.as_ref()).unwrap();
            Nsd::format(&world, &disk, IDENTITY).await.unwrap();
            let nsd = Nsd::open(&world, disk).await.unwrap();
            faults.slow(DISK, Duration::from_secs(5));
            // As many as may be under way.
            let first = join_all((1..=4).map(|number| nsd.put(blob(number, 16 << 20))));
            let late = world.timeout(Duration::from_secs(1), nsd.put(blob(5, 9000)));
            let (first, late) = join(first, late).await;
            assert!(late.is_err(), "it waited for its turn");
            first.into_iter().for_each(|put| put.unwrap());
            faults.heal(DISK);
            world.sleep(Duration::from_secs(60)).await;
            let found = nsd.get(name(5), 0, 1).await;
            assert_eq!(found.unwrap_err().kind(), ErrorKind::NotFound);
            // One that has begun is done, whoever waits for it.
            faults.slow(DISK, Duration::from_secs(5));
            let begun = world.timeout(Duration::from_secs(1), nsd.put(blob(6, 9000)));
            assert!(begun.await.is_err());
            faults.heal(DISK);
            world.sleep(Duration::from_secs(60)).await;
            nsd.get(name(6), 0, 1).await.unwrap();
        })
        .finished();
}

/// Would be broken if each delete of a caller that has given up kept its names here until the journal had taken what came
/// before.
#[test]
fn a_delete_that_waits_for_its_turn_ends_with_its_caller() {
    on_disk(44, async |scene| {
        let nsd = scene.open().await;
        nsd.put(blob(1, 9000)).await.unwrap();
        // As many names as may be under way.
        let deletes = [10_000, 10_000, 10_000, 2_768].map(|count| {
            let names: Vec<_> = (0..count).map(|number| name(100 + number)).collect();
            nsd.delete(deletion(&names))
        });
        let mut deletes = pin!(join_all(deletes));
        {
            // They begin; while the journal is written somebody comes and goes.
            let mut late = pin!(nsd.delete(deletion(&[name(1)])));
            let both = poll_fn(|context| {
                let first = deletes.as_mut().poll(context);
                assert!(first.is_pending(), "the disk takes its time");
                Poll::Ready(late.as_mut().poll(context))
            });
            assert!(both.await.is_pending(), "it waits for its turn");
        }
        for deleted in deletes.await {
            deleted.unwrap();
        }
        scene.world.sleep(Duration::from_secs(60)).await;
        assert!(nsd.get(name(1), 0, 9000).await.is_ok());
        nsd.delete(deletion(&[name(1)])).await.unwrap();
        assert!(nsd.get(name(1), 0, 9000).await.is_err());
    });
}

#[test]
fn several_log_entries_are_put_at_once_as_one_by_one() {
    const ENTRIES: u64 = 300;
    let simulation = Simulation::new(42);
    simulation.disk(DISK, small_region());
    let ios = || simulation.io_count();
    simulation
        .run(async |world| {
            let scene = scene::Scene { world };
            let nsd = scene.open().await;
            let puts = |epoch| -> Vec<LogPut> {
                (1..=ENTRIES)
                    .map(|number| entry(1, epoch, number, 100))
                    .collect()
            };
            let before = ios();
            nsd.log_puts(puts(2)).await.unwrap();
            let took = ios() - before;
            assert!(took < ENTRIES / 4, "{took}");
            // Repeated, and by an older owner.
            nsd.log_puts(puts(2)).await.unwrap();
            let old = nsd.log_puts(puts(1)).await.unwrap_err();
            assert_eq!(old.kind(), ErrorKind::OldEpoch);
            nsd.log_puts(Vec::new()).await.unwrap();
            let nsd = scene.reopen(nsd).await;
            let read = nsd.log_read(ShardId(1), EntryNumber(1), 1000).await;
            let read: Vec<Bytes> = read.unwrap().into_iter().map(|found| found.bytes).collect();
            let put: Vec<Bytes> = puts(2).into_iter().map(|put| put.bytes).collect();
            assert!(read == put, "{} of {}", read.len(), put.len());
        })
        .finished();
}

#[test]
fn puts_at_the_same_time_are_flushed_together() {
    const PUTS: u64 = 20;
    let simulation = Simulation::new(43);
    simulation.disk(DISK, small_region());
    let ios = || simulation.io_count();
    simulation
        .run(async |world| {
            let scene = scene::Scene { world };
            let nsd = scene.open().await;
            let before = ios();
            let puts = (1..=PUTS).map(|number| nsd.put(blob(number, 20_000)));
            for put in join_all(puts).await {
                put.unwrap();
            }
            // Each has a write of its own. They end at four times: so many groups, with a write and a flush each, and one more
            // that takes what came meanwhile.
            let took = ios() - before;
            assert!(took <= PUTS + 6 * 2, "{took}");
        })
        .finished();
}
