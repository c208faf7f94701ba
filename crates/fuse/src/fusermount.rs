//! Runs fusermount3, which mounts and unmounts for ordinary users, to its end or to the end of its time.

use model::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The program.
const PROGRAM: &str = "fusermount3";
/// How long it may take to mount. It looks at the place first, which another file system may hold up.
pub(crate) const MOUNT_MAX: Duration = Duration::from_secs(10);
/// How long it may take to unmount: what was written through mapped files is written back first.
pub(crate) const UNMOUNT_MAX: Duration = Duration::from_secs(30);
/// Pause between two looks whether it has ended.
const PAUSE: Duration = Duration::from_millis(5);
/// Most bytes that are kept of what it says.
const SAID_BYTES_MAX: u64 = 64 << 10;
/// Most that were killed and haven't ended: while a file system holds so many, none is started.
const KILLED_MAX: usize = 8;

/// Those that were killed and may not have ended yet: not even that is possible while a file system holds them.
static KILLED: Mutex<Killed> = parking_lot::const_mutex(Killed(Vec::new()));

/// Processes that were killed, until they have ended.
struct Killed(Vec<Child>);

impl Killed {
    /// Whether there are as many as may be. Takes those off that have ended.
    fn is_full(&mut self) -> bool {
        self.0
            .retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        self.0.len() >= KILLED_MAX
    }
}

/// One that has ended.
pub(crate) struct Ended {
    pub(crate) has_succeeded: bool,
    /// Its standard error.
    pub(crate) said: String,
}

/// A command line of it, without arguments.
pub(crate) fn command() -> Command {
    Command::new(PROGRAM)
}

/// Runs it for at most `patience`, then kills it.
///
/// # Errors
/// `NotSupported`: it can't be started. `Unavailable`: it doesn't end in time.
pub(crate) fn run(command: &mut Command, patience: Duration) -> Result<Ended> {
    if KILLED.lock().is_full() {
        let text = format!(
            "{KILLED_MAX} processes of {PROGRAM} hang and can't be killed: a file system at or above a mount point \
             doesn't answer (`ps -eo pid,stat,args` shows them)"
        );
        return Err(Error::new(ErrorKind::Unavailable, text));
    }
    // Not a pipe, which who has inherited it could keep open.
    let memory = memfd_create("said", MemfdFlags::CLOEXEC).map_err(|it| no_program(&it.into()))?;
    let mut said = File::from(memory);
    let says = said.try_clone().map_err(|error| no_program(&error))?;
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(says);
    let mut child = command.spawn().map_err(|error| no_program(&error))?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|error| no_program(&error))? {
            Some(status) => break status,
            None if begun.elapsed() >= patience => return Err(kill(child, &mut said, patience)),
            None => std::thread::sleep(PAUSE),
        }
    };
    Ok(Ended {
        has_succeeded: status.success(),
        said: text_of(&mut said),
    })
}

/// Kills one that takes too long. Doesn't wait for its end: that may take as long.
fn kill(mut child: Child, said: &mut File, patience: Duration) -> Error {
    // It may have ended at this moment.
    let _ = child.kill();
    KILLED.lock().0.push(child);
    let said = text_of(said);
    let said = match said.as_str() {
        "" => String::new(),
        said => format!("; it had said: {said}"),
    };
    let text = format!(
        "{PROGRAM} didn't end in {} s and was killed: a file system at or above the mount point doesn't answer{said}",
        patience.as_secs()
    );
    Error::new(ErrorKind::Unavailable, text)
}

fn text_of(said: &mut File) -> String {
    let mut bytes = Vec::new();
    // What can't be read isn't told.
    let _ = said
        .rewind()
        .and_then(|()| said.take(SAID_BYTES_MAX).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

fn no_program(error: &io::Error) -> Error {
    Error::new(
        ErrorKind::NotSupported,
        format!("running {PROGRAM}: {error}; install the package fuse3, or run as root"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        command
    }

    /// Would be broken if a mount point in a file system that doesn't answer held up the daemon of an ordinary user for ever.
    #[test]
    fn a_program_that_hangs_is_killed_and_what_it_said_is_told() {
        let mut hangs = shell("echo lost >&2; exec sleep 100000");
        let error = run(&mut hangs, Duration::from_millis(300)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let text = error.to_string();
        let is_told = text.contains("was killed") && text.ends_with("said: lost");
        assert!(is_told, "{text}");
        let missing = run(&mut Command::new("/none/such"), LONG).err().unwrap();
        assert_eq!(missing.kind(), ErrorKind::NotSupported, "{missing}");
    }

    #[test]
    fn how_a_program_ended_and_what_it_complained_of_is_told_whatever_it_leaves_behind() {
        for (line, has_succeeded) in [("echo oh >&2", true), ("echo oh >&2; exit 3", false)] {
            let ended = run(&mut shell(line), LONG).unwrap();
            assert_eq!((ended.has_succeeded, &*ended.said), (has_succeeded, "oh"));
        }
        // A child has the same standard error, and goes on.
        let ended = run(&mut shell("sleep 100000 & echo $! >&2"), LONG).unwrap();
        let left = rustix::process::Pid::from_raw(ended.said.parse().unwrap()).unwrap();
        rustix::process::kill_process(left, rustix::process::Signal::KILL).unwrap();
    }

    /// Would be broken if each attempt to mount left a process more.
    #[test]
    fn while_as_many_hang_as_may_no_other_one_is_started() {
        let sleeper = || shell("exec sleep 100000").spawn().unwrap();
        let mut killed = Killed((0..KILLED_MAX).map(|_| sleeper()).collect());
        assert!(killed.is_full());
        killed.0[0].kill().unwrap();
        killed.0[0].wait().unwrap();
        assert!(!killed.is_full());
        assert_eq!(killed.0.len(), KILLED_MAX - 1);
        for child in &mut killed.0 {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
