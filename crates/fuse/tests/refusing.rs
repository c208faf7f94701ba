//! Mounts that are left although what they showed has gone: programs get EIO, and can let go of them.

use crate::life::{HANG, Waits, eventually, flock};
use crate::mounted::{Mounted, Waiter, both_ways, memory, on_both_transports, waits_in};
use fuse::{FileSystem, Mount, MountOptions, Notice, TransportChoice, Unmount};
use model::{ErrorKind, InodeId};
use rustix::fs::statvfs;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::ffi::c_void;
use std::fs::{self, DirEntry, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::memory::{MemoryFileSystem, MemorySettings};
use world::World;

on_both_transports! {
    programs_get_eio_from_a_mount_that_refuses_and_can_let_go_of_it,
    what_is_under_way_when_a_mount_refuses_gets_eio_too,
    what_a_kernel_has_of_a_mount_that_refuses_is_dropped_when_others_want_it,
    a_mount_that_refuses_keeps_its_place_until_it_is_made_again,
    the_kernel_keeps_no_page_of_what_is_open_on_a_mount_that_refuses,
}

/// Bytes that are mapped.
const PAGE: usize = 4096;
/// The name of a file that is run.
const PROGRAM: &str = "program";

/// A mapped page of a file. This process answers for the file, so once that refuses no thread of it may touch the page: it would
/// wait with a lock on all memory here.
struct Page(*mut c_void);

impl Page {
    fn of(file: &File, access: ProtFlags) -> Self {
        // SAFETY: a fresh mapping at a place of the kernel's choice touches nothing else.
        let page = unsafe { mmap(null_mut(), PAGE, access, MapFlags::SHARED, file, 0) };
        Self(page.unwrap())
    }

    /// One that a program has read.
    fn loaded(file: &File) -> Self {
        let page = Self::of(file, ProtFlags::READ);
        // SAFETY: the byte lies in the mapping, and the file has it.
        let _ = unsafe { page.0.cast::<u8>().read_volatile() };
        page
    }

    /// One in which a program has stored something.
    fn stored(file: &File) -> Self {
        let page = Self::of(file, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the byte lies in the mapping, and the file has it.
        unsafe { page.0.cast::<u8>().write_volatile(b's') };
        page
    }

    /// Whether the kernel has it, and shows it to whoever touches it.
    fn is_in_memory(&self) -> bool {
        let mut told = 0;
        // SAFETY: exactly the mapping, which is one page, and one byte for it.
        let looked = unsafe { libc::mincore(self.0, PAGE, &raw mut told) };
        assert_eq!(looked, 0, "{}", io::Error::last_os_error());
        told & 1 == 1
    }

    fn sync(&self) -> io::Result<()> {
        // SAFETY: exactly the mapping.
        let synced = unsafe { msync(self.0, PAGE, MsyncFlags::SYNC) };
        synced.map_err(io::Error::from)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping, which nobody uses any more.
        unsafe { munmap(self.0, PAGE) }.unwrap();
    }
}

/// A program that runs from a mount, and sleeps.
struct Running(Child);

impl Running {
    fn start<F: FileSystem>(mounted: &Mounted<F>) -> Self {
        let path = mounted.path(PROGRAM);
        fs::write(&path, fs::read("/bin/sleep").unwrap()).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        let mut child = None;
        // Another test's process that just begins may have it open for writing, as a copy of this one's descriptor.
        eventually("it runs", || {
            child = Command::new(&path).arg("600").spawn().ok();
            child.is_some()
        });
        let child = child.unwrap();
        waits_in(&child, libc::SYS_clock_nanosleep);
        Self(child)
    }

    /// Reads the beginning of its file where it is mapped: an error would be SIGBUS to the program.
    fn load(&self) -> io::Result<[u8; 4]> {
        let process = Path::new("/proc").join(self.0.id().to_string());
        let maps = fs::read_to_string(process.join("maps")).unwrap();
        let is_first = |line: &&str| line.contains(" 00000000 ") && line.ends_with(PROGRAM);
        let first = maps.lines().find(is_first).unwrap();
        let (at, _) = first.split_once('-').unwrap();
        let at = u64::from_str_radix(at, 16).unwrap();
        let memory = File::open(process.join("mem")).unwrap();
        let mut bytes = [0; 4];
        memory.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn list(directory: &Path) -> io::Result<Vec<DirEntry>> {
    fs::read_dir(directory)?.collect()
}

#[track_caller]
fn must_be_eio<T>(what: &str, answer: io::Result<T>) {
    let errno = answer.map_err(|error| error.raw_os_error()).err();
    assert_eq!(errno, Some(Some(libc::EIO)), "{what}");
}

fn refuse<F: FileSystem>(mounted: &Mounted<F>) {
    let left = mounted.mount.leave_refusing();
    mounted.runtime.block_on(left).unwrap();
    assert!(mounted.mount.is_ended() && mounted.mount.refuses());
    assert!(mounted.mount.is_left_dead());
}

fn must_be_gone_soon<F: FileSystem>(mounted: &Mounted<F>) {
    let gone = mounted.mount.gone();
    let gone = async { tokio::time::timeout(HANG, gone).await };
    let gone = mounted.runtime.block_on(gone);
    gone.expect("its threads end when nobody has anything of it");
}

/// Would be broken if a program hung, got another error, was shown what was there before, or couldn't let go of what it has: it
/// couldn't even exit, and nobody could unmount.
fn programs_get_eio_from_a_mount_that_refuses_and_can_let_go_of_it(transport: TransportChoice) {
    for settings in both_ways() {
        // As a client's tokens, whose time is over.
        let valid = Duration::ZERO;
        let mounted = memory(transport, MemorySettings { valid, ..settings });
        let (path, place) = (mounted.path("f"), mounted.directory.path());
        fs::write(&path, [b'b'; PAGE]).unwrap();
        let both = File::options().read(true).write(true).open(&path);
        let (file, other) = (both.unwrap(), File::open(&path).unwrap());
        let directory = File::open(place).unwrap();
        // Older kernels map no file that bypasses their page cache.
        let stored = (!settings.direct).then(|| Page::stored(&file));
        flock(&file, libc::LOCK_EX).unwrap();
        let waits = Waiter::start(move || flock(&other, libc::LOCK_EX));
        waits.waits_in(libc::SYS_flock);

        refuse(&mounted);
        must_be_eio("a wait for a lock", waits.thread.join().unwrap());
        if let Some(stored) = stored {
            must_be_eio("what was stored", stored.sync());
        }
        for _ in 0..2 {
            must_be_eio("read", file.read_at(&mut [0; 1], 0));
            must_be_eio("write", file.write_at(b"lost", 0));
            must_be_eio("fsync", file.sync_all());
            must_be_eio("truncate", file.set_len(1));
            must_be_eio("unlock", flock(&file, libc::LOCK_UN));
            must_be_eio("stat of an open file", file.metadata());
            must_be_eio("stat of an open directory", directory.metadata());
            must_be_eio("stat of its place", fs::metadata(place));
            must_be_eio("open", File::open(&path));
            must_be_eio("create", File::create(mounted.path("new")));
            must_be_eio("unlink", fs::remove_file(&path));
            must_be_eio("ls", list(place));
            must_be_eio("statfs", statvfs(place).map_err(io::Error::from));
        }
        let mountpoint = mounted.mount.mountpoint();
        let busy = fuse::unmount_foreign(mountpoint, Unmount::IfIdle);
        assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy);
        drop((file, directory));
        fuse::unmount_foreign(mountpoint, Unmount::IfIdle).unwrap();
        must_be_gone_soon(&mounted);
        assert!(!mounted.mount.is_left_dead());
        assert!(fs::read_dir(place).unwrap().next().is_none(), "it is bare");
    }
}

/// Would be broken if a program went on reading what others may have changed since: what it has mapped, what the kernel keeps of
/// a file that is open, or the file that the program runs from.
fn the_kernel_keeps_no_page_of_what_is_open_on_a_mount_that_refuses(transport: TransportChoice) {
    for settings in both_ways() {
        // What the kernel knows it need not ask for.
        let valid = Duration::from_secs(3600);
        let mounted = memory(transport, MemorySettings { valid, ..settings });
        let paths = ["kept", "loaded", "stored"].map(|name| mounted.path(name));
        for path in &paths {
            fs::write(path, [b'b'; PAGE]).unwrap();
        }
        let [kept, loaded, stored] = &paths;
        let kept = File::open(kept).unwrap();
        kept.read_exact_at(&mut [0; PAGE], 0).unwrap();
        let mut mapped = vec![Page::loaded(&File::open(loaded).unwrap())];
        // Older kernels map no file that bypasses their page cache. It stays open: what is changed is written back by a close.
        let both = (!settings.direct).then(|| File::options().read(true).write(true).open(stored));
        let both = both.transpose().unwrap();
        mapped.extend(both.as_ref().map(Page::stored));
        assert!(mapped.iter().all(Page::is_in_memory));
        let running = Running::start(&mounted);
        assert_eq!(&running.load().unwrap(), b"\x7fELF");

        refuse(&mounted);
        must_be_eio("read", kept.read_at(&mut [0; 1], 0));
        must_be_eio("a load", running.load());
        assert!(!mapped.iter().any(Page::is_in_memory));
        if let Some(stored) = mapped.get(1) {
            must_be_eio("what was stored", stored.sync());
        }
        drop((kept, both, mapped, running));
        let detached = mounted.mount.detach_dead();
        mounted.runtime.block_on(detached).unwrap();
        must_be_gone_soon(&mounted);
    }
}

/// Would be broken if a request waited on for what has gone, in the daemon or because as many wait there as may.
fn what_is_under_way_when_a_mount_refuses_gets_eio_too(transport: TransportChoice) {
    const MOST: usize = 4;
    let mounted = Waits::mounted(transport, |options| {
        (options.threads, options.threads_max) = (2, MOST);
    });
    let asking: Vec<_> = (0..3 * MOST)
        .map(|_| {
            let path = mounted.path("f");
            Waiter::start(move || statvfs(&path).map_err(io::Error::from))
        })
        .collect();
    eventually("as many wait as may", || {
        mounted.mount.waiting().len() >= MOST
    });
    refuse(&mounted);
    for one in asking {
        must_be_eio("statfs", one.thread.join().unwrap());
    }
    assert!(mounted.mount.waiting().is_empty());
    let detached = mounted.mount.detach_dead();
    mounted.runtime.block_on(detached).unwrap();
    must_be_gone_soon(&mounted);
}

/// Would be broken if a program saw for seconds what others have changed: a node that was expelled by hand still has its tokens for
/// so long.
fn what_a_kernel_has_of_a_mount_that_refuses_is_dropped_when_others_want_it(
    transport: TransportChoice,
) {
    // What the kernel knows it need not ask for.
    let valid = Duration::from_secs(3600);
    let mounted = memory(
        transport,
        MemorySettings {
            valid,
            ..MemorySettings::default()
        },
    );
    let path = mounted.path("f");
    fs::write(&path, b"before").unwrap();
    let inode = InodeId(fs::metadata(&path).unwrap().ino());
    let begun = Instant::now();
    refuse(&mounted);
    let notice = Notice::Inode {
        inode,
        offset: -1,
        length: 0,
    };
    let told = mounted.mount.notifier().tell(notice);
    match mounted.runtime.block_on(told) {
        Ok(()) => must_be_eio("stat", fs::metadata(&path)),
        // Too late, on a machine that stood still for seconds: nothing is valid any more.
        Err(error) => assert!(begun.elapsed() >= client::BELIEVED_MAX, "{error}"),
    }
}

/// Would be broken if a mount that refuses passed for one that is served, so that none could be made in its place; or if that
/// showed the directory below, or gave what was open before to somebody else.
fn a_mount_that_refuses_keeps_its_place_until_it_is_made_again(transport: TransportChoice) {
    let bare = tempfile::tempdir().unwrap();
    let bare = fs::metadata(bare.path()).unwrap().dev();
    let mounted = memory(transport, MemorySettings::default());
    let place = mounted.directory.path();
    fs::write(mounted.path("f"), b"before").unwrap();
    let held = File::open(mounted.path("f")).unwrap();
    refuse(&mounted);
    must_be_eio("create", File::create(mounted.path("g")));
    let world = mounted.runtime.block_on(async { World::real() });
    let fs = Arc::new(MemoryFileSystem::new(&world, MemorySettings::default()));
    let mut options = MountOptions::new(place);
    options.transport = transport;
    options.replaces = mounted.mount.id();
    let second = Mount::start(&world, fs, &options).unwrap();
    assert!(!second.comes_too_late());
    fs::write(mounted.path("g"), b"served").unwrap();
    assert_eq!(fs::read(mounted.path("g")).unwrap(), b"served");
    assert_ne!(fs::metadata(place).unwrap().dev(), bare);
    must_be_eio("read", held.read_at(&mut [0; 1], 0));
    drop(held);
    let ended = second.unmount(Unmount::Forced);
    mounted.runtime.block_on(ended).unwrap();
    // Before Linux 6.5 the first one was below the second one until now.
    must_be_gone_soon(&mounted);
    assert_eq!(fs::metadata(place).unwrap().dev(), bare);
}

/// Would be broken if programs hung because a thread doesn't go on that has a request of one of them.
#[test]
fn a_mount_with_a_request_that_does_not_end_is_aborted() {
    let mounted = Waits::mounted(TransportChoice::Classic, |_| {});
    let held_up = mounted.fs.gate.write();
    let path = mounted.path("f");
    let asks = Waiter::start(move || statvfs(&path).map(drop));
    eventually("a thread has its request", || {
        !mounted.fs.threads.lock().is_empty()
    });
    let left = mounted.mount.leave_refusing();
    mounted.runtime.block_on(left).unwrap();
    assert_eq!(asks.thread.join().unwrap(), Err(Errno::CONNABORTED));
    let late = fs::metadata(mounted.path("f")).unwrap_err();
    assert_eq!(late.raw_os_error(), Some(libc::ENOTCONN));
    drop(held_up);
    must_be_gone_soon(&mounted);
    let detached = mounted.mount.detach_dead();
    mounted.runtime.block_on(detached).unwrap();
}
