//! Of which inodes kernels may keep attributes, by the directories with their names. Pure.
//!
//! Attributes that were found under a name are known as long as the tokens of the inode and of the name's directory are
//! held: who moves or removes the name takes the directory's alone. A kernel keeps them beside the inode, also for files
//! that are open and for working directories, so it isn't enough that its names end.

use super::table_bytes;
use model::InodeId;
use std::collections::BTreeSet;
use world::Map;

/// No more than tokens of inodes are held: with its token each is hidden.
#[derive(Default)]
pub(super) struct Shown {
    /// Where the name of each is.
    directories: Map<InodeId, InodeId>,
    by_directory: Map<InodeId, BTreeSet<InodeId>>,
}

impl Shown {
    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        // Sets are at least half full.
        table_bytes::<(InodeId, InodeId)>(self.directories.capacity())
            + self.directories.len() * 2 * size_of::<InodeId>()
            + table_bytes::<(InodeId, BTreeSet<InodeId>)>(self.by_directory.capacity())
    }

    /// From now on kernels may keep the attributes of an inode with its name in this directory.
    pub(super) fn show(&mut self, inode: InodeId, directory: InodeId) {
        match self.directories.insert(inode, directory) {
            Some(before) if before == directory => return,
            Some(before) => self.take_out(inode, before),
            None => {}
        }
        self.by_directory
            .entry(directory)
            .or_default()
            .insert(inode);
    }

    /// The name of an inode was found in this directory. Kernels keep what they have, wherever it is.
    pub(super) fn follow(&mut self, inode: InodeId, directory: InodeId) {
        if self.directories.contains_key(&inode) {
            self.show(inode, directory);
        }
    }

    /// Kernels don't keep an inode's attributes any more.
    pub(super) fn hide(&mut self, inode: InodeId) {
        if let Some(directory) = self.directories.remove(&inode) {
            self.take_out(inode, directory);
        }
    }

    /// Whether kernels may keep an inode's attributes.
    pub(super) fn contains(&self, inode: InodeId) -> bool {
        self.directories.contains_key(&inode)
    }

    /// Those with names in a directory of which kernels may keep attributes.
    pub(super) fn of(&self, directory: InodeId) -> Vec<InodeId> {
        let shown = self.by_directory.get(&directory);
        shown.map_or_else(Vec::new, |shown| shown.iter().copied().collect())
    }

    /// Kernels have dropped the attributes of these, whose names were in this directory. Those that were found elsewhere
    /// since may be kept again.
    pub(super) fn hide_in(&mut self, directory: InodeId, inodes: &[InodeId]) {
        for inode in inodes {
            if self.directories.get(inode) == Some(&directory) {
                self.hide(*inode);
            }
        }
    }

    fn take_out(&mut self, inode: InodeId, directory: InodeId) {
        if let Some(shown) = self.by_directory.get_mut(&directory) {
            shown.remove(&inode);
            if shown.is_empty() {
                self.by_directory.remove(&directory);
            }
        }
    }

    /// Those with names in a directory of which kernels may keep attributes; from now on they don't.
    pub(super) fn take(&mut self, directory: InodeId) -> Vec<InodeId> {
        let shown = self.by_directory.remove(&directory).unwrap_or_default();
        for inode in &shown {
            self.directories.remove(inode);
        }
        shown.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOVE: [InodeId; 2] = [InodeId(1), InodeId(2)];
    const INODE: InodeId = InodeId(7);

    #[test]
    fn an_inode_is_shown_where_its_name_is_until_a_token_goes() {
        let mut shown = Shown::default();
        shown.follow(INODE, ABOVE[0]);
        assert!(shown.take(ABOVE[0]).is_empty(), "nobody keeps anything");
        shown.show(INODE, ABOVE[0]);
        shown.show(InodeId(8), ABOVE[0]);
        shown.follow(INODE, ABOVE[1]);
        assert_eq!(shown.take(ABOVE[0]), [InodeId(8)]);
        shown.show(INODE, ABOVE[1]);
        assert_eq!(shown.take(ABOVE[1]), [INODE]);
        assert!(shown.take(ABOVE[1]).is_empty());
        shown.show(INODE, ABOVE[1]);
        shown.hide(INODE);
        shown.hide(INODE);
        assert!(shown.take(ABOVE[1]).is_empty());
        assert!(shown.directories.is_empty() && shown.by_directory.is_empty());
    }

    #[test]
    fn kernels_may_keep_what_is_in_a_directory_until_they_have_dropped_it() {
        let mut shown = Shown::default();
        let others = [InodeId(8), InodeId(9)];
        shown.show(INODE, ABOVE[0]);
        others.iter().for_each(|it| shown.show(*it, ABOVE[0]));
        let told = shown.of(ABOVE[0]);
        assert_eq!(told, [INODE, others[0], others[1]]);
        assert!(told.iter().all(|it| shown.contains(*it)));
        // One was found elsewhere meanwhile.
        shown.show(INODE, ABOVE[1]);
        shown.hide_in(ABOVE[0], &told);
        assert!(shown.contains(INODE) && !others.iter().any(|it| shown.contains(*it)));
        assert!(shown.of(ABOVE[0]).is_empty());
        assert_eq!(shown.of(ABOVE[1]), [INODE]);
    }
}
