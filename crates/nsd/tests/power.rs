//! Power cuts at every I/O of mixed scenarios: everything acknowledged remains and is correct.

use crate::scene::{DISK, IDENTITY, Scene, blob, content, deletion, name, small_region};
use model::nsd::LogPut;
use model::{EntryNumber, ErrorKind, GroupId, NsdId, ShardEpoch, ShardId};
use nsd::{Nsd, NsdIdentity};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use world::sim::{Outcome, Simulation, for_every_cut};

/// The requests that the program made, and which of them were acknowledged.
#[derive(Clone, Default)]
struct Told {
    formatted: bool,
    /// Acknowledged blobs: length.
    blobs: BTreeMap<u64, usize>,
    /// Requested, but not acknowledged.
    perhaps: BTreeMap<u64, usize>,
    /// Delete requested, but not acknowledged.
    perhaps_gone: BTreeSet<u64>,
    log: BTreeMap<u64, usize>,
    perhaps_log: BTreeMap<u64, usize>,
    trimmed: u64,
    perhaps_trimmed: u64,
    sealed: u64,
}

const LENGTHS: [usize; 6] = [60, 5000, 16_384, 20_000, 90_000, 300_000];
const SHARD: ShardId = ShardId(1);

fn entry(number: u64, length: usize) -> LogPut {
    LogPut {
        shard: SHARD,
        epoch: ShardEpoch(1),
        number: EntryNumber(number),
        bytes: content(1_000_000 + number, length),
    }
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

async fn put(nsd: &Nsd, told: &Mutex<Told>, number: u64, length: usize) {
    told.lock().perhaps.insert(number, length);
    nsd.put(blob(number, length)).await.unwrap();
    let mut told = told.lock();
    told.perhaps.remove(&number);
    told.blobs.insert(number, length);
}

async fn delete(nsd: &Nsd, told: &Mutex<Told>, numbers: Vec<u64>) {
    told.lock().perhaps_gone.extend(&numbers);
    let names: Vec<_> = numbers.iter().map(|number| name(*number)).collect();
    nsd.delete(deletion(&names)).await.unwrap();
    let mut told = told.lock();
    for number in numbers {
        told.perhaps_gone.remove(&number);
        told.blobs.remove(&number);
    }
}

async fn log_put(nsd: &Nsd, told: &Mutex<Told>, number: u64, length: usize) {
    told.lock().perhaps_log.insert(number, length);
    nsd.log_put(entry(number, length)).await.unwrap();
    let mut told = told.lock();
    told.perhaps_log.remove(&number);
    told.log.insert(number, length);
}

async fn trim(nsd: &Nsd, told: &Mutex<Told>, below: u64) {
    told.lock().perhaps_trimmed = below;
    nsd.log_trim(SHARD, ShardEpoch(1), EntryNumber(below))
        .await
        .unwrap();
    let mut told = told.lock();
    told.trimmed = below;
    told.log.retain(|number, _| *number >= below);
}

/// One run of the program: random steps, several at a time.
async fn life(scene: &Scene, told: &Mutex<Told>, first: u64, steps: u64, dice: u64) {
    let nsd = scene.open().await;
    told.lock().formatted = true;
    let mut dice = Dice(dice | 1);
    for step in first..first + steps {
        let base = step * 50;
        let length = LENGTHS[dice.roll(6) as usize];
        match dice.roll(8) {
            0..=2 => {
                let puts = (0..1 + dice.roll(4)).map(|index| put(&nsd, told, base + index, length));
                futures::future::join_all(puts).await;
            }
            3 => {
                let numbers = told.lock().blobs.keys().copied().collect::<Vec<_>>();
                let some = numbers.into_iter().filter(|_| dice.roll(2) == 0).collect();
                delete(&nsd, told, some).await;
            }
            4 | 5 => {
                let puts = (0..3).map(|index| log_put(&nsd, told, base + index, length));
                futures::future::join_all(puts).await;
            }
            6 => trim(&nsd, told, base.saturating_sub(75)).await,
            _ => match dice.roll(4) {
                0 => nsd.checkpoint().await.unwrap(),
                1 => {
                    // More than fits into the whole ring: must wait for checkpoints.
                    let entries = (0..36).map(|index| log_put(&nsd, told, base + index, 18_000));
                    futures::future::join_all(entries).await;
                }
                2 => {
                    put(&nsd, told, base, 100).await;
                    futures::join!(
                        put(&nsd, told, base + 1, length),
                        delete(&nsd, told, vec![base]),
                        log_put(&nsd, told, base + 1, 700),
                    );
                }
                _ => {
                    nsd.seal(ShardId(2), ShardEpoch(step)).await.unwrap();
                    told.lock().sealed = step;
                }
            },
        }
    }
}

async fn check(nsd: &Nsd, told: &Mutex<Told>) {
    let mut mine = told.lock().clone();
    check_alone(nsd, &mut mine).await;
    *told.lock() = mine;
}

async fn check_alone(nsd: &Nsd, told: &mut Told) {
    for (number, length) in told.blobs.clone() {
        match nsd.get(name(number), 0, length as u32).await {
            Ok(got) => assert!(got == content(number, length), "blob {number}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound, "blob {number}: {error}");
                assert!(told.perhaps_gone.contains(&number), "blob {number} is lost");
                told.blobs.remove(&number);
            }
        }
    }
    for (number, length) in std::mem::take(&mut told.perhaps) {
        match nsd.get(name(number), 0, length as u32).await {
            Ok(got) => {
                assert!(
                    got == content(number, length),
                    "unacknowledged blob {number}"
                );
                told.blobs.insert(number, length);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound);
                // Its writer asks again; nothing that was left of the first put may pass for the second one.
                nsd.put(blob(number, length)).await.unwrap();
                let got = nsd.get(name(number), 0, length as u32).await.unwrap();
                assert!(got == content(number, length), "blob {number}, put again");
                told.blobs.insert(number, length);
            }
        }
    }
    told.perhaps_gone.clear();
    let mut listed = BTreeSet::new();
    for group in 0..4 {
        let found = nsd.list(GroupId(group), None, 10_000).await.unwrap();
        let digest = nsd.digest(GroupId(group)).await.unwrap();
        assert_eq!(digest.blobs, found.len() as u64);
        listed.extend(found.iter().map(|info| info.nonce));
    }
    assert_eq!(listed, told.blobs.keys().copied().collect());
    assert_eq!(nsd.usage().blobs, listed.len() as u64);
    check_log(nsd, told).await;
    if told.sealed > 0 {
        let older = ShardEpoch(told.sealed - 1);
        let refused = nsd.seal(ShardId(2), older).await;
        assert!(refused.is_err(), "seals stay");
    }
}

async fn check_log(nsd: &Nsd, told: &mut Told) {
    let floor = told.trimmed.max(told.perhaps_trimmed);
    let mut found = BTreeMap::new();
    let mut from = 0;
    loop {
        let part = nsd.log_read(SHARD, EntryNumber(from), 7).await.unwrap();
        let Some(last) = part.last() else { break };
        from = last.number.0 + 1;
        found.extend(part.into_iter().map(|entry| (entry.number.0, entry.bytes)));
    }
    for (number, length) in &told.log {
        match found.get(number) {
            Some(bytes) => assert!(*bytes == content(1_000_000 + number, *length)),
            None => assert!(*number < floor, "log entry {number} is lost"),
        }
    }
    let perhaps = std::mem::take(&mut told.perhaps_log);
    for (number, bytes) in &found {
        assert!(*number >= told.trimmed, "trimmed entry {number} is back");
        let length = told.log.get(number).or_else(|| perhaps.get(number));
        let length = *length.expect("an entry that was put");
        assert!(*bytes == content(1_000_000 + number, length));
        told.log.insert(*number, length);
    }
    told.log.retain(|number, _| found.contains_key(number));
}

/// Several runs of `steps` each, with a kill between them; a cut ends one early.
fn scenario(simulation: &Simulation, dice: u64, lives: u64, steps: u64) {
    simulation.disk(DISK, small_region());
    let told = Arc::new(Mutex::new(Told::default()));
    for number in 0..lives {
        let mut tries = 0;
        let told = told.clone();
        let lived = simulation.run({
            let told = told.clone();
            async move |world| {
                let scene = Scene { world };
                life(&scene, &told, number * 100, steps, dice + number).await;
            }
        });
        loop {
            let told = told.clone();
            let outcome = simulation.run(async move |world| {
                let scene = Scene { world };
                let nsd = scene.open().await;
                check(&nsd, &told).await;
                let report = nsd.scrub().await.unwrap();
                assert!(
                    report.damaged.is_empty() && report.damaged_log.is_empty(),
                    "{report:?}"
                );
                if number % 2 == 1 {
                    nsd.close().await.unwrap();
                }
            });
            match outcome {
                Outcome::Finished(()) => break,
                Outcome::Crashed => tries += 1,
            }
            assert!(tries < 3, "one cut is scheduled");
        }
        if lived.is_crashed() && !told.lock().formatted {
            return;
        }
    }
}

#[test]
fn an_acknowledged_put_survives_a_power_cut_at_any_io() {
    for seed in 1..=6 {
        for_every_cut(seed, 150, |simulation| {
            scenario(simulation, seed * 77, 2, 14)
        });
    }
}

/// What the group of a killed NSD has left isn't durable yet when the NSD is opened again.
#[test]
fn a_put_that_a_kill_interrupts_is_whole_or_gone_after_the_next_power_cut() {
    // Each I/O takes up to 4 ms, and some of these kills hit the flush.
    for seed in 1..=96 {
        for_every_cut(seed, 40, |simulation| {
            simulation.disk(DISK, small_region());
            let told = Arc::new(Mutex::new(Told::default()));
            let killed = told.clone();
            simulation.run(async move |world| {
                let scene = Scene { world };
                let nsd = scene.open().await;
                put(&nsd, &killed, 1, 70).await;
                let long = put(&nsd, &killed, 2, 300_000);
                let kill = scene.world.sleep(Duration::from_millis(1 + seed % 12));
                futures::future::select(pin!(long), pin!(kill)).await;
            });
            let later = told.clone();
            simulation.run(async move |world| {
                let scene = Scene { world };
                let nsd = scene.open().await;
                put(&nsd, &later, 3, 70).await;
            });
            // One cut is scheduled: it may hit this, too.
            for _ in 0..2 {
                let told = told.clone();
                let outcome = simulation.run(async move |world| {
                    let scene = Scene { world };
                    let nsd = scene.open().await;
                    check(&nsd, &told).await;
                });
                if !outcome.is_crashed() {
                    break;
                }
            }
        });
    }
}

#[test]
fn kills_and_wrapping_journals_lose_nothing() {
    for seed in 100..110 {
        let simulation = Simulation::new(seed);
        scenario(&simulation, seed, 5, 60);
    }
}

/// Would be broken if a checkpoint could move something to the place of a blob that was deleted after it had begun: the index
/// that it writes still has that blob, and two entries in one place can't be opened.
#[test]
fn what_is_deleted_while_a_checkpoint_runs_makes_no_room_for_what_it_moves() {
    const ENTRIES: u64 = 150;
    const ENTRY_BYTES: usize = 20_000;
    for seed in 1..=8 {
        let simulation = Simulation::new(seed);
        simulation.disk(DISK, small_region());
        let lived = simulation.run(async |world| {
            // All entries are in the journal, and no checkpoint is due.
            let nsd = Scene { world }.formatted(8 << 20).await;
            // Its place is the best one for 256 units that are moved together: they are moved in several parts.
            nsd.put(blob(1, 1_200_000)).await.unwrap();
            nsd.checkpoint().await.unwrap();
            let entries = (0..ENTRIES).map(|number| entry(number, ENTRY_BYTES));
            nsd.log_puts(entries.collect()).await.unwrap();
            let names = [name(1)];
            let delete = nsd.delete(deletion(&names));
            let (moved, deleted) = futures::join!(nsd.checkpoint(), delete);
            moved.unwrap();
            deleted.unwrap();
            // The room that the blob had isn't lost. An entry takes five units and one that describes it.
            assert_eq!(nsd.usage().used, ENTRIES * 6 * 4096);
        });
        lived.finished();
        let after_the_kill = simulation.run(async |world| {
            let scene = Scene { world };
            let nsd = scene.open().await;
            let deleted = nsd.get(name(1), 0, 1).await.unwrap_err();
            assert_eq!(deleted.kind(), ErrorKind::NotFound, "{deleted}");
            let mut next = 0;
            while next < ENTRIES {
                let part = nsd.log_read(SHARD, EntryNumber(next), 100).await.unwrap();
                assert!(!part.is_empty(), "log entry {next} is lost");
                for found in part {
                    assert_eq!(found.number, EntryNumber(next));
                    assert!(found.bytes == entry(next, ENTRY_BYTES).bytes);
                    next += 1;
                }
            }
            assert_eq!(nsd.usage().used, ENTRIES * 6 * 4096);
        });
        after_the_kill.finished();
    }
}

/// Would be broken if an NSD were full as long as a checkpoint runs although something was deleted: programs would be told that
/// nothing can be freed.
#[test]
fn what_is_deleted_while_a_checkpoint_runs_makes_room_for_the_next_put() {
    const LENGTH: usize = 1_200_000;
    for seed in 1..=8 {
        let simulation = Simulation::new(seed);
        simulation.disk(DISK, small_region());
        let lived = simulation.run(async |world| {
            // No checkpoint is due.
            let nsd = Scene { world }.formatted(8 << 20).await;
            let entries = (0..100).map(|number| entry(number, 20_000));
            nsd.log_puts(entries.collect()).await.unwrap();
            let mut number = 1;
            let full = loop {
                match nsd.put(blob(number, LENGTH)).await {
                    Ok(()) => number += 1,
                    Err(error) => break error,
                }
            };
            assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
            let before = nsd.usage();
            let names = [name(1)];
            let replace = async {
                nsd.delete(deletion(&names)).await.unwrap();
                let usage = nsd.usage();
                assert!(usage.used < before.used, "{usage:?}, {before:?}");
                assert!(usage.available >= LENGTH as u64, "{usage:?}");
                nsd.put(blob(number, LENGTH)).await
            };
            let (moved, put) = futures::join!(nsd.checkpoint(), replace);
            moved.unwrap();
            put.unwrap();
            assert_eq!(nsd.usage().used, before.used);
        });
        lived.finished();
    }
}

#[test]
fn the_same_seed_gives_the_same_ios() {
    let trace = |seed| {
        let simulation = Simulation::new(seed);
        scenario(&simulation, 5, 2, 40);
        (simulation.io_count(), simulation.trace_hash())
    };
    assert_eq!(trace(9), trace(9));
    assert_ne!(trace(9), trace(10));
}

#[test]
fn a_cut_while_formatting_leaves_a_disk_that_can_be_formatted() {
    for_every_cut(3, 200, |simulation| {
        simulation.disk(DISK, small_region());
        for _ in 0..2 {
            simulation.run(async |world| {
                let nsd = Scene { world }.open().await;
                nsd.put(blob(1, 100)).await.unwrap();
                nsd.get(name(1), 0, 100).await.unwrap();
            });
        }
    });
}

#[test]
fn a_cut_while_unformatting_leaves_a_disk_that_can_be_unformatted_and_formatted() {
    for_every_cut(7, 200, |simulation| {
        simulation.disk(DISK, small_region());
        for _ in 0..2 {
            simulation.run(async |world| {
                let scene = Scene { world };
                let nsd = scene.open().await;
                nsd.put(blob(1, 100)).await.unwrap();
                nsd.close().await.unwrap();
                drop(nsd);
                let disk = scene.world.open_disk(scene.path()).unwrap();
                let another = NsdIdentity {
                    nsd: NsdId(8),
                    ..IDENTITY
                };
                Nsd::unformat(&disk, another).await.unwrap();
                assert_eq!(Nsd::identify(&disk).await.unwrap(), IDENTITY);
                Nsd::unformat(&disk, IDENTITY).await.unwrap();
                assert!(Nsd::is_unformatted(&disk).await);
                drop(disk);
                let nsd = scene.open().await;
                assert_eq!(nsd.usage().blobs, 0);
            });
        }
    });
}

/// Would be broken if the newest copies of the superblock were erased before older ones: those say that the epochs of the logs
/// aren't confirmed, or that the index is lost.
#[test]
fn a_cut_while_unformatting_leaves_the_newest_superblock_or_none() {
    const REGION: u64 = 8 << 20;
    let prepared = Simulation::new(8);
    let disk = prepared.disk(DISK, REGION);
    let confirmed = prepared.run(async |world| {
        let scene = Scene { world };
        scene.open().await.close().await.unwrap();
        let disk = scene.world.open_disk(scene.path()).unwrap();
        let nsd = Nsd::rebuild_index(&scene.world, disk).await.unwrap();
        assert!(nsd.needs_confirmation());
        nsd.confirm_epochs(&[]).await.unwrap();
        nsd.close().await.unwrap();
    });
    confirmed.finished();
    let region = disk.content(0, REGION as usize);
    let (kept, gone) = (Cell::new(0), Cell::new(0));
    for_every_cut(8, 200, |simulation| {
        simulation.disk(DISK, REGION).overwrite(0, &region);
        simulation.run(async |world| {
            let disk = world.open_disk(DISK.as_ref()).unwrap();
            Nsd::unformat(&disk, IDENTITY).await.unwrap();
        });
        let opened = simulation.run(async |world| {
            let disk = world.open_disk(DISK.as_ref()).unwrap();
            Nsd::open(&world, disk)
                .await
                .map(|nsd| nsd.needs_confirmation())
        });
        match opened {
            Outcome::Finished(Ok(is_older)) => {
                assert!(!is_older);
                kept.set(kept.get() + 1);
            }
            Outcome::Finished(Err(error)) => {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                gone.set(gone.get() + 1);
            }
            Outcome::Crashed => {}
        }
    });
    assert!(kept.get() > 10 && gone.get() > 1, "{kept:?}, {gone:?}");
}

#[test]
fn a_failing_disk_stops_everything_until_it_is_opened_again() {
    let simulation = Simulation::new(4);
    simulation.disk(DISK, small_region());
    let faults = simulation.faults();
    let told = simulation.run(async |world| {
        let scene = Scene { world };
        let nsd = scene.open().await;
        nsd.put(blob(1, 50_000)).await.unwrap();
        nsd.put(blob(2, 50)).await.unwrap();
        faults.fail(DISK);
        for number in 3..6 {
            let refused = nsd.put(blob(number, 50_000)).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable);
        }
        faults.heal(DISK);
        assert_eq!(nsd.health(), model::nsd::NsdHealth::Failed);
        let refused = nsd.put(blob(7, 50)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        let refused = nsd.get(name(1), 0, 5).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        let nsd = scene.reopen(nsd).await;
        assert_eq!(
            nsd.get(name(1), 0, 50_000).await.unwrap(),
            content(1, 50_000)
        );
        assert_eq!(nsd.get(name(2), 0, 50).await.unwrap(), content(2, 50));
        nsd.put(blob(3, 50_000)).await.unwrap();
    });
    told.finished();
}
