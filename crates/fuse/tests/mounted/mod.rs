//! Mounts the file system in memory (or another one) in a directory of its own.

#![allow(dead_code, reason = "each test program uses a part")]

use fuse::memory::{MemoryFileSystem, MemorySettings};
use fuse::{FileSystem, Mount, MountOptions, TransportChoice};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
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
        // For the tests that use it as another user.
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

/// The settings under which a promise about files must hold.
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
    let begun = Instant::now();
    while !reached() {
        assert!(begun.elapsed() < patience, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Makes a test of each function for each transport. Where the kernel has no FUSE over
/// io_uring, that half says so and counts as passed.
macro_rules! on_both_transports {
    ($($promise:ident,)*) => {$(
        mod $promise {
            #[test]
            fn classic() {
                super::$promise(fuse::TransportChoice::Classic);
            }

            #[test]
            fn io_uring() {
                if crate::mounted::has_io_uring(stringify!($promise)) {
                    super::$promise(fuse::TransportChoice::IoUring);
                }
            }
        }
    )*};
}
pub(crate) use on_both_transports;

/// Whether the kernel can do FUSE over io_uring; root switches it on first.
pub(crate) fn has_io_uring(test: &str) -> bool {
    const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
    let is_on = || std::fs::read_to_string(SWITCH).is_ok_and(|value| value.trim() == "Y");
    if !is_on() {
        let _ = std::fs::write(SWITCH, "Y");
    }
    if !is_on() {
        eprintln!("skipped: {test} over io_uring: {SWITCH} isn't Y");
    }
    is_on()
}
