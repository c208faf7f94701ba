//! What a session asks an owner in its own process on the thread that asks, if that is possible (`owner/near.rs`).

use super::{Calls, left_undone};
use crate::known_names::OwnChange;
use crate::owner::book::Book;
use crate::owner::near::{Near, lost};
use futures::future::{BoxFuture, Either, select};
use model::owner::{NearAnswer, OwnerReply, OwnerRequest};
use model::{ErrorKind, Result};
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::{OwnedRwLockReadGuard, oneshot};
use world::Deadline;
use world::call::Asked;

/// A request that concerns the book, which an owner has done and may not answer yet.
struct Done {
    near: Arc<Near>,
    request: OwnerRequest,
    /// How many reclaims had been wanted before `sharing`.
    reclaims: u64,
    /// As long as it is there no other owner is told what is held; `None`: one may be told just now.
    sharing: Option<OwnedRwLockReadGuard<()>>,
    /// Ready when the owner may answer again, or is over.
    rest: BoxFuture<'static, NearAnswer>,
}

impl Calls {
    /// Whether the owner is in this process, and knows the session.
    pub(in crate::owner) fn is_near(&self) -> bool {
        self.nearby.current().is_some()
    }

    /// Asks an owner in this process, on this thread; `None` if there is none, or it would have to wait: then nothing was
    /// done.
    pub(in crate::owner) fn ask_near(
        &self,
        request: &OwnerRequest,
    ) -> Option<Asked<'static, Result<OwnerReply>>> {
        let near = self.nearby.current();
        let near = near.as_ref()?;
        if request.session() != self.session.get().copied() {
            return None;
        }
        // Before it is looked what must go first: nothing is made here any more that the request would overtake.
        let change = match request.is_change() {
            true => self.begin(request),
            false => None,
        };
        if self.is_behind_stream(request) || self.undecided.before(request).is_some() {
            return None;
        }
        match request {
            OwnerRequest::Execute { operation, .. } if operation.is_read() => {
                // A look can be asked for again.
                let Asked::Ready(answered) = near.owner.ask(request)? else {
                    return None;
                };
                near.counts(answered, false).map(Asked::Ready)
            }
            request if Book::concerns(request) => self.hold_near(near, request, change),
            OwnerRequest::Execute { .. } => self.change_near(near, request, change),
            _ => None,
        }
    }

    /// A change after which the session holds what it held before. Once it was done its answer is waited for as long as a
    /// program's patience lasts, whatever the owner's own limits are.
    fn change_near(
        &self,
        near: &Arc<Near>,
        request: &OwnerRequest,
        change: Option<OwnChange>,
    ) -> Option<Asked<'static, Result<OwnerReply>>> {
        Some(match near.owner.ask(request)? {
            Asked::Ready(answered) => {
                let answer = near.counts_or_unknown(answered);
                note(change, request, &answer);
                Asked::Ready(answer)
            }
            Asked::Waits(rest) => {
                let calls = self.me.upgrade().expect("an owner is used through its Arc");
                let near = near.clone();
                let deadline = Deadline::after(&self.world, self.patience);
                Asked::Waits(Box::pin(async move {
                    let listed = calls.list();
                    let answered = calls.bound(deadline, rest).await;
                    drop(listed);
                    let answer = match answered {
                        Ok(answered) => near.counts_or_unknown(answered),
                        // It can't be undone. What is left to do, rounds do, or whoever meets it.
                        Err(_) => Err(calls.late(ErrorKind::Unknown)),
                    };
                    drop(change);
                    answer
                }))
            }
        })
    }

    /// A request whose answer enters the book before another owner is told what is in it.
    fn hold_near(
        &self,
        near: &Arc<Near>,
        request: &OwnerRequest,
        change: Option<OwnChange>,
    ) -> Option<Asked<'static, Result<OwnerReply>>> {
        let (rest, reclaims, sharing) = {
            let mut book = self.book.lock();
            if near.is_over() {
                return None;
            }
            match near.owner.ask(request)? {
                Asked::Ready(answered) => {
                    let answer = near.counts_or_unknown(answered);
                    book.answered(request, &answer);
                    drop(book);
                    note(change, request, &answer);
                    return Some(Asked::Ready(answer));
                }
                Asked::Waits(rest) => {
                    let reclaims = *self.wanted.borrow();
                    (rest, reclaims, self.reclaiming.clone().try_read_owned())
                }
            }
        };
        let done = Done {
            near: near.clone(),
            request: request.clone(),
            reclaims,
            sharing: sharing.ok(),
            rest,
        };
        Some(self.settle_later(done, change))
    }

    /// Settles what an owner has done whether or not it is waited for: it must enter the book.
    fn settle_later(
        &self,
        done: Done,
        change: Option<OwnChange>,
    ) -> Asked<'static, Result<OwnerReply>> {
        let calls = self.me.upgrade().expect("an owner is used through its Arc");
        let (it, request) = (calls.clone(), done.request.clone());
        let asked = request.clone();
        let (tell, told) = oneshot::channel();
        let settling = async move {
            let settled = it.settle(done).await;
            drop(change);
            // Nobody waits for the answer any more: a file that it tells of is closed.
            if let Err(Some(answer)) = tell.send(settled)
                && let Some(close) = it.close_of(&asked, &answer)
                && let Err(error) = it.unhold(&close).await
            {
                tracing::debug!(%error, "a file that nobody opened isn't closed");
            }
        };
        let task = self
            .world
            .spawn("a request waits for the node's lease", settling);
        task.detach();
        Asked::Waits(Box::pin(async move {
            let listed = calls.list();
            let deadline = Deadline::after(&calls.world, calls.patience);
            let settled = calls.bound(deadline, told).await;
            drop(listed);
            match settled {
                Ok(Ok(Some(answer))) => answer,
                // The owner that has done it is over.
                Ok(Ok(None)) if request.is_change() => Err(lost()),
                Ok(Ok(None)) => calls.ask(&request).await,
                Ok(Err(_)) | Err(_) => Err(calls.late(ErrorKind::Unknown)),
            }
        }))
    }

    /// Waits until a request counts that its owner has done. `None`: another one follows, which is told what is held
    /// without it.
    async fn settle(&self, done: Done) -> Option<Result<OwnerReply>> {
        let Done {
            near,
            request,
            mut reclaims,
            mut sharing,
            mut rest,
        } = done;
        let mut wanted = self.wanted.subscribe();
        let (answered, _sharing) = loop {
            let shared = match sharing.take() {
                Some(shared) => shared,
                // Who tells another owner comes first. If nobody has been told, this one goes on.
                None => self.reclaiming.clone().read_owned().await,
            };
            if near.is_over() {
                return None;
            }
            let another = pin!(wanted.wait_for(move |now| *now != reclaims));
            match select(&mut rest, another).await {
                Either::Left((answered, _)) => break (answered, shared),
                Either::Right(_) => {}
            }
            // Before the lock is asked for again: a reclaim that comes later is noticed.
            reclaims = *self.wanted.borrow();
        };
        let answer = near.counts(answered, true)?;
        if left_undone(&answer).is_some() {
            return None;
        }
        self.book.lock().answered(&request, &answer);
        Some(answer)
    }

    /// What a request changes of what is known of names, until that is dropped.
    fn begin(&self, request: &OwnerRequest) -> Option<OwnChange> {
        match request {
            OwnerRequest::Execute { operation, .. } => self.names.begin_near_change(operation),
            _ => None,
        }
    }
}

/// A change has been answered.
fn note(change: Option<OwnChange>, request: &OwnerRequest, answer: &Result<OwnerReply>) {
    if let Some(mut change) = change
        && let OwnerRequest::Execute { operation, .. } = request
        && let Ok(OwnerReply::Operation(ranked)) = answer
    {
        change.note(operation, &ranked.reply);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::known_names::KnownNames;
    use crate::owner::owners::{NearOwner, OwnerWay, Owners};
    use model::owner::{OwnerCall, Tenure};
    use model::{CommitNumber, InodeId, SessionId, ShardId};
    use parking_lot::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;
    use world::sim::Simulation;
    use world::{Instant, World};

    const TENURE: Tenure = Tenure(3);

    /// An owner that does what it is asked first, and answers when it is told what.
    struct Late {
        asked: AtomicU64,
        told: Mutex<Option<oneshot::Receiver<NearAnswer>>>,
    }

    impl NearOwner for Late {
        fn tenure(&self) -> Tenure {
            TENURE
        }

        fn ask(&self, _: &OwnerRequest) -> Option<Asked<'static, NearAnswer>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let told = self.told.lock().take()?;
            Some(Asked::Waits(Box::pin(async move { told.await.unwrap() })))
        }

        fn call<'a>(&'a self, call: &'a OwnerCall, _: Deadline) -> BoxFuture<'a, NearAnswer> {
            let is_close = matches!(call.request, OwnerRequest::Unhold { .. });
            assert!(is_close, "all else was asked at once");
            self.asked.fetch_add(1, Ordering::Relaxed);
            Box::pin(async { done() })
        }

        fn has_durable(&self, _: CommitNumber) -> bool {
            true
        }

        fn sync(&self) -> BoxFuture<'_, Result<()>> {
            Box::pin(async { Ok(()) })
        }
    }

    fn done() -> NearAnswer {
        NearAnswer {
            answer: Ok(OwnerReply::Done),
            shows: CommitNumber(0),
        }
    }

    /// Who owns the shard.
    struct Named(OwnerWay);

    impl Owners for Named {
        fn owner(&self) -> Option<OwnerWay> {
            Some(self.0.clone())
        }

        fn refresh(&self, _: Deadline) -> BoxFuture<'_, ()> {
            unreachable!("nothing is asked again")
        }

        fn replaced(&self) -> BoxFuture<'_, ()> {
            Box::pin(std::future::pending())
        }

        fn usable_until(&self) -> Option<Instant> {
            None
        }
    }

    const INODE: InodeId = InodeId(7);

    type Held = (
        Arc<Calls>,
        Arc<Late>,
        Option<Asked<'static, Result<OwnerReply>>>,
        oneshot::Sender<NearAnswer>,
    );

    /// A client's calls to such an owner, which has just done a hold, and what lets it answer.
    fn held(world: &World) -> Held {
        let (tell, told) = oneshot::channel();
        let owner = Arc::new(Late {
            asked: AtomicU64::new(0),
            told: Mutex::new(Some(told)),
        });
        let way = OwnerWay::Near(owner.clone());
        let patience = Duration::from_secs(60);
        let shared = (Arc::default(), KnownNames::new(), Arc::default());
        let owners = Arc::new(Named(way.clone()));
        let calls = Calls::new(world.clone(), ShardId(0), owners, patience, shared);
        let session = SessionId(1);
        calls.set_session(session, TENURE);
        assert!(calls.nearby.meet(&way, TENURE).is_some());
        let inode = INODE;
        let waiting = calls.ask_near(&OwnerRequest::Hold { session, inode });
        (calls, owner, waiting, tell)
    }

    /// Of several requests that find that a new owner must be told, one tells it. Would be broken if the others made it do
    /// once more what it had done, or if they waited for it.
    #[test]
    fn what_an_owner_has_done_goes_on_after_a_reclaim_that_had_nobody_to_tell() {
        let ran = Simulation::new(1).run(|world| async move {
            let (calls, owner, waiting, tell) = held(&world);
            let Some(Asked::Waits(waiting)) = waiting else {
                panic!("it can't be answered yet");
            };
            let soon = Deadline::after(&world, Duration::from_secs(1));
            let (way, before) = (OwnerWay::Near(owner.clone()), Tenure(TENURE.0 - 1));
            calls.reclaim(&way, before, soon).await.unwrap();
            tell.send(done()).unwrap();
            assert_eq!(waiting.await, Ok(OwnerReply::Done));
            assert_eq!(owner.asked.load(Ordering::Relaxed), 1);
            assert_eq!(calls.book.lock().parts()[0].holds, [(INODE, 1)]);
        });
        ran.finished();
    }

    /// Would be broken if a file stayed in use until the session ends which a program gave up opening.
    #[test]
    fn an_open_that_nobody_waits_for_ends_when_it_counts() {
        let ran = Simulation::new(2).run(|world| async move {
            let (calls, owner, waiting, tell) = held(&world);
            drop(waiting);
            tell.send(done()).unwrap();
            world.sleep(Duration::from_secs(1)).await;
            assert_eq!(owner.asked.load(Ordering::Relaxed), 2, "it was closed");
            assert!(calls.book.lock().parts()[0].holds.is_empty());
        });
        ran.finished();
    }

    /// Would be broken if who has made a file waited for a number that a later session may never reach.
    #[test]
    fn what_another_session_made_is_not_waited_for() {
        let ran = Simulation::new(3).run(|world| async move {
            let (calls, _owner, waiting, tell) = held(&world);
            let Some(Asked::Waits(waiting)) = waiting else {
                panic!("it can't be answered yet");
            };
            tell.send(done()).unwrap();
            assert_eq!(waiting.await, Ok(OwnerReply::Done));
            let told = calls.until_streamed_of(SessionId(2), 1);
            let Ok(told) = world.timeout(Duration::from_secs(1), told).await else {
                panic!("it is waited for");
            };
            assert_eq!(told.unwrap_err().kind(), ErrorKind::SessionEnded);
        });
        ran.finished();
    }
}
