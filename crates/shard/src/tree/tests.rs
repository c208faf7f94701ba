//! The tree's promises: rows, space that is freed, the same I/O for the same seed.

use super::wal::REPLAY_ENTRIES_MAX;
use crate::rig::{commit, frame, machine, open, power_on, value};
use crate::takeover::Opened;
use futures::future::join_all;
use model::Scheme;
use std::time::Duration;
use world::World;

const SINGLE: Scheme = Scheme::Replicate(1);

async fn load(opened: &Opened, first: u64, commits: u64, rows: u64) {
    for number in first..first + commits {
        let rows: Vec<(String, String)> = (0..rows)
            .map(|row| {
                (
                    format!("key-{number:06}-{row:06}"),
                    format!("{:0>200}", number * row),
                )
            })
            .collect();
        let rows: Vec<(&str, Option<&str>)> = rows
            .iter()
            .map(|(key, value)| (&key[..], Some(&value[..])))
            .collect();
        commit(opened, number, &rows).await.unwrap();
    }
}

#[test]
fn scans_are_ordered_and_limited_over_memory_and_tables() {
    machine(31, SINGLE, 1)
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            load(&opened, 1, 10, 100).await;
            opened.tree.flush().await.unwrap();
            load(&opened, 11, 10, 100).await;
            commit(
                &opened,
                21,
                &[("key-000005-000050", None), ("key-000015-000050", None)],
            )
            .await
            .unwrap();
            let all = opened.tree.scan(b"key-", b"key.", 10_000).await.unwrap();
            assert_eq!(all.len(), 1998);
            assert!(all.windows(2).all(|pair| pair[0].0 < pair[1].0));
            let some = opened
                .tree
                .scan(b"key-000005", b"key-000006", 7)
                .await
                .unwrap();
            assert_eq!(some.len(), 7);
            assert_eq!(some[0].0, "key-000005-000000");
            // One object: the first 13 bytes are the same.
            let one = opened
                .tree
                .scan(b"key-000015-000050", b"key-000015-000090", 1000)
                .await
                .unwrap();
            assert_eq!(one.len(), 39);
            assert_eq!(one[0].0, "key-000015-000051");
            assert!(opened.tree.scan(b"z", b"a", 7).await.unwrap().is_empty());
        })
        .finished();
}

#[test]
fn after_mass_deletes_and_a_compaction_the_space_returns() {
    let machine = machine(32, SINGLE, 1);
    machine.limit_time(Duration::from_secs(3600));
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            load(&opened, 1, 40, 1000).await;
            opened.tree.flush().await.unwrap();
            world.sleep(Duration::from_secs(1)).await;
            let full = opened.tree.bytes();
            assert!(full > 8 << 20, "{full}");
            for number in 41..=80 {
                let keys: Vec<String> = (0..1000)
                    .map(|row| format!("key-{:06}-{row:06}", number - 40))
                    .collect();
                let rows: Vec<(&str, Option<&str>)> =
                    keys.iter().map(|key| (&key[..], None)).collect();
                commit(&opened, number, &rows).await.unwrap();
            }
            assert!(opened.tree.compact().await.unwrap());
            world.sleep(Duration::from_secs(30)).await;
            // What was merged is no part of the tree, and is still there.
            let (live, usage) = (opened.tree.bytes(), opened.catalog.usage());
            assert!(live < full / 8 && usage.bytes > full, "{live}, {usage:?}");
            // SlateDB keeps the newest merged table until there is a newer one.
            commit(&opened, 81, &[("last", Some("row"))]).await.unwrap();
            opened.tree.flush().await.unwrap();
            world.sleep(Duration::from_secs(300)).await;
            let usage = opened.catalog.usage();
            assert!(usage.bytes < 1 << 20, "{usage:?}");
            assert!(
                opened
                    .tree
                    .scan(b"key-", b"key.", 10)
                    .await
                    .unwrap()
                    .is_empty()
            );
            // Everything was trimmed except the newest snapshot and later entries.
            assert!(opened.log.bytes() < 8 << 20, "{}", opened.log.bytes());
        })
        .finished();
}

#[test]
fn the_log_is_trimmed_by_itself() {
    let machine = machine(33, SINGLE, 1);
    machine.limit_time(Duration::from_secs(3600));
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            load(&opened, 1, 300, 1000).await;
            assert!(opened.log.bytes() < 64 << 20, "{}", opened.log.bytes());
            world.sleep(Duration::from_secs(100)).await;
            assert!(opened.log.bytes() < 8 << 20, "{}", opened.log.bytes());
        })
        .finished();
    machine
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            assert_eq!(opened.last_commit.0, 300);
            assert!(value(&opened, "key-000001-000999").await.is_some());
            assert!(value(&opened, "key-000300-000000").await.is_some());
        })
        .finished();
}

#[test]
fn the_same_seed_does_the_same_io() {
    let life = |seed| {
        let machine = machine(seed, Scheme::Replicate(2), 3);
        machine.limit_time(Duration::from_secs(3600));
        for _ in 0..2 {
            machine
                .run(|world| async move {
                    let opened = open(power_on(&world, &[]).await).await.unwrap();
                    load(&opened, opened.last_commit.0 + 1, 120, 500).await;
                    opened.tree.flush().await.unwrap();
                    world.sleep(Duration::from_secs(120)).await;
                    opened.tree.close().await.unwrap();
                })
                .finished();
        }
        machine.trace_hash()
    };
    assert_eq!(life(34), life(34));
    assert_ne!(life(34), life(35));
}

/// Would be broken if the age of what isn't in tables began anew with each owner: the log of a shard whose owners are killed
/// every few seconds would only grow, and each take-over would take longer than the one before.
#[test]
fn owners_that_change_often_flush_what_is_old() {
    const LIFE: Duration = Duration::from_secs(18);
    let machine = machine(35, SINGLE, 1);
    let life = |world: World| async move {
        let opened = open(power_on(&world, &[]).await).await.unwrap();
        load(&opened, opened.last_commit.0 + 1, 10, 1).await;
        world.sleep(LIFE).await;
        opened.tree.db.manifest().replay_after_wal_id()
    };
    let mut flushed = Vec::new();
    for _ in 0..5 {
        flushed.push(machine.run(life).finished());
    }
    assert!(flushed[4] > flushed[0], "{flushed:?}");
}

/// Would be broken if many small commits waited for a table until they are old: a take-over reads and copies each of them.
#[test]
fn a_log_of_many_small_commits_is_flushed_soon() {
    const AT_ONCE: u64 = 256;
    machine(36, SINGLE, 1)
        .run(|world| async move {
            let opened = open(power_on(&world, &[]).await).await.unwrap();
            for first in (1..=REPLAY_ENTRIES_MAX).step_by(AT_ONCE as usize) {
                let numbers = first..first + AT_ONCE;
                let frames: Vec<_> = numbers
                    .map(|number| frame(number, &[("k", Some("v"))]))
                    .collect();
                let appended = frames.iter().map(|frame| opened.log.append_commit(frame));
                for (entry, frame) in join_all(appended).await.into_iter().zip(&frames) {
                    opened.tree.apply(entry.unwrap(), frame).await.unwrap();
                }
            }
            // Some rounds of maintenance.
            world.sleep(Duration::from_secs(20)).await;
            let trimmed = opened.log.trimmed_below();
            assert!(trimmed.0 > REPLAY_ENTRIES_MAX / 2, "{trimmed}");
        })
        .finished();
}
