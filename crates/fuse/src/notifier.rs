//! Makes the kernel drop cached state. Dedicated threads send the notifications and hold no
//! lock: a notification may block in the kernel until this mount has served a request.
//!
//! Pages have threads of their own: the kernel locks a page until its
//! read is answered, which may take long. Neither names and attributes nor other pages wait for that.

use crate::abi::{self, NotifyDeleteOut, NotifyInvalEntryOut, NotifyInvalInodeOut};
use crate::device::Device;
use model::{Error, ErrorKind, FileName, InodeId, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use world::World;
use zerocopy::IntoBytes;

/// Most queued notifications; more are refused (then use [`Notice::Everything`]).
const QUEUE_MAX: usize = 16_384;
/// Pause after too many were queued.
const PAUSE: Duration = Duration::from_millis(10);

/// Most threads that tell of pages: so many may wait for locks of pages at the same time, each for a read that waits for
/// other clients.
const PAGES_THREADS_MAX: usize = 64;
/// Most threads that tell of pages for which nobody waits.
const POSTED_THREADS_MAX: usize = 8;

/// Of how many files a kernel is told at once that is to drop what it has of many: one notice that waits for a page's lock holds
/// up no other one.
const DROPPED_AT_ONCE: usize = 16;
/// How long all of that may take. The kernel writes changed pages back one after the other, and each is a request.
const DROP_MAX: Duration = Duration::from_secs(5);

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
    /// Of pages, for which nobody waits: equal ones that follow each other are one.
    posted: Arc<Queue>,
    /// Of pages that somebody waits for.
    pages: Arc<Queue>,
    device: Arc<Device>,
}

/// Notices that wait for the threads that send them.
#[derive(Debug)]
struct Queue {
    name: &'static str,
    threads_max: usize,
    world: World,
    device: Arc<Device>,
    state: Mutex<NotifierState>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct NotifierState {
    notices: VecDeque<(Notice, Option<oneshot::Sender<Result<()>>>)>,
    threads: usize,
    /// Threads that wait for notices.
    idle: usize,
    closed: bool,
}

impl Notifier {
    pub(crate) fn start(world: &World, device: Arc<Device>) -> io::Result<Self> {
        let start = |name, threads_max| Queue::start(name, threads_max, world, &device);
        let queue = start("shale-notify", 1)?;
        let posted = start("shale-posted", POSTED_THREADS_MAX).inspect_err(|_| queue.close())?;
        let pages = start("shale-pages", PAGES_THREADS_MAX).inspect_err(|_| {
            queue.close();
            posted.close();
        })?;
        Ok(Self {
            queue,
            posted,
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
        let queue = self.queue_of(&notice, &self.pages);
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
            queue.help(&mut state);
            told
        };
        queue.wake.notify_one();
        told.await
            .unwrap_or_else(|_| Err(ErrorKind::ShuttingDown.into()))
    }

    /// As [`Notifier::tell`], and waits as long as the queue is full.
    ///
    /// # Errors
    /// `NotSupported`, `ShuttingDown`, as those of [`Notifier::tell`].
    pub(crate) async fn tell_in_turn(&self, notice: Notice) -> Result<()> {
        loop {
            match self.tell(notice.clone()).await {
                Err(error) if error.kind() == ErrorKind::Busy => {
                    self.queue.world.sleep(PAUSE).await;
                }
                told => return told,
            }
        }
    }

    /// Makes the kernel drop all pages of these inodes, and waits for that for [`DROP_MAX`]: with what it hasn't begun by then it
    /// doesn't begin. Returns whether it has dropped all. Requests for pages, also those that write them back, must be answered
    /// meanwhile, whatever the answers are.
    pub(crate) async fn drop_pages(&self, inodes: Vec<InodeId>) -> bool {
        let world = &self.pages.world;
        let tellers = inodes.len().min(DROPPED_AT_ONCE);
        let left = Arc::new(Mutex::new(inodes));
        let (end, mut ended) = mpsc::channel::<()>(1);
        for _ in 0..tellers {
            let (device, left, end) = (Arc::clone(&self.device), Arc::clone(&left), end.clone());
            let tell = move || {
                drop_each(&device, &left);
                drop(end);
            };
            if let Err(error) = world.try_spawn_thread("shale-drops", tell) {
                tracing::warn!(%error, "no thread more to have the kernel drop pages");
                break;
            }
        }
        drop(end);
        // Nothing is ever sent: it ends with the last of them.
        let all = world.timeout(DROP_MAX, ended.recv()).await;
        let unbegun = std::mem::take(&mut *left.lock());
        all.is_ok() && unbegun.is_empty()
    }

    /// Queues a notification without waiting, so it may be called while answering requests. Returns
    /// false if the queue is full or the mount has ended.
    pub fn post(&self, notice: Notice) -> bool {
        let queue = self.queue_of(&notice, &self.posted);
        let mut state = queue.state.lock();
        if state.closed || state.notices.len() >= QUEUE_MAX {
            return false;
        }
        // Consecutive writes to one file share one notice.
        if state.notices.back().is_none_or(|(last, _)| *last != notice) {
            state.notices.push_back((notice, None));
            queue.help(&mut state);
        }
        drop(state);
        queue.wake.notify_one();
        true
    }

    fn queue_of<'a>(&'a self, notice: &Notice, of_pages: &'a Arc<Queue>) -> &'a Arc<Queue> {
        match notice {
            Notice::Inode { offset, .. } if *offset >= 0 => of_pages,
            _ => &self.queue,
        }
    }

    pub(crate) fn close(&self) {
        self.queue.close();
        self.posted.close();
        self.pages.close();
    }
}

impl Queue {
    fn start(
        name: &'static str,
        threads_max: usize,
        world: &World,
        device: &Arc<Device>,
    ) -> io::Result<Arc<Self>> {
        let queue = Arc::new(Self {
            name,
            threads_max,
            world: world.clone(),
            device: Arc::clone(device),
            state: Mutex::default(),
            wake: Condvar::new(),
        });
        queue.add_thread(&mut queue.state.lock())?;
        Ok(queue)
    }

    fn add_thread(self: &Arc<Self>, state: &mut NotifierState) -> io::Result<()> {
        let queue = Arc::clone(self);
        drop(
            self.world
                .try_spawn_thread(self.name, move || run(&queue))?,
        );
        state.threads += 1;
        Ok(())
    }

    /// One more thread if those that there are may all be waiting in the kernel.
    fn help(self: &Arc<Self>, state: &mut NotifierState) {
        if state.idle < state.notices.len()
            && state.threads < self.threads_max
            && let Err(error) = self.add_thread(state)
        {
            tracing::warn!(%error, "no thread more to tell the kernel what it must drop");
        }
    }

    /// Its threads end once what they send is sent.
    fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.notices.clear();
        self.wake.notify_all();
    }
}

/// Makes the kernel drop the pages of one inode after the other, which others take from the same ones. Without a queue between:
/// a user may have half a million files open, and others have what matters to them in the rest of [`DROP_MAX`].
fn drop_each(device: &Device, left: &Mutex<Vec<InodeId>>) {
    let next = || left.lock().pop();
    while let Some(inode) = next() {
        let all = Notice::Inode {
            inode,
            offset: 0,
            length: 0,
        };
        // If it isn't told, the mount has ended, or the kernel doesn't know the inode.
        let _ = send(device, &all);
    }
}

fn run(queue: &Queue) {
    loop {
        let mut state = queue.state.lock();
        while state.notices.is_empty() && !state.closed && state.idle == 0 {
            state.idle += 1;
            queue.wake.wait(&mut state);
            state.idle -= 1;
        }
        let Some((notice, tell)) = state.notices.pop_front() else {
            // The mount has ended, or another thread waits already.
            state.threads -= 1;
            return;
        };
        drop(state);
        let result = match send(&queue.device, &notice) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::os::unix::net::UnixDatagram;
    use tokio::runtime::Runtime;
    use tokio::task::JoinHandle;
    use zerocopy::FromBytes;

    const SIZE: usize = size_of::<abi::OutHeader>() + size_of::<NotifyInvalInodeOut>();

    fn of(inode: u64, offset: i64) -> Notice {
        Notice::Inode {
            inode: InodeId(inode),
            offset,
            length: 4096,
        }
    }

    /// A kernel that takes nothing more before something is received from it.
    fn full() -> (Arc<Device>, UnixDatagram) {
        let (ours, kernel) = UnixDatagram::pair().expect("sockets");
        ours.set_nonblocking(true).expect("a socket");
        let device = Arc::new(Device::from_fd(ours.try_clone().expect("a socket").into()));
        while send(&device, &of(1, -1)).is_ok() {}
        ours.set_nonblocking(false).expect("a socket");
        // Far more than a busy machine needs.
        let patience = Some(Duration::from_secs(60));
        kernel.set_read_timeout(patience).expect("a socket");
        (device, kernel)
    }

    /// What the kernel is told next.
    fn received(kernel: &UnixDatagram) -> NotifyInvalInodeOut {
        let mut notice = [0; SIZE];
        assert_eq!(kernel.recv(&mut notice).expect("a notice"), SIZE);
        let body = &notice[size_of::<abi::OutHeader>()..];
        NotifyInvalInodeOut::read_from_bytes(body).expect("a notice")
    }

    /// Waits for so many threads that tell of pages, and notices that wait for one.
    fn wait_for(notifier: &Notifier, threads: usize, notices: usize) {
        loop {
            let mut state = notifier.pages.state.lock();
            assert!(state.threads <= PAGES_THREADS_MAX);
            if (state.threads, state.notices.len()) == (threads, notices) {
                return;
            }
            // Looks again when some may have gone on.
            let _ = Condvar::new().wait_for(&mut state, Duration::from_millis(1));
        }
    }

    fn tell(runtime: &Runtime, notifier: &Notifier, notice: Notice) -> JoinHandle<Result<()>> {
        let teller = notifier.clone();
        runtime.spawn(async move { teller.tell(notice).await })
    }

    #[test]
    fn a_notice_of_pages_that_waits_in_the_kernel_holds_up_no_other_one() {
        let runtime = Runtime::new().expect("a runtime");
        let _context = runtime.enter();
        let (device, kernel) = full();
        let notifier = Notifier::start(&World::real(), device).expect("threads");
        let many = PAGES_THREADS_MAX as u64;
        let tells = (0..2 * many).map(|number| tell(&runtime, &notifier, of(2 + number, 0)));
        let tells: Vec<_> = tells.collect();
        wait_for(&notifier, PAGES_THREADS_MAX, PAGES_THREADS_MAX);
        // Attributes and posted notices have threads of their own.
        let attributes = tell(&runtime, &notifier, of(1000, -1));
        assert!(notifier.post(of(1001, 0)) && notifier.post(of(1001, 0)));
        // The kernel goes on, and all are told.
        let mut told = BTreeSet::new();
        while told.len() < tells.len() + 2 {
            let out = received(&kernel);
            if out.ino >= 2 {
                assert!(told.insert(out.ino) || out.ino == 1001, "{} twice", out.ino);
            }
        }
        for told in tells.into_iter().chain([attributes]) {
            assert_eq!(runtime.block_on(told).expect("a task"), Ok(()));
        }
        wait_for(&notifier, 1, 0);
        notifier.close();
    }

    #[test]
    fn who_waits_for_a_notice_that_is_not_sent_hears_of_the_end() {
        let runtime = Runtime::new().expect("a runtime");
        let _context = runtime.enter();
        let (device, kernel) = full();
        let notifier = Notifier::start(&World::real(), device).expect("threads");
        let many = PAGES_THREADS_MAX as u64;
        for number in 0..many {
            drop(tell(&runtime, &notifier, of(2 + number, 0)));
        }
        wait_for(&notifier, PAGES_THREADS_MAX, 0);
        let told = tell(&runtime, &notifier, of(1000, 0));
        wait_for(&notifier, PAGES_THREADS_MAX, 1);
        notifier.close();
        let told = runtime.block_on(told).expect("a task");
        assert_eq!(told.unwrap_err().kind(), ErrorKind::ShuttingDown);
        assert!(!notifier.post(of(1, 0)));
        // Threads in the kernel come back when the connection ends.
        drop(kernel);
        wait_for(&notifier, 0, 0);
    }

    /// Would be broken if a kernel kept something of one of many files.
    #[test]
    fn all_pages_of_many_files_are_dropped() {
        let runtime = Runtime::new().expect("a runtime");
        let _context = runtime.enter();
        let (device, kernel) = full();
        let notifier = Notifier::start(&World::real(), device).expect("threads");
        let files = 2..2 + 3 * DROPPED_AT_ONCE as u64;
        let inodes = files.clone().map(InodeId).collect();
        let teller = notifier.clone();
        let dropped = runtime.spawn(async move { teller.drop_pages(inodes).await });
        let mut told = BTreeSet::new();
        while told.len() < 3 * DROPPED_AT_ONCE {
            let out = received(&kernel);
            if out.ino >= 2 {
                assert_eq!((out.off, out.len), (0, 0));
                assert!(told.insert(out.ino), "{} twice", out.ino);
            }
        }
        assert!(told.into_iter().eq(files));
        assert!(runtime.block_on(dropped).expect("a task"));
        notifier.close();
    }

    /// Would be broken if a page that a kernel never lets go held up the end of a run, and with it the next one, for ever.
    #[test]
    fn a_kernel_that_does_not_drop_pages_is_waited_for_only_so_long() {
        // Its clock goes on by itself when nothing else does.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let (device, kernel) = full();
            let world = World::real();
            let notifier = Notifier::start(&world, device).expect("threads");
            let inodes = (2..2 + 3 * DROPPED_AT_ONCE as u64).map(InodeId);
            let dropping = notifier.drop_pages(inodes.collect());
            let dropped = world.timeout(2 * DROP_MAX, dropping).await;
            assert!(!dropped.expect("it gives up"));
            notifier.close();
            drop(kernel);
        });
    }
}
