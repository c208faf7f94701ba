//! Programs on two nodes that make, rename, remove and map files in one directory: nobody waits for long, and no store is
//! lost, also while as many requests of both mounts wait as may.

mod program;

use super::{Lab, NODES, actors, figure};
use crate::fixture::bounded;
use fuse::MountOptions;
use program::{BYTES, COUNTS, MARK, PROGRAM, SYNCED, Task};
use serde_json::Value;
use sim::by_suite;
use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

/// No request may wait for longer where a crowd has the machine for itself.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Nor than this where other tests take the cores: a round of all syncs costs over a second of CPU time.
const WAIT_MAX_BESIDE_OTHERS: Duration = Duration::from_secs(30);
/// Pause between two looks at what waits.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The nodes on which the programs are.
const CROWDED: [u32; 2] = [1, 2];
/// Each request to a disk takes so many milliseconds more while all threads shall be busy: a sync waits for two of them at
/// least. With quick disks there would be too little CPU time before there are too few threads.
const DISKS_SLOWER_BY: &str = "100";

/// How large a crowd is.
struct Size {
    /// How long it is there.
    time: Duration,
    /// Programs on each of its nodes.
    programs: usize,
    /// Threads that sync files of their own on each of its nodes, those of all programs together.
    syncing: usize,
}

/// What was seen of a crowd.
struct Seen {
    /// What all programs have counted.
    counts: [u64; COUNTS],
    /// The longest wait on any node, with what waited.
    longest: (Duration, String),
    /// How many threads of each mount waiting requests held, at each look.
    held: Vec<[usize; CROWDED.len()]>,
}

impl Seen {
    /// Looks at what waits on all nodes at this moment.
    fn look(&mut self, lab: &Lab) {
        let wait_max = by_suite(WAIT_MAX_BESIDE_OTHERS, WAIT_MAX);
        let mut held = [0; CROWDED.len()];
        for node in 1..=NODES {
            let waiters = waiters(lab, node);
            for waiter in &waiters {
                let since = Duration::from_millis(waiter["milliseconds"].as_u64().unwrap());
                assert!(
                    since <= wait_max,
                    "on n{node} it waits for {since:?}: {waiter}\n{}",
                    all_waiters(lab, node)
                );
                if since >= self.longest.0 {
                    self.longest = (since, format!("n{node}: {waiter}"));
                }
            }
            if let Some(at) = CROWDED.iter().position(|it| *it == node) {
                held[at] = waiters.iter().filter(|it| is_a_programs(it)).count();
            }
        }
        self.held.push(held);
    }

    /// How many threads of each mount were held: the fewest, the number that half of the looks have reached, the most.
    fn spread(&self) -> [[usize; 3]; CROWDED.len()] {
        std::array::from_fn(|at| {
            let mut held: Vec<_> = self.held.iter().map(|look| look[at]).collect();
            held.sort_unstable();
            [held[0], held[held.len() / 2], held[held.len() - 1]]
        })
    }
}

/// What waits on a node.
fn waiters(lab: &Lab, node: u32) -> Vec<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shale"));
    command
        .args(["waiters", "--json", "--dir"])
        .arg(lab.node(node));
    let ended = bounded::run(&mut command);
    assert_eq!(ended.code, 0, "{}", ended.text);
    // What it says of problems follows.
    let mut answers = serde_json::Deserializer::from_str(&ended.text).into_iter();
    answers.next().unwrap().unwrap()
}

/// What waits on all nodes, and for what: for whoever has to find out why something waits for too long.
fn all_waiters(lab: &Lab, asked: u32) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shale"));
    command.args(["waiters", "--all", "--dir"]);
    bounded::run(command.arg(lab.node(asked))).text
}

/// Whether a request of a program waits, and not something inside.
fn is_a_programs(waiter: &Value) -> bool {
    let what = waiter["what"].as_str().unwrap_or_default();
    what.contains(" of process ")
}

/// The directory for the own files of a node's programs.
fn own_of(name: &str, node: u32) -> String {
    format!("{name}-n{node}")
}

/// Fills a directory with programs of two nodes, and looks at what waits, until they are done.
fn gather(lab: &Lab, name: &str, size: &Size) -> Seen {
    fs::create_dir(lab.path(1, name)).unwrap();
    for node in CROWDED {
        fs::create_dir(lab.path(node, &own_of(name, node))).unwrap();
    }
    let programs = (0..size.programs * CROWDED.len()).map(|actor| {
        let node = CROWDED[actor % CROWDED.len()];
        let task = Task {
            directory: lab.path(node, name),
            own: lab.path(node, &own_of(name, node)),
            actor,
            time: size.time,
            syncing: size.syncing.div_ceil(size.programs),
        };
        (node, task.words())
    });
    let mut programs = actors::start_all(lab, PROGRAM, programs);
    let begun = Instant::now();
    let mut seen = Seen {
        counts: [0; COUNTS],
        longest: (Duration::ZERO, String::new()),
        held: Vec::new(),
    };
    let first = loop {
        seen.look(lab);
        if let Some(said) = programs[0].hear_within(LOOK_EVERY) {
            break said;
        }
        assert!(
            begun.elapsed() < size.time + actors::PATIENCE,
            "programs hang"
        );
    };
    let others = programs[1..].iter_mut().map(actors::Actor::hear);
    for said in std::iter::once(first).chain(others) {
        let counted: [u64; COUNTS] = serde_json::from_str(&said).unwrap();
        for (sum, counted) in seen.counts.iter_mut().zip(counted) {
            *sum += counted;
        }
    }
    programs.into_iter().for_each(actors::Actor::end);
    seen
}

/// All nodes show the same of what a crowd has left in its directory, and nothing else is left there.
fn all_show_the_same(lab: &Lab, name: &str) {
    let at = |node| lab.path(node, name);
    let names = |node| {
        let listed = fs::read_dir(at(node)).unwrap();
        let listed = listed.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = listed.collect();
        names.sort();
        names
    };
    let all = names(1);
    assert!(all.iter().all(|name| name.starts_with('f')), "{all:?}");
    for node in 2..=NODES {
        assert_eq!(names(node), all, "on n{node}");
    }
    for name in &all {
        let bytes = |node| fs::read(at(node).join(name)).unwrap();
        let first = bytes(1);
        assert_eq!((first.len(), &first[..8]), (BYTES, &MARK.to_ne_bytes()[..]));
        assert!((2..=NODES).all(|node| bytes(node) == first), "{name}");
    }
}

/// Another node shows the numbers of all syncs.
fn all_syncs_are_seen(lab: &Lab, name: &str, seen: &Seen) {
    let mut sum = 0;
    for node in CROWDED {
        let own = lab.path(NODES, &own_of(name, node));
        for entry in fs::read_dir(own).unwrap() {
            let bytes = fs::read(entry.unwrap().path()).unwrap();
            sum += u64::from_ne_bytes(bytes.try_into().unwrap());
        }
    }
    assert_eq!(sum, seen.counts[SYNCED]);
}

/// A crowd that keeps the processors busy.
pub(super) fn nobody_waits_for_long_in_a_crowd(lab: &Lab) {
    let (seconds, programs) = by_suite((6, 6), (120, 16));
    let size = Size {
        time: Duration::from_secs(seconds),
        programs,
        syncing: 0,
    };
    let seen = gather(lab, "crowd", &size);
    let Seen {
        counts, longest, ..
    } = &seen;
    figure(&format!(
        "in a crowd on two nodes ({counts:?}), {} looks found this longest wait: {longest:?}",
        seen.held.len()
    ));
    assert!(counts[..SYNCED].iter().all(|it| *it > 0), "{counts:?}");
    all_show_the_same(lab, "crowd");
}

/// A crowd in which as many requests of both mounts wait as may, so that others wait in the kernel until one is answered.
pub(super) fn nobody_waits_for_long_while_all_threads_are_busy(lab: &Lab) {
    let threads = MountOptions::new(lab.node(1)).threads_max;
    let (seconds, programs) = by_suite((12, 6), (600, 16));
    let size = Size {
        time: Duration::from_secs(seconds),
        programs,
        syncing: threads + threads / 2,
    };
    let slow = |how: &[&str]| {
        let nodes: Vec<_> = (1..=NODES).map(|node| format!("n{node}")).collect();
        let nodes = nodes.iter().map(String::as_str);
        let arguments: Vec<_> = std::iter::once("slow-disk").chain(nodes).collect();
        lab.must(&[&arguments[..], how].concat());
    };
    slow(&["--latency-ms", DISKS_SLOWER_BY]);
    let seen = gather(lab, "busy", &size);
    slow(&["--off"]);
    let Seen {
        counts, longest, ..
    } = &seen;
    let held = seen.spread();
    figure(&format!(
        "in a crowd on two nodes ({counts:?}) with {} syncing threads each, {} looks found so many of {threads} threads of \
         each mount held by waiting requests (fewest, middle, most): {held:?}, and this longest wait: {longest:?}",
        size.syncing,
        seen.held.len()
    ));
    // Those that run a request just then aren't counted: after each commit there are many. Beside other tests there are few
    // looks.
    let nearly_all = threads / 4 * 3;
    let (half_of_looks, one_look) = by_suite((0, threads / 2), (nearly_all, threads));
    let is_busy = |[_, middle, most]: [usize; 3]| middle >= half_of_looks && most >= one_look;
    assert!(held.into_iter().all(is_busy), "{held:?} of {threads}");
    let is_done = |it: &u64| *it > 0;
    assert!(
        by_suite(true, counts.iter().all(is_done)),
        "in ten minutes everything is done: {counts:?}"
    );
    all_show_the_same(lab, "busy");
    all_syncs_are_seen(lab, "busy", &seen);
}
