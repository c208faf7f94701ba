//! `shale down`: unmounts and ends the daemon, politely, by force, or by killing it.

use super::start::{answers, ask};
use crate::{
    admin::Stopping,
    cli::Down,
    daemon::{
        END_MAX,
        mounts::{mounts_of, source_of},
    },
    directory::lock,
    output::{self, say},
};
use model::{Error, ErrorKind, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::{path::Path, process::ExitCode, time::Duration};

/// The kernel finishes a killed process's I/O before the process is gone.
const KILLED_MAX: Duration = Duration::from_secs(60);

/// Ends this node.
///
/// # Errors
/// `Busy` if programs use a mount; `Unavailable` if the daemon doesn't answer.
pub fn down(down: &Down, json: bool) -> Result<ExitCode> {
    let dir = down.dir.absolute();
    if down.kill {
        return kill(&dir, json);
    }
    if !answers(&dir)? {
        return say(json, false, &format!("no daemon runs in {}", dir.display()));
    }
    let how = serde_json::json!({ "force": down.force });
    let stopping = ask::<Stopping>(&dir, "/v1/shutdown", how)?;
    wait_for_end(&dir)?;
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
