//! What is known of attributes of directories, for kernels that ask for them by their numbers. Pure.

use super::{Asked, Learned, Memory};
use crate::known_names::directory::Named;
use model::{Attributes, FileKind, InodeId, TokenObject};
use std::sync::Arc;
use tokens::Moment;

/// What is known of a directory's attributes.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum LookedAt {
    /// They are these.
    Known(Attributes, Learned),
    /// The owner must be asked. With these tokens its answer could be kept.
    Unknown(Vec<TokenObject>),
}

/// The root of a file system, which has no name.
pub(super) fn is_root(inode: InodeId) -> bool {
    inode.number() == InodeId::ROOT.number()
}

impl Memory {
    /// What is known of a directory's attributes by its number: what is known under its name, which leads there.
    pub(in crate::known_names) fn look_at(&mut self, inode: InodeId, now: Moment) -> LookedAt {
        if let Some(known) = self.directories.get_mut(&inode) {
            known.was_used = true;
        }
        if let Some(held) = self.inodes.get_mut(&inode) {
            held.was_used = true;
        }
        match self.known_directory(inode) {
            Some((attributes, learned)) => LookedAt::Known(attributes, learned),
            None => LookedAt::Unknown(self.wanted_at(inode, now)),
        }
    }

    /// Where the name of a directory is, if that is known.
    pub(super) fn place(&self, inode: InodeId) -> Option<(InodeId, Arc<[u8]>, Named)> {
        let (directory, name) = self.places.of(inode)?;
        let named = self.directories.get(&directory)?.find(&name)??;
        (named.inode == inode).then_some((directory, name, named))
    }

    pub(super) fn known_directory(&self, inode: InodeId) -> Option<(Attributes, Learned)> {
        if is_root(inode) {
            let own = self.directories.get(&inode)?.since;
            let known = self.inodes.get(&inode)?.known.as_ref()?;
            return (known.own == own).then_some((known.attributes, Learned(known.learned)));
        }
        let (_, _, named) = self.place(inode)?;
        let attributes = self.known_attributes(&named)?;
        Some((attributes, Learned(named.learned)))
    }

    /// Tokens with which a directory's attributes could be known; nothing the first time, as of names.
    fn wanted_at(&mut self, inode: InodeId, now: Moment) -> Vec<TokenObject> {
        let is_wanted = is_root(inode) || (self.place(inode).is_some() && self.places.ask(inode));
        if !is_wanted {
            return Vec::new();
        }
        let both = [TokenObject::Inode(inode), TokenObject::Directory(inode)];
        let both = both.into_iter();
        both.filter(|object| self.wants(*object, now)).collect()
    }

    /// The owner has said an inode's attributes. Returns when they were learned; `None` if they can't be kept.
    pub(in crate::known_names) fn learn_attributes(
        &mut self,
        attributes: &Attributes,
        asked: Asked,
    ) -> Option<Learned> {
        let inode = attributes.inode;
        if attributes.kind != FileKind::Directory {
            return None;
        }
        if is_root(inode) {
            if !self.may_keep(attributes, asked) {
                return None;
            }
            let learned = self.next();
            self.keep(attributes, learned);
            return Some(Learned(learned));
        }
        let (directory, name, _) = self.place(inode)?;
        self.learn(directory, &name, Some(attributes), asked)
    }

    /// Whether a directory's attributes are still known as they were learned then. If yes, a kernel may keep them.
    pub(in crate::known_names) fn show_attributes(
        &mut self,
        inode: InodeId,
        learned: Learned,
    ) -> bool {
        let known = self.known_directory(inode);
        if known.is_none_or(|(_, known)| known != learned) {
            return false;
        }
        if let Some((directory, _, _)) = self.place(inode) {
            self.shown.show(inode, directory);
        }
        true
    }

    /// The inodes with names in this directory whose attributes kernels may have kept; from now on they don't.
    pub(in crate::known_names) fn take_shown(&mut self, directory: InodeId) -> Vec<InodeId> {
        self.shown.take(directory)
    }

    /// Kernels may keep an inode's access lists from now on. They drop them with its attributes, so they hear of its token
    /// although they may not keep these. Without a token they are told of nothing.
    pub(in crate::known_names) fn show_lists(&mut self, inode: InodeId) {
        if self.inodes.contains_key(&inode) && !self.is_shown(inode) {
            let place = self.place(inode);
            // Where its name is needn't be known: it is hidden with its own token.
            let directory = place.map_or(inode, |(directory, _, _)| directory);
            self.shown.show(inode, directory);
        }
    }

    /// Whether kernels may keep an inode's attributes. Those of a root are kept without a name.
    pub(in crate::known_names) fn is_shown(&self, inode: InodeId) -> bool {
        is_root(inode) || self.shown.contains(inode)
    }

    /// The inodes with names in this directory whose attributes kernels may keep.
    pub(in crate::known_names) fn shown_in(&self, directory: InodeId) -> Vec<InodeId> {
        self.shown.of(directory)
    }

    /// Kernels have dropped the attributes of these.
    pub(in crate::known_names) fn hide_in(&mut self, directory: InodeId, inodes: &[InodeId]) {
        self.shown.hide_in(directory, inodes);
    }

    /// Kernels keep nothing of an inode any more.
    pub(in crate::known_names) fn hide(&mut self, inode: InodeId) {
        self.shown.hide(inode);
    }

    /// A file is gone: whose change that was knows it. Its token is of no use any more.
    pub(in crate::known_names) fn note_gone(&mut self, inode: InodeId) {
        self.shown.hide(inode);
        if let Some(held) = self.inodes.get_mut(&inode) {
            held.was_used = false;
        }
    }
}
