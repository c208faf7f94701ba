//! Inode numbers: directories take few at first, unused ones are reused, none is used twice, under whatever owner.

use super::rules::run_in_stream;
use super::*;
use proptest::prelude::*;

fn next_inode(store: &Store) -> u64 {
    match &store.records[&Key::Counters(ROOT.fileset())] {
        Record::Counters(counters) => counters.next_inode,
        other => panic!("{other:?}"),
    }
}

fn file_in(store: &mut Store, directory: InodeId, name: &str) -> InodeId {
    store.create(directory, name, FileKind::File).unwrap().inode
}

#[test]
fn directories_with_one_file_each_take_few_numbers() {
    let mut store = Store::new();
    let before = next_inode(&store);
    for number in 0..1000 {
        let directory = store.directory(ROOT, &format!("d{number}"));
        file_in(&mut store, directory, "only");
    }
    let taken = next_inode(&store) - before;
    assert!(taken < 7000, "{taken} numbers for 2,000 inodes");
    store.audit();
}

#[test]
fn making_and_removing_a_directory_with_a_file_takes_two_numbers() {
    let mut store = Store::new();
    store.directory(ROOT, "first");
    let before = next_inode(&store);
    for _ in 0..1000 {
        let directory = store.directory(ROOT, "d");
        file_in(&mut store, directory, "f");
        store.unlink(directory, "f").unwrap();
        store.rmdir(ROOT, "d").unwrap();
    }
    let taken = next_inode(&store) - before;
    assert!(taken <= 2000 + 2 * 1024, "{taken} numbers for 2,000 inodes");
    store.audit();
}

#[test]
fn the_inodes_of_a_large_directory_are_neighbours() {
    let mut store = Store::new();
    let (a, b) = (store.directory(ROOT, "a"), store.directory(ROOT, "b"));
    let mut numbers = Vec::new();
    for number in 0..5000 {
        let name = number.to_string();
        numbers.push(file_in(&mut store, a, &name).number().0);
        file_in(&mut store, b, &name);
    }
    let jumps = numbers
        .windows(2)
        .filter(|two| two[1] != two[0] + 1)
        .count();
    assert!(jumps < 16, "{jumps} jumps in 5,000 numbers");
    store.audit();
}

proptest! {
    /// Whatever is created and removed: no number is handed out twice, and the audit finds nothing.
    #[test]
    fn no_number_is_ever_used_twice(steps in prop::collection::vec((0..6u8, 0..8usize), 1..300)) {
        let mut store = Store::new();
        let mut seen = BTreeSet::new();
        let mut directories = vec![(ROOT, ROOT, String::new())];
        let mut made = 0;
        for (what, which) in steps {
            let (directory, parent, name) = directories[which % directories.len()].clone();
            made += 1;
            let new_name = format!("n{made}");
            match what {
                0 | 1 => {
                    let inode = store.directory(directory, &new_name);
                    prop_assert!(seen.insert(inode), "{inode} again");
                    directories.push((inode, directory, new_name));
                }
                2 | 3 => {
                    let inode = file_in(&mut store, directory, &new_name);
                    prop_assert!(seen.insert(inode), "{inode} again");
                    store.unlink(directory, &new_name).unwrap();
                }
                // An empty directory replaces another, or one is removed.
                4 if directory != ROOT => {
                    let inode = store.directory(parent, &new_name);
                    prop_assert!(seen.insert(inode), "{inode} again");
                    let replaced = store.rename(
                        (parent, &new_name),
                        (parent, &name),
                        RenameMode::Replace,
                    );
                    if replaced.is_ok() {
                        directories.retain(|(id, _, _)| *id != directory);
                        directories.push((inode, parent, name));
                    } else {
                        store.rmdir(parent, &new_name).unwrap();
                    }
                }
                _ if directory != ROOT && store.rmdir(parent, &name).is_ok() => {
                    directories.retain(|(id, _, _)| *id != directory);
                }
                _ => {}
            }
        }
        store.audit();
    }
}

/// Another owner begins, whom so many numbers separate from what it finds.
fn next_owner(store: &mut Store, skipped: u64) {
    let counters = store.records.get_mut(&Key::Counters(ROOT.fileset()));
    let Some(Record::Counters(counters)) = counters else {
        panic!("a fileset has counters");
    };
    let counters = Arc::make_mut(counters);
    counters.next_inode += skipped;
    store.first_number = counters.next_inode;
}

/// Would be broken if a run of an owner before were used on, or if each large directory lost a long one with each owner.
#[test]
fn an_owner_drops_the_rests_of_runs_that_it_finds() {
    let mut store = Store::new();
    let [grown, gone, full] = ["grown", "gone", "full"].map(|name| store.directory(ROOT, name));
    for number in 0..6 {
        file_in(&mut store, grown, &format!("f{number}"));
    }
    file_in(&mut store, gone, "f");
    for number in 0..4 {
        file_in(&mut store, full, &format!("f{number}"));
    }
    next_owner(&mut store, 10_000);
    let next = next_inode(&store);
    // One had a run of eight before, the other has used up its run of four.
    let made = file_in(&mut store, grown, "next");
    assert_eq!((made.number().0, next_inode(&store)), (next, next + 4));
    let made = file_in(&mut store, full, "next");
    assert_eq!((made.number().0, next_inode(&store)), (next + 4, next + 8));
    store.unlink(gone, "f").unwrap();
    store.rmdir(ROOT, "gone").unwrap();
    let made = file_in(&mut store, ROOT, "f");
    assert_eq!((made.number().0, next_inode(&store)), (next + 8, next + 12));
    // Its own go back as ever, and grow as ever.
    let own = store.directory(ROOT, "own");
    file_in(&mut store, own, "f");
    store.unlink(own, "f").unwrap();
    store.rmdir(ROOT, "own").unwrap();
    assert_eq!(next_inode(&store), next + 13);
    for number in 0..4 {
        file_in(&mut store, grown, &format!("g{number}"));
    }
    assert_eq!(next_inode(&store), next + 13 + 8);
    store.audit();
}

proptest! {
    /// Owners end at any moment, and their last changes are lost: no number that one of them has given is given again.
    #[test]
    fn no_number_that_was_lost_with_an_owner_is_given_again(
        steps in prop::collection::vec((0..9_u8, 0..8_usize), 1..300)
    ) {
        let mut now = (Store::new(), vec![(ROOT, ROOT, String::new())]);
        let mut durable = now.clone();
        let mut seen = BTreeSet::new();
        // No owner takes more.
        let skipped = steps.len() as u64 * 1024;
        for (at, (what, which)) in steps.into_iter().enumerate() {
            let (store, directories) = &mut now;
            let (directory, parent, name) = directories[which % directories.len()].clone();
            let new_name = format!("n{at}");
            match what {
                0..3 => {
                    let inode = store.directory(directory, &new_name);
                    prop_assert!(seen.insert(inode), "{inode} again");
                    directories.push((inode, directory, new_name));
                }
                3..6 => {
                    let inode = file_in(store, directory, &new_name);
                    prop_assert!(seen.insert(inode), "{inode} again");
                    store.unlink(directory, &new_name).unwrap();
                }
                6 => durable = now.clone(),
                7 => {
                    now = durable.clone();
                    next_owner(&mut now.0, skipped);
                    durable = now.clone();
                }
                _ if directory != ROOT && store.rmdir(parent, &name).is_ok() => {
                    directories.retain(|(id, _, _)| *id != directory);
                }
                _ => {}
            }
        }
        now.0.audit();
    }
}

/// Reserves numbers for the store's session: the first of each kind.
pub(super) fn reserve(store: &mut Store, inodes: u32, data: u32) -> (InodeNumber, DataId) {
    let inode = ROOT;
    let asked = Operation::Reserve {
        inode,
        inodes,
        data,
    };
    match store.run(&asked) {
        Ok(Reply::Reserved {
            inode, first_data, ..
        }) => (inode, first_data),
        other => panic!("{other:?}"),
    }
}

fn create(name: &str) -> Operation {
    Operation::Create {
        directory: ROOT,
        name: file_name(name),
        new: new_inode(FileKind::File),
    }
}

#[test]
fn a_client_names_reserved_numbers_and_each_is_used_once() {
    let mut store = Store::new();
    store.set_session(Some(false));
    let (first, _) = reserve(&mut store, 4, 0);
    let fresh = |number: u64| Fresh {
        inode: Some(InodeNumber(number)),
        data: None,
    };
    let mut number = 0;
    let mut run = |store: &mut Store, name: &str, fresh| {
        let done = entry(run_in_stream(store, &create(name), number + 1, fresh));
        // A refusal takes a number of the stream, too.
        number += 1;
        done.map(|made| made.inode.number().0)
    };
    let refused = Err(ErrorKind::InvalidArgument);
    assert_eq!(run(&mut store, "unnamed", Fresh::default()), refused);
    assert_eq!(run(&mut store, "before", fresh(first.0 - 1)), refused);
    assert_eq!(run(&mut store, "after", fresh(first.0 + 4)), refused);
    assert_eq!(run(&mut store, "a", fresh(first.0)), Ok(first.0));
    assert_eq!(run(&mut store, "again", fresh(first.0)), refused);
    // Those left out are lost.
    assert_eq!(run(&mut store, "b", fresh(first.0 + 2)), Ok(first.0 + 2));
    assert_eq!(run(&mut store, "late", fresh(first.0 + 1)), refused);
    // An inode that is gone keeps its number.
    store.unlink(ROOT, "b").unwrap();
    assert_eq!(run(&mut store, "b", fresh(first.0 + 2)), refused);
    assert_eq!(run(&mut store, "c", fresh(first.0 + 3)), Ok(first.0 + 3));
    assert_eq!(store.count(Table::Reserved), 0, "all are used");
    store.audit();
}

#[test]
fn a_file_that_a_client_empties_gets_a_reserved_data_id() {
    let mut store = Store::new();
    store.set_session(Some(false));
    let file = store.file("f");
    store.write(file, 0, &[7; 50_000]).unwrap();
    let (_, first) = reserve(&mut store, 0, 2);
    let empty = Operation::SetAttributes {
        inode: file,
        set: SetAttributes {
            size: Some(0),
            ..SetAttributes::default()
        },
    };
    let fresh = |data: DataId| Fresh {
        inode: None,
        data: Some(data),
    };
    let wrong = run_in_stream(&mut store, &empty, 1, fresh(DataId(first.0 & !(1 << 63))));
    assert_eq!(wrong, Err(ErrorKind::InvalidArgument));
    run_in_stream(&mut store, &empty, 2, fresh(first)).unwrap();
    let data = |store: &Store| match &store.records[&Key::Inode(file)] {
        Record::Inode(inode) => inode.data,
        other => panic!("{other:?}"),
    };
    assert_eq!(data(&store), first);
    // It had no extents: it keeps its data id.
    run_in_stream(&mut store, &empty, 3, Fresh::default()).unwrap();
    assert_eq!(data(&store), first);
    store.write(file, 0, &[8; 50_000]).unwrap();
    let used = run_in_stream(&mut store, &empty, 4, fresh(first));
    assert_eq!(used, Err(ErrorKind::InvalidArgument));
    run_in_stream(&mut store, &empty, 5, fresh(DataId(first.0 + 1))).unwrap();
    store.background();
    store.audit();
}

#[test]
fn a_session_reserves_a_bounded_number_of_runs() {
    let mut store = Store::new();
    store.set_session(Some(false));
    let reserve = |inodes, data| Operation::Reserve {
        inode: ROOT,
        inodes,
        data,
    };
    for (inodes, data) in [(0, 0), (1025, 0), (0, 1025), (u32::MAX, u32::MAX)] {
        let refused = store.run(&reserve(inodes, data));
        assert_eq!(refused, Err(ErrorKind::InvalidArgument));
    }
    for _ in 0..model::limits::RESERVED_RUNS_MAX {
        store.run(&reserve(2, 2)).unwrap();
    }
    let refused = store.run(&reserve(2, 2));
    assert_eq!(refused, Err(ErrorKind::InvalidArgument));
    store.audit();
}

#[test]
fn numbers_that_a_session_gives_back_are_not_reserved_any_more() {
    let mut store = Store::new();
    store.set_session(Some(false));
    let give_back = |store: &mut Store, number: u64| {
        let inode = InodeId::new(ROOT.fileset(), InodeNumber(number));
        let back = Operation::Reserve {
            inode,
            inodes: 0,
            data: 0,
        };
        store.run(&back).map(drop)
    };
    let refused = Err(ErrorKind::InvalidArgument);
    let (first, _) = reserve(&mut store, 10, 0);
    let (second, _) = reserve(&mut store, 5, 0);
    let (first, second) = (first.0, second.0);
    let fresh = |number: u64| Fresh {
        inode: Some(InodeNumber(number)),
        data: None,
    };
    run_in_stream(&mut store, &create("a"), 1, fresh(first)).unwrap();
    // What was used isn't given back, nor what was never reserved.
    assert_eq!(give_back(&mut store, first), refused);
    assert_eq!(give_back(&mut store, second + 5), refused);
    // The rest of a run, from a number on; those before may be on their way.
    assert_eq!(give_back(&mut store, first + 3), Ok(()));
    assert_eq!(next_inode(&store), second + 5, "later ones are handed out");
    let late = run_in_stream(&mut store, &create("b"), 2, fresh(first + 3));
    assert_eq!(late.map(drop), refused);
    run_in_stream(&mut store, &create("c"), 3, fresh(first + 2)).unwrap();
    // Once more, as when its answer is lost.
    assert_eq!(give_back(&mut store, first + 3), refused);
    // The newest ones are handed out again.
    assert_eq!(give_back(&mut store, second), Ok(()));
    assert_eq!(next_inode(&store), second);
    assert_eq!(store.count(Table::Reserved), 0, "nothing is left");
    assert_eq!(reserve(&mut store, 1, 0).0, InodeNumber(second));
    store.audit();
}

/// Would be broken if a node could use up all numbers by reserving them, a thousand with each request.
#[test]
fn half_of_the_numbers_are_for_what_is_made_with_the_owners_word() {
    let mut store = Store::new();
    store.set_session(Some(false));
    let half: u64 = 1 << (InodeId::NUMBER_BITS - 1);
    let counters = store.records.get_mut(&Key::Counters(ROOT.fileset()));
    let Some(Record::Counters(counters)) = counters else {
        panic!("a fileset has counters");
    };
    Arc::make_mut(counters).next_inode = half - 3;
    let (first, _) = reserve(&mut store, 3, 1);
    assert_eq!(first.0, half - 3);
    let reserve = |inodes, data| Operation::Reserve {
        inode: ROOT,
        inodes,
        data,
    };
    let refused = store.run(&reserve(1, 1));
    assert_eq!(refused, Err(ErrorKind::NoSpace));
    store.run(&reserve(0, 1)).unwrap();
    let made = file_in(&mut store, ROOT, "made");
    assert_eq!(made.number().0, half);
    store.audit();
}

proptest! {
    /// A client makes files and directories from reserved numbers, while others make theirs: each
    /// number belongs to one inode, and the client knew its own before the owner applied anything.
    #[test]
    fn numbers_of_clients_and_owner_never_meet(
        steps in prop::collection::vec((0_u8..6, 1_u32..20), 1..120)
    ) {
        let mut store = Store::new();
        store.set_session(Some(false));
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let (mut stream, mut seen) = (0, BTreeSet::new());
        let mut parents = vec![ROOT];
        for (at, (kind, count)) in steps.into_iter().enumerate() {
            let parent = parents[at % parents.len()];
            let name = format!("n{at}");
            match kind {
                0 => {
                    let (first, _) = reserve(&mut store, count, 0);
                    runs.push((first.0, first.0 + u64::from(count)));
                }
                1 | 2 => {
                    let kind = if kind == 1 { FileKind::File } else { FileKind::Directory };
                    let made = store.create(parent, &name, kind).unwrap();
                    prop_assert!(seen.insert(made.inode));
                    if kind == FileKind::Directory {
                        parents.push(made.inode);
                    }
                }
                _ => {
                    let Some(at) = (!runs.is_empty()).then(|| at % runs.len()) else {
                        continue;
                    };
                    let number = InodeNumber(runs[at].0);
                    runs[at].0 += 1;
                    if runs[at].0 == runs[at].1 {
                        runs.swap_remove(at);
                    }
                    stream += 1;
                    let new = Operation::Create {
                        directory: parent,
                        name: file_name(&name),
                        new: new_inode(FileKind::File),
                    };
                    let fresh = Fresh { inode: Some(number), data: None };
                    let made = entry(run_in_stream(&mut store, &new, stream, fresh)).unwrap();
                    prop_assert_eq!(made.inode.number(), number);
                    prop_assert!(seen.insert(made.inode));
                }
            }
        }
        store.audit();
    }
}
