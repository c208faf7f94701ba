//! Mounts of this process that refuse: what they showed has gone, their connections stay, and each request gets EIO.
//!
//! They are what a run of a node leaves that the cluster has expelled ([`crate::Mount::leave_refusing`]). The kernel keeps such a
//! connection, and this process its threads, as long as the mount is in its place or a program has something of it: there may be
//! only so many.

use crate::connection::AbortFile;
use crate::table::DeviceNumber;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most of them. One more ends the connection of the oldest one, as of a daemon that dies.
const KEPT_MAX: usize = 16;

/// All of them.
static KEPT: Mutex<Kept<Refusing>> = parking_lot::const_mutex(Kept(VecDeque::new()));

/// The oldest one first.
struct Kept<T>(VecDeque<T>);

struct Refusing {
    number: DeviceNumber,
    connection: Arc<AbortFile>,
}

impl Refusing {
    /// Whether its number is or will be another mount's.
    fn has_gone(&self) -> bool {
        self.connection.is_unmounted()
    }
}

impl<T> Kept<T> {
    /// Adds one. Returns the oldest one, if there are too many then.
    fn add(&mut self, new: T, has_gone: impl Fn(&T) -> bool) -> Option<T> {
        self.0.retain(|one| !has_gone(one));
        self.0.push_back(new);
        match self.0.len() > KEPT_MAX {
            true => self.0.pop_front(),
            false => None,
        }
    }
}

/// The mount that has this number refuses from now on.
pub(crate) fn keep(number: DeviceNumber, connection: Arc<AbortFile>) {
    let new = Refusing { number, connection };
    let oldest = KEPT.lock().add(new, Refusing::has_gone);
    let Some(oldest) = oldest else { return };
    let mountpoint = oldest.connection.mountpoint().display();
    match oldest.connection.abort() {
        Ok(()) => tracing::warn!(
            %mountpoint,
            KEPT_MAX,
            "programs use so many mounts whose runs have ended that the oldest one's connection was ended"
        ),
        Err(error) => {
            tracing::warn!(%mountpoint, %error, "the connection of a mount whose run has ended can't be ended");
        }
    }
}

/// Whether the mount that has this number now refuses.
pub(crate) fn is_kept(number: DeviceNumber) -> bool {
    let kept = KEPT.lock();
    let mut same = kept.0.iter().filter(|one| one.number == number);
    same.any(|one| !one.has_gone())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would be broken if programs that keep something of each mount that refuses made a daemon keep more and more threads.
    #[test]
    fn the_oldest_of_too_many_that_refuse_ends_and_those_that_have_gone_do_not_count() {
        let mut kept = Kept(VecDeque::new());
        let stays = |_: &usize| false;
        assert!((0..KEPT_MAX).all(|one| kept.add(one, stays).is_none()));
        assert_eq!(kept.add(KEPT_MAX, stays), Some(0));
        assert_eq!(kept.add(KEPT_MAX + 1, |one| *one > 2), None);
        assert_eq!(kept.0, [1, 2, KEPT_MAX + 1]);
    }
}
