//! Slots move to added NSDs while files are used and checked and the power is cut.

use crate::rig::{self, Rig, pattern};
use crate::space::Away;
use coordination::ShardRecord;
use metanode::CheckOptions;
use model::map::{NsdState, PoolMap};
use model::nsd::GroupFence;
use model::{ErrorKind, FamilyId, GroupId, GroupVersion, InodeId, NsdId, Scheme, ShardId};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use world::World;
use world::sim::{Simulation, for_every_cut};

const ROOT: InodeId = InodeId::ROOT;
const FILES: u64 = 12;

async fn with_files(world: &World) -> Rig {
    with_files_in(world, Scheme::Replicate(2)).await
}

async fn with_files_in(world: &World, scheme: Scheme) -> Rig {
    rig::create(world, scheme, 2).await;
    let rig = rig::open(world).await;
    for number in 0..FILES {
        let file = rig.file(ROOT, &format!("f{number}")).await;
        rig.write(file, 0, &pattern(number, 50_000)).await;
    }
    rig.settle().await;
    rig
}

async fn must_have_files(rig: &Rig) {
    for number in 0..FILES {
        let file = rig.look(ROOT, &format!("f{number}")).await.unwrap();
        let content = rig.read(file.inode).await.unwrap();
        assert_eq!(content, pattern(number, 50_000));
    }
}

/// Adds an NSD to the pool, to which others move slots.
async fn add(rig: &Rig, nsd: u32) {
    rig.pool
        .add_nsd(rig::open_nsd(&rig.world, nsd).await.unwrap());
    if rig.pool.map().nsd(NsdId(nsd)).is_none() {
        rig.change_map(|map| placement::change::add_nsd(map, rig::entry(nsd)).unwrap())
            .await;
    }
}

/// NSDs, with the groups whose blobs they hold without being members.
async fn strangers(rig: &Rig) -> Vec<(NsdId, GroupId)> {
    let groups = rig.pool.groups();
    let mut found = Vec::new();
    for state in rig.pool.nsd_states() {
        let nsd = state.entry.nsd;
        for group in groups.all() {
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
                assert!(checks > 1, "checks ran while slots moved: {checks}");
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
        // The cut may hit creation, moving or recovery.
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
                must_have_files(&rig).await;
                rig.close().await;
            });
            if !moved.is_crashed() {
                return;
            }
        }
        panic!("a cut happens once");
    });
}

#[test]
fn a_drained_nsd_is_given_up_when_others_have_what_only_it_had() {
    let simulation = Simulation::new(42);
    simulation
        .run(|world| async move {
            let rig = with_files_in(&world, Scheme::Replicate(1)).await;
            let log = rig.metanode.hosted().tree().log().view();
            let drained = NsdId(3 - log[0].0);
            // As if a crash had come after its slots moved and before it had handed everything
            // over, and it had been away then.
            let slots = rig.pool.groups().slots_of(drained);
            let nsd = rig.pool.remove_nsd(drained).unwrap();
            rig.change_map(|map| {
                let draining = placement::change::drain(map, drained).unwrap();
                let moving = placement::Groups::new(&draining).moving();
                placement::change::finish_moves(&draining, &moving)
            })
            .await;
            rig.pool.add_nsd(nsd.clone());
            let blobs = || rig.pool.nsd(drained).unwrap().usage().blobs;
            assert!(blobs() > 2);
            rig.metanode.start_background();
            let is_lost = |map: &PoolMap| map.nsd(drained).unwrap().state == NsdState::Lost;
            let begun = world.now();
            while !is_lost(&rig.pool.map()) {
                assert!(world.now() - begun < Duration::from_secs(60));
                world.sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(blobs(), 0);
            // Nothing that nobody looks for can come by an older map.
            let version = GroupVersion::FIRST;
            for (group, _) in slots {
                let late = nsd.learn_group(GroupFence { group, version }).await;
                assert_eq!(late.unwrap_err().kind(), ErrorKind::OldEpoch);
            }
            must_have_files(&rig).await;
            rig.close().await;
        })
        .finished();
}

/// An NSD whose slots have moved away, and that stays in use because another shard has its log there.
struct Drained {
    nsd: NsdId,
    /// The record of the other shard, with its log elsewhere, and the version of the one that there is.
    elsewhere: ShardRecord,
    version: u64,
}

impl Drained {
    async fn of(rig: &Rig) -> Self {
        let log = rig.metanode.hosted().tree().log().view();
        let nsd = NsdId(3 - log[0].0);
        // Another shard, which an owner on another node has.
        let first = rig.coordination.shard(ShardId(0)).await.unwrap().unwrap();
        let mut elsewhere = ShardRecord {
            shard: ShardId(1),
            families: vec![FamilyId(1)],
            view: vec![nsd],
            ..first.value
        };
        let version = rig.coordination.set_shard(0, &elsewhere).await.unwrap();
        elsewhere.view = log;
        rig.change_map(|map| placement::change::drain(map, nsd).unwrap())
            .await;
        let drained = Self {
            nsd,
            elsewhere,
            version,
        };
        do_rounds(rig).await;
        assert!(rig.pool.groups().slots_of(nsd).is_empty());
        assert!(!drained.is_lost(rig), "it has a log");
        drained
    }

    /// The other shard's log leaves it.
    async fn move_log(&self, rig: &Rig) {
        let changed = rig.coordination.set_shard(self.version, &self.elsewhere);
        changed.await.unwrap();
    }

    fn is_lost(&self, rig: &Rig) -> bool {
        rig.pool.map().nsd(self.nsd).unwrap().state == NsdState::Lost
    }
}

/// Does what background work does in twenty minutes.
async fn do_rounds(rig: &Rig) {
    do_so_many_rounds(rig, 20).await;
}

/// Does what background work does in so many minutes.
async fn do_so_many_rounds(rig: &Rig, minutes: u32) {
    for _ in 0..minutes {
        rig.metanode.run_background_once().await.unwrap();
        rig.world.sleep(Duration::from_secs(61)).await;
    }
}

#[test]
fn a_drained_nsd_stays_while_another_shard_has_its_log_there() {
    let simulation = Simulation::new(19);
    simulation
        .run(|world| async move {
            let rig = with_files_in(&world, Scheme::Replicate(1)).await;
            let drained = Drained::of(&rig).await;
            drained.move_log(&rig).await;
            do_rounds(&rig).await;
            assert!(drained.is_lost(&rig));
            must_have_files(&rig).await;
            rig.close().await;
        })
        .finished();
}

/// Would be broken if an NSD that nobody reaches counted as empty: its node doesn't open it any more when it is back.
#[test]
fn a_drained_nsd_is_not_given_up_while_its_node_is_away() {
    let simulation = Simulation::new(20);
    simulation
        .run(|world| async move {
            let rig = with_files_in(&world, Scheme::Replicate(1)).await;
            let drained = Drained::of(&rig).await;
            let nsd = rig.pool.nsd(drained.nsd).unwrap();
            rig.pool.add_remote_nsd(drained.nsd, Arc::new(Away));
            drained.move_log(&rig).await;
            do_so_many_rounds(&rig, 5).await;
            assert!(!drained.is_lost(&rig), "nobody knows what it has");
            // So it is if nobody knows where it is.
            rig.pool.remove_nsd(drained.nsd);
            do_so_many_rounds(&rig, 5).await;
            assert!(!drained.is_lost(&rig), "nobody knows what it has");
            rig.pool.add_nsd(nsd);
            do_so_many_rounds(&rig, 5).await;
            assert!(drained.is_lost(&rig));
            must_have_files(&rig).await;
            rig.close().await;
        })
        .finished();
}
