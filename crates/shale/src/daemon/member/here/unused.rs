//! Closes the clients of file systems that no mount of this node uses any more, however the last one has ended: as long as a
//! client has a session, its owner's own client isn't the only one and asks for tokens, and a new owner waits for what it holds.

use super::InCluster;
use crate::daemon::file_systems::OpenFileSystem;
use model::FileSystemName;
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked what is in use.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a client may take to make durable what was written. It goes on, and is asked again later.
const SETTLE_MAX: Duration = Duration::from_secs(10);

impl InCluster {
    /// Looks again and again which file systems are in use, and closes the others. Never returns.
    pub async fn close_unused(self: &Arc<Self>) {
        let world = self.member.world();
        loop {
            world.sleep(LOOK_EVERY).await;
            let unused = self.clients.lock().unused(world.now());
            for (name, unused) in unused {
                // Each by itself: it takes long if its owner doesn't answer. And to its end, also if this run ends meanwhile.
                let closing = self.clone().close_if_unused(name, unused);
                let task = world.spawn("closes a client that nobody uses", closing);
                task.detach();
            }
        }
    }

    /// Closes one, unless it can't make everything durable or is used again. Each wait of a client has a deadline.
    async fn close_if_unused(self: Arc<Self>, name: FileSystemName, unused: Arc<OpenFileSystem>) {
        // First: one that is closed tries nothing again, and what it can't publish now would be lost.
        let settling = unused.client.settle();
        match self.member.world().timeout(SETTLE_MAX, settling).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(%name, %error, "a client that nobody uses stays open: not all that was written is durable");
                return;
            }
            Err(_) => {
                tracing::debug!(%name, "a client that nobody uses stays open: its owner or NSDs don't answer");
                return;
            }
        }
        drop(unused);
        let closing = self.clients.lock().begin_close(&name);
        let Some(closing) = closing else {
            return;
        };
        let session = closing.client.session();
        if let Err(error) = closing.close().await {
            tracing::warn!(%name, %session, %error, "a client that nobody uses wasn't closed in good order");
        } else {
            tracing::info!(%name, %session, "nobody uses this file system here any more: its client is closed");
        }
        let mut clients = self.clients.lock();
        clients.closed(&closing);
        let mut lost = self.lost.lock();
        *lost = *lost + closing.client.losses();
    }
}
