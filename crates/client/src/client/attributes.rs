//! Verbs on attributes: stat, chmod, chown, utimes, truncate, extended attributes, statfs.

use super::Client;
use crate::types::FileSystemUsage;
use bytes::Bytes;
use model::acl::is_list;
use model::operation::XattrMode;
use model::{Attributes, InodeId, Privileges, Result, SetAttributes};
use std::time::Duration;

impl Client {
    /// stat. Includes unpublished writes.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn get_attributes(&self, inode: InodeId) -> Result<Attributes> {
        self.attributes.get(inode).await
    }

    /// As [`Client::get_attributes`], for a kernel that keeps the answer for so long.
    ///
    /// # Errors
    /// As `get_attributes`.
    pub async fn get_attributes_to_keep(&self, inode: InodeId) -> Result<(Attributes, Duration)> {
        if let Some(known) = self.names.known() {
            return Box::pin(self.names.attributes(known, inode)).await;
        }
        let asked = self.asked();
        let attributes = self.attributes.get(inode).await?;
        Ok((attributes, self.valid_since(asked)))
    }

    /// chmod, chown, utimes, truncate, in any combination, atomically. Publishes the inode's dirty
    /// data first.
    ///
    /// # Errors
    /// `FileTooLarge`, `IsDirectory`, or `InvalidArgument` for a truncate of anything but a file;
    /// and errors of publishing.
    pub async fn set_attributes(&self, inode: InodeId, set: SetAttributes) -> Result<Attributes> {
        self.attributes.set(inode, set).await
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `NoSuchAttribute`; `NotSupported` for a name outside user., trusted. and security. that
    /// isn't one of the two for access control lists.
    pub async fn get_xattr(&self, inode: InodeId, name: &[u8]) -> Result<Bytes> {
        // Before the answer: the kernel keeps lists beside the attributes of stat, and must hear of changes that come after it.
        if let Some(known) = self.names.known().filter(|_| is_list(name)) {
            known.show_lists(inode);
        }
        self.attributes.get_xattr(inode, name).await
    }

    /// Names of the extended attributes.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn list_xattrs(&self, inode: InodeId) -> Result<Vec<Bytes>> {
        self.attributes.list_xattrs(inode).await
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// `Exists` or `NoSuchAttribute` as the mode requires, `NoSpace` above 64 KiB per inode.
    pub async fn set_xattr(
        &self,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.attributes
            .set_xattr(inode, name, value, mode, false)
            .await
    }

    /// As [`Client::set_xattr`]; `drop_setgid` also clears the setgid bit, as needed when a user
    /// outside the inode's group sets an access ACL.
    ///
    /// # Errors
    /// As [`Client::set_xattr`].
    pub async fn set_xattr_and_bits(
        &self,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        drop_setgid: bool,
    ) -> Result<()> {
        self.attributes
            .set_xattr(inode, name, value, mode, drop_setgid)
            .await
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoSuchAttribute`.
    pub async fn remove_xattr(&self, inode: InodeId, name: &[u8]) -> Result<()> {
        self.attributes.remove_xattr(inode, name).await
    }

    /// statfs.
    ///
    /// # Errors
    /// `Unavailable` while the metadata is being taken over.
    pub async fn usage(&self, inode: InodeId) -> Result<FileSystemUsage> {
        let _ = inode;
        self.attributes.usage(self.settings.block_bytes).await
    }

    /// Drops the privileges that a change of the inode's bytes must not leave, before that change.
    /// True if the mode may have changed: cached modes must be dropped.
    ///
    /// # Errors
    /// `Stale` if the inode is gone; then nothing may be changed.
    pub async fn drop_privileges(&self, inode: InodeId, privileges: Privileges) -> Result<bool> {
        self.rights.drop_from(inode, privileges).await
    }
}
