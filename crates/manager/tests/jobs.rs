//! A pool whose groups are repaired, swept and scrubbed by its servers, with everything that can go
//! wrong: servers die, NSDs are lost, messages are lost and overtake each other, managers change.

use super::chance::Chance;
use super::groups::{Message, Pool, UNITS};
use manager::Planted;
use manager::jobs::Kind;

const RUNS: u64 = 150;
const RUNS_LONG: u64 = 5_000;
const STEPS: usize = 4_000;

/// Those that have to do with jobs.
pub(crate) const FAULTS: [Planted; 5] = [
    Planted::AnyOrder,
    Planted::TakeAnyStamp,
    Planted::KeepCursor,
    Planted::AssignUnheard,
    Planted::Overload,
];

fn storm(seed: u64, planted: Option<Planted>) -> Result<u64, String> {
    let mut chance = Chance::new(seed);
    let told = |why: String| format!("seed {seed}: {why}");
    let nodes = 4 + chance.below(6) as u32;
    let mut pool = Pool::new(nodes, 8 + chance.below(60) as u32, planted);
    for _ in 0..STEPS {
        let messages = pool.messages.len() as u64;
        let message = chance.below(messages.max(1)) as usize;
        let node = chance.below(u64::from(nodes)) as usize;
        match chance.below(24) {
            0 if messages > 0 => drop(pool.messages.remove(message)),
            1 if messages > 0 && messages < 100 => {
                pool.messages.push(pool.messages[message].clone());
            }
            2 if chance.one_in(12) => pool.kill(node),
            2 | 3 if chance.one_in(4) => pool.start(node),
            3 if chance.one_in(15) => _ = pool.lose(node),
            3 if chance.one_in(25) => pool.change_manager(),
            4 => pool.write(&mut chance),
            5 | 6 => pool.tick().map_err(told)?,
            7..11 if messages > 0 => pool.deliver(message),
            11..15 => pool.say(node, chance.one_in(8)),
            15..17 => pool.learn(),
            _ => pool.work(node),
        }
        pool.check().map_err(told)?;
    }
    pool.come_to_rest().map_err(told)?;
    Ok(pool.units)
}

#[test]
fn every_group_is_repaired_the_most_endangered_first_and_no_node_has_too_much_to_do() {
    let runs = match std::env::var_os("SHALE_LONG") {
        Some(_) => RUNS_LONG,
        None => RUNS,
    };
    let units = (0..runs).map(|seed| storm(seed, None).unwrap_or_else(|why| panic!("{why}")));
    println!("{} units were done", units.sum::<u64>());
}

#[test]
fn every_planted_fault_of_jobs_is_found() {
    let mut unfound = Vec::new();
    for fault in FAULTS {
        let found = match fault {
            Planted::AssignUnheard => work_after_a_change(Some(fault)).err(),
            _ => (0..200).find_map(|seed| storm(seed, Some(fault)).err()),
        };
        match found {
            Some(why) => println!("{fault:?}: {why}"),
            None => unfound.push(fault),
        }
    }
    assert!(unfound.is_empty(), "not found: {unfound:?}");
}

/// A lost NSD's groups are repaired, and the manager changes meanwhile.
fn work_after_a_change(planted: Option<Planted>) -> Result<(), String> {
    let mut pool = Pool::new(8, 60, planted);
    pool.come_to_rest()?;
    let before = pool.units;
    let groups = pool.lose(0);
    for round in 0..10_000 {
        if round == 10 {
            pool.change_manager();
            // One server after the other finds it.
            for node in 0..8 {
                for _ in 0..2 {
                    pool.say(node, false);
                    while !pool.messages.is_empty() {
                        pool.deliver(0);
                    }
                }
                pool.tick()?;
            }
        }
        pool.calm_round()?;
        if pool.is_at_rest() {
            break;
        }
    }
    // The slots' move, and a look at each group after its slots were switched.
    let least = groups * UNITS * 2;
    let done = pool.units - before;
    if done > least {
        return Err(format!("{done} units were done of {least}"));
    }
    Ok(())
}

#[test]
fn a_new_manager_repeats_next_to_nothing_of_what_was_done() {
    work_after_a_change(None).unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn what_a_dead_server_had_done_isnt_done_again() {
    let mut pool = Pool::new(8, 1, None);
    pool.come_to_rest().unwrap_or_else(|why| panic!("{why}"));
    let moved = pool.lose(pool.home_of_first());
    assert_eq!(moved, 1);
    let before = pool.units;
    while pool.units < before + UNITS / 2 {
        pool.calm_round().unwrap_or_else(|why| panic!("{why}"));
    }
    let leader = pool.leaders(Kind::Repair)[0];
    let reached = pool.units - before;
    pool.calm_say();
    pool.kill_quietly(leader);
    while pool
        .leaders(Kind::Repair)
        .first()
        .is_none_or(|it| *it == leader)
    {
        pool.calm_round().unwrap_or_else(|why| panic!("{why}"));
    }
    let from = pool.begun_at(Kind::Repair);
    assert!(from + 2 >= reached && from > 0, "{from} of {reached}");
}

#[test]
fn the_expected_end_is_told_and_comes() {
    let mut pool = Pool::new(8, 60, None);
    pool.come_to_rest().unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(pool.status().done_in, Some(std::time::Duration::ZERO));
    pool.lose(0);
    let mut told = Vec::new();
    while !pool.is_at_rest() {
        pool.calm_round().unwrap_or_else(|why| panic!("{why}"));
        told.extend(
            pool.status()
                .done_in
                .map(|left| (pool.now, pool.now + left)),
        );
    }
    let middle = told[told.len() / 3];
    let (begun, end) = (told[0].0, pool.now);
    let wrong = middle.1.abs_diff(end);
    assert!(wrong < (end - begun) * 2, "{middle:?} {end:?}");
    assert!(!matches!(pool.messages.first(), Some(Message::Orders(..))));
}
