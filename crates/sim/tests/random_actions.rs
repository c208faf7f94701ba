//! Random actions through the client see exactly what a file system as simple as can be shows.

use sim::each_seed;
use sim::scenario::{Scenario, run, space_returns};

fn is_long() -> bool {
    std::env::var_os("SHALE_LONG").is_some()
}

#[test]
fn random_actions_see_what_the_model_sees() {
    let (seeds, steps) = if is_long() { (40, 5_000) } else { (8, 3_000) };
    let scenario = Scenario {
        steps,
        ..Scenario::LONG
    };
    each_seed(0..seeds, |seed| {
        run(seed, &scenario);
    });
}

/// Two million steps; twenty in the long run.
#[test]
fn very_many_random_actions_see_what_the_model_sees() {
    each_seed(1_000..1_000 + if is_long() { 1_000 } else { 100 }, |seed| {
        run(seed, &Scenario::MANY);
    });
}

#[test]
fn after_everything_is_removed_the_space_returns() {
    let scenario = Scenario {
        steps: 600,
        ..Scenario::LONG
    };
    each_seed(0..if is_long() { 40 } else { 4 }, |seed| {
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
    each_seed(0..if is_long() { 40 } else { 4 }, |seed| {
        run(seed, &scenario);
    });
}
