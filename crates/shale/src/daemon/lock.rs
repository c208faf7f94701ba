//! One daemon per directory: a file lock that ends with the process, however it ends.

use model::{Error, ErrorKind, Result};
use std::{
    fs::File,
    os::fd::AsRawFd,
    path::Path,
    time::{Duration, Instant},
};

const FILE: &str = "daemon.lock";
/// How long an ending daemon is waited for; its own deadlines are shorter.
const END_MAX: Duration = Duration::from_secs(120);
/// How long the lock may be held by others that aren't daemons.
const LOOKER_MAX: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(10);

/// Held as long as this lives.
pub struct DirectoryLock {
    _file: File,
}

/// Takes the lock of a directory.
///
/// # Errors
/// `Busy` if another daemon has it.
pub fn take(dir: &Path) -> Result<DirectoryLock> {
    let path = dir.join(FILE);
    let failed = |e: std::io::Error| {
        let (kind, hint) = match e.kind() {
            std::io::ErrorKind::PermissionDenied => (
                ErrorKind::AccessDenied,
                "; run as the user that owns the directory",
            ),
            std::io::ErrorKind::NotFound => {
                (ErrorKind::NotFound, "; create a node with `shale up`")
            }
            _ => (ErrorKind::Unavailable, ""),
        };
        Error::new(kind, format!("{e}{hint}")).while_doing(format!("locking {}", path.display()))
    };
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(failed)?;
    let begun = Instant::now();
    // Who only looks whether somebody has the lock holds it for a moment.
    while !flock(&file, libc::LOCK_EX | libc::LOCK_NB) {
        if begun.elapsed() > LOOKER_MAX {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "another daemon already runs in {}; `shale status --dir {0}` shows it",
                    dir.display()
                ),
            ));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(DirectoryLock { _file: file })
}

/// Whether a daemon has the lock.
pub fn is_held(dir: &Path) -> bool {
    let Ok(file) = File::open(dir.join(FILE)) else {
        return false;
    };
    !flock(&file, libc::LOCK_SH | libc::LOCK_NB)
}

/// Waits until no daemon has the lock.
///
/// # Errors
/// `Busy` if it still has it after [`END_MAX`].
pub fn wait_until_free(dir: &Path) -> Result<()> {
    let begun = Instant::now();
    while is_held(dir) {
        if begun.elapsed() > END_MAX {
            let text = format!(
                "the daemon in {} was told to end {} s ago and still runs: a disk may not answer; \
                 look at {}, then end it with `kill -9` (nothing that was synced is lost)",
                dir.display(),
                END_MAX.as_secs(),
                dir.join("daemon.log").display()
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn flock(file: &File, how: i32) -> bool {
    // SAFETY: flock takes a descriptor that `file` keeps open, and no memory.
    unsafe { libc::flock(file.as_raw_fd(), how) == 0 }
}
