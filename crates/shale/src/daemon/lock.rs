//! One daemon per directory: a file lock that ends with the process, however it ends.

use model::{Error, ErrorKind, Result};
use std::{fs::File, os::fd::AsRawFd, path::Path};

const FILE: &str = "daemon.lock";

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
        Error::new(ErrorKind::Unavailable, e.to_string())
            .while_doing(format!("locking {}", path.display()))
    };
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(failed)?;
    if flock(&file, libc::LOCK_EX | libc::LOCK_NB) {
        Ok(DirectoryLock { _file: file })
    } else {
        Err(Error::new(
            ErrorKind::Busy,
            format!(
                "another daemon already runs in {}; `shale status --dir {0}` shows it",
                dir.display()
            ),
        ))
    }
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
/// None that isn't the system's; the daemon itself bounds its shutdown.
pub fn wait_until_free(dir: &Path) -> Result<()> {
    if let Ok(file) = File::open(dir.join(FILE)) {
        flock(&file, libc::LOCK_SH);
    }
    Ok(())
}

fn flock(file: &File, how: i32) -> bool {
    // SAFETY: flock takes a descriptor that `file` keeps open, and no memory.
    unsafe { libc::flock(file.as_raw_fd(), how) == 0 }
}
