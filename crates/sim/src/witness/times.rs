//! Times of last changes: of each inode they never go back, and each change of it that was answered between two
//! looks has moved them.
//!
//! Owners date the changes of an inode one after the other, whatever their clocks show, so that this holds for
//! what was answered. It isn't asked where a client may show a time of its own clock that is wrong, or lose what it
//! has written with the time of that.

use super::largest::Largest;
use super::{Answer, Call, Event, History, Seen};
use model::{FileKind, InodeId, Timestamp};
use std::collections::BTreeMap;

/// What was seen and done of one inode.
#[derive(Default)]
struct Dated<'a> {
    /// The time of the last change, and of a directory that of its names, with the event that shows them.
    looks: Vec<(&'a Event, Timestamp, Option<Timestamp>)>,
    /// Changes of it, and of its names.
    changes: Vec<&'a Event>,
    of_names: Vec<&'a Event>,
}

/// Explains times.
pub(super) fn explain(history: &History) -> Result<(), String> {
    let mut all: BTreeMap<InodeId, Dated<'_>> = BTreeMap::new();
    for event in &history.events {
        if let Answer::Inode(seen) = &event.answer {
            let shown = (event, seen.ctime, names_of(seen));
            all.entry(seen.inode).or_default().looks.push(shown);
        }
        let is_done = matches!(
            event.answer,
            Answer::Done | Answer::Inode(_) | Answer::Leads(_)
        );
        if !is_done {
            continue;
        }
        if let Some(inode) = changed(&event.call) {
            all.entry(inode).or_default().changes.push(event);
        }
        if let Some(directory) = renamed_in(&event.call) {
            all.entry(directory).or_default().of_names.push(event);
        }
    }
    for (inode, dated) in all {
        let Dated {
            looks,
            changes,
            of_names,
        } = dated;
        let all: Vec<_> = changes.iter().chain(&of_names).copied().collect();
        let of_inode: Vec<_> = looks.iter().map(|(event, at, _)| (*event, *at)).collect();
        check(&of_inode, &all).map_err(|why| format!("ctime of inode {inode}: {why}"))?;
        let of_directory = looks
            .iter()
            .filter_map(|(event, _, at)| Some((*event, (*at)?)));
        let of_directory: Vec<_> = of_directory.collect();
        check(&of_directory, &of_names)
            .map_err(|why| format!("mtime of directory {inode}: {why}"))?;
    }
    Ok(())
}

/// Programs set times of files only.
fn names_of(seen: &Seen) -> Option<Timestamp> {
    (seen.kind == FileKind::Directory).then_some(seen.mtime)
}

/// The inode that a call changes for certain, and that it names.
fn changed(call: &Call) -> Option<InodeId> {
    match call {
        Call::SetMode { inode, .. }
        | Call::SetOwner { inode, .. }
        | Call::SetTime { inode, .. }
        | Call::SetXattr { inode, .. }
        | Call::Link { inode, .. }
        | Call::Truncate { inode, .. } => Some(*inode),
        _ => None,
    }
}

/// The directory whose names a call changes for certain: a rename may be one of two names of one file.
fn renamed_in(call: &Call) -> Option<InodeId> {
    match call {
        Call::Create { directory, .. }
        | Call::Link { directory, .. }
        | Call::Unlink { directory, .. }
        | Call::RemoveDirectory { directory, .. } => Some(*directory),
        _ => None,
    }
}

fn check(looks: &[(&Event, Timestamp)], changes: &[&Event]) -> Result<(), String> {
    // The latest time that was shown before a moment.
    let shown = Largest::of(looks.iter().map(|(it, at)| (it.ended, *at)));
    // When each change had been answered, and what had been shown before it began; only the latest counts.
    let moved = changes
        .iter()
        .filter_map(|change| Some((change.ended, shown.before(change.begun)?)));
    let moved = Largest::of(moved);
    for (look, at) in looks {
        if shown.before(look.begun).is_some_and(|shown| *at < shown) {
            return Err(format!("it went back to {at:?} in {look:?}"));
        }
        if moved.before(look.begun).is_some_and(|was| *at <= was) {
            return Err(format!("a change has left it at {at:?}, as {look:?} shows"));
        }
    }
    Ok(())
}
