//! Read-ahead: for recognised sequential readers only, several units at once, limited by how much
//! of it is used.

use super::fetch::{EXTENTS_AHEAD, EXTENTS_AT_ONCE, Fetcher, Keep};
use crate::inode::{Inner, InodeRef, UNIT_BYTES};
use crate::page_pool::PagePool;
use crate::pages::extents::Source;
use crate::session::Session;
use model::{ErrorKind, Result};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::debug;
use world::Work;

/// Most read-ahead fetches running at once.
const FETCHES_AHEAD_MAX: usize = 32;

/// Reads ahead.
pub(super) struct ReadAhead {
    session: Arc<Session>,
    pages: Arc<PagePool>,
    fetcher: Arc<Fetcher>,
    /// How far to get ahead of a reader; 0: not at all.
    bytes_max: u64,
    /// One permit per fetch.
    permits: Arc<Semaphore>,
}

/// A range being fetched; leaves the inode's list on drop.
struct Fetching {
    state: InodeRef,
    range: (u64, u64),
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.state.lock().end_fetch(self.range);
        self.state.signal();
    }
}

impl ReadAhead {
    pub(super) fn new(
        session: Arc<Session>,
        pages: Arc<PagePool>,
        fetcher: Arc<Fetcher>,
        bytes_max: u64,
    ) -> Self {
        Self {
            session,
            pages,
            fetcher,
            bytes_max,
            permits: Arc::new(Semaphore::new(FETCHES_AHEAD_MAX)),
        }
    }

    /// Notes a read of a file of `size` bytes, and starts the fetches that it calls for. The caller
    /// holds the inode's lock.
    pub(super) fn note_read(
        &self,
        state: &InodeRef,
        inner: &mut Inner,
        range: (u64, u64),
        size: u64,
    ) {
        inner.note_use(range, self.session.now());
        if self.bytes_max == 0 {
            return;
        }
        let most = self.pages.ahead_max(self.bytes_max);
        let Some((mut at, to)) = inner.note_read(range, size, most) else {
            return;
        };
        // Others may be changing what is behind it.
        let to = to.min(inner.readable_to(at));
        while at < to {
            // Units end at multiples of their size, so that they rarely straddle segments.
            let unit_end = ((at / UNIT_BYTES + 1) * UNIT_BYTES).min(to);
            let Ok(permit) = self.permits.clone().try_acquire_owned() else {
                return;
            };
            inner.begin_fetch((at, unit_end));
            let fetching = Fetching {
                state: state.clone(),
                range: (at, unit_end),
            };
            let fetching = fetch(self.fetcher.clone(), fetching, permit);
            let work = Work::Fetch(state.id());
            self.session.spawn_work("reads ahead", work, fetching);
            at = unit_end;
        }
    }
}

async fn fetch(fetcher: Arc<Fetcher>, fetching: Fetching, _permit: OwnedSemaphorePermit) {
    if let Err(error) = fetch_range(&fetcher, &fetching).await {
        // The reader will read the data itself and get the error if it persists.
        debug!(inode = %fetching.state.id(), %error, "read-ahead failed");
    }
}

async fn fetch_range(fetcher: &Fetcher, fetching: &Fetching) -> Result<()> {
    let (from, to) = fetching.range;
    // Extents may have to be requested in several steps; a constantly changing file isn't worth
    // more.
    for _ in 0..8 {
        let (unknown, wanted, mapping) = {
            let inner = fetching.state.lock();
            let pieces = inner.extents().locate(from, to);
            let unknown = pieces.iter().find(|piece| piece.source == Source::Unknown);
            let unknown = unknown.map(|piece| piece.from);
            (unknown, pieces, inner.mapping())
        };
        match unknown {
            Some(at) => {
                let held = fetching.state.lock().readable_to(at);
                if held <= at {
                    break;
                }
                let range = (at, at.saturating_add(EXTENTS_AHEAD));
                fetcher
                    .ask_extents(&fetching.state, range, None, EXTENTS_AT_ONCE)
                    .await?;
            }
            None => {
                let wanted = (&wanted[..], mapping);
                fetcher.fetch(&fetching.state, wanted, Keep::Ahead).await?;
                return Ok(());
            }
        }
    }
    Err(ErrorKind::Changed.into())
}
