//! Verbs on attributes: stat, chmod, chown, utimes, truncate, extended attributes, statfs.

use crate::client::Client;
use crate::inode::{Inner, InodeRef};
use crate::session::unexpected_reply;
use crate::types::FileSystemUsage;
use bytes::Bytes;
use model::operation::XattrMode;
use model::{
    Attributes, Error, ErrorKind, InodeId, Operation, Reply, Result, SetAttributes, limits,
};

impl Client {
    /// stat. Includes unpublished writes.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn get_attributes(&self, inode: InodeId) -> Result<Attributes> {
        let mut attributes = self.session.attributes(inode).await?;
        self.merge(&mut attributes);
        Ok(attributes)
    }

    /// chmod, chown, utimes, truncate, in any combination, atomically. Publishes the inode's dirty
    /// data first.
    ///
    /// # Errors
    /// `FileTooLarge`, `IsDirectory`, or `InvalidArgument` for a truncate of anything but a file;
    /// and errors of publishing.
    pub async fn set_attributes(&self, inode: InodeId, set: SetAttributes) -> Result<Attributes> {
        if set.atime.is_some() {
            self.forget_access(inode);
        }
        let Some(size) = set.size else {
            let state = self.inodes.find(inode);
            if let Some(state) = &state {
                self.publish_pending(state).await?;
            }
            let mut attributes = self
                .session
                .attributes_after(Operation::SetAttributes { inode, set })
                .await?;
            if set.mode.is_some() {
                self.note_grant(inode);
            }
            if let Some(state) = self.inodes.find(inode) {
                let mut inner = state.lock();
                if inner.known.is_some() {
                    inner.learn(&attributes);
                }
                inner.merge_into(&mut attributes);
            }
            return Ok(attributes);
        };
        if size > limits::FILE_BYTES_MAX {
            return Err(ErrorKind::FileTooLarge.into());
        }
        let state = self.inodes.get(inode);
        let exclusive = self.exclusive(&state).await?;
        // Data that the truncate will cut is published first too: left dirty, the flusher or an
        // fsync could freeze it meanwhile, and it would come back after the cut; dropped, it would
        // be lost if the cut fails.
        self.publish_pending(&state).await?;
        let attributes = self
            .session
            .attributes_after(Operation::SetAttributes { inode, set })
            .await?;
        if set.mode.is_some() {
            self.note_grant(inode);
        }
        {
            let mut inner = state.lock();
            self.cut_pages(inode, &mut inner, size);
            inner.learn(&attributes);
        }
        drop(exclusive);
        Ok(attributes)
    }

    /// The file now ends at `size`: drops everything beyond that.
    fn cut_pages(&self, inode: InodeId, inner: &mut Inner, size: u64) {
        let dirty = inner.dirty.cut(size, u64::MAX);
        self.pages.release(dirty);
        self.pages.recount_failing(inner);
        self.pages.uncache(inode, inner, size, u64::MAX);
        inner.extents.punch(size, u64::MAX);
        inner.mapping += 1;
        if inner.is_published() {
            inner.pending = None;
        }
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// `NoSuchAttribute`; `NotSupported` for a name outside user., trusted. and security. that
    /// isn't one of the two for access control lists.
    pub async fn get_xattr(&self, inode: InodeId, name: &[u8]) -> Result<Bytes> {
        let name = xattr_name(name)?;
        match self
            .session
            .execute(Operation::GetXattr { inode, name })
            .await?
        {
            Reply::Value(value) => Ok(value),
            other => unexpected_reply(&other),
        }
    }

    /// Names of the extended attributes.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn list_xattrs(&self, inode: InodeId) -> Result<Vec<Bytes>> {
        match self
            .session
            .execute(Operation::ListXattrs { inode })
            .await?
        {
            Reply::Names(names) => Ok(names),
            other => unexpected_reply(&other),
        }
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
        self.set_xattr_and_bits(inode, name, value, mode, false)
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
        let name = xattr_name(name)?;
        let value = Bytes::copy_from_slice(value);
        self.session
            .attributes_after(Operation::SetXattr {
                inode,
                name,
                value,
                mode,
                drop_setgid,
            })
            .await?;
        self.note_grant(inode);
        Ok(())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoSuchAttribute`.
    pub async fn remove_xattr(&self, inode: InodeId, name: &[u8]) -> Result<()> {
        let name = xattr_name(name)?;
        self.session
            .attributes_after(Operation::RemoveXattr { inode, name })
            .await
            .map(drop)
    }

    /// statfs.
    ///
    /// # Errors
    /// `Unavailable` while the metadata is being taken over.
    pub async fn usage(&self, inode: InodeId) -> Result<FileSystemUsage> {
        let _ = inode;
        self.session.check_open()?;
        let inodes = self.session.usage().await?.inodes;
        let usage = self.pool.usage();
        let used = usage.used + usage.held;
        Ok(FileSystemUsage {
            block_bytes: self.settings.block_bytes,
            capacity: usage.capacity,
            free: usage
                .capacity
                .saturating_sub(used)
                .max(usage.available_to_users),
            available: usage.available_to_users,
            inodes,
        })
    }

    /// Adds unpublished writes to attributes from the owner.
    pub(crate) fn merge(&self, attributes: &mut Attributes) {
        if self.has_accesses()
            && let Some(at) = self.unrecorded_access(attributes.inode)
        {
            attributes.atime = attributes.atime.max(at);
        }
        if self.pages.dirty() == 0 {
            return;
        }
        if let Some(state) = self.inodes.find(attributes.inode) {
            state.lock().merge_into(attributes);
        }
    }

    /// Makes sure that size and generation are known here.
    pub(crate) async fn learn(&self, state: &InodeRef) -> Result<()> {
        let attributes = self.session.attributes(state.id).await?;
        let mut inner = state.lock();
        if inner.known.is_none() {
            inner.learn(&attributes);
        }
        Ok(())
    }
}

fn xattr_name(name: &[u8]) -> Result<Bytes> {
    // The owner checks whether the name is supported.
    if name.len() > limits::XATTR_NAME_BYTES_MAX {
        return Err(Error::from(ErrorKind::BufferTooSmall));
    }
    Ok(Bytes::copy_from_slice(name))
}
