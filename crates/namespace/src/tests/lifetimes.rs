//! Promises of orphans, release and unnamed files.

use super::*;

fn unnamed(store: &mut Store) -> InodeId {
    let operation = Operation::CreateUnnamed {
        directory: ROOT,
        new: new_inode(FileKind::File),
    };
    let inode = entry(store.run(&operation)).unwrap().inode;
    store.held.insert(inode);
    inode
}

#[test]
fn an_open_file_outlives_its_last_name() {
    let mut store = Store::new();
    let file = store.file("f");
    store.held.insert(file);
    store.write(file, 0, &[1; 100]).unwrap();
    let Ok(Reply::Removed {
        orphaned: true,
        attributes,
        ..
    }) = store.unlink(ROOT, "f")
    else {
        panic!()
    };
    assert_eq!(attributes.links, 0);
    store.write(file, 100, &[2; 10]).unwrap();
    assert_eq!(store.content(file).len(), 110);
    assert_eq!(
        store.link(file, ROOT, "again"),
        Err(ErrorKind::NotFound),
        "an unlinked file stays unlinked"
    );
    // Still held by another session: release does nothing and says that another must come.
    assert_eq!(
        store.run(&Operation::Release { inode: file }),
        Ok(Reply::Progress { more: true })
    );
    assert_eq!(store.audit().orphans, 1);
    store.held.clear();
    store.run(&Operation::Release { inode: file }).unwrap();
    store.audit();
    store.background();
    assert_eq!(
        store.count(Table::Extents) + store.count(Table::Segments) + store.count(Table::Orphans),
        0
    );
}

#[test]
fn releasing_what_has_names_or_is_gone_does_nothing() {
    let mut store = Store::new();
    let file = store.file("f");
    assert_eq!(
        store.run(&Operation::Release { inode: file }),
        Ok(Reply::Done)
    );
    store.lookup(ROOT, "f").unwrap();
    store.unlink(ROOT, "f").unwrap();
    assert_eq!(
        store.run(&Operation::Release { inode: file }),
        Ok(Reply::Done)
    );
}

#[test]
fn an_unnamed_file_gets_a_name_or_goes() {
    let mut store = Store::new();
    let (named, gone) = (unnamed(&mut store), unnamed(&mut store));
    assert_eq!(store.audit().orphans, 2);
    assert_eq!(store.link(named, ROOT, "f").unwrap().links, 1);
    store.held.clear();
    for inode in [named, gone] {
        store.run(&Operation::Release { inode }).unwrap();
    }
    assert_eq!(store.lookup(ROOT, "f").unwrap().inode, named);
    assert_eq!(store.attributes(gone), Err(ErrorKind::Stale));
    assert_eq!(store.audit().orphans, 0);
    let directory = Operation::CreateUnnamed {
        directory: ROOT,
        new: new_inode(FileKind::Directory),
    };
    assert_eq!(store.run(&directory), Err(ErrorKind::InvalidArgument));
}

#[test]
fn a_removed_directory_that_is_open_takes_no_entries() {
    let mut store = Store::new();
    let directory = store.directory(ROOT, "d");
    let file = store.file("f");
    store.held.insert(directory);
    let Ok(Reply::Removed { orphaned: true, .. }) = store.rmdir(ROOT, "d") else {
        panic!()
    };
    assert_eq!(
        store.create(directory, "x", FileKind::File),
        Err(ErrorKind::NotFound)
    );
    assert_eq!(store.link(file, directory, "x"), Err(ErrorKind::NotFound));
    assert_eq!(
        store.rename((ROOT, "f"), (directory, "x"), RenameMode::Replace),
        Err(ErrorKind::NotFound)
    );
    let new = new_inode(FileKind::File);
    assert_eq!(
        store.run(&Operation::CreateUnnamed { directory, new }),
        Err(ErrorKind::NotFound)
    );
    let list = Operation::ReadDirectory {
        directory,
        after: 0,
        limit: 10,
        with_attributes: false,
    };
    assert_eq!(
        store.run(&list),
        Ok(Reply::Listing {
            entries: vec![],
            end: true
        })
    );
    store.audit();
    store.held.clear();
    store.run(&Operation::Release { inode: directory }).unwrap();
    assert_eq!(store.attributes(directory), Err(ErrorKind::Stale));
    store.audit();
}

#[test]
fn after_deleting_everything_nothing_is_left_but_the_root() {
    let mut store = Store::new();
    for number in 0..20u32 {
        let directory = store.directory(ROOT, &format!("d{number}"));
        let file = store.create(directory, "f", FileKind::File).unwrap().inode;
        store.write(file, 0, &[1; 9000]).unwrap();
        store.write_inline(file, 50, &[2; 10]).unwrap();
        let (name, value) = (Bytes::from_static(b"user.x"), Bytes::from_static(b"y"));
        store
            .run(&Operation::SetXattr {
                inode: file,
                name,
                value,
                mode: model::operation::XattrMode::Set,
                drop_setgid: false,
            })
            .unwrap();
        store.unlink(directory, "f").unwrap();
        store.rmdir(ROOT, &format!("d{number}")).unwrap();
    }
    store.background();
    let left: Vec<Table> = store.records.keys().map(Key::table).collect();
    assert_eq!(left, [Table::Filesets, Table::Counters, Table::Inodes]);
    let report = store.audit();
    assert_eq!((report.inodes, report.logical, report.allocated), (1, 0, 0));
}

#[test]
fn the_audit_finds_what_is_wrong() {
    let mut whole = Store::new();
    let file = whole.file("f");
    whole.write(file, 0, &[1; 100]).unwrap();
    let (name, value) = (Bytes::from_static(b"user.x"), Bytes::from_static(b"y"));
    whole
        .run(&Operation::SetXattr {
            inode: file,
            name,
            value,
            mode: model::operation::XattrMode::Set,
            drop_setgid: false,
        })
        .unwrap();
    whole.write_inline(file, 20, &[1; 5]).unwrap();
    whole.held.insert(file);
    whole.unlink(ROOT, "f").unwrap();
    whole.directory(ROOT, "d");
    let keys: Vec<Key> = whole
        .records
        .keys()
        .filter(|key| key.table() != Table::Filesets)
        .cloned()
        .collect();
    for key in keys {
        let mut audit = Audit::new();
        for (other, record) in whole.records.iter().filter(|(other, _)| **other != key) {
            audit.add_record(other, record);
        }
        assert!(
            audit.finish().finding_count > 0,
            "the loss of {key:?} must be found"
        );
    }
}
