//! Checks answers against what happened: each must be true at a moment between its request and its
//! arrival, and every change must be some request's or the end of a lease.

use super::{Call, Happened, Outcome};
use crate::{Action, Change, LeaseId};
use bytes::Bytes;
use model::{Error, ErrorKind};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use world::Instant;

/// Panics at the first answer that can't be explained. `late`: how much later than it happened a change
/// may have been noted.
pub(super) fn explain(happened: &[Happened], calls: &[Call], late: Duration) {
    let revisions = happened.windows(2);
    assert!(
        revisions
            .clone()
            .all(|two| two[0].revision < two[1].revision)
    );
    let mut history = History {
        happened,
        calls,
        states: vec![(0, Keys::new())],
        by_value: BTreeMap::new(),
        late,
    };
    history.replay();
    for call in calls {
        history.explain(call);
    }
    // That the run wasn't idle.
    let landed = calls
        .iter()
        .filter(|call| matches!(call.outcome, Outcome::Changed(_, Ok(_))));
    assert!(landed.count() > 10, "the processes got something done");
}

/// A key as it was: value, version, lease.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Fact {
    value: Bytes,
    version: u64,
    lease: Option<LeaseId>,
}

type Keys = BTreeMap<String, Fact>;

struct History<'a> {
    happened: &'a [Happened],
    calls: &'a [Call],
    /// All keys after each revision, beginning with none.
    states: Vec<(u64, Keys)>,
    /// The requests to change something, by each of their values.
    by_value: BTreeMap<Bytes, &'a Call>,
    late: Duration,
}

impl<'a> History<'a> {
    /// Attributes each change to a request or to the end of a lease.
    fn replay(&mut self) {
        for call in self.calls {
            if let Outcome::Changed(changes, _) = &call.outcome {
                for change in changes {
                    if let Action::Put { value, .. } = &change.action {
                        self.by_value.insert(value.clone(), call);
                    }
                }
            }
        }
        let mut answered = BTreeSet::new();
        for one in self.happened {
            let mut keys = self.states.last().expect("it begins with none").1.clone();
            match one.events.iter().find_map(|event| event.value.as_ref()) {
                Some(value) => {
                    let call = self.by_value[value];
                    assert!(answered.insert(call.sent_key()), "{call:?} happened twice");
                    apply(&mut keys, one, call);
                }
                None => self.end(&mut keys, one),
            }
            self.states.push((one.revision, keys));
        }
    }

    /// Only removals: a lease has ended, with all its keys.
    fn end(&self, keys: &mut Keys, one: &Happened) {
        let lease = keys[&one.events[0].key].lease;
        let lease = lease.unwrap_or_else(|| panic!("{:?} were removed by nobody", one.events));
        let of_lease = keys.iter().filter(|(_, fact)| fact.lease == Some(lease));
        let of_lease: BTreeSet<&str> = of_lease.map(|(key, _)| &key[..]).collect();
        let removed: BTreeSet<&str> = one.events.iter().map(|event| &event.key[..]).collect();
        assert_eq!(of_lease, removed, "the keys of lease {lease} go together");
        assert!(
            self.may_have_ended(lease, one.at, one.at),
            "lease {lease} ended too early"
        );
        keys.retain(|_, fact| fact.lease != Some(lease));
        for call in self.calls {
            let lives = matches!(&call.outcome, Outcome::Alive(id, Ok(_)) if *id == lease);
            assert!(!lives || call.sent <= one.at, "lease {lease} lives again");
        }
    }

    /// Whether a lease may have ended by `now`, for all that was known at `then`.
    fn may_have_ended(&self, lease: LeaseId, then: Instant, now: Instant) -> bool {
        self.calls.iter().any(|call| {
            matches!(&call.outcome, Outcome::Revoked(id, _) if *id == lease) && call.sent <= now
        }) || self.calls.iter().all(|call| {
            let ttl = match &call.outcome {
                Outcome::Granted(Ok(granted)) if granted.id == lease => granted.ttl,
                Outcome::Alive(id, Ok(ttl)) if *id == lease => *ttl,
                _ => return true,
            };
            call.answered > then || call.sent + ttl <= now
        })
    }

    /// The newest revision that was known before a request was sent.
    fn low(&self, sent: Instant) -> u64 {
        let known = self.calls.iter().filter(|call| call.answered < sent);
        let revisions = known.map(|call| match &call.outcome {
            Outcome::Got(_, Ok(reading)) => reading.revision,
            Outcome::Listed(Ok(reading)) => reading.revision,
            Outcome::Changed(_, Ok(revision)) => *revision,
            Outcome::Told(_, told) => told.last().map_or(0, |(revision, _)| *revision),
            _ => 0,
        });
        revisions.max().unwrap_or(0)
    }

    /// Before the first revision of a request that was sent later.
    fn high(&self, answered: Instant) -> u64 {
        let later = self.happened.iter().find(|one| {
            let value = one.events.iter().find_map(|event| event.value.as_ref());
            value.is_some_and(|value| self.by_value[value].sent > answered)
        });
        later.map_or(u64::MAX, |one| one.revision - 1)
    }

    fn state(&self, revision: u64) -> &Keys {
        let after = self.states.partition_point(|(of, _)| *of <= revision);
        &self.states[after - 1].1
    }

    fn explain(&self, call: &Call) {
        let (low, high) = (self.low(call.sent), self.high(call.answered));
        let is_current = |revision| assert!((low..=high).contains(&revision), "{call:?} is old");
        match &call.outcome {
            Outcome::Got(key, Ok(reading)) => {
                is_current(reading.revision);
                let fact = self.state(reading.revision).get(key);
                let found = reading
                    .found
                    .as_ref()
                    .map(|fact| (&fact.value, fact.version));
                assert_eq!(
                    found,
                    fact.map(|fact| (&fact.value, fact.version)),
                    "{call:?}"
                );
            }
            Outcome::Listed(Ok(reading)) => {
                is_current(reading.revision);
                let keys = self.state(reading.revision).iter();
                let facts = keys.map(|(key, fact)| (key, &fact.value, fact.version));
                let found = reading.found.iter();
                let found = found.map(|(key, fact)| (key, &fact.value, fact.version));
                assert!(found.eq(facts), "{call:?}");
            }
            Outcome::Changed(changes, result) => {
                self.explain_change(call, changes, result.as_ref().map(|done| *done), low, high);
            }
            Outcome::Alive(lease, Err(error)) | Outcome::Revoked(lease, Err(error))
                if error.kind() == ErrorKind::NotFound =>
            {
                assert!(
                    self.may_have_ended(*lease, call.sent, call.answered),
                    "{call:?}"
                );
                self.has_no_keys(*lease, call);
            }
            Outcome::Revoked(lease, Ok(())) => self.has_no_keys(*lease, call),
            Outcome::Granted(Ok(lease)) => {
                let same = self.calls.iter().filter(
                    |call| matches!(&call.outcome, Outcome::Granted(Ok(other)) if other.id == lease.id),
                );
                assert_eq!(same.count(), 1, "lease {} was granted twice", lease.id);
            }
            Outcome::Told(after, told) => {
                let events = told.iter().map(|(revision, events)| (*revision, events));
                let all = self.happened.iter().filter(|one| one.revision > *after);
                let all = all.map(|one| (one.revision, &one.events)).take(told.len());
                assert!(events.eq(all), "{call:?} has a gap");
                assert!(
                    told.iter().all(|(revision, _)| *revision <= high),
                    "{call:?}"
                );
            }
            Outcome::Alive(_, Ok(_)) => {}
            Outcome::Got(_, Err(error))
            | Outcome::Listed(Err(error))
            | Outcome::Granted(Err(error))
            | Outcome::Alive(_, Err(error))
            | Outcome::Revoked(_, Err(error)) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{call:?}");
            }
        }
    }

    fn explain_change(
        &self,
        call: &Call,
        changes: &[Change],
        result: Result<u64, &Error>,
        low: u64,
        high: u64,
    ) {
        let landed = self.happened.iter().find(|one| {
            let value = one.events.iter().find_map(|event| event.value.as_ref());
            value.is_some_and(|value| std::ptr::eq(self.by_value[value], call))
        });
        if let Some(one) = landed {
            assert!(one.revision > low, "{call:?} happened before it was sent");
        }
        let kind = match (result, landed) {
            (Ok(revision), Some(one)) => return assert_eq!(revision, one.revision),
            (Ok(_), None) => panic!("{call:?} never happened"),
            (Err(error), _) => error.kind(),
        };
        match kind {
            // It happened or not; if it did, as a whole, which was checked.
            ErrorKind::Unavailable => return,
            ErrorKind::Changed => {
                let first = self.states.partition_point(|(of, _)| *of <= low) - 1;
                let mut possible = self.states[first..].iter();
                let differs = |(revision, keys): &(u64, Keys)| {
                    (*revision <= high || *revision <= low) && !is_as_expected(keys, changes)
                };
                assert!(possible.any(differs), "{call:?} was as expected");
            }
            ErrorKind::NotFound => {
                let mut leases = changes.iter().filter_map(|change| lease_of(&change.action));
                let ended = |lease| self.may_have_ended(lease, call.sent, call.answered);
                assert!(leases.any(ended), "{call:?}: its leases go on");
            }
            _ => panic!("{call:?}"),
        }
        assert!(landed.is_none(), "{call:?} happened all the same");
    }

    /// After an answer that says that a lease has ended.
    fn has_no_keys(&self, lease: LeaseId, call: &Call) {
        let known = call.answered + self.late;
        let until = self.happened.partition_point(|one| one.at <= known);
        let left = self.states[until..].iter();
        let is_left = |(_, keys): &(u64, Keys)| keys.values().any(|fact| fact.lease == Some(lease));
        assert!(
            !left.clone().any(is_left),
            "{call:?}, but its keys are there"
        );
    }
}

impl Call {
    fn sent_key(&self) -> *const Self {
        self
    }
}

fn is_as_expected(keys: &Keys, changes: &[Change]) -> bool {
    changes
        .iter()
        .all(|change| keys.get(&change.key).map_or(0, |fact| fact.version) == change.expected)
}

fn lease_of(action: &Action) -> Option<LeaseId> {
    match action {
        Action::Put { lease, .. } => *lease,
        Action::Keep | Action::Remove => None,
    }
}

fn apply(keys: &mut Keys, one: &Happened, call: &Call) {
    let Outcome::Changed(changes, _) = &call.outcome else {
        unreachable!("only these have values");
    };
    assert!(
        is_as_expected(keys, changes),
        "{call:?} at {}",
        one.revision
    );
    let mut events = one.events.iter();
    for Change { key, action, .. } in changes {
        let value = match action {
            Action::Keep => continue,
            Action::Remove if !keys.contains_key(key) => continue,
            Action::Remove => {
                keys.remove(key);
                None
            }
            Action::Put { value, lease } => {
                let fact = Fact {
                    value: value.clone(),
                    version: one.revision,
                    lease: *lease,
                };
                keys.insert(key.clone(), fact);
                Some(value)
            }
        };
        let event = events.next().expect("an event for each change");
        assert_eq!((&event.key, event.value.as_ref()), (key, value), "{call:?}");
    }
    assert_eq!(events.next(), None, "{call:?}");
}
