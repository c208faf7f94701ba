//! Ends the connection between the kernel and a daemon from outside: the file `abort` of fusectl.

use crate::options::effective_user;
use crate::table::{self, DeviceNumber, TableLine};
use model::{Error, ErrorKind, Result};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Where fusectl is, if it is mounted. Distributions with systemd do that.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// The file there that ends a connection.
const ABORT: &str = "abort";

/// Ends one mount's connection, whatever the daemon that serves it does: it may be stopped.
///
/// The kernel's file stands for the connection, not for its number: once that has ended, nothing happens, also if
/// another mount has the number by then.
#[derive(Debug)]
pub struct AbortFile {
    file: File,
    waiting: File,
    mountpoint: PathBuf,
}

impl AbortFile {
    /// Opens that of a mount: the one with this id of the kernel, if its source is `source` and it is this user's.
    /// Sends the file system no request.
    ///
    /// # Errors
    /// `NotFound`: there is no such mount. `NotSupported`: the kernel's file can't be opened; it says what to do.
    /// `Unavailable`: nobody knows what is mounted, or no descriptor is free.
    pub fn of_mount(id: u64, source: &Path) -> Result<Self> {
        let user = effective_user();
        let is_it = |line: &TableLine| {
            line.id == id && line.is_shale() && line.source == source && line.user == Some(user)
        };
        let found = table::seen()?.into_iter().find(is_it);
        Self::of_line(found.ok_or_else(|| missing(id, source))?)
    }

    /// Opens that of the mount that has this line of the mount table, whoever's it is. Sends the file system no
    /// request.
    ///
    /// # Errors
    /// As [`AbortFile::of_mount`].
    pub(crate) fn of_line(line: TableLine) -> Result<Self> {
        let opened = Self::of_number(line.number, &line.mountpoint)
            .map_err(|error| error.while_doing(doing(line.id, &line.source)))?;
        // Had it ended meanwhile, its number could have been another's.
        if !table::seen()?.contains(&line) {
            return Err(missing(line.id, &line.source));
        }
        Ok(opened)
    }

    /// Opens that of the mount which has this number now. The caller sees to it that it still is the one meant.
    ///
    /// # Errors
    /// `NotSupported`, `Unavailable`, as [`AbortFile::of_mount`].
    pub(crate) fn of_number(number: DeviceNumber, mountpoint: &Path) -> Result<Self> {
        let opened =
            |name, flags| open(number.minor, name, flags).map_err(|error| not_opened(&error));
        Ok(Self {
            file: opened(ABORT, OFlags::WRONLY)?,
            waiting: opened("waiting", OFlags::RDONLY)?,
            mountpoint: mountpoint.to_owned(),
        })
    }

    /// Where it was mounted when this was opened.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Fails all requests, running ones with ECONNABORTED and later ones with ENOTCONN, and ends the connection. The
    /// mount stays in the tree of files. Does nothing if the connection has ended. Doesn't wait for the daemon.
    ///
    /// # Errors
    /// The system's error.
    pub fn abort(&self) -> io::Result<()> {
        (&self.file).write_all(b"1")
    }

    /// Whether requests of programs are still unanswered. Over io_uring an abort can't end those that the kernel has
    /// assigned to threads of a stopped daemon. False once the connection is gone. Doesn't wait for the daemon.
    #[must_use]
    pub fn has_requests(&self) -> bool {
        self.requests() > 0
    }

    /// How many requests of programs are unanswered, those that the daemon hasn't read yet included. 0 once the
    /// connection is gone. Doesn't wait for the daemon.
    #[must_use]
    pub fn requests(&self) -> usize {
        let text = self.told().unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    /// Whether the kernel has unmounted it everywhere: its numbers are or will be another mount's. An abort alone doesn't
    /// do that. False while the system doesn't tell.
    pub(crate) fn is_unmounted(&self) -> bool {
        self.told().is_ok_and(|text| text.is_empty())
    }

    /// What the kernel tells of the requests; nothing once the connection is gone.
    fn told(&self) -> io::Result<String> {
        // It tells its number once for each time that it is opened.
        std::fs::read_to_string(format!("/proc/self/fd/{}", self.waiting.as_raw_fd()))
    }
}

fn doing(id: u64, source: &Path) -> String {
    format!("opening what ends the mount {id} of {}", source.display())
}

fn missing(id: u64, source: &Path) -> Error {
    let text = "this user has no such mount here";
    Error::new(ErrorKind::NotFound, text).while_doing(doing(id, source))
}

/// Why a file of a connection can't be opened, and what to do.
fn not_opened(error: &io::Error) -> Error {
    match table::without_descriptor(error) {
        Some(hint) => Error::new(ErrorKind::Unavailable, format!("{error}{hint}")),
        None => {
            let text = format!("{error}; mount fusectl: `mount -t fusectl none {CONNECTIONS}`");
            Error::new(ErrorKind::NotSupported, text)
        }
    }
}

/// Opens a file of a connection: in /sys, or, without fusectl there and for root only, in a mount of our own that nobody
/// else sees.
fn open(number: u32, name: &str, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::CLOEXEC;
    let path = format!("{CONNECTIONS}/{number}/{name}");
    match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => {}
        opened => return Ok(opened?.into()),
    }
    let fusectl = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&fusectl)?;
    let mount_flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let connections = fsmount(&fusectl, mount_flags, MountAttrFlags::empty())?;
    let file = openat(
        connections,
        format!("{number}/{name}"),
        flags,
        Mode::empty(),
    )?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Received};
    use crate::mounting;
    use crate::options::{MountOptions, Unmount};
    use rustix::mount::{MountFlags, UnmountFlags};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::ffi::CStr;
    use testkit::own_mounts::is_among_own_mounts;

    const SOURCE: &str = "/srv/a node";

    struct Mounted {
        device: Device,
        path: PathBuf,
        line: TableLine,
        _directory: tempfile::TempDir,
    }

    impl Mounted {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = std::fs::canonicalize(directory.path()).unwrap();
            let mut options = MountOptions::new(&path);
            options.name = SOURCE.to_owned();
            let device = mounting::mount(&path, &options).unwrap();
            let line = table::mount_on(&path).unwrap().unwrap();
            Self {
                device,
                path,
                line,
                _directory: directory,
            }
        }

        /// Whether the kernel's first request is there, and not the connection's end.
        fn is_connected(&self) -> bool {
            let mut buffer = vec![0; crate::init::DATA_BYTES_MAX as usize + 4096];
            loop {
                match self.device.receive(&mut buffer).unwrap() {
                    Received::Request(_) => return true,
                    Received::Again => {}
                    Received::Ended => return false,
                }
            }
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = mounting::unmount(&self.path, Unmount::Lazy, None);
        }
    }

    /// Has fusectl in its place in /sys, or not.
    fn put_fusectl(is_there: bool) {
        while rustix::mount::unmount(CONNECTIONS, UnmountFlags::DETACH).is_ok() {}
        if is_there {
            let (flags, data) = (MountFlags::empty(), None::<&CStr>);
            rustix::mount::mount("none", CONNECTIONS, "fusectl", flags, data).unwrap();
        }
    }

    /// On most machines fusectl is in its place, in many containers it isn't; other tests see what this machine has.
    #[test]
    fn requests_are_seen_and_ended_with_fusectl_in_its_place_and_without_it() {
        let test = "requests_are_seen_and_ended_with_fusectl_in_its_place_and_without_it";
        if !is_among_own_mounts(module_path!(), test) {
            return;
        }
        for is_there in [true, false] {
            put_fusectl(is_there);
            let mounted = Mounted::new();
            let number = mounted.line.number.minor.to_string();
            let in_its_place = Path::new(CONNECTIONS).join(number);
            assert_eq!(in_its_place.exists(), is_there, "{in_its_place:?}");
            let abort = is_ended_by_its_abort_file(&mounted);
            // No other mount namespace has it.
            drop(mounted);
            assert!(abort.is_unmounted());
        }
    }

    /// Would be broken if people were told to mount fusectl, which is there, and a mount were served of which nobody can end
    /// the connection.
    #[test]
    fn who_has_no_free_descriptor_is_told_and_not_that_something_is_missing() {
        let test = "who_has_no_free_descriptor_is_told_and_not_that_something_is_missing";
        // Its limits are its own, too.
        if !is_among_own_mounts(module_path!(), test) {
            return;
        }
        let mounted = Mounted::new();
        let before = getrlimit(Resource::Nofile);
        let none = Rlimit {
            current: Some(0),
            maximum: before.maximum,
        };
        setrlimit(Resource::Nofile, none).unwrap();
        let refused = [
            AbortFile::of_mount(mounted.line.id, Path::new(SOURCE)),
            AbortFile::of_number(mounted.line.number, &mounted.path),
        ];
        setrlimit(Resource::Nofile, before).unwrap();
        for refused in refused {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
            assert!(refused.to_string().contains("ulimit -n"), "{refused}");
        }
    }

    #[test]
    fn the_mount_of_a_daemon_that_does_nothing_is_ended_and_stays_in_its_place() {
        is_ended_by_its_abort_file(&Mounted::new());
    }

    fn is_ended_by_its_abort_file(mounted: &Mounted) -> AbortFile {
        let abort = AbortFile::of_mount(mounted.line.id, Path::new(SOURCE)).unwrap();
        assert_eq!(abort.mountpoint(), mounted.path);
        // It waits for the answer to a request that nobody reads.
        let path = mounted.path.clone();
        let program = std::thread::spawn(move || std::fs::metadata(path));
        // At least the kernel's own first one.
        assert!(abort.has_requests());
        abort.abort().unwrap();
        let failed = program.join().unwrap().unwrap_err();
        let errno = failed.raw_os_error();
        assert!(
            matches!(errno, Some(libc::ENOTCONN | libc::ECONNABORTED)),
            "{failed}"
        );
        assert!(!mounted.is_connected());
        assert!(!abort.has_requests());
        let on_top = table::mount_on(&mounted.path).unwrap();
        assert!(on_top.is_some_and(|line| line.is_shale()));
        abort.abort().unwrap();
        assert!(!abort.is_unmounted(), "it is still in its place");
        abort
    }

    #[test]
    fn a_mount_that_has_got_the_number_of_an_ended_one_is_not_ended_for_it() {
        // The lowest free number is given, so another test's mount can only rarely be in between.
        let again = (0..100).find_map(|_| {
            let first = Mounted::new();
            let abort = AbortFile::of_mount(first.line.id, Path::new(SOURCE)).unwrap();
            let number = first.line.number;
            drop(first);
            let second = Mounted::new();
            (second.line.number == number).then_some((abort, second))
        });
        let (abort, second) = again.expect("numbers are used again");
        abort.abort().unwrap();
        assert!(second.is_connected());
    }

    #[test]
    fn mounts_of_other_directories_are_not_found() {
        let mounted = Mounted::new();
        for (id, source) in [(mounted.line.id, "/srv/another"), (u64::MAX, SOURCE)] {
            let refused = AbortFile::of_mount(id, Path::new(source)).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NotFound);
        }
    }
}
