//! Requests for which nobody waits any more, and which may run all the same. Pure, but for the wait for their end.
//!
//! *A publish*: until it is known what became of it, nothing more of its file is published. In its slot it could run
//! after a later publish, and its bytes, which are older, would replace newer ones that programs were told are durable.
//! What it names could even be deleted by then, when its bytes were published once more and replaced. *Nothing waits for
//! another client by that*: a publish needs no tokens, so the owner decides it as soon as it is heard.
//!
//! *Another change*: a truncate that runs late would cut what was written and synced after it. A publish can't wait for
//! that: the owner may be waiting for another client, which waits for this very publish. So who changes a file waits,
//! before there is anything to publish ([`Undecided::until`]; `exclusive.rs`). *A change of names* keeps nobody waiting: only
//! who tells kernels of it (`tokens/late.rs`).
//!
//! *A file lock*: taken after its program was told that it isn't, and has closed the file or unlocked it, it would stay with
//! nobody, and others would wait for it. So all that takes and ends locks waits, of whichever file: an owner that answers
//! decides it at once.

use futures::future::BoxFuture;
use model::owner::{LockCall, OwnerRequest};
use model::{InodeId, Operation};
use std::sync::Arc;
use tokio::sync::watch;
use world::Work;

/// What a request may still do for which nobody waits any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Late {
    /// It publishes bytes of a file.
    Publish,
    /// It changes which bytes a file has, and perhaps its attributes.
    Bytes,
    /// It changes other attributes of an inode.
    Attributes,
    /// It changes names in a directory.
    Names,
    /// It takes or ends file locks, or waits for some; of whichever file.
    Locks,
}

/// A session's undecided requests: at most as many as there are slots.
pub(super) struct Undecided(Arc<watch::Sender<Vec<(InodeId, Late)>>>);

/// One of them, until this is dropped.
pub(super) struct UndecidedRequest {
    all: Arc<watch::Sender<Vec<(InodeId, Late)>>>,
    it: (InodeId, Late),
}

impl Undecided {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Vec::new())))
    }

    /// Nobody waits for this request any more. `None` if nothing must wait for its end.
    pub(super) fn begin(&self, request: &OwnerRequest) -> Option<UndecidedRequest> {
        let it = late(request)?;
        self.0.send_modify(|all| all.push(it));
        Some(UndecidedRequest {
            all: self.0.clone(),
            it,
        })
    }

    /// Until all publishes of the file are decided that a request publishes, or all that takes or ends locks if it does, with the
    /// work that this is; `None` if nothing must be decided before it.
    pub(super) fn before(&self, request: &OwnerRequest) -> Option<(Work, BoxFuture<'static, ()>)> {
        let it = late(request)?;
        let decided = match it {
            (inode, Late::Publish) => self.until(inode, &[Late::Publish]),
            (_, Late::Locks) => self.until_none(|(_, late)| *late == Late::Locks),
            _ => None,
        };
        Some((work(it), decided?))
    }

    /// Until all such requests of an inode are decided; `None` if there are none.
    pub(super) fn until(
        &self,
        inode: InodeId,
        kinds: &'static [Late],
    ) -> Option<BoxFuture<'static, ()>> {
        self.until_none(move |(of, late)| *of == inode && kinds.contains(late))
    }

    /// Until all those are decided; `None` if there are none.
    fn until_none(
        &self,
        is_one: impl Fn(&(InodeId, Late)) -> bool + Send + Sync + 'static,
    ) -> Option<BoxFuture<'static, ()>> {
        if !self.0.borrow().iter().any(&is_one) {
            return None;
        }
        let mut all = self.0.subscribe();
        Some(Box::pin(async move {
            // Without its sender the session is over.
            let over = all.wait_for(|all| !all.iter().any(&is_one)).await;
            drop(over);
        }))
    }
}

impl UndecidedRequest {
    /// Finding out what became of it.
    pub(super) fn work(&self) -> Work {
        work(self.it)
    }
}

impl Drop for UndecidedRequest {
    fn drop(&mut self) {
        self.all.send_modify(|all| {
            let at = all.iter().position(|it| *it == self.it);
            all.swap_remove(at.expect("it was put there"));
        });
    }
}

/// Finding out what became of such requests of an inode.
fn work((inode, late): (InodeId, Late)) -> Work {
    Work::Decide((late != Late::Locks).then_some(inode))
}

/// What a request may do late, and of which inode; of a rename of the directory where the name was.
fn late(request: &OwnerRequest) -> Option<(InodeId, Late)> {
    let operation = match request {
        OwnerRequest::Execute { operation, .. } => operation,
        OwnerRequest::Lock(call) => {
            let it = (InodeId::ROOT, Late::Locks);
            return is_about_held(call).then_some(it);
        }
        _ => return None,
    };
    match operation {
        Operation::Publish(publish) => Some((publish.inode, Late::Publish)),
        Operation::SetAttributes { inode, set } if set.size.is_some() => {
            Some((*inode, Late::Bytes))
        }
        Operation::ChangeRange { inode, .. } | Operation::Share { to: inode, .. } => {
            Some((*inode, Late::Bytes))
        }
        Operation::SetAttributes { inode, .. }
        | Operation::SetXattr { inode, .. }
        | Operation::RemoveXattr { inode, .. } => Some((*inode, Late::Attributes)),
        Operation::Create { directory, .. }
        | Operation::CreateHeld { directory, .. }
        | Operation::Link { directory, .. }
        | Operation::Unlink { directory, .. }
        | Operation::RemoveDirectory { directory, .. }
        | Operation::Rename {
            from_directory: directory,
            ..
        } => Some((*directory, Late::Names)),
        _ => None,
    }
}

/// Whether a request takes or ends locks, or waits for some.
fn is_about_held(call: &LockCall) -> bool {
    match call {
        LockCall::Set(_)
        | LockCall::Queue { .. }
        | LockCall::EndWait { .. }
        | LockCall::EndProcess { .. }
        | LockCall::EndOpen { .. }
        | LockCall::EndDoor(_) => true,
        LockCall::BeginDoor(_) | LockCall::Test { .. } | LockCall::Await { .. } => false,
    }
}
