//! Measures what the way between kernel and mount costs: the file system in memory through
//! /dev/fuse and through io_uring, in turns, so that both see the same machine.
//!
//! `cargo run --release -p fuse --example transports -- [processes] [files] [rounds]`

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program that measures uses the real file system, processes and time"
)]

use fuse::memory::{MemoryFileSystem, MemorySettings};
use fuse::{Mount, MountOptions, TransportChoice, Unmount};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use world::World;

const PHASES: [&str; 3] = ["create+close", "stat", "unlink"];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [child, directory, files] = arguments.as_slice()
        && child == "child"
    {
        return client(Path::new(directory), files.parse().unwrap());
    }
    let number = |at: usize, default| arguments.get(at).map_or(default, |a| a.parse().unwrap());
    let (processes, files, rounds) = (number(0, 2), number(1, 10_000), number(2, 7));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let world = runtime.block_on(async { World::real() });
    let mut ratios = [const { Vec::new() }; PHASES.len()];
    println!(
        "{processes} processes, {files} files each; operations per second: /dev/fuse, io_uring, ratio"
    );
    for round in 0..=rounds {
        let run = |transport| measure(&world, transport, processes, files);
        // In turns, and the first round only warms up.
        let (classic, ring) = if round % 2 == 0 {
            let classic = run(TransportChoice::Classic);
            (classic, run(TransportChoice::IoUring))
        } else {
            let ring = run(TransportChoice::IoUring);
            (run(TransportChoice::Classic), ring)
        };
        if round == 0 {
            continue;
        }
        for (at, phase) in PHASES.iter().enumerate() {
            let ratio = ring[at] / classic[at];
            println!(
                "{phase:13} {:9.0} {:9.0} {ratio:6.2}",
                classic[at], ring[at]
            );
            ratios[at].push(ratio);
        }
    }
    for (phase, mut ratios) in PHASES.iter().zip(ratios) {
        ratios.sort_by(f64::total_cmp);
        let (low, high) = (ratios[0], ratios[ratios.len() - 1]);
        println!(
            "{phase:13} median {:.2} ({low:.2} to {high:.2})",
            ratios[ratios.len() / 2]
        );
    }
}

/// Operations per second of each phase, all processes together.
fn measure(world: &World, transport: TransportChoice, processes: usize, files: usize) -> [f64; 3] {
    let directory = tempfile::tempdir().unwrap();
    let settings = MemorySettings {
        valid: valid(),
        ..MemorySettings::default()
    };
    let fs = Arc::new(MemoryFileSystem::new(world, settings));
    let mut options = MountOptions::new(directory.path());
    options.transport = transport;
    let mount = Mount::start(world, fs, &options).unwrap();
    let mut children: Vec<Child> = (0..processes)
        .map(|process| {
            let own = directory.path().join(format!("p{process}"));
            fs::create_dir(&own).unwrap();
            Command::new(std::env::current_exe().unwrap())
                .args(["child", own.to_str().unwrap(), &files.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut answers: Vec<_> = children
        .iter_mut()
        .map(|child| BufReader::new(child.stdout.take().unwrap()))
        .collect();
    let speeds = std::array::from_fn(|_| {
        let begun = Instant::now();
        for child in &mut children {
            child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        }
        for answer in &mut answers {
            answer.read_line(&mut String::new()).unwrap();
        }
        (processes * files) as f64 / begun.elapsed().as_secs_f64()
    });
    for child in &mut children {
        child.wait().unwrap();
    }
    world.block_on(mount.unmount(Unmount::Forced)).unwrap();
    speeds
}

/// How long the kernel may believe what it knows. Zero by default, so that each stat is a
/// request.
fn valid() -> Duration {
    let milliseconds = std::env::var("VALID_MS").map_or(0, |text| text.parse().unwrap());
    Duration::from_millis(milliseconds)
}

/// One process: a phase after each line of its input.
fn client(directory: &Path, files: usize) {
    let paths: Vec<_> = (0..files)
        .map(|file| directory.join(format!("f{file}")))
        .collect();
    let phases: [&dyn Fn(&Path); 3] = [
        &|path| drop(File::create(path).unwrap()),
        &|path| assert!(fs::metadata(path).unwrap().is_file()),
        &|path| fs::remove_file(path).unwrap(),
    ];
    for phase in phases {
        std::io::stdin().read_line(&mut String::new()).unwrap();
        paths.iter().for_each(|path| phase(path));
        println!("done");
    }
}
