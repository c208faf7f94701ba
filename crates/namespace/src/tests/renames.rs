//! Promises of rename.

use super::*;
use model::operation::RenameMode::{Exchange, NoReplace, Replace};

#[test]
fn a_renamed_file_is_found_under_its_new_name_only() {
    let mut store = Store::new();
    let (a, b) = (store.directory(ROOT, "a"), store.directory(ROOT, "b"));
    let file = store.create(a, "f", FileKind::File).unwrap();
    let (before_a, before_b) = (store.attributes(a).unwrap(), store.attributes(b).unwrap());
    let Ok(Reply::Renamed {
        moved,
        target: None,
        orphaned: false,
    }) = store.rename((a, "f"), (b, "g"), Replace)
    else {
        panic!()
    };
    assert_eq!(moved.inode, file.inode);
    assert!(moved.ctime > file.ctime && moved.mtime == file.mtime);
    assert_eq!(store.lookup(a, "f"), Err(ErrorKind::NotFound));
    assert_eq!(store.lookup(b, "g").unwrap(), moved);
    let (after_a, after_b) = (store.attributes(a).unwrap(), store.attributes(b).unwrap());
    assert!(
        after_a.mtime > before_a.mtime
            && after_b.mtime > before_b.mtime
            && after_b.ctime > before_b.ctime
    );
    store.audit();
}

#[test]
fn renaming_between_two_names_of_one_inode_does_nothing() {
    let mut store = Store::new();
    let file = store.file("f");
    store.link(file, ROOT, "g").unwrap();
    for mode in [Replace, Exchange] {
        store.rename((ROOT, "f"), (ROOT, "g"), mode).unwrap();
        assert_eq!(store.lookup(ROOT, "f").unwrap().links, 2);
        assert_eq!(store.lookup(ROOT, "g").unwrap().links, 2);
    }
    store.rename((ROOT, "f"), (ROOT, "f"), Replace).unwrap();
    assert_eq!(
        store.rename((ROOT, "f"), (ROOT, "g"), NoReplace),
        Err(ErrorKind::Exists)
    );
}

#[test]
fn a_replaced_file_is_gone_and_its_space_is_queued() {
    let mut store = Store::new();
    let (old, new) = (store.file("old"), store.file("new"));
    store.write(old, 0, &[1; 5000]).unwrap();
    store.rename((ROOT, "new"), (ROOT, "old"), Replace).unwrap();
    assert_eq!(store.lookup(ROOT, "old").unwrap().inode, new);
    assert_eq!(store.attributes(old), Err(ErrorKind::Stale));
    store.audit();
    store.background();
    assert_eq!(
        (
            store.count(Table::Extents),
            store.count(Table::Segments),
            store.count(Table::Deads)
        ),
        (0, 0, 0)
    );
}

#[test]
fn kinds_that_do_not_fit_are_refused() {
    let mut store = Store::new();
    store.file("file");
    let full = store.directory(ROOT, "full");
    store.create(full, "x", FileKind::File).unwrap();
    store.directory(ROOT, "empty");
    assert_eq!(
        store.rename((ROOT, "file"), (ROOT, "empty"), Replace),
        Err(ErrorKind::IsDirectory)
    );
    assert_eq!(
        store.rename((ROOT, "empty"), (ROOT, "file"), Replace),
        Err(ErrorKind::NotDirectory)
    );
    assert_eq!(
        store.rename((ROOT, "empty"), (ROOT, "full"), Replace),
        Err(ErrorKind::NotEmpty)
    );
    assert_eq!(
        store.rename((ROOT, "none"), (ROOT, "full"), Replace),
        Err(ErrorKind::NotFound)
    );
    assert_eq!(
        store.rename((ROOT, "file"), (ROOT, "none"), Exchange),
        Err(ErrorKind::NotFound)
    );
    store
        .rename((ROOT, "full"), (ROOT, "empty"), Replace)
        .unwrap();
    assert_eq!(store.attributes(ROOT).unwrap().links, 3);
    store.audit();
}

#[test]
fn a_directory_takes_its_parent_and_its_link_along() {
    let mut store = Store::new();
    let (a, b) = (store.directory(ROOT, "a"), store.directory(ROOT, "b"));
    let child = store.directory(a, "child");
    store.rename((a, "child"), (b, "child"), Replace).unwrap();
    assert_eq!(
        (
            store.attributes(a).unwrap().links,
            store.attributes(b).unwrap().links
        ),
        (2, 3)
    );
    let parent = entry(store.run(&Operation::LookupParent { directory: child })).unwrap();
    assert_eq!(parent.inode, b);
    store.audit();
}

#[test]
fn a_directory_never_moves_into_its_own_subtree() {
    let mut store = Store::new();
    let a = store.directory(ROOT, "a");
    let b = store.directory(a, "b");
    let c = store.directory(b, "c");
    assert_eq!(
        store.rename((ROOT, "a"), (a, "x"), Replace),
        Err(ErrorKind::InvalidArgument)
    );
    assert_eq!(
        store.rename((ROOT, "a"), (c, "x"), Replace),
        Err(ErrorKind::InvalidArgument)
    );
    assert_eq!(
        store.rename((ROOT, "a"), (b, "c"), Exchange),
        Err(ErrorKind::InvalidArgument)
    );
    assert_eq!(
        store.rename((b, "c"), (ROOT, "a"), Exchange),
        Err(ErrorKind::InvalidArgument)
    );
    assert_eq!(
        store.rename((b, "c"), (ROOT, "a"), Replace),
        Err(ErrorKind::NotEmpty)
    );
    store.audit();
}

/// Renames with all records in memory: otherwise each ancestor costs a round.
fn quickly(
    store: &mut Store,
    (from_directory, from_name): (InodeId, &str),
    (to_directory, to_name): (InodeId, &str),
) -> Result<(), ErrorKind> {
    let operation = Operation::Rename {
        from_directory,
        from_name: file_name(from_name),
        to_directory,
        to_name: file_name(to_name),
        mode: Replace,
    };
    let stamp = store.stamp();
    match apply(&operation, &stamp, in_commit(store.commit), store) {
        Ok(outcome) => {
            store.take(outcome);
            Ok(())
        }
        Err(Stop::Refused(error)) => Err(error.kind()),
        Err(stop) => panic!("{stop:?}"),
    }
}

#[test]
fn a_directory_moves_no_deeper_than_is_quickly_looked_up() {
    let mut store = Store::new();
    let moving = store.directory(ROOT, "moving");
    let mut at = ROOT;
    for _ in 1..4096 {
        at = store.directory(at, "d");
    }
    quickly(&mut store, (ROOT, "moving"), (at, "x")).unwrap();
    quickly(&mut store, (at, "x"), (ROOT, "moving")).unwrap();
    let below = store.directory(at, "d");
    assert_eq!(
        quickly(&mut store, (ROOT, "moving"), (below, "x")),
        Err(ErrorKind::TooManyLinks)
    );
    // Within a deep directory, out of it, and a file.
    let deep = store.directory(below, "deep");
    quickly(&mut store, (below, "deep"), (below, "renamed")).unwrap();
    quickly(&mut store, (below, "renamed"), (moving, "out")).unwrap();
    assert_eq!(store.lookup(moving, "out").unwrap().inode, deep);
    store.file("f");
    quickly(&mut store, (ROOT, "f"), (below, "f")).unwrap();
}

#[test]
fn exchange_swaps_a_file_and_a_directory_of_different_parents() {
    let mut store = Store::new();
    let (a, b) = (store.directory(ROOT, "a"), store.directory(ROOT, "b"));
    let file = store.create(a, "x", FileKind::File).unwrap().inode;
    let directory = store.directory(b, "y");
    store.rename((a, "x"), (b, "y"), Exchange).unwrap();
    assert_eq!(store.lookup(a, "x").unwrap().inode, directory);
    assert_eq!(store.lookup(b, "y").unwrap().inode, file);
    assert_eq!(
        (
            store.attributes(a).unwrap().links,
            store.attributes(b).unwrap().links
        ),
        (3, 2)
    );
    assert_eq!(
        entry(store.run(&Operation::LookupParent { directory }))
            .unwrap()
            .inode,
        a
    );
    store.audit();
}

#[test]
fn a_held_target_stays_until_it_is_released() {
    let mut store = Store::new();
    let (old, _) = (store.file("old"), store.file("new"));
    store.held.insert(old);
    let reply = store.rename((ROOT, "new"), (ROOT, "old"), Replace);
    let Ok(Reply::Renamed {
        orphaned: true,
        target: Some(target),
        ..
    }) = reply
    else {
        panic!()
    };
    assert_eq!((target.inode, target.links), (old, 0));
    assert_eq!(store.audit().orphans, 1);
    store.held.clear();
    store.run(&Operation::Release { inode: old }).unwrap();
    assert_eq!(store.attributes(old), Err(ErrorKind::Stale));
    store.audit();
}

#[test]
fn names_with_one_hash_live_and_move_together() {
    let mut store = Store::new();
    let names: Vec<String> = (0..6).map(|number| format!("same-hash-{number}")).collect();
    let files: Vec<InodeId> = names.iter().map(|name| store.file(name)).collect();
    store
        .rename((ROOT, &names[0]), (ROOT, "same-hash-6"), Replace)
        .unwrap();
    store
        .rename((ROOT, &names[1]), (ROOT, "elsewhere"), Replace)
        .unwrap();
    store.audit();
    assert_eq!(store.lookup(ROOT, "same-hash-6").unwrap().inode, files[0]);
    assert_eq!(store.lookup(ROOT, &names[0]), Err(ErrorKind::NotFound));
    for (name, file) in names.iter().zip(&files).skip(2) {
        assert_eq!(store.lookup(ROOT, name).unwrap().inode, *file);
    }
    for name in names
        .iter()
        .skip(2)
        .rev()
        .map(String::as_str)
        .chain(["same-hash-6", "elsewhere"])
    {
        store.unlink(ROOT, name).unwrap();
        store.audit();
    }
    assert_eq!(store.count(Table::Names), 0, "no vacant head is left");
}

#[test]
fn the_257th_name_of_a_hash_is_refused() {
    let mut store = Store::new();
    for number in 0..256 {
        store.file(&format!("same-hash-{number}"));
    }
    assert_eq!(
        store.create(ROOT, "same-hash-256", FileKind::File),
        Err(ErrorKind::NoSpace)
    );
    assert_eq!(
        store.lookup(ROOT, "same-hash-255").unwrap().kind,
        FileKind::File
    );
    store.unlink(ROOT, "same-hash-0").unwrap();
    store.create(ROOT, "same-hash-256", FileKind::File).unwrap();
    store.audit();
}
