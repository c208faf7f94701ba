//! Faults planted in the program: each of them is found. `docs/planted-faults.md` lists them.

use crate::catalogue::is_not_found_yet;
use crate::noted::figure;
use crate::space::{self, Trouble};
use crate::{growing, jobs, stories};
use sim::cluster::{ClusterScenario, CrowdScenario, FaultKind, Mix, run_crowd_with, run_with};
use sim::shrink::shrink;
use sim::{by_suite, each_seed};
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::Planted;

/// Seeds until a fault must have been found.
const SEEDS_MAX: u64 = 200;
/// A search that takes so many runs more than it did is a figure: [`first_seed`] is to be set anew, or `make test` gets
/// longer with each change of the program.
const LATE: u64 = 8;

/// Runs a seed where the fault shows: a story, or random actions under the kinds of trouble that
/// it takes.
fn look(seed: u64, planted: Planted, plant: bool) {
    use FaultKind::{
        CutAllPower, HangDisk, Isolate, Kill, KillOwner, Move, MoveThereAndBack, MoveUnheard,
        PauseOwner, SlowDisk,
    };
    let plant = plant.then_some(planted);
    let crowd_under = |mix| {
        let scenario = CrowdScenario {
            cluster: ClusterScenario {
                mix,
                faults: 5,
                ..CrowdScenario::WITHIN.cluster
            },
            points: &[],
            ..CrowdScenario::WITHIN
        };
        run_crowd_with(seed, &scenario, plant);
    };
    let mix = match planted {
        Planted::SkipFlush => Mix(&[CutAllPower]),
        Planted::IgnoreSeal | Planted::ForgetSeal => {
            Mix(&[PauseOwner, MoveThereAndBack, MoveUnheard, Isolate])
        }
        Planted::AcknowledgeEarly | Planted::ReplayShort => {
            Mix(&[KillOwner, Kill, HangDisk, Move, SlowDisk])
        }
        Planted::ApplyTwice => Mix(&[KillOwner, MoveThereAndBack, MoveUnheard, Isolate]),
        Planted::AnswerLate => {
            stories::there_and_back(seed, plant);
            return;
        }
        Planted::PublishEarly => Mix(&[CutAllPower, Kill, KillOwner]),
        Planted::DropSessionRecord => Mix(&[Move, KillOwner, Kill]),
        Planted::DiscardUnfenced => {
            stories::paused_taker(seed, plant);
            return;
        }
        Planted::FreeLive => {
            stories::cleaned(seed, plant);
            return;
        }
        Planted::SweepOpen => {
            stories::unpublished(seed, plant);
            return;
        }
        Planted::DropEarly => {
            growing::apart(seed, plant);
            return;
        }
        Planted::OneFailureGroup => {
            growing::apart(seed, plant);
            return;
        }
        Planted::IgnoreVersion => {
            growing::moved(seed, plant);
            return;
        }
        Planted::ArriveEarly => {
            growing::grown(seed, plant);
            return;
        }
        Planted::IgnorePace => {
            jobs::limited(seed, plant);
            return;
        }
        Planted::SkipFailed => {
            jobs::unjudged(seed, plant);
            return;
        }
        Planted::DropRecall
        | Planted::GrantTwice
        | Planted::OneByteShort
        | Planted::ReturnEarly
        | Planted::ReturnUnflushed
        | Planted::KeepBytes
        | Planted::KeepAttributes
        | Planted::ClaimNothing
        | Planted::ListOld
        | Planted::KeepSpace => {
            run_crowd_with(seed, &CrowdScenario::CALM, plant);
            return;
        }
        // In each fourth seed clients keep names, and in each third one messages take longer.
        Planted::RecallLate => {
            run_crowd_with(12 * seed + 11, &CrowdScenario::CALM, plant);
            return;
        }
        // Clients are killed while they have something.
        Planted::KeepLocks | Planted::KeepHolds | Planted::SyncNothing => {
            crowd_under(Mix(&[Kill, CutAllPower]));
            return;
        }
        Planted::GrantInGrace | Planted::AnswerUndurable => {
            run_crowd_with(seed, &CrowdScenario::WITHIN, plant);
            return;
        }
        // Something is on the way all the time.
        Planted::KeepLost | Planted::ShowUndurable => {
            let mix = match planted {
                Planted::KeepLost => Mix(&[Move, MoveUnheard]),
                _ => Mix(&[KillOwner]),
            };
            crowd_under(mix);
            return;
        }
        Planted::TakeUnasked => {
            space::filled(seed, Trouble::Nothing, plant);
            return;
        }
        Planted::ClaimNoRoom => {
            space::filled(seed, Trouble::ManagerKilled, plant);
            return;
        }
        Planted::ForgetReplies => {
            stories::applied_once(seed, plant);
            return;
        }
        // In even seeds programs map files.
        Planted::KeepPages | Planted::FillShared | Planted::CopyUnasked => {
            run_crowd_with(2 * seed, &CrowdScenario::CALM, plant);
            return;
        }
        // Storms of clients do: `client/tests/planted.rs`.
        Planted::KeepOneByte
        | Planted::UseTaken
        | Planted::KeepInKernels
        | Planted::ReturnUnstreamed => return,
    };
    let scenario = ClusterScenario {
        steps: 1_500,
        turn_steps: 500,
        faults: 6,
        mix,
        ..ClusterScenario::USUAL
    };
    run_with(seed, &scenario, plant);
}

/// Where the search begins: a seed that found the fault before, which saves minutes. Any change of
/// the program may move it.
fn first_seed(planted: Planted) -> u64 {
    match planted {
        Planted::IgnoreSeal => 15,
        Planted::ForgetSeal => 18,
        Planted::AcknowledgeEarly => 34,
        Planted::ReplayShort => 5,
        Planted::PublishEarly => 18,
        Planted::ApplyTwice => 17,
        Planted::GrantInGrace => 9,
        Planted::ArriveEarly => 11,
        Planted::KeepAttributes => 61,
        Planted::AnswerUndurable => 5,
        Planted::KeepLost => 4,
        Planted::ShowUndurable => 62,
        Planted::SkipFailed => 25,
        _ => 0,
    }
}

/// Those that only storms of clients find.
const IN_CLIENTS: &[Planted] = &[
    Planted::KeepOneByte,
    Planted::UseTaken,
    Planted::KeepInKernels,
    Planted::ReturnUnstreamed,
];

/// Those that `make test` plants, too: all that are found by one of the first seeds, in seconds.
const SHORT: &[Planted] = &[
    Planted::SkipFlush,
    Planted::AnswerLate,
    Planted::IgnoreSeal,
    Planted::ForgetSeal,
    Planted::AcknowledgeEarly,
    Planted::ReplayShort,
    Planted::ApplyTwice,
    Planted::DropSessionRecord,
    Planted::PublishEarly,
    Planted::DiscardUnfenced,
    Planted::FreeLive,
    Planted::SweepOpen,
    Planted::DropEarly,
    Planted::OneFailureGroup,
    Planted::GrantTwice,
    Planted::OneByteShort,
    Planted::GrantInGrace,
    Planted::ReturnEarly,
    Planted::ReturnUnflushed,
    Planted::KeepBytes,
    Planted::ForgetReplies,
    Planted::KeepLost,
    Planted::TakeUnasked,
    Planted::ClaimNoRoom,
    Planted::IgnorePace,
    Planted::ArriveEarly,
];

/// The first seed whose run fails with the fault. Without it the same run must succeed.
fn find(planted: Planted) -> Option<u64> {
    let first = first_seed(planted);
    let found = (first..first + SEEDS_MAX).find(|seed| {
        let run = || look(*seed, planted, true);
        catch_unwind(AssertUnwindSafe(run)).is_err()
    })?;
    look(found, planted, false);
    Some(found)
}

/// `PLANTED=GrantTwice,KeepBytes` looks for these alone.
#[test]
fn every_planted_fault_is_found() {
    let all = by_suite(SHORT, Planted::ALL);
    let only = std::env::var("PLANTED").unwrap_or_default();
    each_seed(0..all.len() as u64, |number| {
        let planted = all[number as usize];
        let is_wanted = match only.is_empty() {
            true => !is_not_found_yet(planted) && !IN_CLIENTS.contains(&planted),
            false => only.split(',').any(|name| name == format!("{planted:?}")),
        };
        if !is_wanted {
            return;
        }
        let found = find(planted);
        println!("{planted:?}: seed {found:?}");
        let Some(seed) = found else {
            panic!("{planted:?} isn't found within {SEEDS_MAX} seeds");
        };
        let first = first_seed(planted);
        if seed - first >= LATE {
            figure(&format!(
                "the planted fault {planted:?} is looked for from seed {first} on and found by {seed}: say so in first_seed"
            ));
        }
    });
}

/// The same scenarios find nothing in the program as it is.
#[test]
fn nothing_is_found_where_nothing_is_planted() {
    each_seed(0..by_suite(6, 400), |seed| {
        let all = Planted::ALL;
        look(seed, all[seed as usize % all.len()], false);
    });
}

/// Stories beside those above, each with a fault that they must find.
#[test]
fn stories_find_what_they_tell_of() {
    let finds = |planted, story: fn(u64, Option<Planted>) -> u64| {
        let fails = |seed: &u64| catch_unwind(|| story(*seed, Some(planted))).is_err();
        let found = (0..SEEDS_MAX).find(fails);
        println!("{planted:?}, a story: seed {found:?}");
        assert!(found.is_some(), "{planted:?} isn't found");
    };
    // Found by few seeds.
    if by_suite(false, true) {
        finds(Planted::ReplayShort, stories::seen);
    }
    finds(Planted::ApplyTwice, stories::applied_once);
    finds(Planted::DropSessionRecord, stories::without_names);
}

/// Would be broken if what is kept of a seed that failed hid the cause behind faults and steps that it doesn't need.
#[test]
fn a_crowd_that_fails_is_made_smaller() {
    let scenario = CrowdScenario::WITHIN;
    let planted = Some(Planted::GrantTwice);
    let small = shrink(1_100, &scenario, planted).expect("it fails");
    assert_eq!(
        (small.cluster.faults, small.points),
        (0, &[][..]),
        "{small:?}"
    );
    assert!(small.steps < scenario.steps, "{small:?}");
    assert!(
        shrink(1_100, &small, None).is_none(),
        "nothing else is wrong"
    );
}
