//! One seed gives one run: disks, messages, decisions and scheduling leave the same trace in another
//! process, which has other addresses and other keys of hash tables.

use crate::{several_shards, stories};
use sim::by_suite;
use sim::cluster::{self, ClusterScenario, FaultKind, Mix};
use sim::seeds::Kind;
use std::process::{Command, Stdio};
use world::{AlignedBuffer, DISK_ALIGNMENT};

/// A kind of run, by its name here.
type Run = (&'static str, fn(u64) -> u64);

/// Every kind of run that the tests of this crate make.
const RUNS: &[Run] = &[
    ("storm", |seed| Kind::Storm.run(seed).trace),
    ("cut", |seed| Kind::Cut.run(seed).trace),
    ("erasure", |seed| Kind::Erasure.run(seed).trace),
    ("nodes", |seed| Kind::Nodes.run(seed).trace),
    ("moves", |seed| only(FaultKind::Move, seed)),
    ("killed-owners", |seed| only(FaultKind::KillOwner, seed)),
    ("shards", several_shards::traced),
    ("cut-off", |seed| stories::cut_off(seed, None)),
    ("seen", |seed| stories::seen(seed, None)),
    ("applied-once", |seed| stories::applied_once(seed, None)),
    ("unpublished", |seed| stories::unpublished(seed, None)),
    ("without-names", |seed| stories::without_names(seed, None)),
    ("paused-taker", |seed| stories::paused_taker(seed, None)),
    ("cleaned", |seed| stories::cleaned(seed, None)),
];

fn only(kind: FaultKind, seed: u64) -> u64 {
    let scenario = ClusterScenario {
        steps: 2_000,
        faults: 4,
        mix: Mix(match kind {
            FaultKind::Move => &[FaultKind::Move],
            _ => &[FaultKind::KillOwner],
        }),
        ..ClusterScenario::USUAL
    };
    cluster::run(seed, &scenario).trace
}

/// Set in the process that makes a run for its parent: the run's name and seed.
const TRACED: &str = "SIM_TRACED";

fn line(name: &str, seed: u64, trace: u64) -> String {
    format!("{name} {seed}: trace {trace:016x}.")
}

/// Buffers that are used again hold what was in them before: it must never get into what is written or sent.
fn leave_traces_in_memory() {
    let mut kept = Vec::new();
    for bytes in [1, 2, 3, 4, 5, 256].map(|pages| pages * DISK_ALIGNMENT) {
        for _ in 0..256 {
            let mut buffer = AlignedBuffer::zeroed(bytes);
            buffer.fill(0xA5);
            kept.push(buffer);
        }
    }
}

/// Prints a trace for the test below, which starts it in another process.
#[test]
fn one_of_a_pair() {
    let Ok(asked) = std::env::var(TRACED) else {
        return;
    };
    let (name, seed) = asked.split_once(' ').unwrap();
    let (_, run) = RUNS.iter().find(|(known, _)| *known == name).unwrap();
    let seed = seed.parse().unwrap();
    leave_traces_in_memory();
    println!("{}", line(name, seed, run(seed)));
}

#[test]
fn every_run_leaves_the_same_trace_in_two_processes() {
    for seed in 5..by_suite(6, 15) {
        for (name, run) in RUNS {
            let mut other = Command::new(std::env::current_exe().unwrap());
            other.args(["--exact", "traces::one_of_a_pair", "--nocapture"]);
            other.env(TRACED, format!("{name} {seed}"));
            // Beside this process's own run: there are two cores.
            let other = other.stdout(Stdio::piped()).spawn().unwrap();
            let own = line(name, seed, run(seed));
            let output = other.wait_with_output().unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            assert!(printed.contains(&own), "{own} is not in {printed}");
        }
    }
}

#[test]
fn another_seed_leaves_another_trace() {
    let (_, run) = RUNS.iter().find(|(name, _)| *name == "seen").unwrap();
    assert_ne!(run(5), run(6));
}
