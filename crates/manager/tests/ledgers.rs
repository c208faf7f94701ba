//! A ledger and what holders say to it, one rule after the other.

use manager::space::{
    Counted, Ledger, Purse, RecallNumber, Round, SLICE_BYTES, Say, Statement, Want,
};
use model::member::Term;
use model::{NodeId, NodeRun};

const MIB: u64 = 1 << 20;
const TERM: Term = Term(3);

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

/// It would like to hold so much, and nobody waits for that.
fn ahead(number: u64, bytes: u64) -> Statement {
    Statement {
        term: TERM,
        number,
        ahead: bytes,
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

fn counted(used: u64, capacity: u64) -> Option<Counted> {
    Some(Counted {
        used,
        capacity,
        reserve: 0,
    })
}

/// Without a reserve, so that sums are easy to read; the first two nodes' first runs have begun.
fn ledger(capacity: u64, used: u64) -> Ledger {
    let mut ledger = Ledger::new(TERM, []);
    assert_eq!(ledger.measure(), [Say::Measure(Round(1))]);
    assert_eq!(ledger.measured(Round(1), counted(used, capacity)), []);
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
    for (consumed, returned) in [(u64::MAX, 1), (1, u64::MAX)] {
        let lies = Statement {
            term: TERM,
            number: u64::MAX,
            consumed,
            returned,
            ..Statement::default()
        };
        assert_eq!(ledger.hear(run(1, 1), lies), []);
        assert_eq!(ledger.given(), before);
    }
}

/// Nobody says what was deleted, nor what was written without room: the next measuring finds both.
#[test]
fn a_measuring_finds_what_nobody_said() {
    let mut ledger = ledger(100 * MIB, 40 * MIB);
    for (round, used) in [(2, 10 * MIB), (3, 30 * MIB)] {
        assert_eq!(ledger.measure(), [Say::Measure(Round(round))]);
        ledger.measured(Round(round), counted(used, 100 * MIB));
        let given = ledger.given();
        assert_eq!((given.used, given.free), (used, 100 * MIB - used));
    }
}

/// It brings bytes in use and free ones, and nothing is given of one before the other is known.
#[test]
fn an_nsd_that_comes_back_counts_with_what_is_on_it() {
    let mut ledger = ledger(100 * MIB, 80 * MIB);
    ledger.measure();
    ledger.measured(Round(2), counted(30 * MIB, 40 * MIB));
    assert_eq!(ledger.given().free, 10 * MIB);
    ledger.measure();
    assert_eq!(ledger.given().free, 10 * MIB);
    ledger.measured(Round(3), counted(80 * MIB, 100 * MIB));
    assert_eq!(ledger.given().free, 20 * MIB);
}

/// A write's bytes are in the pool before it puts its room back: they are in use once, not twice.
#[test]
fn what_was_written_to_taken_room_is_used_up_when_that_is_put_back() {
    let mut purse = Purse::default();
    purse.begin_term(TERM);
    purse.granted(TERM, 4 * MIB);
    assert!(purse.take(4 * MIB));
    purse.written(3 * MIB);
    assert_eq!(purse.state().consumed, 0);
    purse.put_back(4 * MIB);
    assert_eq!((purse.available(), purse.state().consumed), (MIB, 3 * MIB));
    // Nobody took room for these, and nobody will.
    purse.written(5 * MIB);
    assert_eq!((purse.available(), purse.state().consumed), (0, 4 * MIB));
    purse.granted(TERM, 8 * MIB);
    assert_eq!(purse.available(), 4 * MIB);
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
    let (old, new) = (Term(1), Term(2));
    let [mut idle, mut busy] = [Purse::default(), Purse::default()];
    idle.begin_term(old);
    idle.granted(old, 60 * MIB);
    let runs = [run(1, 1), run(2, 1)];
    let mut ledger = Ledger::new(new, runs);
    assert_eq!(ledger.measure(), []);
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
    idle.granted(old, 90 * MIB);
    assert_eq!(idle.available(), 60 * MIB);
    ledger.measured(Round(1), counted(10 * MIB, 100 * MIB));
    for (run, purse) in runs.into_iter().zip([&mut idle, &mut busy]) {
        purse.granted(new, 0);
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
    purse.granted(TERM, 4 * MIB);
    assert!(!purse.take(8 * MIB));
    let before = purse.state().want.expect("it lacks room");
    assert!(purse.take(MIB));
    let after = purse.state().want.expect("it lacks room still");
    assert_eq!(after.number, before.number, "the same want, in its place");
    assert_eq!(after.bytes, before.bytes + MIB, "beside what was taken");
    purse.put_back(MIB);
    assert_eq!(purse.state().want, Some(before));
    purse.granted(TERM, 8 * MIB);
    assert!(purse.take(8 * MIB));
    assert_eq!(purse.state().want, None);
}

/// Both come in one message where several wait, and the write is on its way to take it.
#[test]
fn what_a_write_waits_for_isnt_given_back_with_the_message_that_brings_it() {
    let mut purse = Purse::default();
    purse.begin_term(TERM);
    assert!(!purse.take(8 * MIB));
    purse.granted(TERM, 10 * MIB);
    purse.recalled(TERM, RecallNumber(1));
    assert_eq!(
        (purse.available(), purse.state().returned),
        (8 * MIB, 2 * MIB)
    );
    assert!(purse.take(8 * MIB));
}

/// It could never be given anything else, and sums would overflow.
#[test]
fn nobody_claims_more_than_any_pool_has() {
    let mut ledger = Ledger::new(TERM, [run(1, 1)]);
    let lies = Statement {
        claim: u64::MAX,
        consumed: u64::MAX - 10,
        ..wants(1, 20)
    };
    assert_eq!(ledger.hear(run(1, 1), lies), []);
    assert_eq!(ledger.measure(), [], "its claim is waited for still");
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

/// Would be broken if writes stopped at each slice's end until the manager has answered.
#[test]
fn a_write_that_leaves_less_than_half_a_slice_makes_its_purse_ask_for_the_next_one() {
    let mut purse = Purse::default();
    purse.begin_term(TERM);
    assert!(!purse.take(MIB));
    assert_eq!(purse.state().ahead, 0, "a write waits, which goes first");
    purse.granted(TERM, SLICE_BYTES);
    assert!(purse.take(MIB));
    assert_eq!(purse.state().ahead, 0, "most of it is left");
    assert!(purse.take(SLICE_BYTES / 2));
    let liked = SLICE_BYTES + SLICE_BYTES / 2 + MIB;
    assert_eq!(purse.state().ahead, liked, "beside what was taken");
    assert_eq!(purse.state().ahead, liked, "until it was given");
    purse.granted(TERM, 2 * SLICE_BYTES);
    assert_eq!(purse.state().ahead, 0);
    // So it is when writes put back what they took.
    assert!(purse.take(SLICE_BYTES));
    assert!(purse.asks_ahead());
    purse.put_back(SLICE_BYTES);
    assert!(!purse.asks_ahead());
}

#[test]
fn a_purse_asks_for_nothing_ahead_while_a_write_waits_or_after_a_recall() {
    let mut purse = Purse::default();
    purse.begin_term(TERM);
    purse.granted(TERM, 10 * MIB);
    assert!(!purse.asks_ahead(), "nothing was written");
    assert!(purse.take_if_there(MIB));
    assert!(!purse.asks_ahead(), "it would like more than it needs");
    assert!(purse.take(MIB));
    assert!(purse.asks_ahead());
    assert!(!purse.take(20 * MIB));
    let said = purse.state();
    assert_eq!((said.want.is_some(), said.ahead), (true, 0));
    purse.forget_want();
    assert!(purse.asks_ahead());
    purse.recalled(TERM, RecallNumber(1));
    assert!(!purse.asks_ahead(), "others lack it");
}

#[test]
fn who_will_lack_room_soon_is_given_one_slice_for_it() {
    let mut ledger = ledger(100 * SLICE_BYTES, 0);
    let said = ledger.hear(run(1, 1), ahead(1, SLICE_BYTES + MIB));
    assert_eq!(granted(&said, run(1, 1)), SLICE_BYTES);
    let said = ledger.hear(run(1, 1), ahead(2, SLICE_BYTES));
    assert_eq!(granted(&said, run(1, 1)), SLICE_BYTES, "it hasn't heard");
    let said = ledger.hear(run(1, 1), ahead(3, SLICE_BYTES + MIB));
    assert_eq!(granted(&said, run(1, 1)), 2 * SLICE_BYTES);
}

/// A slice that is given ahead would have to be recalled in a moment.
#[test]
fn nothing_is_given_ahead_when_little_is_left_or_somebody_waits() {
    let (one, other) = (run(1, 1), run(2, 1));
    let little = 8 * SLICE_BYTES - 1;
    let nothing = [Say::Granted { to: one, total: 0 }];
    let said = ledger(little, 0).hear(one, ahead(1, SLICE_BYTES));
    assert_eq!(said, nothing, "nor is anything recalled");
    let mut ledger = ledger(100 * SLICE_BYTES, 0);
    ledger.hear(other, wants(1, 101 * SLICE_BYTES));
    assert_eq!(ledger.hear(one, ahead(1, SLICE_BYTES)), nothing);
    // It has given up.
    ledger.hear(other, ahead(2, 0));
    let said = ledger.hear(one, ahead(2, SLICE_BYTES));
    assert_eq!(granted(&said, one), SLICE_BYTES);
}
