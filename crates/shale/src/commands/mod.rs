//! One function per command.

mod ask;
mod up;

pub use up::READY;

use crate::cli::{Cli, Command};
use model::Error;
use std::process::ExitCode;

/// Runs the command; an error comes with whether it is to be printed as JSON.
pub fn run(cli: Cli) -> Result<ExitCode, (Error, bool)> {
    let json = cli.json;
    let result = match cli.command {
        Command::Up(up) => up::up(&up, json),
        Command::Down(down) => up::down(&down, json),
        Command::Daemon(dir) => crate::daemon::run(&dir.dir),
        other => ask::ask(other, json),
    };
    result.map_err(|error| (error, json))
}
