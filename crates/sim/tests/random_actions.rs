//! Random actions through the client give exactly the results of the simplest possible file system.

use sim::scenario::{Scenario, run, space_returns};
use sim::{by_suite, each_seed};

#[test]
fn random_actions_see_what_the_model_sees() {
    let (seeds, steps) = by_suite((2, 1_500), (40, 5_000));
    let scenario = Scenario {
        steps,
        ..Scenario::LONG
    };
    each_seed(0..seeds, |seed| {
        run(seed, &scenario);
    });
}

/// A third of a million steps; twenty million in the long run.
#[test]
fn very_many_random_actions_see_what_the_model_sees() {
    each_seed(1_000..1_000 + by_suite(16, 1_000), |seed| {
        run(seed, &Scenario::MANY);
    });
}

#[test]
fn after_everything_is_removed_the_space_returns() {
    let scenario = Scenario {
        steps: 600,
        ..Scenario::LONG
    };
    each_seed(0..by_suite(2, 40), |seed| {
        space_returns(seed, &scenario, 20_000);
    });
}

#[test]
fn random_actions_on_an_erasure_coded_pool_see_what_the_model_sees() {
    let scenario = Scenario {
        scheme: "erasure(4+2)".parse().unwrap(),
        steps: 800,
        ..Scenario::LONG
    };
    each_seed(0..by_suite(2, 40), |seed| {
        run(seed, &scenario);
    });
}
