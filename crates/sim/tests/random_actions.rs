//! Random actions through the client see exactly what a file system as simple as can be shows.

use sim::scenario::{Scenario, run};

#[test]
fn random_actions_see_what_the_model_sees() {
    let (seeds, steps) = if std::env::var_os("SHALE_LONG").is_some() {
        (200, 20_000)
    } else {
        (2, 3_000)
    };
    for seed in 0..seeds {
        run(
            seed,
            &Scenario {
                steps,
                ..Scenario::LONG
            },
        );
    }
}

#[test]
fn random_actions_on_an_erasure_coded_pool_see_what_the_model_sees() {
    let scheme = "erasure(4+2)".parse().unwrap();
    for seed in 0..4 {
        run(
            seed,
            &Scenario {
                scheme,
                steps: 800,
                ..Scenario::LONG
            },
        );
    }
}
