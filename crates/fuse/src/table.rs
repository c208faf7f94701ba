//! The kernel's table of mounts, as this process sees it. Reading it never blocks on a file system.

use model::{Error, ErrorKind, Result};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Type of the file system in the mount table.
pub(crate) const FS_TYPE: &str = "fuse.shale";

/// The number of a mount's device: names its connection and its read-ahead setting in /sys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeviceNumber {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

/// A mounted Shale file system, whichever process serves it, or a dead one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountedShale {
    /// The mount's source: the name given when mounting, by convention the node's directory.
    pub source: PathBuf,
    /// Mount point.
    pub mountpoint: PathBuf,
    /// The kernel's id of the mount, unique among all current mounts of all namespaces.
    pub id: u64,
    /// The user whose daemon serves it, and who chose the source.
    pub user: Option<u32>,
    number: DeviceNumber,
    /// What of the file system is shown there.
    root: PathBuf,
}

impl MountedShale {
    /// Whether one is a bind mount of the other, or both of a third.
    #[must_use]
    pub fn is_same_file_system(&self, other: &Self) -> bool {
        self.number == other.number && self.source == other.source
    }

    /// Whether it is a bind mount, whose end must not end the others that show its file system. `all`: every mounted
    /// Shale file system, oldest first. The mount itself is the oldest one that shows all of the file system. One that
    /// isn't among them counts as a bind mount: ending too much can't be undone.
    #[must_use]
    pub fn is_bound(&self, all: &[Self]) -> bool {
        let same = all.iter().filter(|other| other.is_same_file_system(self));
        let same: Vec<&Self> = same.collect();
        let whole = same.iter().find(|other| other.root == Path::new("/"));
        let is_last = same.iter().map(|other| other.id).eq([self.id]);
        !is_last && whole.is_none_or(|whole| whole.id != self.id)
    }
}

impl From<TableLine> for MountedShale {
    fn from(line: TableLine) -> Self {
        Self {
            source: line.source,
            mountpoint: line.mountpoint,
            id: line.id,
            user: line.user,
            number: line.number,
            root: line.root,
        }
    }
}

/// Every mounted Shale file system, oldest first.
///
/// # Errors
/// `Unavailable`: nobody knows what is mounted.
pub fn mounted_shales() -> Result<Vec<MountedShale>> {
    let shales = seen()?.into_iter().filter(TableLine::is_shale);
    Ok(shales.map(MountedShale::from).collect())
}

/// The Shale file system at a place, or the part of one that is bound there; `None` if the topmost
/// mount is something else or there is none.
///
/// # Errors
/// `Unavailable`: nobody knows what is mounted.
pub fn shale_on(path: &Path) -> Result<Option<MountedShale>> {
    let on_top = mount_on(path)?.filter(TableLine::is_shale);
    Ok(on_top.map(MountedShale::from))
}

/// Mount points below a directory, of any file system type.
///
/// # Errors
/// `Unavailable`: nobody knows what is mounted.
pub fn mounted_below(path: &Path) -> Result<Vec<PathBuf>> {
    let places = seen()?.into_iter().map(|line| line.mountpoint);
    let below = places.filter(|place| place != path && place.starts_with(path));
    Ok(below.collect())
}

/// A line of the mount table.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct TableLine {
    pub(crate) id: u64,
    /// The mount on which it is mounted.
    pub(crate) parent: u64,
    /// The directory or file of the file system that is shown there.
    pub(crate) root: PathBuf,
    /// The peer group: its mounts share mount and unmount events.
    pub(crate) peers: Option<u64>,
    /// The group whose events this mount receives.
    pub(crate) master: Option<u64>,
    /// The user who mounted it, if the file system says.
    pub(crate) user: Option<u32>,
    pub(crate) number: DeviceNumber,
    pub(crate) mountpoint: PathBuf,
    pub(crate) fs_type: String,
    pub(crate) source: PathBuf,
}

impl TableLine {
    /// Whether it is of this mount, wherever that is now. The kernel gives ids of mounts again, so that they alone say nothing
    /// about one that may have gone.
    pub(crate) fn is(&self, mount: &MountedShale) -> bool {
        (self.id, self.number, &self.source) == (mount.id, mount.number, &mount.source)
    }

    pub(crate) fn is_shale(&self) -> bool {
        self.fs_type == FS_TYPE
    }
}

/// The mount at `path`. The last mount on a directory covers the earlier ones.
///
/// # Errors
/// As those of [`seen`].
pub(crate) fn mount_on(path: &Path) -> Result<Option<TableLine>> {
    let mut lines = seen()?.into_iter().rev();
    Ok(lines.find(|line| line.mountpoint == path))
}

/// As [`mount_on`], in a table that was read.
pub(crate) fn top_of<'a>(lines: &'a [TableLine], path: &Path) -> Option<&'a TableLine> {
    lines.iter().rev().find(|line| line.mountpoint == path)
}

/// As [`read`], for those who tell people that it fails.
///
/// # Errors
/// `Unavailable`: it can't be read.
pub(crate) fn seen() -> Result<Vec<TableLine>> {
    read().map_err(|error| unreadable(&error))
}

/// Why nobody knows what is mounted, and what to do.
pub(crate) fn unreadable(error: &io::Error) -> Error {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => "; mount /proc: `mount -t proc proc /proc`",
        _ => without_descriptor(error).unwrap_or_default(),
    };
    let text = format!("the table of mounts can't be read (/proc/self/mountinfo): {error}{hint}");
    Error::new(ErrorKind::Unavailable, text)
}

/// What to do if a file couldn't be opened because there was no free descriptor; `None`: that wasn't it.
pub(crate) fn without_descriptor(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EMFILE => Some(
            "; the process has as many files open as it may: raise `ulimit -n` (systemd: \
             `LimitNOFILE=`) and start it again",
        ),
        libc::ENFILE => {
            Some("; the machine has as many files open as it may: raise `sysctl fs.file-max`")
        }
        _ => None,
    }
}

/// The mount table of this process.
///
/// # Errors
/// The system's error: without /proc, or while the process has no descriptor or the machine no memory left. It says
/// nothing about any mount.
pub(crate) fn read() -> io::Result<Vec<TableLine>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?))
}

/// All lines of a mount table.
pub(crate) fn parse(table: &[u8]) -> Vec<TableLine> {
    let lines = table.split(|byte| *byte == b'\n');
    lines.filter_map(parse_line).collect()
}

/// A line is `id parent major:minor root mountpoint options optional* - type source options`.
fn parse_line(line: &[u8]) -> Option<TableLine> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (id, parent) = (to_number(fields.next()?)?, to_number(fields.next()?)?);
    let number = std::str::from_utf8(fields.next()?).ok()?;
    let (major, minor) = number.split_once(':')?;
    let (root, mountpoint) = (unescape(fields.next()?), unescape(fields.next()?));
    let _options = fields.next()?;
    let optional: Vec<_> = fields.by_ref().take_while(|field| *field != b"-").collect();
    let group = |name: &str| {
        let mut values = optional
            .iter()
            .filter_map(|field| field.strip_prefix(name.as_bytes()));
        values.next().and_then(to_number)
    };
    let (fs_type, source) = (fields.next()?, unescape(fields.next()?));
    let mut words = fields
        .next()
        .unwrap_or_default()
        .split(|byte| *byte == b',');
    let user = words.find_map(|word| word.strip_prefix(b"user_id="));
    Some(TableLine {
        id,
        parent,
        root,
        peers: group("shared:"),
        master: group("master:"),
        user: user.and_then(|user| u32::try_from(to_number(user)?).ok()),
        number: DeviceNumber {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        },
        mountpoint,
        fs_type: String::from_utf8(fs_type.to_vec()).ok()?,
        source,
    })
}

fn to_number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Decodes the `\ooo` escapes of space, tab, newline and backslash in the mount table and utab.
pub(crate) fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let octal = behind
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                out.push(byte);
                rest = &behind[3..];
            }
            _ => {
                out.push(*first);
                rest = behind;
            }
        }
    }
    PathBuf::from(OsStr::from_bytes(&out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_spaces_are_read_from_the_mount_table() {
        let line = br"36 35 0:52 / /mnt/my\040files rw,nosuid shared:1 master:2 - fuse.shale /srv/the\040node rw,user_id=1000,group_id=100";
        let found = parse_line(line).expect("the line is whole");
        assert_eq!(found.mountpoint, Path::new("/mnt/my files"));
        assert_eq!(found.source, Path::new("/srv/the node"));
        assert!(found.is_shale());
        assert_eq!((found.id, found.parent), (36, 35));
        assert_eq!(found.user, Some(1000));
        assert_eq!((found.peers, found.master), (Some(1), Some(2)));
        assert_eq!(found.root, Path::new("/"));
        let number = DeviceNumber {
            major: 0,
            minor: 52,
        };
        assert_eq!(found.number, number);
        assert_eq!(parse_line(b""), None);
    }

    /// Would be broken if `umount -f` of one of several bind mounts that are left of a mount ended the others.
    #[test]
    fn only_the_mount_itself_or_the_last_bind_mount_of_it_is_no_bind_mount() {
        const TABLE: &str = "\
20 1 0:50 /docs /older rw - fuse.shale /srv/node rw
21 1 0:50 / /m rw - fuse.shale /srv/node rw
22 1 0:50 /docs/text /file rw - fuse.shale /srv/node rw
23 1 0:50 / /whole rw - fuse.shale /srv/node rw
24 1 0:51 /docs /other rw - fuse.shale /srv/node rw
";
        let read = || parse(TABLE.as_bytes()).into_iter().map(MountedShale::from);
        // The ids of those that are none, while these are mounted.
        let not_bound = |mounted: &[u64]| {
            let all: Vec<_> = read().filter(|it| mounted.contains(&it.id)).collect();
            let mut ids: Vec<_> = all.iter().filter(|it| !it.is_bound(&all)).collect();
            ids.retain(|it| it.number.minor == 50);
            ids.iter().map(|it| it.id).collect::<Vec<_>>()
        };
        assert_eq!(not_bound(&[20, 21, 22, 23, 24]), [21]);
        assert_eq!(not_bound(&[20, 22, 23, 24]), [23]);
        assert_eq!(not_bound(&[20, 22, 24]), [0; 0]);
        assert_eq!(not_bound(&[22, 24]), [22]);
        // A table that can't be read, or that has changed, ends no other mount.
        assert!(read().all(|mount| mount.is_bound(&[])));
    }

    /// Other programs' mounts have names and options of any bytes.
    #[test]
    fn any_mount_table_is_read() {
        let memory = fuzzing::Memory {
            fixed: 16 << 10,
            per_byte: 64,
        };
        fuzzing::fuzz!(fuzzing::ROUNDS, |input: &[u8]| {
            let line =
                br"36 35 0:52 / /mnt/my\040files rw shared:1 - fuse.shale /srv/node rw,user_id=1";
            let changed = fuzzing::Source::new(input).changed(line);
            for table in [input, &changed] {
                let lines = fuzzing::within(memory, table.len(), || parse(table));
                assert!(lines.len() <= table.split(|byte| *byte == b'\n').count());
                assert!(unescape(table).as_os_str().len() <= table.len());
            }
        });
    }
}
