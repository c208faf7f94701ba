//! Attributes of inodes: stat, chmod, chown, utimes, truncate, extended attributes, statfs.

use crate::atime::Accesses;
use crate::owner::Late;
use crate::page_pool::{Look, PagePool};
use crate::privileges::Rights;
use crate::session::{Session, unexpected_reply};
use crate::tokens::{Tokens, Unheard};
use crate::types::FileSystemUsage;
use crate::write_behind::WriteBehind;
use bytes::Bytes;
use model::operation::XattrMode;
use model::{
    Attributes, Error, ErrorKind, InodeId, Operation, Reply, Result, SetAttributes, limits,
};
use pool::Pool;
use std::sync::Arc;

/// How often the owner is asked because written data was published meanwhile. Each time a program has
/// written and all of it was published.
const ASKED_MAX: usize = 64;

/// The attributes of inodes.
pub(crate) struct InodeAttributes {
    session: Arc<Session>,
    pages: Arc<PagePool>,
    pool: Arc<Pool>,
    accesses: Arc<Accesses>,
    rights: Arc<Rights>,
    write_behind: Arc<WriteBehind>,
    tokens: Arc<Tokens>,
}

impl InodeAttributes {
    pub(crate) fn new(
        session: Arc<Session>,
        pages: Arc<PagePool>,
        pool: Arc<Pool>,
        accesses: Arc<Accesses>,
        rights: Arc<Rights>,
        write_behind: Arc<WriteBehind>,
        tokens: Arc<Tokens>,
    ) -> Arc<Self> {
        Arc::new(Self {
            session,
            pages,
            pool,
            accesses,
            rights,
            write_behind,
            tokens,
        })
    }

    /// stat. Includes unpublished writes. Those that are published between the owner's answer and here
    /// are neither in it nor unpublished any more: then the owner is asked again.
    pub(crate) async fn get(&self, inode: InodeId) -> Result<Attributes> {
        let mut asked = 0;
        loop {
            let look = self.pages.look();
            let mut attributes = self.session.attributes(inode).await?;
            asked += 1;
            if self.merge_into(&mut attributes, look) || asked == ASKED_MAX {
                return Ok(attributes);
            }
        }
    }

    /// The owner is about to be asked for attributes.
    pub(crate) fn look(&self) -> Look {
        self.pages.look()
    }

    /// Attributes that came with an answer of the owner, which was asked after this look began, as a
    /// stat shows them now.
    pub(crate) async fn complete(
        &self,
        mut attributes: Attributes,
        look: Look,
    ) -> Result<Attributes> {
        if self.merge_into(&mut attributes, look) {
            return Ok(attributes);
        }
        // Boxed because it is rare: otherwise its state would enlarge every lookup's future.
        match Box::pin(self.get(attributes.inode)).await {
            // It was there when the owner was asked.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale) => {
                Ok(attributes)
            }
            other => other,
        }
    }

    /// Adds what only this client knows to attributes from the owner: unpublished writes, unrecorded
    /// reads. False if writes may be in neither, because they were published since this look began.
    fn merge_into(&self, attributes: &mut Attributes, look: Look) -> bool {
        self.accesses.merge_into(attributes);
        self.pages.merge_into(attributes, look)
    }

    /// chmod, chown, utimes, truncate, in any combination, atomically. Publishes the inode's dirty
    /// data first.
    pub(crate) async fn set(&self, inode: InodeId, set: SetAttributes) -> Result<Attributes> {
        if set.atime.is_some() {
            self.accesses.forget(inode);
        }
        if let Some(size) = set.size {
            return self.truncate(inode, size, set).await;
        }
        self.write_behind.publish_inode(inode).await?;
        let state = self.pages.find_inode(inode);
        let asked = state.as_ref().map(|state| state.lock().held_state());
        let mut attributes = self.set_published(inode, set).await?;
        if let (Some(state), Some(asked)) = (state, asked) {
            let mut inner = state.lock();
            inner.learn_again(&attributes, asked);
            inner.merge_into(&mut attributes);
        }
        Ok(attributes)
    }

    async fn truncate(&self, inode: InodeId, size: u64, set: SetAttributes) -> Result<Attributes> {
        if size > limits::FILE_BYTES_MAX {
            return Err(ErrorKind::FileTooLarge.into());
        }
        let state = self.pages.inode(inode);
        let exclusive = state.exclude_writers(&self.session, &self.pages).await?;
        // Data that the truncate will cut is published first too: left dirty, the client's task or
        // an fsync could freeze it meanwhile, and it would come back after the cut; dropped, it
        // would be lost if the cut fails.
        self.write_behind.publish(&state).await?;
        let asked = {
            let mut inner = state.lock();
            let kept = inner.size().unwrap_or(0).min(size);
            inner.begin_change(kept, u64::MAX);
            inner.held_state()
        };
        let done = self.set_published(inode, set).await;
        if let Ok(attributes) = &done {
            let mut inner = state.lock();
            self.pages.cut(inode, &mut inner, size, asked);
            inner.learn(attributes, asked);
            inner.end_change();
        }
        drop(exclusive);
        done
    }

    /// Sets attributes of an inode whose data is published.
    async fn set_published(&self, inode: InodeId, set: SetAttributes) -> Result<Attributes> {
        let granting = set.mode.map(|_| self.rights.begin_grant(inode));
        let operation = Operation::SetAttributes { inode, set };
        let done = self.change(inode, operation).await;
        drop(granting);
        done
    }

    /// Changes an inode, unless something that programs did before is lost. What may still come of changes before comes
    /// first: it could take this one back.
    async fn change(&self, inode: InodeId, operation: Operation) -> Result<Attributes> {
        self.session.until_decided(inode).await?;
        let may = || self.pages.check_lost(inode);
        let of = match &operation {
            Operation::SetAttributes { set, .. } if set.size.is_some() => Late::Bytes,
            _ => Late::Attributes,
        };
        let unheard = self.begin_change(inode, of);
        let done = self.session.attributes_after_if(operation, may).await;
        unheard.hear(&done);
        done
    }

    /// As [`Tokens::begin_change`].
    pub(crate) fn begin_change(&self, inode: InodeId, of: Late) -> Unheard<'_> {
        self.tokens.begin_change(inode, of)
    }

    /// The value of an extended attribute.
    pub(crate) async fn get_xattr(&self, inode: InodeId, name: &[u8]) -> Result<Bytes> {
        let name = xattr_name(name)?;
        let operation = Operation::GetXattr { inode, name };
        match self.session.execute(operation).await? {
            Reply::Value(value) => Ok(value),
            other => unexpected_reply(&other),
        }
    }

    /// Names of the extended attributes.
    pub(crate) async fn list_xattrs(&self, inode: InodeId) -> Result<Vec<Bytes>> {
        let operation = Operation::ListXattrs { inode };
        match self.session.execute(operation).await? {
            Reply::Names(names) => Ok(names),
            other => unexpected_reply(&other),
        }
    }

    /// Sets an extended attribute. `drop_setgid` also clears the setgid bit.
    pub(crate) async fn set_xattr(
        &self,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        drop_setgid: bool,
    ) -> Result<()> {
        let name = xattr_name(name)?;
        let value = Bytes::copy_from_slice(value);
        let operation = Operation::SetXattr {
            inode,
            name,
            value,
            mode,
            drop_setgid,
        };
        let granting = self.rights.begin_grant(inode);
        let done = self.change(inode, operation).await;
        drop(granting);
        done.map(drop)
    }

    /// Removes an extended attribute.
    pub(crate) async fn remove_xattr(&self, inode: InodeId, name: &[u8]) -> Result<()> {
        let name = xattr_name(name)?;
        let operation = Operation::RemoveXattr { inode, name };
        self.change(inode, operation).await.map(drop)
    }

    /// statfs, with the file system's block size.
    pub(crate) async fn usage(&self, block_bytes: u32) -> Result<FileSystemUsage> {
        self.session.check_open()?;
        let inodes = self.session.usage().await?.inodes;
        let usage = self.pool.usage();
        Ok(FileSystemUsage::of(&usage, block_bytes, inodes))
    }
}

fn xattr_name(name: &[u8]) -> Result<Bytes> {
    // The owner checks whether the name is supported.
    if name.len() > limits::XATTR_NAME_BYTES_MAX {
        return Err(Error::from(ErrorKind::BufferTooSmall));
    }
    Ok(Bytes::copy_from_slice(name))
}
