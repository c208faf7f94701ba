//! The disks of quorum nodes are full, on which their members of etcd have their data. With one of three full the cluster goes
//! on as without a member; with all of them full programs wait. When there is room all goes on by itself, and nothing that was
//! acknowledged is lost.

use super::{
    disks, etcd,
    faults::{tells, until_well, until_whole},
    fixture::Lab,
    load::Load,
    quorum::runs_of,
};
use crate::fixture::{signals::signal, skipped, tells_of_directory};
use rustix::process::Signal;
use sim::by_suite;
use std::time::Duration;

/// The node whose disk is full alone ...
const FULL: u32 = 3;
/// ... and one whose member is away after that.
const OTHER: u32 = 1;
/// Files that each program makes while a member is away.
const FILES: u64 = 20;
/// Files that each program makes when most members are back.
const FILES_AFTERWARDS: u64 = 5;
/// A program that has waited for so long isn't only slow.
const WAITS: Duration = Duration::from_secs(2);

/// Whether something is so.
fn is_so(is_so: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    is_so.then_some(()).ok_or_else(otherwise)
}

/// Whether a node keeps such an event about its directory.
fn keeps(lab: &Lab, node: u32, name: &str) -> Result<(), String> {
    let events = lab.ask(node, &["events"]);
    is_so(tells_of_directory(&events, name), || events.to_string())
}

/// Waits until a node says that its disk is full, and what helps.
#[track_caller]
fn until_told(lab: &Lab, node: u32) {
    let full = ["directory ", "its disk is full: ", "free space"];
    lab.until("a node says that its disk is full", || {
        tells(lab, node, full)
    });
    // It can't be kept on the disk.
    lab.until("it is an event", || keeps(lab, node, "critical-begins"));
}

/// Waits until a node's member of etcd has all that was stored before.
#[track_caller]
fn until_caught_up(lab: &Lab, node: u32, stored: u64) {
    lab.until("a member of etcd catches up", || {
        let reached = etcd::revision(lab, node)?;
        is_so(reached >= stored, || format!("{reached} of {stored}"))
    });
}

/// The disk of one of three quorum nodes is full, then there is room again.
#[track_caller]
fn one_is_full(lab: &Lab, nodes: &[u32]) {
    let runs = runs_of(lab, nodes);
    let member = etcd::process(lab, FULL);
    let mut load = Load::start(lab, nodes);
    disks::fill(lab, FULL);
    // It lives as long as it needs no more room.
    lab.until("the member on the full disk ends", || {
        etcd::write(lab, OTHER)?;
        is_so(etcd::process_now(lab, FULL) != Some(member), || {
            "it runs".into()
        })
    });
    until_told(lab, FULL);
    for node in [OTHER, FULL] {
        let away = [
            "coordination",
            "2 of 3 members of etcd work, not ",
            "etcd.log",
        ];
        lab.until("a node says which member is away", || {
            tells(lab, node, away)
        });
    }
    load.gets_on(nodes, FILES);
    let stored = lab.until("the others store more", || {
        etcd::write(lab, OTHER)?;
        etcd::revision(lab, OTHER)
    });

    disks::make_room(lab, FULL);
    until_caught_up(lab, FULL, stored);
    lab.until("the end is an event", || keeps(lab, FULL, "critical-ends"));
    // It counts again: without it there would be no quorum now.
    let other = etcd::process(lab, OTHER);
    signal(other, Signal::STOP);
    lab.until("it stores with the third one", || etcd::write(lab, FULL));
    load.gets_on(nodes, FILES);
    signal(other, Signal::CONT);
    load.end(nodes);
    assert_eq!(runs_of(lab, nodes), runs, "no node had to join again");
    load.must_be_seen(lab, nodes);
    load.remove(lab, nodes[0]);
    until_whole(lab);
}

/// The disks of all quorum nodes are full, then there is room again on most of them, then on all.
#[track_caller]
fn all_are_full(lab: &Lab, nodes: &[u32]) {
    let members: Vec<i32> = nodes.iter().map(|node| etcd::process(lab, *node)).collect();
    let mut load = Load::start(lab, nodes);
    for node in nodes {
        disks::fill(lab, *node);
    }
    let mut through = nodes.iter().cycle();
    lab.until("most members end", || {
        let written = etcd::write(lab, *through.next().expect("it has nodes"));
        let now = nodes.iter().map(|node| etcd::process_now(lab, *node));
        let ended = now.zip(&members).filter(|(now, it)| *now != Some(**it));
        let ended = ended.count();
        is_so(2 * ended > nodes.len(), || {
            format!("{ended} have; {written:?}")
        })
    });
    lab.until("all programs wait", || load.all_wait(nodes, WAITS));
    for node in nodes {
        until_told(lab, *node);
    }

    let (last, most) = nodes.split_last().expect("it has nodes");
    for node in most {
        disks::make_room(lab, *node);
    }
    load.gets_on(nodes, FILES_AFTERWARDS);
    disks::make_room(lab, *last);
    let stored = lab.until("most members store", || {
        etcd::write(lab, most[0])?;
        etcd::revision(lab, most[0])
    });
    until_caught_up(lab, *last, stored);
    load.gets_on(nodes, FILES_AFTERWARDS);
    load.end(nodes);
    load.must_be_seen(lab, nodes);
    load.remove(lab, nodes[0]);
    until_whole(lab);
}

/// It takes minutes.
#[test]
fn full_disks_of_quorum_nodes_lose_nothing_and_all_goes_on_when_there_is_room() {
    let test = "full_disks_of_quorum_nodes_lose_nothing_and_all_goes_on_when_there_is_room";
    if by_suite(true, false) {
        return;
    }
    let all = ["--nodes", "3", "--scheme", "erasure(2+1)"];
    let Some(lab) = Lab::with(&[&all[..], &["--nsd-size", "512M"]].concat()) else {
        return;
    };
    until_whole(&lab);
    if let Err(why) = disks::give(&lab) {
        skipped(test, &why);
        return;
    }
    until_whole(&lab);
    let nodes = lab.nodes();
    one_is_full(&lab, &nodes);
    all_are_full(&lab, &nodes);
    until_well(&lab);
}
