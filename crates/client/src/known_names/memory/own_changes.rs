//! What changes of this client do to what is known: nothing is while they are under way, and then what their
//! answers say, if nothing else can have come between. Pure.

use super::by_number::is_root;
use super::{Asked, MADE, Memory};
use crate::known_names::change::{Became, Concerned};
use crate::known_names::directory::Named;
use model::{Attributes, FileKind, InodeId, TokenObject};

impl Memory {
    /// Returns when the change began.
    pub(in crate::known_names) fn begin_change(&mut self, concerned: &Concerned) -> u64 {
        let begun = self.next();
        for object in concerned.objects() {
            self.changing.begin(object, begun);
        }
        for name in &concerned.names {
            self.changing_names.begin(name.clone(), begun);
        }
        self.void(concerned);
        begun
    }

    /// Whether a change of names in a directory, or of its attributes, is under way that had begun by then.
    pub(in crate::known_names) fn is_changing(&self, directory: InodeId, by: Asked) -> bool {
        let objects = [
            TokenObject::Directory(directory),
            TokenObject::Inode(directory),
        ];
        let mut objects = objects.iter();
        objects.any(|object| self.changing.had_begun(object, by.0))
    }

    /// `became`: what came of the change, if that is known.
    pub(in crate::known_names) fn end_change(
        &mut self,
        concerned: &Concerned,
        begun: u64,
        became: Option<&Became>,
    ) {
        let (mut is_alone, mut is_only) = (true, true);
        for object in concerned.objects() {
            is_alone &= self.changing.end(&object, begun);
        }
        for name in &concerned.names {
            is_only &= self.changing_names.end(name, begun);
        }
        self.void(concerned);
        let ([(directory, name)], Some(became)) = (&concerned.names[..], became) else {
            return;
        };
        if let Some((made, FileKind::Directory)) = became.leads {
            self.new.note(made);
        }
        // Nobody else has changed anything in it, and of this client nothing else this name, or anything at all.
        let held = self.directories.get(directory);
        if !is_only || held.is_none_or(|held| held.held > begun) {
            return;
        }
        let named = became.leads.map(|(inode, kind)| Named {
            inode,
            kind,
            learned: MADE,
            has_others: false,
        });
        self.put(*directory, name.as_bytes(), named);
        if let Some(attributes) = became.directory.filter(|_| is_alone) {
            self.learn_changed(&attributes, begun);
        }
        self.make_room(*directory);
    }

    /// A directory has these attributes since a change in it that began then, and nobody else has changed its
    /// names.
    fn learn_changed(&mut self, attributes: &Attributes, begun: u64) {
        let inode = attributes.inode;
        let asked = Asked(begun);
        if !self.may_learn(TokenObject::Inode(inode), asked) {
            return;
        }
        if is_root(inode) {
            let learned = self.next();
            self.keep(attributes, learned);
        } else if let Some((directory, name, _)) = self.place(inode)
            && self.may_learn(TokenObject::Directory(directory), asked)
        {
            self.learn_found(directory, &name, attributes, true);
        }
    }

    /// Forgets what a change concerns; answers that were asked for before teach nothing of it.
    fn void(&mut self, concerned: &Concerned) {
        let since = self.next();
        for (directory, name) in &concerned.names {
            let forgotten = self.with(*directory, |known| {
                known.since = since;
                known.forget(name.as_bytes())
            });
            let forgotten = forgotten.flatten().into_iter();
            forgotten.for_each(|named| self.forget_attributes(named.inode));
        }
        for inode in &concerned.inodes {
            self.forget_attributes(*inode);
            if let Some(held) = self.inodes.get_mut(inode) {
                held.since = since;
            }
            self.meanwhile.note(*inode, since);
        }
    }
}
