//! `shale down`: unmounts and ends the daemon, politely, by force, or by killing it.

use super::start::{answers, ask};
use crate::{
    admin::{Stopping, client::SOCKET},
    cli::Down,
    daemon::{
        END_MAX,
        mounts::{mounts_of, source_of},
    },
    directory::{lock, log},
    output::{self, say},
};
use model::{Error, ErrorKind, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::{os::unix::fs::MetadataExt, path::Path, process::ExitCode, time::Duration};

/// The kernel finishes a killed process's I/O before the process is gone.
const KILLED_MAX: Duration = Duration::from_secs(60);

/// Ends this node.
///
/// # Errors
/// `Busy` if programs use a mount; `Unavailable` if the daemon doesn't answer, or couldn't make everything durable.
pub fn down(down: &Down, json: bool) -> Result<ExitCode> {
    let dir = down.dir.absolute();
    if down.kill {
        return kill(&dir, json);
    }
    if !answers(&dir)? {
        return say(json, false, &format!("no daemon runs in {}", dir.display()));
    }
    let how = serde_json::json!({ "force": down.force });
    let ending = Ending::of(&dir);
    let stopping = ask::<Stopping>(&dir, "/v1/shutdown", how)?;
    ending.wait()?;
    let mut text = format!("stopped; everything is durable in {}", dir.display());
    for left in &stopping.left {
        text += &format!("\n{left} still shows the file system, which is dead there: unmount it");
    }
    if json {
        output::json(&serde_json::json!({ "stopped": true, "left": stopping.left }));
        return Ok(ExitCode::SUCCESS);
    }
    say(json, true, &text)
}

/// Waits until the daemon of a directory has ended: its lock is the last thing it releases.
///
/// # Errors
/// `Unavailable` if it is stopped or takes too long.
pub fn wait_for_end(dir: &Path) -> Result<()> {
    lock::wait_until_free(dir, END_MAX)
}

/// What tells a daemon's socket from that of the next one: device, inode, time of change.
type Stamp = (u64, u64, i64, i64);

/// The end of a daemon that must make everything durable first. It removes its socket if it has.
pub struct Ending<'a> {
    dir: &'a Path,
    socket: Option<Stamp>,
}

impl<'a> Ending<'a> {
    /// Of the daemon that runs in a directory. To be called before that is told to end.
    pub fn of(dir: &'a Path) -> Self {
        Self {
            dir,
            socket: stamp_in(dir),
        }
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// As those of [`wait_for_end`]; `Unavailable`, too, if it has ended without having made everything durable.
    pub fn wait(&self) -> Result<()> {
        wait_for_end(self.dir)?;
        if self.socket.is_none() || stamp_in(self.dir) != self.socket {
            return Ok(());
        }
        let text = format!(
            "the daemon in {} has ended, and not everything is durable: what was written and not synced may be lost; see {}",
            self.dir.display(),
            log::place(self.dir)
        );
        Err(Error::new(ErrorKind::Unavailable, text))
    }
}

fn stamp_in(dir: &Path) -> Option<Stamp> {
    let found = std::fs::symlink_metadata(dir.join(SOCKET)).ok()?;
    Some((found.dev(), found.ino(), found.ctime(), found.ctime_nsec()))
}

/// For a daemon that doesn't answer. Everything that was synced is on the NSDs.
fn kill(dir: &Path, json: bool) -> Result<ExitCode> {
    lock::check_access(dir)?;
    let holder = lock::holder(dir);
    if let Some(process) = holder {
        // The process holds the lock of the directory.
        let killed = Pid::from_raw(process).map(|pid| kill_process(pid, Signal::KILL));
        if let Some(Err(error)) = killed {
            return Err(Error::new(ErrorKind::NotPermitted, error.to_string())
                .while_doing(format!("killing the daemon (process {process})")));
        }
    }
    lock::wait_until_free(dir, KILLED_MAX)?;
    // Without a daemon nobody else takes them away.
    let mounts = mounts_of(dir).map_err(|error| {
        error.while_doing("taking away what no daemon serves any more; run the command again")
    })?;
    fuse::detach_all(&mounts)?;
    // Lines left behind do no harm; the next start removes them.
    let _ = fuse::forget_ended(&source_of(dir));
    match holder {
        None => say(json, false, &format!("no daemon runs in {}", dir.display())),
        Some(_) => {
            let text = format!("killed; synced data is durable in {}", dir.display());
            say(json, true, &text)
        }
    }
}

fn say(json: bool, stopped: bool, text: &str) -> Result<ExitCode> {
    if json {
        output::json(&serde_json::json!({ "stopped": stopped }));
    } else {
        say!("{text}");
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::net::UnixListener;

    /// Would be broken if people were told that everything is durable when a daemon couldn't store it, or was killed while it
    /// ended.
    #[test]
    fn a_daemon_that_leaves_its_socket_has_not_made_everything_durable() {
        let home = tempfile::tempdir().unwrap();
        let (dir, socket) = (home.path(), home.path().join(SOCKET));
        Ending::of(dir).wait().unwrap();
        drop(UnixListener::bind(&socket).unwrap());
        let left = Ending::of(dir);
        let error = left.wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("may be lost"), "{error}");
        // It was in time, and somebody has started the next one.
        fs::rename(&socket, dir.join("aside")).unwrap();
        drop(UnixListener::bind(&socket).unwrap());
        left.wait().unwrap();
        fs::remove_file(&socket).unwrap();
        left.wait().unwrap();
    }
}
