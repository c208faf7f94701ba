//! Answers requests about attributes of inodes and of the file system.

use super::Serving;
use crate::abi::{self, AttrOut, StatfsOut, StatxOut, fattr};
use crate::file_system::FileSystem;
use crate::reply::Reply;
use crate::request::AttributeRequest;
use crate::verbs::{Caller, SetXattr};
use bytes::Bytes;
use model::operation::XattrMode;
use model::{Error, ErrorKind, InodeId, Privileges, Result, SetAttributes, TimeChange, Timestamp};

impl<F: FileSystem> Serving<F> {
    pub(super) async fn attributes(
        &self,
        caller: &Caller,
        inode: InodeId,
        request: AttributeRequest<'_>,
    ) -> Result<Reply> {
        match request {
            AttributeRequest::Getattr => Ok(Reply::fixed(&AttrOut::of(
                &self.fs.get_attributes(caller, inode).await?,
            ))),
            AttributeRequest::Statx => Ok(Reply::fixed(&StatxOut::of(
                &self.fs.get_attributes(caller, inode).await?,
            ))),
            AttributeRequest::Setattr(args) => {
                let shown = self
                    .fs
                    .set_attributes(caller, inode, changes(&args, caller))
                    .await?;
                Ok(Reply::fixed(&AttrOut::of(&shown)))
            }
            AttributeRequest::Readlink => {
                Ok(Reply::Data(vec![self.fs.read_link(caller, inode).await?]))
            }
            AttributeRequest::Statfs => Ok(Reply::fixed(&StatfsOut::of(
                &self.fs.space(caller, inode).await?,
            ))),
            AttributeRequest::Setxattr {
                flags,
                drop_setgid,
                name,
                value,
            } => {
                let mode = match i32::try_from(flags) {
                    Ok(libc::XATTR_CREATE) => XattrMode::Create,
                    Ok(libc::XATTR_REPLACE) => XattrMode::Replace,
                    _ => XattrMode::Set,
                };
                let set = SetXattr {
                    name,
                    value,
                    mode,
                    drop_setgid,
                };
                self.fs.set_xattr(caller, inode, set).await?;
                Ok(Reply::Empty)
            }
            AttributeRequest::Getxattr { size, name } => {
                let value = self.fs.get_xattr(caller, inode, name).await?;
                attribute_bytes(size, value.len(), || vec![value])
            }
            AttributeRequest::Listxattr { size } => {
                let names = self.fs.list_xattrs(caller, inode).await?;
                let length = names.iter().map(|name| name.len() + 1).sum();
                attribute_bytes(size, length, || {
                    names
                        .into_iter()
                        .flat_map(|name| [name, Bytes::from_static(b"\0")])
                        .collect()
                })
            }
            AttributeRequest::Removexattr { name } => {
                self.fs.remove_xattr(caller, inode, name).await?;
                Ok(Reply::Empty)
            }
        }
    }
}

/// The changes that SETATTR requests.
fn changes(args: &abi::SetattrIn, caller: &Caller) -> SetAttributes {
    let has = |bit| args.valid & bit != 0;
    let time = |now, given, seconds, nanoseconds| {
        if has(now) {
            Some(TimeChange::Now)
        } else {
            has(given).then(|| TimeChange::At(Timestamp::from_timespec(seconds, nanoseconds)))
        }
    };
    SetAttributes {
        mode: has(fattr::MODE).then_some(args.mode & 0o7777),
        uid: has(fattr::UID).then_some(args.uid),
        gid: has(fattr::GID).then_some(args.gid),
        size: has(fattr::SIZE).then_some(args.size),
        atime: time(fattr::ATIME_NOW, fattr::ATIME, args.atime, args.atimensec),
        mtime: time(fattr::MTIME_NOW, fattr::MTIME, args.mtime, args.mtimensec),
        privileges: if has(fattr::KILL_SUIDGID) {
            Privileges::Drop {
                group: Some(caller.gid),
            }
        } else {
            Privileges::Keep
        },
        only_for: None,
    }
}

/// The answer to a request for attribute bytes: their length, or the bytes.
fn attribute_bytes(room: u32, length: usize, bytes: impl FnOnce() -> Vec<Bytes>) -> Result<Reply> {
    if room == 0 {
        let size = u32::try_from(length).map_err(|_| Error::from(ErrorKind::Overflow))?;
        return Ok(Reply::fixed(&abi::GetxattrOut { size, padding: 0 }));
    }
    if length > room as usize {
        return Err(ErrorKind::BufferTooSmall.into());
    }
    Ok(Reply::Data(bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setattr_distinguishes_now_from_a_given_time() {
        let args = abi::SetattrIn {
            valid: fattr::ATIME | fattr::ATIME_NOW | fattr::MTIME | fattr::SIZE,
            mtime: -1,
            mtimensec: 5,
            size: 7,
            ..Default::default()
        };
        let set = changes(&args, &Caller::default());
        assert_eq!(set.atime, Some(TimeChange::Now));
        assert_eq!(set.mtime, Some(TimeChange::At(Timestamp(-999_999_995))));
        assert_eq!((set.size, set.mode), (Some(7), None));
    }
}
