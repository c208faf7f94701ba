//! Random segments under random failures within the tolerance.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    Read(usize),
    Fail,
    Slow,
    Away,
    Recover,
    Delete(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![
        4 => 1usize..100_000,
        2 => 100_000usize..(2 * MIB),
        1 => (2 * MIB)..=(16 * MIB),
    ];
    prop_oneof![
        6 => length.prop_map(Step::Write),
        6 => any::<usize>().prop_map(Step::Read),
        1 => Just(Step::Fail),
        1 => Just(Step::Slow),
        1 => Just(Step::Away),
        2 => Just(Step::Recover),
        1 => any::<usize>().prop_map(Step::Delete),
    ]
}

/// Two NSDs, 2 and 5, may have trouble at any time: failed (and opened again later), slow, or away.
/// All segments stay readable, and writing continues.
async fn play(rig: Rig, steps: Vec<Step>) {
    let mut live: Vec<(SegmentPlace, Bytes)> = Vec::new();
    let mut away = None;
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Write(length) => {
                let bytes = plain(length, number as u64);
                let place = rig.write(&bytes).await;
                assert!(place.missing.count_ones() as usize <= place.scheme.stragglers_max());
                live.push((place, bytes));
            }
            Step::Read(choice) if !live.is_empty() => {
                let (place, bytes) = &live[choice % live.len()];
                assert_eq!(rig.read(place).await, bytes);
            }
            Step::Delete(choice) if !live.is_empty() => {
                let (place, _) = live.swap_remove(choice % live.len());
                rig.pool
                    .delete(&[place])
                    .await
                    .expect("deleting always works");
            }
            Step::Slow => rig.faults.slow("5", Duration::from_secs(2)),
            Step::Fail => rig.faults.fail("5"),
            Step::Away if away.is_none() => away = Some(rig.disconnect(NsdId(2))),
            Step::Recover => {
                rig.faults.heal("5");
                if let Some(nsd) = Some(rig.nsd(NsdId(5)))
                    .filter(|nsd| nsd.health() != model::nsd::NsdHealth::Online)
                {
                    rig.disconnect(NsdId(5));
                    drop(nsd);
                    // Slow requests end some simulated seconds later; the last one closes the disk.
                    let mut seconds = 0;
                    let disk = loop {
                        rig.world.sleep(Duration::from_secs(1)).await;
                        match rig.world.open_disk(Path::new("5")) {
                            Ok(disk) => break disk,
                            Err(error) => assert!(seconds < 60, "still open: {error}"),
                        }
                        seconds += 1;
                    };
                    rig.connect(Nsd::open(&rig.world, disk).await.expect("a healed disk"))
                        .await;
                }
                if let Some(nsd) = away.take() {
                    rig.connect(nsd).await;
                }
                // Completes incomplete segments and pending deletes before anything else fails.
                rig.repair_live(|id| live.iter().any(|(place, _)| place.segment == id))
                    .await;
            }
            Step::Read(_) | Step::Delete(_) | Step::Away => {}
        }
    }
    for (place, bytes) in &live {
        assert_eq!(rig.read(place).await, bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn segments_survive_random_failures_within_the_tolerance(steps in prop::collection::vec(step(), 1..40)) {
        with_pool(WIDE, 6, 2 * DISK_BYTES, |rig| play(rig, steps));
    }
}
