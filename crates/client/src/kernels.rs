//! Kernels that keep this client's answers: how long they may, and how they are told to drop them.
//!
//! What a kernel keeps hangs under the client's tokens, as the client's own caches do. *An answer* says how
//! long it may be used ([`Validity`]): not beyond the time of the tokens under which it was found, so that
//! a daemon that can't run leaves nothing old behind; not at all if there was none. *A recall* tells all
//! kernels, and the token goes back when they have dropped what it covered ([`Kernels::expire`]). The owner
//! ends the session of a client whose kernel doesn't.
//!
//! An answer may be on its way to a kernel while that is told. So telling has to end its validity too:
//! [`Kernel`] says what implementations must do.

use crate::session::Standing;
use futures::future::{BoxFuture, join, join_all};
use model::{Attributes, InodeId};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;
use world::World;

/// The longest time for which an answer is valid, as that of a token.
pub const VALID_MAX: Duration = Duration::from_secs(6);
/// By then a kernel has every answer that was prepared before.
const IN_FLIGHT_MAX: Duration = Duration::from_millis(250);
/// So long after nothing is answered any more kernels may use what was.
const BELIEVED_MAX: Duration = VALID_MAX.saturating_add(IN_FLIGHT_MAX);

/// What kernels must not use any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expired {
    /// All names, present and missing.
    Names,
    /// The attributes of an inode.
    Attributes(InodeId),
    /// Pages of a file, from the first byte to the one behind the last.
    Bytes {
        /// The file.
        inode: InodeId,
        /// The first byte.
        from: u64,
        /// The one behind the last; the largest number: all that follows.
        to: u64,
    },
}

impl Expired {
    /// All pages of a file.
    #[must_use]
    pub fn all_bytes(inode: InodeId) -> Self {
        Self::Bytes {
            inode,
            from: 0,
            to: u64::MAX,
        }
    }
}

/// A kernel that keeps answers of a client.
pub trait Kernel: Send + Sync {
    /// Ends the validity of what the kernel has, and of all answers that are on their way to it. Ready when
    /// nothing of it is used any more, and pages that were changed are written back. Takes
    /// no lock that a request of the same kernel may hold while it waits for the client, but for those of pages:
    /// nothing else waits for that.
    fn expire(&self, what: Expired) -> BoxFuture<'_, ()>;
}

/// How long a kernel may use an answer, from when it gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Validity {
    /// That the name leads to this inode.
    pub name: Duration,
    /// The inode's attributes.
    pub attributes: Duration,
}

/// What is found under a name, for a kernel.
#[derive(Clone, PartialEq, Debug)]
pub enum Found {
    /// An inode with these attributes.
    Entry(Attributes, Validity),
    /// Nothing; valid for so long.
    Missing(Duration),
}

/// What the session held when it was asked something.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    has_all: bool,
    changes: u64,
}

impl Asked {
    /// Whether the client had the whole file system to itself.
    #[must_use]
    pub fn is_alone(self) -> bool {
        self.has_all
    }
}

impl Standing {
    /// A kernel is about to ask something.
    pub(crate) fn asked(&self) -> Asked {
        let changes = self.changes();
        Asked {
            has_all: self.has_all(),
            changes,
        }
    }

    /// How long any answer may be used that was asked for then: not at all unless the session has had
    /// everything since.
    pub(crate) fn valid_since(&self, asked: Asked) -> Duration {
        // A change is counted before it is made: what was asked just then saw the former.
        match asked.has_all && self.has_all() && self.changes() == asked.changes {
            true => self.valid_under_tokens(),
            false => Duration::ZERO,
        }
    }

    /// How long something may be used that is known under tokens.
    pub(crate) fn valid_under_tokens(&self) -> Duration {
        self.rest().min(VALID_MAX)
    }
}

/// The kernels of a client.
#[derive(Default)]
pub(crate) struct Kernels(Mutex<Vec<Weak<dyn Kernel>>>);

impl Kernels {
    /// One more; those that have ended are forgotten.
    pub(crate) fn add(&self, kernel: Weak<dyn Kernel>) {
        let mut all = self.0.lock();
        all.retain(|known| known.strong_count() > 0);
        all.push(kernel);
    }

    /// Whether there are none.
    pub(crate) fn are_none(&self) -> bool {
        self.all().is_empty()
    }

    /// Whether there is more than one.
    pub(crate) fn are_several(&self) -> bool {
        self.all().len() > 1
    }

    fn all(&self) -> Vec<Arc<dyn Kernel>> {
        let all = self.0.lock();
        all.iter().filter_map(Weak::upgrade).collect()
    }

    /// Waits until no kernel uses it any more.
    pub(crate) async fn expire(&self, what: Expired) {
        let all = self.all();
        join_all(all.iter().map(|kernel| kernel.expire(what))).await;
    }

    /// As [`Kernels::expire`], for names and attributes: a kernel that can't be told believes none of them any
    /// more after the longest time for which they were valid.
    pub(crate) async fn expire_soon(&self, world: &World, what: Expired) {
        let expiring = self.expire(what);
        if world.timeout(BELIEVED_MAX, expiring).await.is_err() {
            tracing::warn!(
                ?what,
                "a kernel takes no notice; what it kept has run out by itself"
            );
        }
    }

    /// Waits until kernels use nothing that they were answered until now: nobody knows which names and
    /// attributes they have. They drop the bytes of these files meanwhile, but for those that they are just
    /// reading: these wait for what this waits for.
    /// Returns whether all pages are gone.
    pub(crate) async fn expire_all(&self, world: &World, files: Vec<InodeId>) -> bool {
        if self.are_none() {
            return true;
        }
        let dropped = async {
            for file in files {
                self.expire(Expired::all_bytes(file)).await;
            }
        };
        let dropped = world.timeout(BELIEVED_MAX, dropped);
        let (in_time, ()) = join(dropped, world.sleep(BELIEVED_MAX)).await;
        in_time.is_ok()
    }
}
