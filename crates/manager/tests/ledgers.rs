//! A ledger and what holders say to it, one rule after the other.

use manager::space::{Ledger, LedgerTerm, Purse, Round, Say, Statement, Want};
use model::{NodeId, NodeRun};

const MIB: u64 = 1 << 20;
const TERM: LedgerTerm = LedgerTerm(3);

fn run(node: u32, incarnation: u64) -> NodeRun {
    NodeRun {
        node: NodeId(node),
        incarnation,
    }
}

fn wants(number: u64, bytes: u64) -> Statement {
    Statement {
        term: TERM,
        number,
        want: Some(Want { number, bytes }),
        ..Statement::default()
    }
}

fn granted(said: &[Say], run: NodeRun) -> u64 {
    let totals = said.iter().filter_map(|say| match say {
        Say::Granted { to, total, .. } if *to == run => Some(*total),
        _ => None,
    });
    totals.max().unwrap_or(0)
}

/// Without a reserve, so that sums are easy to read; the first two nodes' first runs have begun.
fn ledger(capacity: u64, used: u64) -> Ledger {
    let mut ledger = Ledger::of_pool(TERM, capacity, []);
    assert_eq!(ledger.resize(capacity, 0), [Say::Measure(Round(1))]);
    assert_eq!(ledger.measured(Round(1), Some(used)), []);
    assert!(ledger.begin(run(1, 1)));
    assert!(ledger.begin(run(2, 1)));
    ledger
}

#[test]
fn a_statement_after_the_end_of_its_holder_counts_for_nothing() {
    let mut ledger = ledger(100 * MIB, 0);
    ledger.hear(run(1, 1), wants(1, MIB));
    ledger.end(run(1, 1));
    let before = ledger.given();
    assert_eq!(ledger.hear(run(1, 1), wants(2, MIB)), []);
    assert_eq!(ledger.given(), before, "nothing is given to a dead holder");
}

#[test]
fn a_refused_statement_leaves_nothing_behind() {
    let mut ledger = ledger(100 * MIB, 0);
    let before = ledger.clone();
    let lies = Statement {
        term: TERM,
        number: 1,
        consumed: MIB,
        ..Statement::default()
    };
    assert_eq!(ledger.hear(run(1, 1), lies), []);
    assert_eq!(ledger, before);
}

#[test]
fn numbers_beyond_all_bounds_are_refused() {
    let mut ledger = ledger(100 * MIB, 0);
    ledger.hear(run(1, 1), wants(1, MIB));
    let before = ledger.given();
    for (consumed, returned, freed) in [(u64::MAX, 1, 0), (1, u64::MAX, 0), (0, 0, u64::MAX)] {
        let lies = Statement {
            term: TERM,
            number: u64::MAX,
            consumed,
            returned,
            freed,
            ..Statement::default()
        };
        assert_eq!(ledger.hear(run(1, 1), lies), []);
        assert_eq!(ledger.given(), before);
    }
}

/// One deletes what another has written and not yet said.
#[test]
fn a_delete_that_is_told_before_the_write_isnt_lost() {
    let mut ledger = ledger(100 * MIB, 0);
    let held = granted(&ledger.hear(run(1, 1), wants(1, 8 * MIB)), run(1, 1));
    let deletes = Statement {
        term: TERM,
        number: 2,
        freed: 8 * MIB,
        ..Statement::default()
    };
    ledger.hear(run(2, 1), deletes);
    let writes = Statement {
        term: TERM,
        number: 2,
        consumed: 8 * MIB,
        ..Statement::default()
    };
    ledger.hear(run(1, 1), writes);
    let given = ledger.given();
    assert_eq!(given.used, 0);
    assert_eq!(given.held, held - 8 * MIB);
    assert_eq!(given.free, 100 * MIB - given.held);
}

/// What it wrote since its last statement is in the pool, and nobody knows how much that is.
#[test]
fn what_an_ended_holder_may_have_written_isnt_given_to_others() {
    let mut ledger = ledger(100 * MIB, 0);
    let held = granted(&ledger.hear(run(1, 1), wants(1, MIB)), run(1, 1));
    ledger.end(run(1, 1));
    assert_eq!(ledger.given().free, 100 * MIB - held);
}

/// Slices that nothing was written to: an earlier ledger gave them, and they are promised still.
#[test]
fn a_new_ledger_gives_nothing_before_all_have_claimed_and_the_pool_was_measured() {
    let (old, new) = (LedgerTerm(1), LedgerTerm(2));
    let [mut idle, mut busy] = [Purse::default(), Purse::default()];
    idle.begin_term(old);
    idle.granted(old, 60 * MIB, Round(1));
    let runs = [run(1, 1), run(2, 1)];
    let mut ledger = Ledger::of_pool(new, 100 * MIB, runs);
    assert_eq!(ledger.resize(100 * MIB, 0), []);
    busy.begin_term(new);
    assert!(!busy.take(50 * MIB));
    let said = ledger.hear(runs[1], busy.state());
    assert_eq!(granted(&said, runs[1]), 0);
    // What it says to the earlier ledger isn't a claim.
    assert_eq!(ledger.hear(runs[0], idle.state()), []);
    idle.begin_term(new);
    let said = ledger.hear(runs[0], idle.state());
    assert!(said.contains(&Say::Measure(Round(1))), "{said:?}");
    // The earlier manager doesn't know that it is over.
    idle.granted(old, 90 * MIB, Round(1));
    assert_eq!(idle.available(), 60 * MIB);
    ledger.measured(Round(1), Some(10 * MIB));
    for (run, purse) in runs.into_iter().zip([&mut idle, &mut busy]) {
        purse.granted(new, 0, Round(1));
        ledger.hear(run, purse.state());
    }
    let given = ledger.given();
    assert_eq!((given.used, given.held), (10 * MIB, 60 * MIB));
    assert_eq!(given.free, 30 * MIB);
}

#[test]
fn a_small_write_leaves_a_large_ones_want_as_it_is() {
    let mut purse = Purse::default();
    purse.begin_term(TERM);
    purse.granted(TERM, 4 * MIB, Round(0));
    assert!(!purse.take(8 * MIB));
    let before = purse.state().want.expect("it lacks room");
    assert!(purse.take(MIB));
    let after = purse.state().want.expect("it lacks room still");
    assert_eq!(after.number, before.number, "the same want, in its place");
    assert_eq!(after.bytes, before.bytes + MIB, "beside what was taken");
    purse.put_back(MIB);
    assert_eq!(purse.state().want, Some(before));
    purse.granted(TERM, 8 * MIB, Round(0));
    assert!(purse.take(8 * MIB));
    assert_eq!(purse.state().want, None);
}

/// Otherwise it might wait for ever while small ones are served.
#[test]
fn a_want_is_overtaken_by_a_bounded_number_of_others() {
    let mut ledger = ledger(100 * MIB, 0);
    let silent = granted(&ledger.hear(run(2, 1), wants(1, 90 * MIB)), run(2, 1));
    assert_eq!(silent, 90 * MIB);
    ledger.hear(run(1, 1), wants(1, 20 * MIB));
    let mut overtaken = 0;
    for node in 3..100 {
        assert!(ledger.begin(run(node, 1)));
        let said = ledger.hear(run(node, 1), wants(1, 1_000));
        overtaken += u32::from(granted(&said, run(node, 1)) > 0);
    }
    assert_eq!(overtaken, manager::space::OVERTAKEN_MAX);
}
