//! Runs fusermount3, which mounts and unmounts for ordinary users, to its end or to the end of its time.

use model::{Error, ErrorKind, Result};
use std::process::Command;
use std::time::Duration;
use world::program::{self, Ended, Failure};

/// The program.
const PROGRAM: &str = "fusermount3";
/// How long it may take to mount. It looks at the place first, which another file system may hold up.
pub(crate) const MOUNT_MAX: Duration = Duration::from_secs(10);
/// How long it may take to unmount: what was written through mapped files is written back first.
pub(crate) const UNMOUNT_MAX: Duration = Duration::from_secs(30);

/// A command line of it, without arguments.
pub(crate) fn command() -> Command {
    Command::new(PROGRAM)
}

/// Runs it for at most `patience`, then kills it.
///
/// # Errors
/// `NotSupported`: it can't be started. `Unavailable`: it doesn't end in time.
pub(crate) fn run(command: &mut Command, patience: Duration) -> Result<Ended> {
    program::run(command, "", patience).map_err(|failure| match failure {
        Failure::NotRun { .. } => {
            let text = format!("{failure}; install the package fuse3, or run as root");
            Error::new(ErrorKind::NotSupported, text)
        }
        Failure::Killed { .. } | Failure::TooManyHang => {
            let text =
                format!("{failure}: a file system at or above the mount point doesn't answer");
            Error::new(ErrorKind::Unavailable, text)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would be broken if an ordinary user weren't told what a mount needs, or which file system holds it up.
    #[test]
    fn who_can_not_mount_for_want_of_the_program_or_because_it_hangs_is_told_why() {
        let patience = Duration::from_millis(300);
        let missing = run(&mut Command::new("/none/such"), patience).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotSupported);
        let text = missing.to_string();
        assert!(text.contains("install the package fuse3"), "{text}");
        let mut hangs = Command::new("sh");
        hangs.args(["-c", "echo lost >&2; exec sleep 100000"]);
        let hangs = run(&mut hangs, patience).unwrap_err();
        assert_eq!(hangs.kind(), ErrorKind::Unavailable);
        let text = hangs.to_string();
        let is_told = text.contains("lost") && text.contains("above the mount point");
        assert!(is_told, "{text}");
    }
}
