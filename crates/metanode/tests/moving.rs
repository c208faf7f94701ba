//! Slots move to NSDs that were added while files are used, checked and the power is cut.

#![allow(clippy::unwrap_used, reason = "tests")]

mod rig;

use metanode::CheckOptions;
use model::{GroupId, InodeId, NsdId, Scheme};
use rig::{Rig, pattern};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use world::World;
use world::sim::{Simulation, for_every_cut};

const ROOT: InodeId = InodeId::ROOT;
const FILES: u64 = 12;

async fn with_files(world: &World) -> Rig {
    rig::create(world, Scheme::Replicate(2), 2).await;
    let rig = rig::open(world).await;
    for number in 0..FILES {
        let file = rig.file(ROOT, &format!("f{number}")).await;
        rig.write(file, 0, &pattern(number, 50_000)).await;
    }
    rig.settle().await;
    rig
}

/// The pool gets an NSD, which others move slots to.
async fn add(rig: &Rig, nsd: u32) {
    rig.pool
        .add_nsd(rig::open_nsd(&rig.world, nsd).await.unwrap());
    let fact = rig.coordination.pool_map(metanode::DATA_POOL).await;
    let fact = fact.unwrap().unwrap();
    if fact.value.nsds.iter().any(|entry| entry.nsd == NsdId(nsd)) {
        return;
    }
    let next = placement::change::add_nsd(&fact.value, rig::entry(nsd)).unwrap();
    rig.coordination
        .set_pool_map(metanode::DATA_POOL, fact.version, &next)
        .await
        .unwrap();
    rig.pool.set_map(next).await.unwrap();
}

/// NSDs and the groups that they hold blobs of without being a member.
async fn strangers(rig: &Rig) -> Vec<(NsdId, GroupId)> {
    let groups = rig.pool.groups();
    let mut found = Vec::new();
    for state in rig.pool.nsd_states() {
        let nsd = state.entry.nsd;
        for group in (0..groups.count()).map(GroupId) {
            if !groups.is_member(nsd, group)
                && !rig.pool.list(nsd, group, None, 1).await.unwrap().is_empty()
            {
                found.push((nsd, group));
            }
        }
    }
    found
}

#[test]
fn a_check_while_slots_move_finds_nothing() {
    for seed in 0..8 {
        let simulation = Simulation::new(40 + seed);
        simulation
            .run(|world| async move {
                let rig = with_files(&world).await;
                for nsd in [3, 4] {
                    rig::format(&world, nsd).await;
                    add(&rig, nsd).await;
                }
                let has_moved = AtomicBool::new(false);
                let moving = async {
                    rig.settle().await;
                    has_moved.store(true, Ordering::SeqCst);
                };
                let checking = async {
                    let mut checks = 0;
                    while !has_moved.load(Ordering::SeqCst) {
                        let report = rig.metanode.check(CheckOptions { deep: false }).await;
                        let report = report.unwrap();
                        assert!(report.is_clean(), "seed {seed}: {:#?}", report.faults);
                        checks += 1;
                    }
                    checks
                };
                let ((), checks) = futures::future::join(moving, checking).await;
                assert!(checks > 1, "checks went on while slots moved: {checks}");
                assert!(rig.metanode.repair_status().complete);
                rig.must_be_clean("moved").await;
            })
            .finished();
    }
}

#[test]
fn a_power_cut_while_slots_move_leaves_nothing_where_they_left() {
    for_every_cut(41, 80, |simulation| {
        let mut has_files = false;
        // The cut may hit the making, the moving or the recovery.
        for _ in 0..3 {
            if !has_files {
                let made = simulation.run(|world| async move {
                    let rig = with_files(&world).await;
                    rig::format(&world, 3).await;
                    rig.close().await;
                });
                if made.is_crashed() {
                    // That is tested elsewhere.
                    return;
                }
                has_files = true;
            }
            let moved = simulation.run(|world| async move {
                let rig = rig::open(&world).await;
                if world.open_disk(Path::new("nsd3")).is_ok() {
                    add(&rig, 3).await;
                }
                rig.must_be_clean("moved").await;
                assert_eq!(strangers(&rig).await, []);
                assert_eq!(rig.pool.repair_progress().moving_slots, 0);
                for number in 0..FILES {
                    let file = rig.look(ROOT, &format!("f{number}")).await.unwrap();
                    let content = rig.read(file.inode).await.unwrap();
                    assert_eq!(content, pattern(number, 50_000));
                }
                rig.close().await;
            });
            if !moved.is_crashed() {
                return;
            }
        }
        panic!("a cut happens once");
    });
}
