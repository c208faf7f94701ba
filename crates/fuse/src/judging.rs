//! What the kernel doesn't send of the caller of a request, as /proc tells it: its groups but one, and its capabilities.
//!
//! It is asked for only where a change is judged again that the kernel has judged, perhaps by an outdated owner and group, and
//! where a program is made that not every kernel judges.

use crate::signals::{line, set, tells};
use crate::verbs::Caller;
use bytes::Bytes;
use client::Client;
use model::operation::NewInode;
use model::{
    Attributes, Error, ErrorKind, FileKind, InodeId, Privileges, Result, SetAttributes, TimeChange,
};

const SETGID: u32 = 0o2000;
/// Capabilities: to change owners and groups, whatever else only an owner may change, and setgid for any group.
const CHOWN: u64 = 1 << 0;
const FOWNER: u64 = 1 << 3;
const FSETID: u64 = 1 << 4;

/// User and group for which a change is done ([`SetAttributes::only_for`]). A new mode keeps setgid if the caller is in the file's
/// group, whichever of the caller's groups that is: so it is looked up for the rare mode with setgid.
pub(crate) async fn judged(
    client: &Client,
    caller: &Caller,
    inode: InodeId,
    set: &SetAttributes,
) -> Result<(u32, u32)> {
    let mut group = caller.gid;
    if set.mode.is_some_and(|mode| mode & SETGID != 0) {
        // Boxed because it is rare: otherwise every change's future would contain it.
        let of_file = Box::pin(client.get_attributes(inode)).await?.gid;
        if of_file != group && is_in(caller.pid, of_file) {
            group = of_file;
        }
    }
    Ok((caller.uid, group))
}

/// Changes attributes. A caller that isn't the owner may have a capability for it, which the kernel has seen.
pub(crate) async fn set_attributes(
    client: &Client,
    caller: &Caller,
    inode: InodeId,
    mut set: SetAttributes,
) -> Result<Attributes> {
    let done = client.set_attributes(inode, set).await;
    let is_refused = |error: &Error| error.kind() == ErrorKind::NotPermitted;
    if set.only_for.is_none() || !done.as_ref().is_err_and(is_refused) {
        return done;
    }
    let needed = match set.uid.is_some() || set.gid.is_some() {
        true => CHOWN,
        false => FOWNER,
    };
    if !has(caller.pid, needed) {
        return done;
    }
    set.only_for = None;
    // Boxed because it is rare: otherwise every change's future would contain it.
    Box::pin(client.set_attributes(inode, set)).await
}

/// What a caller makes.
pub(crate) fn new_inode(caller: &Caller, kind: FileKind, mode: u32, umask: u32) -> NewInode {
    NewInode {
        kind,
        mode,
        umask,
        uid: caller.uid,
        gid: caller.gid,
        rdev: 0,
        target: Bytes::new(),
    }
}

/// Lets what the caller makes have its directory's group from the beginning, if that is passed on and the caller may give its
/// rights away: only then does it keep setgid, whatever becomes of the directory meanwhile ([`NewInode::inherited`]).
pub(crate) async fn choose_group(
    client: &Client,
    caller: &Caller,
    directory: InodeId,
    new: &mut NewInode,
) -> Result<()> {
    if !new.lends_group() || caller.uid == 0 {
        return Ok(());
    }
    // Boxed because it is rare: otherwise every create's future would contain it.
    let found = Box::pin(client.get_attributes(directory)).await?;
    let is_passed_on = found.mode & SETGID != 0 && found.gid != new.gid;
    if is_passed_on && (is_in(caller.pid, found.gid) || has(caller.pid, FSETID)) {
        new.gid = found.gid;
    }
    Ok(())
}

/// Privileges that a change of bytes removes: file capabilities always, setuid and setgid if the
/// kernel says that the caller may not keep them (CAP_FSETID).
pub(crate) fn lost_to(caller: &Caller, kill: bool) -> Privileges {
    if kill {
        Privileges::Drop {
            group: Some(caller.gid),
        }
    } else {
        Privileges::DropCapabilities
    }
}

/// Whether only an inode's owner may do this. Setting times to now needs only write permission.
pub(crate) fn is_for_owners(set: &SetAttributes) -> bool {
    let is_given = |change: Option<TimeChange>| matches!(change, Some(TimeChange::At(_)));
    set.mode.is_some()
        || set.uid.is_some()
        || set.gid.is_some()
        || is_given(set.atime)
        || is_given(set.mtime)
}

/// Whether the caller may do with everybody's files what is for their owners.
pub(crate) fn may_as_owner(caller: &Caller) -> bool {
    caller.uid == 0 || has(caller.pid, FOWNER)
}

/// Whether a thread that waits for its request is in a group, besides its own one.
fn is_in(thread: u32, group: u32) -> bool {
    tells(thread, |status| lists(status, group))
}

fn lists(status: &str, group: u32) -> bool {
    let groups = line(status, "Groups:").unwrap_or_default();
    groups
        .split_whitespace()
        .any(|listed| listed.parse::<u32>() == Ok(group))
}

/// Whether a thread that waits for its request has a capability here: in a user namespace of its own everybody has all.
fn has(thread: u32, capability: u64) -> bool {
    let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/user")).ok();
    tells(thread, |status| set(status, "CapEff:") & capability != 0)
        && namespace("self").is_some_and(|own| namespace(&thread.to_string()) == Some(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_numbers_of_the_line_of_groups_count() {
        let status = "Name:\tGroups: 7\nGid:\t5\t5\t5\t5\nGroups:\t4 27 4321 \nNStgid:\t6\n";
        assert!([4, 27, 4_321].iter().all(|group| lists(status, *group)));
        let others = [0, 2, 5, 6, 7, 21, 432];
        assert!(!others.iter().any(|group| lists(status, *group)));
        assert!(!lists("Groups:\t\n", 0) && !lists("", 0));
        assert!(!is_in(0, 0), "a thread that can't be seen");
        assert!(!has(0, FOWNER));
    }
}
