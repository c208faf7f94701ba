//! Turns each request into a call of the file system, and its result into a reply.

mod attributes;
mod data;
mod files;
mod locks;
mod names;

use crate::abi::{self, AttrOut};
use crate::device::Device;
use crate::file_system::FileSystem;
use crate::gate::Gate;
use crate::init::Agreement;
use crate::killed;
use crate::locks::LockWaits;
use crate::made::Made;
use crate::mapped::Mapped;
use crate::notifier::Notifier;
use crate::pulse::{Pulse, Pulses};
use crate::reply::Reply;
use crate::request::{AttributeRequest, Incoming, Malformed, Request, forgets};
use crate::waiting::{Waiting, WithWaitHook};
use model::{Error, ErrorKind, InodeId};
use parking_lot::Mutex;
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use tokio::sync::watch;
use world::{World, errand};

/// How a lock request that must wait is answered.
pub(crate) enum ReplyTo<'a> {
    /// By the task that gets the lock, through the descriptor that the request came from.
    Device(&'a Arc<Device>),
    /// By whoever runs the request: only its ring entry can reply.
    Place(&'a dyn Place),
}

/// What a place says, perhaps later.
pub(crate) type Said<'a> = Pin<Box<dyn Future<Output = bool> + 'a>>;

/// A request's place where requests arrive.
pub(crate) trait Place {
    /// The request will wait, perhaps for long. False if none could come meanwhile.
    fn leave_for_long(&self) -> Said<'_>;
    /// Most concurrent lock waits of the mount.
    fn lock_waits_max(&self) -> usize;
}

/// Answers the requests of one mount with a file system.
pub(crate) struct Serving<F> {
    pub(crate) fs: Arc<F>,
    pub(crate) world: World,
    pub(crate) agreement: Agreement,
    /// Through which requests come to the file system.
    pub(crate) gate: Arc<Gate>,
    pub(crate) locks: Arc<LockWaits>,
    pub(crate) waiting: Waiting,
    pub(crate) pulses: Pulses,
    mapped: Mapped,
    made: Made,
    /// What programs hadn't closed when the mount ended.
    left_open: Mutex<Vec<InodeId>>,
    /// Sends notifications, once the mount has a connection.
    notifier: OnceLock<Notifier>,
}

/// Each thread of a mount holds it; the last one to end reports the mount's end, if nobody has before ([`Ending::desert`]). While
/// the mount's requests are held that is only reported afterwards: who goes on with what programs have must hear of it.
pub(crate) struct Ending<F: FileSystem> {
    pub(crate) serving: Arc<Serving<F>>,
    pub(crate) ended: watch::Sender<bool>,
}

impl<F: FileSystem> Drop for Ending<F> {
    fn drop(&mut self) {
        if *self.ended.borrow() {
            return;
        }
        if let Some(_inside) = self.serving.gate.enter_now() {
            self.serving.end();
            self.ended.send_replace(true);
            return;
        }
        let (serving, ended) = (self.serving.clone(), self.ended.clone());
        let end = async move {
            let _inside = serving.gate.enter(&serving.world).await;
            serving.end();
            ended.send_replace(true);
        };
        self.serving.world.spawn("end of a mount", end).detach();
    }
}

impl<F: FileSystem> Ending<F> {
    /// Reports the mount's end, although its threads go on and refuse requests: the file system is asked no more. No request may
    /// be inside the gate, which refuses.
    pub(crate) fn desert(&self) {
        self.serving.fs.unmounted();
        self.serving.fs.deserted();
        self.ended.send_replace(true);
    }
}

impl<F: FileSystem> Serving<F> {
    pub(crate) fn new(world: World, fs: Arc<F>, agreement: Agreement) -> Self {
        Self {
            fs,
            world,
            agreement,
            gate: Arc::default(),
            locks: Arc::default(),
            waiting: Waiting::default(),
            pulses: Pulses::default(),
            mapped: Mapped::default(),
            made: Made::default(),
            left_open: Mutex::default(),
            notifier: OnceLock::new(),
        }
    }

    /// Tells the file system that its mount has ended.
    fn end(&self) {
        *self.left_open.lock() = self.fs.open_inodes();
        self.fs.unmounted();
    }

    /// What programs have open. Of a mount that has ended what they hadn't closed then, which is told once.
    pub(crate) fn take_open(&self) -> Vec<InodeId> {
        // In this order: the mount may be ending, and some then are told twice.
        let mut open = self.fs.open_inodes();
        open.append(&mut self.left_open.lock());
        open
    }

    /// Sets how the kernel is notified.
    pub(crate) fn reach_by(&self, notifier: &Notifier) {
        // A mount has only one notifier.
        let _ = self.notifier.set(notifier.clone());
    }

    /// Looks again and again whether programs whose requests wait were killed, as long as the mount is served.
    pub(crate) fn watch_programs(self: &Arc<Self>) {
        let (world, serving) = (self.world.clone(), Arc::downgrade(self));
        let watch = async move {
            loop {
                world.sleep(killed::LOOK_EVERY).await;
                let Some(serving) = serving.upgrade() else {
                    return;
                };
                killed::end_killed(&serving.waiting, &world);
            }
        };
        self.world
            .spawn("looks for killed programs", watch)
            .detach();
    }

    /// Runs a request to its answer on the calling thread, whose pulse that is. `on_wait` is called if it must wait.
    pub(crate) fn run(
        self: &Arc<Self>,
        incoming: &Incoming<'_>,
        reply_to: &ReplyTo<'_>,
        pulse: &Pulse,
        on_wait: impl FnOnce() + Unpin,
    ) -> Reply {
        pulse.runs();
        let on_wait = || {
            pulse.waits();
            on_wait();
        };
        // Pinned here: it is large, and would be moved.
        let serving = pin!(self.serve(incoming, reply_to, on_wait));
        let reply = self.world.block_on(serving);
        pulse.reads();
        reply
    }

    /// Runs a request to its answer, which is EIO as soon as the mount refuses. `on_wait` is called if it must wait.
    pub(crate) async fn serve(
        self: &Arc<Self>,
        incoming: &Incoming<'_>,
        reply_to: &ReplyTo<'_>,
        on_wait: impl FnOnce() + Unpin,
    ) -> Reply {
        let mut waited = false;
        let operation = pin!(self.answer(incoming, reply_to));
        let on_wait = |waker: &Waker| {
            waited = true;
            let (now, errand) = (self.world.now(), self.world.errand());
            self.waiting.begin(incoming, now, errand, waker.clone());
            on_wait();
        };
        let operation = WithWaitHook {
            operation,
            on_wait: Some(on_wait),
            is_cut: || self.gate.refuses(),
        };
        let reply = errand::begin(operation).await;
        if waited {
            self.waiting.end(incoming.header.unique, self.world.now());
        }
        self.unless_refused(reply)
    }

    /// The answer to a program. If the mount refuses it is EIO, whatever has come of the request, also nothing.
    fn unless_refused(&self, reply: Option<Reply>) -> Reply {
        match reply {
            // Nobody waits for it, or it comes later.
            Some(reply @ (Reply::None | Reply::Later)) => reply,
            Some(reply) if !self.gate.refuses() => reply,
            _ => Reply::Errno(libc::EIO),
        }
    }

    async fn answer(self: &Arc<Self>, incoming: &Incoming<'_>, reply_to: &ReplyTo<'_>) -> Reply {
        let request = match incoming.parse() {
            Ok(request) => request,
            Err(Malformed::Unknown) => return Reply::Errno(libc::ENOSYS),
            Err(Malformed::Short) => {
                tracing::error!(
                    opcode = incoming.header.opcode,
                    "a request of the kernel is too short"
                );
                return Reply::Errno(libc::EIO);
            }
        };
        let caller = incoming.caller();
        let inode = incoming.inode();
        // Any request about a file that was just made ends what is known of it.
        if let Some(made) = self.made.take(inode)
            && let Request::Attribute(AttributeRequest::Getattr) = request
            && let Some(shown) = made.shown_to(&caller, self.world.now())
        {
            return Reply::fixed(&AttrOut::of(&shown));
        }
        let inside = match asks_nothing(&request) {
            true => None,
            false => match self.gate.enter(&self.world).await {
                None if is_of_nobody(&request) => return Reply::None,
                None => return Reply::Errno(libc::EINTR),
                inside => inside,
            },
        };
        let result = match request {
            Request::Data(request) => self.data(&caller, inode, request).await,
            Request::Name(request) => self.names(&caller, inode, request).await,
            Request::Attribute(request) => self.attributes(&caller, inode, request).await,
            Request::File(request) => self.files(&caller, inode, request).await,
            Request::Getlk(lock) => self.get_lock(&caller, lock).await,
            Request::Setlk { lock, wait } => {
                self.set_lock(&caller, lock, wait, reply_to, inside).await
            }
            Request::Forget { lookups } => {
                self.fs.forget(inode, lookups);
                Ok(Reply::None)
            }
            Request::BatchForget { count, ones } => {
                forgets(count, ones).for_each(|(inode, lookups)| self.fs.forget(inode, lookups));
                Ok(Reply::None)
            }
            Request::Interrupt { unique } => {
                self.locks.interrupt(unique);
                killed::end_if_killed(&self.waiting, unique, &self.world);
                Ok(Reply::None)
            }
            // The kernel checks permissions itself (default_permissions); after ENOSYS it stops
            // asking.
            Request::Access => Ok(Reply::Errno(libc::ENOSYS)),
            Request::Destroy | Request::NotifyReply => Ok(Reply::Empty),
            // A connection has only one INIT.
            Request::Init(_) => Ok(Reply::Errno(libc::EIO)),
        };
        match result {
            // Nobody sees it.
            Err(_) if self.world.is_given_up() => Reply::Errno(libc::EINTR),
            result => result.unwrap_or_else(|error| refusal(&error, incoming)),
        }
    }
}

/// Whether a request is answered without the file system.
fn asks_nothing(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Interrupt { .. }
            | Request::Access
            | Request::Destroy
            | Request::NotifyReply
            | Request::Init(_)
    )
}

/// Whether nobody waits for an answer to a request, and none is sent.
fn is_of_nobody(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::Forget { .. } | Request::BatchForget { .. }
    )
}

fn refusal(error: &Error, incoming: &Incoming<'_>) -> Reply {
    use ErrorKind::{Corrupt, OldEpoch, Unavailable, Unknown};
    if matches!(error.kind(), Corrupt | OldEpoch | Unavailable | Unknown) {
        let request = abi::opcode::name(incoming.header.opcode);
        tracing::warn!(request, inode = %incoming.inode(), %error, "a request failed");
    }
    Reply::Errno(error.errno())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryFileSystem, MemorySettings};
    use std::time::Duration;
    use world::sim::Simulation;

    const SOON: Duration = Duration::from_secs(1);

    fn new(world: &World) -> (Ending<MemoryFileSystem>, watch::Receiver<bool>) {
        let fs = Arc::new(MemoryFileSystem::new(world, MemorySettings::default()));
        let agreement = Agreement {
            flags: 0,
            minor: 36,
            data_bytes: 1 << 20,
        };
        let serving = Arc::new(Serving::new(world.clone(), fs, agreement));
        let (ended, has_ended) = watch::channel(false);
        (Ending { serving, ended }, has_ended)
    }

    /// Would be broken if the locks and open files of a mount that ends while it is held were ended by a client that has left:
    /// the one that goes on would have them for ever, and others would wait for the locks.
    #[test]
    fn a_mount_that_ends_while_it_is_held_is_told_to_end_afterwards() {
        let ran = Simulation::new(1).run(async |world: World| {
            let (ending, has_ended) = new(&world);
            drop(ending);
            assert!(*has_ended.borrow(), "nobody holds it");
            let (ending, mut has_ended) = new(&world);
            let serving = ending.serving.clone();
            let held = serving.gate.hold(&serving.locks, &world, SOON).await;
            drop(ending);
            world.sleep(SOON).await;
            assert!(!*has_ended.borrow(), "its end waits");
            drop(held.unwrap());
            let ends = has_ended.wait_for(|ended| *ended);
            let ended = world.timeout(SOON, ends).await;
            assert!(ended.is_ok_and(|ended| ended.is_ok()), "it goes on");
        });
        ran.finished();
    }
}
