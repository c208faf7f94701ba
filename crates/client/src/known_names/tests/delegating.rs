//! What it takes until a client makes the names of a directory itself.

use super::{CHILD, Change, ROOT, text};
use crate::known_names::memory::{Looked, Memory, ToLearn};
use model::operation::DirectoryEntry;
use model::{FileKind, InodeId, Moment, TokenMode, TokenObject};
use std::ops::Range;
use std::time::Duration;
use testkit::inodes::attributes;

const SHARED: Option<TokenMode> = Some(TokenMode::Shared);
const EXCLUSIVE: Option<TokenMode> = Some(TokenMode::Exclusive);

fn at(millis: u64) -> Moment {
    Moment(Duration::from_millis(millis))
}

/// What is known by who holds the root's token.
fn holding(bytes_max: usize) -> Memory {
    let mut memory = Memory::new(bytes_max);
    memory.show(TokenObject::Directory(ROOT), SHARED, at(0));
    memory
}

fn entries(numbers: Range<u64>) -> Vec<DirectoryEntry> {
    let entry = |number| DirectoryEntry {
        position: number,
        name: text(number),
        inode: InodeId(100 + number),
        kind: FileKind::File,
        attributes: None,
    };
    numbers.map(entry).collect()
}

/// Lists a directory in three parts, and looks before the last one is asked for. Whether all names are known then.
fn knows_all(before_last: impl FnOnce(&mut Memory)) -> bool {
    let mut memory = holding(1 << 20);
    for after in [0, 100] {
        let asked = memory.begin();
        let part = entries(after + 1..after + 101);
        assert!(memory.learn_listing(ROOT, after, &part, false, asked));
    }
    before_last(&mut memory);
    let asked = memory.begin();
    let goes_on = memory.learn_listing(ROOT, 200, &entries(201..230), true, asked);
    let missing = memory.look(ROOT, text(999).as_bytes(), at(0));
    assert_eq!(memory.bytes(), memory.recounted());
    assert_eq!(goes_on, missing == Looked::Missing);
    goes_on
}

/// Would be broken if parts were put together between which others, or this client, may have made a name in the one before.
#[test]
fn names_that_are_learned_in_parts_are_all_known_if_nothing_has_changed_between() {
    let change = Change::Flip(ROOT, 7).concerned();
    assert!(knows_all(|_| {}));
    assert!(!knows_all(|memory| {
        memory.show(TokenObject::Directory(ROOT), None, at(0));
        memory.show(TokenObject::Directory(ROOT), SHARED, at(0));
    }));
    assert!(!knows_all(|memory| {
        memory.begin_change(&change);
    }));
    assert!(!knows_all(|memory| {
        let begun = memory.begin_change(&change);
        memory.end_change(&change, begun, None);
    }));
    assert!(!knows_all(Memory::forget_all));
}

#[test]
fn names_that_are_too_many_to_be_kept_are_not_learned_to_their_end() {
    let mut memory = holding(1 << 16);
    let goes_on = |memory: &mut Memory, part: u64| {
        let asked = memory.begin();
        let part = entries(100 * part + 1..100 * part + 101);
        memory.learn_listing(ROOT, part[0].position - 1, &part, false, asked)
    };
    let parts = (0..100).take_while(|part| goes_on(&mut memory, *part));
    let parts = parts.count();
    assert!((1..10).contains(&parts), "{parts} parts");
    for number in 1_000..1_100 {
        let asked = memory.begin();
        memory.learn(ROOT, text(number).as_bytes(), None, asked);
        assert_eq!(memory.wants_names(ROOT), None);
    }
}

/// A program waits for what is learned: that is never much beside what it has asked before.
#[test]
fn the_more_names_are_missing_the_more_parts_are_learned() {
    let mut memory = holding(32 << 20);
    let mut wanted = Vec::new();
    for number in 1..=3_000 {
        let asked = memory.begin();
        memory.learn(ROOT, text(number).as_bytes(), None, asked);
        let parts = memory.wants_names(ROOT);
        wanted.extend(parts.map(|parts| (number, parts)));
    }
    assert_eq!(wanted, [(4, 1), (32, 8), (256, 64), (2_048, 64)]);
}

/// What is known of a directory in the root, after the owner has made some names in it at that time: all of it.
fn knowing_child(millis: u64) -> Memory {
    let mut memory = holding(1 << 20);
    for object in [TokenObject::Directory(CHILD), TokenObject::Inode(CHILD)] {
        memory.show(object, SHARED, at(0));
    }
    let asked = memory.begin();
    let found = attributes(CHILD, FileKind::Directory);
    memory.learn(ROOT, text(0).as_bytes(), Some(&found), asked);
    memory.learn_listing(CHILD, 0, &[], true, asked);
    let wanted = (0..8).map(|_| memory.wants_delegation(CHILD, at(millis)));
    let wanted: Vec<_> = wanted.collect();
    assert_eq!(wanted, [[false; 7].as_slice(), &[true]].concat());
    assert_eq!(memory.to_learn(CHILD), Some(ToLearn::Nothing));
    memory
}

/// As when another client has made a directory beside it.
#[test]
fn a_delegation_is_asked_for_once_the_token_of_the_directory_above_may_be() {
    let mut memory = knowing_child(5_000);
    let (above, name) = (TokenObject::Directory(ROOT), text(0));
    memory.show(above, None, at(5_000));
    for millis in 5_000..6_000 {
        assert!(!memory.wants_delegation(CHILD, at(millis)));
    }
    assert!(memory.wants_delegation(CHILD, at(6_000)));
    assert_eq!(memory.to_learn(CHILD), Some(ToLearn::Under(above)));
    memory.show(above, SHARED, at(6_000));
    let looked_up = ToLearn::Name(ROOT, name.clone());
    assert_eq!(memory.to_learn(CHILD), Some(looked_up));
    let asked = memory.begin();
    let found = attributes(CHILD, FileKind::Directory);
    memory.learn(ROOT, name.as_bytes(), Some(&found), asked);
    assert_eq!(memory.to_learn(CHILD), Some(ToLearn::Nothing));

    // Its attributes are forgotten, and then it is moved.
    let change = Change::Chmod(CHILD).concerned();
    let begun = memory.begin_change(&change);
    memory.end_change(&change, begun, None);
    assert_eq!(memory.to_learn(CHILD), Some(ToLearn::Attributes));
    let asked = memory.begin();
    let other = attributes(InodeId(9), FileKind::Directory);
    memory.learn(ROOT, name.as_bytes(), Some(&other), asked);
    assert_eq!(memory.to_learn(CHILD), None);
}

#[test]
fn a_delegation_is_not_asked_for_again_just_after_others_wanted_a_part_of_it() {
    for object in [TokenObject::Directory(CHILD), TokenObject::Inode(CHILD)] {
        let mut memory = knowing_child(1_000);
        memory.show(object, EXCLUSIVE, at(2_000));
        assert!(memory.wants_delegation(CHILD, at(2_000)));
        // They only look.
        memory.show(object, SHARED, at(2_000));
        assert!(!memory.wants_delegation(CHILD, at(2_999)));
        assert!(memory.wants_delegation(CHILD, at(3_000)));
        memory.note_tried(CHILD, false, at(3_000));
        assert!(!memory.wants_delegation(CHILD, at(3_049)));
        assert!(memory.wants_delegation(CHILD, at(3_050)));
        memory.note_tried(CHILD, true, at(3_050));
        assert!(!memory.wants_delegation(CHILD, at(60_000)), "it has it");
    }
}

/// A program has come to it by another way than its name.
#[test]
fn a_directory_whose_name_nobody_has_looked_up_is_not_asked_for() {
    let mut memory = Memory::new(1 << 20);
    memory.show(TokenObject::Directory(CHILD), SHARED, at(0));
    let asked = memory.begin();
    memory.learn_listing(CHILD, 0, &[], true, asked);
    assert_eq!(memory.to_learn(CHILD), None);
    assert!((0..20).all(|_| !memory.wants_delegation(CHILD, at(60_000))));
}
