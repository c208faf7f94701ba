//! Calendars that are an hour off, and jump, on nodes under a load.

use super::{
    faults::until_whole,
    fixture::Lab,
    load::{Load, Pauses},
    roles::{Role, Roles},
};
use crate::fixture::{
    calendar::{AHEAD, BEHIND, Calendar, HOUR, RIGHT, library},
    figure, skipped,
};
use std::{
    fs,
    path::Path,
    time::{Instant, SystemTime},
};

/// Runs when there is time.
const RUNS: usize = 10;
/// Files that each program makes under a calendar that is ahead, and under one that is behind. With the pauses between them
/// both together take longer than a lease, which is renewed several times meanwhile. In a long run twice as many.
const FILES: u64 = 25;
/// The same when it is right again.
const FILES_AFTERWARDS: u64 = 10;
/// Seconds that surely lie between an hour ahead and an hour behind.
const TWO_HOURS: u64 = 7_000;

/// Starts the daemons of all nodes anew, all at once, each with a calendar that is right.
#[track_caller]
fn start_all(lab: &Lab, library: &Path) -> Vec<Calendar> {
    let nodes = lab.nodes();
    let file = |node: &u32| lab.dir.with_file_name(format!("n{node}.calendar"));
    let calendars = nodes.iter().map(|node| Calendar::right(file(node)));
    let mut calendars: Vec<_> = calendars.collect();
    let names: Vec<_> = nodes.iter().map(u32::to_string).collect();
    let mut kill = vec!["kill"];
    kill.extend(names.iter().map(String::as_str));
    lab.must(&kill);
    // None of them serves before most of them run.
    std::thread::scope(|scope| {
        for (node, calendar) in nodes.iter().zip(&mut calendars) {
            scope.spawn(move || start(lab, *node, calendar, library));
        }
    });
    calendars
}

/// Starts a node's daemon that was killed.
#[track_caller]
fn start(lab: &Lab, node: u32, calendar: &mut Calendar, library: &Path) {
    let variables = calendar.variables(library);
    let variables = variables.each_ref().map(String::as_str);
    let start = [env!("CARGO_BIN_EXE_shale"), "up"];
    let command = [&["env"][..], &variables, &start].concat();
    lab.exec(node, &command);
    calendar.note_daemon(lab.daemon(node));
}

/// The seconds by which a node says that its calendar lags, or was set back after a moment; 0: it doesn't.
fn set_back(lab: &Lab, node: u32, after: Instant) -> u64 {
    let health = lab.ask(node, &["health"]);
    let mut events = health["events"].as_array().into_iter().flatten();
    let told = events.find(|event| event["subject"] == "clock");
    let message = told.and_then(|event| event["message"].as_str());
    let words = message.unwrap_or_default().split(' ');
    let mut numbers = words.filter_map(|word| word.parse::<u64>().ok());
    let seconds = numbers.next().unwrap_or(0);
    // What was set back is told for a day, with how long ago that was: also what an earlier run did.
    match numbers.next() {
        Some(ago) if ago > after.elapsed().as_secs() => 0,
        _ => seconds,
    }
}

/// By how many seconds a new directory is dated later than now.
fn ahead(lab: &Lab, node: u32) -> u64 {
    let path = lab.path(node, "dated");
    fs::create_dir(&path).unwrap();
    let made = fs::metadata(&path).unwrap().modified().unwrap();
    fs::remove_dir(&path).unwrap();
    let ahead = made.duration_since(SystemTime::now());
    ahead.map_or(0, |it| it.as_secs())
}

/// How often each node has joined.
#[track_caller]
fn incarnations(lab: &Lab, nodes: &[u32]) -> Vec<u64> {
    let one = |node: &u32| {
        let status = lab.ask(*node, &["status"]);
        let incarnation = status["cluster"]["incarnation"].as_u64();
        incarnation.unwrap_or_else(|| panic!("n{node}: {status}"))
    };
    nodes.iter().map(one).collect()
}

/// A node's calendar is an hour ahead, then an hour behind, then right. Returns how long programs were held up.
#[track_caller]
fn go_wrong(lab: &Lab, node: u32, calendar: &Calendar, is_owner: bool) -> Pauses {
    let nodes = lab.nodes();
    let before = incarnations(lab, &nodes);
    let files = sim::by_suite(FILES, 2 * FILES);
    let mut load = Load::start(lab, &nodes);
    load.mark();
    calendar.set(AHEAD);
    if is_owner {
        // Others are dated by the owner's calendar at most.
        lab.until("its calendar is ahead", || match ahead(lab, node) {
            seconds if seconds > HOUR => Ok(()),
            seconds => Err(format!("{seconds} s")),
        });
    }
    load.gets_on(&nodes, files);
    // Asked for its health, it looks at its calendar: the next look is compared with this one.
    lab.ask(node, &["health"]);
    let behind = Instant::now();
    calendar.set(BEHIND);
    lab.until("its calendar was set back", || {
        let seconds = set_back(lab, node, behind);
        (seconds > TWO_HOURS)
            .then_some(())
            .ok_or_else(|| format!("{seconds} s"))
    });
    load.gets_on(&nodes, files);
    calendar.set(RIGHT);
    load.gets_on(&nodes, FILES_AFTERWARDS);
    let pauses = load.pauses(&nodes);
    load.end(&nodes);
    load.must_be_seen(lab, &nodes);
    load.remove(lab, nodes[0]);
    assert_eq!(incarnations(lab, &nodes), before, "no node was expelled");
    pauses
}

#[test]
fn a_calendar_that_is_an_hour_off_and_jumps_costs_no_lease_and_no_byte() {
    let Some(lab) = Lab::up(3, "erasure(2+1)") else {
        return;
    };
    let Some(library) = library() else {
        let test = std::thread::current().name().unwrap_or("clocks").to_owned();
        skipped(&test, "libfaketime isn't installed");
        return;
    };
    until_whole(&lab);
    let calendars = start_all(&lab, &library);
    until_whole(&lab);
    let runs = sim::by_suite(1, RUNS);
    let mut worst = Pauses::default();
    for _ in 0..runs {
        let roles = Roles::of(&lab);
        let owner = roles.one_with(Role::Owner);
        let other = lab.nodes().into_iter().find(|node| *node != owner);
        for node in [owner, other.expect("there are three")] {
            let calendar = &calendars[node as usize - 1];
            worst.add(&go_wrong(&lab, node, calendar, node == owner));
        }
        until_whole(&lab);
    }
    figure(&format!(
        "lab: a calendar an hour off and jumping: longest operations {worst}, worst of {runs}"
    ));
}
