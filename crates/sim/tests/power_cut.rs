//! Power cuts: everything synced survives each of them.

use sim::scenario::{Scenario, crash, cut_everywhere};
use sim::{by_suite, each_seed};

#[test]
fn nothing_synced_is_lost_wherever_the_power_is_cut() {
    each_seed(0..by_suite(40, 1_000), |seed| {
        let cuts = cut_everywhere(seed, &Scenario::SMALL);
        assert!(cuts > 60, "seed {seed}: only {cuts} cuts");
    });
}

#[test]
fn a_long_run_survives_a_cut_anywhere() {
    let scenario = Scenario {
        steps: 600,
        ..Scenario::LONG
    };
    each_seed(0..by_suite(8, 400), |seed| drop(crash(seed, &scenario)));
}

#[test]
fn very_many_actions_survive_a_cut_anywhere() {
    // Each run has one cut. `random_actions` does a third of a million steps without a cut.
    let (seeds, steps) = by_suite((24, 6_000), (1_000, Scenario::MANY.steps));
    let scenario = Scenario {
        steps,
        ..Scenario::MANY
    };
    each_seed(0..seeds, |seed| drop(crash(seed, &scenario)));
}

#[test]
fn a_run_on_an_erasure_coded_pool_survives_a_cut_anywhere() {
    let scenario = Scenario {
        scheme: "erasure(4+2)".parse().unwrap(),
        steps: 300,
        ..Scenario::LONG
    };
    each_seed(0..by_suite(3, 100), |seed| drop(crash(seed, &scenario)));
}
