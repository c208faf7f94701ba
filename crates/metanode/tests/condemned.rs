//! No blob is deleted before a durable commit of the owner condemns its segment.

use crate::rig::{self, FAMILY, Rig, pattern};
use model::{InodeId, Scheme, SegmentId};
use namespace::{Key, Record, Table};
use pool::SegmentOwner;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use world::sim::Simulation;

const ROOT: InodeId = InodeId::ROOT;

/// The dead segments in the shard's records whose death is durable.
async fn condemned(rig: &Rig) -> Vec<SegmentId> {
    let shard = rig.metanode.hosted();
    let (from, to) = Table::Deads.range();
    let rows = shard.scan(&from, &to, 1024).await.unwrap();
    let durable = shard.durable();
    let dead = rows.into_iter().filter_map(|(key, record)| match record {
        Record::Dead(dead) if dead.died <= durable => Some(key),
        _ => None,
    });
    dead.map(|key| match key {
        Key::Dead(segment) => segment,
        other => panic!("{other:?} is not in this table"),
    })
    .collect()
}

#[test]
fn damaged_garbage_is_condemned_before_a_scrub_deletes_it() {
    let simulation = Simulation::new(61);
    let written = Arc::new(Mutex::new(None));
    let place = written.clone();
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let owner = SegmentOwner {
                family: FAMILY,
                inode: model::InodeNumber(99),
                data: model::DataId(99),
                file_offset: 0,
            };
            let bytes = bytes::Bytes::from(pattern(5, 9000));
            let unpublished = rig.pool.write(&rig.source, owner, bytes).await.unwrap();
            *place.lock().unwrap() = Some(unpublished);
            rig.close().await;
        })
        .finished();
    let place = written.lock().unwrap().take().unwrap();
    let disk = simulation.disk("nsd1", 1 << 30);
    let wanted = &pattern(5, 9000)[..4096];
    let mut units = (0..(1 << 30) / 4096_u64).map(|unit| unit * 4096);
    let at = units.find(|at| disk.content(*at, 4096)[..] == *wanted);
    let at = at.expect("the segment is on the NSD");
    simulation.faults().flip_bit("nsd1", at + 100);
    simulation
        .run(|world| async move {
            // The session that wrote it ends with the run that opened it.
            let rig = rig::open(&world).await;
            let outcomes = rig.metanode.scrub(None).await.unwrap();
            assert_eq!(outcomes[0].rebuilt, 1, "{outcomes:?}");
            let nsd = rig.pool.nsd(model::NsdId(1)).unwrap();
            assert!(nsd.info(place.blob(0)).await.is_err(), "it is deleted");
            assert_eq!(condemned(&rig).await, [place.segment]);
            rig.must_be_clean("scrubbed").await;
            rig.close().await;
        })
        .finished();
}

#[test]
fn a_pack_that_came_too_late_is_condemned_before_it_is_deleted() {
    let mut late = 0;
    for moment in 0..20 {
        let simulation = Simulation::new(62);
        let faults = simulation.faults();
        late += simulation
            .run(|world| async move {
                rig::create(&world, Scheme::Replicate(1), 1).await;
                let rig = rig::open(&world).await;
                let file = rig.file(ROOT, "f").await;
                for part in 0..40_u64 {
                    rig.write_inline(file, part * 20, &pattern(part, 10)).await;
                }
                rig.metanode.sync().await.unwrap();
                faults.slow("nsd1", Duration::from_millis(2));
                let before = rig.pool.usage().used;
                let changing = async {
                    world.sleep(Duration::from_millis(moment)).await;
                    rig.unlink(ROOT, "f").await;
                };
                let folding = rig.metanode.run_background_once();
                let (folded, ()) = futures::future::join(folding, changing).await;
                folded.unwrap();
                let overtaken = rig.metanode.counters().publishes_void > 0;
                // The file had no segment, and only the dead list's deletions are counted.
                let deleted = rig.metanode.counters().segments_deleted;
                assert!(!overtaken || deleted == 1, "moment {moment}: {deleted}");
                rig.must_be_clean("folded").await;
                let after = rig.pool.usage().used;
                assert!(after <= before + (1 << 20), "{before} bytes, then {after}");
                rig.close().await;
                usize::from(overtaken)
            })
            .finished();
    }
    assert!(late > 0, "the file was never removed during the fold");
}
