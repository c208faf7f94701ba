//! Faults planted in the program: each of them is found. `docs/planted-faults.md` lists them.

use sim::cluster::{ClusterScenario, FaultKind, Mix, run_with};
use sim::{by_suite, each_seed};
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::Planted;

/// Seeds until a fault must have been found.
const SEEDS_MAX: u64 = 200;

/// Where to look for a fault: the kinds of trouble in which it shows.
fn scenario(planted: Planted) -> ClusterScenario {
    use FaultKind::{
        CutAllPower, HangDisk, Isolate, Kill, KillOwner, Move, MoveThereAndBack, MoveUnheard,
        PauseOwner, SlowDisk,
    };
    let mix = match planted {
        Planted::SkipFlush => Mix(&[CutAllPower]),
        Planted::IgnoreSeal | Planted::ForgetSeal => {
            Mix(&[PauseOwner, MoveThereAndBack, MoveUnheard, Isolate])
        }
        Planted::AcknowledgeEarly | Planted::ReplayShort => {
            Mix(&[KillOwner, Kill, HangDisk, Move, SlowDisk])
        }
        Planted::ApplyTwice | Planted::AnswerLate => {
            Mix(&[KillOwner, MoveThereAndBack, MoveUnheard, Isolate])
        }
        Planted::PublishEarly => Mix(&[CutAllPower, Kill, KillOwner]),
        Planted::DropSessionRecord => Mix(&[Move, KillOwner, Kill]),
    };
    ClusterScenario {
        steps: 1_500,
        turn_steps: 500,
        faults: 6,
        mix,
        ..ClusterScenario::USUAL
    }
}

/// The first seed whose run fails with the fault. Without it the same run must succeed.
fn find(planted: Planted) -> Option<u64> {
    let scenario = scenario(planted);
    let found = (0..SEEDS_MAX).find(|seed| {
        let run = || run_with(*seed, &scenario, Some(planted));
        catch_unwind(AssertUnwindSafe(run)).is_err()
    })?;
    run_with(found, &scenario, None);
    Some(found)
}

#[test]
fn every_planted_fault_is_found() {
    let all = Planted::ALL;
    each_seed(0..all.len() as u64, |number| {
        let planted = all[number as usize];
        let found = find(planted);
        println!("{planted:?}: seed {found:?}");
        assert!(
            found.is_some(),
            "{planted:?} isn't found within {SEEDS_MAX} seeds"
        );
    });
}

/// The same scenarios find nothing in the program as it is.
#[test]
fn nothing_is_found_where_nothing_is_planted() {
    each_seed(0..by_suite(9, 400), |seed| {
        let all = Planted::ALL;
        run_with(seed, &scenario(all[seed as usize % all.len()]), None);
    });
}
