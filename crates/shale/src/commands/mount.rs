//! `shale mount` and `shale umount`: mounts in addition to the node's own.

use super::{down::wait_for_end, start::ask};
use crate::{
    admin::{How, MountRequest, UnmountRequest, Unmounted, client::SOCKET},
    cli::{Dir, Mount, Umount},
    daemon::mounts::{real_path, source_of},
    directory::{lock, log},
    options::Options,
    output::{self, say},
};
use model::{Error, ErrorKind, Result};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// How long a daemon may take from its last answer to its end.
const ENDING_MAX: Duration = Duration::from_secs(5);

/// Adds a mount to the running node.
///
/// # Errors
/// What is wrong with the options or the mount point, and what to do.
pub fn mount(mount: &Mount, json: bool) -> Result<ExitCode> {
    let options = Options::parse(&mount.options.join(","))?;
    let dir = mount.dir.absolute();
    add(&dir, &mount.mountpoint, &options)?;
    say(json, "mounted", &mount.mountpoint)
}

/// `shale fs mount`.
///
/// # Errors
/// As [`mount`]; `NotFound`: there is no such file system; `InvalidArgument`: no list of options can name it.
pub fn mount_named(
    dir: &Dir,
    name: &str,
    mountpoint: &Path,
    options: &[String],
    json: bool,
) -> Result<ExitCode> {
    let options = options_of(name, options)?;
    add(&dir.absolute(), mountpoint, &options)?;
    say(json, "mounted", mountpoint)
}

/// Options of a mount of the file system with this name. The daemon reads them as a list with commas, as all who mount do.
fn options_of(name: &str, options: &[String]) -> Result<Options> {
    let mut options = Options::parse(&options.join(","))?;
    if name.contains(',') {
        let text = format!(
            "a file system whose name has a comma can't be mounted: {name:?} would be a name and other options in the \
             list of mount options"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    options.file_system = Some(name.parse()?);
    Ok(options)
}

/// Ends one mount.
///
/// # Errors
/// `NotFound`; `Busy`, naming the users; `Unavailable`: nobody knows what is mounted there.
pub fn umount(umount: &Umount, json: bool) -> Result<ExitCode> {
    let how = How::of(umount.lazy, umount.force);
    end(umount.dir.as_deref(), &umount.mountpoint, how)?;
    say(json, "unmounted", &umount.mountpoint)
}

/// Asks the daemon of `dir` for a mount.
///
/// # Errors
/// As [`mount`].
pub fn add(dir: &Path, mountpoint: &Path, options: &Options) -> Result<()> {
    let request = MountRequest {
        path: Some(real_path(mountpoint).display().to_string()),
        options: options.to_string(),
    };
    ask::<serde_json::Value>(dir, "/v1/mount", request).map(drop)
}

/// Ends a mount, durably if its daemon answers.
///
/// # Errors
/// As [`umount`]; `InvalidArgument`: another node than that of `dir` serves it.
pub fn end(dir: Option<&Path>, mountpoint: &Path, how: How) -> Result<()> {
    let mountpoint = real_path(mountpoint);
    if let Some(dir) = dir.filter(|_| how != How::Forced) {
        refuse_other_nodes(dir, &mountpoint)?;
    }
    let dir = match dir {
        Some(dir) => Some(dir.to_path_buf()),
        None => node_of(&mountpoint)?,
    };
    let Some(dir) = dir else {
        let text = format!(
            "no Shale file system is mounted at {}",
            mountpoint.display()
        );
        return Err(Error::new(ErrorKind::NotFound, text));
    };
    if how == How::Forced || !lock::is_held(&dir) {
        return end_without_daemon(&mountpoint, how);
    }
    // The daemon is told which one is meant.
    let found = fuse::shale_on(&mountpoint)?;
    let request = UnmountRequest {
        path: mountpoint.display().to_string(),
        how,
        id: found.as_ref().map(|mount| mount.id),
    };
    match ask::<Unmounted>(&dir, "/v1/umount", request) {
        Ok(answer) => wait_if_it_ends(&dir, &answer),
        // A bind mount, or a copy in this mount namespace, which the daemon doesn't know.
        Err(error) if error.kind() == ErrorKind::NotFound && found.is_some() => {
            fuse::unmount_bind(&mountpoint, how.into())?;
            settle(&dir)
        }
        // The daemon ended meanwhile, and its mounts with it.
        Err(error) if error.kind() == ErrorKind::Unavailable && !lock::is_held(&dir) => {
            fuse::unmount_foreign(&mountpoint, how.into())?;
            refuse_if_it_died(&dir)
        }
        Err(error) => Err(error),
    }
}

/// Ends a mount with the kernel's help alone, so it works whatever state the daemon is in. Of a
/// bind mount only this place is unmounted, unless it is the last one: other mounts share its
/// connection.
///
/// # Errors
/// As those of [`fuse::unmount_foreign`].
pub fn end_without_daemon(mountpoint: &Path, how: How) -> Result<()> {
    // As the table names it.
    let mountpoint = &real_path(mountpoint);
    match fuse::shale_on(mountpoint) {
        // While the others can't be seen it counts as one of several.
        Ok(Some(mount)) if mount.is_bound(&fuse::mounted_shales().unwrap_or_default()) => {
            fuse::unmount_bind(mountpoint, how.into())
        }
        // What can't be seen is refused there if it is to be idle, else taken out of its place, whatever it is: no connection
        // ends for it.
        _ => fuse::unmount_foreign(mountpoint, how.into()),
    }
}

/// Makes data durable that was written through a mount that the daemon didn't end itself.
fn settle(dir: &Path) -> Result<()> {
    match ask::<Unmounted>(dir, "/v1/settle", ()) {
        Ok(answer) => wait_if_it_ends(dir, &answer),
        // This may have been its last mount: then it ends, and takes no requests any more. A daemon that
        // ended normally made everything durable first.
        Err(error) if error.kind() == ErrorKind::Unavailable => {
            lock::wait_until_free(dir, ENDING_MAX).map_err(|_| error)?;
            refuse_if_it_died(dir)
        }
        Err(error) => Err(error),
    }
}

/// A daemon removes its socket once everything is durable. If the socket is still there, the daemon
/// was killed or couldn't make everything durable, and the caller must learn that.
fn refuse_if_it_died(dir: &Path) -> Result<()> {
    if std::fs::symlink_metadata(dir.join(SOCKET)).is_err() {
        return Ok(());
    }
    let text = format!(
        "unmounted, but the daemon in {0} died meanwhile: unsynced data may be lost; see {1}, and \
         start it again with `shale up --dir {0}`",
        dir.display(),
        log::place(dir)
    );
    Err(Error::new(ErrorKind::Unavailable, text))
}

fn wait_if_it_ends(dir: &Path, answer: &Unmounted) -> Result<()> {
    if answer.daemon_ends {
        wait_for_end(dir)?;
    }
    Ok(())
}

/// The directory of the node whose mount is at this place, according to the mount table.
fn node_of(mountpoint: &Path) -> Result<Option<PathBuf>> {
    let mut mounts = fuse::mounted_shales()?.into_iter().rev();
    let mount = mounts.find(|mount| mount.mountpoint == mountpoint);
    Ok(mount.map(|mount| mount.source))
}

/// Refuses a mount that another node serves than the one that is named: the wrong daemon, or none, would make durable what was
/// written through it.
fn refuse_other_nodes(dir: &Path, mountpoint: &Path) -> Result<()> {
    // What can't be seen is looked at once more.
    let Ok(Some(node)) = node_of(mountpoint) else {
        return Ok(());
    };
    // A directory may have been renamed since.
    if node == source_of(dir) || !lock::is_held(&node) {
        return Ok(());
    }
    let text = format!(
        "the node in {} serves the mount at {}, not the one in {}: say --dir {0}",
        node.display(),
        mountpoint.display(),
        dir.display()
    );
    Err(Error::new(ErrorKind::InvalidArgument, text))
}

fn say(json: bool, what: &str, mountpoint: &Path) -> Result<ExitCode> {
    let path = real_path(mountpoint).display().to_string();
    if json {
        output::json(&serde_json::json!({ what: path }));
    } else {
        say!("{what} {path}");
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// Would be broken if `shale fs mount a,ro /mnt` mounted file system `a` read-only.
    #[test]
    fn a_file_systems_name_never_becomes_options_of_its_mount() {
        let options = options_of("a", &["ro".into(), "noatime".into()]).unwrap();
        let named = options.file_system.as_ref().map(|name| name.as_str());
        assert_eq!(named, Some("a"));
        // As the daemon reads them.
        assert_eq!(Options::parse(&options.to_string()), Ok(options));
        for bad in ["a,ro", ",", "a,fs=b"] {
            let refused = options_of(bad, &[]).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{bad}");
            assert!(refused.to_string().contains("comma"), "{refused}");
        }
    }

    #[test]
    fn a_daemon_that_died_is_not_taken_for_one_that_made_everything_durable() {
        let home = tempfile::tempdir().unwrap();
        // No daemon listens, with and without the socket left.
        settle(home.path()).unwrap();
        drop(UnixListener::bind(home.path().join(SOCKET)).unwrap());
        let error = settle(home.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("may be lost"), "{error}");
    }
}
