//! A pool's ledgers, one after the other, and its holders, whose messages are lost, repeated and
//! overtake each other.

use super::chance::Chance;
use super::pools::{Message, Scene};
use manager::Planted;

const RUNS: u64 = 1_000;
const RUNS_LONG: u64 = 20_000;
const STEPS: usize = 3_000;

/// Those that have to do with space.
pub(crate) const FAULTS: [Planted; 12] = [
    Planted::LoseSlice,
    Planted::GiveReserve,
    Planted::ForgetReturn,
    Planted::FullEarly,
    Planted::KeepIdle,
    Planted::ReviveEnded,
    Planted::ForgetUnsaid,
    Planted::ForgetClaim,
    Planted::GiveBeforeClaims,
    Planted::HearEarlierLedger,
    Planted::MeasureEarly,
    Planted::ForgetOwed,
];

fn storm(seed: u64, planted: Option<Planted>) -> Result<u32, String> {
    let mut chance = Chance::new(seed);
    let told = |why: String| format!("seed {seed}: {why}");
    let capacity = [10 << 20, 200 << 20, 4 << 30][chance.below(3) as usize];
    let holders = 2 + chance.below(4) as u32;
    let mut scene = Scene::new(capacity, holders, planted);
    let bytes_max = capacity / (5 + chance.below(60));
    for _ in 0..STEPS {
        let messages = scene.messages.len() as u64;
        let at = chance.below(messages.max(1)) as usize;
        match chance.below(20) {
            0 if messages > 0 => drop(scene.messages.remove(at)),
            1 if messages > 0 && messages < 300 => {
                scene.messages.push(scene.messages[at].clone());
            }
            2 if chance.one_in(40) => {
                let at = chance.below(scene.holders.len() as u64) as usize;
                scene.end(at);
            }
            2 if chance.one_in(60) => scene.change_ledger(),
            2 => scene.by_itself(&mut chance),
            3..11 if messages > 0 => scene.deliver(at).map_err(told)?,
            _ => {
                let at = chance.below(scene.holders.len() as u64) as usize;
                scene.act(at, &mut chance, bytes_max);
            }
        }
        scene.check().map_err(told)?;
    }
    scene.come_to_rest().map_err(told)?;
    Ok(scene.failed)
}

#[test]
fn space_is_never_promised_twice_nor_lost_and_full_means_full() {
    let runs = match std::env::var_os("SHALE_LONG") {
        Some(_) => RUNS_LONG,
        None => RUNS,
    };
    let mut failed = 0;
    for seed in 0..runs {
        match storm(seed, None) {
            Ok(count) => failed += count,
            Err(why) => panic!("{why}"),
        }
    }
    println!("the pools were full {failed} times");
    assert!(failed > 200, "the pools were full {failed} times");
}

/// The last byte above the reserve can be written, wherever the slices are, and not one more.
#[test]
fn a_write_fails_only_when_no_slice_anywhere_can_be_recalled() {
    for seed in 0..50 {
        let mut chance = Chance::new(seed);
        let mut scene = Scene::new(100 << 20, 4, None);
        for _ in 0..400 {
            let at = chance.below(4) as usize;
            scene.act(at, &mut chance, 4 << 20);
            while !scene.messages.is_empty() {
                scene.deliver(0).unwrap_or_else(|why| panic!("{why}"));
            }
        }
        scene
            .come_to_rest()
            .unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        // Everything that may be had is taken now.
        scene.failed = 0;
        scene.holders[1].waits = Some(1);
        assert!(!scene.holders[1].purse.take(1));
        for _ in 0..4 {
            (0..4).for_each(|at| scene.say(at));
            while let Some(message) = scene.messages.first() {
                assert!(!matches!(message, Message::Up(from, ..) if from.node.0 > 4));
                scene.deliver(0).unwrap_or_else(|why| panic!("{why}"));
            }
        }
        assert!(scene.failed > 0, "seed {seed}: the pool is full");
        assert_eq!(scene.holders[1].waits, None, "seed {seed}: it was told so");
    }
}

#[test]
fn every_planted_fault_of_space_is_found() {
    let mut unfound = Vec::new();
    for fault in FAULTS {
        match (0..200).find_map(|seed| storm(seed, Some(fault)).err()) {
            Some(why) => println!("{fault:?}: {why}"),
            None => unfound.push(fault),
        }
    }
    assert!(unfound.is_empty(), "not found: {unfound:?}");
}
