//! Whose segment is written next: that of a file which others wait for comes first.
//!
//! All segments of a client share one number that may be on the way to the NSDs. A recall that waited
//! behind all other dirty data would cost the session, although nothing is wrong with the client.

use futures::future::{Either, select};
use model::InodeId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

/// Segments of hurried files that may be on the way beside the usual number.
const HURRIED_MAX: usize = 4;

/// Turns to write a segment.
pub(super) struct Turns {
    usual: Semaphore,
    usual_max: u32,
    hurried: Semaphore,
    /// Files that others wait for, with the number of recalls of each.
    hurrying: Mutex<BTreeMap<InodeId, usize>>,
    /// Signals that there is one more.
    added: Notify,
}

/// Others wait for a file's data until this is dropped.
pub(crate) struct Hurry {
    turns: Arc<Turns>,
    inode: InodeId,
}

impl Turns {
    /// For so many segments at once.
    pub(super) fn new(usual_max: usize) -> Arc<Self> {
        let usual_max = usual_max.max(1);
        Arc::new(Self {
            usual: Semaphore::new(usual_max),
            usual_max: u32::try_from(usual_max).unwrap_or(u32::MAX),
            hurried: Semaphore::new(HURRIED_MAX),
            hurrying: Mutex::default(),
            added: Notify::new(),
        })
    }

    /// Others wait for a file: also segments that already wait for their turn come first.
    pub(super) fn hurry(self: &Arc<Self>, inode: InodeId) -> Hurry {
        *self.hurrying.lock().entry(inode).or_default() += 1;
        self.added.notify_waiters();
        Hurry {
            turns: self.clone(),
            inode,
        }
    }

    fn hurries(&self, mut inodes: impl Iterator<Item = InodeId>) -> bool {
        let hurrying = self.hurrying.lock();
        !hurrying.is_empty() && inodes.any(|inode| hurrying.contains_key(&inode))
    }

    /// Waits for a turn to write a segment with data of these files; it lasts until this is dropped.
    pub(super) async fn turn(
        &self,
        inodes: impl Iterator<Item = InodeId> + Clone,
    ) -> SemaphorePermit<'_> {
        if let Ok(permit) = self.usual.try_acquire() {
            return permit;
        }
        // Waited for all the time: its place in the queue is kept.
        let mut usual = pin!(self.usual.acquire());
        loop {
            let mut added = pin!(self.added.notified());
            added.as_mut().enable();
            let permit = if self.hurries(inodes.clone()) {
                let hurried = pin!(self.hurried.acquire());
                select(usual, hurried).await.factor_first().0
            } else {
                match select(usual.as_mut(), added).await {
                    Either::Left((permit, _)) => permit,
                    Either::Right(_) => continue,
                }
            };
            return permit.expect("the semaphores are never closed");
        }
    }

    /// Waits until no segment is on the way.
    pub(super) async fn none_left(&self) {
        let hurried = u32::try_from(HURRIED_MAX).expect("a small number");
        let _usual = self.usual.acquire_many(self.usual_max).await;
        let _hurried = self.hurried.acquire_many(hurried).await;
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        let mut hurrying = self.turns.hurrying.lock();
        let recalls = hurrying.get_mut(&self.inode);
        let recalls = recalls.expect("it was added when this was made");
        *recalls -= 1;
        if *recalls == 0 {
            hurrying.remove(&self.inode);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;
    use futures::poll;

    fn of(inode: u64) -> impl Iterator<Item = InodeId> + Clone {
        std::iter::once(InodeId(inode))
    }

    #[test]
    fn who_is_hurried_overtakes_all_that_wait_and_others_keep_their_places() {
        block_on(async {
            let turns = Turns::new(1);
            let first = turns.turn(of(1)).await;
            let mut second = pin!(turns.turn(of(2)));
            let mut third = pin!(turns.turn(of(3)));
            assert!(poll!(second.as_mut()).is_pending());
            assert!(poll!(third.as_mut()).is_pending());
            let hurry = turns.hurry(InodeId(3));
            let third = match poll!(third) {
                std::task::Poll::Ready(permit) => permit,
                std::task::Poll::Pending => panic!("it is hurried"),
            };
            assert!(poll!(second.as_mut()).is_pending());
            drop(hurry);
            // Nobody hurries any more.
            let mut fourth = pin!(turns.turn(of(3)));
            assert!(poll!(fourth.as_mut()).is_pending());
            let mut none_left = pin!(turns.none_left());
            assert!(poll!(none_left.as_mut()).is_pending());
            drop(first);
            let second = second.await;
            assert!(poll!(fourth.as_mut()).is_pending());
            drop(second);
            drop(fourth.await);
            assert!(
                poll!(none_left.as_mut()).is_pending(),
                "the hurried one is on the way"
            );
            drop(third);
            none_left.await;
        });
    }

    #[test]
    fn no_more_than_the_written_number_of_hurried_segments_are_on_the_way() {
        block_on(async {
            let turns = Turns::new(1);
            let _usual = turns.turn(of(1)).await;
            let _hurries = [turns.hurry(InodeId(3)), turns.hurry(InodeId(3))];
            let mut permits = Vec::new();
            for _ in 0..HURRIED_MAX {
                permits.push(turns.turn(of(3)).await);
            }
            let mut more = pin!(turns.turn(of(3)));
            assert!(poll!(more.as_mut()).is_pending());
            permits.pop();
            drop(more.await);
        });
    }
}
