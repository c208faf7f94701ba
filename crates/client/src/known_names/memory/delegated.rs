//! What is known of directories in which the client makes names itself. Pure.
//!
//! It does so under the exclusive tokens of the directory and of its inode, as long as it knows everything that the owner would
//! look at: that the name is free, the directory's attributes (so it holds the token of the directory with its name: whoever
//! removes or moves that name waits for it), and that no default ACL is passed on. The inode's is exclusive because each name
//! changes the directory's times: who looks only at these, by number or as an entry, needs nothing else.

use super::by_number::is_root;
use super::{Asked, Inode, MADE, Memory};
use crate::known_names::directory::Named;
use crate::known_names::table_bytes;
use model::{Attributes, FileKind, FileName, InodeId, TokenObject};
use std::ops::Range;
use tokens::Moment;
use world::Set;

/// Most directories that count as new. With more of them all are forgotten.
const NEW_MAX: usize = 4_096;

/// What comes of making a name here.
pub(crate) enum Making<T> {
    /// It is made.
    Made(T),
    /// Only what goes by is in the way: changes of this client in the directory, say, that the owner hasn't answered.
    Later,
    /// The owner must be asked.
    Not,
}

/// What is to be learned next until a directory's attributes are known under its tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ToLearn {
    /// Nothing: they are.
    Nothing,
    /// Something under this token, which isn't held.
    Under(TokenObject),
    /// Where this name leads to, which has led to the directory.
    Name(InodeId, FileName),
    /// The attributes.
    Attributes,
}

/// Directories that this client has made, and in which it hasn't tried to make files itself. Others may have come to them.
#[derive(Default)]
pub(super) struct New(Set<InodeId>);

impl New {
    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        table_bytes::<InodeId>(self.0.capacity())
    }

    /// This client has made a directory.
    pub(super) fn note(&mut self, directory: InodeId) {
        if self.0.len() >= NEW_MAX {
            self.0.clear();
        }
        self.0.insert(directory);
    }
}

impl Memory {
    /// Makes a name in a directory, with `make`: it gets the directory's attributes and the directory with its name, and
    /// says what it made: the file's inode, and the directory's attributes afterwards.
    ///
    /// Never beside a change of this client in the directory, which the owner may do before or afterwards: the new file's
    /// times follow those of its directory, and what has begun to be sent isn't behind what is made from now on.
    pub(in crate::known_names) fn make<T>(
        &mut self,
        directory: InodeId,
        name: &FileName,
        make: impl FnOnce(&Attributes, Option<InodeId>) -> Option<(InodeId, Attributes, T)>,
    ) -> Making<T> {
        if !self.may_make(directory, name) {
            return Making::Not;
        }
        if self.is_changing(directory, self.begin()) {
            return Making::Later;
        }
        let made = self.make_now(directory, name, make);
        made.map_or(Making::Not, Making::Made)
    }

    /// Whether a name is free in a directory in which the client makes names.
    fn may_make(&mut self, directory: InodeId, name: &FileName) -> bool {
        let Some(known) = self.directories.get_mut(&directory) else {
            return false;
        };
        let is_free = known.find(name.as_bytes()) == Some(None);
        if !known.is_delegated || !is_free {
            return false;
        }
        known.was_used = true;
        let Some(held) = self.inodes.get_mut(&directory) else {
            return false;
        };
        held.was_used = true;
        held.is_alone && held.is_plain()
    }

    fn make_now<T>(
        &mut self,
        directory: InodeId,
        name: &FileName,
        make: impl FnOnce(&Attributes, Option<InodeId>) -> Option<(InodeId, Attributes, T)>,
    ) -> Option<T> {
        let (attributes, above) = match is_root(directory) {
            true => (self.known_directory(directory)?.0, None),
            false => {
                let (above, name, named) = self.place(directory)?;
                (self.known_attributes(&named)?, Some((above, name)))
            }
        };
        let above_inode = above.as_ref().map(|(above, _)| *above);
        let (inode, after, made) = make(&attributes, above_inode)?;
        // As a change of this client that has been answered.
        let since = self.next();
        self.with(directory, |known| {
            (known.since, known.used) = (since, since);
            known.note_made_here();
            known.forget(name.as_bytes())
        });
        let named = Named {
            inode,
            kind: FileKind::File,
            learned: MADE,
            has_others: false,
        };
        self.put(directory, name.as_bytes(), Some(named));
        match above {
            None => {
                let learned = self.next();
                self.keep(&after, learned);
            }
            Some((above, name)) => self.learn_found(above, &name, &after, true),
        }
        self.make_room(directory);
        Some(made)
    }

    /// The owner has made a name for this client. Whether it should ask for a delegation of the directory now: nobody else has
    /// wanted any of the tokens that this takes a moment ago.
    pub(in crate::known_names) fn wants_delegation(
        &mut self,
        directory: InodeId,
        now: Moment,
    ) -> bool {
        let known = self.directories.get_mut(&directory);
        known.is_some_and(|known| known.note_had_made(now)) && self.may_ask(directory, now)
    }

    /// A file is about to be made in a directory. Whether the client should ask for a delegation before, because it has made the
    /// directory itself: once, when nobody else has wanted any of the tokens a moment ago.
    pub(in crate::known_names) fn wants_new_delegation(
        &mut self,
        directory: InodeId,
        now: Moment,
    ) -> bool {
        let wants = self.new.0.contains(&directory) && self.may_ask(directory, now);
        wants && self.new.0.remove(&directory)
    }

    /// Whether nobody else has wanted any of the tokens a moment ago that a delegation of a directory takes.
    fn may_ask(&self, directory: InodeId, now: Moment) -> bool {
        let Some([above, own @ ..]) = self.needed(directory) else {
            return false;
        };
        // Others may look into the one above: that is shared.
        above.is_none_or(|above| self.is_held(above) || self.wants(above, now))
            && own.into_iter().flatten().all(|object| {
                let is_free = self.is_held(object) && !self.is_refused(object, now);
                is_free || self.wants(object, now)
            })
    }

    /// The client has asked for a delegation at this time, and has it or not.
    pub(in crate::known_names) fn note_tried(
        &mut self,
        directory: InodeId,
        is_delegated: bool,
        tried: Range<Moment>,
    ) {
        if let Some(known) = self.directories.get_mut(&directory) {
            known.note_tried(is_delegated, tried);
        }
    }

    /// Whether a create may wait for what is in its way: none has done so in vain a moment ago.
    pub(in crate::known_names) fn may_wait(&self, directory: InodeId, now: Moment) -> bool {
        let known = self.directories.get(&directory);
        known.is_some_and(|known| known.may_wait(now))
    }

    /// A create has waited, and the owner must be asked all the same.
    pub(in crate::known_names) fn note_waited(&mut self, directory: InodeId, now: Moment) {
        if let Some(known) = self.directories.get_mut(&directory) {
            known.note_waited(now);
        }
    }

    /// The tokens under which a directory's attributes are known. `None` if nobody knows where its name is.
    fn needed(&self, directory: InodeId) -> Option<[Option<TokenObject>; 3]> {
        let above = match is_root(directory) {
            true => None,
            false => Some(TokenObject::Directory(self.places.of(directory)?.0)),
        };
        Some([
            above,
            Some(TokenObject::Inode(directory)),
            Some(TokenObject::Directory(directory)),
        ])
    }

    /// What is to be learned next of a directory's attributes. `None` if they can't be known now: its name isn't where it
    /// was found last.
    pub(in crate::known_names) fn to_learn(&self, directory: InodeId) -> Option<ToLearn> {
        if self.known_directory(directory).is_some() {
            return Some(ToLearn::Nothing);
        }
        let mut needed = self.needed(directory)?.into_iter().flatten();
        if let Some(object) = needed.find(|object| !self.is_held(*object)) {
            return Some(ToLearn::Under(object));
        }
        if is_root(directory) {
            return Some(ToLearn::Attributes);
        }
        let (above, name) = self.places.of(directory)?;
        match self.directories.get(&above)?.find(&name) {
            None => {
                let name = FileName::new(&name).expect("a name that was found");
                Some(ToLearn::Name(above, name))
            }
            Some(Some(named)) if named.inode == directory => Some(ToLearn::Attributes),
            Some(_) => None,
        }
    }

    /// Whether a directory is delegated.
    pub(in crate::known_names) fn is_delegated(&self, directory: InodeId) -> bool {
        let known = self.directories.get(&directory);
        known.is_some_and(|known| known.is_delegated)
    }

    /// The owner has said, to what was asked then, that a directory has no default ACL.
    pub(in crate::known_names) fn learn_plain(&mut self, directory: InodeId, asked: Asked) {
        if self.may_learn(TokenObject::Inode(directory), asked)
            && let Some(held) = self.inodes.get_mut(&directory)
        {
            held.plain = Some(held.since);
        }
    }

    /// Whether a directory is known to have no default ACL.
    pub(in crate::known_names) fn is_plain(&self, directory: InodeId) -> bool {
        let held = self.inodes.get(&directory);
        held.is_some_and(Inode::is_plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_directories_count_as_new_than_may() {
        let mut new = New::default();
        for number in 0..3 * NEW_MAX as u64 {
            new.note(InodeId(number));
            assert!(new.0.len() <= NEW_MAX && new.0.contains(&InodeId(number)));
        }
    }
}
