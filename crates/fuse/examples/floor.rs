//! Measures the cost of FUSE alone: operations per second on the file system in memory.
//!
//! `cargo run --release -p fuse --example floor [-- PROCESSES]`

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "it measures the real machine and prints"
)]

use fuse::memory::{MemoryFileSystem, MemorySettings};
use fuse::{Mount, MountOptions, Unmount};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use world::World;

const FILES: usize = 10_000;
const STREAM_BYTES: u64 = 2 << 30;
const UNIT: usize = 1 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, work, directory] = arguments.as_slice() {
        println!("{}", run(work, Path::new(directory)));
        return;
    }
    let processes = arguments
        .get(1)
        .map_or(1, |n| n.parse().expect("PROCESSES is a number"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("the machine has threads");
    let world = runtime.block_on(async { World::real() });
    for seconds in [0, 6] {
        let directory = tempfile::tempdir().expect("a directory");
        let settings = MemorySettings {
            discard: true,
            valid: Duration::from_secs(seconds),
            direct: true,
        };
        let fs = Arc::new(MemoryFileSystem::new(&world, settings));
        let mount =
            Mount::start(&world, fs, &MountOptions::new(directory.path())).expect("mounted");
        println!("validity {seconds} s, {processes} processes");
        for work in [
            "create", "stat", "open", "list", "unlink", "write", "read", "cached", "write4k",
            "read4k",
        ] {
            measure(work, directory.path(), processes);
        }
        runtime
            .block_on(mount.unmount(Unmount::Forced))
            .expect("unmounted");
    }
}

/// Runs `work` in several processes at once and prints the sum.
fn measure(work: &str, root: &Path, processes: usize) {
    let begun = Instant::now();
    let children: Vec<_> = (0..processes)
        .map(|at| {
            let directory = root.join(at.to_string());
            // Exists from the second kind of work on.
            let _ = fs::create_dir(&directory);
            let program = std::env::current_exe().expect("the program's own path");
            Command::new(program)
                .arg(work)
                .arg(directory)
                .stdout(Stdio::piped())
                .spawn()
                .expect("a process")
        })
        .collect();
    let mut sum = 0.0;
    for child in children {
        let output = child.wait_with_output().expect("its result");
        let text = String::from_utf8(output.stdout).expect("a number");
        sum += text.trim().parse::<f64>().expect("a number");
    }
    println!(
        "  {work:8} {sum:12.0} /s   ({:.2} s)",
        begun.elapsed().as_secs_f64()
    );
}

/// Operations per second of one kind of work.
fn run(work: &str, directory: &Path) -> f64 {
    let path = |at: usize| directory.join(format!("file-{at}"));
    let stream = directory.join("stream");
    let mut unit = vec![1u8; UNIT];
    let units = STREAM_BYTES as usize / UNIT;
    let mut small = [1u8; 4096];
    let begun = Instant::now();
    let count = match work {
        "create" => times(FILES, |at| {
            drop(File::create_new(path(at)).expect("created"))
        }),
        "stat" => times(FILES, |at| assert!(fs::metadata(path(at)).is_ok(), "there")),
        "open" => times(FILES, |at| drop(File::open(path(at)).expect("there"))),
        "list" => (0..5)
            .map(|_| {
                let entries = fs::read_dir(directory).expect("a directory");
                entries
                    .filter(|entry| entry.as_ref().is_ok_and(|entry| entry.metadata().is_ok()))
                    .count()
            })
            .sum(),
        "unlink" => times(FILES, |at| fs::remove_file(path(at)).expect("there")),
        "write" => {
            let file = File::create(&stream).expect("created");
            times(units, |at| {
                file.write_all_at(&unit, (at * UNIT) as u64)
                    .expect("written")
            })
        }
        "read" | "cached" => {
            let direct = if work == "read" { libc::O_DIRECT } else { 0 };
            let file = File::options()
                .read(true)
                .custom_flags(direct)
                .open(&stream)
                .expect("there");
            times(units, |at| {
                file.read_exact_at(&mut unit, (at * UNIT) as u64)
                    .expect("read")
            })
        }
        "write4k" => {
            let file = File::options().write(true).open(&stream).expect("there");
            times(40_000, |at| {
                file.write_all_at(&small, at as u64 * 4096)
                    .expect("written")
            })
        }
        "read4k" => {
            let file = File::options()
                .read(true)
                .custom_flags(libc::O_DIRECT)
                .open(&stream)
                .expect("there");
            times(40_000, |at| {
                file.read_exact_at(&mut small, at as u64 * 4096)
                    .expect("read")
            })
        }
        _ => panic!("unknown work {work}"),
    };
    count as f64 / begun.elapsed().as_secs_f64()
}

/// Calls `work` `count` times; returns `count`.
fn times(count: usize, work: impl FnMut(usize)) -> usize {
    (0..count).for_each(work);
    count
}
