//! The daemon's side of its watchdog: starts the process, starts it again when it has ended, and passes on what each of them
//! says.

use super::messages::{Aborts, Lines, MountNumber, Said, line_of};
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
    /// The mounts that are served.
    watched: BTreeMap<MountNumber, Watched>,
    /// How many have been.
    numbers: u64,
}

struct Watched {
    /// The kernel's id.
    id: u64,
    /// Why the process has aborted it, if it has.
    aborted: Option<String>,
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

    /// The daemon serves one more mount, by the kernel's id. Returns what to [`forget`](Self::forget) when it has ended.
    #[must_use]
    pub fn watch(&self, id: u64) -> MountNumber {
        self.shared.lock().watch(id)
    }

    /// A mount has ended. Returns why, if the watchdog has aborted it.
    pub fn forget(&self, mount: MountNumber) -> Option<String> {
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
        state.say_watched();
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
    fn watch(&mut self, id: u64) -> MountNumber {
        self.numbers += 1;
        let number = MountNumber(self.numbers);
        self.watched.insert(number, Watched { id, aborted: None });
        self.say(&Said::Watch { number, id });
        number
    }

    /// Tells a process that has just begun. An id is the newest mount's that has got it: the earlier ones are in no tree of
    /// files any more.
    fn say_watched(&mut self) {
        let watched = self.watched.iter();
        let by_id: BTreeMap<_, _> = watched.map(|(it, mount)| (mount.id, *it)).collect();
        for (id, number) in by_id {
            self.say(&Said::Watch { number, id });
        }
    }

    fn forget(&mut self, mount: MountNumber) -> Option<String> {
        self.say(&Said::Forget(mount));
        // It says so before it does it.
        self.hear();
        self.watched.remove(&mount)?.aborted
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
                        if let Some(mount) = self.watched.get_mut(&aborts.mount) {
                            mount.aborted = Some(aborts.cause);
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
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    /// Would be broken if a mount went unwatched, or never learnt why it was aborted, because one that had its id before, and
    /// was unmounted while operations of it waited, has ended at last.
    #[test]
    fn mounts_that_have_one_id_after_the_other_are_watched_each_for_itself() {
        let (to, mut told) = UnixStream::pair().unwrap();
        let (mut says, from) = UnixStream::pair().unwrap();
        from.set_nonblocking(true).unwrap();
        let mut state = State {
            to: Some(to.into()),
            from: Some(Arc::new(from.into())),
            ..State::default()
        };
        let [first, second, other] = [7, 7, 8].map(|id| state.watch(id));
        for (mount, cause) in [(second, "asleep"), (first, "stopped")] {
            let cause = cause.to_owned();
            let aborts = line_of(&Aborts { mount, cause });
            says.write_all(&aborts).unwrap();
        }
        // As to the next process.
        state.say_watched();
        assert_eq!(state.forget(first).as_deref(), Some("stopped"));
        assert_eq!(state.forget(second).as_deref(), Some("asleep"));
        assert_eq!(state.forget(other), None);
        drop(state);
        let mut bytes = Vec::new();
        told.read_to_end(&mut bytes).unwrap();
        let said: Vec<Said> = Lines::default().add(&bytes);
        let watch = |number, id| Said::Watch { number, id };
        let all = [
            watch(first, 7),
            watch(second, 7),
            watch(other, 8),
            watch(second, 7),
            watch(other, 8),
            Said::Forget(first),
            Said::Forget(second),
            Said::Forget(other),
        ];
        assert_eq!(said, all);
    }
}
