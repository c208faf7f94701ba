//! One daemon per directory, or one command that changes the node: a file lock that ends with the process, however it ends.

use super::{log, private};
use crate::process::{Process, Thread};
use model::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    time::{Duration, Instant},
};

/// The file's name.
pub const FILE: &str = "daemon.lock";
/// More than a process number needs.
const HOLDER_BYTES_MAX: u64 = 32;
/// Bytes of a process number as it is written, with blanks behind it.
const HOLDER_BYTES: usize = 10;
/// What can be done about a directory that can only be read.
pub const READ_ONLY: &str =
    "; make it writable (`mount -o remount,rw`), and look at the kernel's log for the reason";
/// Pause between two looks at the lock.
const PAUSE: Duration = Duration::from_millis(10);
/// Longest wait for a stopped process.
const STOPPED_MAX: Duration = Duration::from_secs(5);
/// How long processes that only test the lock may hold it.
const LOOKER_MAX: Duration = Duration::from_millis(200);

/// Holds the lock while it lives.
pub struct DirectoryLock {
    _file: File,
}

/// Takes the lock of a directory.
///
/// # Errors
/// `Busy` if another daemon has it.
pub fn take(dir: &Path) -> Result<DirectoryLock> {
    let path = dir.join(FILE);
    let failed = |e: io::Error| {
        let (kind, hint) = match e.kind() {
            io::ErrorKind::PermissionDenied => (
                ErrorKind::AccessDenied,
                "; run as the user that owns the directory",
            ),
            io::ErrorKind::NotFound => (ErrorKind::NotFound, "; create a node with `shale up`"),
            io::ErrorKind::StorageFull => (ErrorKind::NoSpace, "; free space there"),
            io::ErrorKind::ReadOnlyFilesystem => (ErrorKind::ReadOnly, READ_ONLY),
            _ => (ErrorKind::Unavailable, ""),
        };
        Error::new(kind, format!("{e}{hint}")).while_doing(format!("locking {}", path.display()))
    };
    let how = &mut File::options();
    let file = private::open(how.create(true).truncate(false).write(true), &path);
    let file = file.map_err(failed)?;
    let begun = Instant::now();
    // A process that only tests the lock holds it for a moment.
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if begun.elapsed() > LOOKER_MAX {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "another daemon already runs in {}, or another command changes the node; `shale status --dir {0}` \
                     shows it",
                    dir.display()
                ),
            ));
        }
        std::thread::sleep(PAUSE);
    }
    // For messages, and for killing a daemon that doesn't answer. Over what is there: a daemon must start on a full disk, too.
    let holder = format!("{:<1$}", std::process::id(), HOLDER_BYTES);
    file.write_all_at(holder.as_bytes(), 0).map_err(failed)?;
    file.set_len(HOLDER_BYTES as u64).map_err(failed)?;
    Ok(DirectoryLock { _file: file })
}

/// Whether a daemon has the lock. True unless that can be seen: without the right to look the daemon's socket refuses the
/// caller, and [`check_readable`] says what else is wrong.
pub fn is_held(dir: &Path) -> bool {
    match open(dir) {
        Ok(file) => flock(&file, FlockOperation::NonBlockingLockShared).is_err(),
        Err(error) => !is_absent(&error),
    }
}

fn open(dir: &Path) -> io::Result<File> {
    private::open(File::options().read(true), &dir.join(FILE))
}

/// Whether this says that there is no lock file, and so no daemon.
fn is_absent(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    kinds.contains(&error.kind())
}

/// Fails if the lock file is there and can't be opened: nobody knows then whether a daemon has it. Not for want of the
/// right to.
///
/// # Errors
/// `Unavailable`, with the system's reason.
pub fn check_readable(dir: &Path) -> Result<()> {
    match open(dir) {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied && !is_absent(&error) => {
            let path = dir.join(FILE);
            Err(Error::new(ErrorKind::Unavailable, error.to_string())
                .while_doing(format!("looking at {}", path.display())))
        }
        _ => Ok(()),
    }
}

/// Refuses users who may not read the lock file; only the node's owner and root may.
///
/// # Errors
/// `NotPermitted`; as [`check_readable`].
pub fn check_access(dir: &Path) -> Result<()> {
    match open(dir) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(not_yours(dir)),
        _ => check_readable(dir),
    }
}

/// The error for a node that this user may not ask or look at.
pub fn not_yours(dir: &Path) -> Error {
    let text = format!(
        "the node in {} belongs to another user; run as its owner",
        dir.display()
    );
    Error::new(ErrorKind::NotPermitted, text)
}

/// Process id of the daemon that has the lock. The file's content alone isn't trusted: the process
/// must belong to the file's owner.
pub fn holder(dir: &Path) -> Option<i32> {
    if !is_held(dir) {
        return None;
    }
    let mut file = open(dir).ok()?;
    let mut text = String::new();
    (&mut file)
        .take(HOLDER_BYTES_MAX)
        .read_to_string(&mut text)
        .ok()?;
    let process: i32 = text.trim().parse().ok()?;
    let runs_as = std::fs::metadata(format!("/proc/{process}")).ok()?.uid();
    (process > 0 && runs_as == file.metadata().ok()?.uid()).then_some(process)
}

/// Whether a process is stopped (SIGSTOP, a debugger).
pub fn is_stopped(process: i32) -> bool {
    Thread::first_of(process).is_some_and(|thread| thread.is_stopped())
}

/// Whether the daemon that has the lock is stopped and so can't answer.
pub fn is_holder_stopped(dir: &Path) -> bool {
    holder(dir).is_some_and(is_stopped)
}

/// Waits until the lock is free and the process that had it is gone. A daemon that another command
/// starts meanwhile isn't waited for.
///
/// # Errors
/// `Busy` if one still has it after `patience`, or is stopped.
pub fn wait_until_free(dir: &Path, patience: Duration) -> Result<()> {
    let begun = Instant::now();
    let mut stopped_since = None;
    let ending = holder(dir).and_then(Process::of);
    // A process that is gone has no lock, nor any other file.
    while ending
        .as_ref()
        .map_or_else(|| is_held(dir), |process| !process.is_gone())
    {
        stopped_since = is_holder_stopped(dir).then(|| stopped_since.unwrap_or_else(Instant::now));
        let stopped_for = stopped_since.map_or(Duration::ZERO, |since| since.elapsed());
        if begun.elapsed() > patience || stopped_for > STOPPED_MAX {
            return Err(silent(dir));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// The error for a daemon that holds its directory but doesn't answer: the cause, as far as the
/// lock file and /proc show it, and what to do.
pub fn silent(dir: &Path) -> Error {
    // Whether one holds it isn't known then.
    if let Err(unseen) = check_readable(dir) {
        return unseen;
    }
    let shown = dir.display();
    let who = match holder(dir) {
        Some(process) if is_stopped(process) => format!(
            "the daemon in {shown} (process {process}) is stopped; `kill -CONT {process}` resumes \
             it"
        ),
        Some(process) => format!(
            "the daemon in {shown} (process {process}) doesn't answer; see {}",
            log::place(dir)
        ),
        None => format!("the daemon in {shown} went away without an answer"),
    };
    let text = format!("{who}; `shale down --kill --dir {shown}` ends it; synced data is kept");
    Error::new(ErrorKind::Unavailable, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Would be broken if a node counted as down, and its mounts were unmounted without its daemon, because its lock
    /// couldn't be looked at.
    #[test]
    fn a_lock_that_cannot_be_seen_counts_as_held_and_the_reason_is_told() {
        let home = tempfile::tempdir().unwrap();
        let (dir, file) = (home.path(), home.path().join("file"));
        fs::write(&file, "words").unwrap();
        for none in [dir, &file, &dir.join("nowhere")] {
            assert!(!is_held(none), "{}", none.display());
            check_access(none).unwrap();
        }
        symlink(&file, dir.join(FILE)).unwrap();
        assert!(is_held(dir) && holder(dir).is_none());
        let refused = [check_readable(dir), check_access(dir)].map(Result::unwrap_err);
        for refused in refused.into_iter().chain([silent(dir)]) {
            assert_eq!(refused.kind(), ErrorKind::Unavailable);
            assert!(refused.to_string().contains(FILE), "{refused}");
        }
        fs::remove_file(dir.join(FILE)).unwrap();
        let lock = take(dir).unwrap();
        assert!(is_held(dir));
        check_access(dir).unwrap();
        drop(lock);
        assert!(!is_held(dir));
    }

    #[test]
    fn whoever_has_the_lock_is_known_whatever_the_file_said_before() {
        let home = tempfile::tempdir().unwrap();
        let own = std::process::id().cast_signed();
        for before in ["", "7", "4294967295", "more than a number needs, and more"] {
            fs::write(home.path().join(FILE), before).unwrap();
            let lock = take(home.path()).unwrap();
            assert_eq!(holder(home.path()), Some(own), "{before:?}");
            drop(lock);
            assert_eq!(holder(home.path()), None);
        }
    }
}
