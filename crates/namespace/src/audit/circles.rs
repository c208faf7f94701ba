//! Finds directories that are their own ancestors: no path leads to them, though each has a name.

use crate::audit::{Audit, Report};
use model::{FileKind, InodeId};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

impl Audit {
    /// Walks up from every directory to the root or to a directory already visited, so that each is
    /// visited once. Memory: about 40 bytes per directory.
    pub(super) fn check_circles(&self, report: &mut Report) {
        // The walk that visited a directory.
        let mut passed: BTreeMap<InodeId, u64> = BTreeMap::new();
        let directories = self.inodes.iter();
        let directories = directories.filter(|(_, seen)| seen.kind == FileKind::Directory);
        for (walk, (start, _)) in (0_u64..).zip(directories) {
            let mut next = Some(*start);
            while let Some(at) = next {
                match passed.entry(at) {
                    Entry::Vacant(vacant) => vacant.insert(walk),
                    Entry::Occupied(before) if *before.get() == walk => {
                        self.report_circle(at, report);
                        break;
                    }
                    Entry::Occupied(_) => break,
                };
                next = self.above(at);
            }
        }
    }

    /// The parent directory; `None` for the root and for a directory that doesn't exist.
    fn above(&self, directory: InodeId) -> Option<InodeId> {
        if directory.number() == InodeId::ROOT.number() {
            return None;
        }
        let seen = self.inodes.get(&directory)?;
        (seen.kind == FileKind::Directory).then(|| InodeId::new(directory.fileset(), seen.parent))
    }

    fn report_circle(&self, start: InodeId, report: &mut Report) {
        let (mut first, mut count, mut at) = (start, 1_u64, start);
        while let Some(next) = self.above(at).filter(|next| *next != start) {
            first = first.min(next);
            count += 1;
            at = next;
        }
        let text = format!(
            "is in a circle of {count} directories that contain each other: no path leads to it"
        );
        report.find_directory(first, text);
    }
}
