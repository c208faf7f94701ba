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
use futures::future::{BoxFuture, join_all};
use model::{Attributes, InodeId, TokenMode};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;
use world::World;

/// The longest time for which an answer is valid, as that of a token.
pub const VALID_MAX: Duration = Duration::from_secs(6);
/// By then a kernel has every answer that was prepared before.
const IN_FLIGHT_MAX: Duration = Duration::from_millis(250);
/// So long after nothing is answered any more kernels may use what was.
pub const BELIEVED_MAX: Duration = VALID_MAX.saturating_add(IN_FLIGHT_MAX);

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

/// Tells the kernels of a client apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelNumber(u64);

/// Pages that a kernel asks for and keeps until it is told to drop them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptPages {
    /// The kernel.
    pub by: KernelNumber,
    /// Exclusive: its programs may change them without a word, in a mapping.
    pub mode: TokenMode,
}

/// A kernel that keeps answers of a client.
pub trait Kernel: Send + Sync {
    /// Ends the validity of what the kernel has, and of all answers that are on their way to it. Ready when
    /// nothing of it is used any more, and pages that were changed are written back. Takes
    /// no lock that a request of the same kernel may hold while it waits for the client, but for those of pages:
    /// these are told in order, several notices at the same time, and each until it is done although nobody
    /// waits for it any more.
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
pub(crate) struct Kernels(Mutex<Known>);

#[derive(Clone, Default)]
struct Known {
    all: Vec<(KernelNumber, Weak<dyn Kernel>)>,
    last: u64,
}

impl Kernels {
    /// One more; those that have ended are forgotten.
    pub(crate) fn add(&self, kernel: Weak<dyn Kernel>) -> KernelNumber {
        let mut known = self.0.lock();
        known.all.retain(|(_, kernel)| kernel.strong_count() > 0);
        known.last += 1;
        let number = KernelNumber(known.last);
        known.all.push((number, kernel));
        number
    }

    /// The same ones.
    pub(crate) fn list(&self) -> Self {
        Self(Mutex::new(self.0.lock().clone()))
    }

    /// These keep answers of the client that was there before, under these numbers.
    pub(crate) fn go_on(&self, before: Self) {
        *self.0.lock() = before.0.into_inner();
    }

    /// Whether there are none.
    pub(crate) fn are_none(&self) -> bool {
        self.all().is_empty()
    }

    /// Whether this is the only one.
    pub(crate) fn is_only(&self, kernel: KernelNumber) -> bool {
        let known = self.0.lock();
        let there = known.all.iter().filter(|(_, it)| it.strong_count() > 0);
        there.map(|(number, _)| *number).eq([kernel])
    }

    /// Which there are.
    pub(crate) fn numbers(&self) -> Vec<KernelNumber> {
        self.all().into_iter().map(|(number, _)| number).collect()
    }

    fn all(&self) -> Vec<(KernelNumber, Arc<dyn Kernel>)> {
        let known = self.0.lock();
        let all = known.all.iter();
        all.filter_map(|(number, kernel)| Some((*number, kernel.upgrade()?)))
            .collect()
    }

    /// Waits until no kernel uses it any more.
    pub(crate) async fn expire(&self, what: Expired) {
        let all = self.all();
        join_all(all.iter().map(|(_, kernel)| kernel.expire(what))).await;
    }

    /// Waits until this kernel doesn't use it any more.
    pub(crate) async fn expire_in(&self, kernel: KernelNumber, what: Expired) {
        let all = self.all();
        if let Some((_, kernel)) = all.iter().find(|(number, _)| *number == kernel) {
            kernel.expire(what).await;
        }
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
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Numbers of so many kernels.
    pub(crate) fn kernels(count: u64) -> Vec<KernelNumber> {
        (1..=count).map(KernelNumber).collect()
    }
}
