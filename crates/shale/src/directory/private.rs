//! Keeps the node's directory its owner's alone: makes it so, checks it, and opens its files such
//! that no other user can have planted them.

use model::{Error, ErrorKind, Result};
use rustix::fs::Mode;
use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
    sync::OnceLock,
};

/// Mode of directories above a mount point: everyone may pass and list.
const WAY: u32 = 0o755;
/// Mode of the node's directory if other users need nothing in it.
const OWNER_ONLY: u32 = 0o700;
/// Mode if the mount point is in it: users of the mount must pass through.
const PASS_ONLY: u32 = 0o711;
/// What this process was started with.
static CALLERS_UMASK: OnceLock<u32> = OnceLock::new();
/// Group and others may write.
const OTHERS_WRITE: u32 = 0o022;
/// Only a file's owner may rename or remove it in such a directory.
const STICKY: u32 = 0o1000;

/// Files made by this process are private, whatever umask it was started with; what others are to
/// see gets its mode explicitly.
pub fn keep_files_private() {
    let callers = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    // Only the first one is the caller's.
    let _ = CALLERS_UMASK.set(callers.bits());
}

/// Back to the umask that this process was started with, for a program of the user's that it
/// becomes.
pub fn restore_umask() {
    if let Some(callers) = CALLERS_UMASK.get() {
        rustix::process::umask(Mode::from_raw_mode(*callers));
    }
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Makes the node's directory and missing parents.
///
/// # Errors
/// The system's error.
pub fn make_node_directory(dir: &Path, mountpoint: &Path) -> io::Result<()> {
    let rights = if mountpoint.starts_with(dir) {
        PASS_ONLY
    } else {
        OWNER_ONLY
    };
    make_directories(dir, rights)
}

/// Makes a missing mount point that others can reach, whatever the umask.
///
/// # Errors
/// The system's error.
pub fn make_mount_point(path: &Path) -> io::Result<()> {
    make_directories(path, WAY)
}

/// Makes a directory inside the node's own that only its owner may enter.
///
/// # Errors
/// The system's error.
pub fn make_private_directory(path: &Path) -> io::Result<()> {
    make_directory(path, OWNER_ONLY)
}

fn make_directories(path: &Path, rights: u32) -> io::Result<()> {
    match make_directory(path, rights) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = path.parent().ok_or(error)?;
            make_directories(above, WAY)?;
            make_directory(path, rights)
        }
        made => made,
    }
}

fn make_directory(path: &Path, rights: u32) -> io::Result<()> {
    match DirBuilder::new().mode(rights).create(path) {
        Ok(()) => set_rights(path, rights),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Sets the rights of a directory that was just made, whatever the umask. Whoever owns the directory above can put something
/// else in its place meanwhile, such as a link to a file that only root may read: that keeps its rights.
fn set_rights(directory: &Path, rights: u32) -> io::Result<()> {
    let made = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(directory)?;
    made.set_permissions(Permissions::from_mode(rights))
}

/// Refuses a directory that other users own or may write to, or that everyone could replace. Whoever owns a directory above
/// it, or may write to one as a member of its group, is trusted: `docs/operations/mounting.md` tells people to look. One that
/// doesn't exist is fine.
///
/// # Errors
/// `NotPermitted`, saying what to do.
pub fn check(dir: &Path) -> Result<()> {
    let found = match fs::metadata(dir) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(&error, dir)),
    };
    if !found.is_dir() {
        let text = "Not a directory; --dir must be a directory, or not exist yet";
        return Err(Error::new(ErrorKind::NotDirectory, text).while_doing(looking_at(dir)));
    }
    refuse_other_owner(dir, &found)?;
    if found.mode() & OTHERS_WRITE != 0 {
        let text = format!(
            "other users may write to {0}, and so take the node over; `chmod go-w {0}`, or use another --dir",
            dir.display()
        );
        return Err(Error::new(ErrorKind::NotPermitted, text));
    }
    let real = dir.canonicalize().map_err(|error| failed(&error, dir))?;
    for above in real.ancestors().skip(1) {
        let mode = fs::metadata(above)
            .map_err(|error| failed(&error, above))?
            .mode();
        if mode & 0o002 != 0 && mode & STICKY == 0 {
            let text = format!(
                "everyone may write to {0}, and so replace {1}; `chmod o-w {0}`, or use another \
                 --dir",
                above.display(),
                dir.display()
            );
            return Err(Error::new(ErrorKind::NotPermitted, text));
        }
    }
    Ok(())
}

/// Refuses a file of the node's directory that isn't a regular file of this user.
///
/// # Errors
/// `NotPermitted`, saying what to do; `NotFound`.
pub fn check_file(path: &Path) -> io::Result<Result<()>> {
    let found = fs::symlink_metadata(path)?;
    if !found.is_file() {
        let text = format!(
            "{} isn't a regular file; inspect it and remove it",
            path.display()
        );
        return Ok(Err(Error::new(ErrorKind::NotPermitted, text)));
    }
    Ok(refuse_other_owner(path.parent().unwrap_or(path), &found))
}

/// A node belongs to the user who made it; even root would leave files that the owner can't use.
fn refuse_other_owner(dir: &Path, found: &fs::Metadata) -> Result<()> {
    if found.uid() == me() {
        return Ok(());
    }
    let text = format!(
        "{} belongs to user {}, and this is user {}; run as its owner, or use another --dir",
        dir.display(),
        found.uid(),
        me()
    );
    Err(Error::new(ErrorKind::NotPermitted, text))
}

/// Opens a file of the node's directory; a new one is readable by the owner only. Refuses a
/// symbolic link, a FIFO, a device or a hard link to another file, and never blocks on one.
///
/// # Errors
/// The system's error, or that it isn't a regular file.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP | libc::ENXIO) => planted(path),
            _ => error,
        })?;
    let found = file.metadata()?;
    if !found.is_file() || found.nlink() > 1 {
        return Err(planted(path));
    }
    Ok(file)
}

fn planted(path: &Path) -> io::Error {
    io::Error::other(format!(
        "{} isn't a regular file with one name; inspect it and remove it",
        path.display()
    ))
}

/// Whether a user may give orders to this process: its own user or root.
pub fn may_command(user: u32) -> bool {
    user == 0 || user == me()
}

/// Whether a process's answers about a node can be trusted: it runs as the owner of the node's
/// directory, as this user or as root.
pub fn may_answer(user: u32, dir: &Path) -> bool {
    may_command(user) || fs::metadata(dir).is_ok_and(|found| found.uid() == user)
}

fn looking_at(path: &Path) -> String {
    format!("looking at {}", path.display())
}

fn failed(error: &io::Error, path: &Path) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::AccessDenied,
        _ => ErrorKind::Unavailable,
    };
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; run as the user that owns it (root?), or use another --dir"
        }
        _ => "",
    };
    Error::new(kind, format!("{error}{hint}")).while_doing(looking_at(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn rights(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn directories_have_the_rights_that_were_meant() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("a/b/node");
        make_node_directory(&dir, Path::new("/mnt/elsewhere")).unwrap();
        assert_eq!(rights(&dir), OWNER_ONLY);
        assert_eq!(rights(&home.path().join("a/b")), WAY);
        let other = home.path().join("other");
        make_node_directory(&other, &other.join("mnt")).unwrap();
        assert_eq!(rights(&other), PASS_ONLY);
        make_mount_point(&dir).unwrap();
        assert_eq!(
            rights(&dir),
            OWNER_ONLY,
            "an existing directory keeps its mode"
        );
        fs::write(home.path().join("file"), "").unwrap();
        assert!(make_mount_point(&home.path().join("file")).is_err());
    }

    #[test]
    fn what_takes_the_place_of_a_new_directory_keeps_its_rights() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        fs::write(at("file"), "words").unwrap();
        make_directory(&at("directory"), OWNER_ONLY).unwrap();
        for name in ["file", "directory"] {
            fs::set_permissions(at(name), Permissions::from_mode(0o700)).unwrap();
            let link = at(&format!("link to {name}"));
            symlink(at(name), &link).unwrap();
            set_rights(&link, WAY).unwrap_err();
            assert_eq!(rights(&at(name)), 0o700, "{name}");
        }
        set_rights(&at("file"), WAY).unwrap_err();
        assert_eq!(rights(&at("file")), 0o700);
    }

    #[test]
    fn a_directory_that_others_may_change_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("node");
        check(&dir).unwrap();
        fs::create_dir(&dir).unwrap();
        check(&dir).unwrap();
        for mode in [0o775, 0o757, 0o1777] {
            fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
            let text = check(&dir).unwrap_err().to_string();
            assert!(text.contains("chmod go-w"), "{mode:o}: {text}");
        }
        fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(home.path(), Permissions::from_mode(0o777)).unwrap();
        let text = check(&dir).unwrap_err().to_string();
        assert!(text.contains("chmod o-w"), "{text}");
        fs::set_permissions(home.path(), Permissions::from_mode(0o1777)).unwrap();
        check(&dir).unwrap();
        // That only people can judge, as the documents say.
        fs::set_permissions(home.path(), Permissions::from_mode(0o775)).unwrap();
        check(&dir).unwrap();
        fs::write(home.path().join("file"), "").unwrap();
        assert!(check(&home.path().join("file")).is_err());
    }

    #[test]
    fn planted_links_and_fifos_are_neither_followed_nor_waited_for() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        fs::write(at("precious"), "words").unwrap();
        symlink(at("precious"), at("link")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        fs::hard_link(at("precious"), at("second")).unwrap();
        let mode = Mode::from_raw_mode(0o666);
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), mode).unwrap();
        for name in ["link", "dangling", "second", "fifo"] {
            let append = open(File::options().create(true).append(true), &at(name));
            assert!(append.is_err(), "{name}");
            assert!(
                open(File::options().read(true), &at(name)).is_err(),
                "{name}"
            );
            if name != "second" {
                assert!(check_file(&at(name)).unwrap().is_err(), "{name}");
            }
        }
        assert!(!at("nowhere").exists());
        assert_eq!(fs::read(at("precious")).unwrap(), b"words");
        open(File::options().create(true).append(true), &at("new")).unwrap();
        assert_eq!(rights(&at("new")), 0o600);
        check_file(&at("new")).unwrap().unwrap();
    }
}
