//! Many programs at the same time on five nodes; a witness explains what they saw.

use sim::cluster::{Coverage, CrowdScenario, Relation, run_crowd};
use sim::{by_suite, each_seed};
use std::sync::Mutex;

/// Runs seeds of a scenario and adds up which operations met.
fn run(seeds: std::ops::Range<u64>, scenario: &CrowdScenario) -> Coverage {
    let met = Mutex::new(Coverage::default());
    each_seed(seeds, |seed| {
        let report = run_crowd(seed, scenario);
        met.lock().unwrap().add(&report.coverage);
        println!(
            "seed {seed}: {} operations in {:?}, {} clients lost, {:?}, {:?}",
            report.steps, report.time, report.lost, report.explained, report.faults
        );
    });
    let met = met.into_inner().unwrap();
    println!("met: {met}");
    met
}

#[test]
fn many_programs_without_faults_agree() {
    run(0..by_suite(2, 40), &CrowdScenario::CALM);
}

#[test]
fn many_programs_agree_whatever_breaks() {
    let met = run(1_000..1_000 + by_suite(28, 700), &CrowdScenario::WITHIN);
    for relation in Relation::ALL {
        let pairs = met.pairs(relation);
        assert!(
            pairs >= 60,
            "only {pairs} pairs of operations met: {relation:?}"
        );
    }
}

#[test]
fn many_programs_are_told_no_lies_when_too_much_breaks() {
    run(2_000..2_000 + by_suite(12, 300), &CrowdScenario::BEYOND);
}

/// Runs one seed again: `CROWD_SEED=1000 SIM_LOG=info cargo test ... crowd_seed_again`.
#[test]
fn crowd_seed_again() {
    if let Some(seed) = std::env::var_os("CROWD_SEED") {
        let seed = seed.to_string_lossy().parse().unwrap();
        let scenario = match seed {
            0..1_000 => CrowdScenario::CALM,
            1_000..2_000 => CrowdScenario::WITHIN,
            _ => CrowdScenario::BEYOND,
        };
        let report = run_crowd(seed, &scenario);
        println!("{report:?}\n{}", report.coverage);
    }
}
