//! The client that has everything: the only one, in this process. It holds the delegation of the whole
//! shard, so it and its operations ask for no token, and pay one atomic operation for that.
//!
//! Another session that is opened ends this, and so does an owner that gives the shard up: operations
//! under way come to their ends, the client publishes and forgets what it has cached, and both use
//! tokens from then on. When it is the only one again, it has everything again.

use model::{Error, ErrorKind, Result, SessionId};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use world::{Deadline, World};

/// How long the client may take to publish what it has cached: a page pool, to slow disks.
const END_MAX: Duration = Duration::from_secs(60);
/// How often it is looked whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// In the gate: a client has everything.
const ON: usize = 1;
/// In the gate: one operation under way.
const ONE: usize = 2;

/// Which client has everything, if one has.
#[derive(Default)]
pub(super) struct Alone {
    /// [`ON`], and the operations under way.
    gate: AtomicUsize,
    standing: Mutex<Standing>,
}

#[derive(Default)]
struct Standing {
    who: Who,
    /// Sessions that are being opened.
    openings: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Who {
    #[default]
    Nobody,
    Has(SessionId),
    /// It has been asked to stop.
    Ends(SessionId),
}

/// A session is being opened: nobody gets everything.
pub(crate) struct Opening<'a>(&'a Alone);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.standing.lock().openings -= 1;
    }
}

impl Alone {
    /// Whether a client has everything.
    pub(super) fn is_on(&self) -> bool {
        self.gate.load(Ordering::Relaxed) & ON != 0
    }

    /// An operation begins. False if it needs tokens.
    pub(super) fn enter(&self) -> bool {
        if !self.is_on() {
            return false;
        }
        let before = self.gate.fetch_add(ONE, Ordering::AcqRel);
        if before & ON == 0 {
            self.leave();
        }
        before & ON != 0
    }

    /// An operation that has entered ends.
    pub(super) fn leave(&self) {
        self.gate.fetch_sub(ONE, Ordering::AcqRel);
    }

    /// A session is to be opened: asks the one that has everything to stop, and returns it.
    pub(super) fn begin_opening(&self, session: SessionId) -> (Opening<'_>, Option<SessionId>) {
        let mut standing = self.standing.lock();
        standing.openings += 1;
        let mut asked = None;
        if let Who::Has(other) = standing.who
            && other != session
        {
            standing.who = Who::Ends(other);
            self.gate.fetch_and(!ON, Ordering::AcqRel);
            asked = Some(other);
        }
        (Opening(self), asked)
    }

    /// Waits until no other session has anything that it didn't ask for.
    pub(super) async fn wait_for_nobody(&self, world: &World, session: SessionId) -> Result<()> {
        let deadline = Deadline::after(world, END_MAX);
        loop {
            let is_over = match self.standing.lock().who {
                Who::Nobody => self.gate.load(Ordering::Acquire) == 0,
                Who::Has(other) | Who::Ends(other) => other == session,
            };
            if is_over {
                return Ok(());
            }
            if deadline.has_passed(world) {
                let text = "the client on the owner's node hasn't published what it has cached; \
                            `shale waiters` there says what it waits for";
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            world.sleep(LOOK_EVERY).await;
        }
    }

    /// A session that `has_all`, or not, asks how it stands: whether it has everything now.
    /// `may_have_all`: if it is the only one that is open, and in this process, what keeps operations from
    /// asking for tokens until they see that it has everything; asked only while no other one is being
    /// opened.
    pub(super) fn look<Guard>(
        &self,
        session: SessionId,
        has_all: bool,
        may_have_all: impl FnOnce() -> Option<Guard>,
    ) -> bool {
        let mut standing = self.standing.lock();
        match standing.who {
            Who::Has(who) if who == session => {
                // It may not have heard of it yet.
                true
            }
            Who::Ends(who) if who == session && !has_all => {
                standing.who = Who::Nobody;
                false
            }
            Who::Nobody if !has_all && standing.openings == 0 => {
                let Some(_guard) = may_have_all() else {
                    return false;
                };
                standing.who = Who::Has(session);
                self.gate.fetch_or(ON, Ordering::AcqRel);
                true
            }
            Who::Nobody | Who::Has(_) | Who::Ends(_) => false,
        }
    }

    /// A session has ended.
    pub(super) fn left(&self, session: SessionId) {
        let mut standing = self.standing.lock();
        if standing.who == Who::Has(session) || standing.who == Who::Ends(session) {
            standing.who = Who::Nobody;
            self.gate.fetch_and(!ON, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use world::sim::Simulation;

    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    #[test]
    fn a_second_session_waits_for_operations_and_for_what_is_cached() {
        let ended = Simulation::new(1).run(|world| async move {
            let alone = std::sync::Arc::new(Alone::default());
            assert!(!alone.enter());
            assert!(alone.look(A, false, || Some(())));
            assert!(alone.enter());
            let (opening, asked) = alone.begin_opening(B);
            assert_eq!(asked, Some(A));
            assert!(!alone.enter(), "new operations need tokens");
            let opens = alone.wait_for_nobody(&world, B);
            let other = async {
                world.sleep(Duration::from_secs(1)).await;
                // It says that it still has everything, and is told to stop.
                assert!(!alone.look(A, true, || Some(())));
                world.sleep(Duration::from_secs(1)).await;
                assert!(
                    !alone.look(A, false, || Some(())),
                    "another one is being opened"
                );
                world.sleep(Duration::from_secs(1)).await;
                alone.leave();
            };
            let began = world.now();
            let (opened, ()) = futures::future::join(opens, other).await;
            opened.unwrap();
            assert!(world.now() - began >= Duration::from_secs(3));
            drop(opening);
            assert!(
                !alone.look(A, false, || None::<()>),
                "it isn't the only one"
            );
            assert!(alone.look(B, false, || Some(())));
        });
        ended.finished();
    }

    #[test]
    fn a_client_that_keeps_what_it_has_is_waited_for_so_long_only() {
        let ended = Simulation::new(1).run(|world| async move {
            let alone = Alone::default();
            assert!(alone.look(A, false, || Some(())));
            let _opening = alone.begin_opening(B);
            let refused = alone.wait_for_nobody(&world, B).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable);
            alone.left(A);
            alone.wait_for_nobody(&world, B).await.unwrap();
        });
        ended.finished();
    }

    #[test]
    fn who_opens_a_session_again_keeps_what_it_has() {
        let ended = Simulation::new(1).run(|world| async move {
            let alone = Alone::default();
            assert!(alone.look(A, false, || Some(())));
            let (opening, asked) = alone.begin_opening(A);
            assert_eq!(asked, None);
            alone.wait_for_nobody(&world, A).await.unwrap();
            drop(opening);
            assert!(alone.enter());
        });
        ended.finished();
    }
}
