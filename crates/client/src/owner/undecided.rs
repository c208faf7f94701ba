//! Publishes for which nobody waits any more, and which may run all the same. Pure, but for the wait for their end.
//!
//! Until it is known what became of one, nothing more of its file is published: in its slot it could run after a later
//! publish, and its bytes, which are older, would replace newer ones that programs were told are durable. What it names
//! could even be deleted by then, when its bytes were published once more and replaced.
//!
//! *Nothing waits for another client by that*: a publish needs no tokens, so the owner decides it as soon as it is heard.

use model::owner::OwnerRequest;
use model::{InodeId, Operation};
use std::sync::Arc;
use tokio::sync::watch;

/// The files of a session's undecided publishes: at most as many as there are slots.
pub(super) struct Undecided(Arc<watch::Sender<Vec<InodeId>>>);

/// One of them, until this is dropped.
pub(super) struct UndecidedPublish {
    all: Arc<watch::Sender<Vec<InodeId>>>,
    inode: InodeId,
}

impl Undecided {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Vec::new())))
    }

    /// Nobody waits for this request any more. `None` if it doesn't publish.
    pub(super) fn begin(&self, request: &OwnerRequest) -> Option<UndecidedPublish> {
        let inode = published(request)?;
        self.0.send_modify(|inodes| inodes.push(inode));
        Some(UndecidedPublish {
            all: self.0.clone(),
            inode,
        })
    }

    /// The file that a request publishes, if another publish of it must be decided before.
    pub(super) fn before(&self, request: &OwnerRequest) -> Option<InodeId> {
        published(request).filter(|inode| self.0.borrow().contains(inode))
    }

    /// Waits until all publishes of a file are decided.
    pub(super) async fn over(&self, inode: InodeId) {
        let mut inodes = self.0.subscribe();
        let over = inodes.wait_for(|inodes| !inodes.contains(&inode)).await;
        drop(over.expect("the sender is in the same place"));
    }
}

impl Drop for UndecidedPublish {
    fn drop(&mut self) {
        self.all.send_modify(|inodes| {
            let at = inodes.iter().position(|inode| *inode == self.inode);
            inodes.swap_remove(at.expect("it was put there"));
        });
    }
}

/// The file that a request publishes.
fn published(request: &OwnerRequest) -> Option<InodeId> {
    match request {
        OwnerRequest::Execute {
            operation: Operation::Publish(publish),
            ..
        } => Some(publish.inode),
        _ => None,
    }
}
