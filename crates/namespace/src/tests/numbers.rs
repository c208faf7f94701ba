//! Inode numbers: directories take few at first, unused ones are reused, none is used twice.

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
