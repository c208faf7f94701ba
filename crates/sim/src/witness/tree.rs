//! The simplest tree of names: what a witness replays changes on.

use super::{Answer, Call, Event, Seen};
use model::operation::RenameMode;
use model::{ErrorKind, FileKind, InodeId};
use std::collections::BTreeMap;

/// Inodes that nobody has seen yet, because the answer to their creation got lost, have numbers from here.
const UNSEEN: u64 = 1 << 63;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Node {
    kind: FileKind,
    mode: u32,
    links: u32,
    owner: u32,
    /// Made without a name, and never given one: that can still be done.
    is_unnamed: bool,
    xattr: Option<u32>,
    names: BTreeMap<String, InodeId>,
    parent: InodeId,
}

/// The tree. Inodes without names stay: programs may hold them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tree {
    nodes: BTreeMap<InodeId, Node>,
    unseen: u64,
}

/// Permissions of everything that is made.
pub(crate) const MODE: u32 = 0o755;

impl Tree {
    pub(super) fn new(root: InodeId) -> Self {
        let node = Node::new(FileKind::Directory, root);
        Self {
            nodes: BTreeMap::from([(root, node)]),
            unseen: UNSEEN,
        }
    }

    fn alive(&self, inode: InodeId) -> Option<&Node> {
        self.nodes.get(&inode).filter(|node| node.links > 0)
    }

    /// Every reason to refuse a call; a system may name any of them.
    pub(super) fn refusals(&self, call: &Call) -> Vec<ErrorKind> {
        let mut reasons = Vec::new();
        let mut entry = |directory: InodeId, name: &str| self.entry(directory, name, &mut reasons);
        match call {
            Call::Create {
                directory, name, ..
            } => {
                let is_taken = entry(*directory, name).is_some();
                reasons.extend(is_taken.then_some(ErrorKind::Exists));
            }
            Call::CreateUnnamed { directory } => {
                self.is_no_directory(*directory, &mut reasons);
            }
            Call::Link {
                inode,
                directory,
                name,
            } => {
                if entry(*directory, name).is_some() {
                    reasons.push(ErrorKind::Exists);
                }
                let node = self.nodes.get(inode);
                match node.filter(|node| node.links > 0 || node.is_unnamed) {
                    None => reasons.push(ErrorKind::NotFound),
                    Some(node) if node.kind == FileKind::Directory => {
                        reasons.push(ErrorKind::NotPermitted);
                    }
                    Some(_) => {}
                }
            }
            Call::Lookup { directory, name } => {
                let is_missing = entry(*directory, name).is_none();
                reasons.extend(is_missing.then_some(ErrorKind::NotFound));
            }
            Call::Unlink { directory, name } => match entry(*directory, name) {
                None => reasons.push(ErrorKind::NotFound),
                Some(inode) if self.is_directory(inode) => reasons.push(ErrorKind::IsDirectory),
                Some(_) => {}
            },
            Call::RemoveDirectory { directory, name } => match entry(*directory, name) {
                None => reasons.push(ErrorKind::NotFound),
                Some(inode) if !self.is_directory(inode) => reasons.push(ErrorKind::NotDirectory),
                Some(inode) if !self.nodes[&inode].names.is_empty() => {
                    reasons.push(ErrorKind::NotEmpty);
                }
                Some(_) => {}
            },
            Call::Rename { from, to, mode } => {
                let (moved, target) = (entry(from.0, &from.1), entry(to.0, &to.1));
                self.refusals_of_rename((from.0, moved), (to.0, target), *mode, &mut reasons);
            }
            Call::SetXattr { inode, value } => match self.nodes.get(inode) {
                None => reasons.push(ErrorKind::NotFound),
                Some(node) if value.is_none() && node.xattr.is_none() => {
                    reasons.push(ErrorKind::NoSuchAttribute);
                }
                Some(_) => {}
            },
            Call::List { directory } => {
                self.is_no_directory(*directory, &mut reasons);
            }
            Call::SetMode { inode, .. }
            | Call::SetOwner { inode, .. }
            | Call::SetTime { inode, .. }
            | Call::Stat { inode }
            | Call::GetXattr { inode } => {
                let is_missing = !self.nodes.contains_key(inode);
                reasons.extend(is_missing.then_some(ErrorKind::NotFound));
            }
            _ => {}
        }
        reasons
    }

    /// Whether a call may be refused so. Inodes without names are there as long as programs hold them,
    /// which the tree doesn't know.
    fn explains_refusal(&self, event: &Event, kind: ErrorKind) -> bool {
        let kind = of_missing(kind);
        let is_gone = |inode| self.alive(inode).is_none();
        let inode = event.call.inode();
        let mut gone = inode.is_some_and(|inode| !event.is_held && is_gone(inode));
        if let Call::Copy {
            from: (source, first),
            inode,
            cell,
            cells,
        } = event.call
        {
            let overlaps = source == inode && first.abs_diff(cell) < cells;
            if kind == ErrorKind::InvalidArgument && overlaps {
                return true;
            }
            gone |= source != inode && is_gone(source);
        }
        (gone && kind == ErrorKind::NotFound) || self.refusals(&event.call).contains(&kind)
    }

    fn refusals_of_rename(
        &self,
        (from, moved): (InodeId, Option<InodeId>),
        (to, target): (InodeId, Option<InodeId>),
        mode: RenameMode,
        reasons: &mut Vec<ErrorKind>,
    ) {
        let Some(moved) = moved else {
            reasons.push(ErrorKind::NotFound);
            return;
        };
        if self.is_directory(moved) && self.is_inside(to, moved) {
            reasons.push(ErrorKind::InvalidArgument);
        }
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => reasons.push(ErrorKind::Exists),
            (RenameMode::Exchange, None) => reasons.push(ErrorKind::NotFound),
            (RenameMode::Exchange, Some(target)) => {
                let is_inside = self.is_directory(target) && self.is_inside(from, target);
                reasons.extend(is_inside.then_some(ErrorKind::InvalidArgument));
            }
            (RenameMode::Replace, Some(target)) if target != moved => {
                match (self.is_directory(moved), self.is_directory(target)) {
                    (true, false) => reasons.push(ErrorKind::NotDirectory),
                    (false, true) => reasons.push(ErrorKind::IsDirectory),
                    _ => {}
                }
                // An ancestor of what is moved is one of those that aren't empty.
                if !self.nodes[&target].names.is_empty() {
                    reasons.push(ErrorKind::NotEmpty);
                }
            }
            _ => {}
        }
    }

    /// Looks a name up, and says why that may be impossible.
    fn entry(
        &self,
        directory: InodeId,
        name: &str,
        reasons: &mut Vec<ErrorKind>,
    ) -> Option<InodeId> {
        if self.is_no_directory(directory, reasons) {
            return None;
        }
        self.nodes[&directory].names.get(name).copied()
    }

    /// Whether this is no directory that is there, and why. A file that is in use without a name is neither.
    fn is_no_directory(&self, inode: InodeId, reasons: &mut Vec<ErrorKind>) -> bool {
        let node = self.nodes.get(&inode);
        let is_gone = node.is_none_or(|node| node.links == 0);
        let is_other = node.is_some_and(|node| node.kind != FileKind::Directory);
        reasons.extend(is_gone.then_some(ErrorKind::NotFound));
        reasons.extend(is_other.then_some(ErrorKind::NotDirectory));
        is_gone || is_other
    }

    fn is_directory(&self, inode: InodeId) -> bool {
        self.nodes[&inode].kind == FileKind::Directory
    }

    fn is_inside(&self, mut directory: InodeId, ancestor: InodeId) -> bool {
        while let Some(node) = self.nodes.get(&directory) {
            if directory == ancestor {
                return true;
            }
            if node.parent == directory {
                return false;
            }
            directory = node.parent;
        }
        false
    }

    /// Makes a change that succeeded: with this answer, or with any if that is unknown. `None` if it
    /// can't have succeeded so.
    pub(super) fn after(&self, call: &Call, answer: &Answer) -> Option<Self> {
        if !self.refusals(call).is_empty() {
            return None;
        }
        let mut tree = self.clone();
        match call {
            Call::Create {
                directory,
                name,
                kind,
            } => {
                let made = tree.number(answer)?;
                tree.nodes.insert(made, Node::new(*kind, *directory));
                tree.put(*directory, name, made);
            }
            Call::CreateUnnamed { directory } => {
                let made = tree.number(answer)?;
                let node = Node {
                    links: 0,
                    is_unnamed: true,
                    ..Node::new(FileKind::File, *directory)
                };
                tree.nodes.insert(made, node);
            }
            Call::Link {
                inode,
                directory,
                name,
            } => {
                tree.node(*inode).is_unnamed = false;
                tree.node(*inode).links += 1;
                tree.node(*directory).names.insert(name.clone(), *inode);
            }
            Call::Unlink { directory, name } => tree.drop_name(*directory, name),
            Call::RemoveDirectory { directory, name } => tree.drop_name(*directory, name),
            Call::Rename { from, to, mode } => tree.rename(from, to, *mode),
            Call::SetMode { inode, mode } => tree.node(*inode).mode = *mode,
            Call::SetOwner { inode, owner } => tree.node(*inode).owner = *owner,
            Call::SetXattr { inode, value } => tree.node(*inode).xattr = *value,
            _ => unreachable!("no change of the tree"),
        }
        let seen = |answer: &Answer| match answer {
            Answer::Inode(seen) => tree.shows(seen),
            _ => true,
        };
        seen(answer).then_some(tree)
    }

    /// The number of an inode that was made, if it can have this one.
    fn number(&mut self, answer: &Answer) -> Option<InodeId> {
        let seen = match answer {
            Answer::Inode(seen) => seen.inode,
            Answer::Leads(inode) => *inode,
            _ => {
                self.unseen += 1;
                InodeId(self.unseen)
            }
        };
        (!self.nodes.contains_key(&seen)).then_some(seen)
    }

    fn node(&mut self, inode: InodeId) -> &mut Node {
        self.nodes.get_mut(&inode).expect("looked at before")
    }

    fn rename(&mut self, from: &(InodeId, String), to: &(InodeId, String), mode: RenameMode) {
        let moved = self.nodes[&from.0].names[&from.1];
        let target = self.nodes[&to.0].names.get(&to.1).copied();
        if target == Some(moved) {
            return;
        }
        if mode == RenameMode::Exchange {
            let target = target.expect("looked at before");
            self.take(from.0, &from.1);
            self.take(to.0, &to.1);
            self.put(from.0, &from.1, target);
            self.put(to.0, &to.1, moved);
            return;
        }
        if target.is_some() {
            self.drop_name(to.0, &to.1);
        }
        self.take(from.0, &from.1);
        self.put(to.0, &to.1, moved);
    }

    /// Puts something that has no name, or one less than it has links, under a name.
    fn put(&mut self, directory: InodeId, name: &str, inode: InodeId) {
        if self.is_directory(inode) {
            self.node(inode).parent = directory;
            self.node(directory).links += 1;
        }
        let names = &mut self.node(directory).names;
        names.insert(name.to_string(), inode);
    }

    /// Takes it from there; its links stay.
    fn take(&mut self, directory: InodeId, name: &str) -> InodeId {
        let inode = self.node(directory).names.remove(name);
        let inode = inode.expect("looked at before");
        if self.is_directory(inode) {
            self.node(directory).links -= 1;
        }
        inode
    }

    fn drop_name(&mut self, directory: InodeId, name: &str) {
        let inode = self.take(directory, name);
        let node = self.node(inode);
        node.links = match node.kind {
            FileKind::Directory => 0,
            _ => node.links - 1,
        };
    }

    fn shows(&self, seen: &Seen) -> bool {
        let node = self.nodes.get(&seen.inode);
        node.is_some_and(|node| {
            (node.kind, node.mode, node.links, node.owner)
                == (seen.kind, seen.mode, seen.links, seen.owner)
        })
    }

    /// Whether this is what a look shows. Inodes that were made unseen may become seen by it.
    pub(super) fn explains(&mut self, event: &Event) -> bool {
        match (&event.call, &event.answer) {
            (_, Answer::Refused(kind)) => self.explains_refusal(event, *kind),
            (Call::Lookup { directory, name }, Answer::Inode(seen)) => {
                let mut reasons = Vec::new();
                let Some(found) = self.entry(*directory, name, &mut reasons) else {
                    return false;
                };
                self.meet(found, seen.inode) && self.shows(seen)
            }
            (Call::Lookup { directory, name }, Answer::Leads(inode)) => {
                let found = self.entry(*directory, name, &mut Vec::new());
                found.is_some_and(|found| self.meet(found, *inode))
            }
            (Call::Stat { .. }, Answer::Inode(seen)) => self.shows(seen),
            (Call::GetXattr { inode }, Answer::Xattr(value)) => {
                let node = self.nodes.get(inode);
                node.is_some_and(|node| node.xattr == *value)
            }
            (Call::List { directory }, Answer::Names(names)) => {
                // A removed one that its owner keeps, because somebody may have it open, is empty.
                let node = self.nodes.get(directory);
                let Some(node) = node.filter(|node| node.kind == FileKind::Directory) else {
                    return false;
                };
                let known = node.names.clone();
                known.len() == names.len()
                    && names.iter().all(|(name, inode)| {
                        known
                            .get(name)
                            .is_some_and(|known| self.meet(*known, *inode))
                    })
            }
            (call, answer) => unreachable!("{call:?} isn't answered with {answer:?}"),
        }
    }

    /// Whether two numbers can be of one inode; an unseen one gets its number now.
    fn meet(&mut self, known: InodeId, seen: InodeId) -> bool {
        if known == seen {
            return true;
        }
        if known.0 < UNSEEN || self.nodes.contains_key(&seen) {
            return false;
        }
        let node = self.nodes.remove(&known).expect("it has a name");
        self.nodes.insert(seen, node);
        for node in self.nodes.values_mut() {
            for inode in node.names.values_mut().filter(|inode| **inode == known) {
                *inode = seen;
            }
            if node.parent == known {
                node.parent = seen;
            }
        }
        true
    }
}

impl Node {
    fn new(kind: FileKind, parent: InodeId) -> Self {
        Self {
            kind,
            mode: match kind {
                FileKind::Symlink => 0o777,
                _ => MODE,
            },
            links: if kind == FileKind::Directory { 2 } else { 1 },
            owner: 0,
            is_unnamed: false,
            xattr: None,
            names: BTreeMap::new(),
            parent,
        }
    }
}

/// A directory or inode that is gone has two names for it.
fn of_missing(kind: ErrorKind) -> ErrorKind {
    match kind {
        ErrorKind::Stale => ErrorKind::NotFound,
        kind => kind,
    }
}
