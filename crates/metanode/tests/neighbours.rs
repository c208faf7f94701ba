//! Two shards in one process, each with a family of its own, over the same NSDs: neither deletes,
//! counts or drops what is the other's.

use crate::rig::{self, Rig, pattern};
use model::{BlobName, FamilyId, NsdId, Scheme, SegmentPlace, ShardId};
use namespace::sessions::TOMBSTONES_MAX;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use world::World;
use world::sim::Simulation;

const OTHER: FamilyId = FamilyId(1);
const BYTES: usize = 200_000;

/// The second shard of the rig's process.
async fn second(rig: &Rig) -> Rig {
    rig.neighbour(ShardId(1), OTHER).await
}

/// Makes a file of the second shard with one segment, and returns the segment.
async fn with_segment(rig: &Rig, seed: u64) -> SegmentPlace {
    let file = rig.file(OTHER.root(), "f").await;
    let bytes = pattern(seed, BYTES);
    let place = rig.segment(file, 0, &bytes).await;
    rig.publish_segment(file, 0, &bytes, place).await;
    place
}

/// Ends so many later sessions that the shard takes all earlier ones for ended.
async fn outlive_earlier_sessions(rig: &Rig) {
    for _ in 0..=TOMBSTONES_MAX {
        let session = rig.metanode.open_session().await.unwrap();
        rig.metanode.close_session(session).await.unwrap();
    }
}

async fn is_there(rig: &Rig, blob: BlobName) -> bool {
    let nsd = rig.pool.nsd(NsdId(1)).unwrap();
    nsd.info(blob).await.is_ok()
}

/// Damages the first unit with this content on the first NSD.
fn damage(simulation: &Simulation, wanted: &[u8]) {
    let disk = simulation.disk("nsd1", 1 << 30);
    let mut units = (0..(1 << 30) / 4096_u64).map(|unit| unit * 4096);
    let at = units.find(|at| disk.content(*at, 4096)[..] == *wanted);
    let at = at.expect("the segment is on the NSD");
    simulation.faults().flip_bit("nsd1", at + 100);
}

/// A run in which the second shard writes, then one in which a piece of that is damaged.
fn with_damage<F>(seed: u64, story: impl FnOnce(Rig, Rig, SegmentPlace) -> F + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let simulation = Simulation::new(seed);
    simulation.limit_time(Duration::from_secs(60 * 60));
    let written = Arc::new(Mutex::new(None));
    let place = written.clone();
    simulation
        .run(|world: World| async move {
            rig::create(&world, Scheme::Replicate(2), 2).await;
            let rig = rig::open(&world).await;
            let other = second(&rig).await;
            *place.lock().unwrap() = Some(with_segment(&other, 5).await);
            other.must_be_clean("written").await;
            other.metanode.close().await.unwrap();
            rig.close().await;
        })
        .finished();
    let place = written.lock().unwrap().take().unwrap();
    damage(&simulation, &pattern(5, BYTES)[..4096]);
    simulation
        .run(|world| async move {
            let rig = rig::open(&world).await;
            let other = second(&rig).await;
            story(rig, other, place).await;
        })
        .finished();
}

fn piece_on_first(rig: &Rig, place: &SegmentPlace) -> BlobName {
    let groups = rig.pool.groups();
    let slots = groups.members(place.group);
    let of_first = |piece: &u8| {
        let slot = usize::from(place.slot_of(*piece));
        slots[slot].target() == NsdId(1)
    };
    place.blob((0..2).find(of_first).expect("a copy on each NSD"))
}

#[test]
fn a_scrub_deletes_no_damaged_blob_of_another_shard_and_leaves_it_to_that_one() {
    with_damage(1, |rig, other, place| async move {
        outlive_earlier_sessions(&rig).await;
        let outcomes = rig.metanode.scrub(None).await.unwrap();
        let left: u64 = outcomes.iter().map(|outcome| outcome.left).sum();
        let rebuilt: u64 = outcomes.iter().map(|outcome| outcome.rebuilt).sum();
        let damaged = piece_on_first(&rig, &place);
        assert!(is_there(&rig, damaged).await, "it isn't garbage");
        assert_eq!((left, rebuilt), (1, 0), "{outcomes:?}");
        assert_eq!(rig.metanode.repair_status().unreadable.segments, 0);
        // Its own shard was told, and rebuilds it without a scrub of its own.
        rig.settle().await;
        other.must_be_clean("rebuilt").await;
        rig.must_be_clean("beside it").await;
        other.metanode.close().await.unwrap();
        rig.close().await;
    });
}

#[test]
fn what_a_reader_found_damaged_is_repaired_by_its_shard_whoever_looks_first() {
    for is_outlived in [false, true] {
        with_damage(2, move |rig, other, place| async move {
            if is_outlived {
                outlive_earlier_sessions(&rig).await;
            }
            for piece in 0..2 {
                rig.pool.suspect_damage(&place, None, piece);
            }
            // Long enough for an unpublished segment to be forgotten.
            rig.world.sleep(Duration::from_secs(40)).await;
            rig.settle().await;
            assert_eq!(rig.metanode.repair_status().segments_queued, 0);
            assert_eq!(other.metanode.repair_status().segments_queued, 1);
            other.must_be_clean("repaired").await;
            assert_eq!(other.metanode.repair_status().segments_queued, 0);
            other.metanode.close().await.unwrap();
            rig.close().await;
        });
    }
}

#[test]
fn a_check_counts_only_the_blobs_of_its_own_shard() {
    let simulation = Simulation::new(3);
    simulation.limit_time(Duration::from_secs(60 * 60));
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(2), 2).await;
            let rig = rig::open(&world).await;
            let other = second(&rig).await;
            let place = with_segment(&other, 5).await;
            outlive_earlier_sessions(&rig).await;
            rig.must_be_clean("no leak").await;
            other.must_be_clean("no leak").await;
            assert_eq!(rig.data_blobs().await, 0);
            assert_eq!(other.data_blobs().await, 2);
            // A sweep leaves it alone.
            rig.settle().await;
            for piece in 0..2 {
                let mut infos = Vec::new();
                for nsd in [NsdId(1), NsdId(2)] {
                    let nsd = rig.pool.nsd(nsd).unwrap();
                    infos.push(nsd.info(place.blob(piece)).await.is_ok());
                }
                assert!(infos.contains(&true), "piece {piece}");
            }
            other.metanode.close().await.unwrap();
            rig.close().await;
        })
        .finished();
}

#[test]
fn a_shard_that_leaves_takes_the_space_kept_for_it_with_it() {
    let simulation = Simulation::new(4);
    simulation
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            rig.settle().await;
            let kept = || rig.pool.kept_for_metadata();
            let alone = kept();
            assert!(alone > 0);
            let other = second(&rig).await;
            other.settle().await;
            rig.settle().await;
            assert!(kept() > alone, "both keep some: {} > {alone}", kept());
            other.metanode.close().await.unwrap();
            world.sleep(Duration::from_secs(1)).await;
            rig.settle().await;
            assert!(kept() < alone * 2, "{} of {alone}", kept());
            let with_one = kept();
            drop(other);
            assert_eq!(kept(), with_one);
            rig.close().await;
        })
        .finished();
}
