//! The simplest possible file system, to compare with: nodes in a map, bytes in vectors.

use super::*;

pub(super) type NodeId = usize;

/// An inode of the model.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) kind: FileKind,
    pub(super) bytes: Vec<u8>,
    pub(super) names: BTreeMap<String, NodeId>,
    pub(super) xattrs: BTreeMap<String, Vec<u8>>,
    pub(super) links: u32,
    pub(super) parent: NodeId,
    pub(super) linkable: bool,
    pub(super) held: bool,
    /// Whether the real file's truncate is unfinished.
    pub(super) cutting: bool,
    pub(super) real: InodeId,
}

/// The model. A node exists as long as it has names or holders.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    pub(super) nodes: BTreeMap<NodeId, Node>,
    next: NodeId,
}

pub(super) type Answer<T> = Result<T, ErrorKind>;

impl Tree {
    pub(super) fn new() -> Self {
        let mut tree = Self::default();
        let root = tree.add(FileKind::Directory, 0, ROOT);
        tree.nodes.get_mut(&root).unwrap().links = 2;
        tree
    }

    pub(super) fn add(&mut self, kind: FileKind, parent: NodeId, real: InodeId) -> NodeId {
        let id = self.next;
        self.next += 1;
        let node = Node {
            kind,
            bytes: Vec::new(),
            names: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            links: 0,
            parent,
            linkable: false,
            held: false,
            cutting: false,
            real,
        };
        self.nodes.insert(id, node);
        id
    }

    pub(super) fn node(&mut self, id: NodeId) -> &mut Node {
        self.nodes.get_mut(&id).unwrap()
    }

    pub(super) fn directory(&self, id: NodeId) -> Answer<&Node> {
        let node = self.nodes.get(&id).ok_or(ErrorKind::Stale)?;
        if node.kind == FileKind::Directory {
            Ok(node)
        } else {
            Err(ErrorKind::NotDirectory)
        }
    }

    fn living(&self, id: NodeId) -> Answer<&Node> {
        let node = self.directory(id)?;
        if node.links > 0 {
            Ok(node)
        } else {
            Err(ErrorKind::NotFound)
        }
    }

    pub(super) fn may_create(&self, directory: NodeId, name: &str) -> Answer<()> {
        if self.living(directory)?.names.contains_key(name) {
            Err(ErrorKind::Exists)
        } else {
            Ok(())
        }
    }

    pub(super) fn create(
        &mut self,
        directory: NodeId,
        name: &str,
        kind: FileKind,
        real: InodeId,
    ) -> NodeId {
        let id = self.add(kind, directory, real);
        self.node(id).links = if kind == FileKind::Directory { 2 } else { 1 };
        self.node(directory).links += u32::from(kind == FileKind::Directory);
        self.node(directory).names.insert(name.into(), id);
        id
    }

    pub(super) fn link(&mut self, id: NodeId, directory: NodeId, name: &str) -> Answer<()> {
        self.may_create(directory, name)?;
        let node = self.node(id);
        if node.kind == FileKind::Directory {
            return Err(ErrorKind::NotPermitted);
        }
        if node.links == 0 && !node.linkable {
            return Err(ErrorKind::NotFound);
        }
        node.linkable = false;
        node.links += 1;
        self.node(directory).names.insert(name.into(), id);
        Ok(())
    }

    pub(super) fn remove(
        &mut self,
        directory: NodeId,
        name: &str,
        want_directory: bool,
    ) -> Answer<()> {
        let id = *self
            .directory(directory)?
            .names
            .get(name)
            .ok_or(ErrorKind::NotFound)?;
        let node = &self.nodes[&id];
        match (want_directory, node.kind == FileKind::Directory) {
            (true, false) => return Err(ErrorKind::NotDirectory),
            (false, true) => return Err(ErrorKind::IsDirectory),
            _ => {}
        }
        if !node.names.is_empty() {
            return Err(ErrorKind::NotEmpty);
        }
        self.node(directory).names.remove(name);
        self.lose_link(id, directory);
        Ok(())
    }

    pub(super) fn rename(
        &mut self,
        from: (NodeId, &str),
        to: (NodeId, &str),
        mode: RenameMode,
    ) -> Answer<()> {
        self.directory(from.0)?;
        self.living(to.0)?;
        let source = *self.nodes[&from.0]
            .names
            .get(from.1)
            .ok_or(ErrorKind::NotFound)?;
        let target = self.nodes[&to.0].names.get(to.1).copied();
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(ErrorKind::Exists),
            (RenameMode::Exchange, None) => return Err(ErrorKind::NotFound),
            (_, Some(target)) if target == source => return Ok(()),
            _ => {}
        }
        let is_directory = |tree: &Self, id: NodeId| tree.nodes[&id].kind == FileKind::Directory;
        if let (RenameMode::Replace, Some(target)) = (mode, target) {
            match (is_directory(self, source), is_directory(self, target)) {
                (true, false) => return Err(ErrorKind::NotDirectory),
                (false, true) => return Err(ErrorKind::IsDirectory),
                _ => {}
            }
        }
        if is_directory(self, source) && self.is_inside(to.0, source) {
            return Err(ErrorKind::InvalidArgument);
        }
        if mode == RenameMode::Exchange {
            let target = target.unwrap();
            if is_directory(self, target) && self.is_inside(from.0, target) {
                return Err(ErrorKind::InvalidArgument);
            }
            self.node(from.0).names.insert(from.1.into(), target);
            self.node(to.0).names.insert(to.1.into(), source);
            self.rehang(source, from.0, to.0);
            self.rehang(target, to.0, from.0);
            return Ok(());
        }
        if target.is_some_and(|target| !self.nodes[&target].names.is_empty()) {
            return Err(ErrorKind::NotEmpty);
        }
        self.node(from.0).names.remove(from.1);
        self.node(to.0).names.insert(to.1.into(), source);
        self.rehang(source, from.0, to.0);
        if let Some(target) = target {
            self.lose_link(target, to.0);
        }
        Ok(())
    }

    /// The last holder releases it.
    pub(super) fn release(&mut self, id: NodeId) {
        self.node(id).held = false;
        if self.nodes[&id].links == 0 {
            self.nodes.remove(&id);
        }
    }

    pub(super) fn logical(&self) -> u64 {
        self.nodes
            .values()
            .filter(|node| node.kind == FileKind::File)
            .map(|node| node.bytes.len() as u64)
            .sum()
    }

    fn is_inside(&self, mut id: NodeId, ancestor: NodeId) -> bool {
        while id != ancestor && id != 0 {
            id = self.nodes[&id].parent;
        }
        id == ancestor
    }

    fn rehang(&mut self, id: NodeId, from: NodeId, to: NodeId) {
        if self.nodes[&id].kind == FileKind::Directory {
            self.node(from).links -= 1;
            self.node(to).links += 1;
            self.node(id).parent = to;
        }
    }

    fn lose_link(&mut self, id: NodeId, directory: NodeId) {
        let is_directory = self.nodes[&id].kind == FileKind::Directory;
        self.node(directory).links -= u32::from(is_directory);
        let node = self.node(id);
        node.links = if is_directory { 0 } else { node.links - 1 };
        if node.links == 0 && !node.held {
            self.nodes.remove(&id);
        }
    }
}
