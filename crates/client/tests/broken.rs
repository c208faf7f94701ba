//! A complete file system on simulated disks while NSDs fail, come back or are slow, and when the
//! clock is set back.

use crate::rig::{Node, Place, content, file, name, read, settings};
use futures::future::join;
use metanode::CheckOptions;
use model::map::PoolMap;
use model::nsd::GroupFence;
use model::{ErrorKind, GroupId, GroupVersion, InodeId, NsdId, Scheme, SetAttributes};
use nsd::Nsd;
use std::time::Duration;
use world::sim::{Faults, Simulation};

fn place(scheme: Scheme, nsds: u32) -> Place {
    Place {
        nsds,
        scheme,
        ..Place::default()
    }
}

fn disk(place: &Place, nsd: u32) -> String {
    place.nsd(nsd).display().to_string()
}

/// Runs `scenario` in a new file system.
fn run<F: Future<Output = ()>>(
    seed: u64,
    place: Place,
    scenario: impl FnOnce(Node, Place, Faults) -> F,
) {
    let simulation = Simulation::new(seed);
    simulation.limit_time(Duration::from_secs(24 * 60 * 60));
    let faults = simulation.faults();
    simulation
        .run(|world| async move {
            Node::create(&world, &place).await;
            let node = Node::open(&world, &place, settings()).await;
            node.metanode.start_background();
            scenario(node, place, faults).await;
        })
        .finished();
}

/// What the daemon does when a failed NSD may be back.
async fn reopen(node: &Node, place: &Place, nsd: u32) {
    let failed = node.pool.nsd(NsdId(nsd)).unwrap();
    failed.abandon().await;
    let disk = node.world.open_disk(&place.nsd(nsd)).unwrap();
    node.pool
        .add_nsd(Nsd::open(&node.world, disk).await.unwrap());
}

async fn write_files(node: &Node, folder: &str, count: u64, seed: u64) -> Vec<(InodeId, u64)> {
    let mut files = Vec::new();
    for number in 0..count {
        let inode = file(&node.client, &format!("{folder}{number}")).await;
        let bytes = content(seed + number, 40_000 + 30_000 * number as usize);
        node.client.write(inode, 0, &bytes).await.unwrap();
        node.client.fsync(inode, false).await.unwrap();
        files.push((inode, seed + number));
    }
    files
}

async fn verify(node: &Node, files: &[(InodeId, u64)]) {
    for (index, (inode, seed)) in files.iter().enumerate() {
        let wanted = content(*seed, 40_000 + 30_000 * index);
        let found = read(&node.client, *inode, 0, wanted.len() + 1).await;
        assert!(found == wanted, "file {index} of seed {seed}");
    }
}

/// Gives repair, the log and widening of narrow segments time to finish.
async fn settle(node: &Node) {
    node.world.sleep(Duration::from_secs(120)).await;
    node.client.sync_all().await.unwrap();
    let report = node
        .metanode
        .check(CheckOptions { deep: true })
        .await
        .unwrap();
    assert!(report.is_clean(), "{:?}", report.faults);
}

#[test]
fn an_nsd_that_comes_back_gets_what_it_missed_and_serves_nothing_old() {
    for (seed, scheme, nsds) in [
        (1, Scheme::Replicate(2), 2),
        (2, Scheme::Replicate(2), 4),
        (3, Scheme::Erasure { k: 4, m: 2 }, 6),
    ] {
        run(seed, place(scheme, nsds), async |node, place, faults| {
            let before = write_files(&node, "before", 6, 100).await;
            faults.fail(&disk(&place, 1));
            // Overwritten, removed and created while it is away.
            for (inode, seed) in &before[..2] {
                let at = before.iter().position(|(other, _)| other == inode).unwrap();
                let bytes = content(seed + 500, 40_000 + 30_000 * at);
                node.client.write(*inode, 0, &bytes).await.unwrap();
                node.client.fsync(*inode, false).await.unwrap();
            }
            let mut now: Vec<_> = before[..4].to_vec();
            now[0].1 += 500;
            now[1].1 += 500;
            for (number, (inode, _)) in before.iter().enumerate().skip(4) {
                node.client.release(*inode).await;
                let name = name(&format!("before{number}"));
                node.client.unlink(InodeId::ROOT, name).await.unwrap();
            }
            let during = write_files(&node, "during", 6, 200).await;
            // Small files written together share a segment.
            let mut packed = Vec::new();
            for number in 0..6 {
                let inode = file(&node.client, &format!("packed{number}")).await;
                let bytes = content(400 + number, 9_000);
                node.client.write(inode, 0, &bytes).await.unwrap();
                packed.push((inode, bytes));
            }
            node.client.sync_all().await.unwrap();
            node.world.sleep(Duration::from_secs(40)).await;
            faults.heal(&disk(&place, 1));
            reopen(&node, &place, 1).await;
            verify(&node, &now).await;
            settle(&node).await;
            verify(&node, &now).await;
            verify(&node, &during).await;
            // All redundancy is back: as many other NSDs may fail as the scheme tolerates.
            let tolerance = scheme.tolerance() as u32;
            for nsd in 2..2 + tolerance {
                faults.fail(&disk(&place, nsd));
            }
            verify(&node, &now).await;
            verify(&node, &during).await;
            for (inode, bytes) in &packed {
                assert!(
                    read(&node.client, *inode, 0, 9_001).await == *bytes,
                    "packed"
                );
            }
            let last = write_files(&node, "last", 2, 300).await;
            verify(&node, &last).await;
        });
    }
}

#[test]
fn the_only_nsd_may_fail_and_come_back_and_nothing_that_was_written_is_lost() {
    run(
        4,
        place(Scheme::Replicate(1), 1),
        async |node, place, faults| {
            let before = write_files(&node, "before", 4, 100).await;
            let late = file(&node.client, "late").await;
            node.client.sync_all().await.unwrap();
            node.client
                .write(late, 0, &content(9, 50_000))
                .await
                .unwrap();
            faults.fail(&disk(&place, 1));
            let told = node.client.fsync(late, false).await.unwrap_err();
            assert_eq!(told.errno(), 5, "EIO: {told}");
            let refused = node.client.read(before[0].0, 0, 100).await;
            if let Err(error) = refused {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            }
            node.world.sleep(Duration::from_secs(30)).await;
            faults.heal(&disk(&place, 1));
            reopen(&node, &place, 1).await;
            node.world.sleep(Duration::from_secs(30)).await;
            node.client.fsync(late, false).await.unwrap();
            assert_eq!(
                read(&node.client, late, 0, 50_000).await,
                content(9, 50_000)
            );
            verify(&node, &before).await;
            settle(&node).await;
        },
    );
}

#[test]
fn a_slow_nsd_delays_no_operation_for_long_and_writes_continue() {
    run(
        5,
        place(Scheme::Erasure { k: 4, m: 2 }, 6),
        async |node, place, faults| {
            let before = write_files(&node, "before", 6, 100).await;
            faults.slow(&disk(&place, 3), Duration::from_secs(20));
            let begun = node.world.now();
            let during = write_files(&node, "during", 6, 200).await;
            verify(&node, &before).await;
            verify(&node, &during).await;
            let took = node.world.now() - begun;
            assert!(took < Duration::from_secs(60), "12 files took {took:?}");
            faults.heal(&disk(&place, 3));
            settle(&node).await;
        },
    );
}

/// Would be broken if what has as many copies as survive four losses couldn't be read back: short files, and tables of the
/// metadata, without which there is no file system after a restart.
#[test]
fn a_pool_that_survives_four_losses_is_there_after_a_restart() {
    let of_four = place(Scheme::Erasure { k: 2, m: 4 }, 6);
    run(8, of_four, async |node, place, _faults| {
        let before = write_files(&node, "before", 2, 400).await;
        node.client.sync_all().await.unwrap();
        let world = node.world.clone();
        node.close().await;
        let node = Node::open(&world, &place, settings()).await;
        verify(&node, &before).await;
        let after = write_files(&node, "after", 2, 500).await;
        verify(&node, &after).await;
        node.check_and_close().await;
    });
}

/// A map with newer versions of all groups, of which all NSDs have heard. The pool hasn't.
async fn newer_map(node: &Node) -> PoolMap {
    let mut newer = (*node.pool.map()).clone();
    let groups: Vec<GroupId> = newer.all_groups().collect();
    newer.epoch = newer.epoch.next();
    let versions = &mut newer.generations[0].versions;
    for group in &groups {
        let version = versions.entry(group.0).or_insert(GroupVersion::FIRST);
        *version = version.next();
    }
    let fence = |group: GroupId| GroupFence {
        group,
        version: newer.version(group),
    };
    let fences: Vec<GroupFence> = groups.into_iter().map(fence).collect();
    for entry in &newer.nsds {
        let nsd = node.pool.nsd(entry.nsd).unwrap();
        nsd.learn_groups(&fences).await.unwrap();
    }
    newer
}

/// Would be broken if a program heard of maps, by ESTALE, when its node has an old one for half a minute; or of anything at
/// all if the newer one comes soon.
#[test]
fn who_syncs_while_the_node_has_an_old_map_sees_a_pause_and_then_eio() {
    run(
        7,
        place(Scheme::Replicate(2), 3),
        async |node, _place, _faults| {
            let inode = file(&node.client, "f").await;
            let newer = newer_map(&node).await;
            let first = content(71, 100_000);
            node.client.write(inode, 0, &first).await.unwrap();
            let comes = async {
                node.world.sleep(Duration::from_secs(45)).await;
                node.pool.set_map(newer).await.unwrap();
            };
            let (synced, ()) = join(node.client.fsync(inode, false), comes).await;
            synced.unwrap();
            let newer = newer_map(&node).await;
            let second = content(72, 100_000);
            node.client.write(inode, 0, &second).await.unwrap();
            let late = node.client.fsync(inode, false).await.unwrap_err();
            assert_eq!(late.errno(), 5, "EIO: {late}");
            node.pool.set_map(newer).await.unwrap();
            // An attempt by the old map, of which the next fsync would tell, is under way still.
            node.world.sleep(Duration::from_secs(45)).await;
            node.client.fsync(inode, false).await.unwrap();
            assert!(read(&node.client, inode, 0, 100_001).await == second);
        },
    );
}

#[test]
fn times_never_go_back_when_the_clock_is_set_back() {
    run(
        6,
        place(Scheme::Replicate(1), 1),
        async |node, place, faults| {
            let day = Duration::from_secs(24 * 60 * 60);
            let inode = file(&node.client, "f").await;
            node.client.write(inode, 0, b"before").await.unwrap();
            node.client.fsync(inode, false).await.unwrap();
            let first = node.client.get_attributes(inode).await.unwrap();
            let epoch = node.metanode.shard_status().epoch;
            faults.set_clock_back(day);
            node.client.write(inode, 0, b"behind").await.unwrap();
            node.client.fsync(inode, false).await.unwrap();
            let second = node.client.get_attributes(inode).await.unwrap();
            assert!(second.mtime >= first.mtime && second.ctime >= first.ctime);
            let set = SetAttributes {
                mode: Some(0o600),
                ..SetAttributes::default()
            };
            let third = node.client.set_attributes(inode, set).await.unwrap();
            assert!(third.ctime > second.ctime && third.mtime >= second.mtime);
            assert!(node.metanode.hosted().tree().log().clock_lag() > day / 2);
            let world = node.world.clone();
            node.close().await;
            // Epochs, sessions and the log continue; nothing waits for the clock to catch up.
            let begun = world.now();
            let node = Node::open(&world, &place, settings()).await;
            assert!(world.now() - begun < Duration::from_secs(10));
            assert!(node.metanode.shard_status().epoch > epoch);
            let fourth = node.client.get_attributes(inode).await.unwrap();
            assert_eq!((fourth.mtime, fourth.ctime), (third.mtime, third.ctime));
            node.client.write(inode, 0, b"after!").await.unwrap();
            node.client.fsync(inode, false).await.unwrap();
            let fifth = node.client.get_attributes(inode).await.unwrap();
            assert!(fifth.mtime >= fourth.mtime && fifth.ctime >= fourth.ctime);
            assert!(
                node.metanode
                    .check(CheckOptions::default())
                    .await
                    .unwrap()
                    .is_clean()
            );
            node.close().await;
        },
    );
}

/// Neighbouring pieces in a segment are read with the overwritten bytes between them. Those may be
/// damaged without any loss.
#[test]
fn damage_between_the_pieces_of_a_segment_hides_none_of_them() {
    const UNIT: usize = 4096;
    const PIECES: usize = 40;
    let place = place(Scheme::Replicate(1), 1);
    let simulation = Simulation::new(61);
    let old = content(61, 2 * PIECES * UNIT);
    let mut now = old.clone();
    let new = content(62, UNIT);
    for unit in (0..PIECES).map(|number| (2 * number + 1) * UNIT) {
        now[unit..unit + UNIT].copy_from_slice(&new);
    }
    let inode = simulation.run(|world| {
        let (place, old, new) = (&place, &old, &new);
        async move {
            Node::create(&world, place).await;
            let node = Node::open(&world, place, settings()).await;
            let inode = file(&node.client, "f").await;
            node.client.write(inode, 0, old).await.unwrap();
            node.client.fsync(inode, false).await.unwrap();
            for number in 0..PIECES {
                let at = (2 * number + 1) * UNIT;
                node.client.write(inode, at as u64, new).await.unwrap();
            }
            node.client.fsync(inode, false).await.unwrap();
            node.close().await;
            inode
        }
    });
    let inode = inode.finished();
    let name = disk(&place, 1);
    let disk = simulation.disk(&name, place.nsd_bytes);
    // An overwritten unit in the middle of the first block.
    let overwritten = &old[7 * UNIT..8 * UNIT];
    let damaged = (0..place.nsd_bytes)
        .step_by(UNIT)
        .find(|at| disk.content(*at, UNIT) == *overwritten);
    let damaged = damaged.expect("the segment keeps its overwritten bytes");
    let faults = simulation.faults();
    faults.flip_bit(&name, damaged);
    simulation
        .run(|world| {
            let (place, now) = (&place, &now);
            async move {
                let node = Node::open(&world, place, settings()).await;
                assert!(read(&node.client, inode, 0, now.len()).await == *now);
            }
        })
        .finished();
}
