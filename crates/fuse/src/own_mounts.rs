//! Tests that change what is mounted where others look run in a process with mounts of its own.

use crate::mount::noted::skipped;
use crate::table;
use rustix::mount::UnmountFlags;
use std::process::Command;

/// Environment variable of a test's process that has a mount namespace of its own.
const OWN: &str = "SHALE_TEST_OWN_MOUNTS";
/// How many seconds such a process may take.
const OWN_MAX: &str = "120";

/// Whether this process has a mount namespace of its own; if not, runs the test in one that does before returning. `module`:
/// the test's `module_path!()`.
pub(crate) fn is_among_own_mounts(module: &str, test: &str) -> bool {
    if std::env::var_os(OWN).is_some() {
        // Mounts of other tests, which would last as long as their copies here.
        let lines = table::read().expect("it can be read");
        for other in lines.iter().filter(|line| line.is_shale()) {
            let _ = rustix::mount::unmount(&other.mountpoint, UnmountFlags::DETACH);
        }
        return true;
    }
    if !rustix::process::geteuid().is_root() {
        skipped(test, "only root makes mount namespaces");
        return false;
    }
    let (_, module) = module.split_once("::").expect("it begins with the crate");
    let output = Command::new("timeout")
        .args([OWN_MAX, "unshare", "--mount", "--propagation", "private"])
        .arg(std::env::current_exe().expect("the kernel tells"))
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
