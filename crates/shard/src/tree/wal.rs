//! Presents our log as SlateDB's: rows are durable before the tree sees them, entry numbers are its
//! file ids and sequence numbers, and replay reads the frames of the log's tail.

use crate::frame::CommitFrame;
use crate::log::Log;
use async_trait::async_trait;
use bytes::Bytes;
use model::{EntryNumber, Timestamp};
use parking_lot::Mutex;
use slatedb::wal::{
    WalError, WalEvent, WalFlushResult, WalIterator, WalObserver, WalRows, WalStatus,
    WalStatusListener, WalWriter, WriterInit, WriterInitResult, WriterManifest,
};
use slatedb::{RowEntry, ValueDeletable};
use std::sync::Arc;
use std::time::Duration;

/// The tree's memory is flushed to a table once this much log depends on it: a take-over reads, copies and replays all of it
/// while programs wait. On a busy machine with two cores 32 MiB take most of a second.
const REPLAY_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// The same limit by entries, which cost some tens of microseconds each, however small they are.
pub(super) const REPLAY_ENTRIES_MAX: u64 = 8192;
/// The same limit by age.
pub(super) const REPLAY_AGE_MAX: Duration = Duration::from_secs(60);

/// A commit of the log's tail.
pub(crate) struct ReplayCommit {
    /// Its (last) entry.
    pub(crate) number: EntryNumber,
    pub(crate) time: Timestamp,
    /// The encoded frame, decoded when the tree needs it.
    pub(crate) frame: Bytes,
}

/// Starts the log of an owner whose take-over is already done.
pub(super) struct LogInit {
    pub(super) log: Log,
    /// The commits of the tail; taken once.
    pub(super) commits: Mutex<Vec<ReplayCommit>>,
    /// The log's last entry at the take-over.
    pub(super) end: EntryNumber,
    pub(super) trimmed_below: EntryNumber,
}

struct Replay {
    commits: std::vec::IntoIter<ReplayCommit>,
}

struct Writer {
    log: Log,
    observer: Observer,
}

#[derive(Clone)]
struct Observer {
    state: Arc<Mutex<ObserverState>>,
}

struct ObserverState {
    status: WalStatus,
    listeners: Vec<WalStatusListener>,
}

#[async_trait]
impl WriterInit for LogInit {
    async fn fence_and_init(
        &self,
        manifest: &mut WriterManifest,
    ) -> Result<WriterInitResult, WalError> {
        let after = EntryNumber(manifest.replay_after_wal_id());
        if after.next() < self.trimmed_below {
            tracing::error!(%after, trimmed_below = %self.trimmed_below, "the log lacks entries that the tree needs");
            return Err(WalError::WalTruncated(after.next().0));
        }
        let mut commits = std::mem::take(&mut *self.commits.lock());
        commits.retain(|commit| commit.number > after);
        let status = WalStatus {
            closed_reason: None,
            estimated_bytes: 0,
            last_flushed_wal_id: self.end.max(after).0,
            last_flushed_seq: commits.last().map(|commit| commit.number.0),
            buffered_wal_entries_count: 0,
        };
        let state = ObserverState {
            status,
            listeners: Vec::new(),
        };
        let observer = Observer {
            state: Arc::new(Mutex::new(state)),
        };
        Ok(WriterInitResult {
            replay_iterator: Box::new(Replay {
                commits: commits.into_iter(),
            }),
            wal_writer: Box::new(Writer {
                log: self.log.clone(),
                observer,
            }),
        })
    }
}

#[async_trait]
impl WalIterator for Replay {
    async fn next(&mut self) -> Result<Option<WalRows>, WalError> {
        let Some(commit) = self.commits.next() else {
            return Ok(None);
        };
        let frame = CommitFrame::decode(commit.frame)
            .map_err(|error| WalError::DataError(Arc::new(error)))?;
        let seq = commit.number.0;
        let create_ts = Some(commit.time.0.div_euclid(1_000_000));
        let row = |(key, value): (bytes::Bytes, Option<bytes::Bytes>)| RowEntry {
            key,
            value: value.map_or(ValueDeletable::Tombstone, ValueDeletable::Value),
            seq,
            create_ts,
            expire_ts: None,
        };
        Ok(Some(WalRows {
            rows: frame.rows.into_iter().map(row).collect(),
            last_consumed_wal_file_id: seq,
        }))
    }
}

#[async_trait]
impl WalWriter for Writer {
    /// The rows are in the log already; their sequence number says where.
    async fn append(&mut self, rows: &[RowEntry]) -> Result<(), WalError> {
        let Some(seq) = rows.first().map(|row| row.seq) else {
            return Ok(());
        };
        let (event, listeners) = {
            let mut state = self.observer.state.lock();
            if let Some(reason) = &state.status.closed_reason {
                return Err(reason.clone());
            }
            assert!(
                seq > state.status.last_flushed_wal_id,
                "commits are applied in the order of the log"
            );
            state.status.last_flushed_wal_id = seq;
            state.status.last_flushed_seq = Some(seq);
            (
                WalEvent::WalFlushed(state.status.clone()),
                state.listeners.clone(),
            )
        };
        for listener in listeners {
            listener(event.clone());
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<WalFlushResult, WalError> {
        let wal_id = self.observer.status()?.last_flushed_wal_id;
        Ok(WalFlushResult {
            wal_id,
            completion: Box::pin(async { Ok(()) }),
        })
    }

    /// Asked with each commit, for what wasn't frozen yet: a new owner's first commit flushes what it had to replay too much of.
    fn should_flush_memtable(&self, replay_after_wal_id: u64) -> bool {
        let behind = self.log.behind(EntryNumber(replay_after_wal_id));
        behind.bytes >= REPLAY_BYTES_MAX
            || behind.entries >= REPLAY_ENTRIES_MAX
            || behind.age >= REPLAY_AGE_MAX
    }

    fn observer(&self) -> Box<dyn WalObserver> {
        Box::new(self.observer.clone())
    }

    fn status(&self) -> Result<WalStatus, WalStatus> {
        self.observer.status()
    }

    async fn close(&mut self) -> Result<(), WalError> {
        let (event, listeners) = {
            let mut state = self.observer.state.lock();
            if state.status.closed_reason.is_some() {
                return Ok(());
            }
            state.status.closed_reason = Some(WalError::Closed);
            (
                WalEvent::WalClosed(state.status.clone()),
                state.listeners.clone(),
            )
        };
        for listener in listeners {
            listener(event.clone());
        }
        Ok(())
    }
}

impl WalObserver for Observer {
    fn status(&self) -> Result<WalStatus, WalStatus> {
        let status = self.state.lock().status.clone();
        if status.closed_reason.is_some() {
            Err(status)
        } else {
            Ok(status)
        }
    }

    fn subscribe(&self, listener: WalStatusListener) -> Result<(), WalError> {
        self.state.lock().listeners.push(listener);
        Ok(())
    }
}
