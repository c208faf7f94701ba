//! Several whole nodes, and one client at a time on any of them.

use sim::cluster::{ClusterScenario, FaultKind, Mix, run};
use sim::{by_suite, each_seed};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn several_nodes_without_faults() {
    each_seed(0..by_suite(1, 20), |seed| {
        let report = run(seed, &ClusterScenario::CALM);
        assert!(report.steps >= ClusterScenario::CALM.steps, "seed {seed}");
    });
}

#[test]
fn several_nodes_survive_faults() {
    each_seed(100..100 + by_suite(10, 1_000), |seed| {
        let report = run(seed, &ClusterScenario::USUAL);
        assert_eq!(
            report.faults.values().sum::<usize>(),
            ClusterScenario::USUAL.faults
        );
        println!("seed {seed}: {report:?}");
    });
}

/// In simulated time, which no machine's load changes. The client is on another node than the owner, whom nobody asks.
#[test]
fn a_client_goes_on_within_half_a_second_when_its_shard_moves() {
    let scenario = ClusterScenario {
        steps: 4_000,
        faults: 8,
        mix: Mix(&[FaultKind::Move]),
        ..ClusterScenario::USUAL
    };
    let seen = AtomicUsize::new(0);
    each_seed(0..by_suite(3, 100), |seed| {
        let report = run(seed, &scenario);
        let was_seen = report.owner_moved > Duration::ZERO;
        seen.fetch_add(usize::from(was_seen), Ordering::Relaxed);
        assert!(
            report.owner_moved <= Duration::from_millis(500),
            "seed {seed}: {report:?}"
        );
    });
    let seen = seen.into_inner();
    assert!(seen > 0, "no shard moved while a client was elsewhere");
}

/// In simulated time. The client is on a node that stays, two of three NSDs too.
#[test]
fn a_client_goes_on_within_three_seconds_when_the_owner_is_killed() {
    let scenario = ClusterScenario {
        steps: 4_000,
        faults: 8,
        mix: Mix(&[FaultKind::KillOwner]),
        ..ClusterScenario::USUAL
    };
    let seen = AtomicUsize::new(0);
    each_seed(0..by_suite(3, 100), |seed| {
        let report = run(seed, &scenario);
        let was_seen = report.owner_killed > Duration::ZERO;
        seen.fetch_add(usize::from(was_seen), Ordering::Relaxed);
        let limit = Duration::from_secs(3);
        assert!(report.owner_killed <= limit, "seed {seed}: {report:?}");
        println!("seed {seed}: {:?}", report.owner_killed);
    });
    let seen = seen.into_inner();
    assert!(seen > 0, "no owner was killed while a client was elsewhere");
}

/// Runs one seed again: `SIM_SEED=100 SIM_LOG=info cargo test ... several_nodes_again`.
#[test]
fn one_seed_again() {
    if let Some(seed) = std::env::var_os("SIM_SEED") {
        let seed = seed.to_string_lossy().parse().unwrap();
        println!("{:?}", run(seed, &ClusterScenario::USUAL));
    }
}
