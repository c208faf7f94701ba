//! The owner in the client's own process: function calls instead of messages, and answers that aren't durable yet.
//!
//! *A create* of a client on its owner's node: [`NearOwner::ask`] does it on the thread that asks, and its answer goes to the
//! program at once. No slot is taken and no number: such an operation is done when the call returns, or not at all. *What has
//! to wait for something* isn't begun there. It gets a slot and a number like a message and goes to [`NearOwner::call`], so
//! that another owner can be asked for the same.
//!
//! *An answer may be lost*, as long as it isn't durable, with the process; then so is who got it. But an owner can end while its
//! client lives: another node has sealed its log. So each answer names the newest commit that it shows, and [`Near::shown`]
//! is the newest of all. Before the session goes on with another owner, [`Nearby::end`] looks whether the one before has made
//! that durable. If it doesn't know, the session has ended, as if the owner had said so: programs hear of it
//! (`tokens/renewal.rs`), and nobody goes on with what is gone. An owner that gives the shard up makes everything durable
//! first, so the session goes on.
//!
//! *No answer counts that comes after that look.* Who has one notes what it shows and then looks whether its owner is over;
//! `end` says that it is over and then reads what was shown. Both in one order that all threads agree on: one of them sees the
//! other. A change that comes late is true if it is durable: it was made before another owner began.
//!
//! *An operation that was done without a number and whose answer doesn't count* may have been done: its program gets `Unknown`.
//! *Opens, locks, and files that are made open* enter the book before another owner can be told what is in it: the owner is
//! asked with the book locked, and `end` comes with the book locked too. So each of them is in what the next owner is told,
//! or finds that its owner is over before it is begun. One that its owner has done and may not answer yet lets reclaims
//! through, and looks after each whether its owner is over: then an open or a lock wasn't done, and the next owner is asked
//! for it, and whether a file was made is `Unknown`.

use super::owners::{NearOwner, OwnerWay};
use arc_swap::{ArcSwapOption, Guard};
use model::owner::{NearAnswer, OwnerReply, Tenure};
use model::{CommitNumber, Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A near owner that knows a session, and what it has shown to it.
pub(super) struct Near {
    pub(super) owner: Arc<dyn NearOwner>,
    tenure: Tenure,
    /// The newest commit that an answer has shown.
    shown: AtomicU64,
    /// Another owner has followed, or the session has ended: no answer counts any more.
    is_over: AtomicBool,
}

/// The near owner of a session, if it has one.
#[derive(Default)]
pub(super) struct Nearby {
    current: ArcSwapOption<Near>,
    past: Mutex<Past>,
}

/// The owners that the session isn't with any more.
#[derive(Default)]
struct Past {
    /// The newest of them.
    tenure: Tenure,
    /// One of them had answered what isn't durable, as far as it knows.
    has_lost: bool,
}

impl Near {
    /// Takes in an answer. `None` if it doesn't count, because another owner has followed: that one may have changed what
    /// was looked at. A change that is durable was before.
    pub(super) fn counts(
        &self,
        answered: NearAnswer,
        is_change: bool,
    ) -> Option<Result<OwnerReply>> {
        let NearAnswer { answer, shows } = answered;
        // Nearly always somebody has noted it, and threads don't wait for each other's writes. Read before `is_over`.
        if self.shown.load(Ordering::SeqCst) < shows.0 {
            self.shown.fetch_max(shows.0, Ordering::SeqCst);
        }
        let is_durable = || is_change && self.owner.has_durable(shows);
        (!self.is_over() || is_durable()).then_some(answer)
    }

    /// As [`Near::counts`], for a change without a number, which can't be asked for again.
    pub(super) fn counts_or_unknown(&self, answered: NearAnswer) -> Result<OwnerReply> {
        self.counts(answered, true).unwrap_or_else(|| Err(lost()))
    }

    /// Whether no answer counts any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn shown(&self) -> CommitNumber {
        CommitNumber(self.shown.load(Ordering::SeqCst))
    }
}

impl Nearby {
    /// The owner, if it is near and knows the session.
    pub(super) fn current(&self) -> Guard<Option<Arc<Near>>> {
        self.current.load()
    }

    /// What an owner shows that knows the session; `None` of one that is on another node, or that another one has followed.
    pub(super) fn meet(&self, way: &OwnerWay, known: Tenure) -> Option<Arc<Near>> {
        let OwnerWay::Near(owner) = way else {
            return None;
        };
        if owner.tenure() != known {
            return None;
        }
        let past = self.past.lock();
        let met = self.current.load_full();
        if let Some(near) = met.filter(|near| near.tenure == known) {
            return Some(near);
        }
        if known <= past.tenure {
            return None;
        }
        let near = Arc::new(Near {
            owner: owner.clone(),
            tenure: known,
            shown: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        self.current.store(Some(near.clone()));
        Some(near)
    }

    /// The session is about to go on with another owner than that of this tenure. False if it can't, because something that
    /// was answered may be lost: then never.
    #[must_use]
    pub(super) fn end(&self, tenure: Tenure) -> bool {
        let mut past = self.past.lock();
        if let Some(near) = self.current.swap(None) {
            near.is_over.store(true, Ordering::SeqCst);
            past.has_lost |= !near.owner.has_durable(near.shown());
        }
        past.tenure = past.tenure.max(tenure);
        !past.has_lost
    }

    /// Whether an owner that the session isn't with any more had answered what may be lost.
    pub(super) fn has_lost(&self) -> bool {
        self.past.lock().has_lost
    }

    /// As [`Nearby::end`], whatever was durable.
    pub(super) fn lose(&self, tenure: Tenure) {
        let _ = self.end(tenure);
        self.past.lock().has_lost = true;
    }

    /// The session has ended: an owner that goes on makes durable what it has answered. Returns when it has, or can't.
    pub(super) async fn settle(&self) {
        let current = self.current.load_full();
        if let Some(near) = current
            && !near.owner.has_durable(near.shown())
            && let Err(error) = near.owner.sync().await
        {
            tracing::debug!(%error, "what was answered isn't durable");
        }
    }
}

/// The error for a change without a number whose owner is over: it may have been made.
pub(super) fn lost() -> Error {
    let text = "the owner ended before its answer was durable";
    Error::new(ErrorKind::Unknown, text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use futures::future::BoxFuture;
    use model::owner::{OwnerCall, OwnerRequest};
    use world::Deadline;
    use world::call::Asked;

    const FIRST: Tenure = Tenure(3);

    /// An owner that has made everything durable up to a commit.
    struct Fake(AtomicU64);

    impl NearOwner for Fake {
        fn tenure(&self) -> Tenure {
            FIRST
        }

        fn ask(&self, _: &OwnerRequest) -> Option<Asked<'static, NearAnswer>> {
            None
        }

        fn call<'a>(&'a self, _: &'a OwnerCall, _: Deadline) -> BoxFuture<'a, NearAnswer> {
            unreachable!("nothing is asked")
        }

        fn has_durable(&self, commit: CommitNumber) -> bool {
            commit.0 <= self.0.load(Ordering::Relaxed)
        }

        fn sync(&self) -> BoxFuture<'_, Result<()>> {
            Box::pin(async { Err(ErrorKind::Unavailable.into()) })
        }
    }

    fn shows(commit: u64) -> NearAnswer {
        NearAnswer {
            answer: Ok(OwnerReply::Done),
            shows: CommitNumber(commit),
        }
    }

    fn with_durable(durable: u64) -> (Nearby, Arc<Near>, OwnerWay) {
        let (nearby, owner) = (Nearby::default(), Arc::new(Fake(AtomicU64::new(durable))));
        let way = OwnerWay::Near(owner);
        let near = nearby.meet(&way, FIRST).unwrap();
        (nearby, near, way)
    }

    #[test]
    fn a_session_ends_exactly_if_something_that_it_was_shown_may_be_lost() {
        for (shown, goes_on) in [(5, true), (6, false)] {
            let (nearby, near, way) = with_durable(5);
            for commit in [2, shown, 1] {
                assert_eq!(
                    near.counts(shows(commit), false),
                    Some(Ok(OwnerReply::Done))
                );
            }
            assert!(!nearby.has_lost());
            assert_eq!(nearby.end(FIRST), goes_on);
            assert_eq!(nearby.has_lost(), !goes_on);
            assert_eq!(nearby.end(FIRST), goes_on, "and it stays so");
            assert!(nearby.current().is_none());
            assert!(nearby.meet(&way, FIRST).is_none(), "it is over");
        }
    }

    #[test]
    fn an_answer_that_comes_after_the_look_counts_only_for_a_change_that_is_durable() {
        let (nearby, near, _) = with_durable(5);
        assert!(nearby.end(FIRST));
        assert_eq!(near.counts(shows(5), true), Some(Ok(OwnerReply::Done)));
        assert_eq!(
            near.counts(shows(5), false),
            None,
            "others may have changed it"
        );
        assert_eq!(near.counts(shows(6), true), None);
        let unknown = near.counts_or_unknown(shows(6)).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Unknown);
        assert!(nearby.end(FIRST), "nobody was told");
    }

    #[test]
    fn an_owner_is_near_only_to_sessions_that_it_knows() {
        let nearby = Nearby::default();
        let way = OwnerWay::Near(Arc::new(Fake(AtomicU64::new(0))));
        assert!(
            nearby.meet(&way, Tenure(2)).is_none(),
            "it must be told first"
        );
        assert!(nearby.end(Tenure(2)));
        assert!(nearby.meet(&way, FIRST).is_some());
        nearby.lose(FIRST);
        assert!(!nearby.end(Tenure(4)));
    }
}
