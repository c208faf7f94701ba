//! Kernels of this node, and changes whose answer nobody heard: the owner didn't answer in time, or the program didn't wait.
//!
//! The kernel has given its program an error then, and goes on with what it keeps: names and attributes for some seconds, pages
//! until it is told. The owner recalls nothing from the client that changes something itself. So when it is known what became of
//! the change, and it may have been made, all kernels are told as they are of what others change.

use super::Tokens;
use crate::inode::Why;
use crate::kernels::Expired;
use crate::owner::Late;
use futures::future::join_all;
use model::{Error, ErrorKind, InodeId, Result, TokenRange};
use std::time::Duration;

/// How long kernels may take to drop all pages of a file until they are told once more, and the pause before that.
const DROP_MAX: Duration = Duration::from_secs(24);
const PAUSE: Duration = Duration::from_millis(100);

/// A change that is under way. Unless its answer is heard before this is dropped, kernels are told when it is known what became
/// of it.
pub(crate) struct Unheard<'a> {
    tokens: &'a Tokens,
    /// What is changed, or the directory whose names are.
    inode: InodeId,
    /// Another one that is changed with its names.
    other: Option<InodeId>,
    of: Late,
    is_heard: bool,
}

impl Unheard<'_> {
    /// This is the answer: who asked tells its kernel, if there is something to tell.
    pub(crate) fn hear<T>(mut self, answer: &Result<T>) {
        let is_unknown = |error: &Error| error.kind() == ErrorKind::Unknown;
        self.is_heard = !answer.as_ref().is_err_and(is_unknown);
    }
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        let tokens = self.tokens;
        if self.is_heard || tokens.kernels.are_none() {
            return;
        }
        // Whoever was asking is gone by now: what it leaves undecided is listed.
        let changes: &'static [Late] = match self.of {
            Late::Names => &[Late::Names],
            _ => &[Late::Bytes, Late::Attributes],
        };
        let decided = tokens.session.owner().undecided(self.inode, changes);
        let (me, inode, other, of) = (tokens.me.clone(), self.inode, self.other, self.of);
        let telling = async move {
            if let Some(decided) = decided {
                decided.await;
            }
            // Not held before: that may last.
            let Some(tokens) = me.upgrade() else { return };
            match of {
                Late::Names => tokens.tell_late_names([Some(inode), other]).await,
                _ => tokens.tell_late(inode, of).await,
            }
        };
        let session = &tokens.session;
        session.spawn("tells kernels of a late change", telling);
    }
}

impl Tokens {
    /// The owner is about to be asked for a change of an inode.
    pub(crate) fn begin_change(&self, inode: InodeId, of: Late) -> Unheard<'_> {
        Unheard {
            tokens: self,
            inode,
            other: None,
            of,
            is_heard: false,
        }
    }

    /// The owner is about to be asked for a change of names in a directory; `other`: the second one of a rename, or the inode
    /// that gets one more name.
    pub(crate) fn begin_change_of_names(
        &self,
        directory: InodeId,
        other: Option<InodeId>,
    ) -> Unheard<'_> {
        Unheard {
            tokens: self,
            inode: directory,
            other,
            of: Late::Names,
            is_heard: false,
        }
    }

    /// Kernels are told of a change of names that may have been made, as of a directory's recall: no name is valid, nor the
    /// directory's attributes, nor those of what has its name in it. But the token stays, and so does the account of what
    /// kernels keep under it: it may be answered to them again meanwhile.
    async fn tell_late_names(&self, changed: [Option<InodeId>; 2]) {
        let names = self.session.known_names();
        let changed = changed.into_iter().flatten();
        let inodes = changed.flat_map(|inode| {
            let below = names.map_or_else(Vec::new, |names| names.shown_in(inode));
            below.into_iter().chain([inode])
        });
        let attributes = inodes.map(Expired::Attributes);
        let expired: Vec<Expired> = attributes.chain([Expired::Names]).collect();
        let (world, expired) = (self.session.world(), expired.into_iter());
        join_all(expired.map(|what| self.kernels.expire_soon(world, what))).await;
    }

    /// Kernels are told of a change of an inode that may have been made.
    async fn tell_late(&self, inode: InodeId, of: Late) {
        let attributes = Expired::Attributes(inode);
        let world = self.session.world();
        self.kernels.expire_soon(world, attributes).await;
        if of == Late::Bytes {
            self.drop_late(inode).await;
        }
    }

    /// Kernels drop all pages of a file, and write back what was changed in them: as long as the session lasts. Its end has
    /// them dropped anyway.
    async fn drop_late(&self, inode: InodeId) {
        // Of files that aren't open pages are dropped when they are opened.
        while let Some(state) = self.pages.find_inode(inode) {
            {
                let mut inner = state.lock();
                if !inner.is_open() {
                    return;
                }
                // Nobody keeps account of what kernels have of it then. That isn't taken back, because it isn't looked at
                // before the session gives everything up and says the same.
                if self.session.standing().was_given_all() {
                    inner.kernel_pages().set_unknown(true);
                }
            }
            let all = [TokenRange::ALL];
            let dropped = self.drop_now(inode, &all, Why::Recalled, DROP_MAX).await;
            let is_over = self.state.lock().is_over || self.session.check_open().is_err();
            if dropped.in_time || is_over {
                return;
            }
            drop(dropped);
            self.session.world().sleep(PAUSE).await;
        }
    }
}
