//! Two shards on the same nodes, whose owners move separately.

use sim::cluster::{ClusterScenario, TOGETHER_MIN, run_shards};
use sim::{by_suite, each_seed};

const SCENARIO: ClusterScenario = ClusterScenario {
    steps: 3_000,
    turn_steps: 700,
    ..ClusterScenario::USUAL
};

/// Would be broken if a node took a request for another shard's, if a shard that leaves a node took
/// the other one with it, or if one took the other one's blobs for garbage.
#[test]
fn two_shards_whose_owners_meet_part_and_die_together_lose_nothing() {
    each_seed(0..by_suite(5, 300), |seed| {
        let report = run_shards(seed, &SCENARIO);
        assert!(
            report.steps >= 2 * SCENARIO.steps,
            "seed {seed}: {report:?}"
        );
        assert!(report.together >= TOGETHER_MIN, "seed {seed}: {report:?}");
        assert!(report.killed_with_both >= 2, "seed {seed}: {report:?}");
        println!("seed {seed}: {report:?}");
    });
}

pub(crate) fn traced(seed: u64) -> u64 {
    let scenario = ClusterScenario {
        steps: 600,
        turn_steps: 200,
        ..SCENARIO
    };
    run_shards(seed, &scenario).trace
}

/// Runs one seed again: `SIM_SEED=7 SIM_LOG=info cargo test ... shards_again`.
#[test]
fn one_seed_of_two_shards_again() {
    if let Some(seed) = std::env::var_os("SIM_SEED") {
        let seed = seed.to_string_lossy().parse().unwrap();
        println!("{:?}", run_shards(seed, &SCENARIO));
    }
}
