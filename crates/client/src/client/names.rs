//! Verbs on names: lookup, create, link, unlink, rename, listings, symbolic links.

use super::Client;
use crate::kernels::{Found, Validity};
use crate::types::Listing;
use bytes::Bytes;
use model::operation::{NewInode, RenameMode};
use model::{Attributes, ErrorKind, FileName, InodeId, Operation, Result};

impl Client {
    /// Finds a name. Attributes include unpublished writes.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`.
    pub async fn lookup(&self, directory: InodeId, name: FileName) -> Result<Attributes> {
        if let Some(known) = self.names.known() {
            // Boxed: a client in its owner's process pays nothing for it.
            return match Box::pin(self.names.lookup(known, directory, name)).await? {
                Found::Entry(attributes, _) => Ok(attributes),
                Found::Missing(_) => Err(ErrorKind::NotFound.into()),
            };
        }
        self.names
            .entry(Operation::Lookup { directory, name })
            .await
    }

    /// As [`Client::lookup`], for a kernel that keeps the answer for as long as it may.
    ///
    /// # Errors
    /// As `lookup`, but for a name that doesn't exist.
    pub async fn lookup_to_keep(&self, directory: InodeId, name: FileName) -> Result<Found> {
        if let Some(known) = self.names.known() {
            return Box::pin(self.names.lookup(known, directory, name)).await;
        }
        let asked = self.asked();
        let found = self.names.entry(Operation::Lookup { directory, name });
        match found.await {
            Ok(attributes) => {
                let valid = self.valid_since(asked);
                let valid = Validity {
                    name: valid,
                    attributes: valid,
                };
                Ok(Found::Entry(attributes, valid))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok(Found::Missing(self.valid_since(asked)))
            }
            Err(error) => Err(error),
        }
    }

    /// The directory that contains a directory (".."); the root is its own parent.
    ///
    /// # Errors
    /// `NotDirectory`.
    pub async fn lookup_parent(&self, directory: InodeId) -> Result<Attributes> {
        self.names
            .entry(Operation::LookupParent { directory })
            .await
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
        self.names.create((directory, name), new, false).await
    }

    /// Makes a file and opens it (O_CREAT), in one step: a name that another client removes meanwhile leaves the
    /// file to this one until its `release`.
    ///
    /// # Errors
    /// `Exists` if the name is taken.
    pub async fn create_and_open(
        &self,
        directory: InodeId,
        name: FileName,
        new: NewInode,
    ) -> Result<Attributes> {
        self.names.create((directory, name), new, true).await
    }

    /// O_TMPFILE: makes a file without a name and opens it. `link` gives it a name; the last
    /// `release` without one removes it.
    ///
    /// # Errors
    /// `NotDirectory`.
    pub async fn create_unnamed(&self, directory: InodeId, new: NewInode) -> Result<Attributes> {
        self.names.create_unnamed(directory, new).await
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
        self.names.link(inode, directory, name).await
    }

    /// Removes a name of anything but a directory. An open file lives until its last `release`.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`.
    pub async fn unlink(&self, directory: InodeId, name: FileName) -> Result<()> {
        let unlink = Operation::Unlink { directory, name };
        self.names.remove(directory, unlink).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`.
    pub async fn remove_directory(&self, directory: InodeId, name: FileName) -> Result<()> {
        let remove = Operation::RemoveDirectory { directory, name };
        self.names.remove(directory, remove).await
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
        let (from, to) = ((from_directory, from_name), (to_directory, to_name));
        self.names.rename(from, to, mode).await
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `InvalidArgument` if it isn't a symbolic link.
    pub async fn read_link(&self, inode: InodeId) -> Result<Bytes> {
        self.names.read_link(inode).await
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
        self.names
            .list(directory, after, limit, with_attributes)
            .await
    }
}
