//! Nodes of a lab are killed, fall silent or are cut off, whatever they are to their cluster: the others go on. How long they
//! were held up is a figure as soon as the runs of a row are over; only what hangs fails.
//!
//! Each fault has a test with a lab of its own and a row for each role. With `SHALE_LONG` all rows run, ten times;
//! `SHALE_ROW=owner` runs only those whose name contains that, `SHALE_RUNS=3` runs each three times.

use super::{
    faults::{Fault, survive, survive_blow, until_well, until_whole},
    fixture::Lab,
    load::{Load, Pauses},
    roles::{Role, Roles, gather, lead_too, leads_given_away},
    worst::Worst,
};
use sim::by_suite;
use std::time::Instant;

/// Runs of each row when there is time.
const RUNS: usize = 10;
/// Attempts to hit a node while it leads etcd, too. Most succeed at the first.
const BLOWS_MAX: usize = 4;

/// Whom a fault hits.
#[derive(Clone, Copy)]
enum Target {
    /// A node that has a role, and few others.
    One(Role),
    /// A node that is the manager, owns the shard and leads etcd, too.
    Everything,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::One(role) => role.name(),
            Self::Everything => "everything at once",
        }
    }

    /// Has a node of this kind suffer a fault, and come back; returns what others felt, and what the node was.
    #[track_caller]
    fn suffers(self, lab: &Lab, fault: Fault) -> (Pauses, String) {
        match self {
            Self::One(role) => {
                let roles = Roles::of(lab);
                let node = roles.one_with(role);
                (survive(lab, fault, &[node]), roles.names(node))
            }
            Self::Everything => everything_suffers(lab, fault),
        }
    }
}

/// Has a node that is everything suffer a fault; returns the same. Only a run counts in which it still led etcd when it was hit.
#[track_caller]
fn everything_suffers(lab: &Lab, fault: Fault) -> (Pauses, String) {
    for _ in 0..BLOWS_MAX {
        let node = gather(lab);
        let names = Roles::of(lab).names(node);
        let mut has_led = false;
        let blow = |load: &mut Load| {
            let given_away = lead_too(lab, node);
            load.mark();
            fault.strike(lab, &[node]);
            // From here on it notes nothing, or can't give it away: it reaches no other member.
            has_led = leads_given_away(lab, node) == given_away;
        };
        let pauses = survive_blow(lab, fault, &[node], blow);
        if has_led {
            return (pauses, names);
        }
        eprintln!("n{node} gave the lead of etcd away before it was hit: once more");
    }
    panic!("no node is hit while it leads etcd");
}

/// Whom a fault hits, one after the other.
fn rows(fault: Fault) -> Vec<Target> {
    let all = Role::ALL.map(Target::One).into_iter();
    let all = all.chain([Target::Everything]).collect();
    let short = match fault {
        Fault::Kill => vec![Target::One(Role::Owner)],
        // Its roles are together when a lab is new.
        Fault::Stop => vec![Target::Everything],
        // Two of six are: the other test.
        Fault::Partition => Vec::new(),
    };
    let mut rows = by_suite(short, all);
    rows.retain(|target| is_wanted(target.name()));
    rows
}

/// Whether the row with this name shall run.
fn is_wanted(row: &str) -> bool {
    let only = std::env::var("SHALE_ROW").ok();
    only.is_none_or(|only| row.contains(&only))
}

/// How often each row runs.
fn runs() -> usize {
    match std::env::var("SHALE_RUNS") {
        Ok(number) => number.parse().expect("SHALE_RUNS is a number"),
        Err(_) => by_suite(1, RUNS),
    }
}

/// Runs a row: `suffers` has nodes suffer the fault and come back, and returns what others felt, and what else there is to say;
/// `rest` is what must be so before the next run.
#[track_caller]
fn run_row(
    name: &str,
    fault: Fault,
    mut suffers: impl FnMut() -> (Pauses, String),
    rest: impl Fn(),
) {
    let (name, aim) = (format!("{name} {}", fault.word()), fault.aim());
    let mut worst = Worst::new(
        &format!(
            "lab: {name}, others' longest operation (aim {} s)",
            aim.as_secs()
        ),
        aim,
    );
    for run in 1..=runs() {
        let begun = Instant::now();
        let (pauses, more) = suffers();
        let seconds = begun.elapsed().as_secs();
        eprintln!("{name}, run {run}, {seconds} s: {pauses}{more}");
        worst.note(&pauses);
        rest();
    }
}

/// Takes a node's NSD out of use: from then on it is a client, and what the cluster makes of it.
#[track_caller]
fn make_client(lab: &Lab, node: u32) {
    let list = || lab.ask(1, &["nsd", "list"]);
    let nsds = list();
    let nsds = nsds.as_array().expect("NSDs are listed").iter();
    let own: Vec<_> = nsds.filter(|nsd| nsd["node"] == node).collect();
    let number = own[0]["nsd"].to_string();
    let shale = env!("CARGO_BIN_EXE_shale");
    lab.exec(1, &[shale, "nsd", "remove", &number]);
    lab.until("its NSD is empty", || {
        let nsds = list();
        let mut lines = nsds.as_array().into_iter().flatten();
        let is_lost = lines.any(|nsd| nsd["nsd"] == own[0]["nsd"] && nsd["state"] == "lost");
        is_lost.then_some(()).ok_or_else(|| nsds.to_string())
    });
}

/// One of five nodes suffers a fault, in each row another one.
#[track_caller]
fn others_go_on(fault: Fault) {
    let rows = rows(fault);
    if rows.is_empty() {
        return;
    }
    let Some(lab) = Lab::up(5, "erasure(2+1)") else {
        return;
    };
    until_whole(&lab);
    if by_suite(false, true) {
        make_client(&lab, 5);
        until_whole(&lab);
    }
    for target in rows {
        let name = format!("one of five nodes ({}) was", target.name());
        let suffers = || {
            let (pauses, names) = target.suffers(&lab, fault);
            (pauses, format!("; the node was {names}"))
        };
        run_row(&name, fault, suffers, || {});
    }
}

#[test]
fn others_go_on_when_a_node_is_killed() {
    others_go_on(Fault::Kill);
}

#[test]
fn others_go_on_when_a_node_falls_silent() {
    others_go_on(Fault::Stop);
}

#[test]
fn others_go_on_when_a_node_is_cut_off() {
    others_go_on(Fault::Partition);
}

#[test]
fn two_of_six_nodes_may_go_at_the_same_time() {
    let all = [
        (Fault::Partition, [5_u32, 6]),
        (Fault::Kill, [4, 6]),
        (Fault::Stop, [5, 6]),
        (Fault::Kill, [3, 5]),
        (Fault::Stop, [2, 4]),
        (Fault::Partition, [1, 6]),
    ];
    let name = |[one, other]: [u32; 2]| format!("n{one} and n{other} of six, erasure(4+2), were");
    let mut rows = by_suite(&all[..1], &all[..]).to_vec();
    rows.retain(|(_, nodes)| is_wanted(&name(*nodes)));
    if rows.is_empty() {
        return;
    }
    let Some(lab) = Lab::up(6, "erasure(4+2)") else {
        return;
    };
    until_whole(&lab);
    for (fault, nodes) in rows {
        let suffers = || (survive(&lab, fault, &nodes), String::new());
        run_row(&name(nodes), fault, suffers, || until_well(&lab));
    }
}
