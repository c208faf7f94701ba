//! Closes of files that were made here: nobody waits until the owner knows of them, and it hears of many with one message.
//!
//! A program that makes files, syncs and closes them one after the other would keep its client and the owner busy with a
//! message for each close, just when it waits for the next file. Until the owner has heard of a close the file counts as in
//! use: if others remove its last name meanwhile, it takes its space for so much longer. A client that removes it itself says
//! first that it is closed ([`Calls::tell_close`]), or the owner would keep it for nothing.
//!
//! *A close of any file of which the owner certainly hasn't heard*, when its program has waited for long enough, goes this way
//! as well ([`Calls::unhold`]): otherwise the owner would keep the file as one in use until the session ends.

use super::{Calls, PAUSE_MAX};
use model::operation::Stamp;
use model::owner::{OwnerReply, OwnerRequest, UNHELD_MAX};
use model::{ErrorKind, InodeId, Result, SessionId};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;
use world::Deadline;

/// How long closes are collected.
const CLOSE_DELAY: Duration = Duration::from_millis(50);
/// Most that wait, besides those of which the owner couldn't be told: these are no more than files are in use. It is told of
/// more as of all other closes.
const WAITING_MAX: usize = 4_096;

/// The closes of which the owner hasn't heard.
#[derive(Default)]
pub(super) struct Closing(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// The oldest ones first. A file that was opened and closed twice is there twice.
    inodes: VecDeque<InodeId>,
    /// A task tells of them.
    is_telling: bool,
}

impl Waiting {
    /// A file is closed. False if so many wait that this one must be told at once.
    fn add(&mut self, inode: InodeId) -> bool {
        let has_room = self.inodes.len() < WAITING_MAX;
        if has_room {
            self.inodes.push_back(inode);
        }
        has_room
    }

    /// Whether a task must be begun that tells of them.
    fn begin_telling(&mut self) -> bool {
        !std::mem::replace(&mut self.is_telling, true)
    }

    /// Those that go next; `None` if there are none, and their task ends.
    fn next(&mut self) -> Option<Vec<InodeId>> {
        self.is_telling = !self.inodes.is_empty();
        let count = self.inodes.len().min(UNHELD_MAX);
        self.is_telling
            .then(|| self.inodes.drain(..count).collect())
    }

    /// Takes the closes of a file out, as many as go with one message. How many there were.
    fn take(&mut self, inode: InodeId) -> usize {
        let mut taken = 0;
        self.inodes.retain(|it| {
            let takes = *it == inode && taken < UNHELD_MAX;
            taken += usize::from(takes);
            !takes
        });
        taken
    }
}

impl Calls {
    /// A program has closed a file that was made here: this session's owner hears of it soon. False if it must be told now,
    /// because it is in this process, or too many wait.
    pub(in crate::owner) fn unhold_later(&self, session: SessionId, inode: InodeId) -> bool {
        let is_own = self.session.get() == Some(&session) && !self.has_ended();
        if !is_own || self.is_near() {
            return false;
        }
        if self.close_unsent(inode) {
            return true;
        }
        let begins = {
            let mut waiting = self.closing.0.lock();
            if !waiting.add(inode) {
                return false;
            }
            waiting.begin_telling()
        };
        self.tell_if(begins);
        true
    }

    fn tell_if(&self, begins: bool) {
        if begins {
            let calls = self.me.upgrade().expect("an owner is used through its Arc");
            let telling = async move { calls.tell_closes().await };
            let task = self.world.spawn("tells of closed files", telling);
            task.detach();
        }
    }

    /// The owner couldn't be told of these closes.
    fn tell_later(&self, inodes: Vec<InodeId>) {
        if self.has_ended() {
            return;
        }
        let begins = {
            let mut waiting = self.closing.0.lock();
            waiting.inodes.extend(inodes);
            waiting.begin_telling()
        };
        self.tell_if(begins);
    }

    /// Asks for the end of a use. If the owner certainly hasn't heard of that, it is told later, as long as the session
    /// lasts.
    ///
    /// # Errors
    /// As those of [`Calls::ask`].
    pub(in crate::owner) async fn unhold(&self, request: &OwnerRequest) -> Result<OwnerReply> {
        let answer = self.ask(request).await;
        if let (OwnerRequest::Unhold { inode, .. }, Err(error)) = (request, &answer)
            && error.kind() == ErrorKind::Unavailable
        {
            self.tell_later(vec![*inode]);
        }
        answer
    }

    /// Whether a file was closed, and the owner hasn't been told.
    pub(in crate::owner) fn is_close_untold(&self, inode: InodeId) -> bool {
        self.closing.0.lock().inodes.contains(&inode)
    }

    /// A file's name is about to be removed. If it was closed and the owner hasn't been told, it is told now: of each close, or
    /// it would keep the file for the others.
    ///
    /// # Errors
    /// As those of [`Calls::ask`]; it is told later then.
    pub(in crate::owner) async fn tell_close(&self, inode: InodeId) -> Result<()> {
        let count = self.closing.0.lock().take(inode);
        if count == 0 {
            return Ok(());
        }
        let inodes = vec![inode; count];
        let deadline = Deadline::after(&self.world, self.patience);
        let streamed = self.bound(deadline, self.all_streamed(&inodes));
        if streamed.await.is_err() {
            self.tell_later(inodes);
            return Err(self.late(ErrorKind::Unavailable));
        }
        self.tell(inodes).await
    }

    /// Tells the owner of closes of files that it knows. Those of which it certainly hasn't heard wait again.
    async fn tell(&self, inodes: Vec<InodeId>) -> Result<()> {
        let session = self.session.get().copied().unwrap_or_default();
        let stamp = Stamp::own(self.world.wall(), session);
        let tells = OwnerRequest::UnholdAll { inodes, stamp };
        let told = self.ask(&tells).await;
        // Any other error says that it was done, or that another task goes on asking.
        if let (OwnerRequest::UnholdAll { inodes, .. }, Err(error)) = (tells, &told)
            && error.kind() == ErrorKind::Unavailable
        {
            self.tell_later(inodes);
        }
        told.map(drop)
    }

    /// Tells the owner of closed files until it knows of all, or the session has ended.
    async fn tell_closes(&self) {
        loop {
            let is_much = self.closing.0.lock().inodes.len() >= UNHELD_MAX;
            if !is_much {
                self.world.sleep(CLOSE_DELAY).await;
            }
            let Some(inodes) = self.closing.0.lock().next() else {
                return;
            };
            // A use that the owner hasn't heard of can't end. What has become of it is known as well if the session has ended.
            let _ended = self.all_streamed(&inodes).await;
            let Err(error) = self.tell(inodes).await else {
                continue;
            };
            tracing::debug!(%error, "the owner can't be told of closed files");
            if error.kind() == ErrorKind::Unavailable && !self.has_ended() {
                self.world.sleep(PAUSE_MAX).await;
            }
        }
    }

    /// Whether nothing of the session matters any more.
    fn has_ended(&self) -> bool {
        self.is_over.load(Ordering::Acquire) || self.closed.load(Ordering::Acquire)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::tests::{SECOND, SESSION, answers, session_of};
    use super::*;
    use futures::future::BoxFuture;
    use model::call::{Answer, Call, NoAnswer};
    use model::owner::OwnerCall;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use world::World;
    use world::call::Remote;
    use world::sim::Simulation;

    const INODE: InodeId = InodeId(7);

    /// An owner on another node, which does all that it is asked once it is there.
    struct Away {
        is_there: AtomicBool,
        asked: Mutex<Vec<OwnerRequest>>,
    }

    impl Remote for Away {
        fn call(
            &self,
            call: Call,
            _: Deadline,
        ) -> BoxFuture<'_, std::result::Result<Answer, NoAnswer>> {
            let asked = call.decode::<OwnerCall>().unwrap();
            self.asked.lock().push(asked.request);
            answers(OwnerReply::Done)
        }
    }

    /// A session whose owner isn't there yet.
    fn away(world: &World) -> (Arc<Calls>, Arc<Away>) {
        let owner = Arc::new(Away {
            is_there: AtomicBool::new(false),
            asked: Mutex::default(),
        });
        let found = owner.clone();
        let calls = session_of(world, move || {
            let is_there = found.is_there.load(Ordering::Relaxed);
            is_there.then(|| -> Arc<dyn Remote> { found.clone() })
        });
        (calls, owner)
    }

    /// Would be broken if an owner that nobody finds for longer than programs wait kept what they have closed as in use, for as
    /// long as the session lasts.
    #[test]
    fn an_owner_that_can_not_be_told_of_a_close_is_told_later() {
        let ran = Simulation::new(4).run(|world| async move {
            let (calls, owner) = away(&world);
            let stamp = Stamp::own(world.wall(), SESSION);
            let inode = INODE;
            let close = OwnerRequest::Unhold { inode, stamp };
            let refused = calls.unhold(&close).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable);
            // Nor is it found when it is tried once more.
            world.sleep(SECOND * 100).await;
            owner.is_there.store(true, Ordering::Relaxed);
            world.sleep(SECOND * 100).await;
            let asked = owner.asked.lock().clone();
            let [OwnerRequest::UnholdAll { inodes, .. }] = &asked[..] else {
                panic!("{asked:?}");
            };
            assert_eq!(inodes[..], [inode]);
        });
        ran.finished();
    }

    /// Would be broken if a close were lost because the name was to be removed just while nobody found the owner.
    #[test]
    fn a_close_that_is_told_in_vain_before_a_removal_is_told_later() {
        let ran = Simulation::new(5).run(|world| async move {
            let (calls, owner) = away(&world);
            for _ in 0..2 {
                assert!(calls.unhold_later(SESSION, INODE));
            }
            assert!(calls.is_close_untold(INODE) && !calls.is_close_untold(InodeId(8)));
            let refused = calls.tell_close(INODE).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable);
            owner.is_there.store(true, Ordering::Relaxed);
            world.sleep(SECOND * 100).await;
            let asked = owner.asked.lock().clone();
            let [OwnerRequest::UnholdAll { inodes, .. }] = &asked[..] else {
                panic!("{asked:?}");
            };
            assert_eq!(inodes[..], [INODE; 2], "it was open twice");
            assert!(!calls.is_close_untold(INODE));
        });
        ran.finished();
    }

    /// Would be broken if closes of a session that is over were kept, or told for ever.
    #[test]
    fn nothing_is_told_of_a_session_that_is_over() {
        let ran = Simulation::new(6).run(|world| async move {
            let (calls, owner) = away(&world);
            assert!(calls.unhold_later(SESSION, INODE));
            world.sleep(SECOND * 10).await;
            calls.close();
            assert!(!calls.unhold_later(SESSION, InodeId(8)));
            world.sleep(SECOND * 100).await;
            owner.is_there.store(true, Ordering::Relaxed);
            world.sleep(SECOND * 100).await;
            assert!(owner.asked.lock().is_empty());
            assert!(!calls.closing.0.lock().is_telling);
        });
        ran.finished();
    }

    #[test]
    fn many_closes_are_told_at_a_time_and_each_once() {
        let mut waiting = Waiting::default();
        let inode = |number: usize| InodeId(number as u64);
        assert!((0..UNHELD_MAX + 3).all(|number| waiting.add(inode(number))));
        assert!(waiting.begin_telling() && !waiting.begin_telling());
        // It was open twice.
        assert!(waiting.add(inode(5)));
        assert_eq!(waiting.take(inode(5)), 2);
        let first = waiting.next().expect("some wait");
        assert_eq!(first.len(), UNHELD_MAX);
        assert_eq!(waiting.next().map(|rest| rest.len()), Some(2));
        assert_eq!(waiting.take(inode(6)), 0, "it was told");
        assert!(!waiting.begin_telling(), "the task looks once more");
        assert_eq!(waiting.next(), None);
        assert!(waiting.begin_telling());
    }

    #[test]
    fn no_more_closes_wait_than_may() {
        let mut waiting = Waiting::default();
        for number in 0..WAITING_MAX as u64 {
            assert!(waiting.add(InodeId(number)));
        }
        assert!(!waiting.add(InodeId(9)));
        waiting.next();
        assert!(waiting.add(InodeId(9)));
    }
}
