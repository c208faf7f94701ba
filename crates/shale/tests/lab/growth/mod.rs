//! A node that is alone becomes a cluster, under a load of which every byte is checked: nodes join, all data gets another
//! scheme, a node leaves in good order, an NSD is added (in a long run), and NSDs are lost. `shale repair status` tells on
//! each node how far that is.

mod told;

use super::load::Load;
use crate::cluster::{Cluster, NSD};
use crate::fixture::{
    Node,
    bounded::{Ended, run_within},
    figure, pattern, poll,
};
use sim::by_suite;
use std::{
    collections::BTreeSet,
    fs,
    process::Command,
    time::{Duration, Instant},
};
use told::{ask, first_nsd, in_use, until_even, until_idle};

/// How long each change of the pool may take, beside a load and other tests.
const CHANGE_MAX: Duration = Duration::from_secs(400);
/// Bytes of a file that is there from the beginning.
const OLD_BYTES: usize = 2 << 20;
/// Small, so that a little data is in many segments.
const BLOCK: &str = "64K";
/// What repair may read or write at each node while its progress is looked at, in bytes per second.
const SLOWLY: u64 = 8 << 20;
/// A quorum node with two NSDs.
const HOME: u32 = 3;

/// How far it grows.
struct Size {
    nodes: u32,
    scheme: &'static str,
    /// Files that are there from the beginning.
    old: u64,
    /// Nodes on which programs run, besides the first one. The last node leaves.
    busy: &'static [u32],
    /// The second NSD of [`HOME`] is added at last, instead of joining with its node.
    adds_nsd: bool,
    /// Besides the first NSD of [`HOME`], those of these nodes are lost.
    also_lost: &'static [u32],
}

const SHORT: Size = Size {
    nodes: 4,
    scheme: "erasure(2+1)",
    old: 12,
    busy: &[2, 4],
    adds_nsd: false,
    also_lost: &[],
};
/// Seven nodes are left of eight, and NSDs of six when two are lost.
const LONG: Size = Size {
    nodes: 8,
    scheme: "erasure(4+2)",
    old: 100,
    busy: &[2, 3, 4, 5, 6, 7, 8],
    adds_nsd: true,
    also_lost: &[6],
};

fn old(number: u64) -> String {
    format!("old{number}")
}

#[track_caller]
fn must_have_old(cluster: &Cluster, node: u32, files: u64) {
    for number in 0..files {
        let found = fs::read(cluster.path(node as usize, &old(number))).unwrap();
        let is_so = found == pattern(number, OLD_BYTES);
        assert!(is_so, "old{number} on node {node}");
    }
}

/// Runs a command on a node that may take as long as a change of the pool; it must succeed.
#[track_caller]
fn must_within(node: &Node, arguments: &[&str]) {
    let ended = change_pool(node, arguments);
    assert_eq!(ended.code, 0, "shale {arguments:?}: {}", ended.text);
}

/// As [`must_within`], whether it succeeds or not.
fn change_pool(node: &Node, arguments: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shale"));
    command.args(arguments).arg("--dir").arg(&node.dir);
    run_within(&mut command, CHANGE_MAX)
}

/// Takes the time of the steps.
struct Steps {
    begun: Instant,
    said: Vec<String>,
}

impl Steps {
    fn done(&mut self, what: &str) {
        let seconds = self.begun.elapsed().as_secs_f64();
        self.said.push(format!("{what} {seconds:.0} s"));
        self.begun = Instant::now();
    }
}

/// Nodes join the one that was alone, while programs run there.
#[track_caller]
fn join_all(cluster: &mut Cluster, load: &mut Load, size: &Size) {
    for number in 2..=size.nodes {
        let two = number == HOME && !size.adds_nsd;
        let nsds = if two { "2" } else { "1" };
        cluster.join_with(number <= 3, &["--nsds", nsds]);
        load.gets_on(&[1], 1);
    }
}

/// [`HOME`] gets another NSD, which takes its share of what is there.
#[track_caller]
fn add_nsd(cluster: &Cluster, left: u32, scheme: &str) {
    let home = format!("n{HOME}");
    let add = ["nsd", "add", "--node", &home, "--nsd-size", NSD];
    must_within(cluster.node(1), &add);
    until_idle(cluster, left, HOME, scheme);
    until_even(cluster, |node| node == HOME);
}

/// The last node leaves in good order: its NSD is emptied, it ends, and the others forget it.
#[track_caller]
fn part_with(cluster: &Cluster, load: &mut Load, last: u32) {
    let name = format!("n{last}");
    must_within(cluster.node(2), &["node", "drain", &name, "--wait"]);
    assert!(in_use(cluster, 2).iter().all(|it| it.node != last));
    load.end(&[last]);
    must_within(cluster.node(last as usize), &["down", "--force"]);
    poll::until("it is removed", CHANGE_MAX, || {
        let removed = cluster.node(1).run(&["node", "remove", &name]);
        let said = String::from_utf8_lossy(&removed.stderr).into_owned();
        removed.status.success().then_some(()).ok_or(said)
    });
    assert!(cluster.line(2, last as usize).is_null());
}

/// Sets how fast repair may be, and waits until the manager says so.
#[track_caller]
fn limit_repair(cluster: &Cluster, limit: u64) {
    let text = limit.to_string();
    let set = ["config", "set", "repair_bytes_per_second", &text];
    cluster.node(2).must(&set);
    poll::until("the manager knows the limit", CHANGE_MAX, || {
        let status = ask(cluster, 2, &["repair", "status"]);
        let is_so = status["cluster"]["limit_bytes_per_second"] == limit;
        is_so.then_some(()).ok_or_else(|| status.to_string())
    });
}

/// The regions of these nodes' first NSDs are cut off under their daemons, and the NSDs are given up.
#[track_caller]
fn lose_nsds(cluster: &Cluster, nodes: &[u32]) {
    let lost = nodes.iter().map(|node| (*node, first_nsd(cluster, *node)));
    let lost: Vec<_> = lost.collect();
    for (node, nsd) in &lost {
        let dir = &cluster.node(*node as usize).dir;
        let region = dir.join("nsd").join(format!("{nsd}.region"));
        let region = fs::OpenOptions::new().write(true).open(region).unwrap();
        region.set_len(0).unwrap();
    }
    for (_, nsd) in lost {
        let number = nsd.to_string();
        // Refused while it still answers: until something of it was read or written, nobody knows that it is gone.
        poll::until("it is given up", CHANGE_MAX, || {
            let ended = change_pool(cluster.node(1), &["nsd", "remove", &number, "--gone"]);
            let answers = ended.code != 0 && ended.text.contains("it answers");
            assert!(ended.code == 0 || answers, "{}", ended.text);
            if answers { Err(ended.text) } else { Ok(()) }
        });
    }
}

#[test]
fn a_node_grows_into_a_cluster_under_load_and_what_leaves_it_takes_nothing_along() {
    let size = by_suite(SHORT, LONG);
    let mut steps = Steps {
        begun: Instant::now(),
        said: Vec::new(),
    };
    let mut cluster = Cluster::founded_after(|alone| {
        for number in 0..size.old {
            fs::write(alone.path(&old(number)), pattern(number, OLD_BYTES)).unwrap();
        }
    });
    let mut first = Load::start(&cluster, &[1]);
    first.mark();
    join_all(&mut cluster, &mut first, &size);
    let mut others = Load::start(&cluster, size.busy);
    others.mark();
    steps.done("joined");

    let change = ["pool", "change", "--scheme", size.scheme];
    let change = [&change[..], &["--block-size", BLOCK]].concat();
    must_within(cluster.node(2), &change);
    let told = until_idle(&cluster, size.nodes, 2, size.scheme);
    assert!(told.is_rewriting, "nobody told of it");
    let uneven = until_even(&cluster, |_| true);
    must_have_old(&cluster, size.nodes, size.old);
    steps.done("rewritten");

    part_with(&cluster, &mut others, size.nodes);
    steps.done("one node drained and removed");

    let left = size.nodes - 1;
    if size.adds_nsd {
        add_nsd(&cluster, left, size.scheme);
        steps.done("an NSD added and filled");
    }

    limit_repair(&cluster, SLOWLY);
    lose_nsds(&cluster, &[&[HOME][..], size.also_lost].concat());
    let told = until_idle(&cluster, left, 1, size.scheme);
    let shown = &told.left;
    assert!(shown.len() > 2, "no progress was shown: {shown:?}");
    assert!(told.critical > 0 && told.has_end, "{shown:?}");
    assert_eq!(told.limits, BTreeSet::from([SLOWLY]));
    assert!(told.rebuilding.len() > 1, "{:?}", told.pieces);
    let order = told.must_be_in_order();
    steps.done(&format!("what was lost rebuilt{order}"));

    let busy = size.busy.iter().copied().filter(|node| *node <= left);
    let busy: Vec<u32> = busy.collect();
    let mut pauses = first.pauses(&[1]);
    pauses.add(&others.pauses(&busy));
    first.end(&[1]);
    others.end(&busy);
    let rest: Vec<u32> = (1..=left).collect();
    for mut load in [first, others] {
        load.must_be_seen(&cluster, &rest);
    }
    for node in &rest {
        must_have_old(&cluster, *node, size.old);
    }
    figure(&format!(
        "growth from one NSD to {} nodes in {} under load: {}; each NSD within {:.0} % of the mean when all was rewritten; the \
         longest operations {pauses}",
        size.nodes,
        size.scheme,
        steps.said.join(", "),
        100.0 * uneven
    ));
}
