//! Start, waits and end of a mount.

use crate::mounted::{self, Mounted, Waiter, memory, on_both_transports};
use fuse::{
    Caller, Create, FileSystem, FileSystemSpace, Found, InodeEntry, Listing, Lock, Make, Mount,
    MountOptions, Notice, Open, Opened, Read, Shown, TransportChoice, Unmount, Validity, Write,
};
use model::operation::RenameMode;
use model::{
    Attributes, ErrorKind, FileKind, FileName, InodeId, LockKind, LockRange, Result, SetAttributes,
    Timestamp,
};
use parking_lot::{Mutex, RwLock};
use rustix::fs::{Mode, OFlags};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::sync::Arc;
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;
use testkit::memory::{MemoryFileSystem, MemorySettings};
use tokio::sync::Notify;
use world::World;

on_both_transports! {
    an_idle_mount_ends_politely_and_a_busy_one_says_so,
    a_lazily_ended_mount_serves_its_last_user,
    a_forced_end_takes_the_mount_from_its_users_at_once,
    dropping_a_mount_ends_it_even_in_use,
    a_second_mount_on_the_same_directory_is_refused,
    the_mount_of_a_killed_daemon_is_replaced,
    a_mount_that_is_left_dead_keeps_its_place_until_it_is_made_again,
    a_dead_mount_that_somebody_takes_away_is_not_replaced,
    dead_mounts_that_lie_in_each_other_are_all_taken_away,
    the_kernel_forgets_what_it_is_told_to,
    what_expires_waits_for_no_program_that_changes_the_directory,
    a_lock_that_is_waited_for_leaves_a_thread_for_others,
    a_signal_ends_the_wait_for_a_lock,
    programs_only_see_a_pause_while_a_mount_is_held,
    a_program_that_waits_for_a_lock_waits_on_after_a_pause,
    a_program_that_is_killed_ends_although_its_mount_is_held,
    a_close_ends_the_posix_locks_of_its_process,
    operations_that_wait_starve_no_other_operation_and_are_listed,
    operations_of_a_burst_are_all_begun_although_those_before_them_wait,
    a_forced_end_waits_for_no_operation,
    a_mount_that_has_ended_does_not_end_another_one_that_got_its_number,
    more_operations_than_threads_are_answered_in_turn,
}

/// Longer than this is a hang.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// Waits until `reached`, for at most ten seconds.
pub(crate) fn eventually(what: &str, mut reached: impl FnMut() -> bool) {
    mounted::eventually(Duration::from_secs(10), what, &mut reached);
}

fn an_idle_mount_ends_politely_and_a_busy_one_says_so(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let path = mounted.path("f");
    fs::write(&path, b"x").unwrap();
    let file = File::open(&path).unwrap();
    let refused = mounted
        .runtime
        .block_on(mounted.mount.unmount(Unmount::IfIdle));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Busy);
    drop(file);
    eventually("idle", || {
        let result = mounted
            .runtime
            .block_on(mounted.mount.unmount(Unmount::IfIdle));
        result.is_ok()
    });
    assert!(mounted.mount.is_ended());
    assert!(
        !path.exists(),
        "the directory below shows again, and is empty"
    );
}

fn a_lazily_ended_mount_serves_its_last_user(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let path = mounted.path("f");
    fs::write(&path, b"until the end").unwrap();
    let mut file = File::open(&path).unwrap();
    mounted
        .runtime
        .block_on(mounted.mount.unmount(Unmount::Lazy))
        .unwrap();
    assert!(!path.exists());
    assert!(!mounted.mount.is_ended());
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "until the end");
    drop(file);
    mounted.runtime.block_on(mounted.mount.ended());
}

fn a_forced_end_takes_the_mount_from_its_users_at_once(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let path = mounted.path("f");
    fs::write(&path, b"x").unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    mounted
        .runtime
        .block_on(mounted.mount.unmount(Unmount::Forced))
        .unwrap();
    assert!(mounted.mount.is_ended());
    let failed = (&file).read(&mut [0; 10]).unwrap_err();
    assert!(
        matches!(
            failed.raw_os_error(),
            Some(libc::ENOTCONN | libc::ECONNABORTED | libc::EIO)
        ),
        "{failed}"
    );
}

fn dropping_a_mount_ends_it_even_in_use(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let path = mounted.path("f");
    fs::write(&path, b"x").unwrap();
    let file = File::open(&path).unwrap();
    let Mounted {
        mount, directory, ..
    } = mounted;
    drop(mount);
    assert!(!directory.path().join("f").exists());
    drop(file);
}

fn a_second_mount_on_the_same_directory_is_refused(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let world = mounted.runtime.block_on(async { World::real() });
    let fs = Arc::new(MemoryFileSystem::new(&world, MemorySettings::default()));
    let error = Mount::start(
        &world,
        Arc::clone(&fs),
        &MountOptions::new(mounted.directory.path()),
    )
    .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("fusermount3 -u"), "{error}");
    let error = Mount::start(&world, fs, &MountOptions::new("/nowhere/at/all")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("mkdir"), "{error}");
}

/// The child process of the next test: a daemon that mounts and dies. Does nothing on its own.
#[test]
fn child_that_mounts_and_dies() {
    let Some(directory) = std::env::var_os("SHALE_TEST_MOUNT_AND_DIE") else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let world = runtime.block_on(async { World::real() });
    let fs = Arc::new(MemoryFileSystem::new(&world, MemorySettings::default()));
    let mut options = MountOptions::new(directory);
    options.transport = match std::env::var("SHALE_TEST_TRANSPORT").as_deref() {
        Ok("io_uring") => TransportChoice::IoUring,
        _ => TransportChoice::Classic,
    };
    let mount = Mount::start(&world, fs, &options).unwrap();
    fs::write(mount.mountpoint().join("f"), b"x").unwrap();
    std::process::abort();
}

fn the_mount_of_a_killed_daemon_is_replaced(transport: TransportChoice) {
    let name = match transport {
        TransportChoice::IoUring => "io_uring",
        _ => "classic",
    };
    let directory = tempfile::tempdir().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "life::child_that_mounts_and_dies"])
        .env("SHALE_TEST_MOUNT_AND_DIE", directory.path())
        .env("SHALE_TEST_TRANSPORT", name)
        .output()
        .unwrap();
    assert!(!child.status.success());
    // The kernel tears down a dead process's rings some time after its end.
    eventually("the dead mount reports ENOTCONN", || {
        let dead = fs::metadata(directory.path());
        dead.is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let world = runtime.block_on(async { World::real() });
    let fs = Arc::new(MemoryFileSystem::new(&world, MemorySettings::default()));
    let mut options = MountOptions::new(directory.path());
    options.transport = transport;
    let mount = Mount::start(&world, fs, &options).unwrap();
    fs::write(directory.path().join("g"), b"alive").unwrap();
    runtime.block_on(mount.unmount(Unmount::Forced)).unwrap();
    // Nothing of the dead one is left below.
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none());
}

fn a_mount_that_is_left_dead_keeps_its_place_until_it_is_made_again(transport: TransportChoice) {
    let bare = tempfile::tempdir().unwrap();
    let bare = fs::metadata(bare.path()).unwrap().dev();
    let mounted = memory(
        transport,
        MemorySettings {
            // Also if the kernel still knows all about the directory.
            valid: Duration::from_secs(3600),
            ..MemorySettings::default()
        },
    );
    let place = mounted.directory.path();
    fs::write(mounted.path("f"), b"x").unwrap();
    let held = File::open(mounted.path("f")).unwrap();
    // What the kernel keeps, and what it knows of it is valid for long.
    held.read_exact_at(&mut [0; 1], 0).unwrap();
    let first = &mounted.mount;
    mounted.runtime.block_on(first.leave_dead()).unwrap();
    assert!(first.is_left_dead());
    for failed in [
        fs::write(mounted.path("g"), b"lost"),
        fs::read(mounted.path("f")).map(drop),
    ] {
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    }
    (&held).read(&mut [0; 1]).unwrap_err();
    // Again: nothing is left to do.
    mounted.runtime.block_on(first.leave_dead()).unwrap();
    assert!(first.is_left_dead());
    let world = mounted.runtime.block_on(async { World::real() });
    let fs = Arc::new(MemoryFileSystem::new(&world, MemorySettings::default()));
    let mut options = MountOptions::new(place);
    options.transport = transport;
    let second = Mount::start(&world, fs, &options).unwrap();
    assert_ne!(second.id(), first.id());
    fs::write(mounted.path("g"), b"kept").unwrap();
    assert_eq!(fs::read(mounted.path("g")).unwrap(), b"kept");
    assert_ne!(fs::metadata(place).unwrap().dev(), bare);
    (&held).read(&mut [0; 1]).unwrap_err();
    drop(held);
    let ended = second.unmount(Unmount::Forced);
    mounted.runtime.block_on(ended).unwrap();
    assert_eq!(fs::metadata(place).unwrap().dev(), bare);
    assert!(fs::read_dir(place).unwrap().next().is_none());
}

fn a_dead_mount_that_somebody_takes_away_is_not_replaced(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let (place, first) = (mounted.directory.path(), &mounted.mount);
    mounted.runtime.block_on(first.leave_dead()).unwrap();
    let world = mounted.runtime.block_on(async { World::real() });
    let start = |replaces: Option<u64>| {
        let fs = Arc::new(MemoryFileSystem::new(&world, MemorySettings::default()));
        let mut options = MountOptions::new(place);
        options.transport = transport;
        options.replaces = replaces;
        Mount::start(&world, fs, &options)
    };
    let gone = first.id().map(|id| id + (1 << 40));
    assert_eq!(start(gone).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(first.is_left_dead(), "it keeps its place");
    let second = start(first.id()).unwrap();
    assert!(!second.comes_too_late());
    fs::write(mounted.path("g"), b"served").unwrap();
    mounted.runtime.block_on(second.leave_dead()).unwrap();
    mounted.runtime.block_on(second.detach_dead()).unwrap();
    assert_eq!(start(second.id()).unwrap_err().kind(), ErrorKind::NotFound);
    let on_top = fuse::shale_on(&fs::canonicalize(place).unwrap()).unwrap();
    assert!(on_top.is_none());
}

/// Would be broken if a mount in another one of a killed daemon kept both in their places: nobody reaches it there.
fn dead_mounts_that_lie_in_each_other_are_all_taken_away(transport: TransportChoice) {
    let settings = MemorySettings {
        valid: Duration::ZERO,
        ..MemorySettings::default()
    };
    let outer = memory(transport, settings);
    let place = outer.path("inner");
    fs::create_dir(&place).unwrap();
    let world = outer.runtime.block_on(async { World::real() });
    let inner = {
        let fs = Arc::new(MemoryFileSystem::new(&world, settings));
        let mut options = MountOptions::new(&place);
        options.transport = transport;
        // As a node's directory: what the kernel numbers is another mount's as soon as it has gone.
        options.name = place.display().to_string();
        Mount::start(&world, fs, &options).unwrap()
    };
    let ids = [&outer.mount, &inner].map(|mount| mount.id().unwrap());
    for mount in [&inner, &outer.mount] {
        outer.runtime.block_on(mount.leave_dead()).unwrap();
    }
    let of_both = || {
        let mut all = fuse::mounted_shales().unwrap();
        all.retain(|it| ids.contains(&it.id) && place.starts_with(&it.mountpoint));
        all.reverse();
        all
    };
    let dead = of_both();
    let found: Vec<u64> = dead.iter().map(|it| it.id).collect();
    assert_eq!(found, [ids[1], ids[0]]);
    fuse::detach_all(&dead).unwrap();
    assert!(of_both().is_empty());
}

fn the_kernel_forgets_what_it_is_told_to(transport: TransportChoice) {
    let valid = Duration::from_secs(3600);
    let mounted = memory(
        transport,
        MemorySettings {
            valid,
            ..MemorySettings::default()
        },
    );
    let path = mounted.path("late");
    assert!(!path.exists());
    let name = FileName::new(b"late").unwrap();
    let (mode, flags, kill_privileges) = (0o644, libc::O_EXCL, false);
    let create = Create {
        mode,
        umask: 0,
        flags,
        kill_privileges,
    };
    let caller = Caller::default();
    let made = mounted
        .runtime
        .block_on(mounted.fs.create(&caller, InodeId::ROOT, &name, create));
    let inode = made.unwrap().0.attributes.inode;
    assert!(
        !path.exists(),
        "the kernel believes its negative entry for an hour"
    );
    let tell = |notice| {
        mounted
            .runtime
            .block_on(mounted.mount.notifier().tell(notice))
            .unwrap();
    };
    let directory = InodeId::ROOT;
    tell(Notice::Name {
        directory,
        name,
        expire_only: false,
    });
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    let set = SetAttributes {
        size: Some(77),
        ..SetAttributes::default()
    };
    mounted
        .runtime
        .block_on(mounted.fs.set_attributes(&caller, inode, set))
        .unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    tell(Notice::Inode {
        inode,
        offset: 0,
        length: 0,
    });
    assert_eq!(fs::metadata(&path).unwrap().len(), 77);
    // The kernel doesn't know this inode: nothing to drop.
    let unknown = InodeId(999_999);
    tell(Notice::Inode {
        inode: unknown,
        offset: 0,
        length: 0,
    });
}

pub(crate) fn flock(file: &File, operation: i32) -> std::io::Result<()> {
    // SAFETY: the descriptor is open over the call.
    let result = unsafe { libc::flock(file.as_raw_fd(), operation) };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

fn a_lock_that_is_waited_for_leaves_a_thread_for_others(transport: TransportChoice) {
    let mounted = Mounted::with(
        transport,
        |world| MemoryFileSystem::new(world, MemorySettings::default()),
        |options| (options.threads, options.threads_max) = (1, 1),
    );
    let path = mounted.path("lock");
    let holder = File::create(&path).unwrap();
    flock(&holder, libc::LOCK_EX).unwrap();
    let other = File::open(&path).unwrap();
    let refused = flock(&other, libc::LOCK_EX | libc::LOCK_NB).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EWOULDBLOCK));
    let waits = Waiter::start(move || flock(&other, libc::LOCK_SH));
    waits.waits_in(libc::SYS_flock);
    // The only thread is free.
    assert!(fs::metadata(&path).is_ok());
    assert!(!waits.thread.is_finished());
    // The last close of the holder's open releases the lock.
    drop(holder);
    waits.thread.join().unwrap().unwrap();
}

fn a_signal_ends_the_wait_for_a_lock(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let path = mounted.path("lock");
    let holder = File::create(&path).unwrap();
    flock(&holder, libc::LOCK_EX).unwrap();
    let mut child = Command::new("flock")
        .arg(&path)
        .arg("true")
        .spawn()
        .unwrap();
    mounted::waits_in(&child, libc::SYS_flock);
    assert!(child.try_wait().unwrap().is_none(), "it waits");
    child.kill().unwrap();
    eventually("the signal ends it", || child.try_wait().unwrap().is_some());
    flock(&holder, libc::LOCK_UN).unwrap();
    // The cancelled wait holds nothing.
    let next = File::open(&path).unwrap();
    eventually("unlocked", || {
        flock(&next, libc::LOCK_EX | libc::LOCK_NB).is_ok()
    });
}

/// Would be broken if a request were answered while its file system is exchanged, or failed because of that.
fn programs_only_see_a_pause_while_a_mount_is_held(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let (old, new) = (mounted.path("old"), mounted.path("new"));
    fs::write(&old, b"before").unwrap();
    let file = File::open(&old).unwrap();
    let hold = || mounted.runtime.block_on(mounted.mount.hold(HANG));
    let held = hold().unwrap();
    assert_eq!(hold().unwrap_err().kind(), ErrorKind::Busy);
    let path = new.clone();
    let makes = Waiter::start(move || fs::write(path, b"after"));
    let reads = Waiter::start(move || {
        let mut bytes = [0; 6];
        (&file).read_exact(&mut bytes).map(|()| bytes)
    });
    makes.waits_in(libc::SYS_openat);
    reads.waits_in(libc::SYS_read);
    assert!(!makes.thread.is_finished() && !reads.thread.is_finished());
    drop(held);
    makes.thread.join().unwrap().unwrap();
    assert_eq!(reads.thread.join().unwrap().unwrap(), *b"before");
    assert_eq!(fs::read(&new).unwrap(), b"after");
    drop(hold().unwrap());
}

/// Would be broken if a pause had to wait for a lock, which may last for ever, or if the program got an error.
fn a_program_that_waits_for_a_lock_waits_on_after_a_pause(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let path = mounted.path("lock");
    let holder = File::create(&path).unwrap();
    flock(&holder, libc::LOCK_EX).unwrap();
    let other = File::open(&path).unwrap();
    let waits = Waiter::start(move || flock(&other, libc::LOCK_EX));
    waits.waits_in(libc::SYS_flock);
    let mut child = Command::new("flock")
        .arg(&path)
        .arg("true")
        .spawn()
        .unwrap();
    mounted::waits_in(&child, libc::SYS_flock);
    for _ in 0..3 {
        let held = mounted.runtime.block_on(mounted.mount.hold(HANG)).unwrap();
        assert!(!waits.thread.is_finished() && child.try_wait().unwrap().is_none());
        drop(held);
    }
    // A signal still ends a wait.
    child.kill().unwrap();
    eventually("the signal ends it", || child.try_wait().unwrap().is_some());
    assert!(!waits.thread.is_finished());
    drop(holder);
    waits.thread.join().unwrap().unwrap();
}

/// Would be broken if nobody could end a program as long as its mount is held: that may last as long as etcd is away.
fn a_program_that_is_killed_ends_although_its_mount_is_held(transport: TransportChoice) {
    let mounted = memory(transport, MemorySettings::default());
    let (path, locked) = (mounted.path("file"), mounted.path("lock"));
    fs::write(&path, b"read").unwrap();
    let holder = File::create(&locked).unwrap();
    flock(&holder, libc::LOCK_EX).unwrap();
    let mut waits = Command::new("flock");
    let mut waits = waits.arg(&locked).arg("true").spawn().unwrap();
    mounted::waits_in(&waits, libc::SYS_flock);
    let held = mounted.runtime.block_on(mounted.mount.hold(HANG)).unwrap();
    let mut reads = Command::new("cat").arg(&path).spawn().unwrap();
    mounted::waits_in(&reads, libc::SYS_openat);
    for (child, what) in [(&mut waits, "its wait ends"), (&mut reads, "it ends")] {
        child.kill().unwrap();
        eventually(what, || child.try_wait().unwrap().is_some());
    }
    drop(held);
    assert!(fs::metadata(&path).is_ok());
}

fn a_close_ends_the_posix_locks_of_its_process(transport: TransportChoice) {
    // Uses the page cache, so FLUSH is sent.
    let mounted = memory(
        transport,
        MemorySettings {
            direct: false,
            ..MemorySettings::default()
        },
    );
    let path = mounted.path("lock");
    let first = File::create(&path).unwrap();
    let lock = Lock {
        inode: InodeId(fs::metadata(&path).map(|m| m.ino()).unwrap()),
        handle: 0,
        owner: 12345,
        range: LockRange { start: 10, end: 19 },
        kind: Some(LockKind::Shared),
        pid: 0,
        flock: false,
    };
    // SAFETY: plain data; the call reads the structure only.
    let taken = unsafe {
        let mut request: libc::flock = std::mem::zeroed();
        request.l_type = libc::F_WRLCK as i16;
        (request.l_start, request.l_len) = (0, 100);
        libc::fcntl(first.as_raw_fd(), libc::F_SETLK, &raw const request)
    };
    assert_eq!(taken, 0);
    let in_the_way = || {
        let caller = Caller::default();
        mounted
            .runtime
            .block_on(mounted.fs.get_lock(&caller, lock))
            .unwrap()
    };
    let held = in_the_way().unwrap();
    assert_eq!(
        (held.range.start, held.range.end, held.pid),
        (0, 99, std::process::id())
    );
    // POSIX: any close of the file by the process.
    drop(File::open(&path).unwrap());
    assert_eq!(in_the_way(), None);
}

/// A file system with one file, whose statfs, and the making of anything in it, blocks until told to continue.
#[derive(Default)]
pub(crate) struct Waits {
    go: Notify,
    /// Held alone, it holds up each thread that a statfs comes to.
    pub(crate) gate: RwLock<()>,
    /// Those that have begun with what waits.
    pub(crate) threads: Mutex<Vec<ThreadId>>,
}

impl Waits {
    pub(crate) fn mounted(
        transport: TransportChoice,
        options: impl FnOnce(&mut MountOptions),
    ) -> Mounted<Self> {
        Mounted::with(transport, |_| Self::default(), options)
    }

    /// Lets operations go on until all that ask have their answers.
    fn answer_all<T>(&self, asking: &[JoinHandle<T>]) {
        eventually("all are answered", || {
            self.go.notify_waiters();
            asking.iter().all(JoinHandle::is_finished)
        });
    }

    fn note_thread(&self) {
        let (own, mut threads) = (thread::current().id(), self.threads.lock());
        if !threads.contains(&own) {
            threads.push(own);
        }
    }

    fn attributes(inode: InodeId) -> Attributes {
        let at = Timestamp(0);
        let kind = match inode {
            InodeId::ROOT => FileKind::Directory,
            _ => FileKind::File,
        };
        Attributes {
            inode,
            kind,
            mode: 0o755,
            uid: 0,
            gid: 0,
            links: 2,
            size: 0,
            allocated: 0,
            rdev: 0,
            atime: at,
            mtime: at,
            ctime: at,
            btime: at,
            generation: 0,
        }
    }
}

impl FileSystem for Waits {
    async fn lookup(&self, _: &Caller, _: InodeId, name: &FileName) -> Result<Found> {
        if name.as_bytes() != b"f" {
            return Ok(Found::Absent(Duration::ZERO));
        }
        let valid = Validity::default();
        Ok(Found::Entry(InodeEntry {
            attributes: Self::attributes(InodeId(2)),
            valid,
        }))
    }
    async fn lookup_parent(&self, _: &Caller, _: InodeId) -> Result<InodeEntry> {
        let valid = Validity::default();
        Ok(InodeEntry {
            attributes: Self::attributes(InodeId::ROOT),
            valid,
        })
    }
    async fn get_attributes(&self, _: &Caller, inode: InodeId) -> Result<Shown> {
        let valid = Duration::ZERO;
        Ok(Shown {
            attributes: Self::attributes(inode),
            valid,
        })
    }
    async fn set_attributes(&self, _: &Caller, _: InodeId, _: SetAttributes) -> Result<Shown> {
        Err(ErrorKind::ReadOnly.into())
    }
    async fn create(
        &self,
        _: &Caller,
        _: InodeId,
        _: &FileName,
        _: Create,
    ) -> Result<(InodeEntry, Opened)> {
        Err(ErrorKind::ReadOnly.into())
    }
    async fn make(&self, _: &Caller, _: InodeId, _: &FileName, _: Make<'_>) -> Result<InodeEntry> {
        self.go.notified().await;
        Err(ErrorKind::ReadOnly.into())
    }
    async fn unlink(&self, _: &Caller, _: InodeId, _: &FileName) -> Result<()> {
        Err(ErrorKind::ReadOnly.into())
    }
    async fn remove_directory(&self, _: &Caller, _: InodeId, _: &FileName) -> Result<()> {
        Err(ErrorKind::ReadOnly.into())
    }
    async fn rename(
        &self,
        _: &Caller,
        _: (InodeId, &FileName),
        _: (InodeId, &FileName),
        _: RenameMode,
    ) -> Result<()> {
        Err(ErrorKind::ReadOnly.into())
    }
    async fn open(&self, _: &Caller, _: InodeId, _: Open) -> Result<Opened> {
        Err(ErrorKind::ReadOnly.into())
    }
    async fn read(&self, _: &Caller, _: Read) -> Result<Vec<bytes::Bytes>> {
        Err(ErrorKind::ReadOnly.into())
    }
    async fn write(&self, _: &Caller, _: Write<'_>) -> Result<u32> {
        Err(ErrorKind::ReadOnly.into())
    }
    async fn read_directory(&self, _: &Caller, _: InodeId, _: u64, _: &mut Listing) -> Result<()> {
        Ok(())
    }
    async fn space(&self, _: &Caller, _: InodeId) -> Result<FileSystemSpace> {
        self.note_thread();
        drop(self.gate.read());
        self.go.notified().await;
        self.note_thread();
        Ok(FileSystemSpace {
            block_bytes: 4096,
            blocks: 1,
            free: 1,
            available: 1,
            files: 1,
            files_free: 1,
        })
    }
}

fn statfs(path: &std::path::Path) -> JoinHandle<i32> {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    std::thread::spawn(move || {
        // SAFETY: the path ends with NUL, the structure is plain data that the call fills.
        unsafe {
            let mut answer: libc::statvfs = std::mem::zeroed();
            libc::statvfs(path.as_ptr(), &raw mut answer)
        }
    })
}

/// Whether a thread of this name waits in a system call.
fn any_waits_in(name: &str, system_call: libc::c_long) -> bool {
    let call = format!("{system_call} ");
    let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
    let mut threads = threads.map(|thread| thread.path());
    threads.any(|thread| {
        // One that has ended meanwhile says nothing.
        let said = |file: &str| fs::read_to_string(thread.join(file)).unwrap_or_default();
        said("comm").trim() == name && said("syscall").starts_with(&call)
    })
}

/// Would be broken if what a client must give back waited for a change of the directory that the kernel has begun: that change
/// may wait for the same at the owner, because another client changes the directory as well.
fn what_expires_waits_for_no_program_that_changes_the_directory(transport: TransportChoice) {
    let mounted = Waits::mounted(transport, |_| {});
    let path = mounted.path("d");
    let changes = thread::spawn(move || fs::create_dir(path));
    eventually("it is asked for", || mounted.mount.waiting().len() == 1);
    assert_eq!(mounted.mount.waiting()[0].request, "MKDIR");
    let directory = InodeId::ROOT;
    let attributes = Notice::Inode {
        inode: directory,
        offset: -1,
        length: 0,
    };
    let notifier = mounted.mount.notifier();
    for notice in [Notice::Everything, attributes] {
        let told = notifier.tell(notice.clone());
        let told = mounted
            .runtime
            .block_on(async { tokio::time::timeout(HANG, told).await });
        let told = told.unwrap_or_else(|_| panic!("{notice:?} waits"));
        // Where the kernel doesn't know that one names aren't kept at all.
        let is_unknown = notice == Notice::Everything
            && told
                .as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::NotSupported);
        assert!(told.is_ok() || is_unknown, "{notice:?}: {told:?}");
    }
    // It does hold the directory's lock: the end of a single name waits for that.
    let single = Notice::Name {
        directory,
        name: FileName::new(b"other").unwrap(),
        expire_only: true,
    };
    let teller = notifier.clone();
    let told = mounted
        .runtime
        .spawn(async move { teller.tell(single).await });
    eventually("a name waits in the kernel", || {
        any_waits_in("shale-notify", libc::SYS_writev)
    });
    assert!(!told.is_finished());
    let asking = [changes];
    mounted.fs.answer_all(&asking);
    let [changes] = asking;
    let refused = changes.join().unwrap().unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    let told = mounted
        .runtime
        .block_on(async { tokio::time::timeout(HANG, told).await });
    told.expect("it is told then").unwrap().unwrap();
}

fn operations_that_wait_starve_no_other_operation_and_are_listed(transport: TransportChoice) {
    let mounted = Waits::mounted(transport, |options| {
        (options.threads, options.threads_max) = (2, 16);
    });
    for round in 0..3 {
        let waiting: Vec<_> = (0..10).map(|_| statfs(&mounted.path("f"))).collect();
        eventually("ten wait", || mounted.mount.waiting().len() == 10);
        let shown = mounted.mount.waiting();
        assert!(
            shown
                .iter()
                .all(|one| one.request == "STATFS" && one.pid != 0)
        );
        for _ in 0..20 {
            assert!(fs::metadata(mounted.path("f")).is_ok());
        }
        mounted.fs.answer_all(&waiting);
        for one in waiting {
            assert_eq!(one.join().unwrap(), 0, "round {round}");
        }
        eventually("nothing waits", || mounted.mount.waiting().is_empty());
    }
}

/// Would be broken if a thread that is added for waiting operations brought only the first one of those that came before it was
/// there: the others would be begun when something else is asked on that CPU.
fn operations_of_a_burst_are_all_begun_although_those_before_them_wait(transport: TransportChoice) {
    const BURST: usize = 14;
    let mounted = Waits::mounted(transport, |options| {
        (options.threads, options.threads_max) = (2, 16);
    });
    // Nothing has to be looked up any more.
    let file = rustix::fs::open(mounted.path("f"), OFlags::PATH, Mode::empty()).unwrap();
    let file = Arc::new(file);
    let allowed = sched_getaffinity(None).unwrap();
    let mut one_cpu = CpuSet::new();
    let mut cpus = 0..CpuSet::MAX_CPU;
    one_cpu.set(cpus.find(|cpu| allowed.is_set(*cpu)).unwrap());
    let held_up = mounted.fs.gate.write();
    let asking: Vec<_> = (0..BURST)
        .map(|_| {
            let file = Arc::clone(&file);
            Waiter::start(move || {
                sched_setaffinity(None, &one_cpu).unwrap();
                rustix::fs::fstatvfs(&*file).map(drop)
            })
        })
        .collect();
    for one in &asking {
        one.waits_in(libc::SYS_fstatfs);
    }
    drop(held_up);
    eventually("all wait", || mounted.mount.waiting().len() == BURST);
    let asking: Vec<_> = asking.into_iter().map(|one| one.thread).collect();
    mounted.fs.answer_all(&asking);
    for one in asking {
        one.join().unwrap().unwrap();
    }
}

fn a_forced_end_waits_for_no_operation(transport: TransportChoice) {
    let mounted = Waits::mounted(transport, |_| {});
    let waiting: Vec<_> = (0..8).map(|_| statfs(&mounted.path("f"))).collect();
    eventually("all wait", || mounted.mount.waiting().len() == 8);
    let forced = mounted.mount.unmount(Unmount::Forced);
    let forced = mounted
        .runtime
        .block_on(async { tokio::time::timeout(HANG, forced).await });
    forced.expect("a forced end waits for nothing").unwrap();
    for one in waiting {
        assert_eq!(one.join().unwrap(), -1, "the program got an error");
    }
    // Only now may the operations end, and the mount with them.
    let ended = ends_as_operations_go(&mounted.fs.go, mounted.mount.ended());
    mounted.runtime.block_on(ended);
}

/// Lets the operations of [`Waits`] go on until their mount has ended.
async fn ends_as_operations_go(go: &Notify, ended: impl Future<Output = ()>) {
    let ended = async {
        let mut ended = std::pin::pin!(ended);
        loop {
            go.notify_waiters();
            let look = Duration::from_millis(10);
            if tokio::time::timeout(look, &mut ended).await.is_ok() {
                return;
            }
        }
    };
    let ended = tokio::time::timeout(HANG, ended).await;
    ended.expect("the mount ends when its operations have");
}

/// Would be broken if a mount were ended by the number of its connection: that is another's as soon as the kernel has
/// unmounted it, while operations of it may run for long.
fn a_mount_that_has_ended_does_not_end_another_one_that_got_its_number(transport: TransportChoice) {
    let number = |place: &std::path::Path| fs::metadata(place).unwrap().dev();
    // The lowest free number is given, so another test's mount can only rarely be in between.
    let both = (0..100).find_map(|_| {
        let first = Waits::mounted(transport, |_| {});
        let asks = statfs(&first.path("f"));
        eventually("it waits", || first.mount.waiting().len() == 1);
        let of_first = number(first.directory.path());
        // As umount(8) does it.
        fuse::unmount_foreign(first.mount.mountpoint(), Unmount::Forced).unwrap();
        assert_eq!(asks.join().unwrap(), -1, "the program got an error");
        assert!(!first.mount.is_ended(), "its operation runs");
        let second = memory(transport, MemorySettings::default());
        if number(second.directory.path()) == of_first {
            return Some((first, second));
        }
        let ended = ends_as_operations_go(&first.fs.go, first.mount.ended());
        first.runtime.block_on(ended);
        None
    });
    let (first, second) = both.expect("numbers are used again");
    let of_second = number(second.directory.path());
    // Also if its id and its name are the same.
    assert!(!first.mount.is_attached());
    assert!(second.mount.is_attached());
    let Mounted {
        mount, runtime, fs, ..
    } = first;
    let dead = mount.dead().unwrap();
    drop(mount);
    assert_eq!(number(second.directory.path()), of_second, "it is there");
    fs::write(second.path("g"), b"served").unwrap();
    assert!(!second.mount.is_ended());
    runtime.block_on(ends_as_operations_go(&fs.go, dead.ended()));
}

fn more_operations_than_threads_are_answered_in_turn(transport: TransportChoice) {
    let mounted = Waits::mounted(transport, |options| {
        (options.threads, options.threads_max) = (2, 3);
    });
    let waiting: Vec<_> = (0..30).map(|_| statfs(&mounted.path("f"))).collect();
    eventually("threads wait", || mounted.mount.waiting().len() >= 3);
    // Those that no thread can read show as well.
    eventually("the kernel keeps all others", || {
        let listed = mounted.mount.waiting().len();
        let held = mounted.mount.held_back();
        // Over io_uring those that stir a queue count, too.
        held.is_some_and(|held| held.requests + listed >= waiting.len())
    });
    mounted.fs.answer_all(&waiting);
    for one in waiting {
        assert_eq!(one.join().unwrap(), 0);
    }
    eventually("nothing waits", || mounted.mount.waiting().is_empty());
    assert_eq!(mounted.mount.held_back(), None);
}

/// Would be broken if each held a thread: to wake them one by one costs more than what they do.
#[test]
fn requests_that_wait_share_the_threads_of_their_queues() {
    let test = "requests_that_wait_share_the_threads_of_their_queues";
    let Some(_switched_on) = mounted::io_uring(test) else {
        return;
    };
    let cpus = thread::available_parallelism().unwrap().get();
    // More than the threads that there may be.
    let many = (2 * cpus + 1).max(16);
    let mounted = Waits::mounted(TransportChoice::IoUring, |options| {
        // So that a thread has as many entries as it may, however many CPUs can be plugged in.
        options.threads_max = 4096;
    });
    for round in 0..3 {
        let waiting: Vec<_> = (0..many).map(|_| statfs(&mounted.path("f"))).collect();
        eventually("all wait", || mounted.mount.waiting().len() == many);
        for left in (0..many).rev() {
            mounted.fs.go.notify_one();
            let waits = || waiting.iter().filter(|one| !one.is_finished());
            eventually("one more goes on", || waits().count() == left);
            assert!(fs::metadata(mounted.path("f")).is_ok(), "others come");
        }
        for one in waiting {
            assert_eq!(one.join().unwrap(), 0, "round {round}");
        }
    }
    let threads = mounted.fs.threads.lock().len();
    assert!(threads <= 2 * cpus, "{threads} threads on {cpus} CPUs");
}
