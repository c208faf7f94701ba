//! Maintains libmount's /run/mount/utab, where umount(8) finds whether a mount has its own helper.
//! It has one line per mount and is replaced under a file lock.
//!
//! For a directory whose type statfs(2) reports (for FUSE just "fuse"), umount(8) unmounts without
//! reading the mount table, and so without our helper, which waits until everything is durable. A
//! line here makes it read the table, and names the helper.

use crate::options::is_root;
use crate::table::{MountedShale, mounted_shales, unescape};
use model::Result;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// libmount's fixed location.
const DIRECTORY: &str = "/run/mount";
/// umount(8) calls `/sbin/umount.shale` for lines with this word.
const HELPER: &str = "helper=shale";
/// libmount holds the lock only while reading and writing a small file. Any process may take the
/// lock, so waiting for it is limited.
const LOCK_MAX: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(5);
/// A larger table isn't libmount's.
const BYTES_MAX: u64 = 16 << 20;

/// Tells umount(8) that a mount has a helper; replaces an earlier line for that mount. `options`:
/// further words that mount(8) would keep there, such as `_netdev`. Does nothing unless root calls:
/// other users' umount(8) reads the mount table anyway.
///
/// # Errors
/// The system's error. The mount works without the line, but umount(8) then returns too early.
pub fn tell_umount(source: &Path, mountpoint: &Path, options: &[&str]) -> io::Result<()> {
    if !is_root() {
        return Ok(());
    }
    UmountTable::of(DIRECTORY).put(source, mountpoint, Path::new("/"), options)
}

/// As [`tell_umount`], for a bind mount that shows `root` of the file system.
pub(crate) fn tell_umount_of_copy(source: &Path, place: &Path, root: &Path) -> io::Result<()> {
    if !is_root() {
        return Ok(());
    }
    UmountTable::of(DIRECTORY).put(source, place, root, &[])
}

/// Whether umount(8) knows of a mount's helper. Always true unless root calls.
#[must_use]
pub fn is_told(source: &Path, mountpoint: &Path) -> bool {
    !is_root() || UmountTable::of(DIRECTORY).has(source, mountpoint)
}

/// Removes lines of mounts of `source` that have ended.
///
/// # Errors
/// The system's error; lines left behind do no harm.
pub fn forget_ended(source: &Path) -> io::Result<()> {
    if !is_root() {
        return Ok(());
    }
    let is_mounted = |place: &Path| may_be_mounted(&mounted_shales(), source, place);
    UmountTable::of(DIRECTORY).remove(source, is_mounted)
}

/// Whether a mount of `source` is at a place, also below another one; true if the mount table couldn't be read.
fn may_be_mounted(table: &Result<Vec<MountedShale>>, source: &Path, place: &Path) -> bool {
    let is_it = |mount: &MountedShale| mount.mountpoint == place && mount.source == source;
    let is_gone = table.as_ref().is_ok_and(|all| !all.iter().any(is_it));
    !is_gone
}

struct UmountTable {
    directory: PathBuf,
}

impl UmountTable {
    fn of(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
        }
    }

    fn file(&self) -> PathBuf {
        self.directory.join("utab")
    }

    fn has(&self, source: &Path, mountpoint: &Path) -> bool {
        let is_it = |line: &&[u8]| is_of(line, source, mountpoint) && names_helper(line);
        let table = self.read().unwrap_or_default();
        table.split(|byte| *byte == b'\n').any(|line| is_it(&line))
    }

    fn put(
        &self,
        source: &Path,
        mountpoint: &Path,
        root: &Path,
        options: &[&str],
    ) -> io::Result<()> {
        self.make_directory()?;
        let _lock = self.lock()?;
        let mut lines = self.lines_without(|line| is_of(line, source, mountpoint))?;
        let mut words = vec![HELPER];
        words.extend(options);
        for (field, value) in [
            ("SRC=", source.as_os_str()),
            (" TARGET=", mountpoint.as_os_str()),
            (" ROOT=", root.as_os_str()),
            (" OPTS=", OsStr::new(&words.join(","))),
        ] {
            lines.extend(field.bytes());
            lines.extend(escape(value));
        }
        lines.push(b'\n');
        self.replace(&lines)
    }

    fn remove(&self, source: &Path, is_mounted: impl Fn(&Path) -> bool) -> io::Result<()> {
        let is_ended = |line: &[u8]| {
            let of_source = field(line, "SRC").is_some_and(|found| found == source);
            of_source && field(line, "TARGET").is_none_or(|place| !is_mounted(&place))
        };
        let table = self.read()?;
        if !table.split(|byte| *byte == b'\n').any(is_ended) {
            return Ok(());
        }
        let _lock = self.lock()?;
        self.replace(&self.lines_without(is_ended)?)
    }

    /// Keeps other programs' lines unchanged.
    fn lines_without(&self, is_dropped: impl Fn(&[u8]) -> bool) -> io::Result<Vec<u8>> {
        let mut kept = Vec::new();
        for line in self.read()?.split(|byte| *byte == b'\n') {
            if !line.is_empty() && !is_dropped(line) {
                kept.extend(line);
                kept.push(b'\n');
            }
        }
        Ok(kept)
    }

    fn read(&self) -> io::Result<Vec<u8>> {
        let size = match fs::symlink_metadata(self.file()) {
            Ok(found) => found.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        if size > BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        fs::read(self.file())
    }

    fn make_directory(&self) -> io::Result<()> {
        match fs::DirBuilder::new().mode(0o755).create(&self.directory) {
            // Whatever the umask: every user's umount(8) reads it.
            Ok(()) => fs::set_permissions(&self.directory, fs::Permissions::from_mode(0o755)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Locks as libmount does; released when the descriptor closes.
    fn lock(&self) -> io::Result<File> {
        let lock = File::options()
            .create(true)
            .append(true)
            .mode(0o644)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(self.directory.join("utab.lock"))?;
        lock.set_permissions(fs::Permissions::from_mode(0o644))?;
        let begun = Instant::now();
        while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if !matches!(error, Errno::WOULDBLOCK | Errno::INTR) {
                return Err(error.into());
            }
            if begun.elapsed() > LOCK_MAX {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "another process holds the lock of /run/mount/utab",
                ));
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        Ok(lock)
    }

    /// Called with the lock held: readers see the old table or the new one.
    fn replace(&self, content: &[u8]) -> io::Result<()> {
        let new = self.directory.join("utab.shale");
        // Left by a process that died holding the lock.
        let _ = fs::remove_file(&new);
        let mut file = File::options()
            .create_new(true)
            .write(true)
            .mode(0o644)
            .open(&new)?;
        file.write_all(content)?;
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        fs::rename(&new, self.file())
    }
}

/// The value of a field like `TARGET=` in a line.
fn field(line: &[u8], name: &str) -> Option<PathBuf> {
    line.split(|byte| *byte == b' ').find_map(|field| {
        let value = field.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(unescape(value))
    })
}

fn is_of(line: &[u8], source: &Path, mountpoint: &Path) -> bool {
    field(line, "SRC").is_some_and(|found| found == source)
        && field(line, "TARGET").is_some_and(|found| found == mountpoint)
}

fn names_helper(line: &[u8]) -> bool {
    let options = field(line, "OPTS").unwrap_or_default().into_os_string();
    let mut words = options.as_bytes().split(|byte| *byte == b',');
    words.any(|word| word == HELPER.as_bytes())
}

/// Escapes bytes that would end a field or a line, as libmount does.
fn escape(text: &OsStr) -> Vec<u8> {
    let mut out = Vec::new();
    for byte in text.as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' => out.extend(format!("\\{byte:03o}").bytes()),
            _ => out.push(*byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: &str = "SRC=/dev/sdb1 TARGET=/mnt/usb ROOT=/ OPTS=uhelper=udisks2\n";

    fn with_a_line_of_another_program() -> (tempfile::TempDir, UmountTable) {
        let home = tempfile::tempdir().unwrap();
        let table = UmountTable::of(home.path());
        fs::write(table.file(), OTHER).unwrap();
        (home, table)
    }

    fn text(table: &UmountTable) -> String {
        fs::read_to_string(table.file()).unwrap()
    }

    /// Would be broken if umount(8) returned before everything is durable because a daemon without a free descriptor had
    /// removed the lines of mounts that it serves.
    #[test]
    fn only_a_mount_table_that_was_read_says_that_a_line_has_no_mount() {
        const TABLE: &str = "\
10 1 0:50 / /srv/m rw - fuse.shale /srv/node rw
11 10 0:60 / /srv/m rw - tmpfs none rw
";
        let lines = crate::table::parse(TABLE.as_bytes()).into_iter();
        let lines = lines.filter(|line| line.is_shale());
        let table = Ok(lines.map(MountedShale::from).collect());
        let [node, place] = ["/srv/node", "/srv/m"].map(Path::new);
        assert!(may_be_mounted(&table, node, place));
        assert!(!may_be_mounted(&table, node, Path::new("/srv")));
        assert!(!may_be_mounted(&table, Path::new("/srv/other"), place));
        let unreadable = Err(model::ErrorKind::Unavailable.into());
        assert!(may_be_mounted(&unreadable, node, place));
    }

    #[test]
    fn a_mount_has_one_line_and_those_of_others_stay() {
        let (_home, table) = with_a_line_of_another_program();
        let (source, place) = (Path::new("/srv/node"), Path::new("/mnt/a"));
        assert!(!table.has(source, place));
        table.put(source, place, Path::new("/"), &[]).unwrap();
        let line = "SRC=/srv/node TARGET=/mnt/a ROOT=/ OPTS=helper=shale";
        assert_eq!(text(&table), format!("{OTHER}{line}\n"));
        assert!(table.has(source, place));
        table
            .put(source, place, Path::new("/"), &["_netdev"])
            .unwrap();
        assert_eq!(text(&table), format!("{OTHER}{line},_netdev\n"));
        assert!(table.has(source, place));
        table.remove(source, |_| true).unwrap();
        assert!(table.has(source, place), "it is mounted still");
        table.remove(Path::new("/srv/other"), |_| false).unwrap();
        assert!(table.has(source, place), "it belongs to another node");
        table.remove(source, |_| false).unwrap();
        assert_eq!(text(&table), OTHER);
        let mode = fs::metadata(table.file()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
    }

    #[test]
    fn a_line_that_mount_8_wrote_without_the_helper_is_replaced() {
        let (_home, table) = with_a_line_of_another_program();
        let (source, place) = (Path::new("/srv/node"), Path::new("/mnt/a"));
        let theirs = "ID=7 SRC=/srv/node TARGET=/mnt/a ROOT=/ ATTRS=x OPTS=_netdev\n";
        fs::write(table.file(), theirs).unwrap();
        assert!(!table.has(source, place));
        table.put(source, place, Path::new("/"), &[]).unwrap();
        assert!(table.has(source, place));
        assert_eq!(text(&table).lines().count(), 1);
    }

    #[test]
    fn names_with_blanks_newlines_and_backslashes_come_back() {
        let home = tempfile::tempdir().unwrap();
        let table = UmountTable::of(home.path().join("mount"));
        let source = Path::new("/srv/the node");
        let place = Path::new("/mnt/a b\tc\nd\\040#e");
        table.put(source, place, Path::new("/"), &[]).unwrap();
        assert_eq!(text(&table).lines().count(), 1);
        assert!(text(&table).contains(r"TARGET=/mnt/a\040b\011c\012d\134040\043e ROOT"));
        assert!(table.has(source, place));
        table.remove(source, |found| found != place).unwrap();
        assert_eq!(text(&table), "");
    }

    #[test]
    fn a_lock_that_is_held_for_ever_is_not_waited_for() {
        let (_home, table) = with_a_line_of_another_program();
        let _held = table.lock().unwrap();
        let refused = table.put(Path::new("/srv"), Path::new("/mnt"), Path::new("/"), &[]);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(text(&table), OTHER);
    }
}
