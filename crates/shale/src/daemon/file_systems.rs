//! Where mounts find the file systems that they show.

use client::{Client, Losses};
use futures::future::BoxFuture;
use model::{FileSystemName, InodeId, Result};
use std::sync::Arc;
use tokio::sync::OnceCell;

/// A file system that is open on this node. It is in use as long as anybody has this besides the [`FileSystems`].
pub struct OpenFileSystem {
    /// Its client.
    pub client: Arc<Client>,
    /// Its root directory.
    pub root: InodeId,
    /// How the client was closed.
    closed: OnceCell<Result<()>>,
}

impl OpenFileSystem {
    /// One with this client.
    pub fn new(client: Arc<Client>, root: InodeId) -> Arc<Self> {
        let closed = OnceCell::new();
        Arc::new(Self {
            client,
            root,
            closed,
        })
    }

    /// Closes the client. Several may ask for that at the same time: it is done once.
    ///
    /// # Errors
    /// As [`Client::close`].
    pub async fn close(&self) -> Result<()> {
        let closed = self.closed.get_or_init(|| self.client.close()).await;
        closed.clone()
    }
}

/// The file systems that can be mounted on this node.
pub trait FileSystems: Send + Sync {
    /// A file system (the first one without a name), opened if it isn't open. It stays open as long as it is in use. Whoever
    /// doesn't wait for the end of that leaves nothing open for ever.
    fn open<'a>(
        self: Arc<Self>,
        name: Option<&'a FileSystemName>,
    ) -> BoxFuture<'a, Result<Arc<OpenFileSystem>>>;

    /// Those that are open.
    fn opened(&self) -> Vec<Arc<OpenFileSystem>>;

    /// What was lost with sessions here, also with those of clients that are closed.
    fn losses(&self) -> Losses;
}
