//! The same promises with a real file: O_DIRECT, several threads, dropped without closing.

use crate::scene::{IDENTITY, blob, content, deletion, name, small_options};
use futures::future::join_all;
use model::nsd::LogPut;
use model::{EntryNumber, ErrorKind, ShardEpoch, ShardId};
use nsd::Nsd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use world::{Disk, World};

fn length(number: u64) -> usize {
    [90, 4096, 16_000, 50_000, 262_144, 1_048_576 + 77][number as usize % 6]
}

/// A checkpoint in the background may keep the disk open briefly after the NSD was dropped.
async fn open_disk(world: &World, path: &Path) -> Disk {
    for _ in 0..500 {
        if let Ok(disk) = world.open_disk(path) {
            return disk;
        }
        world.sleep(Duration::from_millis(10)).await;
    }
    panic!("the disk was never released");
}

async fn fill(nsd: &Arc<Nsd>, numbers: std::ops::Range<u64>) {
    let puts = numbers
        .clone()
        .map(|number| nsd.put(blob(number, length(number))));
    for done in join_all(puts).await {
        done.unwrap();
    }
    for number in numbers {
        let put = LogPut {
            shard: ShardId(1),
            epoch: ShardEpoch(1),
            number: EntryNumber(number),
            bytes: content(number, 3000),
        };
        nsd.log_put(put).await.unwrap();
    }
}

#[test]
fn a_real_region_keeps_everything_when_dropped_without_closing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nsd");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::real();
        let disk = world.create_disk(&path, 96 << 20).unwrap();
        Nsd::format_with(&world, &disk, IDENTITY, small_options())
            .await
            .unwrap();
        drop(disk);
        for life in 0..4u64 {
            let nsd = Nsd::open(&world, open_disk(&world, &path).await)
                .await
                .unwrap();
            for number in 1..life * 40 {
                let found = nsd.get(name(number), 0, length(number) as u32).await;
                if number % 5 == 0 {
                    assert_eq!(found.unwrap_err().kind(), ErrorKind::NotFound);
                } else {
                    assert!(
                        found.unwrap() == content(number, length(number)),
                        "{number}"
                    );
                }
            }
            let entries = nsd
                .log_read(ShardId(1), EntryNumber(0), 1000)
                .await
                .unwrap();
            assert_eq!(entries.len() as u64, (life * 40).saturating_sub(1).min(60));
            assert!(
                entries
                    .iter()
                    .all(|entry| entry.bytes == content(entry.number.0, 3000))
            );
            fill(&nsd, (life * 40).max(1)..(life + 1) * 40).await;
            let gone: Vec<_> = (life * 40..(life + 1) * 40)
                .filter(|n| n % 5 == 0)
                .map(name)
                .collect();
            nsd.delete(deletion(&gone)).await.unwrap();
            let below = ((life + 1) * 40).saturating_sub(60);
            nsd.log_trim(ShardId(1), ShardEpoch(1), EntryNumber(below))
                .await
                .unwrap();
            let report = nsd.scrub().await.unwrap();
            assert!(
                report.damaged.is_empty() && report.mended.is_empty(),
                "{report:?}"
            );
            if life == 2 {
                nsd.close().await.unwrap();
            }
        }
    });
}
