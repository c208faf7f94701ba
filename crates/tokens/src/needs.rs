//! What each operation of the owner needs: the tokens that other sessions must not have meanwhile.
//!
//! An operation that shows attributes needs their inode shared, so that others' writes are in them.
//! One that changes attributes needs the inode alone, one that changes bytes these bytes, one that
//! changes names the directory. The attributes of a directory change with its names, so who caches
//! them has both tokens.
//!
//! Which inode a name leads to isn't known before the operation runs: [`shown`] says whose attributes
//! an answer shows, and the owner asks again if others were writing there. What holds a session's own
//! unpublished data, or what only the owner does, needs nothing.

use crate::granter::Need;
use model::{InodeId, Operation, Reply, TokenMode, TokenObject, TokenRange};

/// What an operation needs, in no particular order.
#[must_use]
pub fn needs(operation: &Operation) -> Vec<Need> {
    match operation {
        Operation::GetAttributes { inode } => vec![inode_shared(*inode)],
        Operation::SetAttributes { inode, set } => {
            let mut needs = vec![inode_alone(*inode)];
            needs.extend(
                set.size
                    .and_then(|size| bytes_alone(*inode, size, u64::MAX)),
            );
            needs
        }
        Operation::SetXattr { inode, .. } | Operation::RemoveXattr { inode, .. } => {
            vec![inode_alone(*inode)]
        }
        Operation::Lookup { directory, .. }
        | Operation::LookupParent { directory }
        | Operation::ReadDirectory { directory, .. } => vec![names(*directory, TokenMode::Shared)],
        Operation::Create { directory, .. }
        | Operation::CreateHeld { directory, .. }
        | Operation::Unlink { directory, .. }
        | Operation::RemoveDirectory { directory, .. } => {
            vec![names(*directory, TokenMode::Exclusive)]
        }
        Operation::Link {
            inode, directory, ..
        } => vec![inode_alone(*inode), names(*directory, TokenMode::Exclusive)],
        Operation::Rename {
            from_directory,
            to_directory,
            ..
        } => {
            let mut needs = vec![names(*from_directory, TokenMode::Exclusive)];
            if to_directory != from_directory {
                needs.push(names(*to_directory, TokenMode::Exclusive));
            }
            needs
        }
        Operation::ChangeRange {
            inode,
            offset,
            length,
            ..
        } => {
            let mut needs = vec![inode_alone(*inode)];
            needs.extend(bytes_alone(*inode, *offset, offset.saturating_add(*length)));
            needs
        }
        Operation::Share {
            from,
            from_offset,
            to,
            to_offset,
            length,
        } => {
            let mut needs = vec![inode_alone(*to)];
            needs.extend(bytes_alone(
                *to,
                *to_offset,
                to_offset.saturating_add(*length),
            ));
            if from != to {
                needs.push(inode_shared(*from));
            }
            let read = TokenRange::new(*from_offset, from_offset.saturating_add(*length));
            needs.extend(
                read.map(|range| need(TokenObject::Bytes(*from), TokenMode::Shared, range)),
            );
            needs
        }
        // The session has tokens for what it publishes, and reads extents under its own.
        Operation::Publish(_) | Operation::ReadExtents { .. } => Vec::new(),
        // Nobody caches what these read or change, or only until the next look.
        Operation::CreateUnnamed { .. }
        | Operation::NoteAccess { .. }
        | Operation::ReadLink { .. }
        | Operation::GetXattr { .. }
        | Operation::ListXattrs { .. }
        | Operation::GetUsage { .. }
        | Operation::Reserve { .. } => Vec::new(),
        // Steps of the owner itself.
        Operation::ContinueCut { .. }
        | Operation::Release { .. }
        | Operation::Reclaim { .. }
        | Operation::Condemn { .. }
        | Operation::ForgetDead { .. } => Vec::new(),
    }
}

/// Whether an operation's answer shows attributes of inodes that it can't name.
#[must_use]
pub fn shows(operation: &Operation) -> bool {
    match operation {
        Operation::Lookup { .. } | Operation::LookupParent { .. } => true,
        Operation::ReadDirectory {
            with_attributes, ..
        } => *with_attributes,
        _ => false,
    }
}

/// The inodes whose attributes an answer shows although its operation couldn't name them.
pub fn shown<'a>(
    operation: &Operation,
    reply: &'a Reply,
) -> impl Iterator<Item = InodeId> + use<'a> {
    let (entry, entries) = match (operation, reply) {
        (
            Operation::Lookup { .. } | Operation::LookupParent { .. },
            Reply::Entry { attributes, .. },
        ) => (Some(attributes.inode), &[][..]),
        (Operation::ReadDirectory { .. }, Reply::Listing { entries, .. }) => (None, &entries[..]),
        _ => (None, &[][..]),
    };
    let listed = entries.iter().filter_map(|entry| entry.attributes.as_ref());
    entry
        .into_iter()
        .chain(listed.map(|attributes| attributes.inode))
}

/// What an answer needs that shows an inode's attributes.
#[must_use]
pub fn inode_shared(inode: InodeId) -> Need {
    need(
        TokenObject::Inode(inode),
        TokenMode::Shared,
        TokenRange::ALL,
    )
}

fn inode_alone(inode: InodeId) -> Need {
    let object = TokenObject::Inode(inode);
    need(object, TokenMode::Exclusive, TokenRange::ALL)
}

fn names(directory: InodeId, mode: TokenMode) -> Need {
    need(TokenObject::Directory(directory), mode, TokenRange::ALL)
}

/// `None` for no bytes.
fn bytes_alone(inode: InodeId, from: u64, to: u64) -> Option<Need> {
    let range = TokenRange::new(from, to)?;
    Some(need(TokenObject::Bytes(inode), TokenMode::Exclusive, range))
}

fn need(object: TokenObject, mode: TokenMode, range: TokenRange) -> Need {
    Need {
        object,
        mode,
        ranges: vec![range],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::SetAttributes;
    use model::operation::RangeChange;
    use model::token::check_parts;

    const FILE: InodeId = InodeId(7);
    const OTHER: InodeId = InodeId(8);

    fn sound(operation: &Operation) -> Vec<Need> {
        let needs = needs(operation);
        for need in &needs {
            let checked = check_parts(need.object, Some(need.mode), &need.ranges);
            assert!(checked.is_ok(), "{operation:?} needs {need:?}");
        }
        needs
    }

    fn truncate(size: u64) -> Operation {
        let set = SetAttributes {
            size: Some(size),
            ..SetAttributes::default()
        };
        Operation::SetAttributes { inode: FILE, set }
    }

    #[test]
    fn a_truncate_needs_what_it_cuts_and_a_chmod_no_bytes() {
        let cut = TokenRange {
            start: 4096,
            end: u64::MAX,
        };
        let bytes = need(TokenObject::Bytes(FILE), TokenMode::Exclusive, cut);
        assert_eq!(sound(&truncate(4096)), [inode_alone(FILE), bytes]);
        assert_eq!(sound(&truncate(u64::MAX)), [inode_alone(FILE)]);
        let chmod = Operation::SetAttributes {
            inode: FILE,
            set: SetAttributes::default(),
        };
        assert_eq!(sound(&chmod), [inode_alone(FILE)]);
    }

    #[test]
    fn a_range_that_ends_behind_all_offsets_is_cut_there() {
        let punch = |offset, length| Operation::ChangeRange {
            inode: FILE,
            offset,
            length,
            change: RangeChange::Punch,
            keep_size: true,
        };
        assert_eq!(sound(&punch(u64::MAX - 1, u64::MAX)).len(), 2);
        assert_eq!(sound(&punch(5, 0)).len(), 1);
    }

    #[test]
    fn a_copy_inside_a_file_needs_it_alone_once() {
        let copy = |to| Operation::Share {
            from: FILE,
            from_offset: 0,
            to,
            to_offset: 1 << 20,
            length: 1 << 20,
        };
        assert_eq!(sound(&copy(FILE)).len(), 3);
        let two = sound(&copy(OTHER));
        assert!(two.contains(&inode_alone(OTHER)) && two.contains(&inode_shared(FILE)));
    }

    #[test]
    fn a_rename_inside_a_directory_needs_it_once() {
        let name = |name: &str| model::FileName::new(name.as_bytes()).expect("a name");
        let rename = |to| Operation::Rename {
            from_directory: FILE,
            from_name: name("a"),
            to_directory: to,
            to_name: name("b"),
            mode: model::operation::RenameMode::Replace,
        };
        assert_eq!(sound(&rename(FILE)).len(), 1);
        assert_eq!(sound(&rename(OTHER)).len(), 2);
    }
}
