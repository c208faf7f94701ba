//! The daemon's side of its watchdog: starts the process, starts it again when it has ended, and passes on what each of them
//! says.

use super::messages::{Aborts, Lines, Said, line_of};
use crate::daemon::events::Events;
use model::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio, read, write};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use world::host::machine_time;

/// The program that runs now, also if its file was replaced meanwhile.
const PROGRAM: &str = "/proc/self/exe";
/// Pause before the process is started again, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// One that ran for so long starts again after the first pause.
const RAN_WELL: Duration = Duration::from_secs(60);
/// How often it is looked for one that doesn't read.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Bytes that are read at once.
const READ_BYTES: usize = 4_096;
/// Most causes that are kept for mounts which nobody asks about.
const ABORTED_MAX: usize = 256;

/// The watchdog of this daemon. Dropping it ends the process.
pub struct Watchdog {
    shared: Arc<Shared>,
    /// The thread that started the process: the kernel ends the process with it.
    keeper: Option<JoinHandle<()>>,
}

/// What guards the mounts of a node.
pub struct Guard {
    /// The daemon's watchdog.
    pub watchdog: Arc<Watchdog>,
    /// How those are made again that it has aborted, and others that have died.
    pub again: Again,
}

/// When mounts that have died are made again.
pub struct Again {
    /// Where it is told what becomes of them.
    pub events: Arc<Events>,
    /// Whether the node has its lease: before that a mount would only wait.
    pub may_serve: Box<dyn Fn() -> bool + Send + Sync>,
}

struct Shared {
    dir: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ends: bool,
    /// The pipes of the process that runs now.
    to: Option<OwnedFd>,
    from: Option<Arc<OwnedFd>>,
    lines: Lines,
    /// It doesn't read what it is told.
    is_deaf: bool,
    /// The mounts that are served, and how many have the id: the kernel gives that of one that it has unmounted to the
    /// next one, while operations of the first may still run.
    watched: BTreeMap<u64, usize>,
    /// The mounts that it has aborted, and why.
    aborted: BTreeMap<u64, String>,
}

impl Watchdog {
    /// Starts it, for the daemon of a directory. Returns once the process runs.
    ///
    /// # Errors
    /// `Unavailable`: the system starts no process or thread.
    pub fn start(dir: &Path) -> Result<Self> {
        let shared = Arc::new(Shared {
            dir: dir.to_path_buf(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let failed = |error: &io::Error| {
            Error::new(ErrorKind::Unavailable, error.to_string())
                .while_doing("starting the watchdog of the daemon's mounts")
        };
        let (tell, told) = std::sync::mpsc::channel();
        let of_keeper = shared.clone();
        let keeper = std::thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || match of_keeper.begin() {
                Ok(child) => {
                    let _ = tell.send(Ok(()));
                    of_keeper.keep(child);
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                }
            })
            .map_err(|error| failed(&error))?;
        let begun = told.recv().unwrap_or_else(|_| {
            // The thread has ended without a word.
            Err(io::ErrorKind::Interrupted.into())
        });
        begun.map_err(|error| failed(&error))?;
        Ok(Self {
            shared,
            keeper: Some(keeper),
        })
    }

    /// The daemon can run, and may serve until then.
    pub fn beat(&self, serves_until: world::Instant) {
        let said = Said::Beat {
            serves_until: serves_until.since_start(),
            asleep: machine_time().asleep,
        };
        self.shared.lock().say(&said);
    }

    /// The daemon serves one more mount, by the kernel's id.
    pub fn watch(&self, mount: u64) {
        self.shared.lock().watch(mount);
    }

    /// A mount has ended. Returns why, if the watchdog has aborted it.
    pub fn forget(&self, mount: u64) -> Option<String> {
        self.shared.lock().forget(mount)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ends = true;
        // The process ends when its input does.
        state.to = None;
        drop(state);
        self.shared.changed.notify_all();
        if let Some(keeper) = self.keeper.take() {
            // Ends within LOOK_EVERY: a process that doesn't end is killed.
            let _ = keeper.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|it| it.into_inner())
    }

    /// Starts a process and tells it all that is watched.
    fn begin(&self) -> io::Result<Child> {
        let mut command = Command::new(PROGRAM);
        command
            .arg0("shale")
            .arg("watchdog")
            .arg("--dir")
            .arg(&self.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .current_dir("/");
        // Signals to the daemon's group or terminal aren't for it.
        world::host::in_own_session(&mut command);
        world::host::ends_with_this_thread(&mut command);
        let mut child = command.spawn()?;
        let to = OwnedFd::from(child.stdin.take().expect("its input is a pipe"));
        let from = OwnedFd::from(child.stdout.take().expect("its output is a pipe"));
        // A process that doesn't read or write must not hold the daemon up.
        ioctl_fionbio(&to, true)?;
        ioctl_fionbio(&from, true)?;
        let mut state = self.lock();
        if !state.ends {
            state.to = Some(to);
        }
        state.from = Some(Arc::new(from));
        state.lines = Lines::default();
        state.is_deaf = false;
        for mount in state.watched.clone().into_keys() {
            state.say(&Said::Watch(mount));
        }
        Ok(child)
    }

    /// Watches the process until the daemon ends, and starts it again whenever it has ended by itself.
    fn keep(&self, mut child: Child) {
        let mut pause = PAUSE_MIN;
        loop {
            let begun = Instant::now();
            let ended = self.wait_for_end(&mut child);
            if self.lock().ends {
                return;
            }
            tracing::error!(how = %ended, "the watchdog of the daemon's mounts has ended; it is started again");
            pause = match begun.elapsed() > RAN_WELL {
                true => PAUSE_MIN,
                false => (pause * 2).min(PAUSE_MAX),
            };
            child = loop {
                if self.ends_within(pause) {
                    return;
                }
                match self.begin() {
                    Ok(started) => break started,
                    Err(error) => {
                        tracing::error!(%error, "the watchdog of the daemon's mounts can't be started; they will hang if the daemon can't run");
                        pause = (pause * 2).min(PAUSE_MAX);
                    }
                }
            };
        }
    }

    /// Hears the process until it has ended; says how.
    fn wait_for_end(&self, child: &mut Child) -> String {
        let from = self.lock().from.clone().expect("the process has begun");
        let pause = Timespec::try_from(LOOK_EVERY).expect("it is short");
        loop {
            let waited = poll(&mut [PollFd::new(&*from, PollFlags::IN)], Some(&pause));
            let mut state = self.lock();
            let is_there = state.hear();
            let is_of_use = !state.ends && !state.is_deaf;
            if is_there && is_of_use && !waited.is_err_and(|error| error != Errno::INTR) {
                continue;
            }
            (state.to, state.from) = (None, None);
            drop(state);
            // It has ended, or is of no use any more.
            let _ = child.kill();
            return match child.wait() {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            };
        }
    }

    /// Waits that long at most; whether the end was asked for.
    fn ends_within(&self, time: Duration) -> bool {
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), time, |state| !state.ends);
        waited.unwrap_or_else(|it| it.into_inner()).0.ends
    }
}

impl State {
    fn watch(&mut self, mount: u64) {
        *self.watched.entry(mount).or_default() += 1;
        self.say(&Said::Watch(mount));
    }

    fn forget(&mut self, mount: u64) -> Option<String> {
        let have_it = self.watched.remove(&mount).unwrap_or_default();
        if have_it > 1 {
            self.watched.insert(mount, have_it - 1);
        } else {
            self.say(&Said::Forget(mount));
        }
        // It says so before it does it.
        self.hear();
        self.aborted.remove(&mount)
    }

    fn say(&mut self, said: &Said) {
        let Some(to) = &self.to else {
            return;
        };
        match write(to, &line_of(said)) {
            Ok(_) => {}
            // 64 KiB wait in the pipe: it has read nothing for minutes.
            Err(Errno::AGAIN) => self.is_deaf = true,
            // It has ended, and its successor is told all.
            Err(_) => self.to = None,
        }
    }

    /// Takes in what the process has said. False if it says nothing any more.
    fn hear(&mut self) -> bool {
        let Some(from) = self.from.clone() else {
            return false;
        };
        let mut bytes = [0; READ_BYTES];
        loop {
            match read(&*from, &mut bytes) {
                Ok(0) => return false,
                Ok(length) => {
                    for aborts in self.lines.add::<Aborts>(&bytes[..length]) {
                        if self.aborted.len() < ABORTED_MAX {
                            self.aborted.insert(aborts.mount, aborts.cause);
                        }
                    }
                }
                Err(Errno::INTR) => {}
                Err(error) => return error == Errno::AGAIN,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    /// Would be broken if a mount went unwatched because one that had its id before, and was unmounted while operations of
    /// it waited, has ended at last.
    #[test]
    fn a_mount_is_watched_as_long_as_one_with_its_id_is_served() {
        let (to, mut told) = UnixStream::pair().unwrap();
        let mut state = State {
            to: Some(to.into()),
            ..State::default()
        };
        state.watch(7);
        state.watch(7);
        assert_eq!(state.forget(7), None);
        assert!(state.watched.contains_key(&7));
        state.watch(8);
        assert_eq!(state.forget(7), None);
        assert!(!state.watched.contains_key(&7));
        drop(state);
        let mut bytes = Vec::new();
        told.read_to_end(&mut bytes).unwrap();
        let said: Vec<Said> = Lines::default().add(&bytes);
        let all = [
            Said::Watch(7),
            Said::Watch(7),
            Said::Watch(8),
            Said::Forget(7),
        ];
        assert_eq!(said, all);
    }
}
