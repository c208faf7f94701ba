//! Makes a failing crowd smaller: the fewer programs, steps and faults it has, the sooner a reader sees why it fails.
//!
//! A smaller crowd is another run of the same seed, so each step is tried, and kept if the run still fails.

use crate::cluster::{CrowdScenario, run_crowd_with};
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::Planted;

/// The smallest scenario found in which a seed fails; `None` if it doesn't fail.
#[must_use]
pub fn shrink(
    seed: u64,
    scenario: &CrowdScenario,
    planted: Option<Planted>,
) -> Option<CrowdScenario> {
    let fails = |scenario: &CrowdScenario| {
        let run = AssertUnwindSafe(|| run_crowd_with(seed, scenario, planted));
        catch_unwind(run).is_err()
    };
    let mut smallest = fails(scenario).then_some(*scenario)?;
    while let Some(smaller) = smaller(&smallest).into_iter().find(&fails) {
        smallest = smaller;
    }
    Some(smallest)
}

/// Each is smaller in one respect.
fn smaller(scenario: &CrowdScenario) -> Vec<CrowdScenario> {
    let with = |change: fn(&mut CrowdScenario)| {
        let mut smaller = *scenario;
        change(&mut smaller);
        smaller
    };
    let mut all = Vec::new();
    if scenario.cluster.faults > 0 {
        all.push(with(|it| it.cluster.faults = 0));
        all.push(with(|it| it.cluster.faults -= 1));
    }
    if scenario.together > 1 {
        all.push(with(|it| it.together = 1));
    }
    if !scenario.points.is_empty() {
        all.push(with(|it| it.points = &[]));
    }
    if scenario.storage_changes {
        all.push(with(|it| it.storage_changes = false));
    }
    if scenario.shards.len() > 1 {
        all.push(with(|it| it.shards = &it.shards[..1]));
    }
    if scenario.programs > 1 {
        all.push(with(|it| it.programs -= 1));
    }
    if scenario.steps > 1 {
        all.push(with(|it| it.steps /= 2));
        all.push(with(|it| it.steps -= it.steps / 4));
    }
    all.retain(|it| format!("{it:?}") != format!("{scenario:?}"));
    all
}
