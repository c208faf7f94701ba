//! Verbs on names: lookup, create, link, unlink, rename, listings, symbolic links.

use crate::client::Client;
use crate::session::unexpected_reply;
use crate::types::Listing;
use bytes::Bytes;
use model::operation::{NewInode, RenameMode};
use model::{Attributes, FileName, InodeId, Operation, Reply, Result};

impl Client {
    /// Finds a name. Attributes include unpublished writes.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`.
    pub async fn lookup(&self, directory: InodeId, name: FileName) -> Result<Attributes> {
        self.entry(Operation::Lookup { directory, name }).await
    }

    /// The directory that contains a directory (".."); the root is its own parent.
    ///
    /// # Errors
    /// `NotDirectory`.
    pub async fn lookup_parent(&self, directory: InodeId) -> Result<Attributes> {
        self.entry(Operation::LookupParent { directory }).await
    }

    /// Makes an inode of any kind under a new name: file, directory (mkdir), symlink, device.
    /// Doesn't open it.
    ///
    /// # Errors
    /// `Exists` if the name is taken.
    pub async fn create(
        &self,
        directory: InodeId,
        name: FileName,
        new: NewInode,
    ) -> Result<Attributes> {
        self.entry(Operation::Create {
            directory,
            name,
            new,
        })
        .await
    }

    /// Makes a file and opens it (O_CREAT): `create` and `open` for the cost of one.
    ///
    /// # Errors
    /// `Exists` if the name is taken.
    pub async fn create_and_open(
        &self,
        directory: InodeId,
        name: FileName,
        new: NewInode,
    ) -> Result<Attributes> {
        let grants = self.grants.count();
        let attributes = self
            .entry(Operation::Create {
                directory,
                name,
                new,
            })
            .await?;
        self.hold_new(&attributes, grants).await?;
        Ok(attributes)
    }

    /// O_TMPFILE: makes a file without a name and opens it. `link` gives it a name; the last
    /// `release` without one removes it.
    ///
    /// # Errors
    /// `NotDirectory`.
    pub async fn create_unnamed(&self, directory: InodeId, new: NewInode) -> Result<Attributes> {
        let grants = self.grants.count();
        let attributes = self
            .entry(Operation::CreateUnnamed { directory, new })
            .await?;
        self.hold_new(&attributes, grants).await?;
        self.inodes.get(attributes.inode).lock().orphan = true;
        Ok(attributes)
    }

    /// Adds a name to an inode. Publishes the inode's dirty data first.
    ///
    /// # Errors
    /// `Exists`, `TooManyLinks`, `OtherFileset`, `NotPermitted` for directories.
    pub async fn link(
        &self,
        inode: InodeId,
        directory: InodeId,
        name: FileName,
    ) -> Result<Attributes> {
        if let Some(state) = self.inodes.find(inode) {
            self.publish_pending(&state).await?;
        }
        // Before the link: a concurrent last close must not discard the data as useless.
        let state = self.inodes.find(inode);
        let was_orphan = state
            .as_ref()
            .is_some_and(|state| std::mem::take(&mut state.lock().orphan));
        let linked = self
            .entry(Operation::Link {
                inode,
                directory,
                name,
            })
            .await;
        if let (Err(_), Some(state), true) = (&linked, state, was_orphan) {
            let mut inner = state.lock();
            inner.orphan = true;
            if inner.opens == 0 {
                self.discard_locked(inode, &mut inner);
            }
        }
        linked
    }

    /// Removes a name of anything but a directory. An open file lives until its last `release`.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`.
    pub async fn unlink(&self, directory: InodeId, name: FileName) -> Result<()> {
        self.remove(Operation::Unlink { directory, name }).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`.
    pub async fn remove_directory(&self, directory: InodeId, name: FileName) -> Result<()> {
        self.remove(Operation::RemoveDirectory { directory, name })
            .await
    }

    /// Moves a name. Publishes the moved inode's data first, so that after a crash the new name
    /// never lacks the data.
    ///
    /// # Errors
    /// `NotFound`, `Exists` (with `NoReplace`), `NotEmpty`, `OtherFileset`,
    /// `InvalidArgument` for a directory into itself.
    pub async fn rename(
        &self,
        from_directory: InodeId,
        from_name: FileName,
        to_directory: InodeId,
        to_name: FileName,
        mode: RenameMode,
    ) -> Result<()> {
        self.publish_named(from_directory, &from_name).await?;
        if mode == RenameMode::Exchange {
            self.publish_named(to_directory, &to_name).await?;
        }
        let operation = Operation::Rename {
            from_directory,
            from_name,
            to_directory,
            to_name,
            mode,
        };
        match self.session.execute(operation).await? {
            Reply::Renamed {
                target, orphaned, ..
            } => {
                if let Some(target) = target {
                    self.note_removed(&target, orphaned);
                }
                Ok(())
            }
            other => unexpected_reply(&other),
        }
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `InvalidArgument` if it isn't a symbolic link.
    pub async fn read_link(&self, inode: InodeId) -> Result<Bytes> {
        match self.session.execute(Operation::ReadLink { inode }).await? {
            Reply::Target(target) => Ok(target),
            other => unexpected_reply(&other),
        }
    }

    /// Part of a directory: the entries after position `after` (0: from the start), at most
    /// `limit`. Without "." and ".." (see [`Listing`]); with attributes if requested.
    ///
    /// # Errors
    /// `NotDirectory`.
    pub async fn read_directory(
        &self,
        directory: InodeId,
        after: u64,
        limit: u32,
        with_attributes: bool,
    ) -> Result<Listing> {
        let operation = Operation::ReadDirectory {
            directory,
            after,
            limit,
            with_attributes,
        };
        match self.session.execute(operation).await? {
            Reply::Listing { mut entries, end } => {
                let attributes = entries
                    .iter_mut()
                    .filter_map(|entry| entry.attributes.as_mut());
                attributes.for_each(|attributes| self.merge(attributes));
                Ok(Listing { entries, end })
            }
            other => unexpected_reply(&other),
        }
    }

    async fn entry(&self, operation: Operation) -> Result<Attributes> {
        match self.session.execute(operation).await? {
            Reply::Entry { mut attributes, .. } => {
                self.merge(&mut attributes);
                Ok(attributes)
            }
            other => unexpected_reply(&other),
        }
    }

    async fn remove(&self, operation: Operation) -> Result<()> {
        match self.session.execute(operation).await? {
            Reply::Removed {
                attributes,
                orphaned,
                ..
            } => {
                self.note_removed(&attributes, orphaned);
                Ok(())
            }
            other => unexpected_reply(&other),
        }
    }

    /// An inode lost a name. If that was its last, its data is useless: now, or after its last
    /// holder.
    fn note_removed(&self, attributes: &Attributes, orphaned: bool) {
        let is_gone = attributes.links == 0
            || (attributes.kind == model::FileKind::Directory && attributes.links < 2);
        if !is_gone {
            return;
        }
        let Some(state) = self.inodes.find(attributes.inode) else {
            return;
        };
        if orphaned {
            state.lock().orphan = true;
        } else {
            self.discard(&state);
        }
    }

    async fn publish_named(&self, directory: InodeId, name: &FileName) -> Result<()> {
        if self.pages.dirty() == 0 {
            return Ok(());
        }
        let operation = Operation::Lookup {
            directory,
            name: name.clone(),
        };
        let Reply::Entry { attributes, .. } = self.session.execute(operation).await? else {
            return Ok(());
        };
        match self.inodes.find(attributes.inode) {
            Some(state) => self.publish_pending(&state).await,
            None => Ok(()),
        }
    }
}
