//! Records that can't be decoded: told as such, and not as missing.

use crate::Key;
use crate::audit::{FINDINGS_MAX, Finding, Report};
use model::{DataId, Error, FilesetId, InodeId, InodeNumber};
use std::collections::BTreeSet;

/// What was seen of them.
#[derive(Default)]
pub(super) struct Damage {
    /// As many as a report tells.
    findings: Vec<Finding>,
    count: u64,
    /// Those of the findings whose keys are known.
    keys: BTreeSet<Key>,
    /// Where inodes are among them.
    filesets: BTreeSet<FilesetId>,
}

impl Damage {
    pub(super) fn see(&mut self, key: Option<&Key>, error: &Error) {
        self.count += 1;
        if let Some(Key::Inode(inode)) = key {
            self.filesets.insert(inode.fileset());
        }
        if self.findings.len() >= FINDINGS_MAX {
            return;
        }
        let (subject, inode) = key.map_or_else(|| ("the metadata".into(), None), subject);
        let text = format!("has a record that can't be read: {error}");
        self.findings.push(Finding {
            subject,
            inode,
            text,
        });
        self.keys.extend(key.cloned());
    }

    /// Whether the record may be there all the same.
    pub(super) fn hides(&self, key: &Key) -> bool {
        self.is_more_than_known() || self.keys.contains(key)
    }

    /// Whether nothing can be said about all inodes of a fileset.
    pub(super) fn hides_inodes_of(&self, fileset: FilesetId) -> bool {
        self.filesets.contains(&fileset)
    }

    fn is_more_than_known(&self) -> bool {
        self.count > self.keys.len() as u64
    }

    pub(super) fn tell(&self, report: &mut Report) {
        report.findings.extend(self.findings.iter().cloned());
        report.finding_count += self.count;
    }
}

/// What a record is about, and whose it is as far as its key says so.
fn subject(key: &Key) -> (String, Option<InodeId>) {
    match key {
        Key::Inode(inode)
        | Key::Xattr { inode, .. }
        | Key::Orphan(inode)
        | Key::Fold(inode)
        | Key::Cut(inode) => (format!("inode {inode}"), Some(*inode)),
        Key::Name { directory, .. } => (format!("directory {directory}"), Some(*directory)),
        Key::Extent { fileset, data, .. } => match first_owner(*fileset, *data) {
            Some(inode) => (format!("inode {inode}"), Some(inode)),
            None => (format!("data id {data} of fileset {fileset}"), None),
        },
        Key::Reclaim { data, .. } => (format!("removed data id {data}"), None),
        Key::Segment(segment) | Key::Dead(segment) => (format!("segment {segment}"), None),
        Key::Slot { session, .. } | Key::Stream(session) => (format!("session {session}"), None),
        Key::Fileset(_) | Key::Counters(_) => (format!("{key:?}"), None),
    }
}

/// A data id is its inode's number until the file is emptied for the first time.
fn first_owner(fileset: FilesetId, data: DataId) -> Option<InodeId> {
    (data.0 >> InodeId::NUMBER_BITS == 0).then(|| InodeId::new(fileset, InodeNumber(data.0)))
}
