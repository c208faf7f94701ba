//! Lookups in the index: what isn't in memory is read on a thread where that holds up nobody else.
//!
//! redb reads the disk within its calls, so they block. The threads that ask are those that everything else on the node
//! needs: one of a mount has many requests, one of the runtime has any. So a lookup is a wait like any other for a disk: it
//! can be bounded by a deadline, hedged, and is listed. A disk that hangs keeps as many threads as lookups may read at a time,
//! and that of who writes the journal (`commit`), who needs no place among these.

use crate::core::Core;
use crate::entry::IndexEntry;
use crate::index::Found;
use crate::key::Key;
use crate::state::merged;
use crate::wanted::IndexPart;
use model::Result;
use std::sync::Arc;

impl Core {
    /// The entry of a key.
    pub(crate) async fn locate(&self, key: &Key) -> Result<Option<Arc<IndexEntry>>> {
        let (mark, snapshot) = {
            let mut state = self.state.lock();
            if let Some(known) = state.peek(key) {
                return Ok(known);
            }
            (state.mark(), state.snapshot.clone())
        };
        let key = *key;
        // Boxed: rare, and those who look up are nested.
        let found = Box::pin(self.in_index(move || snapshot.get(&key))).await;
        let found = found.map_err(|error| self.index_error(error))?;
        self.state.lock().remember(mark, key, found.as_ref());
        Ok(found)
    }

    /// Whether [`Core::locate`] finds the entry of `key`, or that there is none, in memory, without waiting for anybody.
    pub(crate) fn is_at_hand(&self, key: &Key) -> bool {
        let state = self.state.try_lock();
        state.is_some_and(|mut state| state.peek(key).is_some())
    }

    /// Brings the entries of some keys into memory, if there is room, with one visit of the index.
    pub(crate) async fn bring(&self, keys: &[Key]) -> Result<()> {
        let wanted = self.state.lock().wanted_keys(keys, IndexPart::default());
        if wanted.is_known() {
            return Ok(());
        }
        let read = Box::pin(self.in_index(move || wanted.read())).await;
        let read = read.map_err(|error| self.index_error(error))?;
        let mut state = self.state.lock();
        for (key, found) in read.entries() {
            state.remember(read.mark(), *key, found.as_ref());
        }
        Ok(())
    }

    /// At most `limit` entries in `from..=to`.
    pub(crate) async fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Found> {
        let (part, snapshot) = {
            let state = self.state.lock();
            (state.changed_in(from, to), state.snapshot.clone())
        };
        let (from, to) = (*from, *to);
        let look = move || merged(&part, &snapshot, &from, &to, limit);
        let found = Box::pin(self.in_index(look)).await;
        found.map_err(|error| self.index_error(error))
    }

    /// Runs what may read the index, and so block, where that holds up nobody else.
    pub(crate) async fn in_index<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let place = match self.lookups.clone().try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                let place = self.lookups.clone().acquire_owned().await;
                place.expect("the semaphore is never closed")
            }
        };
        let work = move || {
            let done = work();
            // Until here, also if the caller has given up.
            drop(place);
            done
        };
        self.world.blocking(work).await
    }
}

#[cfg(test)]
mod tests;
