//! Describes the command line for shells and man(1).

use crate::{cli, output};
use clap_complete::Shell;
use model::{Error, ErrorKind, Result};
use std::{path::Path, process::ExitCode};

/// `shale completion`: prints the script for a shell.
///
/// # Errors
/// None; writing the answer ends the program if it fails.
pub fn completion(shell: Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::command(), "shale", &mut script);
    output::line(format_args!(
        "{}",
        String::from_utf8_lossy(&script).trim_end()
    ));
    Ok(ExitCode::SUCCESS)
}

/// `shale man`: writes a page for the program and one for each command.
///
/// # Errors
/// The system's error if a page can't be written.
pub fn manual(out: &Path) -> Result<ExitCode> {
    clap_mangen::generate_to(cli::command(), out).map_err(|error| {
        Error::new(ErrorKind::Unavailable, error.to_string())
            .while_doing(format!("writing manual pages to {}", out.display()))
    })?;
    Ok(ExitCode::SUCCESS)
}
