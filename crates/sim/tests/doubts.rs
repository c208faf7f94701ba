//! The manager's place when somebody hears nothing of the manager: whoever lives keeps it, whoever is silent doesn't.

use coordination::{Place, Versioned};
use sim::cluster::{ClusterScenario, Stage};
use sim::{by_suite, each_seed};
use std::time::Duration;

const FIVE: ClusterScenario = ClusterScenario {
    nodes: 5,
    ..ClusterScenario::USUAL
};

/// The place, and the manager's term, as a node knows them.
async fn place(stage: &Stage, node: usize) -> (Versioned<Place>, u64) {
    let roster = stage.run(node, async |_, member| member.roster()).await;
    let members = roster.membership.as_ref().expect("there was a manager");
    let place = roster.manager.clone().expect("there is a manager");
    (place, members.value.term.0)
}

/// Would be broken if a manager that lives didn't answer who doubts it, or if one node that doesn't hear it could take its
/// place.
#[test]
fn a_manager_that_one_node_does_not_hear_answers_its_doubts_and_keeps_its_place() {
    each_seed(0..by_suite(2, 30), |seed| {
        Stage::play(seed, &FIVE, None, async move |stage| {
            stage.settled().await;
            let manager = stage.manager().expect("one is the manager");
            let (before, term) = place(&stage, manager).await;
            stage.cut_one_way(manager, (manager + 1) % 5);
            stage.sleep(Duration::from_secs(20)).await;
            let (after, last_term) = place(&stage, manager).await;
            assert_eq!(after.value.run, before.value.run, "seed {seed}");
            assert_eq!(last_term, term, "seed {seed}");
            assert!(after.version > before.version, "seed {seed}: nobody doubts");
            stage.heal();
        });
    });
}

/// Would be broken if the place of a silent manager were free only once its lease has ended.
#[test]
fn a_silent_manager_is_followed_however_often_coordination_changes_its_leader() {
    // Each gives the place its full time again before that ends.
    const CHANGE_EVERY: Duration = Duration::from_secs(4);
    const LIMIT: Duration = Duration::from_secs(12);
    each_seed(0..by_suite(3, 60), |seed| {
        Stage::play(seed, &FIVE, None, async move |stage| {
            stage.settled().await;
            let silent = stage.manager().expect("one is the manager");
            // At any moment between two heartbeats.
            stage.sleep(Duration::from_millis(seed * 373 % 2_000)).await;
            stage.lead_from((silent + 1) % 5);
            stage.isolate(silent);
            let begun = stage.now();
            let mut next_change = begun + CHANGE_EVERY;
            while stage.manager().is_none_or(|at| at == silent) {
                stage.sleep(Duration::from_millis(50)).await;
                let waited = stage.now() - begun;
                assert!(waited <= LIMIT, "seed {seed}: nobody follows");
                if stage.now() >= next_change {
                    next_change += CHANGE_EVERY;
                    stage.change_leader();
                }
            }
            stage.heal();
        });
    });
}
