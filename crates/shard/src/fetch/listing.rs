//! Reads the names that a listing will want next, and their inodes, while its caller works on
//! those that it has.
//!
//! A program that lists a large directory with attributes (`ls -l`, `find`) spends as long on a page
//! of names as the tree needs for the next one. So a page that had to be read from the tree starts a
//! task that reads on for [`PAGES`] pages; the first later page that isn't in memory starts the next
//! task. What it reads are hot records, not answers: each page that the caller asks for is answered
//! anew, with what has changed since.

use crate::Shard;
use model::limits::LISTING_ENTRIES_MAX;
use model::operation::{Ranked, Stamp};
use model::{InodeId, Operation, Reply, Result};
use std::sync::Weak;
use std::time::Duration;

/// Names of a page; few, so that the caller's next one is soon there.
const NAMES: u32 = 256;
/// Pages that one task reads. Each may bring the neighbours of all its inodes, as the caller's own
/// pages do.
const PAGES: usize = 16;
/// Longest time that a task reads.
const TIME_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(NAMES as usize <= LISTING_ENTRIES_MAX);

impl Shard {
    /// An operation whose records had to be read from the tree was answered.
    pub(crate) fn read_on_after(&self, operation: &Operation, answer: &Result<Ranked>) {
        let Operation::ReadDirectory {
            directory,
            with_attributes: true,
            ..
        } = operation
        else {
            return;
        };
        if let Ok(Ranked {
            reply:
                Reply::Listing {
                    entries,
                    end: false,
                },
            ..
        }) = answer
            && let Some(last) = entries.last()
        {
            self.list_ahead(*directory, last.position);
        }
    }

    /// A listing was given the names up to `after` from the tree, and there are more. Returns at
    /// once. Does nothing while names are read ahead for another listing, or when memory is short:
    /// they would be forgotten before they are wanted.
    fn list_ahead(&self, directory: InodeId, after: u64) {
        let mut listing = self.listing.lock();
        let is_reading = listing.as_ref().is_some_and(|task| !task.is_finished());
        if is_reading || !self.state.lock().records.has_room_for_names() {
            return;
        }
        let (world, shard) = (self.world.clone(), self.me.clone());
        let task = async move {
            // What was read by then stays in memory.
            let _ = world
                .timeout(TIME_MAX, read_on(shard, directory, after))
                .await;
        };
        *listing = Some(self.world.spawn("names read ahead", task));
    }
}

/// Errors end it: the operations that need these records report them.
async fn read_on(shard: Weak<Shard>, directory: InodeId, mut after: u64) {
    for _ in 0..PAGES {
        let Some(shard) = shard.upgrade() else { return };
        let page = Operation::ReadDirectory {
            directory,
            after,
            limit: NAMES,
            with_attributes: true,
        };
        let stamp = Stamp::own(shard.world.wall(), shard.session);
        let Ok((Reply::Listing { entries, end }, _)) = shard.execute(&page, &stamp).await else {
            return;
        };
        match entries.last() {
            Some(last) if !end && shard.state.lock().records.has_room_for_names() => {
                after = last.position;
            }
            _ => return,
        }
    }
}
