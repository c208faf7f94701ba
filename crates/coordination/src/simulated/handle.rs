//! One process's side of the simulated store: sends requests, waits for answers, polls for news.

use super::server::{Answer, Heard, Request, Server};
use crate::{Change, Facts, Lease, LeaseId, News, Reading, Versioned};
use bytes::Bytes;
use model::{Error, ErrorKind, NodeId, Result};
use parking_lot::Mutex;
use std::{sync::Arc, time::Duration};
use world::World;

/// How long an answer is waited for; etcd's own limit is about as long.
const REQUEST_DEADLINE: Duration = Duration::from_secs(5);
/// How often a watch asks whether there is something to tell.
const WATCH_PAUSE: Duration = Duration::from_millis(5);

#[derive(Clone)]
pub(crate) struct Handle {
    server: Arc<Mutex<Server>>,
    node: NodeId,
    world: World,
}

/// A request that was sent. Its sender may be gone before it is answered.
struct Pending<'a> {
    server: &'a Mutex<Server>,
    number: u64,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.server.lock().forget(self.number);
    }
}

impl Handle {
    pub(super) fn new(server: Arc<Mutex<Server>>, node: NodeId, world: World) -> Self {
        Self {
            server,
            node,
            world,
        }
    }

    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    pub(crate) async fn get(&self, key: &str) -> Result<Reading<Option<Versioned<Bytes>>>> {
        match self.ask(Request::Get(key.to_owned())).await? {
            Answer::Got(reading) => Ok(reading),
            other => unreachable!("a get is answered with {other:?}"),
        }
    }

    pub(crate) async fn list(&self, prefix: &str) -> Result<Reading<Facts>> {
        match self.ask(Request::List(prefix.to_owned())).await? {
            Answer::Listed(reading) => Ok(reading),
            other => unreachable!("a list is answered with {other:?}"),
        }
    }

    pub(crate) async fn transaction(&self, changes: Vec<Change>) -> Result<u64> {
        match self.ask(Request::Change(changes)).await? {
            Answer::Changed(revision) => Ok(revision),
            other => unreachable!("a change is answered with {other:?}"),
        }
    }

    pub(crate) async fn grant(&self, ttl: Duration) -> Result<Lease> {
        match self.ask(Request::Grant(ttl)).await? {
            Answer::Granted(lease) => Ok(lease),
            other => unreachable!("a grant is answered with {other:?}"),
        }
    }

    pub(crate) async fn keep_alive(&self, lease: LeaseId) -> Result<Duration> {
        match self.ask(Request::KeepAlive(lease)).await? {
            Answer::Alive(ttl) => Ok(ttl),
            other => unreachable!("a keep-alive is answered with {other:?}"),
        }
    }

    pub(crate) async fn revoke(&self, lease: LeaseId) -> Result<()> {
        match self.ask(Request::Revoke(lease)).await? {
            Answer::Revoked => Ok(()),
            other => unreachable!("a revocation is answered with {other:?}"),
        }
    }

    pub(crate) async fn news(&self, prefix: &str, after: &mut u64, patience: Duration) -> News {
        let begun = self.world.now();
        loop {
            let news = self.server.lock().news(self.node, prefix, after);
            if let Some(news) = news {
                return news;
            }
            let left = patience.saturating_sub(self.world.now() - begun);
            if left.is_zero() {
                return News::Quiet;
            }
            self.world.sleep(left.min(WATCH_PAUSE)).await;
        }
    }

    async fn ask(&self, request: Request) -> Result<Answer> {
        let begun = self.world.now();
        let number = self.server.lock().send(self.node, request);
        let pending = Pending {
            server: &self.server,
            number,
        };
        loop {
            let answer = self.server.lock().answer(pending.number);
            let pause = match answer {
                Heard::Answer(answer) => return answer,
                Heard::Nothing(pause) => pause,
            };
            let left = REQUEST_DEADLINE.saturating_sub(self.world.now() - begun);
            if left.is_zero() {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "etcd hasn't answered for {} s: whether the request took effect is unknown",
                        REQUEST_DEADLINE.as_secs()
                    ),
                ));
            }
            self.world.sleep(left.min(pause)).await;
        }
    }
}
