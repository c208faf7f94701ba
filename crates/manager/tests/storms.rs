//! Long random runs: clocks that differ, messages that are lost or late, nodes that die or stand
//! still, managers that change in the middle of a plan.

use super::chance::Chance;
use super::cluster::{Cluster, Life, Message};
use super::{jobs, spaces};
use manager::Planted;
use std::time::Duration;

/// Runs in `make test`; `make test-all` does more.
const RUNS: u64 = 120;
const RUNS_LONG: u64 = 10_000;
/// Of 50 ms each: two minutes.
const TICKS: usize = 2_400;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Weather {
    /// Messages come soon, and nothing breaks: nobody may be expelled.
    Calm,
    /// Nodes die and start again, often the manager's.
    Deaths,
    /// Everything.
    Rough,
    /// Nodes hear nothing of coordination for long, and all else is well.
    Blind,
    /// Everything; the manager's place is doubted, with reason or without, and may last however long nobody keeps it.
    Doubts,
    /// Two nodes don't reach each other for long, and both reach all else.
    Apart,
}

const WEATHERS: [Weather; 6] = [
    Weather::Calm,
    Weather::Deaths,
    Weather::Rough,
    Weather::Blind,
    Weather::Doubts,
    Weather::Apart,
];

impl Weather {
    /// Messages are lost, or late.
    fn is_rough(self) -> bool {
        matches!(self, Self::Rough | Self::Doubts)
    }
}

fn storm(seed: u64, weather: Weather, planted: Option<Planted>) -> Result<(), String> {
    let mut chance = Chance::new(seed * 3 + weather as u64);
    let nodes = 2 + chance.below(4);
    // Two clocks differ by a twentieth at most.
    let drifts: Vec<_> = (0..nodes)
        .map(|_| [-24, 0, 24][chance.below(3) as usize])
        .collect();
    let shards = 1 + chance.below(8) as u32;
    let mut cluster = Cluster::new(&drifts, shards, planted).looking();
    if weather == Weather::Blind {
        // One that isn't the manager loses shards for balance, and may not hear of it.
        let last = cluster.nodes.last().expect("there are nodes").run;
        cluster.give_all_to(last);
    }
    let told = |why| format!("seed {seed}, {weather:?}: {why}");
    let mut slow = 0;
    for tick in 0..TICKS {
        cluster.pass(Duration::from_millis(50));
        if weather.is_rough() && chance.one_in(100) {
            slow = chance.below(nodes * 2) as u32;
        }
        turn(&mut cluster, weather, slow, &mut chance);
        if weather != Weather::Calm {
            fault(&mut cluster, weather, &mut chance);
        }
        let checked = cluster.check();
        checked.map_err(|why| told(format!("tick {tick}: {why}")))?;
    }
    if weather == Weather::Calm && cluster.expelled > 0 {
        return Err(told("somebody was expelled for no reason".into()));
    }
    cluster.come_to_rest().map_err(told)
}

/// The node that a heartbeat or its answer is of.
fn asker(message: &Message) -> Option<u32> {
    match message {
        Message::Heartbeat { from, .. } => Some(from.node.0),
        Message::Reply { to, .. } => Some(to.node.0),
        _ => None,
    }
}

/// What the nodes do by themselves, and which messages arrive; those of the node `slow` come late.
fn turn(cluster: &mut Cluster, weather: Weather, slow: u32, chance: &mut Chance) {
    for at in 0..cluster.nodes.len() {
        if !chance.one_in(3) {
            cluster.read(at);
        }
        cluster.duties(at);
    }
    let mut at = 0;
    while at < cluster.messages.len() {
        let is_slow = asker(&cluster.messages[at]) == Some(slow) && !chance.one_in(30);
        let is_late = is_slow || chance.one_in(3) || !cluster.can_arrive(at);
        let is_request = !matches!(
            cluster.messages[at],
            Message::Told { .. } | Message::Probe { .. }
        );
        if weather.is_rough() && chance.one_in(60) {
            cluster.lose(at, chance.one_in(2));
            at += 1;
        } else if is_late && (is_request || chance.one_in(4)) {
            at += 1;
        } else if cluster.can_arrive(at) {
            cluster.deliver(at);
            // What it caused is at the end; some of that comes in this turn too.
            if chance.one_in(2) {
                at += 1;
            }
        } else {
            at += 1;
        }
    }
}

/// Something breaks, or is mended.
fn fault(cluster: &mut Cluster, weather: Weather, chance: &mut Chance) {
    let nodes = cluster.nodes.len() as u64;
    if weather == Weather::Blind {
        if chance.one_in(400) {
            cluster.cuts.insert((0, chance.below(nodes) as u32 + 1));
        } else if chance.one_in(1_000) {
            cluster.cuts.clear();
        }
        return;
    }
    if weather == Weather::Doubts {
        if chance.one_in(20) {
            cluster.doubt(chance.below(nodes) as usize);
        }
        if chance.one_in(200) {
            cluster.place_stays ^= true;
        }
    }
    if weather == Weather::Apart {
        if chance.one_in(400) {
            let (one, other) = (
                chance.below(nodes) as u32 + 1,
                chance.below(nodes) as u32 + 1,
            );
            if one != other {
                cluster.cuts.insert((one.min(other), one.max(other)));
            }
        } else if chance.one_in(1_000) {
            cluster.cuts.clear();
        }
        return;
    }
    if chance.one_in(3) {
        mend(cluster, chance);
    }
    if !chance.one_in(if weather == Weather::Deaths { 200 } else { 80 }) {
        return;
    }
    let place = cluster
        .store
        .place
        .map(|(run, _)| u64::from(run.node.0) - 1);
    // The manager's node is the most interesting one.
    let at = match place {
        Some(place) if chance.one_in(3) => place as usize,
        _ => chance.below(nodes) as usize,
    };
    let number = at as u32 + 1;
    let kind = match weather {
        Weather::Deaths => [0, 7][chance.below(2) as usize],
        _ => chance.below(8),
    };
    match kind {
        0 => cluster.kill(at),
        1 => cluster.kill_slowly(at),
        2 if cluster.nodes[at].life == Life::Running => cluster.nodes[at].life = Life::Paused,
        3 => drop(cluster.cuts.insert((0, number))),
        4 => {
            let other = chance.below(nodes) as u32 + 1;
            cluster.cuts.insert((number.min(other), number.max(other)));
        }
        5 => cluster.break_connection(at),
        // A rack.
        7 => {
            for beside in 0..1 + nodes as usize / 2 {
                cluster.kill((at + beside) % nodes as usize);
            }
        }
        _ => {
            for other in 0..=nodes as u32 {
                cluster.cuts.insert((number.min(other), number.max(other)));
            }
        }
    }
}

fn mend(cluster: &mut Cluster, chance: &mut Chance) {
    for at in 0..cluster.nodes.len() {
        match cluster.nodes[at].life {
            Life::Down if chance.one_in(60) => cluster.start(at),
            Life::Paused if chance.one_in(70) => cluster.nodes[at].life = Life::Running,
            _ => {}
        }
    }
    if chance.one_in(60) {
        cluster.cuts.clear();
    }
}

#[test]
fn no_two_serve_a_shard_and_no_run_is_expelled_while_its_lease_lasts() {
    let runs = match std::env::var_os("SHALE_LONG") {
        Some(_) => RUNS_LONG,
        None => RUNS,
    };
    let mut expelled = 0;
    for seed in 0..runs {
        for weather in WEATHERS {
            match storm(seed, weather, None) {
                Ok(()) => expelled += 1,
                Err(why) => panic!("{why}"),
            }
        }
    }
    println!("{expelled} storms");
}

#[test]
fn every_planted_fault_is_found() {
    let found = |fault, seed| {
        let mut weathers = WEATHERS.into_iter();
        weathers.find_map(|weather| storm(seed, weather, Some(fault)).err())
    };
    let mut unfound = Vec::new();
    let of_members =
        |fault: &&Planted| !spaces::FAULTS.contains(fault) && !jobs::FAULTS.contains(fault);
    for fault in Planted::ALL.iter().filter(of_members) {
        match (0..200).find_map(|seed| found(*fault, seed)) {
            Some(why) => println!("{fault:?}: {why}"),
            None => unfound.push(fault),
        }
    }
    assert!(unfound.is_empty(), "not found: {unfound:?}");
}
