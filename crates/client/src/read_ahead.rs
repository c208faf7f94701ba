//! Read-ahead: for recognised sequential readers only, several units at once, limited by how much
//! of it is used.

use crate::client::Client;
use crate::inode::{Inner, InodeRef};
use crate::pages::extents::Source;
use crate::pattern::UNIT_BYTES;
use crate::read::{EXTENTS_AHEAD, EXTENTS_AT_ONCE, Keep};
use model::{ErrorKind, Result};
use tokio::sync::OwnedSemaphorePermit;
use tracing::debug;

/// A range being fetched; leaves the inode's list on drop.
struct Fetching {
    state: InodeRef,
    range: (u64, u64),
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.state
            .lock()
            .fetches
            .retain(|range| *range != self.range);
        self.state.changed.notify_waiters();
    }
}

impl Client {
    /// Notes a read for read-ahead. The caller holds the inode's lock.
    pub(crate) fn note_read(
        &self,
        state: &InodeRef,
        inner: &mut Inner,
        offset: u64,
        end: u64,
        size: u64,
    ) {
        let most = self.settings.read_ahead_bytes_max;
        if most == 0 {
            return;
        }
        let most = self.pages.ahead_max(most);
        let Some((from, to)) = inner.pattern.note(offset, end, size, most) else {
            return;
        };
        let mut at = inner.clean.covered_to(from);
        while at < to {
            // Units end at multiples of their size, so that they rarely straddle segments.
            let unit_end = ((at / UNIT_BYTES + 1) * UNIT_BYTES).min(to);
            let Ok(permit) = self.fetches_ahead.clone().try_acquire_owned() else {
                return;
            };
            inner.fetches.push((at, unit_end));
            let fetching = Fetching {
                state: state.clone(),
                range: (at, unit_end),
            };
            let client = self.shared();
            let work = async move { client.fetch_ahead(fetching, permit).await };
            self.session.spawn("read-ahead", work);
            at = unit_end;
        }
    }

    async fn fetch_ahead(&self, fetching: Fetching, _permit: OwnedSemaphorePermit) {
        if let Err(error) = self.fetch_range(&fetching).await {
            // The reader will read the data itself and get the error if it persists.
            debug!(inode = %fetching.state.id, %error, "read-ahead failed");
        }
    }

    async fn fetch_range(&self, fetching: &Fetching) -> Result<()> {
        let (from, to) = fetching.range;
        // Extents may have to be requested in several steps; a constantly changing file isn't worth
        // more.
        for _ in 0..8 {
            let (unknown, wanted) = {
                let inner = fetching.state.lock();
                let pieces = inner.extents.locate(from, to);
                let unknown = pieces.iter().find(|piece| piece.source == Source::Unknown);
                let unknown = unknown.map(|piece| piece.from);
                (unknown, pieces)
            };
            match unknown {
                Some(at) => {
                    let to = at.saturating_add(EXTENTS_AHEAD);
                    self.ask_extents(&fetching.state, at, to, EXTENTS_AT_ONCE)
                        .await?;
                }
                None => {
                    self.fetch(&fetching.state, &wanted, Keep::Ahead).await?;
                    return Ok(());
                }
            }
        }
        Err(ErrorKind::Changed.into())
    }
}
