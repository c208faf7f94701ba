//! Where mounts find the file systems that they show.

use client::Client;
use futures::future::BoxFuture;
use model::{FileSystemName, InodeId, Result};
use std::sync::Arc;

/// The file systems that can be mounted on this node.
pub trait FileSystems: Send + Sync {
    /// A client of a file system (the first one without a name), and its root directory.
    fn open<'a>(
        &'a self,
        name: Option<&'a FileSystemName>,
    ) -> BoxFuture<'a, Result<(Arc<Client>, InodeId)>>;

    /// The clients that are open.
    fn clients(&self) -> Vec<Arc<Client>>;
}
