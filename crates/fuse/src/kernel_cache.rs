//! What a door's kernel keeps of the client's answers, and how it drops that when the client must give
//! back what others want.

use crate::notifier::{Notice, Notifier};
use crate::siblings::node_of;
use client::{Expired, KeptPages, Kernel, KernelNumber};
use model::{Error, ErrorKind, InodeId, Result, TokenMode};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;
use world::World;

/// Pause after too many notices were waiting for the kernel.
const PAUSE: Duration = Duration::from_millis(10);

/// How long a program's first read of pages waits until its mount is complete.
const REACHED_MAX: Duration = Duration::from_secs(30);

/// The number of the kernel behind a door at the client, once there is one.
#[derive(Default)]
pub(crate) struct Number {
    known: OnceLock<KernelNumber>,
    is_known: Notify,
}

impl Number {
    pub(crate) fn set(&self, number: KernelNumber) {
        // A door is mounted only once.
        let _ = self.known.set(number);
        self.is_known.notify_waiters();
    }

    /// Which pages the kernel keeps, for the client. Waits for the number: a program may be faster than who mounts.
    ///
    /// # Errors
    /// `Unavailable`: there is none for long.
    pub(crate) async fn keeps(
        &self,
        world: &World,
        mode: Option<TokenMode>,
    ) -> Result<Option<KeptPages>> {
        let Some(mode) = mode else { return Ok(None) };
        let known = async {
            loop {
                let is_known = self.is_known.notified();
                match self.known.get() {
                    Some(by) => return *by,
                    None => is_known.await,
                }
            }
        };
        match world.timeout(REACHED_MAX, known).await {
            Ok(by) => Ok(Some(KeptPages { by, mode })),
            Err(_) => Err(Error::new(
                ErrorKind::Unavailable,
                "the mount isn't complete",
            )),
        }
    }
}

/// The caches of the kernel behind a door.
pub(crate) struct KernelCache {
    world: World,
    notifier: Notifier,
    /// The root of the mount, which is number 1 there.
    root: InodeId,
    /// It knows the notice that ends the validity of all names without taking a directory's lock.
    expires_names: AtomicBool,
}

impl KernelCache {
    /// Finds out, in a task, what the kernel of a mounted door can do.
    pub(crate) fn begin(world: &World, notifier: Notifier, root: InodeId) -> Arc<Self> {
        let cache = Arc::new(Self {
            world: world.clone(),
            notifier,
            root,
            expires_names: AtomicBool::new(false),
        });
        let found = Arc::clone(&cache);
        let finding = async move {
            let knows_it = found.notifier.tell(Notice::Everything).await.is_ok();
            found.expires_names.store(knows_it, Ordering::Release);
        };
        world.spawn("finds out how names expire", finding).detach();
        cache
    }

    /// Whether names may be kept for as long as nobody else changes them.
    pub(crate) fn expires_names(&self) -> bool {
        self.expires_names.load(Ordering::Acquire)
    }

    async fn tell(&self, notice: Notice) {
        loop {
            match self.notifier.tell(notice.clone()).await {
                Err(error) if error.kind() == ErrorKind::Busy => self.world.sleep(PAUSE).await,
                // Told; or the mount has ended; or it is a notice that this kernel doesn't know, and
                // nothing was kept for which it is needed.
                _ => return,
            }
        }
    }
}

impl Kernel for KernelCache {
    fn expire(&self, what: Expired) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            let (inode, offset, length) = match what {
                Expired::Names => return self.tell(Notice::Everything).await,
                Expired::Attributes(inode) => (inode, -1, 0),
                Expired::Bytes { inode, from, to } => (inode, start_of(from), length_of(from, to)),
            };
            let Some(inode) = node_of(self.root, inode) else {
                return;
            };
            self.tell(Notice::Inode {
                inode,
                offset,
                length,
            })
            .await;
            // An inode that the kernel doesn't know yet can be in an answer on its way, whose
            // attributes only the end of its name makes void.
            if matches!(what, Expired::Attributes(_)) {
                self.tell(Notice::Everything).await;
            }
        })
    }
}

fn start_of(from: u64) -> i64 {
    i64::try_from(from).unwrap_or(i64::MAX)
}

/// 0: to the end.
fn length_of(from: u64, to: u64) -> i64 {
    match to {
        u64::MAX => 0,
        _ => i64::try_from(to - from).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_pages_that_go_are_told_and_all_that_follow_for_the_largest_end() {
        assert_eq!((start_of(4096), length_of(4096, 12_288)), (4096, 8192));
        assert_eq!((start_of(0), length_of(0, u64::MAX)), (0, 0));
    }
}
