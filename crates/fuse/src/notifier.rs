//! Makes the kernel drop cached state. Dedicated threads send the notifications and hold no
//! lock: a notification may block in the kernel until this mount has served a request.
//!
//! Pages that somebody waits for have a thread of their own ([`Notifier::tell`]): the kernel locks a page until its
//! read is answered, which may take long, and names and attributes don't wait for that.

use crate::abi::{self, NotifyDeleteOut, NotifyInvalEntryOut, NotifyInvalInodeOut};
use crate::device::Device;
use model::{Error, ErrorKind, FileName, InodeId, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use tokio::sync::oneshot;
use world::World;
use zerocopy::IntoBytes;

/// Most queued notifications; more are refused (then use [`Notice::Everything`]).
const QUEUE_MAX: usize = 16_384;

/// The state that the kernel should drop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// Attributes, and cached pages of the range. Dirty mapped pages are written back first.
    Inode {
        /// The inode.
        inode: InodeId,
        /// First byte; negative: attributes only.
        offset: i64,
        /// Bytes; 0 or less: to the end.
        length: i64,
    },
    /// A name.
    Name {
        /// Its directory.
        directory: InodeId,
        /// The name.
        name: FileName,
        /// Only its validity ends; its users aren't disturbed.
        expire_only: bool,
    },
    /// A name whose inode is gone.
    Deleted {
        /// Its directory.
        directory: InodeId,
        /// The inode that it named.
        inode: InodeId,
        /// The name.
        name: FileName,
    },
    /// All names and attributes, at once (INC_EPOCH, Linux 6.16).
    Everything,
}

/// Sends notifications to the kernel of one mount. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Notifier {
    queue: Arc<Queue>,
    /// Of pages that somebody waits for.
    pages: Arc<Queue>,
    device: Arc<Device>,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<NotifierState>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct NotifierState {
    notices: VecDeque<(Notice, Option<oneshot::Sender<Result<()>>>)>,
    closed: bool,
}

impl Notifier {
    pub(crate) fn start(world: &World, device: Arc<Device>) -> io::Result<Self> {
        let start = |name| {
            let queue = Arc::new(Queue::default());
            let (served, sender) = (Arc::clone(&queue), Arc::clone(&device));
            drop(world.try_spawn_thread(name, move || run(&served, &sender))?);
            Ok::<_, io::Error>(queue)
        };
        let queue = start("shale-notify")?;
        let pages = start("shale-pages").inspect_err(|_| queue.close())?;
        Ok(Self {
            queue,
            pages,
            device,
        })
    }

    /// Makes the kernel drop the attributes and access control lists of an inode, immediately and
    /// on the calling thread. May be called while answering a request about the inode, if that
    /// request holds it open: for attributes alone the kernel takes no lock that waits for an
    /// answer. It does wait for an inode that it is about to drop, which may be writing its last
    /// mapped pages.
    pub(crate) fn forget_attributes(&self, inode: InodeId) {
        let out = NotifyInvalInodeOut {
            ino: inode.0,
            off: -1,
            len: 0,
        };
        // ENOENT: the kernel doesn't know the inode. Any other error: the mount is ending.
        let _ = self
            .device
            .notify(abi::notify::INVAL_INODE, &[out.as_bytes()]);
    }

    /// Notifies the kernel and waits until it has dropped the state. State that it doesn't have
    /// counts as dropped. Never await this while answering a request about the same inode: the
    /// kernel may hold that inode's lock until the answer, and locks the pages that it reads.
    ///
    /// # Errors
    /// `Busy`: the queue is full. `NotSupported`: the kernel is too old for this notice.
    /// `ShuttingDown`: the mount has ended.
    pub async fn tell(&self, notice: Notice) -> Result<()> {
        let queue = match &notice {
            Notice::Inode { offset, .. } if *offset >= 0 => &self.pages,
            _ => &self.queue,
        };
        let told = {
            let mut state = queue.state.lock();
            if state.closed {
                return Err(ErrorKind::ShuttingDown.into());
            }
            if state.notices.len() >= QUEUE_MAX {
                return Err(Error::new(
                    ErrorKind::Busy,
                    "too many notifications wait for the kernel",
                ));
            }
            let (tell, told) = oneshot::channel();
            state.notices.push_back((notice, Some(tell)));
            told
        };
        queue.wake.notify_one();
        told.await
            .unwrap_or_else(|_| Err(ErrorKind::ShuttingDown.into()))
    }

    /// Queues a notification without waiting, so it may be called while answering requests. Returns
    /// false if the queue is full or the mount has ended.
    pub fn post(&self, notice: Notice) -> bool {
        let mut state = self.queue.state.lock();
        if state.closed || state.notices.len() >= QUEUE_MAX {
            return false;
        }
        // Consecutive writes to one file share one notice.
        if state.notices.back().is_none_or(|(last, _)| *last != notice) {
            state.notices.push_back((notice, None));
        }
        drop(state);
        self.queue.wake.notify_one();
        true
    }

    pub(crate) fn close(&self) {
        self.queue.close();
        self.pages.close();
    }
}

impl Queue {
    /// Its thread ends once what it sends is sent.
    fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.notices.clear();
        self.wake.notify_one();
    }
}

fn run(queue: &Queue, device: &Device) {
    loop {
        let mut state = queue.state.lock();
        while state.notices.is_empty() && !state.closed {
            queue.wake.wait(&mut state);
        }
        let Some((notice, tell)) = state.notices.pop_front() else {
            return;
        };
        drop(state);
        let result = match send(device, &notice) {
            Ok(()) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // The kernel doesn't know the inode or the name: nothing to drop.
                Some(libc::ENOENT | libc::ENOTDIR) => Ok(()),
                Some(libc::EINVAL | libc::ENOSYS) => Err(ErrorKind::NotSupported.into()),
                Some(libc::ENODEV) => Err(ErrorKind::ShuttingDown.into()),
                // A directory that is a mount point, or not empty, stays.
                _ => Err(Error::new(
                    ErrorKind::Busy,
                    format!("the kernel refused {notice:?}: {error}"),
                )),
            },
        };
        if let Some(tell) = tell {
            // The caller may have stopped waiting.
            let _ = tell.send(result);
        }
    }
}

fn send(device: &Device, notice: &Notice) -> io::Result<()> {
    let length_of = |name: &FileName| {
        u32::try_from(name.as_bytes().len()).expect("names have at most 255 bytes")
    };
    match notice {
        Notice::Inode {
            inode,
            offset,
            length,
        } => {
            let out = NotifyInvalInodeOut {
                ino: inode.0,
                off: *offset,
                len: *length,
            };
            device.notify(abi::notify::INVAL_INODE, &[out.as_bytes()])
        }
        Notice::Name {
            directory,
            name,
            expire_only,
        } => {
            let flags = if *expire_only { abi::EXPIRE_ONLY } else { 0 };
            let out = NotifyInvalEntryOut {
                parent: directory.0,
                namelen: length_of(name),
                flags,
            };
            device.notify(
                abi::notify::INVAL_ENTRY,
                &[out.as_bytes(), name.as_bytes(), b"\0"],
            )
        }
        Notice::Deleted {
            directory,
            inode,
            name,
        } => {
            let out = NotifyDeleteOut {
                parent: directory.0,
                child: inode.0,
                namelen: length_of(name),
                padding: 0,
            };
            device.notify(
                abi::notify::DELETE,
                &[out.as_bytes(), name.as_bytes(), b"\0"],
            )
        }
        Notice::Everything => device.notify(abi::notify::INC_EPOCH, &[]),
    }
}
