//! Prints what a thousand nodes cost the manager: messages, CPU and memory, while a rack dies, its NSDs
//! are given up, and the manager changes: `make bench-parts`. Messages and memory have bounds.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    dead_code,
    reason = "it measures and prints; tests use the rest"
)]

#[path = "../tests/crowd.rs"]
mod crowd;
#[path = "../tests/story.rs"]
mod story;

use crowd::Crowd;
use story::{BOUNDS, story};

const NODES: u32 = 1_000;
/// What the manager, one pool's ledger and one pool's planner may have in memory, for each node.
const MEMORY_MAX: u64 = 40 << 10;
/// Copies that are made to measure one.
const COPIES: u64 = 8;

/// Of this process.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

/// Seconds of CPU that this process has had.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The name before it may have spaces.
    let (_, rest) = text.rsplit_once(')').unwrap();
    let fields = rest.split_whitespace();
    let ticks: f64 = fields
        .skip(11)
        .take(2)
        .map(|it| it.parse::<f64>().unwrap())
        .sum();
    ticks / 100.0
}

/// What one copy of the manager's state takes.
fn memory_of(crowd: &Crowd) -> u64 {
    let before = resident_bytes();
    let copies: Vec<_> = (0..COPIES).map(|_| crowd.brain.clone()).collect();
    let bytes = resident_bytes().saturating_sub(before) / COPIES;
    drop(copies);
    bytes
}

fn main() {
    let mut crowd = Crowd::new(NODES);
    let mut measured: Vec<(f64, u64)> = Vec::new();
    let mut begun = cpu_seconds();
    let parts = story(&mut crowd, |crowd| {
        let time = cpu_seconds() - begun;
        measured.push((time, memory_of(crowd)));
        begun = cpu_seconds();
    });
    println!("A manager of {NODES} nodes: each second of");
    println!("  received     sent   KiB   stored/all   CPU ms   memory MiB");
    for (part, (time, memory)) in parts.iter().zip(&measured) {
        let counted = part.counted;
        let each = |sum: u64| sum as f64 / counted.seconds as f64;
        println!(
            "  {:8.0} {:8.0} {:5.0} {:12} {:8.1} {:12.1}   {}",
            each(counted.received),
            each(counted.sent),
            each(counted.bytes) / 1024.0,
            counted.stored,
            time * 1e3 / counted.seconds as f64,
            *memory as f64 / f64::from(1 << 20),
            part.name
        );
        println!(
            "           record of the members {} KiB: {} MiB to nodes that watch it",
            counted.record_bytes >> 10,
            (counted.record_bytes * counted.stored * u64::from(NODES)) >> 20
        );
    }
    println!("(CPU with that of the {NODES} stubs; the first part includes drawing the groups)");
    for (part, (_, memory)) in parts.iter().zip(measured) {
        if let Err(why) = part.check(NODES, &BOUNDS) {
            panic!("beyond the bounds: {why}");
        }
        let most = MEMORY_MAX * u64::from(NODES);
        assert!(memory <= most, "{}: {memory} bytes of {most}", part.name);
    }
}
