//! Files that are asked about together with one that a program looks at. Pure.

use super::Memory;
use model::operation::DirectoryEntry;
use model::{FileName, InodeId, TokenObject};
use tokens::Moment;

impl Memory {
    /// The owner must be asked about a file that a program looks at: that and others of its directory whose tokens are to be
    /// asked for at once, in the order of their numbers from that one on. Programs mostly go on with what was made next. Nothing
    /// unless the directory is delegated: nobody else may look at its names then, and hardly anybody has anything of its files.
    pub(in crate::known_names) fn wanted_ahead(
        &mut self,
        directory: InodeId,
        name: &[u8],
        now: Moment,
    ) -> Vec<DirectoryEntry> {
        let is_wanted =
            |memory: &Self, inode: InodeId| memory.wants(TokenObject::Inode(inode), now);
        let known = self.directories.get(&directory);
        let known = known.filter(|known| known.is_delegated);
        let named = known.and_then(|known| known.find(name)).flatten();
        let named = named.filter(|named| named.is_lone_file());
        let Some(first) = named.filter(|named| is_wanted(self, named.inode)) else {
            return Vec::new();
        };
        let known = self.directories.get_mut(&directory);
        let Some(most) = known.and_then(|known| known.looks.ask()) else {
            return Vec::new();
        };
        let files = self.directories[&directory].lone_files();
        let files = files.filter(|(_, named)| is_wanted(self, named.inode));
        let files = files.map(|(name, named)| {
            let distance = named.inode.0.wrapping_sub(first.inode.0);
            (distance, name, named)
        });
        let mut files: Vec<_> = files.collect();
        if files.len() > most {
            files.select_nth_unstable_by_key(most, |(distance, ..)| *distance);
            files.truncate(most);
        }
        files.sort_unstable_by_key(|(distance, ..)| *distance);
        // One may have two of the names.
        files.dedup_by_key(|(distance, ..)| *distance);
        let entries = files.into_iter().map(|(_, name, named)| DirectoryEntry {
            // Nobody has listed them.
            position: 0,
            name: FileName::new(name).expect("a name that was found"),
            inode: named.inode,
            kind: named.kind,
            attributes: None,
        });
        entries.collect()
    }
}
