//! What a careful caller does: asks again while there is no answer, and finds out what an unknown
//! outcome was.

use super::Body;
use crate::{Action, Change, Coordination, Facts, Lease, LeaseId, News, Reading, Versioned, Watch};
use bytes::Bytes;
use model::{ErrorKind, Result};
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;
use world::World;

/// Attempts before a rule counts as broken: no fault lasts this long.
const ATTEMPTS_MAX: usize = 500;
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

/// A process of a store.
#[derive(Clone)]
pub(super) struct Patient {
    pub(super) store: Coordination,
    pub(super) world: World,
    late: Duration,
}

impl Body {
    pub(super) fn patient(&self, process: usize) -> Patient {
        Patient {
            store: self.processes[process].clone(),
            world: self.world.clone(),
            late: self.pace.late,
        }
    }
}

impl Patient {
    /// Asks until there is an answer; returns it with the number of the attempt.
    pub(super) async fn until_answered<T, F: Future<Output = Result<T>>>(
        &self,
        ask: impl Fn() -> F,
    ) -> (usize, Result<T>) {
        for attempt in 1..=ATTEMPTS_MAX {
            match ask().await {
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    self.world.sleep(Duration::from_millis(20)).await;
                }
                answer => return (attempt, answer),
            }
        }
        panic!("no answer to {ATTEMPTS_MAX} attempts");
    }

    pub(super) async fn get(&self, key: &str) -> Option<Versioned<Bytes>> {
        self.reading(key).await.found
    }

    pub(super) async fn reading(&self, key: &str) -> Reading<Option<Versioned<Bytes>>> {
        self.until_answered(|| self.store.get(key)).await.1.unwrap()
    }

    pub(super) async fn list(&self, prefix: &str) -> Reading<Facts> {
        let (_, answer) = self.until_answered(|| self.store.list(prefix)).await;
        answer.unwrap()
    }

    /// Keys and values.
    pub(super) async fn values(&self, prefix: &str) -> Vec<(String, Bytes)> {
        let found = self.list(prefix).await.found;
        let value = |(key, fact): (String, Versioned<Bytes>)| (key, fact.value);
        found.into_iter().map(value).collect()
    }

    /// Makes a change, of keys that nobody else changes. An attempt whose outcome was unknown may
    /// be why a later one is refused: then the keys are as they were to be.
    pub(super) async fn change(&self, changes: Vec<Change>) -> Result<u64> {
        let ask = || self.store.transaction(changes.clone());
        let (attempts, answer) = self.until_answered(ask).await;
        match answer {
            Err(error) if error.kind() == ErrorKind::Changed && attempts > 1 => {
                let mut version = Err(error);
                for Change {
                    key,
                    expected,
                    action,
                } in &changes
                {
                    let now = self.reading(key).await;
                    match (action, now.found) {
                        (Action::Keep, _) => {}
                        (Action::Put { value, .. }, Some(now))
                            if now.value == *value && now.version > *expected =>
                        {
                            version = Ok(now.version);
                        }
                        (Action::Remove, None) if *expected > 0 => version = Ok(now.revision),
                        _ => return version,
                    }
                }
                version
            }
            answer => answer,
        }
    }

    /// The answer to changes that are refused however often they are asked for.
    pub(super) async fn refused(&self, changes: Vec<Change>) -> ErrorKind {
        let ask = || self.store.transaction(changes.clone());
        self.until_answered(ask).await.1.unwrap_err().kind()
    }

    /// Waits until no earlier attempt can arrive any more: a late creation would bring back a key
    /// that is removed next.
    pub(super) async fn settle(&self) {
        self.world.sleep(self.late).await;
    }

    pub(super) async fn put(&self, key: &str, expected: u64, value: &str) -> u64 {
        let change = Change::put(key, expected, value.to_owned());
        self.change(vec![change]).await.unwrap()
    }

    pub(super) async fn grant(&self, ttl: Duration) -> Lease {
        // Leases of lost answers end by themselves.
        self.until_answered(|| self.store.grant(ttl))
            .await
            .1
            .unwrap()
    }

    /// Keeps a lease alive; returns whether it has ended.
    pub(super) async fn keep_alive(&self, lease: LeaseId) -> Result<Duration> {
        self.until_answered(|| self.store.keep_alive(lease)).await.1
    }

    pub(super) async fn revoke(&self, lease: LeaseId) -> Result<()> {
        let (attempts, answer) = self.until_answered(|| self.store.revoke(lease)).await;
        match answer {
            Err(error) if error.kind() == ErrorKind::NotFound && attempts > 1 => Ok(()),
            answer => answer,
        }
    }

    /// Waits until a key is gone; returns when that was known.
    pub(super) async fn until_gone(&self, key: &str) -> world::Instant {
        for _ in 0..ATTEMPTS_MAX {
            if self.get(key).await.is_none() {
                return self.world.now();
            }
            self.world.sleep(Duration::from_millis(200)).await;
        }
        panic!("{key} is still there");
    }
}

/// A copy of some keys that follows a watch.
pub(super) struct Follower {
    patient: Patient,
    prefix: String,
    watch: Watch,
    pub(super) keys: BTreeMap<String, Bytes>,
    /// The revision of the copy.
    pub(super) revision: u64,
    pub(super) times_lost: usize,
}

impl Follower {
    pub(super) async fn new(patient: &Patient, prefix: &str) -> Self {
        let list = patient.list(prefix).await;
        let keys = list.found.into_iter();
        Self {
            patient: patient.clone(),
            prefix: prefix.to_owned(),
            watch: patient.store.watch(prefix, list.revision),
            keys: keys.map(|(key, fact)| (key, fact.value)).collect(),
            revision: list.revision,
            times_lost: 0,
        }
    }

    /// Takes one piece of news; `false` if it was quiet.
    pub(super) async fn step(&mut self) -> bool {
        match self.watch.next(PATIENCE).await {
            News::Quiet => return false,
            News::Lost => {
                assert_eq!(self.watch.next(PATIENCE).await, News::Lost);
                let times_lost = self.times_lost + 1;
                *self = Self::new(&self.patient, &self.prefix).await;
                self.times_lost = times_lost;
            }
            News::Changed { revision, events } => {
                assert!(revision > self.revision, "each change is told once");
                self.revision = revision;
                for event in events {
                    assert!(event.key.starts_with(&self.prefix));
                    match event.value {
                        Some(value) => {
                            self.keys.insert(event.key, value);
                        }
                        None => {
                            let gone = self.keys.remove(&event.key);
                            assert!(gone.is_some(), "{} was removed twice", event.key);
                        }
                    }
                }
            }
        }
        true
    }

    /// Follows until the copy is what is stored now.
    pub(super) async fn catch_up(&mut self) {
        for _ in 0..ATTEMPTS_MAX {
            let stored = self.patient.values(&self.prefix).await;
            if stored
                .iter()
                .map(|(key, value)| (key, value))
                .eq(&self.keys)
            {
                return;
            }
            self.step().await;
        }
        panic!("the watch doesn't tell what is stored");
    }
}
