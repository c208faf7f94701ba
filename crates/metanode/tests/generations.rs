//! A pool changes its scheme while files are used, shared, checked, and while the power is cut.

use crate::rig::{self, Rig, pattern};
use model::map::GroupStanding;
use model::operation::Publish;
use model::{ErrorKind, Extent, GroupId, InodeId, NsdId, Operation, Scheme, SegmentPlace, ShardId};
use std::collections::BTreeMap;
use std::time::Duration;
use world::World;
use world::sim::{Simulation, for_every_cut};

const ROOT: InodeId = InodeId::ROOT;
const FILES: u64 = 10;
const FILE_BYTES: usize = 300_000;
/// Files that are written while an NSD is away.
const AWAY_FILES: u64 = 70;
/// Files with more segments than an owner rewrites at once.
const MANY_FILES: u64 = 150;
const WIDE: Scheme = Scheme::Erasure { k: 4, m: 2 };

/// A pool of one NSD with files, to which five more are added.
async fn grown(world: &World) -> Rig {
    rig::create(world, Scheme::Replicate(1), 1).await;
    let rig = rig::open(world).await;
    for number in 0..FILES {
        let file = rig.file(ROOT, &format!("f{number}")).await;
        rig.write(file, 0, &pattern(number, FILE_BYTES)).await;
    }
    for nsd in 2..=6 {
        rig::format(world, nsd).await;
        rig.pool.add_nsd(rig::open_nsd(world, nsd).await.unwrap());
        rig.change_map(|map| placement::add_nsd(map, rig::entry(nsd)).unwrap())
            .await;
    }
    rig
}

async fn change(rig: &Rig, scheme: Scheme) {
    let seed = rig.pool.map().epoch.0;
    rig.change_map(|map| placement::new_generation(map, scheme, None, seed).unwrap())
        .await;
}

/// Background work until the pool has only its newest generation; false if it keeps others.
async fn emptied(rig: &Rig, rounds: usize) -> bool {
    for _ in 0..rounds {
        rig.metanode.run_background_once().await.unwrap();
        if rig.pool.map().closed().is_empty() {
            return true;
        }
        rig.world.sleep(Duration::from_secs(3)).await;
    }
    false
}

async fn must_have_files(rig: &Rig) {
    for number in 0..FILES {
        let file = rig.look(ROOT, &format!("f{number}")).await.unwrap();
        let content = rig.read(file.inode).await.unwrap();
        assert!(content == pattern(number, FILE_BYTES), "file {number}");
    }
}

/// No blob is in a group that isn't in the map, and no segment has the old scheme.
async fn must_be_in(rig: &Rig, scheme: Scheme) {
    let map = rig.pool.map();
    assert_eq!(map.scheme(), scheme);
    for entry in &map.nsds {
        let groups = rig.pool.groups_on(entry.nsd).await.unwrap();
        let known = |group: &GroupId| map.standing(*group) == GroupStanding::Known;
        assert!(groups.iter().all(known), "NSD {}: {groups:?}", entry.nsd);
    }
    for group in map.all_groups() {
        let survey = rig.pool.survey(group, None, 10_000).await.unwrap();
        for segment in survey.segments {
            let found = segment.place.scheme;
            assert_eq!(found.tolerance(), scheme.tolerance(), "{:?}", segment.place);
        }
    }
}

#[test]
fn a_pool_changes_its_scheme_and_back_and_no_segment_keeps_the_old_one() {
    let simulation = Simulation::new(60);
    simulation
        .run(|world| async move {
            let rig = grown(&world).await;
            change(&rig, WIDE).await;
            assert!(!rig.metanode.repair_status().complete);
            must_have_files(&rig).await;
            assert!(emptied(&rig, 100).await);
            must_be_in(&rig, WIDE).await;
            must_have_files(&rig).await;
            rig.must_be_clean("wide").await;
            assert!(rig.metanode.repair_status().complete);
            change(&rig, Scheme::Replicate(2)).await;
            assert!(emptied(&rig, 100).await);
            must_be_in(&rig, Scheme::Replicate(2)).await;
            must_have_files(&rig).await;
            rig.must_be_clean("two copies").await;
            rig.close().await;
        })
        .finished();
}

/// Would be broken if what two files share were only moved for one of them.
#[test]
fn data_that_files_share_is_moved_for_all_of_them() {
    let simulation = Simulation::new(61);
    simulation
        .run(|world| async move {
            let rig = grown(&world).await;
            let (a, b) = (
                rig.look(ROOT, "f1").await.unwrap().inode,
                rig.file(ROOT, "b").await,
            );
            let share = Operation::Share {
                from: a,
                from_offset: 0,
                to: b,
                to_offset: 0,
                length: 100_000,
            };
            rig.run(share).await.unwrap();
            rig.unlink(ROOT, "f1").await;
            change(&rig, WIDE).await;
            assert!(emptied(&rig, 100).await);
            must_be_in(&rig, WIDE).await;
            assert!(rig.read(b).await.unwrap() == pattern(1, FILE_BYTES)[..100_000]);
            rig.must_be_clean("moved").await;
            rig.close().await;
        })
        .finished();
}

fn publish(inode: InodeId, place: SegmentPlace) -> Operation {
    let length = u64::from(place.length);
    let extent = Extent::of_segment(0, place);
    Operation::Publish(Publish {
        inode,
        extents: vec![extent],
        size_at_least: length,
        written: None,
        replaces: None,
    })
}

/// Would be broken if a writer with an older map could name a segment in groups that a shard has left.
#[test]
fn a_publish_into_groups_that_the_shard_has_left_is_refused() {
    let simulation = Simulation::new(62);
    let late = simulation
        .run(|world| async move {
            let rig = grown(&world).await;
            let file = rig.file(ROOT, "late").await;
            let bytes = pattern(77, 50_000);
            let place = rig.segment(file, 0, &bytes).await;
            change(&rig, WIDE).await;
            // Its writer's session is open: its blobs keep the generation.
            assert!(!emptied(&rig, 30).await);
            let floor = rig.coordination.floor(ShardId(0)).await.unwrap();
            assert_eq!(floor, rig.pool.map().newest().first_group);
            let refused = rig.run(publish(file, place)).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Stale);
            rig.close().await;
            (file, place)
        })
        .finished();
    simulation
        .run(|world| async move {
            let rig = rig::open(&world).await;
            // The owners after keep to it.
            let (file, place) = late;
            let segment = rig.source.next();
            let late = publish(file, SegmentPlace { segment, ..place });
            let refused = rig.run(late).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Stale);
            // The writer's session has ended: what it never published is garbage.
            assert!(emptied(&rig, 100).await);
            must_be_in(&rig, WIDE).await;
            must_have_files(&rig).await;
            rig.close().await;
        })
        .finished();
}

#[test]
fn a_generation_stays_while_an_nsd_that_has_its_blobs_is_away() {
    let simulation = Simulation::new(63);
    simulation
        .run(|world| async move {
            let rig = grown(&world).await;
            rig.settle().await;
            change(&rig, Scheme::Replicate(2)).await;
            let away = rig.pool.remove_nsd(NsdId(5)).unwrap();
            assert!(!emptied(&rig, 30).await);
            rig.pool.add_nsd(away);
            assert!(emptied(&rig, 100).await);
            must_be_in(&rig, Scheme::Replicate(2)).await;
            must_have_files(&rig).await;
            rig.must_be_clean("it is back").await;
            rig.close().await;
        })
        .finished();
}

#[test]
fn a_power_cut_while_a_pool_changes_its_scheme_loses_nothing() {
    for_every_cut(64, 60, |simulation| {
        let mut is_grown = false;
        for _ in 0..3 {
            if !is_grown {
                let made = simulation.run(|world| async move {
                    let rig = grown(&world).await;
                    rig.settle().await;
                    rig.close().await;
                });
                if made.is_crashed() {
                    // That is tested elsewhere.
                    return;
                }
                is_grown = true;
            }
            let moved = simulation.run(|world| async move {
                let rig = rig::open(&world).await;
                if rig.pool.map().scheme() != WIDE {
                    change(&rig, WIDE).await;
                }
                assert!(emptied(&rig, 100).await);
                must_be_in(&rig, WIDE).await;
                must_have_files(&rig).await;
                rig.must_be_clean("moved").await;
                rig.close().await;
            });
            if !moved.is_crashed() {
                return;
            }
        }
        panic!("a cut happens once");
    });
}

/// Bytes of pieces on each NSD, and the greatest difference from the mean, in thousandths.
async fn uneven(rig: &Rig) -> (BTreeMap<NsdId, u64>, u64) {
    let map = rig.pool.map();
    let mut bytes: BTreeMap<NsdId, u64> = map.nsds.iter().map(|it| (it.nsd, 0)).collect();
    for group in map.all_groups() {
        for found in rig.pool.survey(group, None, 10_000).await.unwrap().segments {
            let length = placement::layout::piece_length(found.place.scheme, found.place.length);
            for (_, nsd) in found.present {
                *bytes.entry(nsd).or_default() += u64::from(length);
            }
        }
    }
    let mean = bytes.values().sum::<u64>() / bytes.len() as u64;
    let most = bytes.values().map(|it| it.abs_diff(mean)).max().unwrap();
    (bytes, most * 1000 / mean)
}

/// Files that were written while an NSD of eight was away, which is back.
async fn written_without_one(world: &World) -> Rig {
    rig::create(world, WIDE, 8).await;
    let rig = rig::open_without(world, &[3]).await;
    // What is rewritten goes into small segments: equal shares of little data.
    rig.change_map(|map| placement::with_block_bytes(map, 64 * 1024))
        .await;
    for number in 0..AWAY_FILES {
        let file = rig.file(ROOT, &format!("f{number}")).await;
        let length = FILE_BYTES + number as usize * 10_000;
        rig.write(file, 0, &pattern(number, length)).await;
    }
    rig.pool.add_nsd(rig::open_nsd(world, 3).await.unwrap());
    rig
}

/// Would be broken if data stayed where it was written, or moved again and again.
#[test]
fn an_nsd_that_was_away_gets_its_share_of_what_was_written() {
    let simulation = Simulation::new(62);
    simulation
        .run(|world| async move {
            let rig = written_without_one(&world).await;
            rig.settle().await;
            let (bytes, uneven) = uneven(&rig).await;
            assert!(uneven <= 100, "{uneven} thousandths: {bytes:?}");
            assert!(rig.metanode.repair_status().complete);
            for number in 0..AWAY_FILES {
                let file = rig.look(ROOT, &format!("f{number}")).await.unwrap();
                let length = FILE_BYTES + number as usize * 10_000;
                assert!(rig.read(file.inode).await.unwrap() == pattern(number, length));
            }
            let done = rig.metanode.counters().segments_deleted;
            for _ in 0..20 {
                world.sleep(Duration::from_secs(60)).await;
                let report = rig.metanode.run_background_once().await.unwrap();
                assert_eq!(report.steps, 0, "it is even");
            }
            assert_eq!(rig.metanode.counters().segments_deleted, done);
            rig.must_be_clean("even").await;
            rig.close().await;
        })
        .finished();
}

/// Would be broken if moving was tried for ever, or made copies of what files share.
#[test]
fn what_files_share_stays_where_it_is_and_moving_ends() {
    let simulation = Simulation::new(63);
    simulation
        .run(|world| async move {
            let rig = written_without_one(&world).await;
            for number in 0..AWAY_FILES {
                let (from, to) = (format!("f{number}"), format!("g{number}"));
                let (from, to) = (
                    rig.look(ROOT, &from).await.unwrap().inode,
                    rig.file(ROOT, &to).await,
                );
                let length = (FILE_BYTES + number as usize * 10_000) as u64;
                let share = Operation::Share {
                    from,
                    from_offset: 0,
                    to,
                    to_offset: 0,
                    length,
                };
                rig.run(share).await.unwrap();
            }
            let (_, before) = uneven(&rig).await;
            rig.settle().await;
            let (bytes, after) = uneven(&rig).await;
            assert!(after + 100 > before, "{after} after {before}: {bytes:?}");
            assert!(rig.metanode.repair_status().complete);
            let written = rig.metanode.counters().segments_cleaned;
            for _ in 0..20 {
                world.sleep(Duration::from_secs(60)).await;
                let report = rig.metanode.run_background_once().await.unwrap();
                assert_eq!(report.steps, 0, "nothing can be moved");
            }
            assert_eq!(rig.metanode.counters().segments_cleaned, written);
            rig.must_be_clean("shared").await;
            rig.close().await;
        })
        .finished();
}

/// Would be broken if nobody could see how much of a change of the scheme is left, or if that began to be told before it
/// was known.
#[test]
fn what_is_left_to_rewrite_is_counted_first_and_goes_down_to_nothing() {
    let simulation = Simulation::new(66);
    simulation
        .run(|world| async move {
            let rig = grown(&world).await;
            for number in 0..MANY_FILES {
                let file = rig.file(ROOT, &format!("m{number}")).await;
                rig.write(file, 0, &pattern(number, 20_000)).await;
            }
            change(&rig, WIDE).await;
            assert_eq!(rig.metanode.moves().to_rewrite, None, "nobody has counted");
            rig.metanode.start_background();
            let mut seen = Vec::new();
            for _ in 0..60_000 {
                let left = rig.metanode.moves().to_rewrite;
                if let Some(left) = left.filter(|it| seen.last() != Some(it)) {
                    seen.push(left);
                }
                if left == Some(0) {
                    break;
                }
                world.sleep(Duration::from_millis(1)).await;
            }
            assert!(seen.first() >= Some(&MANY_FILES), "{seen:?}");
            assert!(seen.len() > 2, "no progress was shown: {seen:?}");
            assert!(seen.is_sorted_by(|a, b| a > b), "{seen:?}");
            assert_eq!(seen.last(), Some(&0));
            must_have_files(&rig).await;
            rig.close().await;
        })
        .finished();
}
