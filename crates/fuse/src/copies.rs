//! Finds other places that show a mounted file system: bind mounts of it, and copies in other mount
//! namespaces.

use crate::connection::AbortFile;
use crate::mounting;
use crate::table::{self, DeviceNumber, MountedShale, TableLine};
use model::Result;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most other mount namespaces reported.
const NAMESPACES_MAX: usize = 8;

/// Identifies a mount in the mount table.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) number: DeviceNumber,
    /// Bind mounts and copies have other ids.
    pub(crate) id: u64,
    source: PathBuf,
    /// Its connection, if the system lets this user see it: once that is gone, another mount may have all of the
    /// above. The kernel gives the lowest numbers that are free, and the next mount is often the same node's.
    pub(crate) connection: Option<Arc<AbortFile>>,
}

impl Identity {
    pub(crate) fn of(line: &TableLine) -> Self {
        Self::new(line.id, line.number, line.source.clone())
    }

    /// That of a mount whose connection isn't known, or may not be seen.
    pub(crate) fn new(id: u64, number: DeviceNumber, source: PathBuf) -> Self {
        Self {
            number,
            id,
            source,
            connection: None,
        }
    }

    fn shows(&self, line: &TableLine) -> bool {
        let is_like = line.is_shale() && line.number == self.number && line.source == self.source;
        // Looked at only if the line is like it: then it is another mount's.
        is_like && !self.is_unmounted()
    }

    fn is_unmounted(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|connection| connection.is_unmounted())
    }

    /// What ends its connection.
    ///
    /// # Errors
    /// As [`AbortFile::of_mount`].
    pub(crate) fn abort_file(&self) -> Result<AbortFile> {
        AbortFile::of_mount(self.id, &self.source)
    }

    /// The mount itself, if it is attached.
    ///
    /// # Errors
    /// `Unavailable`: nobody knows.
    pub(crate) fn line(&self) -> Result<Option<TableLine>> {
        let mut lines = table::seen()?.into_iter();
        Ok(lines.find(|line| self.is(line)))
    }

    /// Whether this line of the mount table is the mount itself.
    pub(crate) fn is(&self, line: &TableLine) -> bool {
        line.id == self.id && self.shows(line)
    }

    /// Whether this table of mounts, if it could be read, doesn't have the mount: it isn't attached.
    pub(crate) fn is_missing_in(&self, table: &io::Result<Vec<TableLine>>) -> bool {
        let lines = table.as_ref();
        lines.is_ok_and(|lines| !lines.iter().any(|line| self.is(line)))
    }

    /// Whether this table of mounts, if it could be read, doesn't have the mount, or has another one over it. One that
    /// is newer may be below it: see [`crate::replacing`].
    pub(crate) fn is_covered_in(&self, table: &io::Result<Vec<TableLine>>) -> bool {
        table.as_ref().is_ok_and(|lines| {
            let mine = lines.iter().find(|line| self.is(line));
            mine.is_none_or(|mine| {
                let is_over = |line: &TableLine| line.parent == mine.id;
                let is_there = |line: &TableLine| line.mountpoint == mine.mountpoint;
                lines.iter().any(|line| is_over(line) && is_there(line))
            })
        })
    }

    /// Other mounts of the same file system in this mount namespace that stay when the mount goes,
    /// newest first.
    ///
    /// # Errors
    /// `Unavailable`: nobody knows.
    pub(crate) fn copies(&self) -> Result<Vec<TableLine>> {
        Ok(self.copies_in(table::seen()?))
    }

    fn copies_in(&self, lines: Vec<TableLine>) -> Vec<TableLine> {
        let mine = lines.iter().find(|line| line.id == self.id);
        let stays = |line: &TableLine| {
            let is_copy = self.shows(line) && line.id != self.id;
            is_copy && !mine.is_some_and(|mine| goes_along(line, mine, &lines))
        };
        let stay: Vec<_> = lines.iter().map(stays).collect();
        let both = lines.into_iter().zip(stay).rev();
        both.filter_map(|(line, stays)| stays.then_some(line))
            .collect()
    }

    /// Detaches the copies; returns those that couldn't be detached.
    ///
    /// # Errors
    /// `Unavailable`: nobody knows which there are, or are left.
    pub(crate) fn detach_copies(&self) -> Result<Vec<PathBuf>> {
        for copy in self.copies()?.into_iter().map(MountedShale::from) {
            // A copy covered by another mount stays: the owner of a directory above it could have
            // mounted something else there meanwhile.
            let place = &copy.mountpoint;
            let is_on_top = table::mount_on(place)?.is_some_and(|top| top.id == copy.id);
            if is_on_top && let Err(error) = mounting::detach(&copy) {
                tracing::warn!(%error, "couldn't detach a bind mount");
            }
        }
        let left = self.copies()?.into_iter();
        Ok(left.map(|line| line.mountpoint).collect())
    }

    /// A process of each other mount namespace that has the file system, as far as this one may read their tables: it is
    /// only told.
    pub(crate) fn namespaces_elsewhere(&self) -> Vec<u32> {
        let namespace_of = |process: &Path| fs::read_link(process.join("ns/mnt"));
        let mut looked_at: BTreeSet<PathBuf> = BTreeSet::new();
        looked_at.extend(namespace_of(Path::new("/proc/self")));
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(process) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // The process is gone, or is another user's.
            let Ok(namespace) = namespace_of(&entry.path()) else {
                continue;
            };
            if !looked_at.insert(namespace) {
                continue;
            }
            let table = fs::read(entry.path().join("mountinfo")).unwrap_or_default();
            if table::parse(&table).iter().any(|line| self.shows(line)) {
                found.push(process);
            }
            if found.len() == NAMESPACES_MAX {
                break;
            }
        }
        found
    }
}

/// Whether the kernel unmounts `copy` together with `mine`: both are mounted at the same place of
/// their parents, and mount propagation connects the parents.
fn goes_along(copy: &TableLine, mine: &TableLine, lines: &[TableLine]) -> bool {
    let parent = |line: &TableLine| lines.iter().find(|other| other.id == line.parent);
    let (Some(above_copy), Some(above_mine)) = (parent(copy), parent(mine)) else {
        return false;
    };
    let place = |line: &TableLine, above: &TableLine| {
        let below = line.mountpoint.strip_prefix(&above.mountpoint);
        below.ok().map(|below| above.root.join(below))
    };
    if above_copy.id == above_mine.id || place(copy, above_copy) != place(mine, above_mine) {
        return false;
    }
    // The parent's peer group, and the groups that receive its events.
    let mut groups: BTreeSet<u64> = above_mine.peers.into_iter().collect();
    loop {
        let reached = |line: &&TableLine| line.master.is_some_and(|it| groups.contains(&it));
        let further: Vec<u64> = lines
            .iter()
            .filter(reached)
            .filter_map(|it| it.peers)
            .collect();
        let before = groups.len();
        groups.extend(further);
        if groups.len() == before {
            break;
        }
    }
    let is_in = |group: Option<u64>| group.is_some_and(|group| groups.contains(&group));
    is_in(above_copy.peers) || is_in(above_copy.master)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw
2 1 8:1 / /again rw shared:1 - ext4 /dev/sda rw
3 1 8:1 /srv /slave rw master:1 - ext4 /dev/sda rw
4 1 8:1 / /private rw - ext4 /dev/sda rw
10 1 0:50 / /srv/m rw shared:9 - fuse.shale /srv/node rw
11 2 0:50 / /again/srv/m rw shared:9 - fuse.shale /srv/node rw
12 3 0:50 / /slave/m rw master:9 - fuse.shale /srv/node rw
13 1 0:50 /docs /bound rw shared:9 - fuse.shale /srv/node rw
14 4 0:50 / /private/srv/m rw shared:9 - fuse.shale /srv/node rw
15 1 0:50 / /elsewhere rw - fuse.shale /srv/other rw
16 1 0:51 / /other rw - fuse.shale /srv/node rw
";

    #[test]
    fn a_bind_mount_stays_and_what_the_kernel_passed_on_goes_along() {
        let lines = table::parse(TABLE.as_bytes());
        assert_eq!(lines.len(), 11);
        let mine = Identity::of(&lines[4]);
        let ids = |copies: Vec<TableLine>| copies.iter().map(|it| it.id).collect::<Vec<_>>();
        assert_eq!(ids(mine.copies_in(lines)), [14, 13]);
        // Once the mount itself is gone, every other mount counts as a copy.
        let mut lines = table::parse(TABLE.as_bytes());
        lines.retain(|line| line.id != mine.id);
        assert_eq!(ids(mine.copies_in(lines)), [14, 13, 12, 11]);
    }

    /// Would be broken if a daemon gave its dead mounts up when it has no free descriptor, or when a mount that was to
    /// replace one was put below it and couldn't be served.
    #[test]
    fn only_a_table_that_was_read_says_that_a_mount_is_gone_or_covered() {
        fn read(table: &str) -> io::Result<Vec<TableLine>> {
            Ok(table::parse(table.as_bytes()))
        }
        let mine = Identity::of(&table::parse(TABLE.as_bytes())[4]);
        let with = |line: &str| read(&format!("{TABLE}{line}\n"));
        let on_top = "17 10 0:60 / /srv/m rw - tmpfs none rw";
        let elsewhere = "17 10 0:60 / /srv/m/inner rw - tmpfs none rw";
        let gone = TABLE.replace("10 1 0:50 / /srv/m ", "10 1 0:52 / /srv/m ");
        let below = "17 1 0:60 / /srv/m rw - fuse.shale /srv/node rw\n";
        let below = TABLE.replace("10 1 0:50", "10 17 0:50") + below;
        let unreadable = Err(io::Error::from_raw_os_error(libc::EMFILE));
        for (table, is_missing, is_covered) in [
            (read(TABLE), false, false),
            (with(elsewhere), false, false),
            (with(on_top), false, true),
            (read(&below), false, false),
            (read(&gone), true, true),
            (read(""), true, true),
            (unreadable, false, false),
        ] {
            assert_eq!(mine.is_missing_in(&table), is_missing, "{table:?}");
            assert_eq!(mine.is_covered_in(&table), is_covered, "{table:?}");
        }
    }
}
