//! The disk under the node's own directory: what is written there stops when it is full.

use super::{CRITICAL, Facts, WARNING, event};
use crate::{admin::HealthEvent, output::bytes};
use std::path::Path;

/// With less than this left the disk counts as full: only what is small may still be written.
const FULL_BYTES: u64 = 16 << 20;
/// With less than this it nearly is: etcd takes 64 MiB at a time for its log.
const NEARLY_FULL_BYTES: u64 = 128 << 20;

/// Bytes that the disk of a directory has left, as `df` shows them; `None` if it doesn't tell.
pub fn left_in(dir: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(dir).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// The event of a disk that is full, or nearly.
pub(super) fn event_of(facts: &Facts) -> Option<HealthEvent> {
    let left = facts.left_in_directory?;
    let (severity, how) = match left {
        0..FULL_BYTES => (CRITICAL, "full"),
        FULL_BYTES..NEARLY_FULL_BYTES => (WARNING, "nearly full"),
        _ => return None,
    };
    let dir = &facts.mounts.dir;
    let what = format!(
        "its disk is {how}: {} are left. Without room neither the log nor events are kept, settings can't be changed, and \
         on a quorum node etcd ends until there is some; NSDs keep the room that they have",
        bytes(left)
    );
    let remedy = format!(
        "free space on that disk (`df -h {dir}`, `du -xsh {dir}/*`); everything goes on by itself then"
    );
    Some(event(severity, format!("directory {dir}"), what, remedy))
}
