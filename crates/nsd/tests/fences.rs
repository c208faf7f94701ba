//! Late requests: whatever changes blobs or a log is refused if the NSD knows a newer group version
//! or shard epoch, and teaches it a newer one, durably.

use crate::scene::{DISK, Scene, blob, content, deletion_at, fence, name, on_disk, small_region};
use model::nsd::{BlobDelete, BlobPut, LogPut};
use model::{EntryNumber, ErrorKind, GroupVersion, Result, ShardEpoch, ShardId};
use nsd::Nsd;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use world::sim::{Simulation, for_every_cut};

const SHARD: ShardId = ShardId(1);

fn blob_at(version: u32, number: u64, length: usize) -> BlobPut {
    BlobPut {
        fence: GroupVersion(version),
        ..blob(number, length)
    }
}

fn entry(epoch: u64, number: u64) -> LogPut {
    LogPut {
        shard: SHARD,
        epoch: ShardEpoch(epoch),
        number: EntryNumber(number),
        bytes: content(epoch * 1000 + number, 300),
    }
}

fn must_be_old(result: Result<()>, what: &str) {
    let error = result.expect_err(what);
    assert_eq!(error.kind(), ErrorKind::OldEpoch, "{what}: {error}");
}

async fn numbers(nsd: &Nsd) -> Vec<u64> {
    let entries = nsd.log_read(SHARD, EntryNumber(0), 100).await.unwrap();
    entries.iter().map(|entry| entry.number.0).collect()
}

/// Would be broken if a request of very many versions, whose caller has given up, went on with all of them at once: each
/// takes a hundred times the bytes that it came with.
#[test]
fn versions_that_wait_for_others_are_not_learnt_for_a_caller_that_has_gone() {
    let simulation = Simulation::new(6);
    simulation.disk(DISK, small_region());
    let faults = simulation.faults();
    simulation
        .run(async |world| {
            let scene = Scene { world };
            let nsd = scene.open().await;
            faults.slow(DISK, Duration::from_secs(5));
            let fences: Vec<_> = (0..3000).map(|group| fence(group, 4)).collect();
            let learning = nsd.learn_groups(&fences);
            let learnt = scene.world.timeout(Duration::from_secs(1), learning).await;
            assert!(learnt.is_err(), "the disk takes its time");
            faults.heal(DISK);
            scene.world.sleep(Duration::from_secs(60)).await;
            must_be_old(nsd.learn_group(fence(0, 3)).await, "one of the first");
            nsd.learn_group(fence(2999, 3)).await.unwrap();
            nsd.learn_groups(&fences).await.unwrap();
            must_be_old(nsd.learn_group(fence(2999, 3)).await, "one of the last");
        })
        .finished();
}

/// Would be broken if any member could fill an NSD's memory, and its index, with groups and shards that there aren't; or if
/// what was known before didn't hold any more then.
#[test]
fn what_is_known_of_groups_and_logs_has_a_maximum() {
    on_disk(12, async |scene| {
        let nsd = scene.open().await;
        nsd.put(blob_at(3, 1, 5000)).await.unwrap();
        nsd.log_put(entry(5, 1)).await.unwrap();
        let fences: Vec<_> = (100..20_000).map(|group| fence(group, 4)).collect();
        let refused = nsd.learn_groups(&fences).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        let mut sealed = Ok(());
        for shard in (100..20_000).map(ShardId) {
            sealed = nsd.seal(shard, ShardEpoch(4)).await;
            if sealed.is_err() {
                break;
            }
        }
        let refused = sealed.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        let mut nsd = nsd;
        for round in 0..2 {
            must_be_old(nsd.learn_group(fence(100, 3)).await, "a known group");
            must_be_old(nsd.seal(ShardId(100), ShardEpoch(3)).await, "a known log");
            nsd.put(blob_at(3, 5 + 4 * round, 5000)).await.unwrap();
            nsd.log_put(entry(5, 2 + round)).await.unwrap();
            // Of this group nothing has to be known, and of this one something.
            nsd.put(blob_at(1, 2, 5000)).await.unwrap();
            let newer = nsd.put(blob_at(2, 3, 5000)).await.unwrap_err();
            assert_eq!(newer.kind(), ErrorKind::NoSpace, "{newer}");
            nsd.delete(deletion_at(3, &[name(2)])).await.unwrap();
            assert!(nsd.info(name(2)).await.is_err(), "deleting always works");
            nsd.checkpoint().await.unwrap();
            nsd = scene.reopen(nsd).await;
        }
    });
}

#[test]
fn puts_and_deletes_with_an_older_group_version_are_refused() {
    on_disk(5, async |scene| {
        let nsd = scene.open().await;
        nsd.put(blob_at(3, 1, 5000)).await.unwrap();
        nsd.learn_group(fence(1, 4)).await.unwrap();
        must_be_old(nsd.learn_group(fence(1, 3)).await, "learn");
        let mut nsd = nsd;
        for _ in 0..2 {
            nsd = scene.reopen(nsd).await;
            must_be_old(nsd.put(blob_at(3, 5, 5000)).await, "put");
            must_be_old(nsd.put(blob_at(3, 1, 5000)).await, "the same put again");
            must_be_old(nsd.delete(deletion_at(3, &[name(1)])).await, "delete");
            assert!(nsd.get(name(1), 0, 5000).await.is_ok());
            nsd.put(blob_at(4, 1, 5000)).await.unwrap();
        }
        nsd.delete(deletion_at(4, &[name(1)])).await.unwrap();
        assert!(nsd.get(name(1), 0, 5000).await.is_err());
    });
}

#[test]
fn a_put_or_delete_with_a_newer_group_version_teaches_it() {
    on_disk(6, async |scene| {
        let nsd = scene.open().await;
        // In the journal, in an extent, again, and for several groups at once.
        nsd.put(blob_at(2, 1, 5000)).await.unwrap();
        must_be_old(nsd.put(blob_at(1, 5, 5000)).await, "after a small put");
        nsd.put(blob_at(3, 9, 100_000)).await.unwrap();
        must_be_old(nsd.put(blob_at(2, 5, 5000)).await, "after a large put");
        nsd.put(blob_at(4, 9, 100_000)).await.unwrap();
        must_be_old(nsd.put(blob_at(3, 5, 5000)).await, "after a repeated put");
        nsd.delete(deletion_at(5, &[name(2), name(3)]))
            .await
            .unwrap();
        let nsd = scene.reopen(nsd).await;
        for number in 4..8 {
            let group = name(number).group;
            must_be_old(
                nsd.put(blob_at(4, number, 50)).await,
                &format!("group {group}"),
            );
            nsd.put(blob_at(5, number, 50)).await.unwrap();
        }
    });
}

#[test]
fn a_delete_of_several_groups_is_refused_as_a_whole() {
    on_disk(7, async |scene| {
        let nsd = scene.open().await;
        nsd.put(blob_at(2, 1, 50)).await.unwrap();
        nsd.put(blob_at(1, 2, 50)).await.unwrap();
        let mixed = BlobDelete {
            names: vec![name(2), name(1)],
            fences: vec![fence(2, 9), fence(1, 1)],
        };
        must_be_old(nsd.delete(mixed).await, "one of two groups is old");
        assert!(nsd.info(name(2)).await.is_ok());
        nsd.put(blob_at(1, 6, 50)).await.unwrap();
        let without = BlobDelete {
            names: vec![name(2)],
            fences: vec![fence(1, 2)],
        };
        let refused = nsd.delete(without).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        // Each would take hundreds of times its bytes in the queue of the journal.
        let many = BlobDelete {
            names: vec![name(1)],
            fences: (0..10_001).map(|group| fence(group, 1)).collect(),
        };
        let refused = nsd.delete(many).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
        assert!(nsd.info(name(1)).await.is_ok());
    });
}

#[test]
fn trims_and_discards_of_an_older_epoch_remove_nothing() {
    on_disk(8, async |scene| {
        let nsd = scene.open().await;
        for number in 1..=4 {
            nsd.log_put(entry(5, number)).await.unwrap();
        }
        nsd.seal(SHARD, ShardEpoch(6)).await.unwrap();
        nsd.log_put(entry(6, 5)).await.unwrap();
        let mut nsd = nsd;
        for _ in 0..2 {
            nsd = scene.reopen(nsd).await;
            must_be_old(
                nsd.log_discard(SHARD, ShardEpoch(5), EntryNumber(3)).await,
                "discard",
            );
            must_be_old(
                nsd.log_trim(SHARD, ShardEpoch(5), EntryNumber(3)).await,
                "trim",
            );
            assert_eq!(numbers(&nsd).await, [1, 2, 3, 4, 5]);
        }
        nsd.log_trim(SHARD, ShardEpoch(6), EntryNumber(3))
            .await
            .unwrap();
        let repeated = nsd.log_trim(SHARD, ShardEpoch(5), EntryNumber(3)).await;
        must_be_old(repeated, "a trim that has been done");
        // A discard or trim of a newer epoch seals the log.
        nsd.log_discard(SHARD, ShardEpoch(7), EntryNumber(4))
            .await
            .unwrap();
        must_be_old(nsd.log_put(entry(6, 5)).await, "after a discard");
        nsd.log_trim(SHARD, ShardEpoch(8), EntryNumber(4))
            .await
            .unwrap();
        let nsd = scene.reopen(nsd).await;
        must_be_old(nsd.log_put(entry(7, 5)).await, "after a trim");
        assert_eq!(numbers(&nsd).await, [4]);
    });
}

#[test]
fn a_rebuilt_nsd_trims_and_discards_nothing_until_epochs_are_confirmed() {
    on_disk(9, async |scene| {
        let nsd = scene.open().await;
        nsd.log_put(entry(5, 1)).await.unwrap();
        nsd.close().await.unwrap();
        drop(nsd);
        let disk = scene.world.open_disk(scene.path()).unwrap();
        let nsd = Nsd::rebuild_index(&scene.world, disk).await.unwrap();
        let epoch = ShardEpoch(5);
        for refused in [
            nsd.log_discard(SHARD, epoch, EntryNumber(0)).await,
            nsd.log_trim(SHARD, epoch, EntryNumber(9)).await,
        ] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        nsd.confirm_epochs(&[(SHARD, ShardEpoch(6))]).await.unwrap();
        must_be_old(
            nsd.log_discard(SHARD, epoch, EntryNumber(0)).await,
            "discard",
        );
        assert_eq!(numbers(&nsd).await, [1]);
    });
}

#[test]
fn a_taught_fence_survives_a_power_cut_once_the_request_is_acknowledged() {
    /// What was acknowledged.
    #[derive(Clone, Copy, Default)]
    struct Told {
        version: u32,
        epoch: u64,
    }
    for_every_cut(11, 60, |simulation: &Simulation| {
        simulation.disk(DISK, small_region());
        let told = Arc::new(Mutex::new(Told::default()));
        let mine = told.clone();
        let _cut = simulation.run(async move |world| {
            let nsd = Scene { world }.open().await;
            for step in 1..=3u32 {
                let lengths = [50, 90_000];
                for (at, length) in (0..2).zip(lengths) {
                    let number = 1 + 4 * u64::from(step * 2 + at);
                    let version = step * 10 + at;
                    nsd.put(blob_at(version, number, length)).await.unwrap();
                    mine.lock().version = version;
                }
                let delete = deletion_at(step * 10 + 5, &[name(1 + 8 * u64::from(step))]);
                nsd.delete(delete).await.unwrap();
                mine.lock().version = step * 10 + 5;
                let epoch = u64::from(step) * 10;
                nsd.log_put(entry(epoch, u64::from(step))).await.unwrap();
                let at = EntryNumber(u64::from(step));
                nsd.log_discard(SHARD, ShardEpoch(epoch + 1), at)
                    .await
                    .unwrap();
                mine.lock().epoch = epoch + 1;
                nsd.log_trim(SHARD, ShardEpoch(epoch + 2), at)
                    .await
                    .unwrap();
                mine.lock().epoch = epoch + 2;
            }
        });
        simulation.run(async move |world| {
            let nsd = Scene { world }.open().await;
            let told = *told.lock();
            if told.version > 1 {
                let older = blob_at(told.version - 1, 401, 50);
                must_be_old(nsd.put(older).await, "put");
            }
            if told.epoch > 0 {
                let older = ShardEpoch(told.epoch - 1);
                must_be_old(
                    nsd.log_discard(SHARD, older, EntryNumber(0)).await,
                    "discard",
                );
            }
        });
    });
}
