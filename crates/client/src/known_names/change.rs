//! What a change concerns that may be known. Pure.

use model::{Attributes, FileKind, FileName, InodeId, Operation, Reply, TokenObject};

/// What a change of this client concerns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Concerned {
    /// Directories, each with a name that comes or goes.
    pub(super) names: Vec<(InodeId, FileName)>,
    /// Inodes whose attributes change, besides those of the directories and of what the names lead to.
    pub(super) inodes: Vec<InodeId>,
}

impl Concerned {
    /// `None` if it concerns nothing that can be known.
    pub(super) fn of(operation: &Operation) -> Option<Self> {
        let names = |names: Vec<(&InodeId, &FileName)>| {
            let names = names.into_iter();
            names
                .map(|(directory, name)| (*directory, name.clone()))
                .collect()
        };
        let (names, inodes) = match operation {
            Operation::Create {
                directory, name, ..
            }
            | Operation::CreateHeld {
                directory, name, ..
            }
            | Operation::Unlink { directory, name }
            | Operation::RemoveDirectory { directory, name } => {
                (names(vec![(directory, name)]), Vec::new())
            }
            Operation::Link {
                inode,
                directory,
                name,
            } => (names(vec![(directory, name)]), vec![*inode]),
            Operation::Rename {
                from_directory,
                from_name,
                to_directory,
                to_name,
                ..
            } => {
                let both = vec![(from_directory, from_name), (to_directory, to_name)];
                (names(both), Vec::new())
            }
            Operation::SetAttributes { inode, .. }
            | Operation::ContinueCut { inode }
            | Operation::NoteAccess { inode, .. }
            | Operation::SetXattr { inode, .. }
            | Operation::RemoveXattr { inode, .. }
            | Operation::ChangeRange { inode, .. }
            | Operation::Release { inode } => (Vec::new(), vec![*inode]),
            Operation::Publish(publish) => (Vec::new(), vec![publish.inode]),
            Operation::Share { from, to, .. } => (Vec::new(), vec![*from, *to]),
            // Looks, and what nobody can have found by a name.
            Operation::Lookup { .. }
            | Operation::LookupParent { .. }
            | Operation::GetAttributes { .. }
            | Operation::ReadDirectory { .. }
            | Operation::ReadLink { .. }
            | Operation::GetXattr { .. }
            | Operation::ListXattrs { .. }
            | Operation::ReadExtents { .. }
            | Operation::GetUsage { .. }
            | Operation::CreateUnnamed { .. }
            | Operation::Reserve { .. } => return None,
            // Only owners do these; they change neither names nor attributes.
            Operation::Reclaim { .. }
            | Operation::Condemn { .. }
            | Operation::ForgetDead { .. } => return None,
        };
        Some(Self { names, inodes })
    }

    /// The objects that change.
    pub(super) fn objects(&self) -> impl Iterator<Item = TokenObject> + '_ {
        let directories = self.names.iter();
        let directories = directories.map(|(directory, _)| TokenObject::Directory(*directory));
        let inodes = self.inodes.iter();
        directories.chain(inodes.map(|inode| TokenObject::Inode(*inode)))
    }
}

/// What came of a change of one name.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Became {
    /// Where the name leads to: to an inode that has no other one, or nowhere.
    pub(super) leads: Option<(InodeId, FileKind)>,
    /// Attributes of the name's directory after the change.
    pub(super) directory: Option<Attributes>,
}

impl Became {
    /// `None` if that isn't known.
    pub(super) fn of(operation: &Operation, reply: &Reply) -> Option<Self> {
        match (operation, reply) {
            (
                Operation::Create { .. } | Operation::CreateHeld { .. },
                Reply::Entry {
                    attributes,
                    directory,
                },
            ) => Some(Self {
                leads: Some((attributes.inode, attributes.kind)),
                directory: *directory,
            }),
            (
                Operation::Unlink { .. } | Operation::RemoveDirectory { .. },
                Reply::Removed { directory, .. },
            ) => Some(Self {
                leads: None,
                directory: Some(*directory),
            }),
            _ => None,
        }
    }
}
