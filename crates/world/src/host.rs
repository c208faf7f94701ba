//! The few ordinary files that the program needs: settings, identities, lock files. Also limits
//! of this process, and sessions and network namespaces for child processes. Not simulated;
//! everything here blocks.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Resource, Signal, getrlimit, setrlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustix::time::{ClockId, clock_gettime};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Longest small file in bytes (1 MiB).
pub const SMALL_FILE_BYTES_MAX: u64 = 1 << 20;

/// Two clocks are read within this time, or once more.
const CLOCKS_APART_MAX: Duration = Duration::from_millis(10);
/// How often they are read at most.
const CLOCKS_TRIES_MAX: u32 = 5;

/// A file locked by this process; unlocked when dropped or when the process ends.
#[derive(Debug)]
pub struct LockFile {
    _file: File,
}

/// Raises the soft limit of open descriptors (often 1,024) to the hard limit and returns it. Each
/// thread of a mount needs two descriptors.
///
/// # Errors
/// The kernel's error; the limit stays as it was.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    Ok(limit.current.unwrap_or(u64::MAX))
}

/// The machine's time, the same for all its processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MachineTime {
    /// Since the machine started, including the time for which it slept.
    pub since_start: Duration,
    /// For how long it has slept (suspend) since it started.
    pub asleep: Duration,
}

/// The machine's time now. While it sleeps, leases run out (`CLOCK_BOOTTIME`) and the ages of what kernels cache stand
/// still (`CLOCK_MONOTONIC`).
#[must_use]
pub fn machine_time() -> MachineTime {
    let read = |clock| {
        let time = clock_gettime(clock);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let mut last = None;
    for _ in 0..CLOCKS_TRIES_MAX {
        let before = read(ClockId::Monotonic);
        let since_start = read(ClockId::Boottime);
        let after = read(ClockId::Monotonic);
        let asleep = since_start.saturating_sub(after);
        last = Some(MachineTime {
            since_start,
            asleep,
        });
        // Otherwise this process was held up between.
        if after.saturating_sub(before) < CLOCKS_APART_MAX {
            break;
        }
    }
    last.expect("it was read at least once")
}

/// Resident memory of this process in bytes; 0 if the kernel doesn't tell.
#[must_use]
pub fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// Memory that this process may use, in bytes: the machine's, or less if a control group limits it;
/// 0 if the kernel doesn't tell.
#[must_use]
pub fn memory_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info.lines().find_map(|line| {
        let kib = line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?;
        kib.trim().parse::<u64>().ok()
    });
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let groups = own.into_iter().flat_map(|own| Path::new(own).ancestors());
    let limits = groups.filter_map(|group| {
        let file = Path::new("/sys/fs/cgroup").join(group).join("memory.max");
        // "max" is no limit.
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    });
    limits.chain([total.unwrap_or(0) * 1024]).min().unwrap_or(0)
}

/// Makes a command start in a new session, without a terminal.
pub fn in_own_session(command: &mut Command) {
    // SAFETY: setsid is async-signal-safe and touches no memory of this process. The child of a
    // fork leads no process group, so it can't fail.
    unsafe { command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into)) };
}

/// Makes a command's process end when the thread that starts it ends, however that happens: nothing of a daemon goes on
/// after it was killed.
pub fn ends_with_this_thread(command: &mut Command) {
    let parent = rustix::process::getpid();
    let arrange = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have ended before the kernel was told.
        match rustix::process::getppid() {
            Some(now) if now == parent => Ok(()),
            _ => Err(io::ErrorKind::Interrupted.into()),
        }
    };
    // SAFETY: prctl and getppid are async-signal-safe and touch no memory of this process.
    unsafe { command.pre_exec(arrange) };
}

/// Makes a command start in a network namespace: `/run/netns/NAME`, or `/proc/PID/ns/net`, open.
/// Starting it fails without the right to enter.
pub fn in_network_namespace(command: &mut Command, namespace: File) {
    let enter = move || {
        let network = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), network).map_err(Into::into)
    };
    // SAFETY: setns is async-signal-safe and touches no memory of this process; the descriptor is
    // the command's own.
    unsafe { command.pre_exec(enter) };
}

/// What a path leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtPath {
    /// Nothing, or nothing that may be looked at.
    Nothing,
    /// A file of no bytes.
    EmptyFile,
    /// A file with bytes.
    File,
    /// A device or directory.
    Other,
}

/// What the path leads to now, through symbolic links.
#[must_use]
pub fn at_path(path: &Path) -> AtPath {
    match std::fs::metadata(path) {
        Err(_) => AtPath::Nothing,
        Ok(found) if !found.is_file() => AtPath::Other,
        Ok(found) if found.len() == 0 => AtPath::EmptyFile,
        Ok(_) => AtPath::File,
    }
}

/// Creates `path` if needed and locks it.
///
/// # Errors
/// `WouldBlock` if another process holds the lock.
pub fn lock_file(path: &Path) -> io::Result<LockFile> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    lock_exclusively(&file, path)?;
    Ok(LockFile { _file: file })
}

/// Makes a directory and its parents; durable. Fine if it exists.
///
/// # Errors
/// The file system's error.
pub fn create_directory(path: &Path) -> io::Result<()> {
    std::fs::create_dir_all(path)?;
    sync_parent(path)
}

/// Reads a small file whole.
///
/// # Errors
/// `NotFound`; `InvalidData` if it is longer than [`SMALL_FILE_BYTES_MAX`].
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?
        .take(SMALL_FILE_BYTES_MAX + 1)
        .read_to_end(&mut content)?;
    if content.len() as u64 > SMALL_FILE_BYTES_MAX {
        let text = format!(
            "{} is longer than {SMALL_FILE_BYTES_MAX} bytes",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(content)
}

/// Replaces a small file: after a power cut it has either the old or the new content, and certainly
/// the new one once this has returned.
///
/// # Errors
/// The file system's error; the old content then remains.
pub fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = Path::new(&temporary);
    let mut file = File::create(temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(temporary, path)?;
    sync_parent(path)
}

/// Removes a file; durable. Fine if it doesn't exist.
///
/// # Errors
/// The file system's error.
pub fn remove_file(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Ok(()) => sync_parent(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes the directory entry of `path` durable.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

/// Takes an exclusive lock, released with the last descriptor that shares `file`'s open file
/// description.
pub(crate) fn lock_exclusively(file: &File, path: &Path) -> io::Result<()> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => return Ok(()),
        Err(Errno::WOULDBLOCK) => {}
        Err(error) => return Err(error.into()),
    }
    Err(io::Error::new(
        io::ErrorKind::WouldBlock,
        format!(
            "{} is in use by another process: is the daemon already running?",
            path.display()
        ),
    ))
}

/// Releases a lock before its file is closed.
pub(crate) fn unlock(file: &File) {
    // It can only fail for a descriptor that isn't open.
    let _ = flock(file, FlockOperation::Unlock);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_files_read_back_and_removing_twice_is_fine() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b/identity");
        create_directory(path.parent().unwrap()).unwrap();
        replace_file(&path, b"one").unwrap();
        replace_file(&path, b"two").unwrap();
        assert_eq!(read_file(&path).unwrap(), b"two");
        remove_file(&path).unwrap();
        remove_file(&path).unwrap();
        assert_eq!(
            read_file(&path).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn a_process_may_have_as_many_descriptors_as_its_hard_limit_says() {
        let most = raise_descriptor_limit().unwrap();
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = limits
            .lines()
            .find(|line| line.starts_with("Max open files"));
        let soft = line.unwrap().split_whitespace().nth(3).unwrap();
        assert_eq!(soft, most.to_string());
    }

    #[test]
    fn the_memory_is_at_most_the_machines() {
        let info = std::fs::read_to_string("/proc/meminfo").unwrap();
        let total = info.lines().find(|line| line.starts_with("MemTotal:"));
        let kib = total.unwrap().split_whitespace().nth(1).unwrap();
        let total = kib.parse::<u64>().unwrap() * 1024;
        let bytes = memory_bytes();
        assert!((16 << 20..=total).contains(&bytes), "{bytes} of {total}");
    }

    #[test]
    fn a_lock_file_is_held_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = lock_file(&path).unwrap();
        assert_eq!(
            lock_file(&path).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        drop(held);
        lock_file(&path).unwrap();
    }
}
