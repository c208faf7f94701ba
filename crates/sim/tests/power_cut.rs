//! Power cuts: whatever was synced is there after every one of them.

use sim::scenario::{Scenario, crash, cut_everywhere, run};

/// More seeds in the long suite.
fn seeds(short: u64, long: u64) -> std::ops::Range<u64> {
    0..if std::env::var_os("SHALE_LONG").is_some() {
        long
    } else {
        short
    }
}

#[test]
fn nothing_synced_is_lost_wherever_the_power_is_cut() {
    let mut cuts = 0;
    for seed in seeds(200, 1_000) {
        cuts += cut_everywhere(seed, &Scenario::SMALL, 7);
    }
    println!("{cuts} power cuts");
    assert!(cuts > 2_000);
}

#[test]
fn one_scenario_survives_a_cut_at_each_of_its_ios() {
    for seed in seeds(2, 20) {
        assert!(cut_everywhere(1_000 + seed, &Scenario::SMALL, 1) > 100);
    }
}

#[test]
fn a_long_run_survives_a_cut_anywhere() {
    for seed in seeds(10, 200) {
        crash(
            seed,
            &Scenario {
                steps: 600,
                ..Scenario::LONG
            },
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let scenario = Scenario {
        steps: 300,
        ..Scenario::LONG
    };
    assert_eq!(run(5, &scenario), run(5, &scenario));
}
