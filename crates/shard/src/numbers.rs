//! No inode number is given twice, although an owner's last changes can be lost with it.
//!
//! Clients in an owner's process are answered before what they made is durable. If that process dies, no record says
//! which numbers it has given last; programs and kernels may know them, and others may have been told of them. So
//!
//! * changes wait while commits that aren't durable give [`UNFLUSHED_NUMBERS_MAX`] numbers: an owner never comes
//!   farther than [`SKIPPED`] beyond what its log says;
//! * an owner begins so far beyond what it finds, and gives nothing before that is durable itself;
//! * it drops the rests of directories' runs that it finds, all of which lie below (`namespace::View::first_number`).
//!
//! Numbers that a session has reserved stay its own under every owner: it knows which of them it has used.

use model::limits::{RESERVED_MAX, UNFLUSHED_NUMBERS_MAX};
use model::{FilesetId, InodeId};
use namespace::{Counters, Key, Record};
use std::collections::BTreeMap;

/// Most numbers that an owner has given of which its log may say nothing: the last operation before others wait takes
/// up to [`RESERVED_MAX`].
const SKIPPED: u64 = UNFLUSHED_NUMBERS_MAX + RESERVED_MAX as u64;
/// No number is as high.
const END: u64 = 1 << InodeId::NUMBER_BITS;

/// The numbers that this owner gives.
#[derive(Default)]
pub(crate) struct Numbers {
    filesets: BTreeMap<FilesetId, Given>,
    /// Those that the open commit gives, at most.
    moved: u64,
}

/// A fileset's numbers.
struct Given {
    /// The first one of this owner.
    first: u64,
    /// The next one, as of the newest change.
    next: u64,
}

impl Numbers {
    /// The first number of a fileset that this owner gives.
    pub(crate) fn first(&self, fileset: FilesetId) -> u64 {
        self.filesets.get(&fileset).map_or(0, |given| given.first)
    }

    /// Numbers that the open commit gives, at most: not all of a run are used.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// The open commit is frozen. Returns how many numbers it gives, at most.
    pub(crate) fn freeze(&mut self) -> u64 {
        std::mem::take(&mut self.moved)
    }

    /// A new owner finds a fileset's counters. Returns what it has to change them to, unless it knows the fileset.
    pub(crate) fn begin(&mut self, fileset: FilesetId, found: &Counters) -> Option<Counters> {
        if self.filesets.contains_key(&fileset) {
            return None;
        }
        let next = found.next_inode;
        let first = next.saturating_add(SKIPPED).min(END);
        self.filesets.insert(fileset, Given { first, next });
        Some(Counters {
            next_inode: first,
            ..found.clone()
        })
    }

    /// A record has this value from now on.
    pub(crate) fn note(&mut self, key: &Key, record: Option<&Record>) {
        let (Key::Counters(fileset), Some(Record::Counters(counters))) = (key, record) else {
            return;
        };
        let next = counters.next_inode;
        match self.filesets.get_mut(fileset) {
            Some(given) => {
                self.moved += next.saturating_sub(given.next);
                given.next = next;
            }
            // It is new. If it is lost the next owner makes it anew, with the same numbers: so none is given before it
            // is durable.
            None => {
                self.filesets.insert(*fileset, Given { first: 0, next });
                self.moved += UNFLUSHED_NUMBERS_MAX;
            }
        }
    }
}

#[cfg(test)]
mod tests {
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
}
