//! Disk space for dirty bytes: reserved before a write is answered, so that `NoSpace` comes now and
//! never later.

use model::Result;
use parking_lot::Mutex;
use pool::{Pool, Reservation};
use std::sync::Arc;
use tokio::sync::futures::Notified;

/// Space is reserved from the pool in steps of this many bytes.
const SPACE_STEP: u64 = 8 * 1024 * 1024;

/// Space reserved for dirty bytes.
pub(super) struct Space {
    pool: Arc<Pool>,
    reserved: Mutex<Reserved>,
}

#[derive(Default)]
struct Reserved {
    needed: u64,
    held: Option<Reservation>,
}

impl Space {
    pub(super) fn new(pool: Arc<Pool>) -> Self {
        let reserved = Mutex::default();
        Self { pool, reserved }
    }

    /// Reserves space for bytes that become dirty.
    ///
    /// # Errors
    /// `NoSpace`: the disks are full. `Busy`: this node has asked for more; try again when
    /// [`Space::answered`] tells.
    pub(super) fn take(&self, bytes: u64) -> Result<()> {
        let mut space = self.reserved.lock();
        let held = space.held.as_ref().map_or(0, Reservation::bytes);
        if space.needed + bytes > held {
            let missing = space.needed + bytes - held;
            let step = missing.next_multiple_of(SPACE_STEP);
            let more = match self.pool.is_shared() {
                // What isn't needed here may be needed on another node.
                true => self.pool.reserve(missing)?,
                // Near the end, reserve only the bytes really needed.
                false => self
                    .pool
                    .reserve(step)
                    .or_else(|_| self.pool.reserve(missing))?,
            };
            match &mut space.held {
                Some(held) => held.join(more),
                None => space.held = Some(more),
            }
        }
        space.needed += bytes;
        Ok(())
    }

    /// Completes when a wish for space was answered after this call.
    pub(super) fn answered(&self) -> Notified<'_> {
        self.pool.room()
    }

    /// Whoever wanted space doesn't wait any more.
    pub(super) fn give_up(&self) {
        self.pool.give_up_room();
    }

    /// The owner has freed something.
    pub(super) fn ask_anew(&self) {
        self.pool.ask_anew();
    }

    /// Returns the reservation of stored bytes: their space is now used, and further writes must
    /// reserve anew.
    pub(super) fn give(&self, bytes: u64) {
        let mut space = self.reserved.lock();
        space.needed = space
            .needed
            .checked_sub(bytes)
            .expect("space is given back once");
        if space.needed == 0 {
            space.held = None;
        } else if let Some(held) = &mut space.held {
            held.release(bytes);
        }
    }
}
