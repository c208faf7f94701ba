//! Starts the daemon in the background and waits until it serves.

use crate::{
    admin::{
        Status,
        client::{Admin, SOCKET},
    },
    daemon::READY,
    directory::{lock, log, private},
};
use hyper::Method;
use model::{Error, ErrorKind, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Starts the daemon of a directory that has a node.
///
/// # Errors
/// The daemon's own reason why it can't serve.
pub fn start(dir: &Path, on_demand: bool) -> Result<()> {
    let mut daemon = spawn(dir, on_demand)?;
    let mut said = String::new();
    let mut output_of_daemon =
        BufReader::new(daemon.stdout.take().expect("the daemon's output is a pipe"));
    // The pipe ends when the daemon exits, so this never waits for a dead one; a live one answers
    // within its own deadlines.
    output_of_daemon.read_line(&mut said).map_err(|e| {
        Error::new(ErrorKind::Unavailable, e.to_string()).while_doing("waiting for the daemon")
    })?;
    if said.trim() == READY {
        return Ok(());
    }
    let _ = output_of_daemon.read_to_string(&mut said);
    let _ = daemon.wait();
    let why = if said.trim().is_empty() {
        format!(
            "it ended without a message; see {}",
            dir.join(log::FILE).display()
        )
    } else {
        said.trim().to_string()
    };
    Err(Error::new(ErrorKind::Unavailable, why))
}

/// How long a daemon may hold its directory without having a socket: it is starting or ending.
const SETTLE_MAX: Duration = Duration::from_secs(20);
const SETTLE_PAUSE: Duration = Duration::from_millis(50);

/// The status of the daemon of a directory, if one runs. Waits up to 20 s for one that is starting
/// or ending.
///
/// # Errors
/// `Unavailable` if it runs but doesn't answer, or is no member of its cluster.
pub fn running(dir: &Path) -> Result<Option<Status>> {
    answer_of(dir, "/v1/status")
}

/// Whether a daemon runs in the directory and answers, whatever state it is in. Waits as [`running`] does.
///
/// # Errors
/// `Unavailable` if it runs but doesn't answer.
pub fn answers(dir: &Path) -> Result<bool> {
    let answer = answer_of::<serde_json::Value>(dir, "/v1/ping")?;
    Ok(answer.is_some())
}

fn answer_of<A: DeserializeOwned>(dir: &Path, path: &str) -> Result<Option<A>> {
    let begun = Instant::now();
    lock::check_readable(dir)?;
    loop {
        if !lock::is_held(dir) {
            return Ok(None);
        }
        let asked = block_on(async {
            let admin = Admin::of(dir);
            admin.ask::<A>(Method::GET, path, ()).await
        })?;
        let is_stopped = lock::is_holder_stopped(dir);
        match asked {
            Ok(answer) => return Ok(Some(answer)),
            Err(error)
                if error.kind() == ErrorKind::Unavailable
                    && !is_stopped
                    && begun.elapsed() < SETTLE_MAX =>
            {
                std::thread::sleep(SETTLE_PAUSE);
            }
            Err(error) => {
                return Err(error.while_doing(format!(
                    "asking the daemon that holds {} how it is; its log is {}",
                    dir.display(),
                    log::place(dir)
                )));
            }
        }
    }
}

/// Time for a node that is going down, or that another command is starting, to come up.
const COME_UP_MAX: Duration = Duration::from_secs(60);

/// Repeats an attempt that the daemon of a directory refuses because it is starting or ending. The
/// inner result is that refusal; an outer error isn't repeated.
///
/// # Errors
/// The first other error, or the last refusal after a minute.
pub fn while_passing<T>(dir: &Path, mut attempt: impl FnMut() -> Result<Result<T>>) -> Result<T> {
    let begun = Instant::now();
    loop {
        match attempt()? {
            Err(error)
                if begun.elapsed() < COME_UP_MAX
                    && (error.kind() == ErrorKind::ShuttingDown
                        || error.kind() == ErrorKind::Unavailable && is_passing(dir)) =>
            {
                std::thread::sleep(SETTLE_PAUSE);
            }
            done => return done,
        }
    }
}

/// Whether the daemon is starting or ending: the directory's lock is free, or its holder isn't
/// stopped, and no socket listens; or it is joining its cluster.
fn is_passing(dir: &Path) -> bool {
    match listens(dir) {
        false => !lock::is_holder_stopped(dir),
        true => {
            let ping = async {
                let admin = Admin::of(dir);
                let answer = admin.ask::<serde_json::Value>(Method::GET, "/v1/ping", ());
                answer.await
            };
            let answer = block_on(ping).and_then(|answer| answer);
            answer.is_ok_and(|answer| answer["joins"] == true)
        }
    }
}

/// Whether a daemon listens. Doesn't wait if as many connections wait for it as may.
fn listens(dir: &Path) -> bool {
    let socket = dir.join(SOCKET);
    let connecting = async { tokio::net::UnixStream::connect(socket).await.map(drop) };
    match block_on(connecting) {
        Ok(Err(error)) => error.kind() == std::io::ErrorKind::WouldBlock,
        connected => connected.is_ok(),
    }
}

/// Sends a request to the daemon of a directory and waits for the answer.
///
/// # Errors
/// As [`Admin::ask`].
pub fn ask<A: DeserializeOwned>(dir: &Path, path: &str, body: impl Serialize) -> Result<A> {
    block_on(async { Admin::of(dir).ask(Method::POST, path, body).await })?
}

/// The calendar now.
///
/// # Errors
/// As [`block_on`].
pub fn now() -> Result<model::Timestamp> {
    block_on(async { world::World::real().wall() })
}

/// Runs a future on this thread, with a runtime of its own.
///
/// # Errors
/// `Unavailable` if the system refuses a runtime.
pub fn block_on<T>(future: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()))?;
    Ok(runtime.block_on(future))
}

fn spawn(dir: &Path, on_demand: bool) -> Result<Child> {
    let failed = |e: std::io::Error| {
        Error::new(ErrorKind::Unavailable, e.to_string()).while_doing("starting the daemon")
    };
    log::put_large_aside(dir).map_err(failed)?;
    let path = dir.join(log::FILE);
    let how = &mut std::fs::OpenOptions::new();
    let log = private::open(how.create(true).append(true), &path).map_err(|error| {
        let hint = match error.kind() {
            std::io::ErrorKind::ReadOnlyFilesystem => lock::READ_ONLY,
            std::io::ErrorKind::StorageFull => "; free space there",
            _ => "",
        };
        Error::new(ErrorKind::Unavailable, format!("{error}{hint}"))
            .while_doing(format!("opening {}", path.display()))
    })?;
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command
        .arg("daemon")
        .arg("--dir")
        .arg(dir)
        .args(on_demand.then_some("--on-demand"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .current_dir("/");
    // Its own session: the daemon outlives the terminal that started it.
    world::host::in_own_session(&mut command);
    command.spawn().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::client::with_full_queue;

    /// Would be broken if mount(8) waited for ever for a daemon that hangs, and that was asked for long.
    #[test]
    fn a_daemon_for_which_as_many_wait_as_may_is_not_waited_for() {
        let home = tempfile::tempdir().unwrap();
        assert!(!listens(home.path()));
        let full = with_full_queue(home.path());
        assert!(listens(home.path()));
        assert!(!is_passing(home.path()));
        drop(full);
        assert!(!listens(home.path()));
        assert!(is_passing(home.path()), "it starts or ends");
    }
}
