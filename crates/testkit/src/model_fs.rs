//! The simplest possible file system, made of maps and byte vectors, to compare the real one with.
//!
//! It follows POSIX as far as the real one does and knows nothing of blocks, logs or disks. It
//! leaves out everything unpredictable (times, inode numbers, allocated bytes).

use model::{ErrorKind, FileKind, FileName};
use std::collections::BTreeMap;

/// Number of an inode in the model.
pub type Number = u64;
/// The root directory.
pub const ROOT: Number = 1;

/// Kind and content of an inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// A regular file and its bytes.
    File(Vec<u8>),
    /// A directory: its names, and its parent.
    Directory(BTreeMap<FileName, Number>, Number),
    /// A symbolic link.
    Symlink(Vec<u8>),
}

/// A whole file system as a user sees it: shapes as of [`ModelFs::shape`], and the content of files by
/// path.
pub type Survey = (BTreeMap<Vec<u8>, Shape>, BTreeMap<Vec<u8>, Vec<u8>>);

/// An inode: body, permissions, extended attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    /// Kind and content.
    pub body: Body,
    /// 0o7777.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The model. Two models are equal if a user couldn't distinguish them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelFs {
    /// All inodes, including open ones without names.
    pub inodes: BTreeMap<Number, Inode>,
    next: Number,
}

/// A refusal, as an errno.
pub type Refused = ErrorKind;

impl Default for ModelFs {
    fn default() -> Self {
        let root = Inode {
            body: Body::Directory(BTreeMap::new(), ROOT),
            mode: 0o755,
            links: 2,
            xattrs: BTreeMap::new(),
        };
        Self {
            inodes: BTreeMap::from([(ROOT, root)]),
            next: ROOT + 1,
        }
    }
}

impl ModelFs {
    /// The file system that a survey found, and its inodes by their first paths.
    ///
    /// # Panics
    /// If the survey isn't one of a file system: it has names without directories, say.
    pub fn from_survey(survey: &Survey) -> (Self, BTreeMap<Number, Vec<u8>>) {
        let (shapes, contents) = survey;
        let mut fs = Self::default();
        let mut numbers = BTreeMap::from([(Vec::new(), ROOT)]);
        let split = |path: &[u8]| {
            let at = path.iter().rposition(|byte| *byte == b'/');
            let at = at.expect("paths begin with a slash");
            let name = FileName::new(&path[at + 1..]).expect("names are names");
            (path[..at].to_vec(), name)
        };
        // A directory's path comes before those in it.
        for (path, shape) in shapes
            .iter()
            .filter(|(path, shape)| **path == shape.same_as)
        {
            let (parent, name) = split(path);
            let body = match shape.kind {
                FileKind::Directory => Body::Directory(BTreeMap::new(), ROOT),
                FileKind::Symlink => Body::Symlink(shape.target.clone()),
                _ => Body::File(contents[path].clone()),
            };
            let made = fs.create(numbers[&parent], &name, body, shape.mode);
            let made = made.expect("each path is there once");
            fs.inode_mut(made).xattrs = shape.xattrs.clone();
            numbers.insert(path.clone(), made);
        }
        for (path, shape) in shapes
            .iter()
            .filter(|(path, shape)| **path != shape.same_as)
        {
            let (parent, name) = split(path);
            let linked = fs.link(numbers[&shape.same_as], numbers[&parent], &name);
            linked.expect("each path is there once");
        }
        numbers.remove(&Vec::new());
        let paths = numbers.into_iter().map(|(path, number)| (number, path));
        (fs, paths.collect())
    }

    /// The inode.
    pub fn inode(&self, number: Number) -> &Inode {
        self.inodes
            .get(&number)
            .expect("the caller names inodes that exist")
    }

    fn inode_mut(&mut self, number: Number) -> &mut Inode {
        self.inodes
            .get_mut(&number)
            .expect("the caller names inodes that exist")
    }

    fn names(&self, directory: Number) -> &BTreeMap<FileName, Number> {
        match &self.inode(directory).body {
            Body::Directory(names, _) => names,
            _ => panic!("the caller names directories"),
        }
    }

    fn names_mut(&mut self, directory: Number) -> &mut BTreeMap<FileName, Number> {
        match &mut self.inode_mut(directory).body {
            Body::Directory(names, _) => names,
            _ => panic!("the caller names directories"),
        }
    }

    /// The kind of an inode.
    pub fn kind(&self, number: Number) -> FileKind {
        match self.inode(number).body {
            Body::File(_) => FileKind::File,
            Body::Directory(..) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
        }
    }

    /// Entries of a directory.
    pub fn entries(&self, directory: Number) -> Vec<(FileName, Number)> {
        self.names(directory)
            .iter()
            .map(|(name, number)| (name.clone(), *number))
            .collect()
    }

    /// Finds a name.
    pub fn lookup(&self, directory: Number, name: &FileName) -> Result<Number, Refused> {
        self.names(directory)
            .get(name)
            .copied()
            .ok_or(ErrorKind::NotFound)
    }

    /// Makes a file, directory or symbolic link.
    pub fn create(
        &mut self,
        directory: Number,
        name: &FileName,
        body: Body,
        mode: u32,
    ) -> Result<Number, Refused> {
        if self.names(directory).contains_key(name) {
            return Err(ErrorKind::Exists);
        }
        let number = self.next;
        self.next += 1;
        let (body, links) = match body {
            Body::Directory(..) => {
                self.inode_mut(directory).links += 1;
                (Body::Directory(BTreeMap::new(), directory), 2)
            }
            other => (other, 1),
        };
        self.inodes.insert(
            number,
            Inode {
                body,
                mode,
                links,
                xattrs: BTreeMap::new(),
            },
        );
        self.names_mut(directory).insert(name.clone(), number);
        Ok(number)
    }

    /// Adds a name.
    pub fn link(
        &mut self,
        inode: Number,
        directory: Number,
        name: &FileName,
    ) -> Result<(), Refused> {
        if self.names(directory).contains_key(name) {
            return Err(ErrorKind::Exists);
        }
        if matches!(self.inode(inode).body, Body::Directory(..)) {
            return Err(ErrorKind::NotPermitted);
        }
        self.inode_mut(inode).links += 1;
        self.names_mut(directory).insert(name.clone(), inode);
        Ok(())
    }

    /// Removes a name of something that isn't a directory.
    pub fn unlink(&mut self, directory: Number, name: &FileName) -> Result<(), Refused> {
        let number = self.lookup(directory, name)?;
        if self.kind(number) == FileKind::Directory {
            return Err(ErrorKind::IsDirectory);
        }
        self.names_mut(directory).remove(name);
        self.drop_name(number);
        Ok(())
    }

    /// Removes an empty directory.
    pub fn remove_directory(&mut self, directory: Number, name: &FileName) -> Result<(), Refused> {
        let number = self.lookup(directory, name)?;
        match &self.inode(number).body {
            Body::Directory(names, _) if names.is_empty() => {}
            Body::Directory(..) => return Err(ErrorKind::NotEmpty),
            _ => return Err(ErrorKind::NotDirectory),
        }
        self.names_mut(directory).remove(name);
        self.inode_mut(directory).links -= 1;
        self.inodes.remove(&number);
        Ok(())
    }

    fn drop_name(&mut self, number: Number) {
        let inode = self.inode_mut(number);
        inode.links -= 1;
        if inode.links == 0 {
            self.inodes.remove(&number);
        }
    }

    fn is_inside(&self, mut directory: Number, ancestor: Number) -> bool {
        loop {
            if directory == ancestor {
                return true;
            }
            if directory == ROOT {
                return false;
            }
            match self.inode(directory).body {
                Body::Directory(_, parent) => directory = parent,
                _ => panic!("parents are directories"),
            }
        }
    }

    /// Moves a name; `exchange` swaps, `replace` allows an existing target.
    pub fn rename(
        &mut self,
        from: (Number, &FileName),
        to: (Number, &FileName),
        replace: bool,
        exchange: bool,
    ) -> Result<(), Refused> {
        let moved = self.lookup(from.0, from.1)?;
        let target = self.names(to.0).get(to.1).copied();
        if exchange {
            return self.exchange(from, to, moved, target.ok_or(ErrorKind::NotFound)?);
        }
        if target.is_some() && !replace {
            return Err(ErrorKind::Exists);
        }
        let moves_directory = self.kind(moved) == FileKind::Directory;
        if moves_directory && self.is_inside(to.0, moved) {
            return Err(ErrorKind::InvalidArgument);
        }
        if let Some(target) = target {
            if target == moved {
                return Ok(());
            }
            match (moves_directory, self.kind(target) == FileKind::Directory) {
                (true, false) => return Err(ErrorKind::NotDirectory),
                (false, true) => return Err(ErrorKind::IsDirectory),
                (true, true) => {
                    if !self.names(target).is_empty() {
                        return Err(ErrorKind::NotEmpty);
                    }
                    self.names_mut(to.0).remove(to.1);
                    self.inode_mut(to.0).links -= 1;
                    self.inodes.remove(&target);
                }
                (false, false) => {
                    self.names_mut(to.0).remove(to.1);
                    self.drop_name(target);
                }
            }
        }
        self.names_mut(from.0).remove(from.1);
        self.names_mut(to.0).insert(to.1.clone(), moved);
        if moves_directory {
            self.reparent(moved, from.0, to.0);
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        from: (Number, &FileName),
        to: (Number, &FileName),
        a: Number,
        b: Number,
    ) -> Result<(), Refused> {
        let (a_is_directory, b_is_directory) = (
            self.kind(a) == FileKind::Directory,
            self.kind(b) == FileKind::Directory,
        );
        if (a_is_directory && self.is_inside(to.0, a))
            || (b_is_directory && self.is_inside(from.0, b))
        {
            return Err(ErrorKind::InvalidArgument);
        }
        self.names_mut(from.0).insert(from.1.clone(), b);
        self.names_mut(to.0).insert(to.1.clone(), a);
        if a_is_directory {
            self.reparent(a, from.0, to.0);
        }
        if b_is_directory {
            self.reparent(b, to.0, from.0);
        }
        Ok(())
    }

    fn reparent(&mut self, directory: Number, from: Number, to: Number) {
        if from != to {
            self.inode_mut(from).links -= 1;
            self.inode_mut(to).links += 1;
            if let Body::Directory(_, parent) = &mut self.inode_mut(directory).body {
                *parent = to;
            }
        }
    }

    /// A file's bytes.
    pub fn bytes(&self, file: Number) -> &Vec<u8> {
        match &self.inode(file).body {
            Body::File(bytes) => bytes,
            _ => panic!("the caller names files"),
        }
    }

    fn bytes_mut(&mut self, file: Number) -> &mut Vec<u8> {
        match &mut self.inode_mut(file).body {
            Body::File(bytes) => bytes,
            _ => panic!("the caller names files"),
        }
    }

    /// Writes; a gap before `offset` reads as zeros.
    pub fn write(&mut self, file: Number, offset: usize, data: &[u8]) {
        let bytes = self.bytes_mut(file);
        if bytes.len() < offset + data.len() {
            bytes.resize(offset + data.len(), 0);
        }
        bytes[offset..offset + data.len()].copy_from_slice(data);
    }

    /// Truncates or extends.
    pub fn truncate(&mut self, file: Number, size: usize) {
        self.bytes_mut(file).resize(size, 0);
    }

    /// Punches a hole or zeroes a range inside the file; with `extend` the file may grow (zero
    /// range, reserve).
    pub fn zero(&mut self, file: Number, offset: usize, length: usize, extend: bool) {
        let bytes = self.bytes_mut(file);
        if extend && bytes.len() < offset + length {
            bytes.resize(offset + length, 0);
        }
        let end = bytes.len().min(offset + length);
        if offset < end {
            bytes[offset..end].fill(0);
        }
    }

    /// copy_file_range; returns the bytes copied.
    pub fn copy_range(
        &mut self,
        from: Number,
        from_offset: usize,
        to: Number,
        to_offset: usize,
        length: usize,
    ) -> usize {
        let source = self.bytes(from);
        if from_offset >= source.len() {
            return 0;
        }
        let data = source[from_offset..source.len().min(from_offset + length)].to_vec();
        self.write(to, to_offset, &data);
        data.len()
    }

    /// Changes permissions.
    pub fn set_mode(&mut self, number: Number, mode: u32) {
        self.inode_mut(number).mode = mode;
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, number: Number, name: &[u8], value: &[u8]) {
        self.inode_mut(number)
            .xattrs
            .insert(name.to_vec(), value.to_vec());
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&mut self, number: Number, name: &[u8]) -> Result<(), Refused> {
        self.inode_mut(number)
            .xattrs
            .remove(name)
            .map(|_| ())
            .ok_or(ErrorKind::NoSuchAttribute)
    }

    /// All directories, the root first.
    pub fn directories(&self) -> Vec<Number> {
        self.of_kind(FileKind::Directory)
    }

    /// All regular files.
    pub fn files(&self) -> Vec<Number> {
        self.of_kind(FileKind::File)
    }

    fn of_kind(&self, kind: FileKind) -> Vec<Number> {
        self.inodes
            .keys()
            .copied()
            .filter(|number| self.kind(*number) == kind)
            .collect()
    }

    /// All paths of the tree with the inodes that they name. Paths of the same inode refer to the
    /// first one, so that hard links show. Content is left out.
    pub fn shape(&self) -> BTreeMap<Vec<u8>, Shape> {
        let mut out = BTreeMap::new();
        let mut first: BTreeMap<Number, Vec<u8>> = BTreeMap::new();
        self.walk(ROOT, &mut Vec::new(), &mut out, &mut first);
        out
    }

    fn walk(
        &self,
        directory: Number,
        path: &mut Vec<u8>,
        out: &mut BTreeMap<Vec<u8>, Shape>,
        first: &mut BTreeMap<Number, Vec<u8>>,
    ) {
        for (name, number) in self.names(directory) {
            let length = path.len();
            path.push(b'/');
            path.extend_from_slice(name.as_bytes());
            let inode = self.inode(*number);
            let same_as = first.entry(*number).or_insert_with(|| path.clone()).clone();
            let target = if let Body::Symlink(target) = &inode.body {
                target.clone()
            } else {
                Vec::new()
            };
            let shape = Shape {
                kind: self.kind(*number),
                mode: inode.mode,
                links: inode.links,
                target,
                same_as,
                xattrs: inode.xattrs.clone(),
            };
            out.insert(path.clone(), shape);
            if self.kind(*number) == FileKind::Directory {
                self.walk(*number, path, out, first);
            }
            path.truncate(length);
        }
    }
}

/// The inode at a path, without its content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Its kind.
    pub kind: FileKind,
    /// Permissions.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// The first path, in path order, of the same inode.
    pub same_as: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}
