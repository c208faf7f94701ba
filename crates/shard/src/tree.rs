//! The shard's records on NSDs: SlateDB under our own log. No other file names its types
//! except the object store and the log adapter.

use crate::frame::CommitFrame;
use bytes::Bytes;
use model::{EntryNumber, Error, Result};

/// Memory for table blocks and indexes, shared by all shards of a process.
#[derive(Clone)]
pub struct TreeCache {}

impl TreeCache {
    /// A cache of at most `bytes` bytes.
    pub fn new(bytes: u64) -> TreeCache {
        let _ = bytes;
        TreeCache {}
    }
}

/// The tree of one owner of a shard.
pub struct Tree {}

impl Tree {
    /// The newest value of a key.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let _ = key;
        unimplemented!("tree")
    }

    /// Rows with `from <= key < to` in key order, at most `limit`.
    pub async fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>> {
        let _ = (from, to, limit);
        unimplemented!("tree")
    }

    /// Gives a durable commit's rows to the tree; readable when it returns. Call it in the order
    /// of the entry numbers, one at a time, with what [`crate::log::Log::append_commit`] answered.
    pub async fn apply(&self, entry: EntryNumber, frame: &CommitFrame) -> Result<()> {
        let _ = (entry, frame);
        unimplemented!("tree")
    }

    /// Writes what is in memory to tables and lets the log be trimmed.
    pub async fn flush(&self) -> Result<()> {
        unimplemented!("tree")
    }

    /// Asks for a full compaction, after mass deletes; returns at once, runs in the background.
    pub async fn compact(&self) -> Result<()> {
        unimplemented!("tree")
    }

    /// Why the tree can't go on, if so: the owner gives up its epoch and takes over again.
    pub fn failed(&self) -> Option<Error> {
        unimplemented!("tree")
    }

    /// Flushes and ends all tasks of the tree. Apply nothing afterwards.
    pub async fn close(&self) -> Result<()> {
        unimplemented!("tree")
    }
}
