//! The rules of every body of coordination, one function each, and the bodies that they are called
//! with. A new body adds a line to `bodies`, and nothing else.
//!
//! The rules use three processes of the same store and take nothing for granted that etcd doesn't
//! promise: outcomes may be unknown, watches late or lost, leases longer than asked for. Each begins
//! with an empty store (in an etcd: under a prefix of its own).
#![allow(clippy::unwrap_used, reason = "tests")]

mod histories;
mod keys;
mod leases;
mod members;
mod patient;
mod restart;
mod watches;

use crate::etcd::tests::servers;
use crate::simulated::{Chances, Simulated};
use crate::{Coordination, EMBEDDED_REGION_BYTES};
use model::NodeId;
use std::future::Future;
use std::path::Path;
use std::time::Duration;
use world::World;
use world::sim::Simulation;

const DISK: &str = "coordination";
/// Runs of each rule on the simulated store with faults.
const SEEDS: u64 = 12;

/// A store, as three processes see it.
pub(super) struct Body {
    world: World,
    processes: [Coordination; 3],
    pace: Pace,
}

/// How long what a rule waits for takes: simulated time costs nothing, real time does.
#[derive(Clone, Copy)]
struct Pace {
    /// After this time nothing arrives any more that was sent before.
    late: Duration,
    /// A lease that is let go.
    lease: Duration,
    /// A lease that is kept alive, and ...
    kept: Duration,
    /// ... how often, six times within its time.
    signs: u32,
}

impl Pace {
    const SIMULATED: Self = Self {
        late: Duration::from_secs(30),
        lease: Duration::from_secs(5),
        kept: Duration::from_secs(30),
        signs: 30,
    };
    /// No request is lost or late. etcd counts leases in seconds.
    const REAL: Self = Self {
        late: Duration::from_millis(300),
        lease: Duration::from_secs(2),
        kept: Duration::from_secs(2),
        signs: 9,
    };
}

pub(super) async fn embedded(world: &World) -> Coordination {
    let disk = world.open_disk(Path::new(DISK)).unwrap();
    Coordination::embedded(world, disk).await.unwrap()
}

pub(super) fn machine(seed: u64) -> Simulation {
    let simulation = Simulation::new(seed);
    simulation.disk(DISK, EMBEDDED_REGION_BYTES);
    simulation
}

/// The embedded store has one process; its parts have clones.
fn on_embedded<F: Future<Output = ()>>(rule: impl Fn(Body) -> F) {
    let run = |world: World| async {
        let store = embedded(&world).await;
        let processes = [store.clone(), store.clone(), store];
        rule(Body {
            world,
            processes,
            pace: Pace::SIMULATED,
        })
        .await;
    };
    machine(1).run(run).finished();
}

fn on_simulated<F: Future<Output = ()>>(seed: u64, chances: Chances, rule: impl Fn(Body) -> F) {
    let run = |world: World| async {
        let store = Simulated::new(&world, seed);
        store.set_chances(chances);
        let processes = [1, 2, 3].map(|node| store.connect(NodeId(node), &world));
        rule(Body {
            world,
            processes,
            pace: Pace::SIMULATED,
        })
        .await;
    };
    Simulation::new(seed).run(run).finished();
}

fn on_etcd<F: Future<Output = ()>>(servers: &servers::Servers, rule: impl Fn(Body) -> F) {
    let settings = servers.settings_of_its_own();
    servers::in_real_time(async |world| {
        let processes = [(); 3].map(|()| Coordination::etcd(&world, &settings).unwrap());
        rule(Body {
            world,
            processes,
            pace: Pace::REAL,
        })
        .await;
    });
}

macro_rules! bodies {
    ($($file:ident: $($rule:ident)*;)*) => {
        mod embedded_store {$($(
            #[test]
            fn $rule() {
                super::on_embedded(super::$file::$rule);
            }
        )*)*}

        mod simulated_etcd {$($(
            #[test]
            fn $rule() {
                super::on_simulated(1, super::Chances::NONE, super::$file::$rule);
            }
        )*)*}

        mod simulated_etcd_with_faults {$($(
            #[test]
            fn $rule() {
                for seed in 0..super::SEEDS {
                    super::on_simulated(seed, super::Chances::HARSH, super::$file::$rule);
                }
            }
        )*)*}

        mod etcd_with_one_member {$($(
            #[test]
            fn $rule() {
                super::on_etcd(super::servers::one(), super::$file::$rule);
            }
        )*)*}

        mod etcd_with_three_members {$($(
            #[test]
            fn $rule() {
                super::on_etcd(super::servers::three(), super::$file::$rule);
            }
        )*)*}
    };
}

bodies! {
    keys:
        a_key_has_the_version_of_its_last_change
        versions_increase_and_are_never_reused
        a_change_that_expects_another_version_is_refused
        a_transaction_happens_whole_or_not_at_all
        a_transaction_can_depend_on_keys_that_it_leaves_alone
        to_remove_what_does_not_exist_changes_nothing
        a_list_has_the_keys_of_its_prefix_in_order
        a_change_that_was_answered_is_seen_by_everybody
        changes_at_the_same_time_happen_one_after_the_other
        a_change_whose_caller_goes_away_happens_whole_or_not_at_all
        what_is_too_large_is_refused_and_changes_nothing
        ids_are_given_out_once;
    watches:
        a_watch_tells_everything_after_its_revision
        a_watch_tells_the_changes_of_a_transaction_together
        a_watch_without_news_is_quiet_when_patience_ends
        a_watch_that_is_dropped_while_it_waits_misses_nothing
        a_follower_ends_up_with_what_is_stored;
    leases:
        a_lease_lasts_at_least_its_time_and_takes_its_keys_along
        a_lease_that_is_kept_alive_goes_on
        a_lease_that_is_revoked_takes_its_keys_along_at_once
        a_lease_that_has_ended_takes_no_keys
        a_key_belongs_to_the_lease_of_its_last_change
        all_keys_of_a_lease_go_together
        a_lease_without_time_or_with_too_much_is_refused;
    members:
        of_two_managers_one_stores_the_membership
        the_managers_place_has_one_holder_and_is_free_after_its_lease
        a_place_that_is_doubted_can_be_taken_until_its_holder_answers
        only_the_manager_of_the_membership_as_it_is_assigns_shards;
}
