//! Promises of names, attributes, links, listings, extended attributes and slots.

use super::numbers::reserve;
use super::*;
use model::{Privileges, TimeChange, limits, operation::XattrMode};

#[test]
fn a_new_file_is_found_with_its_owner_and_rights() {
    let mut store = Store::new();
    let before = store.attributes(ROOT).unwrap();
    let made = store.create(ROOT, "f", FileKind::File).unwrap();
    assert_eq!(
        (made.mode, made.uid, made.gid, made.links, made.size),
        (0o644, 10, 20, 1, 0)
    );
    assert_eq!(store.lookup(ROOT, "f").unwrap(), made);
    assert_eq!(
        store.create(ROOT, "f", FileKind::File),
        Err(ErrorKind::Exists)
    );
    assert_eq!(store.lookup(ROOT, "g"), Err(ErrorKind::NotFound));
    assert_eq!(store.lookup(made.inode, "g"), Err(ErrorKind::NotDirectory));
    let after = store.attributes(ROOT).unwrap();
    assert!(after.mtime > before.mtime && after.ctime == after.mtime && after.links == 2);
    store.audit();
}

#[test]
fn a_setgid_directory_passes_its_group_on() {
    let mut store = Store::new();
    let directory = store.directory(ROOT, "d");
    store
        .set(
            directory,
            SetAttributes {
                mode: Some(0o2755),
                gid: Some(77),
                ..Default::default()
            },
        )
        .unwrap();
    let file = store.create(directory, "f", FileKind::File).unwrap();
    let child = store.create(directory, "d", FileKind::Directory).unwrap();
    assert_eq!((file.gid, file.mode), (77, 0o644));
    assert_eq!((child.gid, child.mode), (77, 0o2644));
}

/// As Linux judges from 6.0 on, and leaves to file systems before (`mode_strip_sgid`).
#[test]
fn a_program_lends_the_group_of_a_setgid_directory_only_if_its_maker_is_in_it() {
    let mut store = Store::new();
    let (shared, plain) = (store.directory(ROOT, "d"), store.directory(ROOT, "e"));
    for (directory, mode) in [(shared, 0o2777), (plain, 0o777)] {
        let set = SetAttributes {
            mode: Some(mode),
            gid: Some(77),
            ..Default::default()
        };
        store.set(directory, set).unwrap();
    }
    let (root, member, other) = ((0, 0), (10, 77), (10, 20));
    let (file, fifo) = (FileKind::File, FileKind::Fifo);
    let cases = [
        (shared, file, other, 0o6755, 0, (0o4755, 77)),
        (shared, fifo, other, 0o2755, 0, (0o755, 77)),
        (shared, file, other, 0o2755, 0o777, (0, 77)),
        (shared, file, other, 0o2745, 0, (0o2745, 77)),
        (shared, file, member, 0o6755, 0, (0o6755, 77)),
        (shared, file, root, 0o2755, 0, (0o2755, 77)),
        (shared, FileKind::Directory, other, 0o755, 0, (0o2755, 77)),
        (plain, file, other, 0o2755, 0, (0o2755, 20)),
    ];
    for (number, case) in cases.into_iter().enumerate() {
        let (directory, kind, (uid, gid), mode, umask, made) = case;
        let new = NewInode {
            mode,
            umask,
            uid,
            gid,
            ..new_inode(kind)
        };
        let make = Operation::Create {
            directory,
            name: file_name(&number.to_string()),
            new: new.clone(),
        };
        let parent = store.attributes(directory).unwrap();
        let found = entry(store.run(&make)).unwrap();
        assert_eq!((found.mode, found.gid), made, "{number}: {new:?}");
        if kind == file {
            let (here, _) = new.make_in(&parent, found.inode.number(), found.ctime);
            assert_eq!((here.mode, here.gid), made, "{number}, without the owner");
        }
    }
    store.audit();
}

#[test]
fn children_of_a_directory_have_neighbouring_numbers() {
    let mut store = Store::new();
    let (a, b) = (store.directory(ROOT, "a"), store.directory(ROOT, "b"));
    let numbers = |store: &mut Store, directory, tag: &str| -> Vec<u64> {
        let make = |number: u32| {
            store
                .create(directory, &format!("{tag}{number}"), FileKind::File)
                .unwrap()
                .inode
                .0
        };
        (0..64).map(make).collect()
    };
    for directory in [a, b] {
        let first = numbers(&mut store, directory, "x");
        assert!(first.windows(2).all(|pair| pair[1] == pair[0] + 1));
    }
    // Each run is twice as long as the previous one: 128 numbers meet at most two run ends.
    let second: Vec<u64> = numbers(&mut store, a, "y")
        .into_iter()
        .chain(numbers(&mut store, a, "z"))
        .collect();
    let jumps = second.windows(2).filter(|pair| pair[1] != pair[0] + 1);
    assert!(jumps.count() <= 2);
    store.audit();
}

#[test]
fn unlink_and_rmdir_refuse_each_others_kinds() {
    let mut store = Store::new();
    store.file("f");
    let directory = store.directory(ROOT, "d");
    store.create(directory, "x", FileKind::File).unwrap();
    assert_eq!(store.unlink(ROOT, "d"), Err(ErrorKind::IsDirectory));
    assert_eq!(store.rmdir(ROOT, "f"), Err(ErrorKind::NotDirectory));
    assert_eq!(store.rmdir(ROOT, "d"), Err(ErrorKind::NotEmpty));
    store.unlink(directory, "x").unwrap();
    store.rmdir(ROOT, "d").unwrap();
    assert_eq!(store.attributes(ROOT).unwrap().links, 2);
    assert_eq!(store.unlink(ROOT, "none"), Err(ErrorKind::NotFound));
    store.audit();
}

#[test]
fn links_are_counted_and_limited() {
    let mut store = Store::new();
    let file = store.file("f");
    let before = store.attributes(file).unwrap();
    let linked = store.link(file, ROOT, "g").unwrap();
    assert!(linked.links == 2 && linked.ctime > before.ctime && linked.mtime == before.mtime);
    assert_eq!(store.link(file, ROOT, "g"), Err(ErrorKind::Exists));
    let directory = store.directory(ROOT, "d");
    assert_eq!(
        store.link(directory, ROOT, "h"),
        Err(ErrorKind::NotPermitted)
    );
    let elsewhere = InodeId::new(FilesetId(1), model::InodeNumber(1));
    assert_eq!(
        store.link(file, elsewhere, "h"),
        Err(ErrorKind::OtherFileset)
    );
    for number in 2..limits::LINKS_MAX {
        let operation = Operation::Link {
            inode: file,
            directory,
            name: file_name(&format!("n{number}")),
        };
        let stamp = store.stamp();
        let outcome = apply(&operation, &stamp, in_commit(1), &store).unwrap();
        store.take(outcome);
    }
    assert_eq!(
        store.link(file, ROOT, "one-more"),
        Err(ErrorKind::TooManyLinks)
    );
    store.audit();
}

#[test]
fn chmod_and_chown_move_ctime_and_nothing_else() {
    let mut store = Store::new();
    let file = store.file("f");
    let before = store.attributes(file).unwrap();
    let set = SetAttributes {
        mode: Some(0o107_755),
        uid: Some(1),
        ..Default::default()
    };
    let (after, _) = store.set(file, set).unwrap();
    assert_eq!((after.mode, after.uid, after.gid), (0o7755, 1, 20));
    assert!(
        after.ctime > before.ctime
            && after.mtime == before.mtime
            && after.generation == before.generation
    );
    let (unchanged, _) = store.set(file, SetAttributes::default()).unwrap();
    assert_eq!(unchanged, after);
}

fn drop_by(group: u32) -> SetAttributes {
    SetAttributes {
        privileges: Privileges::Drop { group: Some(group) },
        ..Default::default()
    }
}

fn set_capabilities(store: &mut Store, inode: InodeId) {
    let set = Operation::SetXattr {
        inode,
        name: Bytes::from_static(b"security.capability"),
        value: Bytes::from_static(b"all of them"),
        mode: XattrMode::Set,
        drop_setgid: false,
    };
    store.run(&set).unwrap();
}

fn has_capabilities(store: &mut Store, inode: InodeId) -> bool {
    let get = Operation::GetXattr {
        inode,
        name: Bytes::from_static(b"security.capability"),
    };
    store.run(&get).is_ok()
}

#[test]
fn losing_privileges_clears_setuid_setgid_and_capabilities() {
    let mut store = Store::new();
    let file = store.file("f");
    // Files of the store belong to group 20. Without group execution setgid has no meaning, and
    // members keep it.
    for (mode, of_member, of_other) in [
        (0o6755, 0o755, 0o755),
        (0o6745, 0o2745, 0o745),
        (0o2664, 0o2664, 0o664),
        (0o1644, 0o1644, 0o1644),
    ] {
        for (group, expected) in [(20, of_member), (21, of_other)] {
            let chmod = SetAttributes {
                mode: Some(mode),
                ..Default::default()
            };
            store.set(file, chmod).unwrap();
            set_capabilities(&mut store, file);
            assert_eq!(store.set(file, drop_by(group)).unwrap().0.mode, expected);
            assert!(!has_capabilities(&mut store, file));
            store.audit();
        }
    }
}

#[test]
fn a_file_with_nothing_to_lose_stays_as_it_is() {
    let mut store = Store::new();
    let file = store.file("f");
    let before = store.attributes(file).unwrap();
    assert_eq!(store.set(file, drop_by(7)).unwrap().0, before);
    let directory = store.directory(ROOT, "d");
    let chmod = SetAttributes {
        mode: Some(0o2777),
        ..Default::default()
    };
    let before = store.set(directory, chmod).unwrap().0;
    assert_eq!(store.set(directory, drop_by(7)).unwrap().0, before);
}

#[test]
fn truncating_or_giving_away_a_file_clears_its_capabilities() {
    let mut store = Store::new();
    let file = store.file("f");
    for set in [
        SetAttributes {
            size: Some(0),
            ..Default::default()
        },
        SetAttributes {
            size: Some(9),
            ..Default::default()
        },
        SetAttributes {
            uid: Some(7),
            ..Default::default()
        },
        SetAttributes {
            gid: Some(7),
            ..Default::default()
        },
        SetAttributes {
            privileges: Privileges::DropCapabilities,
            ..Default::default()
        },
    ] {
        set_capabilities(&mut store, file);
        store.set(file, set).unwrap();
        assert!(!has_capabilities(&mut store, file), "{set:?}");
        store.audit();
    }
    set_capabilities(&mut store, file);
    let chmod = SetAttributes {
        mode: Some(0o4755),
        ..Default::default()
    };
    store.set(file, chmod).unwrap();
    assert!(has_capabilities(&mut store, file), "chmod leaves them");
}

#[test]
fn names_of_extended_attributes_that_mean_nothing_are_refused() {
    let mut store = Store::new();
    let inode = store.file("f");
    let mut set = |name: &'static [u8]| {
        let set = Operation::SetXattr {
            inode,
            name: Bytes::from_static(name),
            value: Bytes::new(),
            mode: XattrMode::Set,
            drop_setgid: false,
        };
        store.run(&set).map(drop)
    };
    for name in [&b"user.x"[..], b"trusted.x", b"security.x"] {
        assert_eq!(set(name), Ok(()));
    }
    for name in [
        &b"system.x"[..],
        b"system.posix_acl",
        b"user.",
        b"x",
        b"os2.x",
    ] {
        assert_eq!(set(name), Err(ErrorKind::NotSupported), "{name:?}");
    }
}

#[test]
fn times_can_be_set_and_open_a_new_generation() {
    let mut store = Store::new();
    let file = store.file("f");
    let before = store.attributes(file).unwrap();
    let set = SetAttributes {
        mtime: Some(TimeChange::At(Timestamp(5))),
        atime: Some(TimeChange::Now),
        ..Default::default()
    };
    let (after, _) = store.set(file, set).unwrap();
    assert_eq!(after.mtime, Timestamp(5));
    assert!(
        after.ctime > before.ctime
            && after.atime == after.ctime
            && after.generation == before.generation + 1
    );
}

#[test]
fn ctime_moves_on_even_if_the_clients_clock_stands() {
    let mut store = Store::new();
    let file = store.file("f");
    let mut last = store.attributes(file).unwrap().ctime;
    for _ in 0..3 {
        store.clock = 0;
        let (after, _) = store
            .set(
                file,
                SetAttributes {
                    mode: Some(0o600),
                    ..Default::default()
                },
            )
            .unwrap();
        assert!(after.ctime > last);
        last = after.ctime;
    }
}

#[test]
fn listings_resume_after_any_position() {
    let mut store = Store::new();
    let directory = store.directory(ROOT, "d");
    let mut expected = BTreeSet::new();
    for number in 0..50 {
        let name = if number % 5 == 0 {
            format!("same-hash-{number}")
        } else {
            format!("n{number}")
        };
        store.create(directory, &name, FileKind::File).unwrap();
        expected.insert(name);
    }
    store.unlink(directory, "same-hash-0").unwrap();
    expected.remove("same-hash-0");
    for limit in [1, 2, 7, 1000] {
        let (mut after, mut seen) = (0, BTreeSet::new());
        loop {
            let operation = Operation::ReadDirectory {
                directory,
                after,
                limit,
                with_attributes: limit > 1,
            };
            let Ok(Reply::Listing { entries, end }) = store.run(&operation) else {
                panic!()
            };
            assert!(entries.len() <= limit as usize);
            for entry in &entries {
                assert!(entry.position > after && entry.position >= 3);
                after = entry.position;
                assert!(
                    seen.insert(entry.name.to_string()),
                    "{} was listed twice",
                    entry.name
                );
                assert_eq!(
                    entry.attributes.map(|attributes| attributes.inode),
                    (limit > 1).then_some(entry.inode)
                );
            }
            if end {
                break;
            }
            assert!(!entries.is_empty(), "an unfinished listing returns entries");
        }
        assert_eq!(seen, expected);
    }
}

#[test]
fn symlinks_keep_their_target() {
    let mut store = Store::new();
    let link = store.create(ROOT, "l", FileKind::Symlink).unwrap();
    assert_eq!((link.size, link.mode, link.allocated), (5, 0o777, 0));
    assert_eq!(
        store.run(&Operation::ReadLink { inode: link.inode }),
        Ok(Reply::Target(Bytes::from_static(b"there")))
    );
    let file = store.file("f");
    assert_eq!(
        store.run(&Operation::ReadLink { inode: file }),
        Err(ErrorKind::InvalidArgument)
    );
    let mut new = new_inode(FileKind::Symlink);
    new.target = vec![b'x'; limits::SYMLINK_BYTES_MAX + 1].into();
    let create = Operation::Create {
        directory: ROOT,
        name: file_name("long"),
        new,
    };
    assert_eq!(store.run(&create), Err(ErrorKind::NameTooLong));
    store.audit();
}

#[test]
fn extended_attributes_obey_their_modes_and_the_limit() {
    let mut store = Store::new();
    let inode = store.file("f");
    let set = |store: &mut Store, name: &'static str, length: usize, mode| {
        let value = Bytes::from(vec![1; length]);
        store
            .run(&Operation::SetXattr {
                inode,
                name: Bytes::from_static(name.as_bytes()),
                value,
                mode,
                drop_setgid: false,
            })
            .map(|_| ())
    };
    let get = |store: &mut Store, name: &'static str| {
        store.run(&Operation::GetXattr {
            inode,
            name: Bytes::from_static(name.as_bytes()),
        })
    };
    assert_eq!(get(&mut store, "user.a"), Err(ErrorKind::NoSuchAttribute));
    assert_eq!(
        set(&mut store, "user.a", 3, XattrMode::Replace),
        Err(ErrorKind::NoSuchAttribute)
    );
    let before = store.attributes(inode).unwrap();
    set(&mut store, "user.a", 3, XattrMode::Create).unwrap();
    assert!(store.attributes(inode).unwrap().ctime > before.ctime);
    assert_eq!(
        set(&mut store, "user.a", 3, XattrMode::Create),
        Err(ErrorKind::Exists)
    );
    set(&mut store, "user.a", 60_000, XattrMode::Set).unwrap();
    assert_eq!(
        set(&mut store, "user.b", 6_000, XattrMode::Set),
        Err(ErrorKind::NoSpace)
    );
    set(&mut store, "user.b", 5_000, XattrMode::Set).unwrap();
    assert_eq!(
        get(&mut store, "user.b"),
        Ok(Reply::Value(Bytes::from(vec![1; 5_000])))
    );
    let names = vec![Bytes::from_static(b"user.a"), Bytes::from_static(b"user.b")];
    assert_eq!(
        store.run(&Operation::ListXattrs { inode }),
        Ok(Reply::Names(names))
    );
    store.audit();
    store
        .run(&Operation::RemoveXattr {
            inode,
            name: Bytes::from_static(b"user.a"),
        })
        .unwrap();
    assert_eq!(get(&mut store, "user.a"), Err(ErrorKind::NoSuchAttribute));
    store.audit();
    store.unlink(ROOT, "f").unwrap();
    store.audit();
    store.background();
    assert_eq!(store.count(Table::Xattrs) + store.count(Table::Reclaims), 0);
}

#[test]
fn a_slot_applies_each_number_once() {
    let mut store = Store::new();
    store.set_session(Some(false));
    let create = Operation::Create {
        directory: ROOT,
        name: file_name("f"),
        new: new_inode(FileKind::File),
    };
    let run = |store: &mut Store, operation: &Operation, number| {
        let stamp = Stamp {
            turn: Turn::Slot { slot: 3, number },
            ..store.stamp()
        };
        match apply(operation, &stamp, in_commit(store.commit), store) {
            Ok(outcome) => Ok(store.take(outcome)),
            Err(Stop::RefusedInSlot(error, effects)) => {
                store.take(Outcome {
                    effects,
                    reply: Reply::Done,
                    before: None,
                });
                Err(error.kind())
            }
            Err(Stop::Refused(error)) => Err(error.kind()),
            Err(Stop::Missing(needs)) => panic!("{needs:?}"),
        }
    };
    let first = run(&mut store, &create, 1).unwrap();
    assert_eq!(
        run(&mut store, &create, 1).unwrap(),
        first,
        "a repeated request gets the first answer"
    );
    let stamp = Stamp {
        turn: Turn::Slot { slot: 3, number: 1 },
        ..store.stamp()
    };
    let again = apply(&create, &stamp, in_commit(1_000), &store).unwrap();
    let Some(Record::Slot(slot)) = store.records.get(&Key::Slot {
        session: SESSION,
        slot: 3,
    }) else {
        panic!("the slot has a record")
    };
    assert_eq!(again.before, Some(slot.rank), "where it was applied first");
    assert!(slot.rank < in_commit(1_000));
    assert_eq!(run(&mut store, &create, 2), Err(ErrorKind::Exists));
    store.unlink(ROOT, "f").unwrap();
    assert_eq!(
        run(&mut store, &create, 2),
        Err(ErrorKind::Exists),
        "refusals are remembered, too"
    );
    assert_eq!(run(&mut store, &create, 1), Err(ErrorKind::Stale));
    run(&mut store, &create, 4).unwrap();
    assert_eq!(
        run(&mut store, &create, 3),
        Err(ErrorKind::Stale),
        "given up by the client, then late"
    );
    store.audit();
    // Its slots are gone with it, so a late repetition would look like a first operation.
    store.set_session(Some(true));
    let slot = Key::Slot {
        session: SESSION,
        slot: 3,
    };
    store.records.remove(&slot);
    assert_eq!(run(&mut store, &create, 1), Err(ErrorKind::SessionEnded));
    store.set_session(None);
    assert_eq!(run(&mut store, &create, 1), Err(ErrorKind::SessionEnded));
}

/// Runs an operation of a stream on the store.
pub(super) fn run_in_stream(
    store: &mut Store,
    operation: &Operation,
    number: u64,
    fresh: Fresh,
) -> Result<Reply, ErrorKind> {
    let stamp = Stamp {
        turn: Turn::Stream { number, fresh },
        ..store.stamp()
    };
    match apply(operation, &stamp, in_commit(store.commit), store) {
        Ok(outcome) => Ok(store.take(outcome)),
        Err(Stop::RefusedInSlot(error, effects)) => {
            store.take(Outcome {
                effects,
                reply: Reply::Done,
                before: None,
            });
            Err(error.kind())
        }
        Err(Stop::Refused(error)) => Err(error.kind()),
        Err(Stop::Missing(needs)) => panic!("{needs:?}"),
    }
}

proptest::proptest! {
    /// Operations of a stream come late, twice and too early: a prefix of them is applied, each once.
    #[test]
    fn a_stream_is_applied_in_order_and_once(
        numbers in proptest::collection::vec(0_u64..7, 1..60)
    ) {
        let mut store = Store::new();
        store.set_session(Some(false));
        let first = reserve(&mut store, 8, 0).0.0;
        let mut last = 0;
        for number in numbers {
            // Each third one is refused by the rules: its client applied it all the same.
            let text = format!("f{}", number - u64::from(number > 0 && number % 3 == 0));
            let create = Operation::Create {
                directory: ROOT,
                name: file_name(&text),
                new: new_inode(FileKind::File),
            };
            let done = run_in_stream(&mut store, &create, number, Fresh {
                inode: Some(InodeNumber(first + number)),
                data: None,
            });
            let expected = match number {
                0 => Err(ErrorKind::Stale),
                _ if number <= last => Ok(true),
                _ if number > last + 1 => Err(ErrorKind::Stale),
                _ => {
                    last = number;
                    if number % 3 == 0 { Err(ErrorKind::Exists) } else { Ok(false) }
                }
            };
            proptest::prop_assert_eq!(done.map(|reply| reply == Reply::Done), expected);
            let key = Key::Stream(SESSION);
            let known = store.records.get(&key).cloned();
            proptest::prop_assert_eq!(known, (last > 0).then_some(Record::Stream(last)));
            let made = store.count(Table::Names) as u64;
            proptest::prop_assert_eq!(made, last - last / 3);
        }
        store.audit();
        store.set_session(Some(true));
        let late = Operation::Unlink { directory: ROOT, name: file_name("f1") };
        let late = run_in_stream(&mut store, &late, last + 1, Fresh::default());
        proptest::prop_assert_eq!(late, Err(ErrorKind::SessionEnded));
    }
}

#[test]
fn changes_are_counted_between_nodes_and_reads_are_not() {
    let mut store = Store::new();
    store.set_session(Some(false));
    let read = Operation::GetAttributes { inode: ROOT };
    let change = Operation::Create {
        directory: ROOT,
        name: file_name("f"),
        new: new_inode(FileKind::File),
    };
    let slot = Turn::Slot { slot: 0, number: 1 };
    let stream = Turn::Stream {
        number: 1,
        fresh: Fresh::default(),
    };
    for (operation, turn) in [(&change, Turn::Read), (&read, slot), (&read, stream)] {
        let stamp = Stamp {
            turn,
            ..store.stamp()
        };
        let refused = apply(operation, &stamp, in_commit(store.commit), &store);
        let Err(Stop::Refused(error)) = refused else {
            panic!("{operation:?} as {turn:?}")
        };
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    for (operation, turn) in [(&read, Turn::Read), (&read, Turn::Own), (&change, slot)] {
        let stamp = Stamp {
            turn,
            ..store.stamp()
        };
        assert!(apply(operation, &stamp, in_commit(store.commit), &store).is_ok());
    }
}

#[test]
fn a_clock_far_ahead_dates_nothing_and_no_object_goes_back_in_time() {
    let mut store = Store::new();
    let file = store.file("f");
    let ahead = Timestamp(i64::MAX / 2);
    store.records.entry(Key::Inode(file)).and_modify(|record| {
        if let Record::Inode(inode) = record {
            std::sync::Arc::make_mut(inode).ctime = ahead;
        }
    });
    let chmod = |mode| Operation::SetAttributes {
        inode: file,
        set: SetAttributes {
            mode: Some(mode),
            ..SetAttributes::default()
        },
    };
    // Clients tell new attributes from old ones by it.
    let mut last = ahead;
    for mode in [0o600, 0o640] {
        store.run(&chmod(mode)).unwrap();
        let ctime = store.attributes(file).unwrap().ctime;
        assert!(ctime > last, "{ctime:?}");
        last = ctime;
    }
    let received = Stamp::own(ahead, SESSION).received(Timestamp(5));
    assert_eq!(received.now, received.latest);
    assert!(received.latest < Timestamp(2_000_000_000));
}

#[test]
fn a_slot_remembers_no_answer_that_only_says_wait() {
    let mut store = Store::new();
    store.set_session(Some(false));
    let file = store.file("f");
    // More pieces than one step of a truncate takes.
    for piece in 0..30 {
        store.write(file, piece * 20, &[1; 10]).unwrap();
    }
    let (_, unfinished) = store.truncate(file, 65).unwrap();
    assert!(unfinished);
    let cut = Operation::SetAttributes {
        inode: file,
        set: SetAttributes {
            size: Some(1_000),
            ..SetAttributes::default()
        },
    };
    let stamp = Stamp {
        turn: Turn::Slot { slot: 3, number: 1 },
        ..store.stamp()
    };
    let attempt = |store: &Store| apply(&cut, &stamp, in_commit(store.commit), store);
    let Err(Stop::Refused(error)) = attempt(&store) else {
        panic!("another truncate is under way")
    };
    assert_eq!(error.kind(), ErrorKind::Busy);
    while let Reply::Attributes {
        unfinished: true, ..
    } = store.run(&Operation::ContinueCut { inode: file }).unwrap()
    {}
    attempt(&store).expect("the same number runs now");
}

#[test]
fn a_slot_costs_no_round_of_its_own() {
    struct Nothing;
    impl View for Nothing {
        fn get(&self, _: &Key) -> Result<Option<Record>, Missing> {
            Err(Missing)
        }
        fn range(&self, _: &Key, _: &Key, _: usize) -> Result<Vec<(Key, Record)>, Missing> {
            Err(Missing)
        }
        fn is_held(&self, _: InodeId) -> bool {
            false
        }
        fn first_number(&self, _: FilesetId) -> u64 {
            0
        }
    }
    let stamp = Stamp {
        turn: Turn::Slot { slot: 3, number: 1 },
        ..Stamp::own(Timestamp(1), SESSION)
    };
    let unlink = Operation::Unlink {
        directory: ROOT,
        name: file_name("f"),
    };
    let Err(Stop::Missing(needs)) = apply(&unlink, &stamp, in_commit(1), &Nothing) else {
        panic!()
    };
    let position = crate::position_hash(ROOT.number(), b"f") << 8;
    let expected = [
        Key::Counters(ROOT.fileset()),
        Key::Inode(ROOT),
        Key::Name {
            directory: ROOT,
            position,
        },
        Key::Session(SESSION),
        Key::Slot {
            session: SESSION,
            slot: 3,
        },
    ];
    assert_eq!(
        needs,
        expected.map(Need::Key),
        "counters, directory, name, session and slot come in one round"
    );
}

#[test]
fn usage_counts_inodes_and_bytes() {
    let mut store = Store::new();
    let file = store.file("f");
    store.write(file, 100, &[1; 50]).unwrap();
    let usage = store.run(&Operation::GetUsage { inode: file });
    assert_eq!(
        usage,
        Ok(Reply::Usage {
            inodes: 2,
            logical: 150,
            allocated: 50
        })
    );
}
