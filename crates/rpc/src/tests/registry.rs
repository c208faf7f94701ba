//! Which connections a node keeps, whoever opens how many.

use crate::admission::{Admission, ENDING_MAX, SMALL_AND_BULK_MAX};
use crate::hello::Credit;
use crate::lanes::Lane;
use crate::registry::{Going, Registry};
use model::{NodeId, NodeRun};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use world::Instant;
use world::sim::Simulation;

fn run(node: u32, incarnation: u64) -> NodeRun {
    NodeRun {
        node: NodeId(node),
        incarnation,
    }
}

fn now() -> Instant {
    let outcome = Simulation::new(1).run(|world| async move { world.now() });
    outcome.finished()
}

fn come(registry: &mut Registry) -> u64 {
    let accepted = registry.accept(now()).unwrap();
    assert_eq!(accepted.dropped, None);
    accepted.number
}

/// Would be broken if the older daemon could be let in between the newer one's judgement and its own
/// welcome: each would then be served beside the other.
#[test]
fn an_older_daemon_that_is_being_let_in_goes_when_a_newer_one_is() {
    let mut registry = Registry::new(100);
    let (older, newer) = (come(&mut registry), come(&mut registry));
    let going = registry.greet(older, run(1, 1), Some(Lane::Small)).unwrap();
    assert_eq!(going, Going::default());
    // The older one hasn't been welcomed yet; nobody but the registry knows of it.
    let going = registry.greet(newer, run(1, 2), Some(Lane::Lease)).unwrap();
    assert_eq!(going.dropped, [older]);
    assert_eq!(registry.known(older), None, "who welcomes it looks again");
    let again = come(&mut registry);
    let refused = registry.greet(again, run(1, 1), Some(Lane::Bulk));
    assert!(refused.unwrap_err().to_string().contains("old daemon"));
    // Other nodes aren't concerned.
    let other = come(&mut registry);
    registry.greet(other, run(2, 1), Some(Lane::Bulk)).unwrap();
    assert_eq!(registry.all_known().count(), 2);
}

#[test]
fn a_connection_that_is_one_too_many_takes_the_place_of_the_oldest_of_its_lane() {
    let mut registry = Registry::new(100);
    let mut greet = |lane| {
        let number = come(&mut registry);
        (number, registry.greet(number, run(1, 1), lane).unwrap())
    };
    // A node that takes its lease connection for broken is let in at once.
    let (first, _) = greet(Some(Lane::Lease));
    let (_, going) = greet(Some(Lane::Lease));
    assert_eq!((going.drained, going.dropped), (vec![first], vec![]));
    let bulk: Vec<u64> = (0..8).map(|_| greet(Some(Lane::Bulk)).0).collect();
    let (small, going) = greet(Some(Lane::Small));
    assert_eq!(going, Going::default());
    let (_, going) = greet(Some(Lane::Bulk));
    assert_eq!(going.drained, [bulk[0]]);
    // Reserved connections are counted ones.
    let (_, going) = greet(Some(Lane::Small));
    assert_eq!(going.drained, [bulk[1]]);
    assert!(going.dropped.is_empty());
    let (_, going) = greet(Some(Lane::Small));
    assert_eq!((going.drained, going.dropped), (vec![bulk[2]], vec![]));
    // Those that ended slowly are dropped, oldest first.
    let (_, going) = greet(Some(Lane::Bulk));
    assert_eq!((going.drained, going.dropped), (vec![bulk[3]], vec![first]));
    let (whole, going) = greet(None);
    assert_eq!(going, Going::default());
    let (_, going) = greet(None);
    assert_eq!((going.drained, going.dropped), (vec![], vec![whole]));
    assert!(registry.known(small).is_some());
}

#[test]
fn strangers_make_room_for_each_other_and_never_for_themselves() {
    let mut registry = Registry::new(3);
    let nodes: Vec<u64> = (1..=2).map(|_| come(&mut registry)).collect();
    registry.greet(nodes[0], run(1, 1), None).unwrap();
    registry.greet(nodes[1], run(2, 1), None).unwrap();
    let silent = come(&mut registry);
    let accepted = registry.accept(now()).unwrap();
    assert_eq!(accepted.dropped, Some(silent), "the oldest");
    assert!(registry.greet(silent, run(3, 1), None).is_err(), "too late");
    let third = accepted.number;
    registry.greet(third, run(3, 1), None).unwrap();
    assert_eq!(registry.accept(now()), None, "all have said hello");
    registry.gone(nodes[0]);
    assert!(registry.accept(now()).is_some());
}

#[test]
fn whoever_is_being_greeted_keeps_its_place_while_the_next_ones_wait() {
    let mut registry = Registry::new(1000);
    let start = now();
    let mut came = Vec::new();
    while registry.patience(start).is_none() {
        came.push(registry.accept(start).unwrap().number);
    }
    assert_eq!(came.len(), 64);
    let patience = registry.patience(start).unwrap();
    registry.greet(came[1], run(1, 1), None).unwrap();
    assert_eq!(registry.patience(start), None, "there is room");
    assert_eq!(registry.accept(start).unwrap().dropped, None);
    assert!(registry.patience(start + patience / 2).is_some());
    // One that says nothing for so long makes room.
    let later = start + patience + Duration::from_nanos(1);
    assert_eq!(registry.patience(later), None);
    assert_eq!(registry.accept(later).unwrap().dropped, Some(came[0]));
}

const ADMISSION: Admission = Admission {
    credits: [credit(1), credit(64), credit(20), credit(30)],
    small_data: credit(10),
    running: [1; 4],
    connections: 40,
};

const fn credit(bytes: u64) -> Credit {
    Credit { requests: 1, bytes }
}

#[derive(Clone, Debug)]
enum Step {
    Accept,
    Greet(usize, u32, u64, Option<Lane>),
    Ending(usize),
    Gone(usize),
}

fn some_step() -> impl Strategy<Value = Step> {
    let lane = prop_oneof![
        Just(None),
        Just(Some(Lane::Lease)),
        Just(Some(Lane::Small)),
        Just(Some(Lane::Bulk)),
    ];
    prop_oneof![
        6 => Just(Step::Accept),
        6 => (0..70_usize, 1..4_u32, 1..3_u64, lane)
            .prop_map(|(which, node, incarnation, lane)| Step::Greet(which, node, incarnation, lane)),
        1 => (0..70_usize).prop_map(Step::Ending),
        1 => (0..70_usize).prop_map(Step::Gone),
    ]
}

proptest! {
    #[test]
    fn no_node_takes_more_than_its_share_whatever_it_does(
        steps in vec(some_step(), 1..400),
        most in 5..200_usize,
    ) {
        let mut registry = Registry::new(most);
        let now = now();
        let mut numbers = BTreeSet::new();
        for step in steps {
            let nth = |which: usize| numbers.iter().nth(which).copied();
            match step {
                Step::Accept => if let Some(accepted) = registry.accept(now) {
                    numbers.insert(accepted.number);
                    accepted.dropped.map(|dropped| numbers.remove(&dropped));
                },
                Step::Greet(which, node, incarnation, lane) => if let Some(number) = nth(which) {
                    if registry.known(number).is_some() {
                        // A side says hello once.
                        continue;
                    }
                    if let Ok(going) = registry.greet(number, run(node, incarnation), lane) {
                        let stays = !going.dropped.contains(&number) && !going.drained.contains(&number);
                        prop_assert!(stays, "the newest connection is the one that is used");
                        numbers.retain(|number| !going.dropped.contains(number));
                    }
                },
                Step::Ending(which) => if let Some(number) = nth(which) {
                    let dropped = registry.ending(number);
                    numbers.retain(|number| !dropped.contains(number));
                },
                Step::Gone(which) => if let Some(number) = nth(which) {
                    registry.gone(number);
                    numbers.remove(&number);
                },
            }
            prop_assert!(registry.len() == numbers.len() && registry.len() <= most);
            prop_assert!(registry.strangers().count() <= 64);
            let mut of_nodes = BTreeMap::<NodeId, (usize, u64, BTreeSet<u64>)>::new();
            for known in registry.all_known() {
                let (count, bytes, runs) = of_nodes.entry(known.run.node).or_default();
                *count += 1;
                let granted = ADMISSION.granted(known.lane);
                *bytes += granted.iter().map(|credit| credit.bytes).sum::<u64>();
                runs.insert(known.run.incarnation);
            }
            for (count, bytes, runs) in of_nodes.into_values() {
                prop_assert!(count <= 1 + SMALL_AND_BULK_MAX + 1 + ENDING_MAX);
                prop_assert!(bytes <= ADMISSION.node_bytes_max());
                prop_assert_eq!(runs.len(), 1, "the newest daemon's");
            }
        }
    }
}

#[test]
fn each_lane_is_granted_only_what_it_carries() {
    let bytes = |lane| ADMISSION.granted(lane).map(|credit| credit.bytes);
    assert_eq!(bytes(Some(Lane::Lease)), [1, 0, 0, 0]);
    assert_eq!(bytes(Some(Lane::Small)), [0, 64, 10, 0]);
    assert_eq!(bytes(Some(Lane::Bulk)), [0, 0, 20, 30]);
    assert_eq!(bytes(None), [1, 64, 20, 30]);
    // 1 for leases, 5 small and 4 bulk, one for everything, and 4 small ones that end.
    let most = 1 + 5 * 74 + 4 * 50 + 115 + 4 * 74;
    assert_eq!(ADMISSION.node_bytes_max(), most);
}
