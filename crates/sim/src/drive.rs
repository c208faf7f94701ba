//! Performs actions through a client and returns the results that a user sees.

use crate::action::{Action, Seen, content};
use bytes::Bytes;
use client::{Allocate, Client};
use model::{
    Error, FileKind, FileName, InodeId, Result, SetAttributes,
    operation::{NewInode, RenameMode, XattrMode},
};
use std::{collections::BTreeMap, sync::Arc};
use testkit::model_fs::{Number, ROOT};

/// A client, and its inode ids for the model's inode numbers.
pub struct Driver {
    client: Arc<Client>,
    inodes: BTreeMap<Number, InodeId>,
}

impl Driver {
    /// A driver for a client whose file system is empty.
    pub fn new(client: Arc<Client>) -> Self {
        Self {
            client,
            inodes: BTreeMap::from([(ROOT, InodeId::ROOT)]),
        }
    }

    /// A driver for a client of a file system whose inodes are known.
    pub fn with(client: Arc<Client>, inodes: BTreeMap<Number, InodeId>) -> Self {
        Self { client, inodes }
    }

    /// The inodes by their numbers in the model.
    pub fn inodes(&self) -> &BTreeMap<Number, InodeId> {
        &self.inodes
    }

    fn id(&self, number: Number) -> InodeId {
        self.inodes[&number]
    }

    /// Performs an action. `made` is the model's number of the inode that it creates, if any.
    ///
    /// # Errors
    /// Errors that aren't POSIX refusals (data lost, shutting down).
    pub async fn run(&mut self, action: &Action, made: Option<Number>) -> Result<Seen> {
        match self.attempt(action, made).await {
            Ok(seen) => Ok(seen),
            Err(error) if error.advice() == model::Advice::FixRequest => {
                Ok(Seen::Refused(error.kind()))
            }
            Err(error) => Err(error.while_doing(format!("{action:?}"))),
        }
    }

    async fn make(
        &mut self,
        directory: Number,
        name: &FileName,
        kind: FileKind,
        mode: u32,
        target: &[u8],
        made: Option<Number>,
    ) -> Result<Seen> {
        let new = NewInode {
            kind,
            mode,
            uid: 0,
            gid: 0,
            umask: 0,
            rdev: 0,
            target: Bytes::copy_from_slice(target),
        };
        let attributes = self
            .client
            .create(self.id(directory), name.clone(), new)
            .await?;
        let Some(number) = made else {
            return Err(Error::new(
                model::ErrorKind::Unavailable,
                "the client created what the model refuses",
            ));
        };
        self.inodes.insert(number, attributes.inode);
        Ok(Seen::Made(number))
    }

    async fn attempt(&mut self, action: &Action, made: Option<Number>) -> Result<Seen> {
        let client = self.client.clone();
        match action {
            Action::Create {
                directory,
                name,
                mode,
            } => {
                self.make(*directory, name, FileKind::File, *mode, b"", made)
                    .await
            }
            Action::MakeDirectory {
                directory,
                name,
                mode,
            } => {
                self.make(*directory, name, FileKind::Directory, *mode, b"", made)
                    .await
            }
            Action::MakeSymlink {
                directory,
                name,
                target,
            } => {
                self.make(*directory, name, FileKind::Symlink, 0o777, target, made)
                    .await
            }
            Action::Link {
                inode,
                directory,
                name,
            } => client
                .link(self.id(*inode), self.id(*directory), name.clone())
                .await
                .map(|_| Seen::Done),
            Action::Unlink { directory, name } => client
                .unlink(self.id(*directory), name.clone())
                .await
                .map(|()| Seen::Done),
            Action::RemoveDirectory { directory, name } => client
                .remove_directory(self.id(*directory), name.clone())
                .await
                .map(|()| Seen::Done),
            Action::Rename {
                from,
                to,
                replace,
                exchange,
            } => {
                let mode = match (replace, exchange) {
                    (_, true) => RenameMode::Exchange,
                    (true, false) => RenameMode::Replace,
                    (false, false) => RenameMode::NoReplace,
                };
                client
                    .rename(
                        self.id(from.0),
                        from.1.clone(),
                        self.id(to.0),
                        to.1.clone(),
                        mode,
                    )
                    .await
                    .map(|()| Seen::Done)
            }
            Action::SetMode { inode, mode } => {
                let set = SetAttributes {
                    mode: Some(*mode),
                    ..SetAttributes::default()
                };
                client
                    .set_attributes(self.id(*inode), set)
                    .await
                    .map(|_| Seen::Done)
            }
            Action::SetXattr { inode, name, value } => client
                .set_xattr(self.id(*inode), name, value, XattrMode::Set)
                .await
                .map(|()| Seen::Done),
            Action::RemoveXattr { inode, name } => client
                .remove_xattr(self.id(*inode), name)
                .await
                .map(|()| Seen::Done),
            Action::List { directory } => self.list(self.id(*directory)).await.map(Seen::Names),
            Action::Fsync { inode } => client
                .fsync(self.id(*inode), false)
                .await
                .map(|()| Seen::Done),
            Action::SyncAll => client.sync_all().await.map(|()| Seen::Done),
            content_action => self.attempt_content(content_action).await,
        }
    }

    async fn attempt_content(&self, action: &Action) -> Result<Seen> {
        let client = &self.client;
        match action {
            Action::Write {
                file,
                offset,
                seed,
                length,
            } => client
                .write(self.id(*file), *offset as u64, &content(*seed, *length))
                .await
                .map(|()| Seen::Done),
            Action::Append { file, seed, length } => client
                .append(self.id(*file), &content(*seed, *length))
                .await
                .map(|at| Seen::Count(at as usize)),
            Action::Truncate { file, size } => {
                let set = SetAttributes {
                    size: Some(*size as u64),
                    ..SetAttributes::default()
                };
                client
                    .set_attributes(self.id(*file), set)
                    .await
                    .map(|_| Seen::Done)
            }
            Action::Punch {
                file,
                offset,
                length,
            } => client
                .allocate(
                    self.id(*file),
                    Allocate::Punch,
                    *offset as u64,
                    *length as u64,
                )
                .await
                .map(|()| Seen::Done),
            Action::Zero {
                file,
                offset,
                length,
            } => client
                .allocate(
                    self.id(*file),
                    Allocate::Zero { keep_size: false },
                    *offset as u64,
                    *length as u64,
                )
                .await
                .map(|()| Seen::Done),
            Action::Reserve {
                file,
                offset,
                length,
            } => client
                .allocate(
                    self.id(*file),
                    Allocate::Reserve { keep_size: false },
                    *offset as u64,
                    *length as u64,
                )
                .await
                .map(|()| Seen::Done),
            Action::CopyRange {
                from,
                from_offset,
                to,
                to_offset,
                length,
            } => {
                let mut done = 0;
                loop {
                    let (from_at, to_at) = ((from_offset + done) as u64, (to_offset + done) as u64);
                    let step = client
                        .copy_range(
                            self.id(*from),
                            from_at,
                            self.id(*to),
                            to_at,
                            (length - done) as u64,
                        )
                        .await?;
                    done += step as usize;
                    if step == 0 || done == *length {
                        return Ok(Seen::Count(done));
                    }
                }
            }
            Action::Read {
                file,
                offset,
                length,
            } => self
                .read(self.id(*file), *offset, *length)
                .await
                .map(Seen::Bytes),
            other => unreachable!("{other:?} doesn't touch content"),
        }
    }

    async fn read(&self, inode: InodeId, offset: usize, length: usize) -> Result<Vec<u8>> {
        let pieces = self.client.read(inode, offset as u64, length).await?;
        Ok(pieces.concat())
    }

    /// Lists a whole directory in small steps, so that cookies are used.
    async fn list(&self, directory: InodeId) -> Result<BTreeMap<FileName, FileKind>> {
        let mut names = BTreeMap::new();
        let mut after = 0;
        loop {
            let listing = self
                .client
                .read_directory(directory, after, 7, false)
                .await?;
            for entry in &listing.entries {
                assert!(entry.position > after, "positions increase");
                after = entry.position;
                let twice = names.insert(entry.name.clone(), entry.kind).is_some();
                assert!(!twice, "{} is listed twice", entry.name);
            }
            if listing.end {
                return Ok(names);
            }
        }
    }
}

/// The whole content of a file system, read through a client: paths, attributes, content.
pub mod survey {
    use super::{BTreeMap, Client, FileKind, InodeId, Result};
    use model::FileName;
    use testkit::model_fs::{Shape, Survey};

    /// Reads everything below a root directory.
    ///
    /// # Errors
    /// The first read that fails.
    pub async fn take(client: &Client, root: InodeId) -> Result<Survey> {
        let mut shapes = BTreeMap::new();
        let mut contents = BTreeMap::new();
        let mut first: BTreeMap<InodeId, Vec<u8>> = BTreeMap::new();
        // Depth first in name order, like the model, so that `same_as` agrees.
        let mut to_do = vec![(root, Vec::new(), FileKind::Directory, true)];
        while let Some((inode, path, kind, is_root)) = to_do.pop() {
            if !is_root {
                let same_as = first.entry(inode).or_insert_with(|| path.clone()).clone();
                shapes.insert(path.clone(), shape(client, inode, kind, same_as).await?);
            }
            match kind {
                FileKind::Directory => {
                    let mut entries = client.read_directory(inode, 0, 1024, true).await?.entries;
                    entries.sort_by(|a, b| b.name.cmp(&a.name));
                    for entry in entries {
                        let path = [path.as_slice(), b"/", entry.name.as_bytes()].concat();
                        to_do.push((entry.inode, path, entry.kind, false));
                    }
                }
                FileKind::File => {
                    let size = client.get_attributes(inode).await?.size;
                    let pieces = client.read(inode, 0, size as usize).await?;
                    let bytes = pieces.concat();
                    assert!(bytes.len() as u64 == size, "a file reads to its size");
                    contents.insert(path, bytes);
                }
                _ => {}
            }
        }
        Ok((shapes, contents))
    }

    /// The inode at a path of a survey of a root directory.
    ///
    /// # Errors
    /// The first lookup that fails.
    pub async fn find(client: &Client, root: InodeId, path: &[u8]) -> Result<InodeId> {
        let mut inode = root;
        for name in path.split(|byte| *byte == b'/').skip(1) {
            let name = FileName::new(name).expect("names are names");
            inode = client.lookup(inode, name).await?.inode;
        }
        Ok(inode)
    }

    async fn shape(
        client: &Client,
        inode: InodeId,
        kind: FileKind,
        same_as: Vec<u8>,
    ) -> Result<Shape> {
        let attributes = client.get_attributes(inode).await?;
        assert!(attributes.kind == kind, "entry and inode agree on the kind");
        let mut xattrs = BTreeMap::new();
        for name in client.list_xattrs(inode).await? {
            let value = client.get_xattr(inode, &name).await?;
            xattrs.insert(name.to_vec(), value.to_vec());
        }
        let target = if kind == FileKind::Symlink {
            client.read_link(inode).await?.to_vec()
        } else {
            Vec::new()
        };
        Ok(Shape {
            kind,
            mode: attributes.mode,
            links: attributes.links,
            target,
            same_as,
            xattrs,
        })
    }
}

/// Creating many files, and removing everything.
pub mod many_files {
    use super::{Client, FileKind, InodeId, Result};
    use model::FileName;
    use testkit::inodes::new_inode;

    /// Creates empty files in a new folder.
    ///
    /// # Panics
    /// If a file can't be created.
    pub async fn make(client: &Client, files: u32) {
        let name = |text: String| FileName::new(text.as_bytes()).expect("a short plain name");
        let folder = client
            .create(
                InodeId::ROOT,
                name("crowd".into()),
                new_inode(FileKind::Directory),
            )
            .await
            .expect("a folder can be made")
            .inode;
        for file in 0..files {
            client
                .create(
                    folder,
                    name(format!("file{file}")),
                    new_inode(FileKind::File),
                )
                .await
                .expect("a file can be made");
        }
    }

    /// Removes everything below the root.
    ///
    /// # Errors
    /// The first removal that fails.
    pub async fn remove_all(client: &Client) -> Result<()> {
        // A directory is visited again after its entries, which have been removed by then.
        let mut to_do = vec![(InodeId::ROOT, None)];
        while let Some((directory, name)) = to_do.pop() {
            let entries = client
                .read_directory(directory, 0, 1024, false)
                .await?
                .entries;
            if entries.is_empty() {
                if let Some((parent, name)) = name {
                    client.remove_directory(parent, name).await?;
                    continue;
                }
                return Ok(());
            }
            to_do.push((directory, name));
            for entry in entries {
                if entry.kind == FileKind::Directory {
                    to_do.push((entry.inode, Some((directory, entry.name))));
                } else {
                    client.unlink(directory, entry.name).await?;
                }
            }
        }
        Ok(())
    }
}
