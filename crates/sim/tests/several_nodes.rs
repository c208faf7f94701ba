//! Several whole nodes, and one client at a time on any of them.

use sim::cluster::{ClusterScenario, run};
use sim::{by_suite, each_seed};

#[test]
fn several_nodes_without_faults() {
    each_seed(0..by_suite(2, 20), |seed| {
        let report = run(seed, &ClusterScenario::CALM);
        assert!(report.steps >= ClusterScenario::CALM.steps, "seed {seed}");
    });
}

#[test]
fn several_nodes_survive_faults() {
    each_seed(100..100 + by_suite(40, 1_000), |seed| {
        let report = run(seed, &ClusterScenario::USUAL);
        assert_eq!(
            report.faults.values().sum::<usize>(),
            ClusterScenario::USUAL.faults
        );
        println!("seed {seed}: {report:?}");
    });
}

/// Runs one seed again: `SIM_SEED=100 SIM_LOG=info cargo test ... several_nodes_again`.
#[test]
fn one_seed_again() {
    if let Some(seed) = std::env::var_os("SIM_SEED") {
        let seed = seed.to_string_lossy().parse().unwrap();
        println!("{:?}", run(seed, &ClusterScenario::USUAL));
    }
}
