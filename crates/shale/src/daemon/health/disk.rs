//! The disks under the node's own directory and under its member of etcd: what is written there stops when they are full.

use super::{CRITICAL, Facts, WARNING, event};
use crate::{admin::HealthEvent, output::bytes};
use std::path::Path;

/// With less than this left the disk counts as full: only what is small may still be written.
const FULL_BYTES: u64 = 16 << 20;
/// With less than this it nearly is: etcd takes 64 MiB at a time for its log, and after a crash that tore the log's last file
/// makes a copy of that before it mends it.
const NEARLY_FULL_BYTES: u64 = 128 << 20;

/// Bytes that the disk of a directory has left, as `df` shows them; `None` if it doesn't tell.
pub fn left_in(dir: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(dir).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// The same of a folder of a directory, if it is on another disk than that; `None` if it isn't, or isn't there.
pub fn left_apart(dir: &Path, folder: &Path) -> Option<u64> {
    let disk = |path: &Path| Some(rustix::fs::stat(path).ok()?.st_dev);
    match disk(folder)? == disk(dir)? {
        true => None,
        false => left_in(folder),
    }
}

/// The events of disks that are full, or nearly.
pub(super) fn events(facts: &Facts) -> Vec<HealthEvent> {
    let dir = &facts.mounts.dir;
    let own = facts.left_in_directory.and_then(|left| {
        let costs = "neither the log nor events are kept, settings can't be changed, and on a quorum node etcd ends until \
                     there is some; NSDs keep the room that they have";
        event_of(dir, left, costs)
    });
    let etcd = facts.left_for_etcd.and_then(|left| {
        let costs = "this node's member of etcd ends, and is started again until there is some; the others go on without \
                     it as long as most members are left";
        event_of(&format!("{dir}/etcd"), left, costs)
    });
    own.into_iter().chain(etcd).collect()
}

/// The event of a disk with so many bytes left. `costs`: what is so without room.
fn event_of(dir: &str, left: u64, costs: &str) -> Option<HealthEvent> {
    let (severity, how) = match left {
        0..FULL_BYTES => (CRITICAL, "full"),
        FULL_BYTES..NEARLY_FULL_BYTES => (WARNING, "nearly full"),
        _ => return None,
    };
    let what = format!(
        "its disk is {how}: {} are left. Without room {costs}",
        bytes(left)
    );
    let remedy = format!(
        "free space on that disk (`df -h {dir}`, `du -xsh {dir}/*`) until more than {} are left; everything goes on by itself \
         then",
        bytes(NEARLY_FULL_BYTES)
    );
    Some(event(severity, format!("directory {dir}"), what, remedy))
}
