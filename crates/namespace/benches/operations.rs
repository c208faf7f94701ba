//! Prints what operations cost in `apply`, in nanoseconds of one core, with all records in
//! memory: `make bench-parts`.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "it measures and prints"
)]

use bytes::Bytes;
use model::{
    CommitNumber, Extent, ExtentKind, FileKind, FileName, FilesetId, GroupId, InodeId, Operation,
    Reply, Scheme, SegmentId, SegmentPlace, SessionId, Timestamp,
    operation::{NewInode, Publish, Rank, Stamp},
};
use namespace::{Effects, Key, Missing, Record, View, apply, genesis};
use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, DefaultHasher},
    hint::black_box,
    time::{Duration, Instant},
};

const FILES: u32 = 100_000;
/// The median round counts, so that other programs on the machine disturb less.
const ROUND: u32 = 1_000;
const SESSION: SessionId = SessionId(1);

/// Point records only: none of the measured operations needs a range.
#[derive(Default)]
struct Memory(HashMap<Key, Record, BuildHasherDefault<DefaultHasher>>);

impl View for Memory {
    fn get(&self, key: &Key) -> Result<Option<Record>, Missing> {
        Ok(self.0.get(key).cloned())
    }

    fn range(&self, _from: &Key, _to: &Key, _limit: usize) -> Result<Vec<(Key, Record)>, Missing> {
        Err(Missing)
    }

    fn is_held(&self, _inode: InodeId) -> bool {
        false
    }

    fn first_number(&self, _fileset: FilesetId) -> u64 {
        0
    }
}

impl Memory {
    fn take(&mut self, effects: Effects) {
        for (key, record) in effects.0 {
            match record {
                Some(record) => self.0.insert(key, record),
                None => self.0.remove(&key),
            };
        }
    }
}

fn stamp(now: u32) -> Stamp {
    Stamp::own(Timestamp(i64::from(now)), SESSION)
}

/// Runs one operation per file; measures only `apply`.
fn measure(memory: &mut Memory, what: &str, operation: impl Fn(u32) -> Operation) -> Vec<Reply> {
    let mut rounds = vec![Duration::ZERO; (FILES / ROUND) as usize];
    let mut replies = Vec::new();
    let mut records = 0;
    for number in 0..FILES {
        let operation = operation(number);
        let start = Instant::now();
        let outcome =
            black_box(apply(&operation, &stamp(number), Rank::default(), memory)).unwrap();
        rounds[(number / ROUND) as usize] += start.elapsed();
        records = outcome.effects.0.len();
        memory.take(outcome.effects);
        replies.push(outcome.reply);
    }
    rounds.sort_unstable();
    let cost = |round: Duration| round.as_nanos() / u128::from(ROUND);
    let (best, median) = (cost(rounds[0]), cost(rounds[rounds.len() / 2]));
    println!("{what:<24} median {median:>6} ns  best {best:>6} ns  {records} records");
    replies
}

fn main() {
    let mut memory = Memory::default();
    memory.take(genesis(FilesetId(0), Timestamp(0), 0, 0, 0o755));
    let directory = InodeId::ROOT;
    let name = |number: u32| FileName::new(format!("file.{number:08}").as_bytes()).unwrap();
    let new = NewInode {
        kind: FileKind::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        umask: 0,
        rdev: 0,
        target: Bytes::new(),
    };
    let made = measure(&mut memory, "create", |number| Operation::Create {
        directory,
        name: name(number),
        new: new.clone(),
    });
    let inodes: Vec<InodeId> = made
        .iter()
        .map(|reply| match reply {
            Reply::Entry { attributes, .. } => attributes.inode,
            other => panic!("{other:?}"),
        })
        .collect();
    measure(&mut memory, "lookup", |number| Operation::Lookup {
        directory,
        name: name(number),
    });
    measure(&mut memory, "get attributes", |number| {
        Operation::GetAttributes {
            inode: inodes[number as usize],
        }
    });
    let content = Bytes::from(vec![1; 3901]);
    let publish = |number: u32, offset: u64, kind: ExtentKind, length: u64| {
        let extents = vec![Extent {
            offset,
            length,
            kind,
            birth: CommitNumber(0),
        }];
        let inode = inodes[number as usize];
        Operation::Publish(Publish {
            inode,
            extents,
            size_at_least: offset + length,
            written: None,
            replaces: None,
        })
    };
    measure(&mut memory, "publish 3901 B inline", |number| {
        publish(number, 0, ExtentKind::Inline(content.clone()), 3901)
    });
    measure(&mut memory, "publish a segment", |number| {
        let segment = SegmentId {
            session: SESSION,
            counter: u64::from(number) + 1,
        };
        let scheme = Scheme::Erasure { k: 4, m: 2 };
        let place = SegmentPlace {
            segment,
            group: GroupId(1),
            scheme,
            skipped_slots: 0,
            missing: 0,
            length: 1 << 22,
            crc: 0,
        };
        publish(
            number,
            4096,
            ExtentKind::Data {
                place,
                at: 0,
                codec: 0,
                key_id: 0,
            },
            1 << 22,
        )
    });
    measure(&mut memory, "unlink", |number| Operation::Unlink {
        directory,
        name: name(number),
    });
    let start = Instant::now();
    let mut bytes = Vec::with_capacity(1 << 20);
    let mut count = 0u32;
    for (key, record) in &memory.0 {
        bytes.clear();
        key.encode(&mut bytes);
        record.encode(&mut bytes);
        black_box(&bytes);
        count += 1;
    }
    println!(
        "{:<24} {:>6} ns",
        "encode a record",
        start.elapsed().as_nanos() / u128::from(count)
    );
}
