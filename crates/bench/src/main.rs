//! Measures what users feel, beside the floor that the machine allows: `make bench`.

#![allow(unreachable_pub, reason = "a program has no outside")]
#![allow(clippy::print_stdout, reason = "the result is what it prints")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "it does what programs do: ordinary files, threads and clocks"
)]

mod disk;
mod floor;
mod library;
mod measure;
mod paths;
mod sections;
mod start;

use clap::Parser;
use model::Result;
use std::{path::PathBuf, process::ExitCode};

/// Measured value, floor, ratio.
#[derive(Parser, Debug)]
struct Arguments {
    /// Where to work; needs some 20 GiB on the disk to be measured.
    #[arg(long, default_value = "target/bench")]
    dir: PathBuf,
    /// Pairs per line.
    #[arg(long, default_value_t = measure::RUNS_DEFAULT)]
    runs: usize,
    /// Only lines whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// A child's work: make this many files in --dir and die.
    #[arg(long, hide = true)]
    fill: Option<u64>,
    /// A child's work: start what is in --dir and die.
    #[arg(long, hide = true)]
    start: bool,
}

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
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).map_err(|e| {
        model::Error::new(model::ErrorKind::Unavailable, e.to_string())
            .while_doing(format!("creating {}", dir.display()))
    })?;
    if let Some(files) = arguments.fill {
        return start::fill(&world, &dir, files);
    }
    measure::heading();
    let bench = sections::Bench::new(world, dir.clone(), arguments.runs, arguments.only.clone())?;
    bench.through_the_library()?;
    bench.through_the_mount()?;
    bench.start()?;
    bench.end()?;
    let _ = std::fs::remove_dir_all(&dir);
    Ok(())
}
