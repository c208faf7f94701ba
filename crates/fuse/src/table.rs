//! The kernel's table of mounts, as this process sees it. Asking it never waits for a file system.

use crate::mounting::FS_TYPE;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The number of a mount's device: names its connection and its read-ahead setting in /sys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeviceNumber {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

/// A mounted Shale file system, whoever serves it, and also if nobody does any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountedShale {
    /// What is mounted: the name that the mount was given, the node's directory by custom.
    pub source: PathBuf,
    /// Where.
    pub mountpoint: PathBuf,
}

/// Every mounted Shale file system, oldest first.
#[must_use]
pub fn mounted_shales() -> Vec<MountedShale> {
    let shales = lines().into_iter().filter(TableLine::is_shale);
    shales
        .map(|line| MountedShale {
            source: line.source,
            mountpoint: line.mountpoint,
        })
        .collect()
}

/// A line of the mount table.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct TableLine {
    pub(crate) number: DeviceNumber,
    pub(crate) mountpoint: PathBuf,
    pub(crate) fs_type: String,
    pub(crate) source: PathBuf,
}

impl TableLine {
    pub(crate) fn is_shale(&self) -> bool {
        self.fs_type == FS_TYPE
    }
}

/// What is mounted on `path`. The last mount on a directory covers the earlier ones.
pub(crate) fn mount_on(path: &Path) -> Option<TableLine> {
    lines()
        .into_iter()
        .rev()
        .find(|line| line.mountpoint == path)
}

fn lines() -> Vec<TableLine> {
    // Without /proc nothing is known to be mounted, which only makes messages worse.
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let lines = table.split(|byte| *byte == b'\n');
    lines.filter_map(parse_line).collect()
}

/// A line is `id parent major:minor root mountpoint options optional* - type source options`.
fn parse_line(line: &[u8]) -> Option<TableLine> {
    let mut fields = line.split(|byte| *byte == b' ');
    let number = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = number.split_once(':')?;
    let mountpoint = unescape(fields.nth(1)?);
    let mut behind = fields.skip_while(|field| *field != b"-").skip(1);
    Some(TableLine {
        number: DeviceNumber {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        },
        mountpoint,
        fs_type: String::from_utf8(behind.next()?.to_vec()).ok()?,
        source: unescape(behind.next()?),
    })
}

/// The mount table writes space, tab, newline and backslash as `\ooo`.
fn unescape(field: &[u8]) -> PathBuf {
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
        let line = br"36 35 0:52 / /mnt/my\040files rw,nosuid shared:1 master:2 - fuse.shale /srv/the\040node rw";
        let found = parse_line(line).expect("the line is whole");
        assert_eq!(found.mountpoint, Path::new("/mnt/my files"));
        assert_eq!(found.source, Path::new("/srv/the node"));
        assert!(found.is_shale());
        let number = DeviceNumber {
            major: 0,
            minor: 52,
        };
        assert_eq!(found.number, number);
        assert_eq!(parse_line(b""), None);
    }
}
