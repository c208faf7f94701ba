//! The watchdog's process: one thread that reads what the daemon says, looks four times a second, and ends with the daemon.
//!
//! It opens what aborts a mount when it is told of the mount, so it never aborts another one that has got the same
//! number.

use super::messages::{Aborts, Lines, MountNumber, Said, line_of};
use super::rule::{LOOK_EVERY, Rule, Verdict};
use fuse::AbortFile;
use model::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio, read, write};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use world::host::machine_time;

/// Bytes that are read at once.
const READ_BYTES: usize = 4_096;

/// Runs the watchdog of a directory's daemon, which is at the other end of standard input and output. Returns when the
/// daemon has closed its end.
///
/// # Errors
/// Standard input isn't a pipe that can be waited for.
pub fn run(source: PathBuf) -> Result<ExitCode> {
    let failed = |doing: &str, error: Errno| {
        Error::new(ErrorKind::Unavailable, error.to_string()).while_doing(doing.to_owned())
    };
    // So that it is told apart from the daemon in lists of processes.
    let _ = rustix::thread::set_name(c"shale-watchdog");
    // A machine that is short of memory must not keep it from running. What is refused to users only makes that possible.
    if let Err(error) =
        mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
    {
        tracing::debug!(%error, "the watchdog's memory may be swapped out");
    }
    let (input, output) = (std::io::stdin(), std::io::stdout());
    for end in [input.as_fd(), output.as_fd()] {
        ioctl_fionbio(end, true)
            .map_err(|error| failed("preparing the watchdog's pipes", error))?;
    }
    let daemon = parent().map_err(|error| failed("finding the daemon", error))?;
    let mut watching = Watching::new(source, daemon);
    let mut lines = Lines::default();
    let pause = Timespec::try_from(LOOK_EVERY).expect("it is short");
    loop {
        match poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&pause)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(failed("waiting for the daemon", error)),
        }
        // All that was said is heard before it looks.
        loop {
            let mut bytes = [0; READ_BYTES];
            match read(&input, &mut bytes) {
                Ok(0) => return Ok(ExitCode::SUCCESS),
                Ok(length) => {
                    for said in lines.add(&bytes[..length]) {
                        watching.hear(said);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(failed("hearing the daemon", error)),
            }
        }
        watching.look_for_unseen();
        if let Some(verdict) = watching.rule.look(machine_time()) {
            watching.abort(&verdict, |note| {
                // The pipe has room for the notes of all mounts; a daemon that can't run reads them later.
                let _ = write(&output, note);
            });
        }
        watching.free_programs();
    }
}

/// The process that has started this one. If that has ended, the kernel ends this one, too.
fn parent() -> rustix::io::Result<OwnedFd> {
    let parent = getppid().ok_or(Errno::SRCH)?;
    let descriptor = pidfd_open(parent, PidfdFlags::empty())?;
    // Had it ended meanwhile, its number could have been another's.
    match getppid() == Some(parent) {
        true => Ok(descriptor),
        false => Err(Errno::SRCH),
    }
}

/// The mounts that are watched.
struct Watching {
    /// The source of the daemon's mounts.
    source: PathBuf,
    daemon: OwnedFd,
    rule: Rule,
    aborts: BTreeMap<MountNumber, AbortFile>,
    /// Mounts that can't be seen for now, by the kernel's ids. An id is the newest one's that has got it.
    unseen: BTreeMap<u64, MountNumber>,
    /// Those of mounts that were aborted, until the daemon runs again.
    aborted: BTreeMap<MountNumber, AbortFile>,
}

impl Watching {
    fn new(source: PathBuf, daemon: OwnedFd) -> Self {
        Self {
            source,
            daemon,
            rule: Rule::default(),
            aborts: BTreeMap::new(),
            unseen: BTreeMap::new(),
            aborted: BTreeMap::new(),
        }
    }

    fn hear(&mut self, said: Said) {
        match said {
            Said::Watch { number, id } => self.watch(number, id),
            Said::Forget(mount) => {
                self.aborts.remove(&mount);
                self.unseen.retain(|_, unseen| *unseen != mount);
                self.aborted.remove(&mount);
                self.rule.forget(mount);
            }
            Said::Beat {
                serves_until,
                asleep,
            } => {
                self.rule.beat(serves_until, asleep);
                self.aborted.clear();
            }
        }
    }

    fn watch(&mut self, number: MountNumber, id: u64) {
        self.unseen.remove(&id);
        match AbortFile::of_mount(id, &self.source) {
            Ok(abort) => {
                self.aborts.insert(number, abort);
                self.rule.watch(number);
            }
            // It has ended meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, id, "a mount will hang if the daemon can't run");
                if error.kind() == ErrorKind::Unavailable {
                    self.unseen.insert(id, number);
                }
            }
        }
    }

    /// The daemon says only once that it serves a mount.
    fn look_for_unseen(&mut self) {
        self.unseen.retain(|id, number| {
            let seen = AbortFile::of_mount(*id, &self.source);
            let is_unseen = matches!(&seen, Err(error) if error.kind() == ErrorKind::Unavailable);
            if let Ok(abort) = seen {
                tracing::info!(id, "a mount is watched that couldn't be seen");
                self.aborts.insert(*number, abort);
                self.rule.watch_late(*number);
            }
            is_unseen
        });
    }

    fn abort(&mut self, verdict: &Verdict, tell: impl Fn(&[u8])) {
        let cause = verdict.cause.to_string();
        for mount in &verdict.mounts {
            let Some(abort) = self.aborts.remove(mount) else {
                continue;
            };
            // First: the daemon may go on at once, and learns from it why its mount has ended.
            tell(&line_of(&Aborts {
                mount: *mount,
                cause: cause.clone(),
            }));
            let mountpoint = abort.mountpoint().display();
            match abort.abort() {
                Ok(()) => tracing::error!(
                    %mountpoint,
                    %cause,
                    "the watchdog has aborted a mount: programs that use it get errors; the daemon mounts again when it \
                     goes on (`kill -CONT`), or end it with `shale down --kill`"
                ),
                Err(error) => {
                    tracing::error!(%mountpoint, %cause, %error, "the watchdog couldn't abort a mount, which hangs");
                }
            }
            self.aborted.insert(*mount, abort);
        }
    }

    /// Kills the daemon if programs wait for requests that the abort of their mount didn't end: they can't even be killed.
    fn free_programs(&mut self) {
        if !self.rule.are_stuck() {
            return;
        }
        for (_, mount) in std::mem::take(&mut self.aborted) {
            if !mount.has_requests() {
                continue;
            }
            let mountpoint = mount.mountpoint().display();
            tracing::error!(
                %mountpoint,
                "programs wait for a daemon that can't run, also after their mount was aborted: the watchdog kills the \
                 daemon, so that they get errors; start it again with `shale up`"
            );
            if let Err(error) = pidfd_send_signal(&self.daemon, Signal::KILL) {
                tracing::error!(%mountpoint, %error, "the watchdog couldn't kill the daemon: programs hang");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuse::{Mount, MountOptions, TransportChoice, Unmount};
    use std::fs::File;
    use std::path::Path;
    use std::sync::Arc;
    use testkit::memory::{MemoryFileSystem, MemorySettings};
    use testkit::own_mounts::{Cover, is_among_own_mounts};
    use world::World;

    /// Would be broken if a mount hung with a daemon that can't run because the watchdog couldn't see it at the moment when it
    /// was told of it.
    #[test]
    fn a_mount_that_cannot_be_seen_is_watched_as_soon_as_it_can() {
        let test = "a_mount_that_cannot_be_seen_is_watched_as_soon_as_it_can";
        if !is_among_own_mounts(module_path!(), test) {
            return;
        }
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let world = runtime.block_on(async { World::real() });
        let home = tempfile::tempdir().unwrap();
        let source = home.path().canonicalize().unwrap();
        let mut how = MountOptions::new(&source);
        how.name = source.display().to_string();
        how.transport = TransportChoice::Classic;
        let shown = Arc::new(MemoryFileSystem::new(&world, MemorySettings::default()));
        let mount = Mount::start(&world, shown, &how).unwrap();
        let id = mount.id().unwrap();
        let daemon = File::open("/dev/null").unwrap();
        let mut watching = Watching::new(source, daemon.into());
        let [first, second, third] = [1, 2, 3].map(MountNumber);
        let hides_all = Cover::over(Path::new("/proc"));
        // As if the kernel had given its id to each in turn.
        for number in [first, second, third] {
            watching.hear(Said::Watch { number, id });
        }
        watching.hear(Said::Forget(first));
        watching.look_for_unseen();
        assert!(watching.aborts.is_empty());
        drop(hides_all);
        watching.look_for_unseen();
        assert!(watching.aborts.keys().eq([&third]) && watching.unseen.is_empty());
        // Nor is one watched that has ended before it was seen.
        watching.unseen.insert(id, second);
        watching.hear(Said::Forget(second));
        watching.look_for_unseen();
        assert!(watching.aborts.keys().eq([&third]));
        // Nor one whose id is another's meanwhile.
        watching.unseen.insert(id, second);
        watching.hear(Said::Watch { number: third, id });
        watching.look_for_unseen();
        assert!(watching.aborts.keys().eq([&third]));
        runtime.block_on(mount.unmount(Unmount::Forced)).unwrap();
    }
}
