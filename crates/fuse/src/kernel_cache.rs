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
        // Told; or the mount has ended; or it is a notice that this kernel doesn't know, and nothing was
        // kept for which it is needed.
        let _ = self.notifier.tell_in_turn(notice).await;
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
    use crate::abi::{NotifyInvalInodeOut, OutHeader, notify};
    use crate::device::Device;
    use std::os::unix::net::UnixDatagram;
    use tokio::runtime::Runtime;
    use zerocopy::FromBytes;

    /// What a kernel is told next: which notice, and the inode and the first byte if it is about an inode.
    fn told(kernel: &UnixDatagram) -> (i32, Option<(u64, i64)>) {
        let mut bytes = [0; 512];
        let length = kernel.recv(&mut bytes).expect("a notice");
        let (head, body) = bytes[..length].split_at(size_of::<OutHeader>());
        let head = OutHeader::read_from_bytes(head).expect("a header");
        let of_inode = NotifyInvalInodeOut::read_from_bytes(body).ok();
        (head.error, of_inode.map(|it| (it.ino, it.off)))
    }

    /// Would be broken if a kernel were told to drop single names: for that it takes the lock of their directory, and may hold it
    /// for a change that waits until this client has given back what it is being told of.
    #[test]
    fn what_goes_back_is_told_by_notices_that_take_no_lock_of_a_directory() {
        let runtime = Runtime::new().expect("a runtime");
        let _context = runtime.enter();
        let (ours, kernel) = UnixDatagram::pair().expect("sockets");
        // Far more than a busy machine needs.
        let patience = Some(Duration::from_secs(60));
        kernel.set_read_timeout(patience).expect("a socket");
        let (world, device) = (World::real(), Arc::new(Device::from_fd(ours.into())));
        let notifier = Notifier::start(&world, device).expect("threads");
        let cache = KernelCache::begin(&world, notifier.clone(), InodeId::ROOT);
        let all_names = (notify::INC_EPOCH, None);
        assert_eq!(told(&kernel), all_names, "it finds out what it can do");
        let inode = InodeId(5);
        let of_inode = |first: i64| (notify::INVAL_INODE, Some((inode.0, first)));
        let bytes = Expired::Bytes {
            inode,
            from: 4096,
            to: 8192,
        };
        for what in [Expired::Names, Expired::Attributes(inode), bytes] {
            let notices = match what {
                Expired::Names => vec![all_names],
                // Without pages.
                Expired::Attributes(_) => vec![of_inode(-1), all_names],
                Expired::Bytes { .. } => vec![of_inode(4096)],
            };
            runtime.block_on(cache.expire(what));
            for notice in notices {
                assert_eq!(told(&kernel), notice, "{what:?}");
            }
        }
        notifier.close();
        kernel.set_nonblocking(true).expect("a socket");
        kernel.recv(&mut [0; 8]).expect_err("nothing else is told");
    }

    #[test]
    fn exactly_the_pages_that_go_are_told_and_all_that_follow_for_the_largest_end() {
        assert_eq!((start_of(4096), length_of(4096, 12_288)), (4096, 8192));
        assert_eq!((start_of(0), length_of(0, u64::MAX)), (0, 0));
    }
}
