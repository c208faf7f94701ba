//! Many programs at the same time on five nodes; a witness explains what they saw.

use crate::noted::figure;
use sim::by_suite;
use sim::cluster::{Coverage, CrowdScenario, Relation, run_crowd};
use sim::seeds::{Kind, run_all};

/// Runs seeds of a kind, and says what they were like. Returns what they covered.
fn run(kind: Kind, seeds: std::ops::Range<u64>) -> Coverage {
    let summary = run_all(&[kind], seeds);
    figure(&summary.to_string());
    let replays = summary.replays();
    assert!(replays.is_empty(), "failed; again:\n{}", replays.join("\n"));
    summary.coverage()
}

/// Would be broken if a file system passed that refuses everything, or locks nothing: at least this part of the
/// operations is done, at most that part is never answered, and programs get locks.
fn is_of_use(met: &Coverage, done_min: f64, unanswered_max: f64) {
    let [done, refused, unanswered] = met.answers().map(|count| count as f64);
    let all = done + refused + unanswered;
    assert!(done >= all * done_min, "only {done} of {all} are done");
    assert!(
        unanswered <= all * unanswered_max,
        "{unanswered} of {all} have no answer"
    );
    let [granted, refused] = met.locks();
    assert!(
        granted > 0 && granted > refused,
        "{granted} locks granted, {refused} refused"
    );
}

#[test]
fn many_programs_without_faults_agree() {
    is_of_use(&run(Kind::Calm, 0..by_suite(8, 300)), 0.7, 0.0);
}

/// Each of these had clients that lost their sessions although nothing was wrong: a client that gave
/// back a removed file's bytes asked for its attributes first, and waited there for another client that
/// waited for the bytes.
#[test]
fn a_removed_file_holds_up_nobody_who_wants_its_bytes() {
    for seed in [8, 15, 19, 27, 28, 36] {
        run_crowd(seed, &CrowdScenario::ALONE);
    }
}

/// Each with what it found when it was kept; a change of the program moves what a seed does.
/// 64: a client read what its own truncate had cut already, as its stat had shown.
/// 96, 1157: a lookup's attributes were asked for once more, which the witness took for a part of the lookup.
/// 1231: a node that had stood still seemed to have what others had got meanwhile, because it was looked at
/// before its first step.
/// 1457: a former owner showed what nobody had changed since, after its successor had shown the same.
/// 1495: a client appended twice at the same place, because what it had written first was dropped: the file was gone.
/// 2030: an owner never took its shard over again: a grant's answer that nobody waited for any more had begun to.
/// 2242: an expelled owner passed for the newest one, while its successor was taking the shard over.
/// 3099: pieces of a write by an old map stayed, so an NSD couldn't be emptied.
/// 3176: an owner that was cut off ended the sessions of all others, because it heard nobody.
/// 4010: a client lost its session although nothing was wrong with it: a new manager had extended the owner's lease
/// late, and the answer that would have told the client came too late.
/// 4080: a program gave up waiting for a lock whose request was just saying to a new owner what its client holds; that
/// was never finished, and all of the client waited for it.
/// 22051: a file without a name stayed that its maker had closed while the next owner waited for other sessions.
/// 24045: a pool was called full by an owner whose own NSD was being emptied, before it had heard of the others.
#[test]
fn seeds_that_found_something_find_nothing() {
    for (seed, scenario) in [
        (64, CrowdScenario::CALM),
        (96, CrowdScenario::CALM),
        (1157, CrowdScenario::WITHIN),
        (1231, CrowdScenario::WITHIN),
        (1457, CrowdScenario::WITHIN),
        (1495, CrowdScenario::WITHIN),
        (2030, CrowdScenario::BEYOND),
        (2242, CrowdScenario::BEYOND),
        (3099, CrowdScenario::CHANGING),
        (3176, CrowdScenario::CHANGING),
        (4010, CrowdScenario::TWO_SHARDS),
        (4080, CrowdScenario::TWO_SHARDS),
        (22051, CrowdScenario::WITHIN),
        (24045, CrowdScenario::CHANGING),
    ] {
        run_crowd(seed, &scenario);
    }
}

#[test]
fn many_programs_agree_whatever_breaks() {
    let met = run(Kind::Within, 1_100..1_100 + by_suite(24, 450));
    // In a hundred seeds hardly a pair is missing that is possible: of names alone there are six operations.
    for (relation, short, long) in [
        (Relation::Same, 120, 195),
        (Relation::Parent, 25, 80),
        (Relation::Child, 30, 80),
        (Relation::Ancestor, 40, 120),
        (Relation::HardLinked, 5, 18),
    ] {
        let (pairs, enough) = (met.pairs(relation), by_suite(short, long));
        assert!(
            pairs >= enough,
            "only {pairs} pairs of operations met: {relation:?}"
        );
    }
    is_of_use(&met, 0.7, 0.01);
    if by_suite(false, true) {
        let has_any =
            |pair: &(&str, &str), of: &[&str]| of.contains(&pair.0) || of.contains(&pair.1);
        let has_both =
            |pair: &(&str, &str), of: &[&str]| of.contains(&pair.0) && of.contains(&pair.1);
        let missing = met.never_on_same().into_iter().filter(|pair| {
            let is_impossible = has_any(pair, &OF_DIRECTORIES) && !has_both(pair, &NAMED);
            // Two that remove one directory at the same time meet in hardly 500 seeds.
            !is_impossible && !has_both(pair, &MOMENTS) && *pair != ("rmdir", "rmdir")
        });
        let missing: Vec<_> = missing.collect();
        assert!(missing.is_empty(), "never on the same: {missing:?}");
    }
}

/// Operations that directories have, too; they have no content.
const NAMED: [&str; 13] = [
    "create", "tmpfile", "link", "unlink", "rmdir", "rename", "lookup", "list", "stat", "chmod",
    "chown", "setxattr", "getxattr",
];
/// Operations that only they have.
const OF_DIRECTORIES: [&str; 2] = ["list", "tmpfile"];
/// What happens at one moment meets only what takes longer.
const MOMENTS: [&str; 2] = ["store", "load"];

#[test]
fn many_programs_are_told_no_lies_when_too_much_breaks() {
    let met = run(Kind::Beyond, 2_000..2_000 + by_suite(12, 250));
    is_of_use(&met, 0.6, 0.02);
}

/// Two of five nodes add their NSDs, of which one joins the others only then, and one of the others is emptied.
#[test]
fn many_programs_agree_while_nsds_come_and_go() {
    let met = run(Kind::Changing, 3_000..3_000 + by_suite(6, 100));
    is_of_use(&met, 0.7, 0.01);
}

/// Programs of two shards at the same time, on the same nodes and NSDs.
#[test]
fn many_programs_of_two_shards_agree_whatever_breaks() {
    let met = run(Kind::Shards, 4_000..4_000 + by_suite(6, 100));
    is_of_use(&met, 0.7, 0.01);
}
