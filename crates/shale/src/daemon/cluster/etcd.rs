//! The member of etcd that a daemon of a quorum node runs: started, started again when it ends, and ended with the
//! daemon, however that ends.

use crate::daemon::member::checks::{ETCD, no_etcd};
use crate::directory::{log, private};
use coordination::etcd::EtcdServer;
use model::{Error, ErrorKind, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where it writes what an operator may want to know.
const LOG: &str = "etcd.log";
/// Pause before it is started again, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// One that ran for so long starts again after the first pause.
const RAN_WELL: Duration = Duration::from_secs(60);
/// How long it may take to end.
const END_MAX: Duration = Duration::from_secs(5);
/// How often its end is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A running etcd. Dropping it ends the process.
pub struct EtcdProcess {
    shared: Arc<Shared>,
    /// The thread that started the process: the kernel ends the process with it.
    keeper: Option<JoinHandle<()>>,
}

struct Shared {
    ends: Mutex<bool>,
    changed: Condvar,
}

impl EtcdProcess {
    /// Starts it. Returns once the process runs; whether it answers is another question.
    ///
    /// # Errors
    /// `NotFound`: the program isn't installed; others of the system.
    pub fn start(dir: &Path, server: &EtcdServer) -> Result<Self> {
        let arguments = server.arguments()?;
        private::make_private_directory(&server.data_directory).map_err(|error| {
            Error::new(ErrorKind::Unavailable, error.to_string())
                .while_doing(format!("making {}", server.data_directory.display()))
        })?;
        let shared = Arc::new(Shared {
            ends: Mutex::new(false),
            changed: Condvar::new(),
        });
        let (tell, told) = std::sync::mpsc::channel();
        let (dir, of_keeper) = (dir.to_path_buf(), shared.clone());
        let keeper = std::thread::Builder::new()
            .name("etcd".into())
            .spawn(move || {
                let begun = begin(&dir, &arguments);
                let child = match begun {
                    Ok(child) => {
                        let _ = tell.send(Ok(()));
                        child
                    }
                    Err(error) => {
                        let _ = tell.send(Err(error));
                        return;
                    }
                };
                keep(&dir, &arguments, child, &of_keeper);
            })
            .map_err(|error| Error::new(ErrorKind::Unavailable, error.to_string()))?;
        told.recv().unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Unavailable,
                "the thread that runs etcd has ended",
            ))
        })?;
        Ok(Self {
            shared,
            keeper: Some(keeper),
        })
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        *self.shared.ends.lock().unwrap_or_else(|it| it.into_inner()) = true;
        self.shared.changed.notify_all();
        if let Some(keeper) = self.keeper.take() {
            // Ends within END_MAX.
            let _ = keeper.join();
        }
    }
}

impl Shared {
    /// Waits that long at most; whether the end was asked for.
    fn ends_within(&self, time: Duration) -> bool {
        let ends = self.ends.lock().unwrap_or_else(|it| it.into_inner());
        let waited = self.changed.wait_timeout_while(ends, time, |ends| !*ends);
        *waited.unwrap_or_else(|it| it.into_inner()).0
    }
}

/// Watches the process until the daemon ends, and starts it again whenever it has ended by itself.
fn keep(dir: &Path, arguments: &[OsString], mut child: Child, shared: &Shared) {
    let mut pause = PAUSE_MIN;
    loop {
        let begun = Instant::now();
        let ended = loop {
            if shared.ends_within(LOOK_EVERY) {
                end(&mut child);
                return;
            }
            match child.try_wait() {
                Ok(Some(status)) => break status.to_string(),
                Ok(None) => {}
                Err(error) => break error.to_string(),
            }
        };
        tracing::error!(how = %ended, log = %dir.join(LOG).display(), "etcd has ended; it is started again");
        pause = match begun.elapsed() > RAN_WELL {
            true => PAUSE_MIN,
            false => (pause * 2).min(PAUSE_MAX),
        };
        loop {
            if shared.ends_within(pause) {
                return;
            }
            match begin(dir, arguments) {
                Ok(started) => {
                    child = started;
                    break;
                }
                Err(error) => {
                    tracing::error!(%error, "etcd can't be started");
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }
}

fn begin(dir: &Path, arguments: &[OsString]) -> Result<Child> {
    let path: PathBuf = dir.join(LOG);
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => no_etcd(),
        _ => Error::new(ErrorKind::Unavailable, error.to_string()).while_doing("starting etcd"),
    };
    let log = log::Bounded::open(&path).map_err(failed)?;
    let (said, says) = std::io::pipe().map_err(failed)?;
    let mut command = Command::new(ETCD);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(says.try_clone().map_err(failed)?)
        .stderr(says)
        .current_dir("/");
    // Settings in the environment would be settings as well.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ETCD_") {
            command.env_remove(name);
        }
    }
    world::host::ends_with_this_thread(&mut command);
    let child = command.spawn().map_err(failed)?;
    // Ends when the process has: the command's own ends of the pipe go with it.
    let copied = std::thread::Builder::new()
        .name("etcd.log".into())
        .spawn(move || log.copy(said));
    if let Err(error) = copied {
        tracing::error!(%error, "etcd's log can't be kept: etcd ends, and is started again");
    }
    Ok(child)
}

/// Ends the process: politely, then by force.
fn end(child: &mut Child) {
    if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
        let _ = kill_process(pid, Signal::TERM);
    }
    let begun = Instant::now();
    while begun.elapsed() < END_MAX {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(LOOK_EVERY),
            _ => return,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
}
