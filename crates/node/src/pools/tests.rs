//! Maps of large pools stay small.

use coordination::{Coordination, EMBEDDED_REGION_BYTES};
use metanode::DATA_POOL;
use model::map::{NsdEntry, NsdState, PoolMap};
use model::{FailureGroupId, NsdId, Scheme};
use std::path::Path;
use world::sim::Simulation;

const WIDE: Scheme = Scheme::Erasure { k: 8, m: 2 };

fn entry(nsd: u32) -> NsdEntry {
    NsdEntry {
        nsd: NsdId(nsd),
        // Ten to a node.
        failure_group: FailureGroupId(nsd / 10),
        weight: 20_000,
        state: NsdState::Active,
    }
}

fn arrived(map: &PoolMap) -> PoolMap {
    let moving = placement::Groups::new(map).moving();
    placement::finish_moves(map, &moving)
}

/// The figures of `docs/formats/coordination.md`: coordination holds a mebibyte in all.
#[test]
fn the_map_of_a_thousand_nsds_is_small() {
    let simulation = Simulation::new(1);
    simulation
        .run(|world| async move {
            let disk = world
                .create_disk(Path::new("coordination"), EMBEDDED_REGION_BYTES)
                .unwrap();
            let coordination = Coordination::embedded(&world, disk).await.unwrap();
            let stored = async |map: &PoolMap| {
                let key = format!("pool/{DATA_POOL}");
                let before = coordination.get(&key).await.unwrap().found;
                let version = before.map_or(0, |fact| fact.version);
                let set = coordination.set_pool_map(DATA_POOL, version, map);
                set.await.unwrap();
                coordination
                    .get(&key)
                    .await
                    .unwrap()
                    .found
                    .unwrap()
                    .value
                    .len()
            };
            let map = placement::new_pool(WIDE, (1..=1000).map(entry).collect(), 7).unwrap();
            let fresh = stored(&map).await;
            assert!((10_000..20_000).contains(&fresh), "{fresh} bytes");
            // Twenty NSDs were lost and rebuilt elsewhere: 320 slots each.
            let worn = (1..=20).fold(map, |map, nsd| {
                arrived(&placement::mark_lost(&map, NsdId(nsd * 40)).unwrap())
            });
            let exceptions = worn.newest().exceptions.len();
            let worn_bytes = stored(&worn).await;
            assert!(exceptions >= 6_400, "{exceptions} slots differ");
            assert!(worn_bytes < fresh + exceptions * 16, "{worn_bytes} bytes");
            let changed = placement::new_generation(&worn, Scheme::Replicate(3), None, 1).unwrap();
            let changed_bytes = stored(&changed).await;
            assert!(changed_bytes < worn_bytes + 10_000, "{changed_bytes} bytes");
        })
        .finished();
}
