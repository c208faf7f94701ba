//! Reading ahead: it fetches the neighbours of missing records, never outdated ones.

use super::*;
use crate::rig::{machine, power_on};
use crate::shard::Attempt;
use crate::{HOT_RECORDS_BYTES_DEFAULT, Opening, ShardMemory};
use bytes::Bytes;
use model::operation::{NewInode, Ranked, RenameMode, Stamp};
use model::{ErrorKind, FileKind, FileName, Operation, Reply, Scheme};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use world::World;

const FILES: u64 = 1500;
const ROOT: InodeId = InodeId::ROOT;

async fn open(world: &World, hot_records_bytes: usize) -> Arc<Shard> {
    let opening = Opening {
        memory: ShardMemory::new(hot_records_bytes, 8 << 20),
        ..power_on(world, &[]).await
    };
    Shard::open(opening).await.unwrap()
}

fn stamp(world: &World, shard: &Shard) -> Stamp {
    Stamp::own(world.wall(), shard.session())
}

async fn run(world: &World, shard: &Shard, operation: Operation) -> Result<Reply> {
    let answer = shard.execute(&operation, &stamp(world, shard)).await;
    answer.map(|(reply, _)| reply)
}

fn name(number: u64) -> FileName {
    FileName::new(format!("file{number}").as_bytes()).unwrap()
}

fn create(number: u64) -> Operation {
    Operation::Create {
        directory: ROOT,
        name: name(number),
        new: NewInode {
            kind: FileKind::File,
            mode: 0o644,
            umask: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: Bytes::new(),
        },
    }
}

async fn look_up(world: &World, shard: &Shard, number: u64) -> Option<InodeId> {
    let directory = ROOT;
    let name = name(number);
    match run(world, shard, Operation::Lookup { directory, name }).await {
        Ok(Reply::Entry { attributes, .. }) => Some(attributes.inode),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        other => panic!("{other:?}"),
    }
}

/// A machine with a closed shard of `FILES` files in its root directory.
fn filled(seed: u64) -> world::sim::Simulation {
    let machine = machine(seed, Scheme::Replicate(1), 1);
    machine
        .run(|world| async move {
            let shard = open(&world, HOT_RECORDS_BYTES_DEFAULT).await;
            for number in 0..FILES {
                run(&world, &shard, create(number)).await.unwrap();
            }
            shard.close().await.unwrap();
        })
        .finished();
    machine
}

#[test]
fn after_a_few_misses_a_directorys_names_and_inodes_come_together() {
    filled(31)
        .run(|world| async move {
            let shard = open(&world, HOT_RECORDS_BYTES_DEFAULT).await;
            let before = shard.hot_records().0;
            // With the directory's own inode, three gets of inodes.
            for number in 0..2 {
                look_up(&world, &shard, number).await.unwrap();
            }
            let few = shard.hot_records().0 - before;
            assert!(few <= 8, "{few} records for two names");
            for number in 2..200 {
                look_up(&world, &shard, number).await.unwrap();
            }
            let brought = shard.hot_records().0 - before;
            assert!(brought > 1500, "{brought} records for 200 names");
            shard.close().await.unwrap();
        })
        .finished();
}

#[test]
fn rows_that_cannot_be_decoded_do_not_keep_their_neighbours_from_being_read_ahead() {
    let machine = filled(36);
    let damaged = machine.run(|world| async move {
        let shard = open(&world, HOT_RECORDS_BYTES_DEFAULT).await;
        let key = |position| Key::Name {
            directory: ROOT,
            position,
        };
        let (from, to) = (key(0), key(namespace::POSITION_END));
        let (first_name, record) = shard.scan(&from, &to, 1).await.unwrap().remove(0);
        let Record::Name(record) = record else {
            panic!("{record:?}")
        };
        let mut record = (*record).clone();
        let entry = record.entry.as_mut().unwrap();
        let of_name = entry.name.clone();
        entry.inode = model::InodeNumber(0);
        let of_inode = if of_name == name(0) { 1 } else { 0 };
        let inode = look_up(&world, &shard, of_inode).await.unwrap();
        let first_inode = Key::Inode(inode);
        let Some(Record::Inode(known)) = shard.record(&first_inode).await.unwrap() else {
            panic!("an inode")
        };
        let inode = namespace::Inode {
            size: u64::MAX,
            ..(*known).clone()
        };
        let damaged = namespace::Effects(vec![
            (first_name, Some(Record::Name(Arc::new(record)))),
            (first_inode, Some(Record::Inode(Arc::new(inode)))),
        ]);
        shard.state.lock().change(damaged, None);
        shard.close().await.unwrap();
        [of_name, name(of_inode)]
    });
    let damaged = damaged.finished();
    machine
        .run(|world| async move {
            let shard = open(&world, HOT_RECORDS_BYTES_DEFAULT).await;
            let before = shard.hot_records().0;
            for number in (0..200).filter(|number| !damaged.contains(&name(*number))) {
                look_up(&world, &shard, number).await.unwrap();
            }
            let brought = shard.hot_records().0 - before;
            assert!(brought > 1500, "{brought} records for 200 names");
            // Operations that need them get the error.
            for name in damaged {
                let directory = ROOT;
                let found = run(&world, &shard, Operation::Lookup { directory, name }).await;
                assert_eq!(found.unwrap_err().kind(), ErrorKind::Corrupt);
            }
            shard.close().await.unwrap();
        })
        .finished();
}

#[test]
fn what_is_read_ahead_takes_no_more_than_the_budget() {
    filled(32)
        .run(|world| async move {
            let budget = 400_000;
            let shard = open(&world, budget).await;
            for number in 0..FILES {
                look_up(&world, &shard, number).await.unwrap();
                let bytes = shard.hot_records().1;
                assert!(bytes <= budget, "{bytes} bytes after {number} names");
            }
            shard.close().await.unwrap();
        })
        .finished();
}

fn page(after: u64, limit: u32) -> Operation {
    Operation::ReadDirectory {
        directory: ROOT,
        after,
        limit,
        with_attributes: true,
    }
}

/// Lists the root directory in pages, with attributes.
async fn list(world: &World, shard: &Shard, limit: u32) -> BTreeMap<FileName, InodeId> {
    let (mut found, mut after) = (BTreeMap::new(), 0);
    loop {
        let listed = run(world, shard, page(after, limit)).await.unwrap();
        let Reply::Listing { entries, end } = listed else {
            panic!("{listed:?}")
        };
        for entry in entries {
            after = entry.position;
            assert_eq!(entry.attributes.unwrap().inode, entry.inode);
            found.insert(entry.name, entry.inode);
        }
        if end {
            return found;
        }
    }
}

#[test]
fn a_listings_next_names_and_inodes_are_read_while_its_caller_has_the_first() {
    filled(33)
        .run(|world| async move {
            let shard = open(&world, HOT_RECORDS_BYTES_DEFAULT).await;
            let first = run(&world, &shard, page(0, 50)).await.unwrap();
            let Reply::Listing {
                entries,
                end: false,
            } = first
            else {
                panic!("{first:?}")
            };
            let task = shard.listing.lock().take();
            task.expect("names are read ahead").await;
            let after = entries.last().unwrap().position;
            let rest = shard.attempt(&page(after, FILES as u32), &stamp(&world, &shard));
            let Attempt::Done(
                Ok(Ranked {
                    reply: Reply::Listing { entries, .. },
                    ..
                }),
                _,
            ) = rest
            else {
                panic!("records are missing")
            };
            assert!(entries.len() >= 1000, "{}", entries.len());
            shard.close().await.unwrap();
        })
        .finished();
}

#[test]
fn names_are_not_read_ahead_when_memory_is_short() {
    filled(34)
        .run(|world| async move {
            let shard = open(&world, 400_000).await;
            let names = list(&world, &shard, 50).await;
            assert_eq!(names.len() as u64, FILES);
            if let Some(task) = shard.listing.lock().take() {
                assert!(task.is_finished());
            }
            list(&world, &shard, 50).await;
            assert!(shard.listing.lock().is_none());
            shard.close().await.unwrap();
        })
        .finished();
}

type Model = Arc<Mutex<BTreeMap<u64, InodeId>>>;

/// Removes, makes and moves names, with commits in between.
async fn change(world: World, shard: Arc<Shard>, model: Model, steps: u64) {
    for step in 0..steps {
        let (from, to) = (world.random_u64() % FILES, world.random_u64() % FILES);
        let (directory, from_name) = (ROOT, name(from));
        match world.random_u64() % 4 {
            0 | 1 => {
                let name = from_name;
                let unlink = Operation::Unlink { directory, name };
                let removed = run(&world, &shard, unlink).await.is_ok();
                assert_eq!(model.lock().remove(&from).is_some(), removed);
            }
            2 => match run(&world, &shard, create(from)).await {
                Ok(Reply::Entry { attributes, .. }) => {
                    let old = model.lock().insert(from, attributes.inode);
                    assert_eq!(old, None);
                }
                other => assert!(other.is_err() && model.lock().contains_key(&from)),
            },
            _ if from == to => {}
            _ => {
                let rename = Operation::Rename {
                    from_directory: directory,
                    from_name,
                    to_directory: directory,
                    to_name: name(to),
                    mode: RenameMode::Replace,
                };
                let moved = run(&world, &shard, rename).await.is_ok();
                let mut model = model.lock();
                let inode = model.remove(&from);
                assert_eq!(inode.is_some(), moved);
                model.extend(inode.map(|inode| (to, inode)));
            }
        }
        if step % 16 == 0 {
            shard.sync().await.unwrap();
        }
    }
}

#[test]
fn what_changes_while_it_is_read_ahead_is_never_shown_as_it_was() {
    for (seed, budget) in [
        (41, HOT_RECORDS_BYTES_DEFAULT),
        (42, 1_000_000),
        (43, 400_000),
    ] {
        let machine = filled(seed);
        let found = machine.run(move |world| async move {
            let shard = open(&world, HOT_RECORDS_BYTES_DEFAULT).await;
            let mut inodes = BTreeMap::new();
            for number in 0..FILES {
                let inode = look_up(&world, &shard, number).await.unwrap();
                inodes.insert(number, inode);
            }
            shard.close().await.unwrap();
            inodes
        });
        let inodes = found.finished();
        machine
            .run(move |world| async move {
                let shard = open(&world, budget).await;
                let model: Model = Arc::new(Mutex::new(inodes));
                let changes = (0..2).map(|_| {
                    let work = change(world.clone(), shard.clone(), model.clone(), 600);
                    world.spawn("changes", work)
                });
                let changes: Vec<_> = changes.collect();
                for number in (0..FILES).chain(0..FILES) {
                    let before = model.lock().get(&number).copied();
                    let found = look_up(&world, &shard, number).await;
                    let after = model.lock().get(&number).copied();
                    assert!(found == before || found == after || before != after);
                }
                while changes.iter().any(|task| !task.is_finished()) {
                    list(&world, &shard, 50).await;
                    world.sleep(Duration::from_millis(1)).await;
                }
                for number in 0..FILES {
                    let found = look_up(&world, &shard, number).await;
                    assert_eq!(found, model.lock().get(&number).copied(), "{number}");
                }
                let names = model.lock().iter().map(|it| (name(*it.0), *it.1)).collect();
                assert_eq!(list(&world, &shard, 50).await, names);
                shard.close().await.unwrap();
            })
            .finished();
    }
}

/// The names of a directory's files, scanned in pages, sorted.
async fn scanned(shard: &Shard, (mut from, to): (Key, Key), page: usize) -> Vec<String> {
    let mut out = Vec::new();
    loop {
        let rows = shard.scan(&from, &to, page).await.unwrap();
        assert!(rows.len() <= page && rows.is_sorted_by(|a, b| a.0 < b.0));
        for (_, record) in &rows {
            let Record::Name(name) = record else {
                panic!("{record:?}")
            };
            let named = name.entry.as_ref();
            out.extend(named.map(|it| String::from_utf8_lossy(it.name.as_bytes()).into_owned()));
        }
        match rows.last() {
            Some((last, _)) if rows.len() == page => from = successor(last),
            _ => break,
        }
    }
    out.sort_unstable();
    out
}

#[test]
fn a_scan_takes_known_records_from_memory_and_shows_uncommitted_changes() {
    filled(35)
        .run(|world| async move {
            let shard = open(&world, HOT_RECORDS_BYTES_DEFAULT).await;
            let mut make = create(FILES);
            let Operation::Create { new, .. } = &mut make else {
                panic!()
            };
            new.kind = FileKind::Directory;
            let made = run(&world, &shard, make).await.unwrap();
            let Reply::Entry { attributes, .. } = made else {
                panic!()
            };
            let directory = attributes.inode;
            let in_directory = |number| {
                let mut create = create(number);
                if let Operation::Create { directory: at, .. } = &mut create {
                    *at = directory;
                }
                create
            };
            for number in 0..300 {
                run(&world, &shard, in_directory(number)).await.unwrap();
            }
            shard.sync().await.unwrap();
            let unlink = Operation::Unlink {
                directory,
                name: name(7),
            };
            run(&world, &shard, unlink).await.unwrap();
            run(&world, &shard, in_directory(300)).await.unwrap();
            let mut expected: Vec<String> = (0..=300)
                .filter(|number| *number != 7)
                .map(|number| format!("file{number}"))
                .collect();
            expected.sort_unstable();
            let key = |position| Key::Name {
                directory,
                position,
            };
            let range = (key(0), key(namespace::POSITION_END));
            let known = shard
                .state
                .lock()
                .records
                .all_from(&range.0, &range.1, 1000);
            let (records, end) = known.expect("the directory was made here");
            assert_eq!((records.len(), end), (300, range.1.clone()));
            for page in [1, 64, 5000] {
                assert_eq!(scanned(&shard, range.clone(), page).await, expected);
            }
            // Names that only the tree has are scanned as well.
            let root = |position| Key::Name {
                directory: ROOT,
                position,
            };
            let range = (root(0), root(namespace::POSITION_END));
            let all = scanned(&shard, range, 64).await;
            assert_eq!(all.len() as u64, FILES + 1);
        })
        .finished();
}
