//! Files that are asked about before a program comes to them (`known_names/looks.rs` says when).
//!
//! A kernel looks a name up before it removes or opens the file. Of a directory that is delegated its names are known here, but
//! not the attributes of its files, which have tokens of their own. A program that goes through the files would wait for a
//! message with each of them. So many tokens are asked for at once, as for a listing, and the attributes come with them.

use super::Names;
use crate::known_names::KnownNames;
use model::operation::DirectoryEntry;
use model::{FileName, InodeId};
use std::sync::Arc;

impl Names {
    /// The owner must be asked about a file: that and others that are worth asking about at the same time. An owner in this
    /// process is asked by function calls, and for each when a program comes to it.
    pub(super) fn wanted_ahead(
        &self,
        known: &KnownNames,
        directory: InodeId,
        name: &FileName,
    ) -> Vec<DirectoryEntry> {
        let owner = self.session.owner();
        if owner.is_near() {
            return Vec::new();
        }
        let mut files = known.wanted_ahead(directory, name, self.session.standing().now());
        // Of those the owner has no attributes yet, and their tokens come with what makes them.
        files.retain(|file| !owner.is_untold(file.inode));
        files
    }

    /// Asks for the tokens of files of a directory, and learns the attributes that come with them.
    pub(super) async fn learn_ahead(
        &self,
        known: &Arc<KnownNames>,
        directory: InodeId,
        mut files: Vec<DirectoryEntry>,
    ) {
        let inodes = files.iter().map(|file| file.inode).collect();
        let asking = known.ask_to_know();
        for came in self.tokens.ask_to_know(known, inodes).await {
            asking.learn(directory, &mut files, &came);
        }
    }
}
