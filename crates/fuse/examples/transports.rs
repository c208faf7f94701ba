//! Compares the transports: the file system in memory through /dev/fuse and through io_uring, in
//! turns, so that both run on the machine in the same state. Besides the speed it shows the CPU
//! time of programs and daemon per operation, which depends less on other load.
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

/// Cost of one phase.
#[derive(Clone, Copy)]
struct Cost {
    per_second: f64,
    cpu_microseconds: f64,
}

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
    let mut ratios = [const { (Vec::new(), Vec::new()) }; PHASES.len()];
    println!("{processes} processes, {files} files each: operations per second (CPU µs each)");
    for round in 0..=rounds {
        let run = |transport| measure(&world, transport, processes, files);
        // In turns; the first round is only a warm-up.
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
            let (classic, ring) = (classic[at], ring[at]);
            println!(
                "{phase:13} /dev/fuse {:7.0} ({:5.1})  io_uring {:7.0} ({:5.1})",
                classic.per_second,
                classic.cpu_microseconds,
                ring.per_second,
                ring.cpu_microseconds
            );
            ratios[at].0.push(ring.per_second / classic.per_second);
            ratios[at]
                .1
                .push(classic.cpu_microseconds / ring.cpu_microseconds);
        }
    }
    for (phase, (speed, cpu)) in PHASES.iter().zip(ratios) {
        println!(
            "{phase:13} speed {}, CPU time saved {}",
            spread(speed),
            spread(cpu)
        );
    }
}

/// The median and the middle half of ratios.
fn spread(mut ratios: Vec<f64>) -> String {
    ratios.sort_by(f64::total_cmp);
    let at = |part: usize| ratios[(ratios.len() - 1) * part / 4];
    format!("x {:.2} ({:.2} to {:.2})", at(2), at(1), at(3))
}

/// Cost of each phase, for all processes together.
fn measure(
    world: &World,
    transport: TransportChoice,
    processes: usize,
    files: usize,
) -> [Cost; PHASES.len()] {
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
    let pids: Vec<u32> = children.iter().map(Child::id).collect();
    let cpu = || pids.iter().map(|pid| cpu_time(*pid)).sum::<f64>() + cpu_time(std::process::id());
    let costs = std::array::from_fn(|_| {
        let (begun, cpu_before) = (Instant::now(), cpu());
        for child in &mut children {
            child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        }
        for answer in &mut answers {
            answer.read_line(&mut String::new()).unwrap();
        }
        let operations = (processes * files) as f64;
        Cost {
            per_second: operations / begun.elapsed().as_secs_f64(),
            cpu_microseconds: (cpu() - cpu_before) / 1000.0 / operations,
        }
    });
    for mut child in children {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    world.block_on(mount.unmount(Unmount::Forced)).unwrap();
    costs
}

/// Nanoseconds of CPU time used by the threads of a process.
fn cpu_time(pid: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        text.split(' ').next()?.parse::<f64>().ok()
    };
    threads.filter_map(|thread| of(thread.unwrap())).sum()
}

/// How long the kernel may cache names and attributes. Zero by default, so that each stat is a
/// request.
fn valid() -> Duration {
    let milliseconds = std::env::var("VALID_MS").map_or(0, |text| text.parse().unwrap());
    Duration::from_millis(milliseconds)
}

/// One process: runs one phase per line of its input.
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
    // Stays alive until its last phase is accounted for.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}
