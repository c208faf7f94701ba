//! The processes of a node: those in its network namespace, whoever started them.

use super::bounded::{SOON, until};
use crate::process::Process;
use model::{Error, ErrorKind, Result};
use rustix::process::Signal;
use std::{fs, io, os::unix::fs::MetadataExt, path::Path, time::Duration};

/// The kernel finishes a killed process's I/O before the process is gone.
const END_MAX: Duration = Duration::from_secs(60);
/// A process stops once its threads have left the kernel.
const FREEZE_MAX: Duration = Duration::from_secs(30);
/// Processes that start others while they are killed are looked for again, this often.
const ROUNDS_MAX: u32 = 100;

/// The processes in a namespace, in the order of their numbers; none if there is no such namespace.
///
/// # Errors
/// `Unavailable` if /proc can't be read.
pub fn in_namespace(namespace: &Path) -> Result<Vec<Process>> {
    let failed = |error: io::Error| {
        Error::new(ErrorKind::Unavailable, error.to_string()).while_doing("looking for processes")
    };
    let wanted = match identity(namespace) {
        Ok(identity) => identity,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Some(pid) = entry.file_name().to_str().and_then(|it| it.parse().ok()) else {
            continue;
        };
        // One that has ended since has no namespace.
        if identity(&entry.path().join("ns/net")).ok() == Some(wanted) {
            found.extend(Process::of(pid));
        }
    }
    found.sort_by_key(|process| process.pid);
    Ok(found)
}

fn identity(namespace: &Path) -> io::Result<(u64, u64)> {
    let found = fs::metadata(namespace)?;
    Ok((found.dev(), found.ino()))
}

/// Kills the processes that `look` finds, again until it finds none; returns how many there were.
/// Blocks until they are gone.
///
/// # Errors
/// `Unavailable` if one isn't gone after a minute.
pub fn kill(mut look: impl FnMut() -> Result<Vec<Process>>) -> Result<usize> {
    let mut count = 0;
    for _ in 0..ROUNDS_MAX {
        let found = look()?;
        if found.is_empty() {
            return Ok(count);
        }
        count += found.len();
        found.iter().try_for_each(|it| it.signal(Signal::KILL))?;
        wait_for_all(&found, END_MAX, "gone", Process::is_gone)?;
    }
    let text = format!("processes keep starting others: {ROUNDS_MAX} times after being killed");
    Err(Error::new(ErrorKind::Unavailable, text))
}

/// Stops processes. Blocks until no thread of them runs.
///
/// # Errors
/// `Unavailable` if one isn't stopped after half a minute.
pub fn freeze(processes: &[Process]) -> Result<()> {
    processes
        .iter()
        .try_for_each(|it| it.signal(Signal::STOP))?;
    let is_done = |process: &Process| process.is_frozen() || process.is_gone();
    wait_for_all(processes, FREEZE_MAX, "stopped", is_done)
}

/// Lets stopped processes run on. Blocks until they do.
///
/// # Errors
/// `Unavailable` if one is still stopped after half a minute.
pub fn thaw(processes: &[Process]) -> Result<()> {
    processes
        .iter()
        .try_for_each(|it| it.signal(Signal::CONT))?;
    let is_done = |process: &Process| !process.is_frozen();
    wait_for_all(processes, FREEZE_MAX, "running again", is_done)
}

fn wait_for_all(
    processes: &[Process],
    patience: Duration,
    what: &str,
    is_done: impl Fn(&Process) -> bool,
) -> Result<()> {
    if until(patience, SOON, || Ok(processes.iter().all(&is_done)))? {
        return Ok(());
    }
    let late = processes.iter().find(|process| !is_done(process));
    let text = format!(
        "process {:?} isn't {what} after {} s; `cat /proc/PID/task/*/stack` shows where the kernel \
         holds it",
        late.map(|process| process.pid),
        patience.as_secs()
    );
    Err(Error::new(ErrorKind::Unavailable, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleeper() -> (Child, Process) {
        let child = Command::new("sleep").arg("100000").spawn().unwrap();
        let process = Process::of(child.id() as i32).unwrap();
        (child, process)
    }

    #[test]
    fn processes_are_frozen_go_on_and_end() {
        let (mut child, process) = sleeper();
        assert!(!process.is_frozen() && !process.is_gone());
        freeze(std::slice::from_ref(&process)).unwrap();
        assert!(process.is_frozen() && !process.is_gone());
        thaw(std::slice::from_ref(&process)).unwrap();
        assert!(!process.is_frozen());
        freeze(std::slice::from_ref(&process)).unwrap();
        let look = || {
            Ok(Vec::from_iter(
                Some(process.clone()).filter(|it| !it.is_gone()),
            ))
        };
        assert_eq!(kill(look).unwrap(), 1);
        assert!(process.is_gone() && !process.is_frozen());
        // A zombie until its parent asks.
        child.wait().unwrap();
        assert!(process.is_gone());
        // Nobody is left to hear it.
        freeze(std::slice::from_ref(&process)).unwrap();
        thaw(std::slice::from_ref(&process)).unwrap();
    }

    #[test]
    fn the_own_namespace_has_this_process_in_it() {
        let here = in_namespace(Path::new("/proc/self/ns/net")).unwrap();
        let own = std::process::id() as i32;
        let own = here.into_iter().find(|it| it.pid == own).unwrap();
        let arguments: Vec<_> = std::env::args_os().collect();
        assert_eq!(own.arguments, arguments);
        let none = in_namespace(Path::new("/run/netns/there is no such one")).unwrap();
        assert_eq!(none, []);
    }
}
