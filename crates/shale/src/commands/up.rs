//! `shale up` and `shale down`: starts the daemon in the background, or ends it.

use crate::{
    admin::{Status, client::Admin},
    cli::{Down, Up},
    daemon::config::{NodeConfig, Plan},
    output,
};
use hyper::Method;
use model::{Error, ErrorKind, Result};
use std::{
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

/// First thing that the daemon says on its standard output when it serves; anything else is
/// the reason why it doesn't.
pub const READY: &str = "ready";

/// A daemon that holds its directory and has no socket is starting or ending; this long.
const SETTLE_MAX: Duration = Duration::from_secs(20);
const SETTLE_PAUSE: Duration = Duration::from_millis(50);

/// Starts this node; creates its file system if the directory is new.
pub fn up(up: &Up, json: bool) -> Result<ExitCode> {
    let dir = std::path::absolute(&up.dir.dir).map_err(|e| {
        Error::new(ErrorKind::InvalidArgument, e.to_string()).while_doing("reading --dir")
    })?;
    if let Some(status) = running(&dir)? {
        refuse_other_settings(up, &status)?;
        return report(&status, "is already up", json);
    }
    let plan = Plan::from_arguments(up)?;
    match NodeConfig::load(&dir)? {
        None => NodeConfig::create(&dir, &plan)?,
        Some(mut config) => config.update(&dir, &plan)?,
    }
    let mut daemon = start(&dir)?;
    let mut said = String::new();
    let mut output_of_daemon =
        BufReader::new(daemon.stdout.take().expect("the daemon's output is a pipe"));
    // The pipe ends when the daemon exits, so this can't wait for a dead one; a live one
    // answers within its own deadlines.
    output_of_daemon.read_line(&mut said).map_err(|e| {
        Error::new(ErrorKind::Unavailable, e.to_string()).while_doing("waiting for the daemon")
    })?;
    if said.trim() != READY {
        let _ = output_of_daemon.read_to_string(&mut said);
        let _ = daemon.wait();
        let why = if said.trim().is_empty() {
            format!(
                "it ended without a word; see {}",
                dir.join("daemon.log").display()
            )
        } else {
            said.trim().to_string()
        };
        return Err(Error::new(ErrorKind::Unavailable, why));
    }
    let status = running(&dir)?
        .ok_or_else(|| Error::new(ErrorKind::Unavailable, "the daemon went away at once"))?;
    report(&status, "is up", json)
}

/// Ends this node.
pub fn down(down: &Down, json: bool) -> Result<ExitCode> {
    let dir = std::path::absolute(&down.dir.dir).unwrap_or_else(|_| down.dir.dir.clone());
    if running(&dir)?.is_none() {
        if json {
            output::json(&serde_json::json!({ "stopped": false }));
        } else {
            println!("no daemon runs in {}", dir.display());
        }
        return Ok(ExitCode::SUCCESS);
    }
    block_on(async {
        Admin::of(&dir)
            .ask::<serde_json::Value>(
                Method::POST,
                "/v1/shutdown",
                serde_json::json!({ "force": down.force }),
            )
            .await
    })??;
    wait_for_lock(&dir)?;
    if json {
        output::json(&serde_json::json!({ "stopped": true }));
    } else {
        println!("stopped; everything is durable in {}", dir.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn report(status: &Status, how: &str, json: bool) -> Result<ExitCode> {
    if json {
        output::json(status);
    } else {
        println!("shale {how}: {} mounted at {}", status.scheme, status.mount);
    }
    Ok(ExitCode::SUCCESS)
}

/// A running daemon can't be created anew with other settings; saying nothing would look
/// like success.
fn refuse_other_settings(up: &Up, status: &Status) -> Result<()> {
    let refuse = |what: &str, now: &str| {
        Err(Error::new(
            ErrorKind::Exists,
            format!(
                "this node is up already with {what} {now}; `shale down` first, or leave the option out"
            ),
        ))
    };
    if let Some(mount) = &up.mount
        && std::path::absolute(mount).ok().as_deref() != Some(Path::new(&status.mount))
    {
        return refuse("mount point", &status.mount);
    }
    match &up.scheme {
        Some(scheme) if scheme.parse::<model::Scheme>()?.to_string() != status.scheme => {
            refuse("scheme", &status.scheme)
        }
        _ => Ok(()),
    }
}

/// What the daemon of a directory says. One that is just starting or ending has no socket: it
/// gets a moment.
fn running(dir: &Path) -> Result<Option<Status>> {
    let begun = Instant::now();
    loop {
        if !crate::daemon::lock::is_held(dir) {
            return Ok(None);
        }
        let asked = block_on(async {
            Admin::of(dir)
                .ask::<Status>(Method::GET, "/v1/status", ())
                .await
        })?;
        match asked {
            Ok(status) => return Ok(Some(status)),
            Err(error)
                if error.kind() == ErrorKind::Unavailable && begun.elapsed() < SETTLE_MAX =>
            {
                std::thread::sleep(SETTLE_PAUSE);
            }
            Err(error) => {
                return Err(error.while_doing(format!(
                    "a daemon holds {} but doesn't answer; look at {}",
                    dir.display(),
                    dir.join("daemon.log").display()
                )));
            }
        }
    }
}

fn start(dir: &Path) -> Result<Child> {
    let failed = |e: std::io::Error| {
        Error::new(ErrorKind::Unavailable, e.to_string()).while_doing("starting the daemon")
    };
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(dir.join("daemon.log"))
        .map_err(failed)?;
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command
        .arg("daemon")
        .arg("--dir")
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .current_dir("/");
    // A session of its own: the daemon outlives the terminal that started it.
    // SAFETY: setsid is async-signal-safe and touches no memory of this process.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    command.spawn().map_err(failed)
}

/// The daemon releases its lock as the last thing it does.
fn wait_for_lock(dir: &Path) -> Result<()> {
    crate::daemon::lock::wait_until_free(dir)
}

fn block_on<T>(future: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::new(ErrorKind::Unavailable, e.to_string()))?;
    Ok(runtime.block_on(future))
}
