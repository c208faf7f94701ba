//! Ends a lab, whatever is left of it, and leaves the machine as it was.

use super::{
    super::machine::{Machines, names::NODES_MAX, names::NodeNumber},
    DaemonState, Lab, lock, names_of,
    record::{self, Record},
    refuse_others_than_root,
};
use crate::directory::lock as daemon_lock;
use model::{Error, ErrorKind, Result};
use std::{fs, io, path::Path, process::Command, time::Duration};
use world::program;

/// Making a node's data durable.
const SYNC_MAX: Duration = Duration::from_secs(30);
/// Removing files; regions are large, and a disk may be slow.
const REMOVE_MAX: Duration = Duration::from_secs(600);

/// What has ended.
#[derive(Debug, Default)]
pub struct Downed {
    /// Processes that were killed.
    pub killed: usize,
    /// Nodes whose latest changes may not be durable.
    pub not_synced: Vec<NodeNumber>,
    /// Whether the data was removed.
    pub purged: bool,
}

/// Ends the lab in a directory: kills what runs on its nodes, unmounts, removes its network; with
/// `purge` its data as well. Without, everything that was written is made durable before, where
/// nodes run. What isn't there is fine.
///
/// # Errors
/// `Unavailable` or `Busy` with what is left.
pub fn down(dir: &Path, purge: bool) -> Result<Downed> {
    refuse_others_than_root()?;
    // Its network may have outlived the directory.
    let dir = dir
        .canonicalize()
        .or_else(|_| std::path::absolute(dir))
        .map_err(|error| {
            Error::new(ErrorKind::InvalidArgument, error.to_string()).while_doing("reading --dir")
        })?;
    let record = Record::load(&dir)?;
    let _lock = match &record {
        Some(_) => Some(lock(&dir)?),
        None => None,
    };
    let mut downed = Downed::default();
    if let Some(record) = record.clone().filter(|_| !purge) {
        downed.not_synced = sync(&Lab::of(dir.clone(), record, None)?)?;
    }
    downed.killed = clear(&dir)?;
    if purge && record.is_some() {
        remove_data(&dir)?;
        downed.purged = true;
    }
    Ok(downed)
}

/// Makes durable what running nodes have; returns those that couldn't.
fn sync(lab: &Lab) -> Result<Vec<NodeNumber>> {
    let mut failed = Vec::new();
    for (node, state) in lab.machines.nodes().zip(lab.state()?) {
        let is_synced = match state.state {
            DaemonState::Dead => true,
            DaemonState::Silent => false,
            DaemonState::Running => lab.shale(node, &["fs", "sync"], SYNC_MAX).is_ok(),
        };
        if !is_synced {
            failed.push(node);
        }
    }
    Ok(failed)
}

/// Ends everything of a lab but its files: processes, mounts, network, also if the lab was never
/// finished. Returns how many processes were killed.
///
/// # Errors
/// `Unavailable` with what is left.
pub(super) fn clear(dir: &Path) -> Result<usize> {
    let mut killed = Machines::new(names_of(dir)?, NODES_MAX)?.remove()?;
    // Daemons whose network somebody has removed by hand are known by the lock of their directory.
    for node in NodeNumber::all(NODES_MAX) {
        let node_dir = dir.join(node.to_string());
        if daemon_lock::is_held(&node_dir) {
            kill_by_lock(&node_dir)?;
            killed += 1;
        }
    }
    let mut mounts = fuse::mounted_shales()?;
    let own = rustix::process::geteuid().as_raw();
    mounts.retain(|it| is_of_lab(dir, own, [&it.mountpoint, &it.source], it.user));
    // The newest one first: it covers earlier ones of the same place.
    mounts.reverse();
    fuse::detach_all(&mounts)?;
    Ok(killed)
}

/// Whether a mount is a lab's: one below its directory, or of a node there. Mounts of others than the lab's user aren't, whatever
/// their source, which they choose, and wherever they are: the way there may refuse this user, or answer nothing. What lies in a
/// lab's mount goes with that.
fn is_of_lab(dir: &Path, own: u32, places: [&Path; 2], user: Option<u32>) -> bool {
    user == Some(own) && places.iter().any(|place| place.starts_with(dir))
}

fn kill_by_lock(node_dir: &Path) -> Result<()> {
    let doing = || format!("killing the daemon of {}", node_dir.display());
    let own = std::env::current_exe().map_err(|error| {
        Error::new(ErrorKind::Unavailable, error.to_string()).while_doing(doing())
    })?;
    let mut command = Command::new(own);
    command.args(["down", "--kill", "--dir"]).arg(node_dir);
    let ended = program::run(&mut command, "", REMOVE_MAX)?;
    if ended.status.success() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unavailable, ended.complaint).while_doing(doing()))
}

/// Removes what labs keep in their directory, and the directory if nothing else is in it.
fn remove_data(dir: &Path) -> Result<()> {
    let doing = || format!("removing the lab's data in {}", dir.display());
    let failed = |error: io::Error| {
        Error::new(ErrorKind::Unavailable, error.to_string()).while_doing(doing())
    };
    // Through a mount one would delete what isn't the lab's.
    let below = fuse::mounted_below(dir).map_err(|error| error.while_doing(doing()))?;
    if let Some(mount) = below.first() {
        let text = format!("{} is mounted there; unmount it first", mount.display());
        return Err(Error::new(ErrorKind::Busy, text).while_doing(doing()));
    }
    let mut paths = Vec::new();
    for node in NodeNumber::all(NODES_MAX) {
        paths.push(dir.join(node.to_string()));
        paths.push(dir.join(format!("{node}.faults")));
    }
    // The record goes last: as long as it is there, this can be done again.
    for batch in [paths, vec![dir.join(record::FILE), dir.join(super::LOCK)]] {
        let mut command = Command::new("rm");
        command.args(["-rf", "--one-file-system", "--"]).args(batch);
        let ended = program::run(&mut command, "", REMOVE_MAX)?;
        if !ended.status.success() {
            return Err(Error::new(ErrorKind::Unavailable, ended.complaint).while_doing(doing()));
        }
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        removed => removed.map_err(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use testkit::own_mounts::{Cover, is_among_own_mounts};

    /// Would be broken if any user could keep root's labs from ending, by a mount that is named after one of them.
    #[test]
    fn mounts_of_other_users_are_no_labs_whatever_they_are_called() {
        let dir = Path::new("/var/lib/shale-lab");
        let [lab, other] = ["/var/lib/shale-lab/n1", "/home/u/m"].map(Path::new);
        for (places, is_its) in [
            ([lab, lab], true),
            ([other, lab], true),
            ([other; 2], false),
        ] {
            assert_eq!(is_of_lab(dir, 0, places, Some(0)), is_its, "{places:?}");
            for user in [Some(1000), None] {
                assert!(!is_of_lab(dir, 0, places, user), "{places:?} of {user:?}");
            }
        }
    }

    /// Would be broken if any user could keep a lab from being removed, by a mount whose place is no text.
    #[test]
    fn a_lab_is_removed_whatever_others_have_mounted_and_not_through_a_mount_in_it() {
        let test = "a_lab_is_removed_whatever_others_have_mounted_and_not_through_a_mount_in_it";
        if !is_among_own_mounts(module_path!(), test) {
            return;
        }
        let temporary = tempfile::tempdir().unwrap();
        let home = temporary.path().canonicalize().unwrap();
        let strange = home.join(OsStr::from_bytes(b"\xff"));
        let lab = home.join("lab");
        let inside = lab.join("n1");
        for place in [&strange, &inside] {
            fs::create_dir_all(place).unwrap();
        }
        let _of_others = Cover::over(&strange);
        let in_it = Cover::over(&inside);
        let refused = remove_data(&lab).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        assert!(
            refused.to_string().contains("n1 is mounted there"),
            "{refused}"
        );
        drop(in_it);
        remove_data(&lab).unwrap();
        assert!(!lab.exists());
    }
}
