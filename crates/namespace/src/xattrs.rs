//! Extended attributes, each in its own record.

use crate::{
    Key, Record, View,
    acl::{self, Acl},
    counts,
    transaction::{Transaction, touch},
    view::Step,
};
use bytes::Bytes;
use model::{
    ErrorKind, FileKind, InodeId, Reply,
    limits::{XATTR_INODE_BYTES_MAX, XATTR_NAME_BYTES_MAX},
    operation::XattrMode,
};
use std::sync::Arc;

const SETGID: u32 = 0o2000;
/// Adds privileges to a process that executes the file, on Linux.
const CAPABILITIES: &[u8] = b"security.capability";
/// Prefixes of names that may be set, besides the two of access control lists. The kernel checks
/// permission: for `user.` by the file's permissions, for `trusted.` and `security.` by
/// capabilities. It leaves other `system.` names to the file system, which has none.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// The keys of all extended attributes of an inode.
pub(crate) fn key_range(inode: InodeId) -> (Key, Key) {
    let first = |inode: InodeId| Key::Xattr {
        inode,
        name: Box::default(),
    };
    (first(inode), first(InodeId(inode.0.saturating_add(1))))
}

pub(crate) fn get<V: View>(tx: &mut Transaction<'_, V>, id: InodeId, name: &[u8]) -> Step<Reply> {
    check_name(name)?;
    match current(tx, id, name)? {
        Some(value) => Ok(Reply::Value(Bytes::clone(&value))),
        None => Err(ErrorKind::NoSuchAttribute.into()),
    }
}

pub(crate) fn list<V: View>(tx: &mut Transaction<'_, V>, id: InodeId) -> Step<Reply> {
    let inode = tx.inode(id)?;
    if inode.xattr_bytes == 0 {
        return Ok(Reply::Names(Vec::new()));
    }
    let (from, to) = key_range(id);
    let found = tx.range(&from, &to, XATTR_INODE_BYTES_MAX)?;
    let names = found.into_iter().filter_map(|(key, _)| match key {
        // Earlier versions accepted any name under "system.".
        Key::Xattr { name, .. } if is_known(&name) => Some(Bytes::from(name)),
        _ => None,
    });
    Ok(Reply::Names(names.collect()))
}

pub(crate) fn set<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    name: &[u8],
    value: &Bytes,
    mode: XattrMode,
    drop_setgid: bool,
) -> Step<Reply> {
    if acl::is_list(name) {
        return set_acl(tx, id, name, value, drop_setgid);
    }
    check_name(name)?;
    let old = current(tx, id, name)?;
    match (mode, &old) {
        (XattrMode::Create, Some(_)) => return Err(ErrorKind::Exists.into()),
        (XattrMode::Replace, None) => return Err(ErrorKind::NoSuchAttribute.into()),
        _ => {}
    }
    put(tx, id, name, old, Some(value.clone()))?;
    finish(tx, id)
}

pub(crate) fn remove<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    name: &[u8],
) -> Step<Reply> {
    check_name(name)?;
    let Some(old) = current(tx, id, name)? else {
        if acl::is_list(name) {
            // Every inode has an access list (its permission bits) and may lack a default list.
            return finish(tx, id);
        }
        return Err(ErrorKind::NoSuchAttribute.into());
    };
    put(tx, id, name, Some(old), None)?;
    finish(tx, id)
}

/// Whether executing the file grants capabilities. Costs nothing for an inode without extended
/// attributes.
pub(crate) fn has_capabilities<V: View>(tx: &mut Transaction<'_, V>, id: InodeId) -> Step<bool> {
    Ok(current(tx, id, CAPABILITIES)?.is_some())
}

/// Executing the file no longer grants capabilities. Doesn't change times: part of a larger change.
pub(crate) fn drop_capabilities<V: View>(tx: &mut Transaction<'_, V>, id: InodeId) -> Step<()> {
    let old = current(tx, id, CAPABILITIES)?;
    put(tx, id, CAPABILITIES, old, None)
}

/// The inode's list, if it says more than the permission bits.
pub(crate) fn acl<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    name: &[u8],
) -> Step<Option<Acl>> {
    match current(tx, id, name)? {
        Some(value) => Ok(Acl::parse(&value)?),
        None => Ok(None),
    }
}

/// Stores or removes a list. Doesn't change times: part of a larger change.
pub(crate) fn put_acl<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    name: &[u8],
    list: Option<&Acl>,
) -> Step<()> {
    let old = current(tx, id, name)?;
    put(tx, id, name, old, list.map(Acl::to_value))
}

fn is_known(name: &[u8]) -> bool {
    let is_in = |namespace: &[u8]| name.len() > namespace.len() && name.starts_with(namespace);
    acl::is_list(name) || NAMESPACES.iter().any(|it| is_in(it))
}

fn check_name(name: &[u8]) -> Step<()> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        // ERANGE, as on Linux.
        return Err(ErrorKind::BufferTooSmall.into());
    }
    if !is_known(name) {
        return Err(ErrorKind::NotSupported.into());
    }
    Ok(())
}

/// Sets a list. An access list updates the permission bits; one that they express fully isn't
/// stored.
fn set_acl<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    name: &[u8],
    value: &[u8],
    drop_setgid: bool,
) -> Step<Reply> {
    let list = Acl::parse(value)?;
    let inode = tx.inode(id)?;
    if inode.kind == FileKind::Symlink {
        return Err(ErrorKind::NotSupported.into());
    }
    if name == acl::DEFAULT {
        if inode.kind != FileKind::Directory && list.is_some() {
            // EACCES, as on Linux.
            return Err(ErrorKind::AccessDenied.into());
        }
        put_acl(tx, id, name, list.as_ref())?;
        return finish(tx, id);
    }
    if let Some(list) = &list {
        let inode = tx.inode_mut(id)?;
        inode.mode = list.apply_to_mode(inode.mode);
        if drop_setgid {
            inode.mode &= !SETGID;
        }
    }
    put_acl(
        tx,
        id,
        name,
        list.as_ref().filter(|list| !list.is_minimal()),
    )?;
    finish(tx, id)
}

/// Replaces one attribute and updates the count of bytes.
fn put<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    name: &[u8],
    old: Option<Arc<Bytes>>,
    new: Option<Bytes>,
) -> Step<()> {
    let key = || Key::Xattr {
        inode: id,
        name: name.into(),
    };
    let bytes_of = |value: usize| name.len() + value;
    let freed = old.as_ref().map_or(0, |old| bytes_of(old.len()));
    let taken = new.as_ref().map_or(0, |new| bytes_of(new.len()));
    let kept = counts::subtract(
        tx.inode(id)?.xattr_bytes as usize,
        freed,
        id,
        "bytes of attributes",
    )?;
    let bytes = kept + taken;
    if bytes > XATTR_INODE_BYTES_MAX {
        return Err(ErrorKind::NoSpace.into());
    }
    match (new, old) {
        (Some(new), None) => tx.put_new(key(), Record::Xattr(Arc::new(new)))?,
        (Some(new), Some(_)) => tx.put(key(), Record::Xattr(Arc::new(new))),
        (None, Some(_)) => tx.delete(key()),
        (None, None) => return Ok(()),
    }
    tx.inode_mut(id)?.xattr_bytes = u32::try_from(bytes).expect("at most 64 KiB");
    Ok(())
}

fn finish<V: View>(tx: &mut Transaction<'_, V>, id: InodeId) -> Step<Reply> {
    let now = tx.now;
    let inode = tx.inode_mut(id)?;
    touch(inode, now);
    Ok(Reply::Attributes {
        attributes: inode.attributes(id),
        unfinished: inode.cutting_from.is_some(),
    })
}

/// The current value. For an inode without attributes this reads no other record: the kernel asks
/// for security.capability before many writes.
fn current<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    name: &[u8],
) -> Step<Option<Arc<Bytes>>> {
    let inode = tx.inode(id)?;
    if inode.xattr_bytes == 0 {
        return Ok(None);
    }
    match tx.get(&Key::Xattr {
        inode: id,
        name: name.into(),
    })? {
        Some(Record::Xattr(value)) => Ok(Some(value)),
        _ => Ok(None),
    }
}
