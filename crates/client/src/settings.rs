//! The few settings of a client.

use std::time::Duration;

/// How a client uses memory and when it writes. The defaults suit a node with 2 GiB or more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientSettings {
    /// Bytes of the page pool: dirty, in flight and cached together. At least 16 MiB.
    pub page_pool_bytes: u64,
    /// Bytes of one segment of a streamed file: the file system's block size, a power of two from
    /// 64 KiB to 16 MiB.
    pub block_bytes: u32,
    /// Dirty data older than this is written, however busy its file is.
    pub dirty_age_max: Duration,
    /// Dirty data of a file that wasn't written to for this long is written.
    pub dirty_idle_max: Duration,
    /// Most segments in flight to the NSDs.
    pub segments_in_flight_max: usize,
    /// How far read-ahead may get ahead of a sequential reader, in bytes. 0: no read-ahead.
    pub read_ahead_bytes_max: u64,
    /// Whether reads update atime: at most once a day, or if it isn't newer than mtime or ctime
    /// (Linux's relatime). False is noatime.
    pub relatime: bool,
    /// An operation that waits longer than this for disk or memory fails with `Unavailable`. Time in which nobody renews the
    /// node's lease, although it isn't expelled, doesn't count.
    pub patience: Duration,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            page_pool_bytes: 256 * 1024 * 1024,
            block_bytes: model::limits::BLOCK_BYTES_DEFAULT,
            dirty_age_max: Duration::from_millis(2_500),
            dirty_idle_max: Duration::from_secs(1),
            segments_in_flight_max: 16,
            read_ahead_bytes_max: 8 * 1024 * 1024,
            relatime: true,
            patience: Duration::from_secs(60),
        }
    }
}
