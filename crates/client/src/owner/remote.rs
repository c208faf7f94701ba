//! The owner on another node. Each session of the client asks it through its own [`Calls`].

use super::calls::{Calls, Reclaims};
use super::owners::Owners;
use crate::known_names::KnownNames;
use model::owner::{OwnerReply, OwnerRequest};
use model::{Result, SessionId, ShardId};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use world::{Instant, Waiter, World};

/// An owner that is reached through messages.
pub struct RemoteOwner {
    /// The client's tokens.
    tokens: Arc<OnceLock<Weak<dyn Reclaims>>>,
    names: Arc<KnownNames>,
    /// What the client's session asks.
    calls: Mutex<Arc<Calls>>,
}

impl RemoteOwner {
    pub(super) fn usable_until(&self) -> Option<Instant> {
        self.calls.lock().usable_until()
    }

    /// The owner of a shard, as `owners` names it. A request is asked for `patience` before its program
    /// gets an error.
    #[must_use]
    pub fn new(
        world: World,
        shard: ShardId,
        owners: Arc<dyn Owners>,
        patience: Duration,
    ) -> Arc<Self> {
        let tokens = Arc::<OnceLock<_>>::default();
        let names = KnownNames::new();
        let shared = (tokens.clone(), names.clone());
        let calls = Calls::new(world, shard, owners, patience, shared);
        Arc::new(Self {
            tokens,
            names,
            calls: Mutex::new(calls),
        })
    }

    /// What is known of names under the session's tokens.
    pub(super) fn names(&self) -> &Arc<KnownNames> {
        &self.names
    }

    /// What a session asks that is about to be opened.
    pub(super) fn begin(&self) -> Arc<Calls> {
        self.calls.lock().next()
    }

    /// The session that asks this is the client's from now on; the one before is over.
    pub(super) fn follow(&self, calls: Arc<Calls>) {
        let before = std::mem::replace(&mut *self.calls.lock(), calls);
        before.close();
    }

    /// Asks until there is an answer, or patience ends.
    ///
    /// # Errors
    /// As [`Calls::ask`].
    pub(super) async fn ask(&self, request: &OwnerRequest) -> Result<OwnerReply> {
        let calls = self.calls.lock().clone();
        calls.ask(request).await
    }

    /// New owners are told of these tokens.
    pub(super) fn tell_new_owners(&self, tokens: Weak<dyn Reclaims>) {
        let first = self.tokens.set(tokens);
        assert!(first.is_ok(), "a client's tokens are in one place");
    }

    /// The client's last session is over, and the owner hasn't heard of it yet.
    pub(super) fn end_later(&self, session: SessionId) {
        self.calls.lock().end_later(session);
    }

    /// The client's last session has ended.
    pub(super) fn close(&self) {
        self.calls.lock().close();
    }

    pub(super) fn waiters(&self, now: Instant) -> Vec<Waiter> {
        self.calls.lock().waiters(now)
    }
}
