//! Nodes of a lab are killed, fall silent or are cut off, whatever they are to their cluster: the others go on. How long they
//! were held up is a figure; only what hangs fails.

use super::{
    etcd,
    faults::{Fault, survive, until_well, until_whole},
    fixture::Lab,
    load::Pauses,
    roles::{Role, Roles, gather},
    worst::Worst,
};
use sim::by_suite;

/// Runs of each row when there is time.
const RUNS: usize = 10;

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
            Self::Everything => "manager, owner and etcd leader at once",
        }
    }

    /// Has a node of this kind suffer a fault, and come back; returns what others felt, and what the node was.
    #[track_caller]
    fn suffers(self, lab: &Lab, fault: Fault) -> (Pauses, String) {
        match self {
            Self::One(role) => {
                let roles = Roles::of(lab);
                let node = roles.one_with(role);
                (survive(lab, fault, &[node], || {}), roles.names(node))
            }
            Self::Everything => {
                let node = gather(lab);
                let names = Roles::of(lab).names(node);
                // At the last moment: a manager's node gives the lead away within seconds.
                let pauses = survive(lab, fault, &[node], || etcd::lead(lab, node));
                (pauses, names)
            }
        }
    }
}

fn rows() -> Vec<(Fault, Target)> {
    if !by_suite(false, true) {
        // The first one's roles are together when a lab is new.
        return vec![
            (Fault::Stop, Target::Everything),
            (Fault::Kill, Target::One(Role::Owner)),
        ];
    }
    let mut rows = Vec::new();
    for fault in Fault::ALL {
        rows.extend(Role::ALL.map(|role| (fault, Target::One(role))));
        rows.push((fault, Target::Everything));
    }
    rows
}

/// A table with a column for each fault.
fn table(rows: &str) -> Worst {
    let faults =
        Fault::ALL.map(|fault| format!("{} (aim {} s)", fault.word(), fault.aim().as_secs()));
    Worst::new([rows.to_owned()].into_iter().chain(faults))
}

/// Others have felt a fault once more.
fn note(worst: &mut Worst, row: &str, fault: Fault, pauses: &Pauses) {
    let column = Fault::ALL.iter().position(|it| *it == fault);
    let column = column.expect("they are all faults");
    worst.note(row, 1 + column, pauses, Some(fault.aim()));
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

#[test]
fn others_go_on_whoever_is_killed_falls_silent_or_is_cut_off() {
    let Some(lab) = Lab::up(5, "erasure(2+1)") else {
        return;
    };
    until_whole(&lab);
    let runs = if by_suite(false, true) {
        make_client(&lab, 5);
        until_whole(&lab);
        RUNS
    } else {
        1
    };
    let mut worst = table("lab: others' longest operations; one of five was");
    for (fault, target) in rows() {
        for run in 1..=runs {
            let (pauses, names) = target.suffers(&lab, fault);
            let (what, name) = (fault.word(), target.name());
            eprintln!("{what} {name}, run {run}: {pauses}; the node was {names}");
            note(&mut worst, name, fault, &pauses);
        }
    }
}

#[test]
fn two_of_six_nodes_may_go_at_the_same_time() {
    let Some(lab) = Lab::up(6, "erasure(4+2)") else {
        return;
    };
    until_whole(&lab);
    let all = [
        (Fault::Partition, [5_u32, 6]),
        (Fault::Kill, [4, 6]),
        (Fault::Stop, [5, 6]),
        (Fault::Kill, [3, 5]),
        (Fault::Stop, [2, 4]),
        (Fault::Partition, [1, 6]),
    ];
    let (rows, runs) = by_suite((&all[..1], 1), (&all[..], RUNS));
    let mut worst = table("lab: others' longest operations; two of six were");
    for (fault, [one, other]) in rows {
        for run in 1..=runs {
            let pauses = survive(&lab, *fault, &[*one, *other], || {});
            let (what, name) = (fault.word(), format!("n{one} and n{other}, erasure(4+2)"));
            eprintln!("{what} {name}, run {run}: {pauses}");
            note(&mut worst, &name, *fault, &pauses);
            until_well(&lab);
        }
    }
}
