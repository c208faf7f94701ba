//! Every order of events of two clients and three objects, up to written bounds.

use super::cluster::{Budget, Cluster, Step};
use model::token::Ship;
use model::{InodeId, TokenMode, TokenObject, TokenRange};
use stateright::{Checker, Model, Property};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokens::Planted;
use tokens::holder::Want;

fn hash(state: &Cluster) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// One in so many states is brought to rest as well, chosen by its hash.
const RESTED: u64 = 1000;

struct Explored {
    start: Cluster,
}

impl Model for Explored {
    type State = Cluster;
    type Action = Step;

    fn init_states(&self) -> Vec<Cluster> {
        vec![self.start.clone()]
    }

    fn actions(&self, state: &Cluster, actions: &mut Vec<Step>) {
        actions.extend(state.steps());
    }

    fn next_state(&self, last: &Cluster, step: Step) -> Option<Cluster> {
        let mut next = last.clone();
        next.take(step);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nobody has what conflicts", |_, state: &Cluster| {
                state.check().is_ok()
            }),
            Property::always("nobody waits for ever", |_, state: &Cluster| {
                let is_chosen = hash(state).is_multiple_of(RESTED);
                !is_chosen || state.clone().come_to_rest().is_ok()
            }),
        ]
    }
}

pub(crate) fn inode(mode: TokenMode) -> Want {
    Want {
        object: TokenObject::Inode(InodeId(2)),
        mode,
        range: TokenRange::ALL,
        desired: TokenRange::ALL,
        ship: Ship::Never,
    }
}

pub(crate) fn bytes(start: u64, end: u64, mode: TokenMode) -> Want {
    Want {
        object: TokenObject::Bytes(InodeId(2)),
        range: TokenRange { start, end },
        ..inode(mode)
    }
}

pub(crate) fn directory(mode: TokenMode) -> Want {
    Want {
        object: TokenObject::Directory(InodeId(1)),
        // As clients ask: to look into it, or for a delegation.
        ship: match mode {
            TokenMode::Shared => Ship::IfContended,
            _ => Ship::IfHeld,
        },
        ..inode(mode)
    }
}

/// Explores everything, with a fault planted or none; what is broken, and in how many states there are.
fn look(wants: Vec<Want>, budget: Budget, planted: &[Planted]) -> (Vec<&'static str>, usize) {
    // One at a time: the long ones need the memory.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut start = Cluster::new(2, wants, budget, &[]);
    planted.iter().for_each(|fault| start.plant(*fault));
    let checker = Explored { start }.checker().spawn_bfs().join();
    let broken = checker.discoveries().into_keys().collect();
    (broken, checker.unique_state_count())
}

/// Explores everything, which must be at least so many states, and says how many they were.
fn explore(name: &str, wants: Vec<Want>, budget: Budget, least: usize) {
    let (broken, states) = look(wants, budget, &[]);
    println!("{name}: {states} states");
    assert!(broken.is_empty(), "{name}: {broken:?}");
    assert!(states >= least, "{name}: only {states} states");
}

/// A bound of `make test-all`, or of `make test`. The former explores up to two million states in a
/// test, which takes minutes and some GiB.
fn long_or(long: u32, short: u32) -> u32 {
    match std::env::var_os("SHALE_LONG") {
        Some(_) => long,
        None => short,
    }
}

#[test]
fn three_objects() {
    let budget = Budget {
        claims: 2,
        ..Budget::default()
    };
    explore("three objects", three(), budget, 10_000);
}

fn three() -> Vec<Want> {
    use TokenMode::{Exclusive, Shared};
    vec![inode(Exclusive), bytes(0, 10, Shared), directory(Exclusive)]
}

#[test]
fn three_objects_and_a_lost_message() {
    let budget = Budget {
        claims: 1,
        lost: 1,
        ..Budget::default()
    };
    explore("three objects, a lost message", three(), budget, 1_000);
}

#[test]
fn three_objects_under_a_new_owner() {
    let budget = Budget {
        claims: 1,
        take_overs: 1,
        ..Budget::default()
    };
    explore("three objects, take-over", three(), budget, 1_000);
}

/// Would pass without exploring anything if it found no fault that is there.
#[test]
fn exploring_finds_planted_faults() {
    let claims = Budget {
        claims: 1,
        ..Budget::default()
    };
    let take_over = Budget {
        take_overs: 1,
        ..claims
    };
    for (planted, budget) in [
        (Planted::GrantTwice, claims),
        (Planted::ForgetUses, claims),
        (Planted::ReturnEarly, claims),
        (Planted::GrantInGrace, take_over),
    ] {
        let (broken, _) = look(three(), budget, &[planted]);
        assert!(!broken.is_empty(), "{planted:?} isn't found");
    }
}

#[test]
fn a_directory_and_operations_of_the_owner() {
    use TokenMode::{Exclusive, Shared};
    let wants = vec![directory(Shared), directory(Exclusive)];
    let budget = Budget {
        claims: 1,
        operations: 2,
        ..Budget::default()
    };
    explore("a directory", wants, budget, 1_000);
}

#[test]
fn ranges_that_overlap_and_lost_messages() {
    use TokenMode::{Exclusive, Shared};
    let wants = vec![bytes(0, 10, Exclusive), bytes(5, 15, Shared)];
    let budget = Budget {
        claims: long_or(2, 1),
        lost: 1,
        ..Budget::default()
    };
    explore("ranges, lost messages", wants, budget, 100);
}

#[test]
fn two_claims_each() {
    use TokenMode::{Exclusive, Shared};
    let wants = vec![inode(Exclusive), inode(Shared)];
    let budget = Budget {
        claims: 2,
        ..Budget::default()
    };
    explore("two claims each", wants, budget, 1_000);
}

#[test]
fn messages_that_come_twice() {
    use TokenMode::{Exclusive, Shared};
    let wants = vec![inode(Exclusive), inode(Shared)];
    let budget = Budget {
        claims: long_or(2, 1),
        repeated: 1,
        ..Budget::default()
    };
    explore("repeated messages", wants, budget, 1_000);
}

#[test]
fn tokens_that_run_out() {
    let budget = Budget {
        claims: 1,
        passed: 1,
        tick: Duration::from_secs(7),
        ..Budget::default()
    };
    let wants = vec![inode(TokenMode::Exclusive), inode(TokenMode::Shared)];
    explore("time", wants, budget, 1_000);
}

#[test]
fn a_new_owner() {
    let budget = Budget {
        claims: 1,
        take_overs: 1,
        passed: 1,
        tick: Duration::from_secs(16),
        ..Budget::default()
    };
    explore(
        "take-over",
        vec![inode(TokenMode::Exclusive)],
        budget,
        1_000,
    );
}
