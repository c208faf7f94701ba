//! A kernel on which FUSE may not use io_uring. The switch affects the whole kernel, so tests that
//! need io_uring don't run meanwhile.

use crate::mounted::{SWITCH, TURN, skipped};
use fuse::{Mount, MountOptions, TransportChoice, Unmount};
use std::fs;
use std::sync::Arc;
use testkit::memory::{MemoryFileSystem, MemorySettings};
use world::World;

const TEST: &str = "a_mount_is_served_by_the_device_and_says_how_to_switch_io_uring_on";

/// Restores the switch, even if the test fails.
struct Restore(String);

impl Drop for Restore {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, self.0.trim());
    }
}

#[test]
fn a_mount_is_served_by_the_device_and_says_how_to_switch_io_uring_on() {
    let _alone = TURN.write();
    let Ok(before) = fs::read_to_string(SWITCH) else {
        skipped(TEST, &format!("this kernel has no {SWITCH}"));
        return;
    };
    let _restore = Restore(before);
    if fs::write(SWITCH, "N").is_err() {
        skipped(TEST, &format!("only root may write {SWITCH}"));
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let world = runtime.block_on(async { World::real() });
    let directory = tempfile::tempdir().unwrap();
    let start = |transport| {
        let fs = Arc::new(MemoryFileSystem::new(&world, MemorySettings::default()));
        let mut options = MountOptions::new(directory.path());
        options.transport = transport;
        Mount::start(&world, fs, &options)
    };
    let mount = start(TransportChoice::Auto).unwrap();
    let said = mount.transport().to_string();
    assert!(
        said.contains("off in the kernel: echo Y >"),
        "it says what to do: {said}"
    );
    fs::write(directory.path().join("f"), b"served").unwrap();
    assert_eq!(fs::read(directory.path().join("f")).unwrap(), b"served");
    runtime.block_on(mount.unmount(Unmount::Forced)).unwrap();
    let refused = start(TransportChoice::IoUring).unwrap_err();
    assert_eq!(refused.kind(), model::ErrorKind::NotSupported);
    assert!(refused.to_string().contains("echo Y >"), "{refused}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}
