//! Reads and changes attributes, including by truncate.

use crate::{
    Inode, Key, Record, View, acl, allocated, extents, lifetime, numbers,
    transaction::{Transaction, touch},
    view::Step,
    xattrs,
};
use model::{
    ErrorKind, FileKind, InodeId, Privileges, Reply, SetAttributes, TimeChange, Timestamp,
    limits::FILE_BYTES_MAX,
};

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;

pub(crate) fn get<V: View>(tx: &mut Transaction<'_, V>, id: InodeId) -> Step<Reply> {
    let inode = tx.inode(id)?;
    Ok(reply(id, &inode))
}

pub(crate) fn set<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    set: &SetAttributes,
) -> Step<Reply> {
    if *set == SetAttributes::default() {
        return get(tx, id);
    }
    if set.size.is_some() {
        tx.ask_change(id);
        tx.stop_if_missing()?;
    }
    let mut allowed = !0;
    if let Some((user, group)) = set.only_for {
        let inode = tx.inode(id)?;
        if inode.uid != user {
            return Err(ErrorKind::NotPermitted.into());
        }
        if inode.gid != group {
            allowed = !SETGID;
        }
    }
    let lost_privileges = lost_privileges(tx, id, set)?;
    let only_drops_privileges = *set
        == SetAttributes {
            privileges: set.privileges,
            ..SetAttributes::default()
        };
    if only_drops_privileges && lost_privileges == LostPrivileges::default() {
        return get(tx, id);
    }
    if let Some(size) = set.size {
        truncate(tx, id, size)?;
    }
    if lost_privileges.capabilities {
        xattrs::drop_capabilities(tx, id)?;
    }
    if let Some(mode) = set.mode
        && let Some(list) = xattrs::acl(tx, id, acl::ACCESS)?
    {
        xattrs::put_acl(tx, id, acl::ACCESS, Some(&list.with_mode(mode)))?;
    }
    let now = tx.now;
    let inode = tx.inode_mut(id)?;
    let time = touch(inode, now);
    if let Some(mode) = set.mode {
        inode.mode = mode & 0o7777 & allowed;
    }
    inode.uid = set.uid.unwrap_or(inode.uid);
    inode.gid = set.gid.unwrap_or(inode.gid);
    inode.mode &= !lost_privileges.bits;
    let at = |change: TimeChange| -> Timestamp {
        match change {
            TimeChange::Now => time,
            TimeChange::At(at) => at,
        }
    };
    if let Some(change) = set.atime {
        inode.atime = at(change);
    }
    if set.size.is_some() {
        inode.mtime = time;
    }
    if let Some(change) = set.mtime {
        inode.mtime = at(change);
    }
    if set.size.is_some() || set.mtime.is_some() {
        // Earlier writes must no longer set the time when they are published. Clients compare it
        // only for equality and keep it for seconds, so it may wrap.
        inode.generation = inode.generation.wrapping_add(1);
    }
    Ok(reply(id, inode))
}

/// The privileges granted to those who execute the file that a change takes away.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct LostPrivileges {
    /// Mode bits: setuid, setgid.
    bits: u32,
    /// Whether the file has capabilities and loses them.
    capabilities: bool,
}

fn lost_privileges<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    set: &SetAttributes,
) -> Step<LostPrivileges> {
    let inode = tx.inode(id)?;
    let changes_file = set.size.is_some() || set.uid.is_some() || set.gid.is_some();
    if inode.kind == FileKind::Directory || (set.privileges == Privileges::Keep && !changes_file) {
        return Ok(LostPrivileges::default());
    }
    let mode = set.mode.unwrap_or(inode.mode);
    let bits = match set.privileges {
        Privileges::Drop { group } => {
            let is_member = group.is_none_or(|group| group == inode.gid);
            // Without execute permission for the group, setgid once meant mandatory locking: Linux
            // lets members keep it.
            let keeps_setgid = is_member && mode & GROUP_EXECUTE == 0;
            mode & if keeps_setgid {
                SETUID
            } else {
                SETUID | SETGID
            }
        }
        Privileges::Keep | Privileges::DropCapabilities => 0,
    };
    Ok(LostPrivileges {
        bits,
        capabilities: xattrs::has_capabilities(tx, id)?,
    })
}

/// Records an access: sets atime only, not even ctime.
pub(crate) fn note_access<V: View>(
    tx: &mut Transaction<'_, V>,
    id: InodeId,
    at: Timestamp,
) -> Step<Reply> {
    if tx.inode(id)?.atime < at {
        tx.inode_mut(id)?.atime = at;
    }
    Ok(Reply::Done)
}

pub(crate) fn continue_cut<V: View>(tx: &mut Transaction<'_, V>, id: InodeId) -> Step<Reply> {
    tx.ask_change(id);
    tx.stop_if_missing()?;
    let inode = tx.inode(id)?;
    if let Some(from) = inode.cutting_from {
        cut(tx, id, from)?;
    }
    get(tx, id)
}

fn reply(id: InodeId, inode: &Inode) -> Reply {
    Reply::Attributes {
        attributes: inode.attributes(id),
        unfinished: inode.cutting_from.is_some(),
    }
}

fn truncate<V: View>(tx: &mut Transaction<'_, V>, id: InodeId, size: u64) -> Step<()> {
    tx.ask_change(id);
    tx.stop_if_missing()?;
    let inode = tx.file(id)?;
    if size > FILE_BYTES_MAX {
        return Err(ErrorKind::FileTooLarge.into());
    }
    if inode.cutting_from.is_some_and(|cut| size > cut) {
        return Err(ErrorKind::Busy.into());
    }
    if size == 0 {
        numbers::ask(tx, id.fileset());
        tx.stop_if_missing()?;
        lifetime::drop_data(tx, id)?;
    } else if size < inode.content.len() as u64 {
        let keep = usize::try_from(size).expect("content is small");
        let cut = (inode.content.len() - keep) as u64;
        let inode = tx.inode_mut(id)?;
        inode.content = extents::owned(&inode.content[..keep]);
        allocated::take_allocated(tx, id, cut)?;
    } else if size < inode.extents_end {
        cut(tx, id, size)?;
    }
    extents::set_size(tx, id, size)
}

/// Removes the next extents after `from`. Until all are gone, the inode and a Cut mark record that.
fn cut<V: View>(tx: &mut Transaction<'_, V>, id: InodeId, from: u64) -> Step<()> {
    let inode = tx.inode(id)?;
    let found = extents::touching(tx, id, &inode, from, u64::MAX, extents::STEP_EXTENTS)?;
    extents::clear(tx, id, &found.extents, from, u64::MAX)?;
    let finished = found.known_to == u64::MAX;
    let was_cutting = inode.cutting_from.is_some();
    let inode = tx.inode_mut(id)?;
    inode.cutting_from = (!finished).then_some(from);
    if finished {
        inode.extents_end = from;
        if was_cutting {
            tx.delete_known(Key::Cut(id), Record::Mark);
        }
    } else if !was_cutting {
        tx.put_new(Key::Cut(id), Record::Mark)?;
    }
    Ok(())
}
