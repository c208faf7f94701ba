//! Segments of tables: written before the catalog names them, deleted after it has dropped them.

use super::{Catalog, Change, Content};
use bytes::Bytes;
use model::{Error, ErrorKind, Result, SegmentPlace};
use std::time::Duration;

/// Bytes of a table in one segment.
pub(crate) const TABLE_SEGMENT_BYTES: usize = 4 * 1024 * 1024;
/// Smaller objects are stored in the log and the catalog itself.
pub(crate) const INLINE_BYTES_MAX: usize = 16 * 1024;

/// Attempts to write one segment; the pool tries several groups in each.
const WRITES_MAX: usize = 5;
const WRITE_PAUSE: Duration = Duration::from_millis(20);
/// Segments deleted per step.
const DELETE_BATCH: usize = 1024;
/// Pause after a failed deletion.
const DELETE_PAUSE: Duration = Duration::from_secs(5);
/// Time limit of a deletion.
const DELETE_DEADLINE: Duration = Duration::from_secs(60);

impl Catalog {
    /// Stores the bytes of an object that isn't in the catalog yet.
    pub(crate) async fn store(&self, bytes: Bytes) -> Result<Content> {
        if bytes.len() <= INLINE_BYTES_MAX {
            // Copied, so that a long-lived value doesn't keep a larger buffer alive.
            return Ok(Content::Inline(Bytes::copy_from_slice(&bytes)));
        }
        self.store_segments(bytes).await.map(Content::Segments)
    }

    pub(crate) async fn store_segments(&self, bytes: Bytes) -> Result<Vec<SegmentPlace>> {
        let mut places = Vec::with_capacity(bytes.len().div_ceil(TABLE_SEGMENT_BYTES));
        for at in (0..bytes.len()).step_by(TABLE_SEGMENT_BYTES) {
            let part = bytes.slice(at..bytes.len().min(at + TABLE_SEGMENT_BYTES));
            match self.write_part(part).await {
                Ok(written) => places.extend(written),
                Err(error) => {
                    self.abandon(places);
                    return Err(error);
                }
            }
        }
        Ok(places)
    }

    async fn write_part(&self, bytes: Bytes) -> Result<Vec<SegmentPlace>> {
        let shared = &self.shared;
        let mut pause = WRITE_PAUSE;
        for attempt in 1.. {
            if let Some(error) = shared.log.failed() {
                return Err(error);
            }
            match shared
                .pool
                .write_table_parts(&shared.segments, shared.owner, bytes.clone())
                .await
            {
                Ok(places) => return Ok(places),
                Err(error) if attempt == WRITES_MAX => {
                    return Err(error.while_doing("write a segment of a table"));
                }
                Err(_) => shared.world.sleep(pause).await,
            }
            pause *= 2;
        }
        unreachable!("the last attempt returns")
    }

    /// Bytes `at..at + length` of a segment of a table.
    pub(crate) async fn read_segment(
        &self,
        place: SegmentPlace,
        at: u32,
        length: u32,
    ) -> Result<Vec<Bytes>> {
        self.shared.pool.read(&place, at, length).await
    }

    /// Deletes, in the background, segments that no entry names or ever will.
    pub(crate) fn abandon(&self, places: Vec<SegmentPlace>) {
        if places.is_empty() {
            return;
        }
        let catalog = self.clone();
        let work = async move {
            if let Err(error) = catalog.delete(&places).await {
                tracing::info!(segments = places.len(), %error, "unnamed segments are left to the sweep");
            }
        };
        self.shared.world.spawn("table-abandon", work).detach();
    }

    /// Deletes dead segments until the tree ends.
    pub(crate) async fn run_reclaim(self) {
        loop {
            let batch: Vec<SegmentPlace> = {
                let state = self.shared.state.lock();
                state.dead.iter().take(DELETE_BATCH).copied().collect()
            };
            if batch.is_empty() {
                self.shared.dead.notified().await;
                continue;
            }
            let result = match self.delete(&batch).await {
                Ok(()) => self.forget(batch.len()).await,
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                if self.shared.log.failed().is_some() {
                    return;
                }
                tracing::info!(segments = batch.len(), %error, "dead table segments are not deleted yet");
                self.shared.world.sleep(DELETE_PAUSE).await;
            }
        }
    }

    async fn delete(&self, places: &[SegmentPlace]) -> Result<()> {
        let late = |_| Error::new(ErrorKind::Unavailable, "the pool doesn't answer a deletion");
        self.shared
            .world
            .timeout(DELETE_DEADLINE, self.shared.pool.delete(places))
            .await
            .map_err(late)?
    }

    /// Drops the oldest dead segments, now deleted, from the list. Only this takes from the front
    /// of the list, and changes run one at a time, so the count names the same segments on replay.
    async fn forget(&self, count: usize) -> Result<()> {
        let segments = u32::try_from(count).expect("a batch is small");
        let _one_at_a_time = self.shared.changing.lock().await;
        let change = Change::Forget {
            segments,
            time: self.shared.log.clock().now(),
        };
        self.commit(change).await.map(drop)
    }
}
