//! Room in a pool that several nodes write to: each writes to what it was given, so that what was accepted
//! always fits.
//!
//! A node alone knows what it holds, and compares that with what its NSDs have free (`space.rs`). With a
//! [`Room`], a [`Reservation`](crate::Reservation) takes from that instead, in raw bytes; every piece that is
//! put is said to it, whoever put it; and whoever gives room learns with [`Pool::count`](crate::Pool::count)
//! what the NSDs have.

use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// What came of a wish for room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// It is taken.
    Yes,
    /// There isn't enough here; it was asked for, and [`Pool::room`] tells when that was answered.
    Asked,
    /// There isn't enough in the whole pool.
    Full,
}

/// What a node may write to a pool. All bytes are raw: with redundancy. Nothing here waits.
pub trait Room: Send + Sync {
    /// Takes room, or asks for it.
    fn take(&self, bytes: u64) -> Taken;
    /// Room that was taken isn't needed any more: what it was for is in the pool, or never will be.
    fn put_back(&self, bytes: u64);
    /// A piece is in the pool.
    fn written(&self, bytes: u64);
    /// Something was freed: what didn't fit may fit now.
    fn ask_anew(&self);
    /// Nobody waits any more for what was asked for; who does asks again.
    fn give_up(&self);
    /// Tells all that wait when a wish was answered.
    fn answered(&self) -> &Notify;
}

/// The room of a pool, if other nodes write to it too.
#[derive(Default)]
pub(crate) struct Sharing {
    shared: OnceLock<(Arc<dyn Room>, u32)>,
    /// Without a room no wish is answered.
    never: Notify,
}

impl Sharing {
    /// From now on there is one, at most once. Clients write blocks of this size, unless the map says otherwise.
    pub(crate) fn begin(&self, room: Arc<dyn Room>, block_bytes: u32) {
        let is_first = self.shared.set((room, block_bytes)).is_ok();
        assert!(is_first, "a pool's room is set once");
    }

    pub(crate) fn room(&self) -> Option<&dyn Room> {
        self.shared.get().map(|(room, _)| &**room)
    }

    pub(crate) fn block_bytes(&self) -> Option<u32> {
        self.shared.get().map(|(_, bytes)| *bytes)
    }

    /// A piece of so many bytes is in the pool.
    pub(crate) fn note_put(&self, bytes: u64) {
        if let Some(room) = self.room() {
            room.written(nsd::blob_bytes(bytes));
        }
    }

    pub(crate) fn answered(&self) -> Notified<'_> {
        let answered = self.room().map(Room::answered);
        answered.unwrap_or(&self.never).notified()
    }
}
