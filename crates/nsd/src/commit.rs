//! Group commit: the first caller writes all waiting records in order, then passes leadership on.

use crate::checksum::UNIT;
use crate::core::Core;
use crate::queue::{Fences, Item, Turn};
use crate::record::{Record, encode_group, group_bytes};
use crate::wanted::IndexPart;
use bytes::Bytes;
use model::{Error, ErrorKind, Result};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use world::Planted;
use world::Point;

/// Largest group in bytes; less if the ring is small.
const GROUP_BYTES_MAX: u64 = 4 << 20;
/// How long a group waits for room in the journal, and a put for what a checkpoint keeps from being used.
pub(crate) const ROOM_WAIT_MAX: Duration = Duration::from_secs(60);
/// Pause before checking a full journal again.
const ROOM_PAUSE: Duration = Duration::from_millis(20);

impl Core {
    /// Makes a record durable and applies it. `check` runs under the queue's lock, decides whether
    /// the record may enter, and updates the fences if the record changes them. It returns records
    /// of fences that the request taught: they go first, and are durable when the record is.
    pub(crate) async fn submit(
        self: &Arc<Self>,
        record: Record,
        check: impl FnOnce(&mut Fences) -> Result<Vec<Record>>,
    ) -> Result<()> {
        let bytes = record.encoded_bytes();
        let (sender, mut turn) = oneshot::channel();
        let leads = {
            let mut queue = self.queue.lock();
            self.check_serving()?;
            for taught in check(&mut queue.fences)? {
                queue.waiting.push_back(Item {
                    bytes: taught.encoded_bytes(),
                    record: taught,
                    // No caller waits for it alone.
                    turn: oneshot::channel().0,
                });
            }
            queue.waiting.push_back(Item {
                record,
                bytes,
                turn: sender,
            });
            !std::mem::replace(&mut queue.led, true)
        };
        if leads {
            self.lead().await;
        }
        loop {
            match turn.await {
                Ok(Turn::Done(result)) => return result,
                Ok(Turn::Lead(next)) => {
                    turn = next;
                    self.lead().await;
                }
                Err(_) => {
                    let text = "the journal's writer ended before it answered";
                    return Err(Error::new(ErrorKind::Unknown, text));
                }
            }
        }
    }

    /// Writes one group, then hands over to the first waiting caller.
    async fn lead(self: &Arc<Self>) {
        loop {
            let bytes_max = GROUP_BYTES_MAX.min(self.ring.bytes() / 8) as usize;
            let mut group = self.queue.lock().take_group(bytes_max);
            let result = self.commit(&mut group).await;
            if result.is_err() {
                let mut queue = self.queue.lock();
                group.extend(queue.give_up(&self.state.lock().ledger));
            }
            for item in group {
                // A caller that has gone away doesn't need its answer.
                let _ = item.turn.send(Turn::Done(result.clone()));
            }
            let mut queue = self.queue.lock();
            if queue.waiting.is_empty() {
                queue.led = false;
                return;
            }
            // Not those for which nobody waits: fences that a request taught, and what callers have left behind.
            let mut waiting = queue.waiting.iter_mut();
            if waiting.any(Item::take_over) {
                return;
            }
        }
    }

    async fn commit(self: &Arc<Self>, group: &mut [Item]) -> Result<()> {
        if self.has_failed() {
            return Err(self.fail("writing its journal", &"the disk has failed already"));
        }
        let length = group_bytes(group.iter().map(|item| &item.record));
        let padded = length.next_multiple_of(UNIT) as u64;
        let position = self.room_for(padded).await?;
        let bytes = {
            let mut records: Vec<&mut Record> =
                group.iter_mut().map(|item| &mut item.record).collect();
            encode_group(self.stamp, position, &mut records)
        };
        let offset = self.ring.offset(position);
        let has_data = group.iter().any(|item| item.record.has_data());
        let written = self.write_group(offset, bytes, has_data).await;
        written.map_err(|error| self.fail("writing its journal", &error))?;
        self.world.at(Point::JournalWritten).await;
        let mut part = IndexPart::default();
        // Mostly all is in memory. What isn't is read without the lock, which everybody needs; then again if a checkpoint
        // has ended meanwhile. All who write wait for this one read, so it waits for no turn among lookups.
        loop {
            let wanted = {
                let mut state = self.state.lock();
                let records = group.iter().map(|item| &item.record);
                let wanted = state.wanted(records, part);
                if wanted.is_known() {
                    for item in group.iter() {
                        state.apply(&item.record, wanted.known());
                    }
                    let length = u32::try_from(length).expect("a group is small");
                    state.groups.push_back((position, length));
                    state.head = position + padded;
                    break;
                }
                wanted
            };
            let read = self.world.blocking(move || wanted.read()).await;
            part = read.map_err(|error| self.fail("applying its journal", &error))?;
        }
        self.checkpoint_if_due();
        Ok(())
    }

    /// Makes a group durable, and with it the data that its puts have written: one flush for both. A power cut before its end
    /// may leave the group and not all of the data, which is why opening proves the data of the last group.
    async fn write_group(&self, offset: u64, bytes: Bytes, has_data: bool) -> io::Result<()> {
        if self.world.has_planted(Planted::SkipFlush) {
            return self.disk.write(offset, bytes).await;
        }
        if !has_data {
            return self.disk.write_durable(offset, bytes).await;
        }
        self.disk.write(offset, bytes).await?;
        self.disk.flush().await
    }

    /// The position for a group of `length` bytes. While the ring is full, waits for a checkpoint.
    async fn room_for(self: &Arc<Self>, length: u64) -> Result<u64> {
        let end = self.world.now() + ROOM_WAIT_MAX;
        let mut again = false;
        loop {
            let checkpointed = self.checkpointed.notified();
            {
                let state = self.state.lock();
                let position = self.ring.place(state.head, length);
                if position + length - state.tail <= self.ring.bytes() {
                    return Ok(position);
                }
            }
            if self.has_failed() {
                return Err(self.fail("emptying its journal", &"the disk has failed already"));
            }
            if std::mem::replace(&mut again, true) {
                // A checkpoint that failed for lack of space may succeed later, but not at once.
                self.world.sleep(ROOM_PAUSE).await;
            }
            self.plan_checkpoint();
            let waited = self.world.timeout(ROOM_WAIT_MAX, checkpointed).await;
            if waited.is_err() || self.world.now() > end {
                let text = format!("NSD {}'s journal was full for 60 s", self.identity.nsd);
                return Err(Error::new(ErrorKind::NoSpace, text));
            }
        }
    }
}
