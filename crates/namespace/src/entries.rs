//! Looks up, creates, links and removes names.

use crate::{
    Inode, Key, Orphan, Record, View, acl, counts,
    genesis::blank,
    lifetime,
    names::{self, Found},
    numbers,
    transaction::{Transaction, touch, touch_content},
    view::Step,
    xattrs,
};
use model::{
    Error, ErrorKind, FileKind, FileName, InodeId, InodeNumber, Reply, Timestamp,
    limits::{LINKS_MAX, SYMLINK_BYTES_MAX},
    operation::NewInode,
};
use std::sync::Arc;

pub(crate) fn lookup<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    name: &FileName,
) -> Step<Reply> {
    ask_name(tx, directory, name)?;
    let parent = tx.directory(directory)?;
    let Found::At { inode, .. } = names::find(tx, directory, name)? else {
        return Err(ErrorKind::NotFound.into());
    };
    let id = InodeId::new(directory.fileset(), inode);
    let inode = tx.child(id)?;
    Ok(Reply::Entry {
        attributes: inode.attributes(id),
        directory: Some(parent.attributes(directory)),
    })
}

pub(crate) fn lookup_parent<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
) -> Step<Reply> {
    let child = tx.directory(directory)?;
    let id = InodeId::new(directory.fileset(), child.parent);
    match tx.get(&Key::Inode(id))? {
        Some(Record::Inode(parent)) => Ok(Reply::Entry {
            attributes: parent.attributes(id),
            directory: None,
        }),
        // A removed directory may outlive its parent.
        _ => Err(ErrorKind::NotFound.into()),
    }
}

pub(crate) fn create<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    name: &FileName,
    new: &NewInode,
) -> Step<Reply> {
    numbers::ask(tx, directory.fileset());
    ask_name(tx, directory, name)?;
    tx.living_directory(directory)?;
    if let Found::At { .. } = names::find(tx, directory, name)? {
        return Err(ErrorKind::Exists.into());
    }
    check_new(new)?;
    let is_directory = new.kind == FileKind::Directory;
    let now = tx.now;
    let parent = tx.inode_mut(directory)?;
    let time = touch_content(parent, now);
    parent.entries += 1;
    counts::add_link(&mut parent.links, is_directory)?;
    let (number, mut inode) = make(tx, directory, new, time)?;
    inode.links = if is_directory { 2 } else { 1 };
    if is_directory {
        inode.parent = directory.number();
    }
    let id = InodeId::new(directory.fileset(), number);
    tx.put_new(Key::Inode(id), Record::Inode(Arc::new(inode)))?;
    inherit_acl(tx, directory, id, new)?;
    let attributes = tx.inode(id)?.attributes(id);
    names::insert(tx, directory, name, number, new.kind)?;
    let parent = tx.inode(directory)?;
    Ok(Reply::Entry {
        attributes,
        directory: Some(parent.attributes(directory)),
    })
}

pub(crate) fn create_unnamed<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    new: &NewInode,
) -> Step<Reply> {
    numbers::ask(tx, directory.fileset());
    tx.ask(&Key::Inode(directory));
    tx.stop_if_missing()?;
    let parent = tx.living_directory(directory)?;
    if new.kind != FileKind::File {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            "only regular files can be made without a name",
        )
        .into());
    }
    check_new(new)?;
    let time = tx.now.after(parent.ctime);
    let (number, inode) = make(tx, directory, new, time)?;
    let id = InodeId::new(directory.fileset(), number);
    tx.put_new(Key::Inode(id), Record::Inode(Arc::new(inode)))?;
    inherit_acl(tx, directory, id, new)?;
    let attributes = tx.inode(id)?.attributes(id);
    tx.put_new(Key::Orphan(id), Record::Orphan(Orphan { linkable: true }))?;
    let parent = tx.inode(directory)?;
    Ok(Reply::Entry {
        attributes,
        directory: Some(parent.attributes(directory)),
    })
}

pub(crate) fn link<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    directory: InodeId,
    name: &FileName,
) -> Step<Reply> {
    if id.fileset() != directory.fileset() {
        return Err(ErrorKind::OtherFileset.into());
    }
    tx.ask(&Key::Inode(id));
    ask_name(tx, directory, name)?;
    tx.living_directory(directory)?;
    if let Found::At { .. } = names::find(tx, directory, name)? {
        return Err(ErrorKind::Exists.into());
    }
    let inode = tx.inode(id)?;
    if inode.kind == FileKind::Directory {
        return Err(ErrorKind::NotPermitted.into());
    }
    if inode.links >= LINKS_MAX {
        return Err(ErrorKind::TooManyLinks.into());
    }
    if inode.links == 0 {
        match tx.get(&Key::Orphan(id))? {
            Some(Record::Orphan(Orphan { linkable: true })) => tx.delete(Key::Orphan(id)),
            _ => return Err(ErrorKind::NotFound.into()),
        }
    }
    let now = tx.now;
    let inode = tx.inode_mut(id)?;
    inode.links += 1;
    touch(inode, now);
    let (attributes, kind) = (inode.attributes(id), inode.kind);
    let parent = tx.inode_mut(directory)?;
    parent.entries += 1;
    touch_content(parent, now);
    let parent = parent.attributes(directory);
    names::insert(tx, directory, name, id.number(), kind)?;
    Ok(Reply::Entry {
        attributes,
        directory: Some(parent),
    })
}

pub(crate) fn unlink<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    name: &FileName,
) -> Step<Reply> {
    remove(tx, directory, name, false)
}

pub(crate) fn remove_directory<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    name: &FileName,
) -> Step<Reply> {
    remove(tx, directory, name, true)
}

pub(crate) fn read_link<V: View>(tx: &mut Transaction<'_, V>, id: InodeId) -> Step<Reply> {
    let inode = tx.inode(id)?;
    if inode.kind != FileKind::Symlink {
        return Err(ErrorKind::InvalidArgument.into());
    }
    Ok(Reply::Target(inode.content.clone()))
}

/// Asks for a directory and a name in it together, in one round.
pub(crate) fn ask_name<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    name: &FileName,
) -> Step<()> {
    tx.ask(&Key::Inode(directory));
    tx.ask(&names::head_key(directory, name));
    tx.stop_if_missing()
}

fn remove<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    name: &FileName,
    want_directory: bool,
) -> Step<Reply> {
    tx.ask(&Key::Counters(directory.fileset()));
    ask_name(tx, directory, name)?;
    tx.directory(directory)?;
    let Found::At {
        position,
        inode,
        kind,
    } = names::find(tx, directory, name)?
    else {
        return Err(ErrorKind::NotFound.into());
    };
    let id = InodeId::new(directory.fileset(), inode);
    let is_directory = kind == FileKind::Directory;
    match (want_directory, is_directory) {
        (true, false) => return Err(ErrorKind::NotDirectory.into()),
        (false, true) => return Err(ErrorKind::IsDirectory.into()),
        _ => {}
    }
    if tx.named(id, kind)?.entries > 0 {
        return Err(ErrorKind::NotEmpty.into());
    }
    names::remove(tx, directory, position)?;
    let now = tx.now;
    let parent = tx.inode_mut(directory)?;
    counts::take_name(parent, directory, is_directory)?;
    touch_content(parent, now);
    let parent = parent.attributes(directory);
    let (attributes, orphaned) = lifetime::drop_link(tx, directory, id)?;
    Ok(Reply::Removed {
        attributes,
        directory: parent,
        orphaned,
    })
}

fn check_new(new: &NewInode) -> Step<()> {
    if new.kind != FileKind::Symlink {
        return Ok(());
    }
    if new.target.is_empty() {
        return Err(ErrorKind::NotFound.into());
    }
    if new.target.len() > SYMLINK_BYTES_MAX {
        return Err(ErrorKind::NameTooLong.into());
    }
    Ok(())
}

/// A new inode with a number from the directory's run, without links; the caller stores it.
fn make<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    new: &NewInode,
    time: Timestamp,
) -> Step<(InodeNumber, Inode)> {
    let number = numbers::take(tx, directory)?;
    let parent = tx.inode(directory)?;
    let mut inode = blank(new.kind, number, time);
    (inode.mode, inode.gid) = new.inherited(parent.mode, parent.gid);
    inode.uid = new.uid;
    match new.kind {
        FileKind::Symlink => {
            inode.mode = 0o777;
            inode.size = new.target.len() as u64;
            inode.content = new.target.clone();
        }
        FileKind::CharDevice | FileKind::BlockDevice => inode.rdev = new.rdev,
        _ => {}
    }
    Ok((number, inode))
}

/// A default ACL of the directory replaces the umask for a new inode. Costs nothing if the
/// directory has no extended attributes.
fn inherit_acl<V: View>(
    tx: &mut Transaction<'_, V>,
    directory: InodeId,
    id: InodeId,
    new: &NewInode,
) -> Step<()> {
    if new.kind == FileKind::Symlink {
        return Ok(());
    }
    let Some(default) = xattrs::acl(tx, directory, acl::DEFAULT)? else {
        return Ok(());
    };
    if new.kind == FileKind::Directory {
        xattrs::put_acl(tx, id, acl::DEFAULT, Some(&default))?;
    }
    let (access, mode) = default.inherited(new.mode & 0o777);
    let inode = tx.inode_mut(id)?;
    inode.mode = inode.mode & !0o777 | mode;
    if !access.is_minimal() {
        xattrs::put_acl(tx, id, acl::ACCESS, Some(&access))?;
    }
    Ok(())
}
