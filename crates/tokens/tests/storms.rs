//! Long random runs: more clients, clocks that differ, and everything that can go wrong.

use super::cluster::{Budget, Cluster, Step};
use super::explored::{bytes, directory, inode};
use model::TokenMode::{Exclusive, Shared, SharedWrite};
use std::time::Duration;
use tokens::Planted;

/// Runs in `make test`; `make test-all` does more.
const RUNS: u64 = 400;
const RUNS_LONG: u64 = 20_000;
const STEPS: usize = 600;

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

const WEATHERS: [Weather; 3] = [Weather::Rough, Weather::Calm, Weather::Mute];

/// How likely a step is, beside others. Messages arrive soon, faults are rare.
fn weight(step: &Step, weather: Weather) -> usize {
    match step {
        Step::ReclaimAgain(0) if weather == Weather::Mute => 0,
        Step::Renew(_) | Step::Pass(_) if weather == Weather::Mute => 10,
        Step::Deliver(_) => 40,
        Step::EndUse(..) | Step::Flush(..) | Step::OwnerEnds(_) => 20,
        Step::Claim(..) => 3,
        Step::AskAgain(..) | Step::ReclaimAgain(_) | Step::CommitEnd(_) => 10,
        Step::Pass(_) => 4,
        Step::OwnerClaims(..) | Step::Release(..) | Step::GiveUp(..) | Step::Repeat(_) => 1,
        Step::Lose(_) | Step::TakeOver | Step::Renew(_) => 1,
    }
}

/// How much goes wrong outside of the machines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weather {
    /// Everything.
    Rough,
    /// Nothing: messages only overtake each other, and nobody may lose a session.
    Calm,
    /// A new owner, and a client that doesn't say what it holds for a long time.
    Mute,
}

fn budget(weather: Weather, seed: u64, chance: &mut Chance) -> Budget {
    let calm = Budget {
        claims: 40,
        operations: 20,
        passed: 100,
        renewals: 50,
        give_ups: 5,
        releases: 10,
        tick: Duration::from_millis(50),
        ..Budget::default()
    };
    match weather {
        Weather::Calm => calm,
        Weather::Mute => Budget {
            take_overs: 1,
            passed: 200,
            renewals: 400,
            tick: Duration::from_secs(1),
            ..calm
        },
        Weather::Rough => Budget {
            lost: 20,
            repeated: 20,
            passed: 200,
            take_overs: (seed % 4) as u32,
            tick: Duration::from_millis([50, 300, 700, 2500][chance.below(4)]),
            ..calm
        },
    }
}

fn storm(seed: u64, weather: Weather, planted: Option<Planted>) -> Result<(), String> {
    let mut chance = Chance(seed);
    let wants = vec![
        inode(Shared),
        inode(SharedWrite),
        inode(Exclusive),
        bytes(0, 10, Shared),
        bytes(5, 15, Exclusive),
        bytes(10, 20, Exclusive),
        bytes(14, u64::MAX, Shared),
        directory(Shared),
        directory(Exclusive),
    ];
    let budget = budget(weather, seed, &mut chance);
    let clients = 2 + chance.below(3);
    let drift: Vec<i32> = (0..clients).map(|_| chance.below(41) as i32 - 20).collect();
    let mut cluster = Cluster::new(clients, wants, budget, &drift);
    planted.into_iter().for_each(|fault| cluster.plant(fault));
    for number in 0..STEPS {
        let steps = cluster.steps();
        let total: usize = steps.iter().map(|step| weight(step, weather)).sum();
        let mut at = chance.below(total.max(1));
        let chosen = steps
            .into_iter()
            .find(|step| match at.checked_sub(weight(step, weather)) {
                Some(rest) => {
                    at = rest;
                    false
                }
                None => true,
            });
        let Some(step) = chosen else {
            break;
        };
        cluster.take(step);
        let checked = cluster.check();
        checked.map_err(|why| format!("seed {seed}, after step {number}, {step:?}: {why}"))?;
    }
    cluster
        .come_to_rest()
        .map_err(|why| format!("seed {seed}: {why}"))?;
    match (weather, cluster.ended.len()) {
        (Weather::Calm, 1..) => Err(format!("seed {seed}: a session ended for no reason")),
        _ => Ok(()),
    }
}

#[test]
fn nobody_has_what_conflicts_and_nobody_waits_for_ever() {
    let runs = match std::env::var_os("SHALE_LONG") {
        Some(_) => RUNS_LONG,
        None => RUNS,
    };
    for seed in 0..runs {
        for weather in WEATHERS {
            if let Err(why) = storm(seed, weather, None) {
                panic!("{why}");
            }
        }
    }
}

#[test]
fn every_planted_fault_is_found() {
    let is_found = |fault, seed| {
        let mut weathers = WEATHERS.into_iter();
        weathers.any(|weather| storm(seed, weather, Some(fault)).is_err())
    };
    let found = Planted::ALL.iter().map(|fault| {
        let seed = (0..200).find(|seed| is_found(*fault, *seed));
        println!("{fault:?}: seed {seed:?}");
        (fault, seed)
    });
    let unfound: Vec<_> = found.filter(|(_, seed)| seed.is_none()).collect();
    assert_eq!(unfound, []);
}
