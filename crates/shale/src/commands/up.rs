//! `shale up`: creates a node on first use, then starts it and mounts.

use super::present::{refuse_without_mount, status_as_json};
use super::start::{ask, running, start, while_passing};
use crate::{
    admin::{MountRequest, Status, client::SOCKET},
    cli::Up,
    daemon::{
        config::{NodeConfig, Plan},
        mounts::{check_place, real_path},
    },
    output::say,
};
use model::{Error, ErrorKind, Result};
use std::{path::Path, process::ExitCode};

/// Bytes of a socket's path (`sockaddr_un` without the final zero).
const SOCKET_PATH_MAX: usize = 107;

/// Starts this node; creates its file system if the directory is new.
///
/// # Errors
/// What is wrong with the arguments, or why the daemon can't serve.
pub fn up(up: &Up, json: bool) -> Result<ExitCode> {
    let dir = std::path::absolute(&up.dir.dir).map_err(|e| {
        Error::new(ErrorKind::InvalidArgument, e.to_string()).while_doing("reading --dir")
    })?;
    let plan = Plan::from_arguments(up)?;
    refuse_long_path(&dir)?;
    if let Some(mount) = &up.mount {
        check_place(&dir, mount)?;
    }
    // Another user's directory is refused before its daemon is asked, which wouldn't answer.
    NodeConfig::load(&dir)?;
    // A daemon that is going down refuses to mount again; once it has ended, it is started.
    let (how, status) = while_passing(&dir, || {
        let Some(status) = running(&dir)? else {
            return begin(&dir, &plan).map(|status| Ok(("is up", status)));
        };
        refuse_other_settings(up, &status)?;
        if let Some(config) = NodeConfig::load(&dir)? {
            config.refuse_other_file_system(&dir, &plan)?;
        }
        if is_mounted(&status) {
            return Ok(Ok(("is already up", status)));
        }
        let mounted = Status {
            mount_missing: None,
            ..status
        };
        Ok(mount_again(&dir).map(|()| ("is mounted again", mounted)))
    })?;
    report(&status, how, json)
}

/// Creates the file system if the directory is new, and starts the daemon.
fn begin(dir: &Path, plan: &Plan) -> Result<Status> {
    NodeConfig::take_over(dir, plan)?;
    start(dir, false)?;
    running(dir)?.ok_or_else(|| {
        Error::new(
            ErrorKind::Unavailable,
            "the daemon ended right after it started",
        )
    })
}

/// The daemon's socket lies in the directory, and the kernel limits the length of its path.
fn refuse_long_path(dir: &Path) -> Result<()> {
    let most = SOCKET_PATH_MAX - SOCKET.len() - 1;
    let length = dir.as_os_str().len();
    if length <= most {
        return Ok(());
    }
    let text = format!(
        "the path of the node's directory has {length} bytes; choose a --dir of at most {most} \
         (the path of a socket in it is limited)"
    );
    Err(Error::new(ErrorKind::InvalidArgument, text))
}

/// Whether the node's own mount is in place.
fn is_mounted(status: &Status) -> bool {
    let own = real_path(Path::new(&status.mount));
    let mut mounted = status.mounts.iter().filter(|line| line.state == "mounted");
    mounted.any(|line| Path::new(&line.path) == own)
}

fn mount_again(dir: &Path) -> Result<()> {
    let own = MountRequest {
        path: None,
        options: String::new(),
    };
    ask::<serde_json::Value>(dir, "/v1/mount", own).map(drop)
}

fn report(status: &Status, how: &str, json: bool) -> Result<ExitCode> {
    if json {
        return Ok(status_as_json(status));
    }
    refuse_without_mount(status)?;
    say!("shale {how}: {} mounted at {}", status.scheme, status.mount);
    Ok(ExitCode::SUCCESS)
}

/// A running daemon can't take other settings; ignoring them silently would look like success.
fn refuse_other_settings(up: &Up, status: &Status) -> Result<()> {
    let refuse = |what: &str, now: &str| {
        Err(Error::new(
            ErrorKind::Exists,
            format!(
                "this node is already up with {what} {now}; `shale down` first, or leave the \
                 option out"
            ),
        ))
    };
    if let Some(mount) = &up.mount
        && std::path::absolute(mount).ok().as_deref() != Some(Path::new(&status.mount))
    {
        return refuse("mount point", &status.mount);
    }
    if let Some(mut options) = up.options()? {
        options.allow_other |= up.allow_other;
        if options.to_string() != status.options {
            return refuse("mount options", &status.options);
        }
    }
    match &up.scheme {
        Some(scheme) if scheme.parse::<model::Scheme>()?.to_string() != status.scheme => {
            refuse("scheme", &status.scheme)
        }
        _ => Ok(()),
    }
}
