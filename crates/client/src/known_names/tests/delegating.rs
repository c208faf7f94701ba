//! What it takes until a client makes the names of a directory itself.

use super::{Change, ROOT, text};
use crate::known_names::memory::{Looked, Memory};
use model::operation::DirectoryEntry;
use model::{FileKind, InodeId, Moment, TokenMode, TokenObject};
use std::ops::Range;

const SHARED: Option<TokenMode> = Some(TokenMode::Shared);

/// What is known by who holds the root's token.
fn holding(bytes_max: usize) -> Memory {
    let mut memory = Memory::new(bytes_max);
    memory.show(TokenObject::Directory(ROOT), SHARED, Moment::default());
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
    let missing = memory.look(ROOT, text(999).as_bytes(), Moment::default());
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
        memory.show(TokenObject::Directory(ROOT), None, Moment::default());
        memory.show(TokenObject::Directory(ROOT), SHARED, Moment::default());
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
