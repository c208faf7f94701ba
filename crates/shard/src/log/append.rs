//! One append: put to every member, repeated after a change of the view, acknowledged in order.

use super::{IN_FLIGHT_MAX, Shared};
use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, join_all, try_join_all};
use model::nsd::LogPut;
use model::{EntryNumber, Error, ErrorKind, NsdId, Result};
use nsd::Handle;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use world::Planted;
use world::Point;
use world::call::Deadline;

/// Time limit of a member that can't be replaced.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time limit of the only member before the log is given up.
const LAST_PATIENCE: Duration = Duration::from_secs(60);
/// Pause before an entry is put again to members of which one has failed and can't be left yet.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// An entry (or all parts of one payload) in flight. Dropping it doesn't stop it.
pub(super) struct Append {
    work: Option<BoxFuture<'static, Result<EntryNumber>>>,
    shared: Option<Arc<Shared>>,
}

impl Append {
    pub(super) fn refused(error: Error) -> Self {
        Self {
            work: Some(async move { Err(error) }.boxed()),
            shared: None,
        }
    }

    pub(super) fn new(shared: Arc<Shared>, mut entries: Vec<(EntryNumber, Bytes)>) -> Self {
        let log = shared.clone();
        let work = if entries.len() == 1 {
            let (number, bytes) = entries.pop().expect("there is one");
            async move { log.put_entry(number, bytes).await.map(|()| number) }.boxed()
        } else {
            async move {
                let last = entries.last().expect("a payload has at least one part").0;
                try_join_all(
                    entries
                        .into_iter()
                        .map(|(number, bytes)| log.put_entry(number, bytes)),
                )
                .await?;
                Ok(last)
            }
            .boxed()
        };
        Self {
            work: Some(work),
            shared: Some(shared),
        }
    }
}

impl Future for Append {
    type Output = Result<EntryNumber>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let work = self
            .work
            .as_mut()
            .expect("an append isn't polled after its end");
        let result = work.as_mut().poll(context);
        if result.is_ready() {
            self.work = None;
        }
        result
    }
}

impl Drop for Append {
    /// The order must not get a hole: a task finishes the append.
    fn drop(&mut self) {
        if let (Some(work), Some(shared)) = (self.work.take(), &self.shared)
            && shared.state.lock().failed.is_none()
        {
            shared.world.spawn("log-append", work).detach();
        }
    }
}

/// Why a put failed.
enum Fault {
    /// There is a newer owner.
    OldEpoch(Error),
    /// The member failed.
    Member(Error),
    /// The member is late, and another NSD is available.
    Late(Error),
}

impl Shared {
    pub(super) async fn put_entry(
        self: &Arc<Self>,
        number: EntryNumber,
        bytes: Bytes,
    ) -> Result<()> {
        self.wait_for_room(number).await?;
        loop {
            let (generation, members, late) = {
                let state = self.state.lock();
                if let Some(error) = &state.failed {
                    return Err(error.clone());
                }
                let late = state.lateness.limit(state.bytes_in_flight);
                (state.generation, state.members.clone(), late)
            };
            let begun = self.world.now();
            let fault = match &members[..] {
                [only, ..]
                    if members.len() == 1 || self.world.has_planted(Planted::AcknowledgeEarly) =>
                {
                    self.put_to(only, &members, number, &bytes, late)
                        .await
                        .err()
                }
                all => {
                    let puts = all
                        .iter()
                        .map(|member| self.put_to(member, &members, number, &bytes, late));
                    join_all(puts)
                        .await
                        .into_iter()
                        .find_map(std::result::Result::err)
                }
            };
            match fault {
                None => {
                    let took = self.world.now() - begun;
                    self.state.lock().lateness.note_put(took);
                    self.world.at(Point::EntryPut).await;
                    if self
                        .acknowledge(generation, number, bytes.len() as u64)
                        .await?
                    {
                        return Ok(());
                    }
                }
                Some((_, Fault::OldEpoch(error))) => {
                    self.fail(error.clone());
                    return Err(error);
                }
                Some((nsd, Fault::Member(why))) => {
                    if !self.replace(generation, nsd, why).await? {
                        self.world.sleep(AGAIN_AFTER).await;
                    }
                }
                Some((nsd, Fault::Late(why))) => match self.replace(generation, nsd, why).await? {
                    true => self.state.lock().lateness.note_replaced(generation),
                    false => self.world.sleep(AGAIN_AFTER).await,
                },
            }
        }
    }

    async fn wait_for_room(&self, number: EntryNumber) -> Result<()> {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            {
                let state = self.state.lock();
                if let Some(error) = &state.failed {
                    return Err(error.clone());
                }
                if number.0 <= state.acknowledged.0 + IN_FLIGHT_MAX {
                    return Ok(());
                }
            }
            moved.await;
        }
    }

    async fn put_to(
        &self,
        member: &Arc<Handle>,
        view: &[Arc<Handle>],
        number: EntryNumber,
        bytes: &Bytes,
        late: Duration,
    ) -> std::result::Result<(), (NsdId, Fault)> {
        let put = LogPut {
            shard: self.shard,
            epoch: self.epoch,
            number,
            bytes: bytes.clone(),
        };
        let patience = if view.len() == 1 {
            LAST_PATIENCE
        } else {
            PATIENCE
        };
        let put = member.log_put(put, Deadline::after(&self.world, late + patience));
        tokio::pin!(put);
        let mut result = self.world.timeout(late, put.as_mut()).await;
        if result.is_err() {
            let ids: Vec<NsdId> = view.iter().map(|nsd| nsd.id()).collect();
            if self.pool.log_replacement(&ids, member.id()).is_none() {
                result = Ok(put.await);
            }
        }
        match result {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if error.kind() == ErrorKind::OldEpoch => {
                let error =
                    error.while_doing(format!("append entry {number} of shard {}", self.shard));
                Err((member.id(), Fault::OldEpoch(error)))
            }
            Ok(Err(error)) => Err((member.id(), Fault::Member(error))),
            Err(_) => {
                let late = Error::new(
                    ErrorKind::Unavailable,
                    format!("NSD {} is late with entry {number}", member.id()),
                );
                Err((member.id(), Fault::Late(late)))
            }
        }
    }

    /// Waits until the entry is acknowledged. `false`: the view has changed, put it again.
    async fn acknowledge(&self, generation: u64, number: EntryNumber, bytes: u64) -> Result<bool> {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            {
                let mut guard = self.state.lock();
                let state = &mut *guard;
                if state.acknowledged < number {
                    if let Some(error) = &state.failed {
                        return Err(error.clone());
                    }
                    if state.generation != generation {
                        return Ok(false);
                    }
                    if !state.view_changing {
                        state.done.insert(number);
                        let before = state.acknowledged;
                        while state.done.remove(&state.acknowledged.next()) {
                            state.acknowledged = state.acknowledged.next();
                        }
                        if state.acknowledged > before {
                            self.moved.notify_waiters();
                        }
                    }
                }
                if state.acknowledged >= number {
                    state.bytes_in_flight = state
                        .bytes_in_flight
                        .checked_sub(bytes)
                        .expect("an entry is in flight until it is acknowledged, once");
                    return Ok(true);
                }
            }
            moved.await;
        }
    }
}
