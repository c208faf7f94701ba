//! Extended attributes, each in a record of its own.

use crate::{
    Key, Record, View,
    transaction::{Step, Transaction, touch},
};
use bytes::Bytes;
use model::{
    ErrorKind, InodeId, Reply,
    limits::{XATTR_INODE_BYTES_MAX, XATTR_NAME_BYTES_MAX},
    operation::XattrMode,
};
use std::sync::Arc;

/// All extended attributes of an inode.
pub(crate) fn key_range(inode: InodeId) -> (Key, Key) {
    let first = |inode: InodeId| Key::Xattr {
        inode,
        name: Box::default(),
    };
    (first(inode), first(InodeId(inode.0 + 1)))
}

pub(crate) fn get<V: View>(tx: &mut Transaction<'_, V>, id: InodeId, name: &[u8]) -> Step<Reply> {
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
        Key::Xattr { name, .. } => Some(Bytes::from(name)),
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
) -> Step<Reply> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        // ERANGE, as Linux answers.
        return Err(ErrorKind::BufferTooSmall.into());
    }
    let old = current(tx, id, name)?;
    match (mode, &old) {
        (XattrMode::Create, Some(_)) => return Err(ErrorKind::Exists.into()),
        (XattrMode::Replace, None) => return Err(ErrorKind::NoSuchAttribute.into()),
        _ => {}
    }
    let inode = tx.inode(id)?;
    let freed = old.map_or(0, |old| name.len() + old.len());
    let bytes = inode.xattr_bytes as usize - freed + name.len() + value.len();
    if bytes > XATTR_INODE_BYTES_MAX {
        return Err(ErrorKind::NoSpace.into());
    }
    tx.put(
        Key::Xattr {
            inode: id,
            name: name.into(),
        },
        Record::Xattr(Arc::new(value.clone())),
    );
    finish(tx, id, bytes)
}

pub(crate) fn remove<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    name: &[u8],
) -> Step<Reply> {
    let Some(old) = current(tx, id, name)? else {
        return Err(ErrorKind::NoSuchAttribute.into());
    };
    let inode = tx.inode(id)?;
    tx.delete(Key::Xattr {
        inode: id,
        name: name.into(),
    });
    finish(tx, id, inode.xattr_bytes as usize - name.len() - old.len())
}

fn finish<V: View>(tx: &mut Transaction<'_, V>, id: InodeId, bytes: usize) -> Step<Reply> {
    let now = tx.now;
    let inode = tx.inode_mut(id)?;
    inode.xattr_bytes = u32::try_from(bytes).expect("at most 64 KiB");
    touch(inode, now);
    Ok(Reply::Attributes {
        attributes: inode.attributes(id),
        unfinished: inode.cutting_from.is_some(),
    })
}

/// The value now. An inode without any attribute answers without a look at other records: the
/// kernel asks for security.capability before many writes.
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
