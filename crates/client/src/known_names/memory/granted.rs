//! What is known of attributes that came with the tokens of their inodes. Pure.
//!
//! The owner looks at them after it has granted the token, so nobody else has changed them until the client holds it; what
//! the client has given back before the answer came isn't held, and what it holds by then since another answer isn't learned
//! from this one. What the token doesn't keep away are the client's own changes: they are sent beside the question, and of
//! inodes without a token nothing else notes them. Those of other names in its directory don't matter: of several programs
//! that remove files of one directory at the same time there is always one under way.

use super::{Asked, Memory};
use crate::known_names::table_bytes;
use model::operation::DirectoryEntry;
use model::{Attributes, FileKind, InodeId, TokenObject};
use std::ops::Range;
use world::Map;

/// Most inodes of which own changes are noted one by one. With more of them all count as changed.
const CHANGED_MAX: usize = 4_096;

/// What an answer has brought with tokens.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Came {
    /// In the order in which their tokens were asked for.
    attributes: Vec<Attributes>,
    /// What came to be held by it has one of these numbers.
    shown: Range<u64>,
}

impl Came {
    /// With tokens that were shown after the number `before`, and nothing else until the number `after`.
    pub(crate) fn new(attributes: Vec<Attributes>, before: u64, after: u64) -> Self {
        Self {
            attributes,
            shown: before + 1..after + 1,
        }
    }

    pub(crate) fn attributes(&self) -> &[Attributes] {
        &self.attributes
    }
}

/// Own changes beside questions for tokens.
#[derive(Default)]
pub(super) struct Meanwhile {
    /// Questions that have no answer.
    asking: usize,
    /// When an own change of each began or ended last.
    changed: Map<InodeId, u64>,
    /// The same of all others, if there were too many.
    all: u64,
}

impl Meanwhile {
    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        table_bytes::<(InodeId, u64)>(self.changed.capacity())
    }

    /// An own change of an inode begins or ends.
    pub(super) fn note(&mut self, inode: InodeId, now: u64) {
        if self.asking == 0 {
            return;
        }
        if self.changed.len() >= CHANGED_MAX {
            self.changed.clear();
            self.all = now;
        }
        self.changed.insert(inode, now);
    }

    fn has_changed(&self, inode: InodeId, since: Asked) -> bool {
        let changed = self.changed.get(&inode);
        changed.is_some_and(|at| *at > since.0) || self.all > since.0
    }
}

impl Memory {
    /// Tokens are asked for that come with attributes.
    pub(in crate::known_names) fn begin_to_know(&mut self) {
        self.meanwhile.asking += 1;
    }

    /// Nothing more is learned from the answer.
    pub(in crate::known_names) fn end_to_know(&mut self) {
        self.meanwhile.asking -= 1;
        if self.meanwhile.asking == 0 {
            self.meanwhile.changed = Map::default();
        }
    }

    /// An entry of a directory has attributes that came with their token, which was asked for then.
    pub(in crate::known_names) fn learn_granted(
        &mut self,
        directory: InodeId,
        entry: &DirectoryEntry,
        came: &Came,
        asked: Asked,
    ) {
        let Some(attributes) = &entry.attributes else {
            return;
        };
        let name = entry.name.as_bytes();
        let is_quiet = self.may_learn(TokenObject::Directory(directory), asked);
        // Own changes of other names in it don't matter. One of this name has had it forgotten, or it was learned anew.
        let is_there = self.directories.get(&directory).is_some_and(|known| {
            let named = known.find(name).flatten();
            let named = named.filter(|named| named.inode == attributes.inode);
            let is_since_before = |learned: u64| known.held <= asked.0 && learned <= asked.0;
            named.is_some_and(|named| is_quiet || is_since_before(named.learned))
        });
        // A directory's change with its names, which have a token of their own.
        let is_file = attributes.kind != FileKind::Directory;
        if is_there && is_file && self.has_come(attributes.inode, came, asked) {
            self.learn_found(directory, name, attributes, true);
        }
    }

    /// Whether an inode is held since this came, and this client hasn't changed it since that was asked for.
    fn has_come(&self, inode: InodeId, came: &Came, asked: Asked) -> bool {
        let held = self.inodes.get(&inode).filter(|held| held.is_exact);
        held.is_some_and(|held| came.shown.contains(&held.since))
            && !self.changing.contains(&TokenObject::Inode(inode))
            && !self.meanwhile.has_changed(inode, asked)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Looked;
    use super::*;
    use crate::known_names::change::Concerned;
    use model::{FileName, Moment, Operation, TokenMode};
    use testkit::inodes::attributes;

    #[test]
    fn own_changes_are_noted_while_tokens_are_asked_for_and_too_many_count_for_all() {
        let mut meanwhile = Meanwhile::default();
        let [one, other] = [InodeId(1), InodeId(2)];
        meanwhile.note(one, 5);
        assert!(meanwhile.changed.is_empty());
        meanwhile.asking = 1;
        meanwhile.note(one, 7);
        assert!(meanwhile.has_changed(one, Asked(6)) && !meanwhile.has_changed(one, Asked(7)));
        assert!(!meanwhile.has_changed(other, Asked(6)));
        for number in 0..2 * CHANGED_MAX as u64 {
            meanwhile.note(InodeId(10 + number), 8 + number);
        }
        assert!(meanwhile.changed.len() <= CHANGED_MAX);
        assert!(meanwhile.has_changed(one, Asked(6)), "it is forgotten");
        assert!(meanwhile.has_changed(other, Asked(6)));
    }

    /// Would be broken if a grant that its recall has overtaken counted once the next one is there: others have changed the
    /// file in between.
    #[test]
    fn what_came_with_a_token_that_has_gone_back_is_not_known_under_the_next_one() {
        let mut memory = Memory::new(1 << 20);
        let (now, shared) = (Moment::default(), Some(TokenMode::Shared));
        let (directory, file) = (InodeId(1), InodeId(2));
        let name = FileName::new(b"f").expect("a name");
        let before = attributes(file, FileKind::File);
        let since = Attributes {
            mode: 0o600,
            ..before
        };
        let entry = |attributes| DirectoryEntry {
            position: 3,
            name: name.clone(),
            inode: file,
            kind: FileKind::File,
            attributes: Some(attributes),
        };
        let mode = |memory: &mut Memory| match memory.look(directory, name.as_bytes(), now) {
            Looked::Found(found, _) => Some(found.mode),
            Looked::Missing | Looked::Unknown(_) => None,
        };
        memory.show(TokenObject::Directory(directory), shared, now);
        memory.begin_to_know();
        let asked = memory.begin();
        // The next one comes before the answer, and with it what others have made of the file.
        memory.show(TokenObject::Inode(file), shared, now);
        let asked_again = memory.begin();
        memory.learn(directory, name.as_bytes(), Some(&since), asked_again);
        assert_eq!(mode(&mut memory), Some(since.mode));
        let count = memory.count();
        let came = Came::new(vec![before], count, count);
        memory.learn_granted(directory, &entry(before), &came, asked);
        assert_eq!(mode(&mut memory), Some(since.mode), "it had gone back");

        // What comes to be held by an answer is known by it.
        memory.show(TokenObject::Inode(file), None, now);
        assert_eq!(mode(&mut memory), None);
        let count = memory.count();
        memory.show(TokenObject::Inode(file), shared, now);
        let came = Came::new(vec![since], count, memory.count());
        memory.learn_granted(directory, &entry(since), &came, asked);
        assert_eq!(mode(&mut memory), Some(since.mode));
        memory.end_to_know();
    }

    /// Would be broken if several programs that remove files of one directory at the same time asked about each.
    #[test]
    fn what_came_is_known_beside_own_changes_of_other_names() {
        let mut memory = Memory::new(1 << 20);
        let (now, shared) = (Moment::default(), Some(TokenMode::Shared));
        let directory = InodeId(1);
        let text = |number: u64| {
            let text = format!("f{number}");
            FileName::new(text.as_bytes()).expect("a name")
        };
        let inode = |number: u64| InodeId(10 + number);
        let found = |number: u64| attributes(inode(number), FileKind::File);
        let removal = |number: u64| {
            let name = text(number);
            let unlink = Operation::Unlink { directory, name };
            Concerned::of(&unlink).expect("a name changes")
        };
        memory.show(TokenObject::Directory(directory), shared, now);
        let before = memory.begin();
        for number in 0..5 {
            let (name, found) = (text(number), found(number));
            memory.learn(directory, name.as_bytes(), Some(&found), before);
        }
        let [first, second, third] = [removal(0), removal(1), removal(2)];
        let first_begun = memory.begin_change(&first);
        memory.begin_to_know();
        let asked = memory.begin();
        memory.end_change(&first, first_begun, None);
        // One whose name this client changes meanwhile, and leads there again: nobody knows with which attributes.
        let second_begun = memory.begin_change(&second);
        memory.end_change(&second, second_begun, None);
        let since = memory.begin();
        memory.learn(directory, text(1).as_bytes(), Some(&found(1)), since);
        let third_begun = memory.begin_change(&third);

        let count = memory.count();
        for number in 0..5 {
            memory.show(TokenObject::Inode(inode(number)), shared, now);
        }
        let came = Came::new((0..5).map(found).collect(), count, memory.count());
        for number in 0..5 {
            let entry = DirectoryEntry {
                position: 3 + number,
                name: text(number),
                inode: inode(number),
                kind: FileKind::File,
                attributes: Some(found(number)),
            };
            memory.learn_granted(directory, &entry, &came, asked);
        }
        memory.end_to_know();
        let known = (0..5).filter(|number| {
            let looked = memory.look(directory, text(*number).as_bytes(), now);
            matches!(looked, Looked::Found(attributes, _) if attributes == found(*number))
        });
        let known: Vec<u64> = known.collect();
        assert_eq!(known, [3, 4]);
        memory.end_change(&third, third_begun, None);
        assert_eq!(memory.bytes(), memory.recounted());
    }
}
