//! Records that break the rules, as a faulty release or a faulty disk would leave them.

use crate::inodes::name;
use bytes::Bytes;
use model::{Error, ErrorKind, InodeNumber};
use namespace::{Key, Record, Table};
use shard::{CommitFrame, Shard};
use std::sync::Arc;

/// Puts records into a shard behind its owner's back: a commit in its log and its tree that no rule has seen.
/// The owner's decoded records don't know of it, so it gives the shard up; whoever needs the shard takes
/// it over again. Nothing else may change the shard meanwhile.
pub async fn forge(shard: &Shard, records: Vec<(Key, Option<Record>)>) {
    shard.sync().await.unwrap();
    let row = |(key, record): (Key, Option<Record>)| {
        let value = record.map(|record| Bytes::from(record.to_bytes()));
        (Bytes::from(key.to_bytes()), value)
    };
    let frame = CommitFrame {
        commit: shard.durable().next(),
        operations: Vec::new(),
        rows: records.into_iter().map(row).collect(),
    };
    let tree = shard.tree();
    let entry = tree.log().append_commit(&frame).await.unwrap();
    tree.apply(entry, &frame).await.unwrap();
    assert!(shard.is_clean(), "nothing else changes the shard meanwhile");
    let why = Error::new(ErrorKind::Unavailable, "its records were forged");
    shard.resign(&why);
}

/// Where the record of a name is, and one for there that can't be read: it leads to an inode that can't exist.
///
/// # Panics
/// If nothing has this name.
pub async fn damaged_name(shard: &Shard, text: &str) -> (Key, Record) {
    let (from, to) = Table::Names.range();
    for (key, record) in shard.scan(&from, &to, 1000).await.unwrap() {
        let Record::Name(known) = record else {
            panic!("a name")
        };
        let mut damaged = (*known).clone();
        if let Some(entry) = &mut damaged.entry
            && entry.name == name(text)
        {
            entry.inode = InodeNumber(0);
            return (key, Record::Name(Arc::new(damaged)));
        }
    }
    panic!("{text} has a name");
}
