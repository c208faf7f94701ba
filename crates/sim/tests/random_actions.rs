//! Random actions through the client see exactly what a file system as simple as can be shows.

use sim::each_seed;
use sim::scenario::{Scenario, run};

fn is_long() -> bool {
    std::env::var_os("SHALE_LONG").is_some()
}

#[test]
fn random_actions_see_what_the_model_sees() {
    let (seeds, steps) = if is_long() { (200, 20_000) } else { (8, 3_000) };
    let scenario = Scenario {
        steps,
        ..Scenario::LONG
    };
    each_seed(0..seeds, |seed| {
        run(seed, &scenario);
    });
}

#[test]
fn many_random_actions_on_small_files_see_what_the_model_sees() {
    let (seeds, steps) = if is_long() { (100, 40_000) } else { (8, 5_000) };
    let scenario = Scenario {
        steps,
        ..Scenario::SMALL
    };
    each_seed(1_000..1_000 + seeds, |seed| {
        run(seed, &scenario);
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
