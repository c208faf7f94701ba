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
