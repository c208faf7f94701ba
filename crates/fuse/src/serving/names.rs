//! Answers requests about names in a directory.

use super::Serving;
use crate::abi::EntryOut;
use crate::file_system::FileSystem;
use crate::reply::Reply;
use crate::request::NameRequest;
use crate::verbs::{Caller, Found, InodeEntry, Make, Validity};
use model::operation::RenameMode;
use model::{ErrorKind, FileKind, FileName, InodeId, Result};
use std::time::Duration;

impl<F: FileSystem> Serving<F> {
    pub(super) async fn names(
        &self,
        caller: &Caller,
        inode: InodeId,
        request: NameRequest<'_>,
    ) -> Result<Reply> {
        let entry = match request {
            NameRequest::Lookup { name } => return self.lookup(caller, inode, name).await,
            NameRequest::Symlink { name, target } => {
                let make = Make {
                    kind: FileKind::Symlink,
                    mode: 0o777,
                    umask: 0,
                    rdev: 0,
                    target,
                };
                self.fs
                    .make(caller, inode, &FileName::new(name)?, make)
                    .await?
            }
            NameRequest::Mknod { args, name } => {
                let kind = FileKind::from_mode(args.mode).ok_or(ErrorKind::InvalidArgument)?;
                let make = Make {
                    kind,
                    mode: args.mode & 0o7777,
                    umask: args.umask,
                    rdev: args.rdev,
                    target: &[],
                };
                self.fs
                    .make(caller, inode, &FileName::new(name)?, make)
                    .await?
            }
            NameRequest::Mkdir { args, name } => {
                let make = Make {
                    kind: FileKind::Directory,
                    mode: args.mode & 0o7777,
                    umask: args.umask,
                    rdev: 0,
                    target: &[],
                };
                self.fs
                    .make(caller, inode, &FileName::new(name)?, make)
                    .await?
            }
            NameRequest::Link {
                inode: linked,
                name,
            } => {
                self.fs
                    .link(caller, linked, inode, &FileName::new(name)?)
                    .await?
            }
            NameRequest::Unlink { name } => {
                self.fs.unlink(caller, inode, &FileName::new(name)?).await?;
                return Ok(Reply::Empty);
            }
            NameRequest::Rmdir { name } => {
                self.fs
                    .remove_directory(caller, inode, &FileName::new(name)?)
                    .await?;
                return Ok(Reply::Empty);
            }
            NameRequest::Rename {
                to,
                flags,
                from_name,
                to_name,
            } => {
                let mode = match flags {
                    0 => RenameMode::Replace,
                    libc::RENAME_NOREPLACE => RenameMode::NoReplace,
                    libc::RENAME_EXCHANGE => RenameMode::Exchange,
                    // RENAME_WHITEOUT is for overlayfs, which falls back to character devices.
                    _ => return Err(ErrorKind::InvalidArgument.into()),
                };
                let (from_name, to_name) = (FileName::new(from_name)?, FileName::new(to_name)?);
                self.fs
                    .rename(caller, (inode, &from_name), (to, &to_name), mode)
                    .await?;
                return Ok(Reply::Empty);
            }
        };
        Ok(Reply::fixed(&EntryOut::of(&entry)))
    }

    async fn lookup(&self, caller: &Caller, directory: InodeId, name: &[u8]) -> Result<Reply> {
        let entry = match name {
            // NFS servers and open_by_handle_at find inodes this way.
            b"." => {
                let shown = self.fs.get_attributes(caller, directory).await?;
                let valid = Validity {
                    entry: Duration::ZERO,
                    attributes: shown.valid,
                };
                InodeEntry {
                    attributes: shown.attributes,
                    valid,
                }
            }
            b".." => self.fs.lookup_parent(caller, directory).await?,
            name => match self
                .fs
                .lookup(caller, directory, &FileName::new(name)?)
                .await?
            {
                Found::Entry(entry) => entry,
                Found::Absent(valid) if valid.is_zero() => return Ok(Reply::Errno(libc::ENOENT)),
                Found::Absent(valid) => return Ok(Reply::fixed(&EntryOut::absent(valid))),
            },
        };
        Ok(Reply::fixed(&EntryOut::of(&entry)))
    }
}
