//! Records that can't be decoded: reported as such, and not as missing.

use crate::Key;
use crate::audit::{FINDINGS_MAX, Finding, Report};
use model::{DataId, Error, FilesetId, InodeId, InodeNumber};
use std::collections::BTreeSet;

/// The undecodable records seen so far.
#[derive(Default)]
pub(super) struct Damage {
    /// At most as many as a report holds.
    findings: Vec<Finding>,
    count: u64,
    /// Keys of `findings`, where known.
    keys: BTreeSet<Key>,
    /// Filesets with undecodable inodes.
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

    /// Whether the record may exist undecoded.
    pub(super) fn hides(&self, key: &Key) -> bool {
        self.is_more_than_known() || self.keys.contains(key)
    }

    /// Whether some inode of the fileset can't be decoded, so that nothing is known about all of
    /// them.
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

/// The subject of a record, and the inode it belongs to if the key shows that.
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
        Key::Slot { session, .. }
        | Key::Stream(session)
        | Key::Session(session)
        | Key::Reserved { session, .. } => (format!("session {session}"), None),
        Key::Fileset(_) | Key::Counters(_) => (format!("{key:?}"), None),
    }
}

/// A data id is its inode's number until the file is first emptied.
fn first_owner(fileset: FilesetId, data: DataId) -> Option<InodeId> {
    (data.0 >> InodeId::NUMBER_BITS == 0).then(|| InodeId::new(fileset, InodeNumber(data.0)))
}
