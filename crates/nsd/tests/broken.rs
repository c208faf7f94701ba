//! Regions that must not be opened as they are: torn, newer, truncated, erased, another cluster's,
//! failed. Each case gets its own error, and no region is changed.

use crate::scene::{DISK, IDENTITY, blob, content, name, small_options, small_region};
use model::ErrorKind;
use model::nsd::NsdHealth;
use nsd::{Nsd, NsdIdentity};
use std::path::Path;
use world::World;
use world::sim::{SimDisk, Simulation};

const BLOCK: usize = 4096;
const VERSION_AT: usize = 8;
const CRC_AT: usize = 12;

async fn open(world: &World) -> model::Result<std::sync::Arc<Nsd>> {
    Nsd::open(world, world.open_disk(Path::new(DISK)).unwrap()).await
}

/// A closed region with a few blobs.
fn populated(seed: u64) -> (Simulation, SimDisk) {
    let simulation = Simulation::new(seed);
    let disk = simulation.disk(DISK, small_region());
    simulation
        .run(async |world| {
            let disk = world.open_disk(Path::new(DISK)).unwrap();
            Nsd::format_with(&world, &disk, IDENTITY, small_options())
                .await
                .unwrap();
            let nsd = Nsd::open(&world, disk).await.unwrap();
            for number in 1..20 {
                nsd.put(blob(number, 9000)).await.unwrap();
            }
            nsd.close().await.unwrap();
        })
        .finished();
    (simulation, disk)
}

/// Offsets of the eight superblock copies.
fn copies() -> impl Iterator<Item = u64> {
    let back = small_region() - 4 * BLOCK as u64;
    let front = (0..4).map(|slot| slot * BLOCK as u64);
    front.clone().chain(front.map(move |at| back + at))
}

fn sequence(copy: &[u8]) -> u64 {
    u64::from_le_bytes(copy[16..24].try_into().unwrap())
}

async fn verify(world: &World) {
    let nsd = open(world).await.unwrap();
    for number in 1..20 {
        let got = nsd.get(name(number), 0, 9000).await.unwrap();
        assert_eq!(got, content(number, 9000));
    }
    nsd.close().await.unwrap();
}

#[test]
fn a_torn_superblock_opens_from_another_copy_and_scrub_mends_it() {
    for (seed, half) in [(1, 0..512), (2, 512..BLOCK), (3, 0..BLOCK)] {
        let (simulation, disk) = populated(seed);
        let newest = copies().map(|at| sequence(&disk.content(at, BLOCK))).max();
        let torn = copies().find(|at| newest == Some(sequence(&disk.content(*at, BLOCK))));
        let at = torn.unwrap() + half.start as u64;
        disk.overwrite(at, &vec![0xa5; half.len()]);
        simulation
            .run(async |world| {
                verify(&world).await;
                let nsd = open(&world).await.unwrap();
                nsd.scrub().await.unwrap();
                assert!(nsd.scrub().await.unwrap().mended.is_empty());
            })
            .finished();
    }
}

#[test]
fn a_region_of_a_newer_version_is_refused_with_what_to_do_and_left_as_it_is() {
    let (simulation, disk) = populated(4);
    for at in copies() {
        let mut copy = disk.content(at, BLOCK);
        copy[VERSION_AT] = 2;
        let crc = model::checksum::crc32c_without(&copy, CRC_AT);
        copy[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        disk.overwrite(at, &copy);
    }
    let before = disk.content(0, small_region() as usize);
    simulation
        .run(async |world| {
            let refused = open(&world).await.err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::NotSupported);
            let text = refused.to_string();
            assert!(
                text.contains("newer Shale") && text.contains("upgrade"),
                "{text}"
            );
            let disk = world.open_disk(Path::new(DISK)).unwrap();
            let refused = Nsd::rebuild_index(&world, disk.clone())
                .await
                .err()
                .unwrap();
            assert_eq!(refused.kind(), ErrorKind::NotSupported);
            let refused = Nsd::format(&world, &disk, IDENTITY).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NotSupported, "never formatted");
        })
        .finished();
    assert!(disk.content(0, small_region() as usize) == before);
}

#[test]
fn a_region_that_was_cut_short_or_erased_is_refused_and_left_as_it_is() {
    let (_, whole) = populated(5);
    for (bytes, erased, word) in [
        (small_region() / 2, false, "cut short"),
        (small_region(), true, "no NSD superblock"),
    ] {
        let simulation = Simulation::new(6);
        let disk = simulation.disk(DISK, bytes);
        if !erased {
            disk.overwrite(0, &whole.content(0, bytes as usize));
        }
        let before = disk.content(0, bytes as usize);
        simulation
            .run(async |world| {
                let refused = open(&world).await.err().unwrap();
                assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
                let text = refused.to_string();
                assert!(text.contains(word) && text.contains("nsd remove"), "{text}");
            })
            .finished();
        assert!(disk.content(0, bytes as usize) == before, "{word}");
    }
}

/// Would be broken if a region with blobs, whose superblocks are damaged, were taken for one that holds nothing, or if one that
/// was never prepared to its end couldn't be told from that: nobody would dare to remove it.
#[test]
fn a_region_is_unformatted_until_its_superblock_is_written() {
    let is_unformatted = |simulation: &Simulation| {
        simulation
            .run(async |world| {
                let disk = world.open_disk(Path::new(DISK)).unwrap();
                Nsd::is_unformatted(&disk).await
            })
            .finished()
    };
    let (simulation, disk) = populated(8);
    assert!(!is_unformatted(&simulation));
    let written: Vec<(u64, Vec<u8>)> = copies()
        .map(|at| (at, disk.content(at, BLOCK)))
        .filter(|(_, copy)| copy.iter().any(|byte| *byte != 0))
        .collect();
    assert!(written.len() > 1);
    let erase = || {
        for (at, _) in &written {
            disk.overwrite(*at, &[0; BLOCK]);
        }
    };
    erase();
    // All else that formatting writes is there.
    assert!(is_unformatted(&simulation));
    for (at, copy) in &written {
        disk.overwrite(*at, &copy[..BLOCK / 2]);
        assert!(!is_unformatted(&simulation), "a torn copy at byte {at}");
        erase();
    }
    // The region's file hadn't got all of its bytes.
    let simulation = Simulation::new(9);
    let disk = simulation.disk(DISK, 1 << 20);
    assert!(is_unformatted(&simulation));
    disk.overwrite((1 << 20) - 1, b"x");
    assert!(!is_unformatted(&simulation));
}

#[test]
fn identifying_a_region_changes_nothing() {
    let (simulation, disk) = populated(7);
    let before = disk.content(0, small_region() as usize);
    let found = simulation
        .run(async |world| {
            let disk = world.open_disk(Path::new(DISK)).unwrap();
            Nsd::identify(&disk).await.unwrap()
        })
        .finished();
    assert_eq!(found, NsdIdentity { ..IDENTITY });
    assert!(disk.content(0, small_region() as usize) == before);
}

#[test]
fn an_abandoned_nsd_can_be_opened_again_while_the_failed_one_is_still_held() {
    let (simulation, _) = populated(8);
    let faults = simulation.faults();
    simulation
        .run(async |world| {
            let old = open(&world).await.unwrap();
            faults.fail(DISK);
            assert!(old.put(blob(30, 9000)).await.is_err());
            assert_eq!(old.health(), NsdHealth::Failed);
            faults.heal(DISK);
            old.abandon().await;
            let new = open(&world).await.unwrap();
            new.put(blob(31, 9000)).await.unwrap();
            for refused in [
                old.put(blob(32, 9000)).await.err(),
                old.get(name(1), 0, 1).await.err(),
                old.checkpoint().await.err(),
                old.close().await.err(),
            ] {
                assert_eq!(refused.unwrap().kind(), ErrorKind::Unavailable);
            }
            drop(old);
            assert_eq!(new.get(name(31), 0, 9000).await.unwrap(), content(31, 9000));
            new.close().await.unwrap();
            drop(new);
            verify(&world).await;
        })
        .finished();
}
