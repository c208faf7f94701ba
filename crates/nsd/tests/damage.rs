//! A flipped byte, wherever it is, is found and repaired, or is harmless. Also: index rebuilds.

use crate::scene::{DISK, IDENTITY, blob, content, deletion, name};
use model::nsd::{GroupFence, LogEntry, LogPut, ScrubReport};
use model::{BlobName, EntryNumber, ErrorKind, GroupId, GroupVersion, ShardEpoch, ShardId};
use nsd::{FormatOptions, Nsd};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use world::World;
use world::sim::Simulation;

const REGION: u64 = 8 << 20;
const SHARD: ShardId = ShardId(1);
/// Units of the smallest journal.
const RING_UNITS: u32 = 64;
/// The last blob before the kill: damage to its record may look like a torn write.
const LAST: u64 = 900;

fn length(number: u64) -> usize {
    [70, 4096, 9000, 17_000, 66_000, 280_000][number as usize % 6]
}

fn numbers() -> impl Iterator<Item = u64> {
    (1..48).filter(|number| number % 4 != 1).chain([LAST])
}

fn entry(number: u64) -> LogPut {
    LogPut {
        shard: SHARD,
        epoch: ShardEpoch(2),
        number: EntryNumber(number),
        bytes: content(5000 + number, 1000 * number as usize),
    }
}

async fn open(world: &World) -> model::Result<Arc<Nsd>> {
    Nsd::open(world, world.open_disk(Path::new(DISK)).unwrap()).await
}

/// Opens a region that it formats, with a journal of this size.
async fn formatted(world: &World, journal_bytes: u64) -> Arc<Nsd> {
    let disk = world.open_disk(Path::new(DISK)).unwrap();
    let options = FormatOptions {
        journal_bytes: Some(journal_bytes),
        index_bytes: Some((2 << 20) + (100 << 10)),
    };
    Nsd::format_with(world, &disk, IDENTITY, options)
        .await
        .unwrap();
    Nsd::open(world, disk).await.unwrap()
}

/// A region with blobs of all sizes in index and journal, deleted ones, and log entries.
fn populated(seed: u64, closed: bool) -> Vec<u8> {
    let simulation = Simulation::new(seed);
    let disk = simulation.disk(DISK, REGION);
    simulation
        .run(async |world| {
            let nsd = formatted(&world, 256 << 10).await;
            for number in 1..48 {
                nsd.put(blob(number, length(number))).await.unwrap();
                nsd.log_put(entry(number)).await.unwrap();
                if number % 4 == 1 {
                    nsd.delete(deletion(&[name(number)])).await.unwrap();
                }
                if number == 20 || number == 30 {
                    nsd.log_trim(SHARD, ShardEpoch(2), EntryNumber(number - 10))
                        .await
                        .unwrap();
                    nsd.checkpoint().await.unwrap();
                }
            }
            nsd.put(blob(LAST, length(LAST))).await.unwrap();
            if closed {
                nsd.close().await.unwrap();
            }
        })
        .finished();
    disk.content(0, REGION as usize)
}

/// Blobs and log entries that may be missing after a flip.
#[derive(Default)]
struct Excused {
    blobs: BTreeSet<BlobName>,
    log: BTreeSet<EntryNumber>,
    /// The index was rebuilt: missing blobs are "unavailable", never "absent".
    rebuilt: bool,
    last: bool,
}

async fn check(nsd: &Nsd, excused: &Excused, what: &str) {
    for number in numbers() {
        let length = length(number);
        match nsd.get(name(number), 0, length as u32).await {
            Ok(got) => assert!(
                got == content(number, length),
                "{what}: wrong bytes in {number}"
            ),
            Err(error) => {
                let kind = error.kind();
                let told = kind == ErrorKind::Corrupt && excused.blobs.contains(&name(number))
                    || kind == ErrorKind::Unavailable && excused.rebuilt
                    || kind == ErrorKind::NotFound && excused.last && number == LAST;
                assert!(told, "{what}: blob {number}: {error}");
            }
        }
    }
    for number in (20..48).map(EntryNumber) {
        match nsd.log_read(SHARD, number, 1).await {
            Ok(found) => {
                let found = found
                    .into_iter()
                    .next()
                    .filter(|found| found.number == number);
                match found {
                    Some(found) => assert!(found.bytes == entry(number.0).bytes, "{what}"),
                    None => assert!(excused.rebuilt, "{what}: log entry {number} is lost"),
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Corrupt);
                assert!(
                    excused.log.contains(&number),
                    "{what}: log entry {number}: {error}"
                );
            }
        }
    }
}

fn excuse(report: &ScrubReport, excused: &mut Excused) {
    excused.blobs.extend(&report.damaged);
    excused
        .log
        .extend(report.damaged_log.iter().map(|(_, number)| *number));
}

/// Opens a damaged region, scrubs it and checks it. Returns whether any damage was noticed.
async fn live_with(world: &World, excused: &mut Excused, what: &str) -> bool {
    let mut nsd = match open(world).await {
        Ok(nsd) => nsd,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
            rebuild(world, excused).await
        }
    };
    let mut noticed = excused.rebuilt;
    let report = match nsd.scrub().await {
        Ok(report) => report,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
            drop(nsd);
            nsd = rebuild(world, excused).await;
            noticed = true;
            nsd.scrub().await.unwrap()
        }
    };
    excuse(&report, excused);
    noticed |= !report.mended.is_empty() || !report.damaged.is_empty();
    noticed |= !report.damaged_log.is_empty();
    check(&nsd, excused, what).await;
    let again = nsd.scrub().await.unwrap();
    assert!(
        again.mended.is_empty(),
        "{what}: mended twice: {:?}",
        again.mended
    );
    assert_eq!(again.damaged, report.damaged, "{what}");
    noticed
}

async fn rebuild(world: &World, excused: &mut Excused) -> Arc<Nsd> {
    excused.rebuilt = true;
    let disk = world.open_disk(Path::new(DISK)).unwrap();
    let nsd = Nsd::rebuild_index(world, disk).await.unwrap();
    assert!(nsd.needs_confirmation());
    nsd
}

/// Flips one byte in every `step`-th block that isn't all zeros.
fn flip_everywhere(region: &[u8], step: usize, last_is_open: bool) -> (usize, usize) {
    let used: Vec<usize> = (0..region.len() / 4096)
        .filter(|block| region[block * 4096..][..4096].iter().any(|byte| *byte != 0))
        .collect();
    let (mut flips, mut noticed) = (0, 0);
    for (turn, block) in used.iter().enumerate().step_by(step) {
        let at = block * 4096 + [0, 13, 80, 700, 2222, 4095][turn % 6];
        let simulation = Simulation::new(turn as u64);
        let disk = simulation.disk(DISK, REGION);
        disk.overwrite(0, region);
        disk.overwrite(at as u64, &[region[at] ^ (1 << (turn % 8))]);
        let outcome = simulation.run(async |world| {
            let mut excused = Excused {
                last: last_is_open,
                ..Excused::default()
            };
            live_with(&world, &mut excused, &format!("byte {at}")).await
        });
        flips += 1;
        noticed += usize::from(outcome.finished());
    }
    (flips, noticed)
}

#[test]
fn any_flipped_byte_of_a_closed_region_is_found_or_harmless() {
    let region = populated(1, true);
    let (flips, noticed) = flip_everywhere(&region, 3, false);
    assert!(
        flips > 250 && noticed > flips / 2,
        "{noticed} of {flips} noticed"
    );
}

#[test]
fn any_flipped_byte_after_a_kill_is_found_or_harmless() {
    let region = populated(2, false);
    let (flips, noticed) = flip_everywhere(&region, 7, true);
    assert!(
        flips > 100 && noticed > flips / 3,
        "{noticed} of {flips} noticed"
    );
}

#[test]
fn a_byte_flipped_under_an_open_nsd_is_found_or_harmless() {
    let region = populated(3, false);
    for turn in 0..60u64 {
        let simulation = Simulation::new(turn);
        let disk = simulation.disk(DISK, REGION);
        disk.overwrite(0, &region);
        let faults = simulation.faults();
        let used: Vec<u64> = (0..REGION / 4096)
            .filter(|block| {
                disk.content(block * 4096, 4096)
                    .iter()
                    .any(|byte| *byte != 0)
            })
            .collect();
        let at = used[(turn as usize * 37) % used.len()] * 4096 + turn * 67 % 4096;
        simulation
            .run(async |world| {
                let nsd = open(&world).await.unwrap();
                faults.flip_bit(DISK, at);
                let mut excused = Excused::default();
                let what = format!("byte {at}");
                match nsd.scrub().await {
                    Ok(report) => {
                        excuse(&report, &mut excused);
                        check(&nsd, &excused, &what).await;
                        nsd.close().await.unwrap();
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}"),
                }
                drop(nsd);
                live_with(&world, &mut excused, &what).await;
            })
            .finished();
    }
}

#[test]
fn a_second_scrub_of_an_nsd_is_refused_while_the_first_mends() {
    let simulation = Simulation::new(8);
    let disk = simulation.disk(DISK, REGION);
    disk.overwrite(0, &populated(8, true));
    let faults = simulation.faults();
    simulation
        .run(async |world| {
            let nsd = open(&world).await.unwrap();
            let is_header = |block: &u64| disk.content(block * 4096, 4096).starts_with(b"SHALEBLB");
            let headers: Vec<u64> = (0..REGION / 4096).filter(is_header).collect();
            for block in &headers {
                faults.flip_bit(DISK, block * 4096 + 40);
            }
            let (first, second) = futures::future::join(nsd.scrub(), nsd.scrub()).await;
            let busy = second.unwrap_err();
            assert_eq!(busy.kind(), ErrorKind::Busy);
            assert!(
                busy.to_string().contains("already being scrubbed"),
                "{busy}"
            );
            let mended = first.unwrap().mended;
            assert!(mended.len() > 5, "{mended:?}");
            let again = nsd.scrub().await.unwrap();
            assert!(again.mended.is_empty() && again.damaged.is_empty());
        })
        .finished();
}

#[test]
fn a_rebuilt_index_has_every_blob_and_refuses_log_puts_until_epochs_are_confirmed() {
    for closed in [true, false] {
        let region = populated(4, closed);
        let simulation = Simulation::new(5);
        simulation.disk(DISK, REGION).overwrite(0, &region);
        simulation
            .run(async |world| {
                let mut excused = Excused::default();
                let nsd = rebuild(&world, &mut excused).await;
                check(&nsd, &Excused::default(), "rebuilt").await;
                let absent = nsd.get(name(7777), 0, 1).await.unwrap_err();
                assert_eq!(absent.kind(), ErrorKind::Unavailable);
                let refused = nsd.log_put(entry(60)).await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Unavailable);
                nsd.put(blob(500, 100)).await.unwrap();
                drop(nsd);
                let nsd = open(&world).await.unwrap();
                assert!(nsd.needs_confirmation(), "also after the next open");
                nsd.confirm_epochs(&[(SHARD, ShardEpoch(3))]).await.unwrap();
                drop(nsd);
                let nsd = open(&world).await.unwrap();
                assert!(!nsd.needs_confirmation());
                let old = nsd.log_put(entry(60)).await.unwrap_err();
                assert_eq!(old.kind(), ErrorKind::OldEpoch);
                let absent = nsd.get(name(7777), 0, 1).await.unwrap_err();
                assert_eq!(absent.kind(), ErrorKind::NotFound);
                check(&nsd, &Excused::default(), "confirmed").await;
                let report = nsd.scrub().await.unwrap();
                assert!(
                    report.damaged.is_empty() && report.mended.is_empty(),
                    "{report:?}"
                );
            })
            .finished();
    }
}

#[test]
fn a_rebuilt_index_takes_a_payload_from_the_journal_where_it_is_proven() {
    let simulation = Simulation::new(9);
    let disk = simulation.disk(DISK, REGION);
    let faults = simulation.faults();
    simulation
        .run(async |world| {
            let nsd = formatted(&world, 256 << 10).await;
            nsd.put(blob(1, 9000)).await.unwrap();
            nsd.put(blob(2, 9000)).await.unwrap();
            nsd.delete(deletion(&[name(2)])).await.unwrap();
            // Both copies exist now: in the ring, where it hasn't been overwritten yet, and in an
            // extent.
            nsd.checkpoint().await.unwrap();
        })
        .finished();
    let needle = content(1, 4096);
    let bytes = disk.content(0, REGION as usize);
    let extent = bytes.chunks(4096).position(|block| block == needle);
    faults.flip_bit(DISK, extent.unwrap() as u64 * 4096 + 77);
    simulation
        .run(async |world| {
            let region = world.open_disk(Path::new(DISK)).unwrap();
            let nsd = Nsd::rebuild_index(&world, region).await.unwrap();
            assert_eq!(nsd.get(name(1), 0, 9000).await.unwrap(), content(1, 9000));
            assert!(nsd.get(name(2), 0, 9000).await.is_err(), "it was deleted");
            let report = nsd.scrub().await.unwrap();
            assert!(
                report.damaged.is_empty() && report.mended.is_empty(),
                "{report:?}"
            );
        })
        .finished();
}

#[test]
fn a_cut_while_rebuilding_is_mended_by_rebuilding_again() {
    let region = populated(6, false);
    world::sim::for_every_cut(6, 40, |simulation| {
        simulation.disk(DISK, REGION).overwrite(0, &region);
        for _ in 0..3 {
            let outcome = simulation.run(async |world| {
                let nsd = rebuild(&world, &mut Excused::default()).await;
                check(&nsd, &Excused::default(), "rebuilt").await;
            });
            if !outcome.is_crashed() {
                break;
            }
        }
    });
}

#[test]
fn units_that_cannot_be_read_hurt_only_their_blob() {
    let simulation = Simulation::new(7);
    let disk = simulation.disk(DISK, REGION);
    disk.overwrite(0, &populated(7, true));
    let faults = simulation.faults();
    // Damages blob 11 (280,000 bytes), a neighbour of blob 5.
    let needle = content(11, 4096);
    let region = disk.content(0, REGION as usize);
    let at = region
        .chunks(4096)
        .position(|block| block == needle)
        .unwrap() as u64
        * 4096;
    simulation
        .run(async |world| {
            let nsd = open(&world).await.unwrap();
            faults.read_error(DISK, at + 8192..at + 8193);
            let damaged = nsd.get(name(11), 0, 280_000).await.unwrap_err();
            assert_eq!(damaged.kind(), ErrorKind::Corrupt);
            let good = nsd.get(name(11), 0, 8192).await.unwrap();
            assert_eq!(good, content(11, 8192));
            let report = nsd.scrub().await.unwrap();
            assert_eq!(report.damaged, vec![name(11)]);
            nsd.put(blob(600, 50_000)).await.unwrap();
            nsd.delete(deletion(&[name(11)])).await.unwrap();
            assert_eq!(nsd.scrub().await.unwrap().damaged, vec![]);
            assert_eq!(
                nsd.list(GroupId(3), None, 100)
                    .await
                    .unwrap()
                    .iter()
                    .filter(|info| info.nonce == 11)
                    .count(),
                0
            );
        })
        .finished();
}

/// Where the first unit of a blob of this number is.
fn first_unit(region: &[u8], number: u64) -> u64 {
    let needle = content(number, 4096);
    let at = region.chunks(4096).position(|block| block == needle);
    at.unwrap() as u64 * 4096
}

/// Would be broken if a disk that has written to the wrong place, or said that it has written and hasn't, were believed
/// because what is there fits some checksum.
#[test]
fn a_disk_that_swaps_or_loses_writes_is_found_out() {
    let simulation = Simulation::new(10);
    let disk = simulation.disk(DISK, REGION);
    disk.overwrite(0, &populated(10, true));
    let region = disk.content(0, REGION as usize);
    let [one, other] = [11, 23].map(|number| first_unit(&region, number));
    // Two writes went to each other's places.
    disk.overwrite(one, &content(23, 4096));
    disk.overwrite(other, &content(11, 4096));
    // The place of a new blob, which had another one.
    let before = disk.content(0, REGION as usize);
    let told = simulation.run(async |world| {
        let nsd = open(&world).await.unwrap();
        for number in [11, 23] {
            let swapped = nsd.get(name(number), 0, 4096).await.unwrap_err();
            assert_eq!(swapped.kind(), ErrorKind::Corrupt);
            let rest = nsd.get(name(number), 4096, 4096).await.unwrap();
            assert_eq!(rest, content(number, 8192)[4096..]);
        }
        let mut damaged = nsd.scrub().await.unwrap().damaged;
        damaged.sort_unstable();
        assert_eq!(damaged, [name(11), name(23)]);
        nsd.delete(deletion(&[name(47)])).await.unwrap();
        nsd.checkpoint().await.unwrap();
        nsd.put(blob(701, 280_000)).await.unwrap();
        nsd.close().await.unwrap();
    });
    told.finished();
    // Its data was never written.
    let written = disk.content(0, REGION as usize);
    let lost = first_unit(&written, 701);
    let old = &before[lost as usize..lost as usize + 4096];
    disk.overwrite(lost, old);
    let told = simulation.run(async |world| {
        let nsd = open(&world).await.unwrap();
        let told = nsd.get(name(701), 0, 280_000).await.unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Corrupt);
        assert!(nsd.scrub().await.unwrap().damaged.contains(&name(701)));
    });
    told.finished();
}

/// Would be broken if a rebuild took a put whose data a power cut has lost for one that is there: its writer, whom nobody has
/// answered, puts it again, and would be told that it is stored.
#[test]
fn a_rebuilt_index_has_no_put_of_the_journal_whose_data_is_not_there() {
    const LENGTH: usize = 280_000;
    let simulation = Simulation::new(11);
    let disk = simulation.disk(DISK, REGION);
    let put = simulation.run(async |world| {
        let nsd = formatted(&world, 256 << 10).await;
        nsd.put(blob(1, LENGTH)).await.unwrap();
    });
    put.finished();
    let first = first_unit(&disk.content(0, REGION as usize), 1);
    // The unit that describes it, and its first one.
    disk.overwrite(first - 4096, &[0; 2 * 4096]);
    let put_again = simulation.run(async |world| {
        let nsd = rebuild(&world, &mut Excused::default()).await;
        nsd.put(blob(1, LENGTH)).await.unwrap();
        let got = nsd.get(name(1), 0, LENGTH as u32).await.unwrap();
        assert!(got == content(1, LENGTH));
    });
    put_again.finished();
}

/// Would be broken if a writer that puts again what it wasn't answered for were told that it is stored because its header is.
#[test]
fn a_repeated_put_of_what_a_rebuild_found_without_its_data_is_refused() {
    const LENGTH: usize = 280_000;
    let simulation = Simulation::new(12);
    let disk = simulation.disk(DISK, REGION);
    let put = simulation.run(async |world| {
        let nsd = formatted(&world, 256 << 10).await;
        nsd.put(blob(1, LENGTH)).await.unwrap();
        nsd.log_put(entry(40)).await.unwrap();
        // As often as asked, as long as all is there.
        nsd.put(blob(1, LENGTH)).await.unwrap();
        nsd.log_put(entry(40)).await.unwrap();
    });
    put.finished();
    let first = first_unit(&disk.content(0, REGION as usize), 1);
    disk.overwrite(first, &[0; 4096]);
    let put_again = simulation.run(async |world| {
        let nsd = rebuild(&world, &mut Excused::default()).await;
        let refused = nsd.put(blob(1, LENGTH)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt);
        nsd.put(blob(2, LENGTH)).await.unwrap();
        nsd.put(blob(2, LENGTH)).await.unwrap();
    });
    put_again.finished();
}

/// Lets all records leave a ring of [`RING_UNITS`]: each of these groups is one unit.
async fn turn_ring(nsd: &Nsd) {
    for version in 2..RING_UNITS + 8 {
        let fence = GroupFence {
            group: GroupId(99),
            version: GroupVersion(version),
        };
        nsd.learn_group(fence).await.unwrap();
        nsd.checkpoint().await.unwrap();
    }
}

/// Would be broken if the birth of an entry said when it came to its place: what a checkpoint moves out of the journal keeps its
/// birth, and the header of a deleted blob remains until something is written over it.
#[test]
fn a_rebuilt_index_has_what_moved_to_where_a_newer_one_was_deleted() {
    /// Each takes 70 units.
    const FILLER: usize = 280_000;
    const SMALL: [u64; 2] = [1, 3];
    const DELETED: u64 = 2;
    let simulation = Simulation::new(13);
    let device = simulation.disk(DISK, REGION);
    let content_now = || device.content(0, REGION as usize);
    let lived = simulation.run(async |world| {
        let nsd = formatted(&world, u64::from(RING_UNITS) * 4096).await;
        let mut last = 99;
        while nsd.usage().available > 200 * 4096 {
            last += 1;
            nsd.put(blob(last, FILLER)).await.unwrap();
        }
        let usage = nsd.usage();
        let tail = (usage.capacity - usage.used) / 4096;
        assert!(last > 104 && tail > 210, "{tail} units behind blob {last}");
        let gap = first_unit(&content_now(), 101);
        nsd.delete(deletion(&[101, 102, 103].map(name)))
            .await
            .unwrap();
        // Also one that was begun in the background.
        nsd.checkpoint().await.unwrap();
        nsd.checkpoint().await.unwrap();
        for number in SMALL {
            nsd.put(blob(number, 9000)).await.unwrap();
        }
        // All that is free at the end, and 50 units of the gap.
        let length = (tail as usize + 49) * 4096;
        nsd.put(blob(DELETED, length)).await.unwrap();
        nsd.delete(deletion(&[name(DELETED)])).await.unwrap();
        nsd.checkpoint().await.unwrap();
        turn_ring(&nsd).await;
        nsd.close().await.unwrap();
        let region = content_now();
        assert_eq!(first_unit(&region, SMALL[0]), gap);
        let header = first_unit(&region, DELETED) as usize - 4096;
        assert!(region[header..].starts_with(b"SHALEBLB"));
        last
    });
    let last = lived.finished();
    let rebuilt = simulation.run(async |world| {
        let nsd = rebuild(&world, &mut Excused::default()).await;
        let small = SMALL.map(|number| (number, 9000));
        let fillers = (104..=last).chain([100]).map(|number| (number, FILLER));
        for (number, length) in small.into_iter().chain(fillers) {
            let got = nsd.get(name(number), 0, length as u32).await.unwrap();
            assert!(got == content(number, length), "blob {number}");
        }
        let report = nsd.scrub().await.unwrap();
        assert!(report.damaged.is_empty(), "{report:?}");
    });
    rebuilt.finished();
}

/// Would be broken if a header of a put that a power cut has interrupted, of which nothing else is left, took the name from what
/// was answered: a take-over puts a log's entries again with its own epoch.
#[test]
fn a_rebuilt_index_has_the_log_entry_that_is_there_not_a_torn_newer_one() {
    const LENGTH: usize = 66_000;
    const TORN: u64 = 7003;
    let simulation = Simulation::new(14);
    let disk = simulation.disk(DISK, REGION);
    let written = |epoch: u64| LogPut {
        shard: SHARD,
        epoch: ShardEpoch(epoch),
        number: EntryNumber(40),
        bytes: content(7000 + epoch, LENGTH),
    };
    let put = simulation.run(async |world| {
        let nsd = formatted(&world, u64::from(RING_UNITS) * 4096).await;
        for epoch in [2, 3] {
            nsd.log_put(written(epoch)).await.unwrap();
        }
        turn_ring(&nsd).await;
    });
    put.finished();
    let torn = first_unit(&disk.content(0, REGION as usize), TORN);
    disk.overwrite(torn, &[0; 4096]);
    let rebuilt = simulation.run(async |world| {
        let nsd = rebuild(&world, &mut Excused::default()).await;
        let found = nsd.log_read(SHARD, EntryNumber(40), 1).await.unwrap();
        let found: Vec<_> = found.iter().map(|it| (it.epoch, &it.bytes)).collect();
        assert!(found == [(ShardEpoch(2), &written(2).bytes)]);
    });
    rebuilt.finished();
}

/// As the test before, with what was answered still in the journal alone.
#[test]
fn a_rebuilt_index_has_the_log_entry_of_the_journal_not_a_torn_newer_one() {
    const TORN: u64 = 7003;
    let simulation = Simulation::new(15);
    let disk = simulation.disk(DISK, REGION);
    let written = |epoch: u64, length: usize| LogPut {
        shard: SHARD,
        epoch: ShardEpoch(epoch),
        number: EntryNumber(40),
        bytes: content(7000 + epoch, length),
    };
    let put = simulation.run(async |world| {
        let nsd = formatted(&world, u64::from(RING_UNITS) * 4096).await;
        nsd.log_put(written(2, 1000)).await.unwrap();
        nsd.log_put(written(3, 66_000)).await.unwrap();
    });
    put.finished();
    let torn = first_unit(&disk.content(0, REGION as usize), TORN);
    disk.overwrite(torn, &[0; 4096]);
    let rebuilt = simulation.run(async |world| {
        let nsd = rebuild(&world, &mut Excused::default()).await;
        let found = nsd.log_read(SHARD, EntryNumber(40), 1).await.unwrap();
        let found: Vec<_> = found.iter().map(|it| (it.epoch, &it.bytes)).collect();
        assert!(found == [(ShardEpoch(2), &written(2, 1000).bytes)]);
    });
    rebuilt.finished();
}

#[test]
fn an_old_delete_at_the_end_of_the_ring_takes_nothing_from_a_rebuilt_index() {
    const UNITS: u64 = 64;
    let simulation = Simulation::new(5);
    simulation.disk(DISK, REGION);
    simulation
        .run(async |world| {
            let nsd = formatted(&world, UNITS * 4096).await;
            // Each of these is a group of one unit.
            let mut version = 1;
            let mut fill = async |groups: u64| {
                for _ in 0..groups {
                    version += 1;
                    let fence = GroupFence {
                        group: GroupId(99),
                        version: GroupVersion(version),
                    };
                    nsd.learn_group(fence).await.unwrap();
                    nsd.checkpoint().await.unwrap();
                }
            };
            nsd.put(blob(1, 20_000)).await.unwrap();
            fill(UNITS - 2).await;
            nsd.delete(deletion(&[name(1)])).await.unwrap();
            nsd.put(blob(1, 20_000)).await.unwrap();
            fill(UNITS - 2).await;
            // Too long for the one unit that is left, so the delete remains there.
            nsd.put(blob(2, 9000)).await.unwrap();
            nsd.close().await.unwrap();
            drop(nsd);
            let disk = world.open_disk(Path::new(DISK)).unwrap();
            let nsd = Nsd::rebuild_index(&world, disk).await.unwrap();
            for (number, length) in [(1, 20_000), (2, 9000)] {
                let got = nsd.get(name(number), 0, length as u32).await.unwrap();
                assert!(got == content(number, length), "blob {number}");
            }
        })
        .finished();
}

/// Would be broken if a take-over had to find a damaged entry by reading those before it one by one, and all that follow with
/// each of them once more.
#[test]
fn the_entries_before_a_damaged_one_are_read_at_once() {
    const DAMAGED: u64 = 30;
    let simulation = Simulation::new(6);
    let device = simulation.disk(DISK, REGION);
    simulation
        .run(async |world| {
            let nsd = formatted(&world, 256 << 10).await;
            for number in 1..48 {
                nsd.log_put(entry(number)).await.unwrap();
            }
            // Wherever it is, or was.
            let begin = entry(DAMAGED).bytes.slice(..64);
            let region = device.content(0, REGION as usize);
            for (at, found) in region.windows(begin.len()).enumerate() {
                if *found == begin[..] {
                    device.overwrite(at as u64, &[!found[0]]);
                }
            }
            let read = |from| nsd.log_read(SHARD, EntryNumber(from), 1000);
            let numbers = |read: Vec<LogEntry>| -> Vec<u64> {
                read.iter().map(|found| found.number.0).collect()
            };
            let before = numbers(read(1).await.unwrap());
            assert_eq!(before, Vec::from_iter(1..DAMAGED));
            let told = read(DAMAGED).await.unwrap_err();
            assert_eq!(told.kind(), ErrorKind::Corrupt);
            let behind = numbers(read(DAMAGED + 1).await.unwrap());
            assert_eq!(behind, Vec::from_iter(DAMAGED + 1..48));
        })
        .finished();
}
