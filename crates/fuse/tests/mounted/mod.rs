//! Mounts the file system in memory (or another one) in a temporary directory.

#[path = "../../../shale/tests/fixture/poll.rs"]
#[allow(unreachable_pub, reason = "shared with the tests of the program")]
mod poll;

#[path = "../../../shale/tests/fixture/noted.rs"]
mod noted;

pub(crate) use noted::skipped;

use fuse::{FileSystem, Mount, MountOptions, TransportChoice};
use parking_lot::{RwLock, RwLockReadGuard};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;
use testkit::memory::{MemoryFileSystem, MemorySettings};
use tokio::runtime::Runtime;
use world::World;

/// A mount for one test. The mount ends first when it is dropped, then the directory.
pub(crate) struct Mounted<F> {
    pub(crate) mount: Mount,
    pub(crate) fs: Arc<F>,
    pub(crate) directory: TempDir,
    pub(crate) runtime: Runtime,
}

impl<F: FileSystem> Mounted<F> {
    pub(crate) fn with(
        transport: TransportChoice,
        make: impl FnOnce(&World) -> F,
        options: impl FnOnce(&mut MountOptions),
    ) -> Mounted<F> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let world = runtime.block_on(async { World::real() });
        let directory = tempfile::tempdir().unwrap();
        // For tests that use it as another user.
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let mut mount_options = MountOptions::new(directory.path());
        mount_options.transport = transport;
        options(&mut mount_options);
        let fs = Arc::new(make(&world));
        let mount = Mount::start(&world, Arc::clone(&fs), &mount_options).unwrap();
        Mounted {
            mount,
            fs,
            directory,
            runtime,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// The file system in memory, mounted.
pub(crate) fn memory(
    transport: TransportChoice,
    settings: MemorySettings,
) -> Mounted<MemoryFileSystem> {
    Mounted::with(
        transport,
        |world| MemoryFileSystem::new(world, settings),
        |_| {},
    )
}

/// The settings under which promises about files must hold.
pub(crate) fn both_ways() -> [MemorySettings; 2] {
    let direct = MemorySettings::default();
    [
        direct,
        MemorySettings {
            direct: false,
            ..direct
        },
    ]
}

/// Waits until `reached`, for at most `patience`.
pub(crate) fn eventually(patience: Duration, what: &str, reached: &mut dyn FnMut() -> bool) {
    poll::eventually(what, patience, reached);
}

/// A thread that runs `work`, and a way to see that it waits in a system call.
pub(crate) struct Waiter<T> {
    pub(crate) thread: JoinHandle<T>,
    id: u32,
}

impl<T: Send + 'static> Waiter<T> {
    pub(crate) fn start(work: impl FnOnce() -> T + Send + 'static) -> Self {
        let (told, id) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: a plain system call.
            told.send(unsafe { libc::gettid() }).unwrap();
            work()
        });
        let id = id.recv().unwrap() as u32;
        Self { thread, id }
    }

    pub(crate) fn waits_in(&self, system_call: libc::c_long) {
        poll::blocked_in(std::process::id(), self.id, system_call);
    }
}

/// Waits until a program waits in a system call.
pub(crate) fn waits_in(child: &Child, system_call: libc::c_long) {
    poll::blocked_in(child.id(), child.id(), system_call);
}

/// Makes a test of each function for each transport. Where the kernel has no FUSE over io_uring,
/// that half reports itself as skipped and passes.
macro_rules! on_both_transports {
    ($($promise:ident,)*) => {$(
        mod $promise {
            #[test]
            fn classic() {
                super::$promise(fuse::TransportChoice::Classic);
            }

            #[test]
            fn io_uring() {
                if let Some(_switched_on) = crate::mounted::io_uring(stringify!($promise)) {
                    super::$promise(fuse::TransportChoice::IoUring);
                }
            }
        }
    )*};
}
pub(crate) use on_both_transports;

/// The kernel's switch for FUSE over io_uring.
pub(crate) const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
/// Held shared by tests that need the switch as it is, and alone by the one that turns it.
pub(crate) static TURN: RwLock<()> = RwLock::new(());

/// FUSE over io_uring for a test, if the kernel can do it; root switches it on first.
pub(crate) fn io_uring(test: &str) -> Option<RwLockReadGuard<'static, ()>> {
    let as_it_is = TURN.read();
    let is_on = || std::fs::read_to_string(SWITCH).is_ok_and(|value| value.trim() == "Y");
    if !is_on() {
        let _ = std::fs::write(SWITCH, "Y");
    }
    if !is_on() {
        let test = format!("{test} over io_uring");
        skipped(&test, &format!("{SWITCH} isn't Y"));
        return None;
    }
    Some(as_it_is)
}
