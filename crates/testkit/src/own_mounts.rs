//! Tests that change what is mounted where others look run in a process with mounts of its own.

#[path = "../../shale/tests/fixture/noted.rs"]
mod noted;

use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable of a test's process that has a mount namespace of its own.
const OWN: &str = "SHALE_TEST_OWN_MOUNTS";
/// How many seconds such a process may take.
const OWN_MAX: &str = "120";

/// Whether this process has a mount namespace of its own; if not, runs the test in one that does before returning. `module`:
/// the test's `module_path!()`.
///
/// # Panics
/// If the test fails in the other process, or that can't be started.
#[must_use]
pub fn is_among_own_mounts(module: &str, test: &str) -> bool {
    if std::env::var_os(OWN).is_some() {
        // Mounts of other tests, which would last as long as their copies here. Of one place the newest one is on top.
        for other in fuse::mounted_shales().unwrap().iter().rev() {
            let _ = fuse::detach(other);
        }
        return true;
    }
    // Such a file is its process's user's.
    let of_this = Path::new("/proc/self").metadata().unwrap();
    if of_this.uid() != 0 {
        noted::skipped(test, "only root makes mount namespaces");
        return false;
    }
    let (_, module) = module.split_once("::").expect("it begins with the crate");
    let output = Command::new("timeout")
        .args([OWN_MAX, "unshare", "--mount", "--propagation", "private"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::{test}"), "--nocapture"])
        .env(OWN, test)
        .output()
        .expect("unshare(1) is there");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{output:?}"
    );
    false
}

/// An empty file system over a place, until this is dropped. Over /proc, the process can't see what is mounted.
#[derive(Debug)]
pub struct Cover(PathBuf);

impl Cover {
    /// Mounts it, in a process that [has mounts of its own](is_among_own_mounts).
    ///
    /// # Panics
    /// If the system refuses it.
    #[must_use]
    pub fn over(place: &Path) -> Self {
        let (flags, data) = (MountFlags::empty(), None::<&CStr>);
        rustix::mount::mount("none", place, "tmpfs", flags, data).unwrap();
        Self(place.to_owned())
    }
}

impl Drop for Cover {
    fn drop(&mut self) {
        let done = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
        // A test that has failed says why only if nothing else panics.
        assert!(done.is_ok() || std::thread::panicking(), "{done:?}");
    }
}
