//! A pool whose groups are repaired, swept and scrubbed by its servers, with everything that can go
//! wrong: servers die, NSDs are lost, messages are lost and overtake each other, managers change.

use super::chance::Chance;
use super::groups::{Message, Pool, UNIT_BYTES, UNITS};
use manager::jobs::{GroupFact, Kind, NsdFact, Outcome, Planner, Settings, Slot, Worker};
use manager::{Moment, Planted};
use model::member::Term;
use model::{GroupId, GroupVersion, NodeId, NodeRun, NsdId};
use std::collections::BTreeMap;
use std::time::Duration;

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
    assert_eq!(pool.status().done_in, Some(Duration::ZERO));
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

/// Would be broken if sweeps and scrubs made repair look quicker, or if the most endangered data wasn't told apart.
#[test]
fn what_is_left_and_how_fast_it_goes_is_told_of_repairs_alone() {
    let mut pool = Pool::new(8, 60, None);
    pool.come_to_rest().unwrap_or_else(|why| panic!("{why}"));
    pool.calm_round().unwrap_or_else(|why| panic!("{why}"));
    let status = pool.status();
    let told = (status.bytes_left, status.bytes_per_second);
    assert_eq!((told, status.repairs), ((0, 0), 0), "{status:?}");

    // The first group is on the first three NSDs: it has one left.
    let moved = pool.lose(0);
    [1, 2].into_iter().for_each(|at| pool.kill_quietly(at));
    pool.learn();
    let status = pool.status();
    let bytes_of = |groups: u64| groups * UNITS * UNIT_BYTES;
    assert_eq!(status.repairs as u64, moved, "{status:?}");
    assert_eq!(status.bytes_left, bytes_of(moved), "{status:?}");
    let critical = status.critical as u64;
    assert_eq!(status.bytes_critical, bytes_of(critical), "{status:?}");
    assert!((1..moved).contains(&critical), "{status:?}");

    [1, 2].into_iter().for_each(|at| pool.start(at));
    let mut fastest = 0;
    while !pool.is_at_rest() {
        pool.calm_round().unwrap_or_else(|why| panic!("{why}"));
        fastest = fastest.max(pool.status().bytes_per_second);
    }
    assert!(fastest > 0, "{:?}", pool.status());
    pool.calm_round().unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(pool.status().bytes_per_second, 0);
}

#[test]
fn a_repair_that_ends_before_it_has_said_how_far_it_is_counts_for_the_expected_end() {
    let run = NodeRun {
        node: NodeId(1),
        incarnation: 1,
    };
    let nsd = NsdFact {
        home: run.node,
        serves: true,
        opened: 1,
    };
    let group = |number: u32| GroupFact {
        group: GroupId(number),
        version: GroupVersion(1),
        tolerance: 1,
        slots: vec![Slot {
            current: NsdId(1),
            next: None,
        }],
        bytes: 6_000,
    };
    let settings = Settings {
        sweep_every: Duration::from_secs(200),
        scrub_every: Duration::from_secs(300),
        node_bytes_per_second: 1_000_000,
    };
    let at = |seconds: u64| Moment(Duration::from_secs(seconds));
    let mut planner = Planner::begin(Term(1), settings, at(0));
    planner.learn_map(vec![group(0), group(1)]);
    planner.learn_nsds(BTreeMap::from([(NsdId(1), nsd)]));
    planner.begin_server(run);
    let mut worker = Worker::default();
    // It hears of the manager, says that it has nothing, and is ordered to repair.
    for second in 1..=3 {
        planner.tick(at(second));
        let orders = planner.hear(run, &worker.state(at(second)), at(second));
        worker.ordered(&orders.expect("it is a server"));
    }
    let is_repair = |kind: Kind| kind == Kind::Repair;
    let ordered = worker.jobs().find(|(it, _)| is_repair(it.job.kind));
    let (ordered, _) = ordered.expect("both groups want one");
    worker.end(ordered.job, ordered.attempt, Outcome::Complete, at(4));
    planner.hear(run, &worker.state(at(4)), at(4));
    planner.tick(at(5));
    let status = planner.status();
    assert_eq!((status.repairs, status.bytes_left), (1, 6_000));
    assert_eq!(status.bytes_per_second, 1_500, "in four seconds");
    assert_eq!(status.done_in, Some(Duration::from_secs(4)));
    let share = planner.shares()[&run.node];
    assert_eq!(share.led, share.taking_part);
    assert!(share.led > 0 && share.bytes_per_second <= 1_000_000);
}
