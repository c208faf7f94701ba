//! Calls to another node without a network, for tests of both sides of a contract: requests and
//! replies are delayed, repeated, lost or held back.

use crate::World;
use crate::call::{Deadline, Remote, Service};
use futures::future::{BoxFuture, FutureExt};
use model::call::{Answer, Call, NoAnswer, Reply};
use model::{NodeId, NodeRun};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// What becomes of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Loss {
    /// They arrive.
    #[default]
    None,
    /// Requests are lost.
    Requests,
    /// Requests arrive, replies are lost.
    Replies,
}

/// Selects requests.
type Filter = Box<dyn Fn(&Call) -> bool + Send>;

/// Another node that is reached by function calls.
pub struct Loopback {
    world: World,
    service: Arc<dyn Service>,
    delay_max: Duration,
    loss: Mutex<Loss>,
    held: Mutex<Option<(Filter, watch::Receiver<bool>)>>,
}

/// Requests that are held back until this is dropped.
pub struct Held {
    released: watch::Sender<bool>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.released.send(true);
    }
}

impl Loopback {
    /// Each message takes up to `delay_max`; one request in eight arrives twice.
    #[must_use]
    pub fn new(world: &World, service: Arc<dyn Service>, delay_max: Duration) -> Arc<Self> {
        Arc::new(Self {
            world: world.clone(),
            service,
            delay_max,
            loss: Mutex::default(),
            held: Mutex::default(),
        })
    }

    /// Changes what becomes of messages from now on.
    pub fn lose(&self, loss: Loss) {
        *self.loss.lock() = loss;
    }

    /// Holds selected requests back on their way, past their deadlines if need be. They arrive after
    /// the returned value is dropped.
    #[must_use]
    pub fn hold(&self, filter: impl Fn(&Call) -> bool + Send + 'static) -> Held {
        let (released, wait) = watch::channel(false);
        *self.held.lock() = Some((Box::new(filter), wait));
        Held { released }
    }

    async fn delay(&self) {
        let most = u64::try_from(self.delay_max.as_nanos()).unwrap_or(u64::MAX);
        let nanos = self.world.random_u64() % most.saturating_add(1);
        self.world.sleep(Duration::from_nanos(nanos)).await;
    }

    /// What has left runs, whether the caller still waits or not.
    fn deliver(&self, call: Call, budget: Duration) -> oneshot::Receiver<Reply> {
        let (answer, wait) = oneshot::channel();
        let (world, service) = (self.world.clone(), self.service.clone());
        let held = self.held.lock();
        let held = held.as_ref().filter(|(filter, _)| filter(&call));
        let mut held = held.map(|(_, released)| released.clone());
        let twice = world.random_u64().is_multiple_of(8);
        let serving = async move {
            if let Some(released) = &mut held {
                // An error means that the holder is gone.
                let _ = released.wait_for(|released| *released).await;
            }
            let deadline = Deadline::after(&world, budget);
            if twice {
                let first = service.serve(CALLER, call.clone(), deadline);
                let _ = deadline.bound(&world, first).await;
            }
            let reply = service.serve(CALLER, call, deadline);
            if let Ok(reply) = deadline.bound(&world, reply).await {
                let _gone = answer.send(reply);
            }
        };
        self.world.spawn("loopback", serving).detach();
        wait
    }
}

const CALLER: NodeRun = NodeRun {
    node: NodeId(1),
    incarnation: 1,
};
const ANSWERER: NodeRun = NodeRun {
    node: NodeId(2),
    incarnation: 1,
};

impl Remote for Loopback {
    fn call(&self, call: Call, deadline: Deadline) -> BoxFuture<'_, Result<Answer, NoAnswer>> {
        let asking = async move {
            self.delay().await;
            if *self.loss.lock() == Loss::Requests {
                return std::future::pending().await;
            }
            let reply = self.deliver(call, deadline.rest(&self.world)).await;
            self.delay().await;
            match reply {
                Ok(reply) if *self.loss.lock() == Loss::None => reply,
                _ => std::future::pending().await,
            }
        };
        async move {
            match deadline.bound(&self.world, asking).await {
                Ok(reply) => Ok(Answer {
                    from: ANSWERER,
                    reply,
                }),
                Err(_) => Err(NoAnswer::unknown("no reply came in time")),
            }
        }
        .boxed()
    }
}
