//! Runs another program to its end, or to the end of its time. Not simulated; everything here blocks.
//!
//! What it says goes to memory, not through a pipe: a process that it leaves behind and that keeps its output open holds nobody
//! up. One that doesn't end in time is killed, and then waited for only for a moment more: the kernel ends no process that a disk
//! or file system holds.

use model::{Error, ErrorKind};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Most bytes of each output that are kept. A program that is seen to say more is killed.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// Most letters of what a killed one has said that are told.
const SAID_CHARS_MAX: usize = 2_000;
/// Pause between two looks whether it has ended.
const PAUSE: Duration = Duration::from_millis(5);
/// How long the end of one that was killed is waited for.
const KILLED_END_MAX: Duration = Duration::from_secs(2);
/// Most that were killed and haven't ended: while there are so many, none is started.
const KILLED_MAX: usize = 8;

/// Those that were killed and hadn't ended soon after.
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

/// A program that has ended by itself.
#[derive(Debug)]
pub struct Ended {
    /// How it ended.
    pub status: ExitStatus,
    /// The beginning of its standard output.
    pub output: String,
    /// The beginning of its standard error.
    pub complaint: String,
}

/// Why a program hasn't ended by itself. It says what was found; as an [`Error`] also what can be done whatever the program is:
/// who knows more about it says that instead.
#[derive(Debug)]
pub enum Failure {
    /// It can't be run.
    NotRun {
        /// Its name.
        program: String,
        /// The system's reason.
        error: io::Error,
    },
    /// It was killed.
    Killed {
        /// Its name.
        program: String,
        /// What it did, or didn't.
        why: String,
        /// The beginning of its standard error.
        said: String,
        /// Its process is gone. Otherwise not even the kernel can end it now.
        has_ended: bool,
    },
    /// It wasn't started: too many before it were killed and haven't ended.
    TooManyHang,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRun { program, error } => write!(formatter, "running {program}: {error}"),
            Self::Killed {
                program,
                why,
                said,
                has_ended,
            } => {
                let killed = match has_ended {
                    true => "was killed",
                    false => "was killed, which hasn't ended it",
                };
                write!(formatter, "{program} {why} and {killed}")?;
                match said.as_str() {
                    "" => Ok(()),
                    said => write!(formatter, " (it had said: {said})"),
                }
            }
            Self::TooManyHang => {
                let shown = "`ps -eo pid,stat,args` shows them";
                write!(
                    formatter,
                    "{KILLED_MAX} processes hang and can't be killed ({shown})"
                )
            }
        }
    }
}

impl std::error::Error for Failure {}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let remedy = match failure {
            Failure::NotRun { .. } => "see that it is installed and may be run",
            Failure::Killed {
                has_ended: true, ..
            } => "try again when the machine has less to do",
            Failure::Killed { .. } | Failure::TooManyHang => {
                "a disk or file system doesn't answer: the kernel's log may say which"
            }
        };
        Self::new(ErrorKind::Unavailable, format!("{failure}; {remedy}"))
    }
}

/// Runs a command with this input, for at most `patience`; then kills its process. What that has started goes on.
///
/// # Errors
/// Why it hasn't ended by itself.
pub fn run(command: &mut Command, input: &str, patience: Duration) -> Result<Ended, Failure> {
    if KILLED.lock().is_full() {
        return Err(Failure::TooManyHang);
    }
    let program = command.get_program().to_string_lossy().into_owned();
    let not_run = |error: io::Error| Failure::NotRun {
        program: program.clone(),
        error,
    };
    let mut running = Running::begin(command, input).map_err(not_run)?;
    match running.until_ended(patience).map_err(not_run)? {
        Ok(status) => Ok(Ended {
            status,
            output: text_of(&mut running.output).map_err(not_run)?,
            complaint: text_of(&mut running.complaint).map_err(not_run)?,
        }),
        Err(why) => {
            let (said, has_ended) = running.kill();
            Err(Failure::Killed {
                program,
                why,
                said,
                has_ended,
            })
        }
    }
}

/// A program that runs, and the memory to which it speaks.
struct Running {
    child: Child,
    output: File,
    complaint: File,
}

impl Running {
    fn begin(command: &mut Command, input: &str) -> io::Result<Self> {
        let [mut given, output, complaint] = memory()?;
        given.write_all(input.as_bytes())?;
        given.rewind()?;
        command.stdin(given);
        command.stdout(output.try_clone()?);
        command.stderr(complaint.try_clone()?);
        Ok(Self {
            child: command.spawn()?,
            output,
            complaint,
        })
    }

    /// How it has ended, or why it is to be killed.
    fn until_ended(&mut self, patience: Duration) -> io::Result<Result<ExitStatus, String>> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Ok(status));
            }
            for file in [&self.output, &self.complaint] {
                if file.metadata()?.len() > OUTPUT_BYTES_MAX {
                    return Ok(Err(format!("said more than {OUTPUT_BYTES_MAX} bytes")));
                }
            }
            if begun.elapsed() >= patience {
                return Ok(Err(format!("didn't end in {} s", patience.as_secs())));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Kills it. Returns what it has complained of, and whether it has ended soon after.
    fn kill(mut self) -> (String, bool) {
        // It may have ended at this moment.
        let _ = self.child.kill();
        let has_ended = ends_within(&mut self.child, KILLED_END_MAX);
        // What can't be read isn't told.
        let said = text_of(&mut self.complaint).unwrap_or_default();
        if !has_ended {
            KILLED.lock().0.push(self.child);
        }
        let said = said.trim().chars().take(SAID_CHARS_MAX).collect();
        (said, has_ended)
    }
}

/// Whether a process ends within `patience`.
fn ends_within(child: &mut Child, patience: Duration) -> bool {
    let begun = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if begun.elapsed() >= patience {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}

/// Three files without names.
fn memory() -> io::Result<[File; 3]> {
    let file = |name| io::Result::Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?));
    Ok([file("input")?, file("output")?, file("complaint")?])
}

fn text_of(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(300);

    fn shell(line: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", line]);
        command
    }

    #[test]
    fn a_program_gets_its_input_and_both_its_outputs_are_kept() {
        let line = "read word; echo got $word; echo oh >&2; exit 3";
        let ended = run(&mut shell(line), "bread\n", LONG).unwrap();
        assert_eq!(ended.status.code(), Some(3));
        assert_eq!(
            (ended.output.as_str(), ended.complaint.as_str()),
            ("got bread\n", "oh\n")
        );
    }

    /// Would be broken if its output went through pipes, which a process that it has started could keep open.
    #[test]
    fn a_program_that_leaves_a_process_behind_holds_nobody_up() {
        type Read = fn(Ended) -> String;
        let ways: [(&str, Read); 2] = [
            ("&1", |ended| ended.output),
            ("&2", |ended| ended.complaint),
        ];
        for (to, said) in ways {
            let mut leaves = shell(&format!("sleep 100000 & echo $! >{to}"));
            let ended = run(&mut leaves, "", LONG).unwrap();
            assert!(ended.status.success());
            let left: i32 = said(ended).trim().parse().unwrap();
            let left = rustix::process::Pid::from_raw(left).unwrap();
            rustix::process::kill_process(left, rustix::process::Signal::KILL).unwrap();
        }
    }

    /// Would be broken if a mount point in a file system that doesn't answer held up the daemon of an ordinary user for ever.
    #[test]
    fn a_program_that_hangs_is_killed_and_what_it_said_is_told() {
        let mut hangs = shell("echo lost >&2; exec sleep 100000");
        let failure = run(&mut hangs, "", SHORT).unwrap_err();
        let text = failure.to_string();
        let is_told = text.contains("was killed") && text.ends_with("(it had said: lost)");
        assert!(is_told, "{text}");
        let missing = run(&mut Command::new("/none/such"), "", LONG).unwrap_err();
        assert!(matches!(missing, Failure::NotRun { .. }), "{missing}");
        for failure in [failure, missing] {
            let found = failure.to_string();
            let error = Error::from(failure);
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            let told = error.to_string();
            let remedy = told.strip_prefix(&found).expect("it tells what was found");
            assert!(remedy.starts_with("; "), "{told}");
        }
    }

    /// Would be broken if a program that never stops to speak could fill the machine's memory as long as it may run.
    #[test]
    fn a_program_that_says_more_than_is_kept_is_killed() {
        let mut speaks = shell("head -c 4194304 /dev/zero; exec sleep 100000");
        let failure = run(&mut speaks, "", LONG).unwrap_err();
        let text = failure.to_string();
        let is_told = text.contains("said more than") && text.contains("was killed");
        assert!(is_told, "{text}");
    }

    /// Would be broken if who runs a program waited without an end for one that was killed and that a disk holds.
    #[test]
    fn a_process_that_does_not_end_is_waited_for_no_longer_than_was_said() {
        // As one that a kill doesn't end: nobody has killed it.
        let mut stays = shell("exec sleep 100000").spawn().unwrap();
        assert!(!ends_within(&mut stays, SHORT));
        stays.kill().unwrap();
        assert!(ends_within(&mut stays, LONG));
    }

    /// Would be broken if each attempt left a process more.
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
