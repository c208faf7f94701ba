//! Runs a program to its end, or to the end of its time.

use model::{Error, ErrorKind, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    process::{Command, ExitStatus},
    time::{Duration, Instant},
};

/// Most bytes of each output that are kept.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// Pause between two looks at what the kernel tells.
pub const SOON: Duration = Duration::from_millis(5);

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    /// How it ended.
    pub status: ExitStatus,
    /// The beginning of its standard output.
    pub output: String,
    /// The beginning of its standard error.
    pub complaint: String,
}

/// Runs a command with this input, for at most `patience`; then kills it. Its output goes to memory,
/// not through a pipe: a daemon that it leaves behind and that keeps the output open holds nobody up.
///
/// # Errors
/// `Unavailable` if it can't be started, or doesn't end in time.
pub fn run(command: &mut Command, input: &str, patience: Duration) -> Result<Ended> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |error: io::Error| {
        Error::new(ErrorKind::Unavailable, error.to_string()).while_doing(format!("running {name}"))
    };
    let [mut given, mut output, mut complaint] = memory().map_err(failed)?;
    given.write_all(input.as_bytes()).map_err(failed)?;
    given.rewind().map_err(failed)?;
    command.stdin(given);
    command.stdout(output.try_clone().map_err(failed)?);
    command.stderr(complaint.try_clone().map_err(failed)?);
    let mut child = command.spawn().map_err(failed)?;
    let mut status = None;
    let has_ended = until(patience, SOON, || {
        status = child.try_wait().map_err(failed)?;
        Ok(status.is_some())
    })?;
    if !has_ended {
        // It may end by itself at this moment; either way it is waited for.
        let _ = child.kill();
        let _ = child.wait();
    }
    let complaint = text_of(&mut complaint).map_err(failed)?;
    let Some(status) = status else {
        let text = format!(
            "{name} didn't end in {} s and was killed; it had said: {}",
            patience.as_secs(),
            complaint.trim()
        );
        return Err(Error::new(ErrorKind::Unavailable, text));
    };
    Ok(Ended {
        status,
        output: text_of(&mut output).map_err(failed)?,
        complaint,
    })
}

/// Looks, with pauses, until something is so; false if that takes longer than `patience`.
///
/// # Errors
/// The first one of a look.
pub fn until(
    patience: Duration,
    pause: Duration,
    mut is_so: impl FnMut() -> Result<bool>,
) -> Result<bool> {
    let begun = Instant::now();
    loop {
        if is_so()? {
            return Ok(true);
        }
        if begun.elapsed() >= patience {
            return Ok(false);
        }
        std::thread::sleep(pause);
    }
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

    #[test]
    fn a_program_that_leaves_a_process_behind_holds_nobody_up() {
        let ended = run(&mut shell("sleep 1000 & echo $!"), "", LONG).unwrap();
        let left: i32 = ended.output.trim().parse().unwrap();
        let left = rustix::process::Pid::from_raw(left).unwrap();
        rustix::process::kill_process(left, rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_what_it_said_is_told() {
        let mut hanging = shell("echo lost >&2; exec sleep 1000");
        let error = run(&mut hanging, "", Duration::from_millis(300)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("didn't end"), "{text}");
        let missing = run(&mut Command::new("/none/such"), "", LONG).unwrap_err();
        assert!(missing.to_string().contains("/none/such"), "{missing}");
    }
}
