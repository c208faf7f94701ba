//! What a session asks an owner in its own process on the thread that asks, if that is possible (`owner/near.rs`).

use super::{Calls, OWNER_WAIT, left_undone};
use crate::owner::near::Near;
use futures::future::{BoxFuture, Either, select};
use model::owner::{NearAnswer, OwnerReply, OwnerRequest};
use model::{Error, ErrorKind, Result};
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::{OwnedRwLockReadGuard, oneshot};
use world::call::Asked;

/// A request in order that an owner has done which may not answer yet.
struct Done {
    near: Arc<Near>,
    request: OwnerRequest,
    /// How many reclaims had been wanted before.
    reclaims: u64,
    /// Until this is dropped no other owner is told what is held.
    sharing: OwnedRwLockReadGuard<()>,
    /// Ready when the owner may answer again, or is over.
    rest: BoxFuture<'static, NearAnswer>,
}

impl Calls {
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
        match request {
            OwnerRequest::Execute { operation, .. } if operation.is_read() => {
                // A look can be asked for again.
                let Asked::Ready(answered) = near.owner.ask(request)? else {
                    return None;
                };
                near.counts(answered, false).map(Asked::Ready)
            }
            OwnerRequest::Execute { operation, .. } => {
                let mut change = self.names.begin_near_change(operation);
                Some(match near.owner.ask(request)? {
                    Asked::Ready(answered) => {
                        let answer = near.counts_or_unknown(answered);
                        if let (Some(change), Ok(OwnerReply::Operation(ranked))) =
                            (&mut change, &answer)
                        {
                            change.note(operation, &ranked.reply);
                        }
                        Asked::Ready(answer)
                    }
                    Asked::Waits(rest) => {
                        let near = near.clone();
                        Asked::Waits(Box::pin(async move {
                            let answer = near.counts_or_unknown(rest.await);
                            drop(change);
                            answer
                        }))
                    }
                })
            }
            request if request.is_in_order() => self.change_near(near, request),
            _ => None,
        }
    }

    /// A request in order, whose answer enters the book before anything can be reclaimed.
    fn change_near(
        &self,
        near: &Arc<Near>,
        request: &OwnerRequest,
    ) -> Option<Asked<'static, Result<OwnerReply>>> {
        let reclaims = *self.wanted.borrow();
        let sharing = self.reclaiming.clone().try_read_owned().ok()?;
        if near.is_over() {
            return None;
        }
        let rest = match near.owner.ask(request)? {
            Asked::Ready(answered) => {
                let answer = near.counts_or_unknown(answered);
                self.book.lock().answered(request, &answer);
                return Some(Asked::Ready(answer));
            }
            Asked::Waits(rest) => rest,
        };
        let calls = self.me.upgrade().expect("an owner is used through its Arc");
        let done = Done {
            near: near.clone(),
            request: request.clone(),
            reclaims,
            sharing,
            rest,
        };
        // Whoever asks may stop waiting: what the owner has done must enter the book all the same.
        let (tell, told) = oneshot::channel();
        let (it, request) = (calls.clone(), request.clone());
        let settling = async move {
            let _nobody = tell.send(it.settle(done).await);
        };
        let task = self
            .world
            .spawn("a request waits for the node's lease", settling);
        task.detach();
        Some(Asked::Waits(Box::pin(async move {
            let listed = calls.list();
            let settled = calls.world.timeout(calls.patience, told).await;
            drop(listed);
            match settled {
                Ok(Ok(Some(answer))) => answer,
                // The owner that has done it is over.
                Ok(Ok(None)) => calls.ask(&request).await,
                Ok(Err(_)) | Err(_) => {
                    let text = format!("waited {:?} for {OWNER_WAIT}", calls.patience);
                    Err(Error::new(ErrorKind::Unknown, text))
                }
            }
        })))
    }

    /// Waits until a request in order counts, which its owner has done. `None`: another one follows, which must be told
    /// first what is held without it.
    async fn settle(&self, done: Done) -> Option<Result<OwnerReply>> {
        let Done {
            near,
            request,
            reclaims,
            sharing,
            rest,
        } = done;
        let mut wanted = self.wanted.subscribe();
        let another = pin!(wanted.wait_for(|now| *now != reclaims));
        let answered = match select(rest, another).await {
            Either::Left((answered, _)) => answered,
            Either::Right(_) => return None,
        };
        let answer = near.counts(answered, true)?;
        if left_undone(&answer).is_some() {
            return None;
        }
        self.book.lock().answered(&request, &answer);
        drop(sharing);
        Some(answer)
    }
}
