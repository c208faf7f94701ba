//! The facts of a cluster in an etcd: keys under a prefix, transactions, leases.

use super::client::{Client, Failed, Times};
use super::gateway::{
    self, Base64, Compare, Delete, Grant, Id, KeepAliveAnswer, KeyValue, Number, Operation, Put,
    Range, RangeAnswer, Streamed, Transaction, TransactionAnswer, end_of,
};
use super::refusal::{Meaning, Refusal};
use super::settings::EtcdSettings;
use crate::export::{self, EXPORT_FACTS_MAX, Export, IMPORTED};
use crate::state::{fact_changed, lease_ended};
use crate::{Action, Change, Facts, Lease, LeaseId, Reading, STATE_BYTES_MAX, Versioned};
use bytes::Bytes;
use model::{Error, ErrorKind, Result};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use world::{Deadline, World};

/// Most bytes of keys and values that are taken from etcd at once: more than they may ever be.
const LIST_BYTES_MAX: usize = 4 * STATE_BYTES_MAX;

/// How long an import may take: it is large, and made once.
const IMPORT_DEADLINE: Duration = Duration::from_secs(30);

/// The part of an etcd that is ours.
pub(crate) struct Store {
    usual: Arc<Client>,
    /// For who asks on the urgent thread, once somebody has: its connections and timers are of that thread too, so that it
    /// is answered while all others block.
    urgent: OnceLock<Arc<Client>>,
    pub(super) prefix: String,
}

impl Store {
    pub(crate) fn new(world: &World, settings: &EtcdSettings) -> Result<Self> {
        Ok(Self {
            usual: Arc::new(Client::new(world, settings)?),
            urgent: OnceLock::new(),
            prefix: settings.prefix.clone(),
        })
    }

    /// The client whose connections belong to the calling thread's runtime.
    pub(super) fn client(&self) -> &Arc<Client> {
        let usual = &self.usual;
        if usual.world().is_here() {
            return usual;
        }
        let beside = || Arc::new(usual.beside(usual.world().urgent()));
        self.urgent.get_or_init(beside)
    }

    pub(crate) fn world(&self) -> &World {
        self.client().world()
    }

    /// As the store before, with other settings.
    pub(crate) fn follow_on(&self, before: &Self) {
        // What they know is their urgent clients' too.
        self.usual.follow_on(&before.usual);
    }

    /// The etcd that is asked, once a member has said which it is.
    pub(crate) fn cluster(&self) -> Option<u64> {
        self.usual.cluster()
    }

    pub(crate) async fn revision(&self) -> Result<u64> {
        let range = super::members::any_key();
        let answer: RangeAnswer = self
            .client()
            .ask(gateway::RANGE, &range, Times::Any)
            .await?;
        Ok(answer.header.revision.0)
    }

    pub(crate) async fn get(&self, key: &str) -> Result<Reading<Option<Versioned<Bytes>>>> {
        let range = Range {
            key: self.key(key),
            ..Range::default()
        };
        let answer: RangeAnswer = self
            .client()
            .ask(gateway::RANGE, &range, Times::Any)
            .await?;
        let found = answer.kvs.into_iter().next();
        Ok(Reading {
            revision: answer.header.revision.0,
            found: found.map(versioned),
        })
    }

    pub(crate) async fn list(&self, prefix: &str) -> Result<Reading<Facts>> {
        let ours = format!("{}{prefix}", self.prefix);
        let range = Range {
            range_end: Some(end_of(&ours)),
            key: Base64::text(ours),
            ..Range::default()
        };
        let answer: RangeAnswer = self
            .client()
            .ask(gateway::RANGE, &range, Times::Any)
            .await?;
        let mut found = Facts::new();
        let mut bytes = 0;
        for pair in answer.kvs {
            let key = own_key(&self.prefix, &pair.key.0)?;
            bytes += key.len() + pair.value.0.len();
            found.push((key, versioned(pair)));
        }
        if bytes > LIST_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "etcd has {bytes} bytes of facts under {:?}, and the maximum is \
                     {STATE_BYTES_MAX}: does another program write there?",
                    self.prefix
                ),
            ));
        }
        if bytes > STATE_BYTES_MAX {
            tracing::warn!(bytes, "etcd has more facts than there should be");
        }
        Ok(Reading {
            revision: answer.header.revision.0,
            found,
        })
    }

    pub(crate) async fn transaction(&self, changes: Vec<Change>) -> Result<u64> {
        let leases: Vec<LeaseId> = changes.iter().filter_map(lease_of).collect();
        if changes.is_empty() {
            return Ok(self.get(" ").await?.revision);
        }
        let names: Vec<(String, u64)> = changes
            .iter()
            .map(|change| (change.key.clone(), change.expected))
            .collect();
        let witness = witness(&changes);
        let mut transaction = Transaction::default();
        for (key, expected) in &names {
            let key = self.key(key);
            transaction
                .compare
                .push(Compare::version(key.clone(), *expected));
            // Says which versions there are instead. Without any read etcd (3.4) takes a transaction
            // that changes nothing for one that may be answered from old state.
            transaction.failure.push(Operation::Range(Range {
                key,
                keys_only: true,
                ..Range::default()
            }));
        }
        let changes = changes.into_iter();
        transaction.success = changes
            .filter_map(|change| self.operation(change))
            .collect();
        let client = self.client();
        let is_guarded = witness.as_ref().is_some_and(|(_, expected)| *expected > 0);
        let asked = match is_guarded {
            true => client.change_guarded(&transaction).await,
            false => {
                client
                    .ask(gateway::TRANSACTION, &transaction, Times::Once)
                    .await
            }
        };
        match asked {
            Ok(answer) if answer.succeeded => Ok(answer.header.revision.0),
            Ok(answer) => Err(differing(&names, answer)),
            Err(Failed::Refused(refusal)) if refusal.meaning == Meaning::LeaseEnded => {
                // Which of them, etcd doesn't say; there is hardly ever more than one.
                Err(leases
                    .first()
                    .map_or_else(|| refusal.into_error(), |lease| lease_ended(*lease)))
            }
            Err(Failed::Refused(refusal)) if refusal.meaning == Meaning::Full => {
                Err(self.refused_as_full(witness, refusal).await)
            }
            Err(failed) => Err(failed.into()),
        }
    }

    /// What is known of changes that etcd has answered with "database space exceeded". A member that finds its database
    /// full while it makes a change makes it all the same, and answers so; from then on all changes are refused, also
    /// those that would find another version. So only the key tells which of both it was.
    async fn refused_as_full(&self, witness: Option<(String, u64)>, refusal: Refusal) -> Error {
        let Some((key, expected)) = witness else {
            return refusal.into_error();
        };
        let why = match self.get(&key).await {
            Ok(now) if now.found.as_ref().map_or(0, |it| it.version) == expected => {
                return refusal.into_error();
            }
            Ok(_) => format!("fact {key:?} has changed"),
            Err(error) => error.to_string(),
        };
        let text = format!(
            "etcd answered {:?}, but may have made the changes: {why}",
            refusal.text()
        );
        Error::new(ErrorKind::Unavailable, text)
    }

    pub(crate) async fn grant(&self, ttl: Duration) -> Result<Lease> {
        let grant = Grant {
            ttl: Number(ttl.as_secs()),
        };
        let granted = self.client().grant(&grant).await?;
        Ok(Lease {
            id: LeaseId(granted.id.0),
            ttl: Duration::from_secs(granted.ttl.0),
        })
    }

    pub(crate) async fn keep_alive(&self, lease: LeaseId) -> Result<Duration> {
        let id = Id::of(lease.0);
        let asked = self.client().ask(gateway::KEEP_ALIVE, &id, Times::Any);
        let answer: Streamed<KeepAliveAnswer> = ending(lease, asked.await)?;
        match answer.result.unwrap_or_default().ttl.0 {
            0 => Err(lease_ended(lease)),
            seconds => Ok(Duration::from_secs(seconds)),
        }
    }

    pub(crate) async fn revoke(&self, lease: LeaseId) -> Result<()> {
        let id = Id::of(lease.0);
        let asked = self.client().ask(gateway::REVOKE, &id, Times::Once);
        let gateway::Done {} = ending(lease, asked.await)?;
        Ok(())
    }

    pub(crate) async fn import(&self, export: &Export) -> Result<()> {
        let count = export.facts.len();
        if count > EXPORT_FACTS_MAX {
            let text =
                format!("{count} facts are to be imported; the maximum is {EXPORT_FACTS_MAX}");
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        let own = export::mark(export.id);
        let mark = self.key(IMPORTED);
        let put = |key: &str, value: &Bytes| {
            Operation::Put(Put {
                key: self.key(key),
                value: Base64(value.clone()),
                lease: None,
            })
        };
        let facts = export.facts.iter().map(|(key, value)| put(key, value));
        let all = Base64::text(self.prefix.clone());
        let transaction = Transaction {
            compare: vec![Compare::is_empty(all, end_of(&self.prefix))],
            success: facts.chain([put(IMPORTED, &own)]).collect(),
            failure: vec![Operation::Range(Range {
                key: mark,
                ..Range::default()
            })],
        };
        let deadline = Deadline::after(self.world(), IMPORT_DEADLINE);
        let client = self.client();
        let asked = client.ask_until(gateway::TRANSACTION, &transaction, Times::Once, deadline);
        let asked: std::result::Result<(TransactionAnswer, usize), Failed> = asked.await;
        let is_full = matches!(&asked, Err(Failed::Refused(it)) if it.meaning == Meaning::Full);
        if is_full {
            // It may have been done all the same (`refused_as_full`).
            let marked = self.get(IMPORTED).await?.found;
            if marked.is_some_and(|it| it.value == own) {
                return Ok(());
            }
        }
        let (answer, _) = asked.map_err(|failed| {
            let doing = format!("importing {count} facts into etcd in one transaction");
            Error::from(failed).while_doing(doing)
        })?;
        // By an attempt before, whose outcome was unknown.
        let mut found = answer
            .responses
            .into_iter()
            .filter_map(|it| it.response_range);
        let is_done = found.any(|range| range.kvs.iter().any(|pair| pair.value.0 == own));
        if answer.succeeded || is_done {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Exists,
            format!(
                "etcd has other facts under {:?}: choose another prefix, or remove them if no cluster \
                 uses them",
                self.prefix
            ),
        ))
    }

    fn key(&self, key: &str) -> Base64 {
        Base64::text(format!("{}{key}", self.prefix))
    }

    fn operation(&self, change: Change) -> Option<Operation> {
        let key = self.key(&change.key);
        match change.action {
            Action::Keep => None,
            Action::Put { value, lease } => Some(Operation::Put(Put {
                key,
                value: Base64(value),
                lease: lease.map(|lease| Number(lease.0)),
            })),
            // Without the key there is nothing to remove.
            Action::Remove if change.expected == 0 => None,
            Action::Remove => Some(Operation::Delete(Delete { key })),
        }
    }
}

/// A key as its owner names it.
pub(super) fn own_key(prefix: &str, key: &[u8]) -> Result<String> {
    let own = key.strip_prefix(prefix.as_bytes());
    let own = own.and_then(|own| std::str::from_utf8(own).ok());
    own.map(str::to_owned).ok_or_else(|| {
        let key = super::refusal::readable(key);
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "etcd has the key {key:?} under {prefix:?}, which Shale never writes: remove it"
            ),
        )
    })
}

fn versioned(pair: KeyValue) -> Versioned<Bytes> {
    Versioned {
        value: pair.value.0,
        version: pair.mod_revision.0,
    }
}

/// A key whose version tells whether the changes were made, with the one that it had before; none if nothing changes. One
/// that was there, if any was: a new one may be gone again.
fn witness(changes: &[Change]) -> Option<(String, u64)> {
    let changed = changes.iter().filter(|change| match change.action {
        Action::Keep => false,
        Action::Put { .. } => true,
        Action::Remove => change.expected > 0,
    });
    let witness = changed.max_by_key(|change| change.expected);
    witness.map(|change| (change.key.clone(), change.expected))
}

fn lease_of(change: &Change) -> Option<LeaseId> {
    match change.action {
        Action::Put { lease, .. } => lease,
        Action::Keep | Action::Remove => None,
    }
}

/// Which of the keys had another version than expected.
fn differing(names: &[(String, u64)], answer: TransactionAnswer) -> Error {
    let ranges = answer.responses.into_iter();
    let found = ranges.map(|answer| {
        let range = answer.response_range.unwrap_or_default();
        range.kvs.first().map_or(0, |pair| pair.mod_revision.0)
    });
    let mut both = names.iter().zip(found);
    match both.find(|((_, expected), found)| expected != found) {
        Some(((key, expected), found)) => fact_changed(key, found, *expected),
        None => Error::new(ErrorKind::Changed, "a fact is at another version"),
    }
}

fn ending<T>(lease: LeaseId, answer: std::result::Result<T, Failed>) -> Result<T> {
    answer.map_err(|failed| match failed {
        Failed::Refused(refusal) if refusal.meaning == Meaning::LeaseEnded => lease_ended(lease),
        failed => failed.into(),
    })
}
