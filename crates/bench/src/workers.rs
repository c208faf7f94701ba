//! Programs that use a mount: separate processes, so that the daemon's CPU time is only its own,
//! and its background work counts until it is idle.

use crate::paths;
use model::{Error, ErrorKind, Result};
use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Programs that run at once.
pub const WORKERS: u64 = 2;

/// What a worker can do with its folder.
pub const WORKS: [&str; 9] = [
    "create",
    "stat",
    "unlink",
    "scan",
    "write-small",
    "read-small",
    "stat-small",
    "write-empty",
    "remove-small",
];

/// Cost of a group of workers.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// From the start of the first to the end of the last.
    pub wall: Duration,
    /// The same, until this process (the daemon) is idle again.
    pub until_idle: Duration,
    /// CPU time of this process in that time.
    pub cpu: Duration,
}

/// The whole work of one worker: `count` files in `folder`.
pub fn work(what: &str, folder: &Path, count: u64, number: u64) {
    match what {
        "create" => drop(paths::create(folder, count)),
        "stat" => drop(paths::stat_each(folder, count)),
        "unlink" => drop(paths::unlink(folder, count)),
        "scan" => drop(paths::scan(folder)),
        "write-small" => paths::write_small(folder, number, count, paths::SMALL_BYTES),
        "write-empty" => paths::write_small(folder, number, count, 0),
        "read-small" => paths::read_small(folder, number, count),
        "stat-small" => paths::stat_small(folder, number, count),
        "remove-small" => paths::remove_small(folder, number, count),
        other => panic!("no worker knows {other}"),
    }
}

/// Runs all workers with the same work, each in the folder and with the number given, and waits until this process is idle
/// again.
///
/// # Errors
/// As [`run_all`].
pub fn crowd(what: &str, folders: &[&Path], count: u64) -> Result<Cost> {
    let (begun, cpu) = (Instant::now(), own_cpu());
    let wall = run_all(what, folders, count)?;
    let until_idle = wait_until_idle(begun);
    Ok(Cost {
        wall,
        until_idle: until_idle.max(wall),
        cpu: own_cpu().saturating_sub(cpu),
    })
}

/// Runs all workers with the same work, each in the folder and with the number given; returns how long they took.
///
/// # Errors
/// A worker that couldn't start or failed.
pub fn run_all(what: &str, folders: &[&Path], count: u64) -> Result<Duration> {
    let failed = |what: String| Error::new(ErrorKind::Unavailable, what);
    let program = std::env::current_exe().map_err(|e| failed(e.to_string()))?;
    let begun = Instant::now();
    let children: std::io::Result<Vec<Child>> = folders
        .iter()
        .zip(1u64..)
        .map(|(folder, number)| {
            Command::new(&program)
                .args(["--work", what, "--dir"])
                .arg(folder)
                .args(["--count", &count.to_string()])
                .args(["--number", &number.to_string()])
                .stdin(Stdio::null())
                .spawn()
        })
        .collect();
    for mut child in children.map_err(|e| failed(e.to_string()))? {
        let status = child.wait().map_err(|e| failed(e.to_string()))?;
        if !status.success() {
            return Err(failed(format!("the worker for {what} failed: {status}")));
        }
    }
    Ok(begun.elapsed())
}

/// Waits until this process has used almost no CPU for a second; returns the time from `begun` to
/// the start of that second. Compaction looks for work several times within it.
fn wait_until_idle(begun: Instant) -> Duration {
    const WINDOW: Duration = Duration::from_millis(50);
    const QUIET: u32 = 20;
    const PATIENCE: Duration = Duration::from_secs(120);
    let mut busy_until = begun.elapsed();
    let mut quiet = 0;
    while quiet < QUIET && begun.elapsed() < busy_until + PATIENCE {
        let before = own_cpu();
        std::thread::sleep(WINDOW);
        if own_cpu().saturating_sub(before) < WINDOW / 20 {
            quiet += 1;
        } else {
            quiet = 0;
            busy_until = begun.elapsed();
        }
    }
    busy_until
}

/// CPU time of this process so far, including time in the kernel.
pub fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
