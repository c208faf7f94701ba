//! Finds the files in given segments, and the names of inodes, by scanning the records.
//!
//! No index leads from a segment to all its files, or from a file to its names, because only people
//! need these answers: whole tables are read. That takes about a second for a million files.

use crate::host::{Host, SCAN_PAGE};
use crate::judging::is_undecodable;
use model::{DataId, ExtentKind, FileName, FilesetId, InodeId, InodeNumber, Result, SegmentId};
use namespace::{Key, POSITION_END, Record, Table};
use shard::{Shard, successor};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Files reported by name; further ones are only counted.
pub(crate) const FILES_NAMED_MAX: usize = 1000;
/// Most directories whose names are looked up for that.
const DIRECTORIES_MAX: usize = 10_000;
/// Pages between two pauses, so that operations go first.
const PAGES_AT_ONCE: u64 = 16;
const PAUSE: Duration = Duration::from_millis(1);

/// Files with parts in some segments.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Files {
    /// Total number.
    pub(crate) count: u64,
    /// Names of the first [`FILES_NAMED_MAX`].
    pub(crate) names: Vec<String>,
}

/// Reads a range of records page by page. Undecodable records are skipped: they must not prevent
/// other names from being reported.
struct Pages {
    from: Option<Key>,
    to: Key,
    read: u64,
}

impl Pages {
    fn of((from, to): (Key, Key)) -> Self {
        Self {
            from: Some(from),
            to,
            read: 0,
        }
    }

    /// The next page; empty at the end.
    async fn next(&mut self, host: &Host, shard: &Shard) -> Result<Vec<(Key, Record)>> {
        let Some(from) = self.from.take() else {
            return Ok(Vec::new());
        };
        self.read += 1;
        if self.read.is_multiple_of(PAGES_AT_ONCE) {
            host.world().sleep(PAUSE).await;
        }
        let page = shard.scan_readable(&from, &self.to, SCAN_PAGE).await?;
        if page.len() == SCAN_PAGE {
            self.from = page.last().map(|(last, _)| successor(last));
        }
        Ok(page)
    }
}

/// Finds them.
#[derive(Clone)]
pub(crate) struct FileNames {
    host: Arc<Host>,
}

impl FileNames {
    pub(crate) fn new(host: Arc<Host>) -> Self {
        Self { host }
    }

    /// The files that have parts in any of these segments. Removed files whose data is being
    /// reclaimed don't count.
    ///
    /// # Errors
    /// If the records can't be read.
    pub(crate) async fn files_in(&self, segments: &BTreeSet<SegmentId>) -> Result<Files> {
        let mut files = Files::default();
        if segments.is_empty() {
            return Ok(files);
        }
        let shard = self.host.shard();
        let mut first: Vec<(FilesetId, DataId)> = Vec::new();
        let mut pages = Pages::of(Table::Extents.range());
        let mut last = None;
        loop {
            let page = pages.next(&self.host, &shard).await?;
            if page.is_empty() {
                break;
            }
            for (key, record) in &page {
                let (Key::Extent { fileset, data, .. }, Record::Extent(extent)) = (key, record)
                else {
                    continue;
                };
                let (fileset, data) = (*fileset, *data);
                // The extents of one data id are neighbours.
                if last == Some((fileset, data)) {
                    continue;
                }
                let is_inside = match &extent.kind {
                    ExtentKind::Data { place, .. } => segments.contains(&place.segment),
                    _ => false,
                };
                if !is_inside {
                    continue;
                }
                last = Some((fileset, data));
                let reclaimed = Key::Reclaim { fileset, data };
                if readable(&shard, &reclaimed).await?.is_some() {
                    continue;
                }
                files.count += 1;
                if first.len() < FILES_NAMED_MAX {
                    first.push((fileset, data));
                }
            }
        }
        let inodes = self.inodes_of(&shard, first).await?;
        let names = self.names_of(&inodes).await?;
        files.names = names.into_values().collect();
        files.names.sort_unstable();
        Ok(files)
    }

    /// The inodes to which these data ids belong.
    async fn inodes_of(
        &self,
        shard: &Shard,
        data: Vec<(FilesetId, DataId)>,
    ) -> Result<BTreeSet<InodeId>> {
        let mut inodes = BTreeSet::new();
        let mut open = BTreeSet::new();
        for (fileset, data) in data {
            // A data id equals its inode's number until the file is first truncated to 0.
            if data.0 >> InodeId::NUMBER_BITS == 0 {
                inodes.insert(InodeId::new(fileset, InodeNumber(data.0)));
            } else {
                open.insert((fileset, data));
            }
        }
        let mut pages = Pages::of(Table::Inodes.range());
        while !open.is_empty() {
            let page = pages.next(&self.host, shard).await?;
            if page.is_empty() {
                break;
            }
            for (key, record) in &page {
                if let (Key::Inode(id), Record::Inode(inode)) = (key, record)
                    && open.remove(&(id.fileset(), inode.data))
                {
                    inodes.insert(*id);
                }
            }
        }
        Ok(inodes)
    }

    /// Names of inodes: a path from the root of the fileset, or the inode's number if it has no
    /// name. Any one of the paths if there are several.
    ///
    /// # Errors
    /// If the records can't be read.
    pub(crate) async fn names_of(
        &self,
        inodes: &BTreeSet<InodeId>,
    ) -> Result<BTreeMap<InodeId, String>> {
        let shard = self.host.shard();
        let mut found: BTreeMap<InodeId, (InodeId, FileName)> = BTreeMap::new();
        let mut pages = Pages::of(Table::Names.range());
        while found.len() < inodes.len() {
            let page = pages.next(&self.host, &shard).await?;
            if page.is_empty() {
                break;
            }
            for (key, record) in &page {
                if let Some((inode, directory, name)) = entry_of(key, record)
                    && inodes.contains(&inode)
                {
                    found.entry(inode).or_insert((directory, name.clone()));
                }
            }
        }
        let parents = found.values().map(|(directory, _)| *directory).collect();
        let directories = self.directory_names(&shard, parents).await?;
        let name = |inode: &InodeId| {
            let path = found
                .get(inode)
                .map(|(directory, name)| path_of(&directories, *directory, name));
            let root = (inode.number() == InodeId::ROOT.number()).then(|| "/".to_string());
            path.or(root)
                .unwrap_or_else(|| format!("inode {inode}, which has no name"))
        };
        Ok(inodes.iter().map(|inode| (*inode, name(inode))).collect())
    }

    /// Parents and names of these directories and of all above them.
    async fn directory_names(
        &self,
        shard: &Shard,
        mut open: BTreeSet<InodeId>,
    ) -> Result<BTreeMap<InodeId, (InodeId, FileName)>> {
        let mut children: BTreeMap<InodeId, BTreeSet<InodeId>> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        while let Some(directory) = open.pop_first() {
            if !seen.insert(directory) || seen.len() > DIRECTORIES_MAX {
                continue;
            }
            let Some(Record::Inode(inode)) = readable(shard, &Key::Inode(directory)).await? else {
                continue;
            };
            if inode.parent != directory.number() {
                let parent = InodeId::new(directory.fileset(), inode.parent);
                children.entry(parent).or_default().insert(directory);
                open.insert(parent);
            }
        }
        let mut found = BTreeMap::new();
        for (parent, mut wanted) in children {
            let position = |position| Key::Name {
                directory: parent,
                position,
            };
            let mut pages = Pages::of((position(0), position(POSITION_END)));
            while !wanted.is_empty() {
                let page = pages.next(&self.host, shard).await?;
                if page.is_empty() {
                    break;
                }
                for (key, record) in &page {
                    if let Some((inode, _, name)) = entry_of(key, record)
                        && wanted.remove(&inode)
                    {
                        found.insert(inode, (parent, name.clone()));
                    }
                }
            }
        }
        Ok(found)
    }
}

/// A record, if it exists and can be decoded.
async fn readable(shard: &Shard, key: &Key) -> Result<Option<Record>> {
    match shard.record(key).await {
        Err(error) if is_undecodable(error.kind()) => Ok(None),
        record => record,
    }
}

/// The inode, directory and name of a directory entry.
fn entry_of<'a>(key: &Key, record: &'a Record) -> Option<(InodeId, InodeId, &'a FileName)> {
    let (Key::Name { directory, .. }, Record::Name(name)) = (key, record) else {
        return None;
    };
    let entry = name.entry.as_ref()?;
    let inode = InodeId::new(directory.fileset(), entry.inode);
    Some((inode, *directory, &entry.name))
}

/// The path of a name. "…" stands for an unknown part (a directory was moved or removed during the
/// search).
fn path_of(
    directories: &BTreeMap<InodeId, (InodeId, FileName)>,
    mut directory: InodeId,
    name: &FileName,
) -> String {
    let mut parts = vec![printable(name)];
    let mut passed = BTreeSet::new();
    while directory.number() != InodeId::ROOT.number() {
        // A directory moved below itself between two reads, or damage, could form a cycle.
        let is_new = passed.insert(directory);
        let Some((parent, name)) = directories.get(&directory).filter(|_| is_new) else {
            parts.push("…".into());
            break;
        };
        parts.push(printable(name));
        directory = *parent;
    }
    parts.reverse();
    format!("/{}", parts.join("/"))
}

/// A name as one line of printable text, whatever bytes it has.
fn printable(name: &FileName) -> String {
    let text = String::from_utf8_lossy(name.as_bytes());
    let shown = |c: char| {
        if c.is_control() || is_direction(c) {
            c.escape_unicode().to_string()
        } else {
            c.to_string()
        }
    };
    text.chars().map(shown).collect()
}

/// Characters that change the direction of surrounding text.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_on_one_line_and_keep_their_letters() {
        let shown = |name: &[u8]| printable(&FileName::new(name).unwrap());
        assert_eq!(shown("größe 1".as_bytes()), "größe 1");
        assert_eq!(shown(b"a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\u{a}");
        assert_eq!(shown("x\u{202e}y".as_bytes()), "x\\u{202e}y");
        assert_eq!(shown(b"\xff"), "\u{fffd}");
    }
}
