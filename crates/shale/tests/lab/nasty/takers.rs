//! An owner dies, and the node that takes its shard over stands still in the middle of that. A third one takes it over, the
//! second one goes on, and the third one dies, too.

use super::{
    Lab, Told,
    faults::{Fault, others, survive, under_load, until_given_up, until_whole},
    load::Load,
    roles::{Role, Roles},
};
use crate::fixture::signals::signal;
use rustix::process::{Pid, Signal, kill_process};

/// Disks are so slow that a take-over takes a while, and no slower than a log waits for.
const SLOW: [&str; 2] = ["--latency-ms", "25"];
/// Files that each program makes after the taker goes on.
const FILES: u64 = 5;
/// What daemons note of a take-over: when it begins, and when its log is the new owner's.
const ASSIGNED: &str = "the manager has assigned a shard";
const TAKEN: &str = "shard taken over";

/// How often these nodes have noted something.
fn noted(lab: &Lab, nodes: &[u32], what: &str) -> usize {
    nodes.iter().map(|node| lab.noted(*node, what)).sum()
}

/// All disks of the lab are slow, or aren't.
#[track_caller]
fn set_disks(lab: &Lab, how: &[&str]) {
    let names: Vec<_> = lab.nodes().iter().map(u32::to_string).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    lab.must(&[&["slow-disk"][..], &names[..], how].concat());
}

/// What the taker left under way changes nothing of what its successor acknowledges, as the successor's own successor finds.
pub(super) fn a_taker_that_stands_still_and_goes_on_changes_nothing_of_its_successor(
    lab: &Lab,
) -> Told {
    let nodes = lab.nodes();
    let first = Roles::of(lab).one_with(Role::Owner);
    let left = others(&nodes, &[first]);
    // Of nodes that own nothing, the first one is given the shard.
    let (taker, left) = (left[0], &left[1..]);
    let mut kept = Load::start(lab, left);
    let mut was_in_the_middle = false;
    let strike = |load: &mut Load| {
        set_disks(lab, &SLOW);
        let assigned = noted(lab, &nodes, ASSIGNED);
        let taken = noted(lab, &[taker], TAKEN);
        let daemon = lab.daemon(taker);
        load.mark();
        Fault::Kill.strike(lab, &[first]);
        lab.until("another node is given the shard", || {
            let is_so = noted(lab, &nodes, ASSIGNED) > assigned;
            is_so.then_some(()).ok_or_else(|| "it isn't".into())
        });
        signal(daemon, Signal::STOP);
        was_in_the_middle = noted(lab, &[taker], TAKEN) == taken;
        set_disks(lab, &["--off"]);
        // The log may have no other member left.
        lab.must(&["start", &first.to_string()]);
        until_given_up(lab, &[taker]);
        load.gets_on(left, 1);
        // Its watchdog may have ended it, if others took long.
        let _ = kill_process(Pid::from_raw(daemon).expect("a process"), Signal::CONT);
        load.gets_on(left, FILES);
    };
    let mend = || {
        Fault::Stop.mend(lab, &[taker]);
        until_whole(lab);
    };
    let mut pauses = under_load(lab, &[first, taker], strike, mend);
    kept.end(left);
    kept.must_be_seen(lab, &nodes);

    let successor = Roles::of(lab).one_with(Role::Owner);
    pauses.add(&survive(lab, Fault::Kill, &[successor]));
    kept.must_be_seen(lab, &nodes);
    kept.remove(lab, nodes[0]);
    let said = match was_in_the_middle {
        true => "it stood still in the middle",
        false => "it had just taken over",
    };
    Told::of(pauses).with(said.to_owned())
}
