//! Measures what users notice, beside the floor that the machine allows: `make bench`.

#![allow(
    unreachable_pub,
    reason = "nothing uses a program's items from outside"
)]
#![allow(clippy::print_stdout, reason = "the result is what it prints")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "it does what programs do: ordinary files, threads and clocks"
)]

mod cluster;
mod disk;
mod ext4;
mod floor;
mod library;
mod measure;
mod mounted;
mod paths;
mod sections;
mod start;
mod workers;

use clap::Parser;
use model::Result;
use std::{path::PathBuf, process::ExitCode};

/// Measures what users notice and prints, for each line, the value, the floor and their ratio.
#[derive(Parser, Debug)]
struct Arguments {
    /// Working directory; needs about 20 GiB on the disk to be measured.
    #[arg(long, default_value = "target/bench")]
    dir: PathBuf,
    /// Measured pairs per line.
    #[arg(long, default_value_t = measure::RUNS_DEFAULT)]
    runs: usize,
    /// Only lines whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Measure clusters of real daemons instead: the program `shale` beside this one.
    #[arg(long)]
    cluster: bool,
    /// Internal, for a child process: make this many files in --dir and die.
    #[arg(long, hide = true)]
    fill: Option<u64>,
    /// Internal, for a child process: start the file system in --dir and die.
    #[arg(long, hide = true)]
    start: bool,
    /// Internal, for a child process: the work to do on the files in --dir.
    #[arg(long, hide = true, requires = "count", value_parser = workers::WORKS)]
    work: Option<String>,
    /// Number of files.
    #[arg(long, hide = true)]
    count: Option<u64>,
    /// Number of this worker.
    #[arg(long, hide = true, default_value_t = 1)]
    number: u64,
}

/// As in the daemon.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::from(1)
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let dir = std::path::absolute(&arguments.dir).unwrap_or_else(|_| arguments.dir.clone());
    if let (Some(what), Some(count)) = (&arguments.work, arguments.count) {
        workers::work(what, &dir, count, arguments.number);
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .on_thread_start(fuse::run_on_all_cpus)
        .enable_all()
        .build()
        .map_err(|e| model::Error::new(model::ErrorKind::Unavailable, e.to_string()))?;
    let world = {
        let _context = runtime.enter();
        world::World::real()
    };
    if arguments.start {
        return start::start(&world, &dir);
    }
    cluster::end_stale(&dir);
    mounted::detach_stale_mounts(&dir);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).map_err(|e| {
        model::Error::new(model::ErrorKind::Unavailable, e.to_string())
            .while_doing(format!("creating {}", dir.display()))
    })?;
    if let Some(files) = arguments.fill {
        return start::fill(&world, &dir, files);
    }
    measure::heading();
    if arguments.cluster {
        cluster::lines(&dir, arguments.runs, &arguments.only)?;
        let _ = std::fs::remove_dir_all(&dir);
        return Ok(());
    }
    let library = dir.join("library");
    let bench = sections::Bench::new(
        world.clone(),
        library.clone(),
        arguments.runs,
        arguments.only.clone(),
    )?;
    bench.through_the_library()?;
    bench.end()?;
    let _ = std::fs::remove_dir_all(&library);
    mounted::lines(&world, &dir, arguments.runs, &arguments.only)?;
    start::lines(&dir, arguments.runs, &arguments.only)?;
    let _ = std::fs::remove_dir_all(&dir);
    Ok(())
}
