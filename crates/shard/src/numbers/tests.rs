//! Owners that end before what they gave is durable.

use super::*;
use crate::Shard;
use crate::rig::{machine, power_on};
use crate::shard::Attempt;
use bytes::Bytes;
use model::operation::{NewInode, Stamp};
use model::{FileKind, FileName, Operation, Reply, Scheme};
use std::collections::BTreeSet;
use std::sync::Arc;
use world::World;

const ROOT: InodeId = InodeId::ROOT;

fn create(directory: InodeId, name: &str, kind: FileKind) -> Operation {
    Operation::Create {
        directory,
        name: FileName::new(name.as_bytes()).unwrap(),
        new: NewInode {
            kind,
            mode: 0o755,
            umask: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: Bytes::new(),
        },
    }
}

fn reserve() -> Operation {
    Operation::Reserve {
        inode: ROOT,
        inodes: RESERVED_MAX,
        data: 0,
    }
}

fn stamp(world: &World, shard: &Shard) -> Stamp {
    Stamp::own(world.wall(), shard.session())
}

async fn open(world: &World) -> Arc<Shard> {
    Shard::open(power_on(world, &[]).await).await.unwrap()
}

/// What an operation has made or found.
async fn entry(world: &World, shard: &Shard, operation: Operation) -> Option<InodeId> {
    match shard.execute(&operation, &stamp(world, shard)).await {
        Ok((Reply::Entry { attributes, .. }, _)) => Some(attributes.inode),
        Ok(other) => panic!("{other:?}"),
        Err(_) => None,
    }
}

async fn make(world: &World, shard: &Shard, directory: InodeId, name: &str) -> InodeId {
    let operation = create(directory, name, FileKind::File);
    entry(world, shard, operation).await.expect("it is made")
}

async fn look(world: &World, shard: &Shard, name: &str) -> Option<InodeId> {
    let name = FileName::new(name.as_bytes()).unwrap();
    let directory = ROOT;
    entry(world, shard, Operation::Lookup { directory, name }).await
}

/// Would be broken if a directory got the number of a file that a program of the dead owner's node, or a handle,
/// still names.
#[test]
fn a_number_that_was_lost_with_its_owner_is_not_given_again() {
    let machine = machine(61, Scheme::Replicate(1), 1);
    let mut seen = BTreeSet::new();
    for life in 0..4 {
        let made = machine.run(|world| async move {
            let shard = open(&world).await;
            let mut made = Vec::new();
            let directory = match look(&world, &shard, "d").await {
                Some(directory) => directory,
                None => {
                    let directory = create(ROOT, "d", FileKind::Directory);
                    let directory = entry(&world, &shard, directory).await.unwrap();
                    made.extend([directory, make(&world, &shard, directory, "kept").await]);
                    shard.sync().await.unwrap();
                    directory
                }
            };
            assert_eq!(look(&world, &shard, "lost").await, None, "life {life}");
            // Out of runs that are begun, and out of new ones.
            made.push(make(&world, &shard, ROOT, "lost").await);
            made.push(make(&world, &shard, directory, "lost").await);
            let other = create(ROOT, "other", FileKind::Directory);
            let other = entry(&world, &shard, other).await.unwrap();
            made.extend([other, make(&world, &shard, other, "lost").await]);
            // The machine loses its power.
            made
        });
        for inode in made.finished() {
            assert!(seen.insert(inode), "{inode} once more in life {life}");
        }
    }
}

/// Would be broken if an owner that can't write its log came farther than the next one goes.
#[test]
fn who_takes_more_numbers_than_the_next_owner_skips_waits_until_they_are_durable() {
    let machine = machine(62, Scheme::Replicate(1), 1);
    let last = machine.run(|world| async move {
        let shard = open(&world).await;
        let by = stamp(&world, &shard);
        // From here on the records are in memory.
        shard.execute(&reserve(), &by).await.unwrap();
        shard.sync().await.unwrap();
        let mut given = 0;
        while let Attempt::Done(answer, _) = shard.attempt(&reserve(), &by) {
            given += u64::from(RESERVED_MAX);
            assert!(answer.is_ok(), "{given} were reserved");
            assert!(given <= SKIPPED, "{given} numbers that nobody knows of");
        }
        assert!(given >= UNFLUSHED_NUMBERS_MAX, "{given}");
        let before = shard.durable();
        make(&world, &shard, ROOT, "waits").await;
        assert!(shard.durable() > before);
        shard.sync().await.unwrap();
        // Nobody hears of these.
        let mut last = 0;
        while let Attempt::Done(Ok(done), _) = shard.attempt(&reserve(), &by) {
            if let Reply::Reserved { inode, .. } = done.reply {
                last = inode.0;
            }
        }
        assert!(last > 0);
        last
    });
    let last = last.finished();
    machine
        .run(move |world| async move {
            let shard = open(&world).await;
            let end = last + u64::from(RESERVED_MAX);
            let next = make(&world, &shard, ROOT, "next").await.number();
            assert!(next.0 >= end, "{next:?} is below {end}");
            shard.close().await.unwrap();
        })
        .finished();
}

/// Would be broken if an owner went on from what is durable, and brought the rest along after that.
#[test]
fn an_owner_that_takes_over_again_goes_beyond_what_it_brings_along() {
    let machine = machine(63, Scheme::Replicate(1), 1);
    let made = machine.run(|world| async move {
        let opening = power_on(&world, &[]).await;
        let shard = Shard::open(opening.clone()).await.unwrap();
        let mut made = vec![make(&world, &shard, ROOT, "durable").await];
        shard.sync().await.unwrap();
        made.push(make(&world, &shard, ROOT, "brought").await);
        let by = stamp(&world, &shard);
        let (reserved, _) = shard.execute(&reserve(), &by).await.unwrap();
        let Reply::Reserved { inode, inodes, .. } = reserved else {
            panic!("{reserved:?}")
        };
        let end = inode.0 + u64::from(inodes);
        let mut unflushed = shard.end_given_up().await;
        let again = Shard::open_after(opening, Some(&mut unflushed)).await;
        let again = again.unwrap();
        assert_eq!(look(&world, &again, "brought").await, Some(made[1]));
        made.push(make(&world, &again, ROOT, "next").await);
        assert_eq!(made[2].number().0, end + SKIPPED);
        // That is durable, unlike what was made: the machine loses its power.
        made
    });
    let made = made.finished();
    machine
        .run(move |world| async move {
            let shard = open(&world).await;
            assert_eq!(look(&world, &shard, "brought").await, Some(made[1]));
            assert_eq!(look(&world, &shard, "next").await, None);
            let last = make(&world, &shard, ROOT, "last").await;
            assert_eq!(last.number().0, made[2].number().0 + SKIPPED);
            shard.close().await.unwrap();
        })
        .finished();
}

#[test]
fn an_owner_begins_behind_all_that_may_be_given_and_below_the_last_number() {
    let counters = |next_inode| Counters {
        next_inode,
        ..Counters::default()
    };
    let key = |fileset| Key::Counters(FilesetId(fileset));
    let record = |next| Record::Counters(Arc::new(counters(next)));
    let mut numbers = Numbers::default();
    let begun = numbers.begin(FilesetId(1), &counters(100));
    assert_eq!(begun, Some(counters(100 + SKIPPED)));
    assert_eq!(numbers.first(FilesetId(1)), 100 + SKIPPED);
    numbers.note(&key(1), Some(&record(100 + SKIPPED)));
    assert!(numbers.freeze() >= UNFLUSHED_NUMBERS_MAX, "others wait");
    assert_eq!(numbers.begin(FilesetId(1), &counters(100 + SKIPPED)), None);
    // What goes back is counted again when it is given again.
    for (next, moved) in [(40, 40), (10, 40), (30, 60)] {
        numbers.note(&key(1), Some(&record(100 + SKIPPED + next)));
        assert_eq!(numbers.moved(), moved);
    }
    numbers.freeze();
    // A new fileset.
    numbers.note(&key(2), Some(&record(64)));
    assert!(numbers.freeze() >= UNFLUSHED_NUMBERS_MAX);
    assert_eq!(numbers.begin(FilesetId(2), &counters(64)), None);
    assert_eq!(numbers.first(FilesetId(2)), 0);
    let begun = numbers.begin(FilesetId(3), &counters(END - 5));
    assert_eq!(begun, Some(counters(END)));
}
