//! Mounts and unmounts: mount(2), umount(2), fusermount3, and removing a killed daemon's mount.

use crate::connection::AbortFile;
use crate::device::Device;
use crate::fusermount::{self, MOUNT_MAX, UNMOUNT_MAX};
use crate::options::{KernelFlags, MountOptions, Unmount, is_root};
use crate::refusing;
use crate::table::{self, DeviceNumber, FS_TYPE, MountedShale, TableLine, mount_on, top_of};
use model::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::{Errno, FdFlags};
use rustix::mount as kernel;
use rustix::mount::UnmountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a mounted directory may take to answer stat(2).
const LOOK_MAX: Duration = Duration::from_secs(3);

/// How long files that were just closed may keep a mount from becoming read-only.
const RELEASED_MAX: Duration = Duration::from_secs(2);
/// How long an unmount waits for programs that use the mount.
const PASSING_MAX: Duration = Duration::from_secs(1);
const RELEASED_PAUSE: Duration = Duration::from_millis(10);

/// Places whose file systems were asked and haven't answered.
static ASKED: Mutex<BTreeSet<PathBuf>> = parking_lot::const_mutex(BTreeSet::new());

/// Changes the flags of one of our mounts (`mount -o remount`). Sends the file system no request.
///
/// # Errors
/// `NotFound` if no Shale is mounted there; `Busy` for read-only while files are open for
/// writing; `NotPermitted`; `Unavailable`: nobody knows what is mounted there.
pub fn remount(path: &Path, flags: KernelFlags) -> Result<()> {
    let failed = |error: Error| error.while_doing(format!("remount {}", path.display()));
    let real = fs::canonicalize(path).map_err(|error| failed(refused(&error, "the path")))?;
    if table::shale_on(&real).map_err(failed)?.is_none() {
        let text = "no Shale file system is mounted there";
        return Err(failed(Error::new(ErrorKind::NotFound, text)));
    }
    let begun = Instant::now();
    let error = loop {
        let Err(error) = kernel::mount_remount(&real, flags.bits(), c"") else {
            return Ok(());
        };
        // The kernel sends the RELEASE of a closed file in the background; until that is answered
        // the file counts as open.
        if error != Errno::BUSY || begun.elapsed() > RELEASED_MAX {
            break error;
        }
        std::thread::sleep(RELEASED_PAUSE);
    };
    Err(failed(match error {
        Errno::BUSY => {
            let text = format!(
                "files are open for writing (`fuser -vm {}` shows who has them)",
                real.display()
            );
            Error::new(ErrorKind::Busy, text)
        }
        error => refused(&error.into(), "mount(2)"),
    }))
}

/// Where a mount is made.
pub(crate) struct Place {
    /// Absolute, without symbolic links.
    pub(crate) path: PathBuf,
    /// The kernel's ids of dead mounts of ours there, which the new one takes the place of.
    pub(crate) dead: Vec<u64>,
}

/// Checks the mountpoint. A dead mount of ours (or one of this process that refuses) stays on it, so that nobody comes to the directory below before the new
/// one is there; only of an ordinary user's it is removed: fusermount3 mounts nowhere else. `replaces`: the id of one that
/// must be there. Fails if the mount table can't be read: what is mounted there would be covered.
pub(crate) fn prepare(path: &Path, replaces: Option<u64>) -> Result<Place> {
    prepare_in(path, replaces, table::read)
}

/// `read`: reads the mount table.
fn prepare_in(
    path: &Path,
    mut replaces: Option<u64>,
    read: impl Fn() -> io::Result<Vec<TableLine>>,
) -> Result<Place> {
    let seen = || read().map_err(|error| table::unreadable(&error));
    let absolute = std::path::absolute(path).map_err(|error| refused(&error, "the path"))?;
    // As the mount table names it. Only links are read, so one that doesn't answer doesn't matter.
    let absolute = fs::canonicalize(&absolute).unwrap_or(absolute);
    let found = look_at(&absolute);
    if found
        .as_ref()
        .is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
    {
        let lines = seen()?;
        let top = top_of(&lines, &absolute).filter(|line| line.is_shale());
        let hint = format!(
            "run `fusermount3 -uz {}` (or `umount -l`), then try again",
            absolute.display()
        );
        let Some(top) = top else {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("the dead mount of another file system is there; {hint}"),
            ));
        };
        if is_root() {
            let dead = of_same_source(&lines, top);
            check_replaced(replaces, &dead)?;
            return Ok(Place {
                dead,
                path: absolute,
            });
        }
        check_replaced(replaces.take(), &[top.id])?;
        tracing::warn!(mountpoint = %absolute.display(), "removing the mount of a daemon that died");
        unmount(&absolute, Unmount::Lazy, None).map_err(|error| {
            Error::new(
                ErrorKind::Busy,
                format!("a dead mount is there ({error}); {hint}"),
            )
        })?;
    }
    let found = look_at(&absolute).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => Error::new(
            ErrorKind::Busy,
            format!(
                "a file system is mounted there that doesn't answer; `umount -f {}` ends it",
                absolute.display()
            ),
        ),
        io::ErrorKind::NotFound => Error::new(
            ErrorKind::NotFound,
            "the directory doesn't exist; make it with `mkdir -p`",
        ),
        _ => refused(&error, "the directory"),
    })?;
    if !found.is_dir() {
        return Err(Error::new(ErrorKind::NotDirectory, "it isn't a directory"));
    }
    let real = fs::canonicalize(&absolute).map_err(|error| refused(&error, "the path"))?;
    if top_of(&seen()?, &real).is_some_and(TableLine::is_shale) {
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "a Shale file system is mounted there already; unmount it with `fusermount3 -u {}`",
                real.display()
            ),
        ));
    }
    check_replaced(replaces, &[])?;
    Ok(Place {
        path: real,
        dead: Vec::new(),
    })
}

/// Whether the dead mount is among these that a new one is to replace, if that is to replace one.
fn check_replaced(replaces: Option<u64>, dead: &[u64]) -> Result<()> {
    if replaces.is_some_and(|id| !dead.contains(&id)) {
        let text = "the dead mount that was to be replaced isn't there any more";
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    Ok(())
}

/// The mounts at the place of the topmost one that are its node's. No mount is made over one that is served, so with that
/// one all are dead.
fn of_same_source(lines: &[TableLine], top: &TableLine) -> Vec<u64> {
    let is_like = |line: &&TableLine| {
        line.mountpoint == top.mountpoint && line.is_shale() && line.source == top.source
    };
    let there = lines.iter().filter(is_like);
    there.map(|line| line.id).collect()
}

/// stat(2) of a path on which a file system may be mounted whose daemon is stopped: a plain stat(2)
/// would block until the daemon continues. A mount of this process that refuses is as a dead one: it would answer as one that is
/// served may.
fn look_at(path: &Path) -> io::Result<fs::Metadata> {
    let lines = table::read();
    match lines.as_ref().map(|lines| top_of(lines, path)) {
        Ok(None) => fs::metadata(path),
        Ok(Some(top)) if top.is_shale() && refusing::is_kept(top.number) => {
            Err(io::Error::from_raw_os_error(libc::ENOTCONN))
        }
        _ => answer_of(path, LOOK_MAX, asked),
    }
}

/// What a file system answers about a place, if it does within `patience`. Somebody may ask again and again: where it hasn't
/// answered yet, nobody else waits for it.
fn answer_of(
    path: &Path,
    patience: Duration,
    ask: impl FnOnce(&Path) -> io::Result<fs::Metadata> + Send + 'static,
) -> io::Result<fs::Metadata> {
    let path = path.to_owned();
    if !ASKED.lock().insert(path.clone()) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let (found, wait) = std::sync::mpsc::channel();
    // Left running if it hangs; it ends with the mount that it waits for.
    drop(std::thread::spawn(move || {
        let answer = ask(&path);
        ASKED.lock().remove(&path);
        // The receiver has given up if it took too long.
        let _ = found.send(answer);
    }));
    wait.recv_timeout(patience)
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// stat(2) that the file system must answer: the kernel still knows what one that has just died had said.
fn asked(path: &Path) -> io::Result<fs::Metadata> {
    statx(
        CWD,
        path,
        AtFlags::STATX_FORCE_SYNC,
        StatxFlags::BASIC_STATS,
    )?;
    fs::metadata(path)
}

/// Mounts; the kernel's first request then waits on the device.
pub(crate) fn mount(path: &Path, options: &MountOptions) -> Result<Device> {
    if is_root() {
        mount_as_root(path, options)
    } else {
        mount_as_user(path, options)
    }
}

fn mount_as_root(path: &Path, options: &MountOptions) -> Result<Device> {
    let device = Device::open().map_err(|error| no_device(&error))?;
    let others = if options.allow_other {
        ",allow_other"
    } else {
        ""
    };
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,max_read={}{others}",
        device.raw_fd(),
        crate::init::DATA_BYTES_MAX
    );
    let data = CString::new(data)
        .map_err(|_| Error::new(ErrorKind::InvalidArgument, "names contain no NUL byte"))?;
    kernel::mount(&options.name, path, FS_TYPE, options.flags.bits(), &*data)
        .map_err(|error| refused(&error.into(), "mount(2)"))?;
    Ok(device)
}

/// fusermount3 opens the device, mounts, and passes the descriptor through a socket.
fn mount_as_user(path: &Path, options: &MountOptions) -> Result<Device> {
    // fusermount3's own message would be less clear. It may open a device that we may not.
    if let Err(error) = fs::metadata("/dev/fuse") {
        return Err(no_device(&error));
    }
    let (ours, theirs) = UnixStream::pair().map_err(|error| refused(&error, "socketpair(2)"))?;
    clear_close_on_exec(&theirs).map_err(|error| refused(&error, "fcntl(2)"))?;
    let name = options.name.replace('\\', r"\\").replace(',', r"\,");
    let mut list = format!(
        "default_permissions,nosuid,nodev,fsname={name},subtype=shale,max_read={}",
        crate::init::DATA_BYTES_MAX
    );
    for (wanted, word) in [
        (options.flags.read_only, ",ro"),
        (options.flags.no_atime, ",noatime"),
        (options.flags.no_exec, ",noexec"),
        (options.allow_other, ",allow_other"),
    ] {
        if wanted {
            list.push_str(word);
        }
    }
    let mut command = fusermount::command();
    command.arg("-o").arg(list).arg("--").arg(path);
    command.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    // One that is killed may have mounted already; what it leaves then is dead, and the next attempt takes it away.
    let ended = fusermount::run(&mut command, MOUNT_MAX)?;
    drop(theirs);
    if !ended.status.success() {
        let said = ended.complaint.trim();
        let hint = if said.contains("allow_other") {
            "; put `user_allow_other` into /etc/fuse.conf, or mount without it"
        } else if said.contains("open /dev/fuse") {
            "; allow ordinary users with `chmod 666 /dev/fuse`, as distributions do"
        } else if said.contains("write access") || said.contains("not owned") {
            "; an ordinary user mounts only on directories that are theirs"
        } else {
            ""
        };
        return Err(Error::new(ErrorKind::NotPermitted, format!("{said}{hint}")));
    }
    // It has ended: what it has sent is there.
    let answer = ours
        .set_nonblocking(true)
        .and_then(|()| receive_descriptor(&ours));
    let fd = answer.map_err(|error| refused(&error, "fusermount3's answer"))?;
    Ok(Device::from_fd(fd))
}

/// Ends, as `how` says, a mount that another process serves or that is dead. Sends the file system
/// no request, so a stopped daemon doesn't block it.
///
/// # Errors
/// `Busy` after `IfIdle`; `NotPermitted`; `Unavailable` after `IfIdle`: nobody knows what is mounted there.
pub fn unmount_foreign(path: &Path, how: Unmount) -> Result<()> {
    let doing = |error: Error| error.while_doing(format!("unmount {}", path.display()));
    let on_top = match mount_on(path) {
        // It could be another file system, which is idle.
        Err(unseen) if how == Unmount::IfIdle => return Err(doing(unseen)),
        // The others are the last resort, and work whatever else doesn't.
        seen => seen.ok().flatten(),
    };
    if let Some(other) = on_top.as_ref().filter(|line| !line.is_shale()) {
        // It may be FUSE too: its connection isn't ours to end.
        let text = format!(
            "something else is mounted over it ({} from {}); unmount that first",
            other.fs_type,
            other.source.display()
        );
        return Err(doing(Error::new(ErrorKind::Busy, text)));
    }
    let how = match (&on_top, how) {
        // Of what isn't in the table, because that can't be read, or names the place in another way, nobody knows
        // which other mounts share its connection.
        (None, Unmount::Forced) => Unmount::Lazy,
        _ => how,
    };
    let found = on_top.filter(|_| how == Unmount::Forced);
    // If it can't be opened, the kernel ends the connection as far as it lets this user (MNT_FORCE).
    let connection = found.and_then(|line| AbortFile::of_line(line).ok());
    unmount(path, how, connection.as_ref()).map_err(doing)
}

/// Takes a mount that was found in the mount table out of the tree of files, as `Lazy` does, and
/// never another one: a user who may rename a directory above it could put another mount in its
/// place meanwhile.
///
/// # Errors
/// `Changed` if it isn't there any more; `NotPermitted`.
pub fn detach(mount: &MountedShale) -> Result<()> {
    let place = &mount.mountpoint;
    let doing = || format!("unmount {}", place.display());
    if !is_root() {
        // fusermount3 makes its own checks.
        return unmount_as_user(place, Unmount::Lazy).map_err(|error| error.while_doing(doing()));
    }
    match detach_from(place, mount.id) {
        Ok(true) => Ok(()),
        // It went together with the mount that it was a copy of, or that it was in. Its id may be another one's by now.
        _ if table::read().is_ok_and(|lines| !lines.iter().any(|line| line.is(mount))) => Ok(()),
        Ok(false) => {
            let text = "another mount is there now";
            Err(Error::new(ErrorKind::Changed, text).while_doing(doing()))
        }
        Err(error) => Err(refused(&error, "umount(2)").while_doing(doing())),
    }
}

/// As [`detach`], of several, in this order. One that can't be reached is tried again when the others are gone: what is
/// mounted in a dead mount goes with that.
///
/// # Errors
/// The first one's that stays; all were tried.
pub fn detach_all(mounts: &[MountedShale]) -> Result<()> {
    let fails = |mount: &&MountedShale| detach(mount).is_err();
    let left: Vec<&MountedShale> = mounts.iter().filter(fails).collect();
    let again: Vec<Result<()>> = left.into_iter().map(detach).collect();
    again.into_iter().collect()
}

/// Whether a mount isn't in the tree of files any more; not while that can't be seen.
pub(crate) fn has_gone(id: u64) -> bool {
    table::read().is_ok_and(|lines| lines.iter().all(|line| line.id != id))
}

/// Detaches the topmost mount of a place, if it is the one with this id. Returns false if another mount is there.
pub(crate) fn detach_from(place: &Path, id: u64) -> io::Result<bool> {
    // Sends no file system a request, so one whose daemon is dead doesn't matter.
    let found = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_NOFOLLOW)
        .open(place)?;
    if id_of(&found)? != Some(id) {
        return Ok(false);
    }
    let target = format!("/proc/self/fd/{}", found.as_raw_fd());
    let target = CString::new(target).expect("it has no NUL");
    // SAFETY: the path ends with NUL and lives over the call.
    match unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) } {
        0 => Ok(true),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The kernel's id of the mount that a descriptor is in.
pub(crate) fn id_of(descriptor: &impl AsRawFd) -> io::Result<Option<u64>> {
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd()))?;
    let mut lines = about.lines();
    Ok(lines.find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok()))
}

/// Takes a bind mount of a file or directory of Shale out of the tree of files: only it, never the
/// connection, which other mounts use. `Lazy` and `Forced` don't check for users.
///
/// # Errors
/// `Busy` after `IfIdle`; `NotPermitted`.
pub fn unmount_bind(path: &Path, how: Unmount) -> Result<()> {
    let how = match how {
        Unmount::IfIdle => Unmount::IfIdle,
        // MNT_FORCE would fail the requests of the whole file system.
        Unmount::Lazy | Unmount::Forced => Unmount::Lazy,
    };
    unmount(path, how, None)
        .map_err(|error| error.while_doing(format!("unmount {}", path.display())))
}

/// Ends a mount as `how` says; `connection`: what ends its connection by force. Blocks, up to a second
/// if programs use it: a brief user, such as one that scans all mounts or a child between fork and
/// exec, is waited for.
pub(crate) fn unmount(path: &Path, how: Unmount, connection: Option<&AbortFile>) -> Result<()> {
    let begun = Instant::now();
    loop {
        let done = unmount_now(path, how, connection);
        let is_busy = matches!(&done, Err(error) if error.kind() == ErrorKind::Busy);
        if !is_busy || how != Unmount::IfIdle || begun.elapsed() > PASSING_MAX {
            return done;
        }
        std::thread::sleep(RELEASED_PAUSE);
    }
}

fn unmount_now(path: &Path, how: Unmount, connection: Option<&AbortFile>) -> Result<()> {
    if how == Unmount::Forced {
        // Running requests fail now, so the unmount can't block on them. Without fusectl mounted,
        // MNT_FORCE below does the same (for root).
        let _ = connection.map(AbortFile::abort);
    }
    if !is_root() {
        return unmount_as_user(path, how);
    }
    let flags: &[UnmountFlags] = match how {
        Unmount::IfIdle => &[UnmountFlags::empty()],
        Unmount::Lazy => &[UnmountFlags::DETACH],
        // MNT_FORCE fails with EBUSY if files are open, but has aborted the connection by then.
        Unmount::Forced => &[UnmountFlags::FORCE, UnmountFlags::DETACH],
    };
    let mut result = Ok(());
    for flag in flags {
        result = kernel::unmount(path, *flag | UnmountFlags::NOFOLLOW);
        if result.is_ok() {
            break;
        }
    }
    match result {
        // Not mounted, which is the goal.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(Errno::BUSY) => Err(Error::new(
            ErrorKind::Busy,
            format!(
                "programs use it (`fuser -vm {}` shows which); stop them or unmount lazily",
                path.display()
            ),
        )),
        Err(error) => Err(refused(&error.into(), "umount(2)")),
    }
}

fn unmount_as_user(path: &Path, how: Unmount) -> Result<()> {
    let mut command = fusermount::command();
    command.arg("-u");
    if how != Unmount::IfIdle {
        command.arg("-z");
    }
    command.arg("--").arg(path);
    let ended = fusermount::run(&mut command, UNMOUNT_MAX)?;
    match ended.status.success() {
        true => Ok(()),
        false => if_unmounted(path, ended.complaint.trim(), &table::read()),
    }
}

/// Whether a place that fusermount3 didn't unmount has no mount of ours, which is the goal: only a table of mounts that was
/// read says so. `said`: why it didn't.
fn if_unmounted(path: &Path, said: &str, table: &io::Result<Vec<TableLine>>) -> Result<()> {
    let is_there = |line: &TableLine| line.is_shale() && line.mountpoint == path;
    if table
        .as_ref()
        .is_ok_and(|lines| !lines.iter().any(is_there))
    {
        return Ok(());
    }
    if !said.contains("busy") {
        return Err(Error::new(ErrorKind::NotPermitted, said));
    }
    Err(Error::new(
        ErrorKind::Busy,
        format!(
            "programs use it (`fuser -vm {}` shows which); stop them or unmount lazily",
            path.display()
        ),
    ))
}

/// Sets the kernel's read-ahead, which INIT can only lower. Needs root; without it reads are just
/// slower.
pub(crate) fn raise_read_ahead(number: DeviceNumber, bytes: u32) {
    let file = format!(
        "/sys/class/bdi/{}:{}/read_ahead_kb",
        number.major, number.minor
    );
    if let Err(error) = fs::write(&file, (bytes / 1024).to_string()) {
        tracing::debug!(%error, file, "the kernel's read-ahead stays at its default");
    }
}

fn clear_close_on_exec(socket: &UnixStream) -> io::Result<()> {
    Ok(rustix::io::fcntl_setfd(socket, FdFlags::empty())?)
}

fn no_descriptor() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "received no descriptor")
}

/// Receives one descriptor (SCM_RIGHTS).
fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    match control.drain().next() {
        Some(RecvAncillaryMessage::ScmRights(mut descriptors)) => {
            descriptors.next().ok_or_else(no_descriptor)
        }
        Some(_) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "received something other than a descriptor",
        )),
        None => Err(no_descriptor()),
    }
}

pub(crate) fn no_device(error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::NotFound => Error::new(
            ErrorKind::NotSupported,
            "there is no /dev/fuse; load the module with `modprobe fuse`, or give the container `--device /dev/fuse`",
        ),
        _ => Error::new(
            ErrorKind::NotPermitted,
            format!(
                "opening /dev/fuse: {error}; in a container add `--device /dev/fuse --cap-add SYS_ADMIN`"
            ),
        ),
    }
}

pub(crate) fn refused(error: &io::Error, what: &str) -> Error {
    let (kind, hint) = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => (
            ErrorKind::NotPermitted,
            "; run as root, or in a container with `--device /dev/fuse --cap-add SYS_ADMIN`",
        ),
        Some(libc::EBUSY) => (ErrorKind::Busy, "; something is mounted there"),
        // The descriptor wasn't of the right kind.
        Some(libc::EINVAL) if matches!(what, "mount(2)" | "fsconfig(2)") => (
            ErrorKind::NotSupported,
            "; /dev/fuse may not be a FUSE device: check with `ls -l /dev/fuse` (c 10, 229), in a \
             container add `--device /dev/fuse`",
        ),
        Some(libc::ENODEV) => (
            ErrorKind::NotSupported,
            "; the kernel has no FUSE: `modprobe fuse`",
        ),
        _ => (ErrorKind::InvalidArgument, ""),
    };
    Error::new(kind, format!("{what}: {error}{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fusermount3_mounts_and_passes_the_device() {
        let directory = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(directory.path()).unwrap();
        let device = mount_as_user(&path, &MountOptions::new(&path)).unwrap();
        let on_top = mount_on(&path).unwrap();
        assert!(on_top.is_some_and(|line| line.is_shale()));
        let mut buffer = vec![0; crate::init::DATA_BYTES_MAX as usize + 4096];
        let first = device.receive(&mut buffer).unwrap();
        assert!(matches!(first, crate::device::Received::Request(length) if length >= 56));
        unmount_as_user(&path, Unmount::Lazy).unwrap();
        assert!(mount_on(&path).unwrap().is_none());
        let refused = mount_as_user(&path.join("nowhere"), &MountOptions::new(&path)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotPermitted);
    }

    /// Would be broken if a daemon without a free descriptor mounted over a mount that is served.
    #[test]
    fn nothing_is_mounted_while_the_table_of_mounts_cannot_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let times = std::cell::Cell::new(0);
        let read_until = |fails_at: u32| {
            let at = times.replace(times.get() + 1);
            match at == fails_at {
                true => Err(io::Error::from_raw_os_error(libc::EMFILE)),
                false => Ok(Vec::new()),
            }
        };
        prepare_in(directory.path(), None, || read_until(u32::MAX)).unwrap();
        let reads = times.replace(0);
        assert!(reads > 0, "it looks for what is mounted there");
        for fails_at in 0..reads {
            let refused = prepare_in(directory.path(), None, || read_until(fails_at));
            let refused = refused.err().expect("it is refused");
            assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
            times.set(0);
        }
    }

    /// Would be broken if a daemon that tries again and again to mount where something hangs got a thread more each time.
    #[test]
    fn a_place_that_does_not_answer_is_asked_once() {
        let directory = tempfile::tempdir().unwrap();
        let (place, other) = (directory.path(), Path::new("/"));
        let long = Duration::from_secs(60);
        let (tell, is_asked) = std::sync::mpsc::channel();
        let (goes_on, waits) = std::sync::mpsc::channel::<()>();
        let hangs = move |path: &Path| {
            tell.send(()).unwrap();
            let _ = waits.recv();
            fs::metadata(path)
        };
        let is_late = |answer: io::Result<fs::Metadata>| {
            answer.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
        };
        let plain = |path: &Path| fs::metadata(path);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| answer_of(place, long, hangs));
            is_asked.recv().unwrap();
            assert!(is_late(answer_of(place, long, plain)), "it wasn't asked");
            assert!(answer_of(other, long, plain).is_ok());
            drop(goes_on);
            assert!(first.join().unwrap().is_ok());
        });
        assert!(answer_of(place, long, plain).is_ok(), "it is asked again");
    }

    /// Would be broken if a mount counted as ended because the table of mounts couldn't be read, or because another one is
    /// over it.
    #[test]
    fn what_fusermount3_refused_is_unmounted_only_if_a_table_that_was_read_says_so() {
        const MINE: &str = "10 1 0:50 / /srv/m rw - fuse.shale /srv/node rw\n";
        let place = Path::new("/srv/m");
        let over = format!("{MINE}11 10 0:60 / /srv/m rw - tmpfs none rw\n");
        let gone = MINE.replace("/srv/m ", "/srv/other ");
        let read = |table: &str| Ok(table::parse(table.as_bytes()));
        let kind_of = |said: &str, table: io::Result<Vec<TableLine>>| {
            let refused = if_unmounted(place, said, &table);
            refused.err().map(|error| error.kind())
        };
        let busy = "fusermount3: failed to unmount /srv/m: Device or resource busy";
        assert_eq!(kind_of(busy, read(MINE)), Some(ErrorKind::Busy));
        let other = "fusermount3: something else";
        let refused = Some(ErrorKind::NotPermitted);
        assert_eq!(kind_of(other, read(MINE)), refused);
        assert_eq!(kind_of(other, read(&over)), refused);
        let unreadable = Err(io::Error::from_raw_os_error(libc::EMFILE));
        assert_eq!(kind_of(other, unreadable), refused);
        assert_eq!(kind_of(other, read(&gone)), None);
    }

    #[test]
    fn what_was_put_in_the_place_of_a_mount_is_not_unmounted_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let home = fs::canonicalize(directory.path()).unwrap();
        let mount_at = |place: &str| {
            let path = home.join(place);
            fs::create_dir_all(&path).unwrap();
            let mut options = MountOptions::new(&path);
            options.name = "/srv/somebody's".to_owned();
            mount_as_user(&path, &options).unwrap()
        };
        let _of_user = mount_at("theirs/boot");
        let found = table::shale_on(&home.join("theirs/boot")).unwrap().unwrap();
        assert_eq!(found.user, Some(rustix::process::geteuid().as_raw()));
        let _of_system = mount_at("boot");
        fs::rename(home.join("theirs"), home.join("moved")).unwrap();
        std::os::unix::fs::symlink(&home, home.join("theirs")).unwrap();
        if is_root() {
            let kind = detach(&found).unwrap_err().kind();
            assert_eq!(kind, ErrorKind::Changed);
        }
        for place in ["moved/boot", "boot"] {
            let mount = table::shale_on(&home.join(place)).unwrap().unwrap();
            detach(&mount).unwrap();
            let on_top = mount_on(&home.join(place)).unwrap();
            assert!(on_top.is_none(), "{place}");
        }
    }
}
