//! What it takes until a client makes the names of a directory itself.

use super::{CHILD, Change, ROOT, entries, text};
use crate::known_names::KnownNames;
use crate::known_names::change::Became;
use crate::known_names::memory::{Looked, Making, Memory, ToLearn};
use futures::FutureExt;
use model::{FileKind, InodeId, Moment, Operation, TokenMode, TokenObject};
use std::pin::pin;
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
    for millis in 5_000..5_050 {
        assert!(!memory.wants_delegation(CHILD, at(millis)));
    }
    assert!(memory.wants_delegation(CHILD, at(5_050)));
    assert_eq!(memory.to_learn(CHILD), Some(ToLearn::Under(above)));
    memory.show(above, SHARED, at(5_050));
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
        assert!(!memory.wants_delegation(CHILD, at(2_049)));
        assert!(memory.wants_delegation(CHILD, at(2_050)));
        memory.note_tried(CHILD, false, at(3_000)..at(3_000));
        assert!(!memory.wants_delegation(CHILD, at(3_049)));
        assert!(memory.wants_delegation(CHILD, at(3_050)));
        memory.note_tried(CHILD, true, at(3_050)..at(3_050));
        assert!(!memory.wants_delegation(CHILD, at(60_000)), "it has it");
    }
}

/// Would be broken if who had the directory above alone, and shares it now, waited until nobody looks into that.
#[test]
fn a_delegation_is_asked_for_although_others_look_into_the_directory_above() {
    let mut memory = knowing_child(1_000);
    let above = TokenObject::Directory(ROOT);
    memory.show(above, EXCLUSIVE, at(2_000));
    memory.show(above, SHARED, at(2_000));
    assert!(memory.wants_delegation(CHILD, at(2_000)));
    assert_eq!(memory.to_learn(CHILD), Some(ToLearn::Nothing));
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

/// Would be broken if programs that make files at the same time kept it from being learned for ever what is in their directory.
#[test]
fn a_directory_is_worth_learning_also_beside_own_changes() {
    let mut memory = Memory::new(1 << 20);
    let names = TokenObject::Directory(ROOT);
    memory.begin_change(&Change::Flip(ROOT, 99).concerned());
    assert!(memory.wants(names, at(0)));
    memory.show(names, SHARED, at(0));
    for number in 0..4 {
        assert_eq!(memory.wants_names(ROOT), None);
        let asked = memory.begin();
        let learned = memory.learn(ROOT, text(number).as_bytes(), None, asked);
        assert_eq!(learned, None);
    }
    assert_eq!(memory.wants_names(ROOT), Some(1));
    let looked = memory.look(ROOT, text(0).as_bytes(), at(0));
    assert_eq!(looked, Looked::Unknown(vec![]), "nothing was learned");

    let inode = TokenObject::Inode(ROOT);
    assert!(memory.wants(inode, at(0)));
    memory.begin_change(&Change::Chmod(ROOT).concerned());
    assert!(!memory.wants(inode, at(0)));
}

/// Would be broken if the first files of each new directory were made by the owner, or if a try in vain were made with each file.
#[test]
fn a_directory_of_ones_own_is_asked_for_once_before_its_first_file() {
    let mut memory = holding(1 << 20);
    assert!(!memory.wants_new_delegation(CHILD, at(0)));
    let change = Change::Flip(ROOT, 0).concerned();
    let begun = memory.begin_change(&change);
    let became = Became {
        leads: Some((CHILD, FileKind::Directory)),
        directory: None,
    };
    memory.end_change(&change, begun, Some(&became));
    // Others make one beside it.
    let above = TokenObject::Directory(ROOT);
    memory.show(above, None, at(5_000));
    assert!(!memory.wants_new_delegation(CHILD, at(5_049)));
    assert!(memory.wants_new_delegation(CHILD, at(5_050)));
    assert!(!memory.wants_new_delegation(CHILD, at(60_000)));
    assert_eq!(memory.leads_to(ROOT, text(0).as_bytes()), None);
    assert_eq!(memory.bytes(), memory.recounted());
}

/// What is known of a directory in the root that is delegated, with all that it takes to make names in it.
fn making_in_child() -> Memory {
    let mut memory = knowing_child(1_000);
    for object in [TokenObject::Directory(CHILD), TokenObject::Inode(CHILD)] {
        memory.show(object, EXCLUSIVE, at(1_000));
    }
    let asked = memory.begin();
    memory.learn_plain(CHILD, asked);
    memory
}

fn make(memory: &mut Memory, number: u64) -> Making<()> {
    memory.make(CHILD, &text(number), |directory, above| {
        assert_eq!((directory.inode, above), (CHILD, Some(ROOT)));
        Some((InodeId(100 + number), *directory, ()))
    })
}

/// What the owner says of a name that it has made there.
fn made(number: u64) -> Became {
    Became {
        leads: Some((InodeId(100 + number), FileKind::File)),
        directory: Some(attributes(CHILD, FileKind::Directory)),
    }
}

/// Would be broken if a name were made beside a change that the owner does before or after it; or if it were sent because of
/// one, and stood in the way of the next one in its turn.
#[test]
fn a_name_is_made_once_own_changes_of_its_directory_have_ended() {
    let mut memory = making_in_child();
    assert!(matches!(make(&mut memory, 1), Making::Made(())));
    assert!(matches!(make(&mut memory, 1), Making::Not), "it is there");
    let change = Change::Flip(CHILD, 2).concerned();
    let begun = memory.begin_change(&change);
    assert!(matches!(make(&mut memory, 3), Making::Later));
    assert!(
        matches!(make(&mut memory, 2), Making::Not),
        "it may be there"
    );
    memory.end_change(&change, begun, Some(&made(2)));
    assert!(matches!(make(&mut memory, 2), Making::Not), "it is there");
    assert!(matches!(make(&mut memory, 3), Making::Made(())));

    // Of two at the same time nobody knows which came last.
    let changes = [4, 5].map(|number| Change::Flip(CHILD, number).concerned());
    let begun = changes.each_ref().map(|it| memory.begin_change(it));
    memory.end_change(&changes[0], begun[0], Some(&made(4)));
    assert!(matches!(make(&mut memory, 6), Making::Later));
    memory.end_change(&changes[1], begun[1], Some(&made(5)));
    assert!(matches!(make(&mut memory, 6), Making::Not));
    let asked = memory.begin();
    let found = attributes(CHILD, FileKind::Directory);
    assert!(memory.learn_attributes(&found, asked).is_some());
    assert!(matches!(make(&mut memory, 6), Making::Made(())));

    // Whoever changes its attributes may give it a list that is passed on.
    let change = Change::Chmod(CHILD).concerned();
    let begun = memory.begin_change(&change);
    assert!(matches!(make(&mut memory, 7), Making::Not));
    memory.end_change(&change, begun, None);
    assert!(matches!(make(&mut memory, 7), Making::Not));
    assert_eq!(memory.bytes(), memory.recounted());
}

/// Would be broken if who removes all files of a directory asked about each.
#[test]
fn who_looks_at_files_one_after_the_other_asks_about_others_with_them() {
    let mut memory = making_in_child();
    for number in 0..100 {
        assert!(matches!(make(&mut memory, number), Making::Made(())));
    }
    let ahead = |memory: &mut Memory, number: u64| {
        let name = text(number);
        memory.look(CHILD, name.as_bytes(), at(2_000));
        let files = memory.wanted_ahead(CHILD, name.as_bytes(), at(2_000));
        let named = files.iter().all(|file| {
            let found = memory.leads_to(CHILD, file.name.as_bytes());
            found == Some(file.inode) && file.kind == FileKind::File
        });
        assert!(named, "{files:?}");
        let numbers = files.iter().map(|file| file.inode.0 - 100);
        numbers.collect::<Vec<u64>>()
    };
    for number in 50..53 {
        assert!(ahead(&mut memory, number).is_empty());
    }
    let next: Vec<u64> = (53..85).collect();
    assert_eq!(ahead(&mut memory, 53), next);
    assert!(ahead(&mut memory, 54).is_empty(), "not again");
    for number in 54..85 {
        let object = TokenObject::Inode(InodeId(100 + number));
        memory.show(object, SHARED, at(2_000));
        // What programs come back to counts once.
        for _ in 0..10 {
            assert!(ahead(&mut memory, number).is_empty());
        }
    }
    let rest: Vec<u64> = (85..100).chain(0..49).collect();
    assert_eq!(ahead(&mut memory, 85), rest);
    assert_eq!(memory.bytes(), memory.recounted());

    // Others may look at its names: what they have of its files would be asked back.
    memory.show(TokenObject::Directory(CHILD), SHARED, at(2_000));
    for number in 86..100 {
        assert!(ahead(&mut memory, number).is_empty());
    }
}

/// Would be broken if a file that others write, and that a program looks at again and again, had its neighbours asked about.
#[test]
fn a_file_that_others_want_is_no_reason_to_ask_about_others() {
    let mut memory = making_in_child();
    for number in 0..100 {
        assert!(matches!(make(&mut memory, number), Making::Made(())));
    }
    memory.refuse(TokenObject::Inode(InodeId(100)), at(2_000));
    let ahead = |memory: &mut Memory, number: u64| {
        let name = text(number);
        memory.look(CHILD, name.as_bytes(), at(2_010));
        let files = memory.wanted_ahead(CHILD, name.as_bytes(), at(2_010));
        files.len()
    };
    assert!((0..100).all(|_| ahead(&mut memory, 0) == 0));
    assert_eq!(ahead(&mut memory, 1), 0, "no other one was looked at");
}

/// Would be broken if kernels were told of each file that they have removed once more, when its token goes back: each time they
/// forget all names.
#[test]
fn kernels_keep_nothing_of_a_file_that_is_gone() {
    let mut memory = making_in_child();
    assert!(matches!(make(&mut memory, 1), Making::Made(())));
    let (inode, name) = (InodeId(101), text(1));
    memory.show(TokenObject::Inode(inode), SHARED, at(2_000));
    let asked = memory.begin();
    let found = attributes(inode, FileKind::File);
    let learned = memory.learn(CHILD, name.as_bytes(), Some(&found), asked);
    let learned = learned.expect("its directory is held");
    let shown = memory.show_entry(CHILD, name.as_bytes(), learned);
    assert_eq!(shown, (true, true));
    let looked = memory.look(CHILD, name.as_bytes(), at(2_000));
    assert_eq!(looked, Looked::Found(found, learned));
    assert!(memory.is_shown(inode));
    memory.note_gone(inode);
    assert!(!memory.is_shown(inode) && memory.shown_in(CHILD).is_empty());
    assert!(!memory.was_used(TokenObject::Inode(inode)));
    assert_eq!(memory.bytes(), memory.recounted());
}

/// Would be broken if an end were missed, or if others that follow each other were waited for without end.
#[test]
fn who_waits_for_own_changes_waits_for_those_that_had_begun() {
    let names = KnownNames::new();
    let begin = |number| {
        names.begin_change(&Operation::Unlink {
            directory: ROOT,
            name: text(number),
        })
    };
    assert!(names.until_quiet(ROOT).now_or_never().is_some());
    let first = begin(1);
    let mut waiting = pin!(names.until_quiet(ROOT));
    assert!(waiting.as_mut().now_or_never().is_none());
    let second = begin(2);
    assert!(names.until_quiet(CHILD).now_or_never().is_some());
    assert!(waiting.as_mut().now_or_never().is_none());
    drop(first);
    assert!(waiting.now_or_never().is_some());
    let mut waiting = pin!(names.until_quiet(ROOT));
    assert!(waiting.as_mut().now_or_never().is_none());
    drop(second);
    assert!(waiting.now_or_never().is_some());
}
