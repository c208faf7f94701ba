//! The program: reads the command line, runs one command, reports the outcome.

// Modules share by `pub`, but free async functions by `pub(crate)`: of a `pub` one the compiler makes machine code also where
// nothing calls it, and so it made nearly all of the daemon once more for the program of the unit tests.
#![allow(unreachable_pub, reason = "a program has no outside")]
#![allow(
    clippy::disallowed_methods,
    reason = "the program reads its own files and talks to its own socket"
)]

mod admin;
mod cli;
mod commands;
mod daemon;
mod directory;
mod lab;
mod options;
mod output;
mod process;

use clap::FromArgMatches;
use commands::fstab::CalledAs;
use std::{path::Path, process::ExitCode};

/// Threads allocate and free small records and buffers all the time, often in other threads than
/// those that allocated them: the C library's allocator takes a fifth of the daemon's time. Tests count
/// what decoders take, with an allocator of their own.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    directory::private::keep_files_private();
    let mut arguments = std::env::args_os().peekable();
    let name = arguments.next().unwrap_or_default();
    let first = arguments.peek().map(Path::new);
    if let Some(called_as) = CalledAs::of(Path::new(&name), first) {
        return commands::fstab::run(called_as, arguments);
    }
    let matches = cli::command().get_matches();
    let cli = cli::Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match commands::run(cli) {
        Ok(code) => code,
        Err((error, json)) => {
            output::refusal(&error, json);
            ExitCode::from(1)
        }
    }
}
