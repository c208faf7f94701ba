//! File systems that are yet to be mounted: whoever waits for one may give up.

use crate::file_system::FileSystem;
use model::{ErrorKind, Result};
use std::future::Future;
use tokio::sync::oneshot;
use world::World;

/// A file system that isn't mounted. Dropped, it ends as one whose mount has ended.
struct Unmounted<F: FileSystem>(Option<F>);

impl<F: FileSystem> Drop for Unmounted<F> {
    fn drop(&mut self) {
        if let Some(unwanted) = self.0.take() {
            unwanted.unmounted();
        }
    }
}

/// Begins a file system, in a task of its own: what was asked of an owner must be waited for, or nobody ends what it has
/// begun. If this is dropped meanwhile, the file system ends as soon as it has begun.
///
/// # Errors
/// Those of `beginning`.
pub(crate) async fn begin<F: FileSystem>(
    world: &World,
    beginning: impl Future<Output = Result<F>> + Send + 'static,
) -> Result<F> {
    let (give, given) = oneshot::channel();
    let begins = async move {
        let begun = beginning.await.map(|begun| Unmounted(Some(begun)));
        // Comes back if nobody waits for it any more.
        drop(give.send(begun));
    };
    world.spawn("begins what is to be mounted", begins).detach();
    // Nothing is given only if the tasks of the process end.
    let mut begun = given.await.map_err(|_| ErrorKind::ShuttingDown)??;
    Ok(begun.0.take().expect("it is taken once"))
}
