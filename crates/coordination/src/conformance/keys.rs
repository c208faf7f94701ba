//! Rules of keys, versions and transactions.

use super::Body;
use crate::{CHANGES_MAX, Change, KEY_BYTES_MAX, STATE_BYTES_MAX};
use bytes::Bytes;
use futures::future::join_all;
use model::{ErrorKind, NsdId};
use std::collections::BTreeSet;
use std::time::Duration;

pub(super) async fn a_key_has_the_version_of_its_last_change(body: Body) {
    let [a, b] = [body.patient(0), body.patient(1)];
    assert_eq!(a.get("key/1").await, None);
    let version = a.put("key/1", 0, "one").await;
    assert!(version > 0);
    let found = b.reading("key/1").await;
    assert!(found.revision >= version);
    let found = found.found.unwrap();
    assert_eq!((&found.value[..], found.version), (&b"one"[..], version));
    let list = b.list("key/").await;
    assert_eq!(list.found, [("key/1".to_owned(), found)]);
    assert!(list.revision >= version);
}

pub(super) async fn versions_increase_and_are_never_reused(body: Body) {
    let a = body.patient(0);
    let mut last = 0;
    for _ in 0..5 {
        // A key that is made again doesn't begin again.
        let made = a.put("key/1", 0, "made").await;
        let other = a.put("key/2", 0, "other").await;
        assert!(last < made && made < other);
        a.settle().await;
        let removals = vec![
            Change::remove("key/1", made),
            Change::remove("key/2", other),
        ];
        last = a.change(removals).await.unwrap();
        assert!(last > other);
        assert!(a.reading("key/1").await.revision >= last);
    }
}

pub(super) async fn a_change_that_expects_another_version_is_refused(body: Body) {
    let [a, b] = [body.patient(0), body.patient(1)];
    let first = a.put("key/1", 0, "first").await;
    let second = a.put("key/1", first, "second").await;
    let wrong = [
        Change::put("key/1", 0, "wrong"),
        Change::put("key/1", first, "wrong"),
        Change::put("key/1", second + 1, "wrong"),
        Change::remove("key/1", 0),
        Change::remove("key/1", first),
        Change::put("key/2", second, "wrong"),
        Change::remove("key/2", second),
    ];
    for change in wrong {
        let refused = b.refused(vec![change.clone()]).await;
        assert_eq!(refused, ErrorKind::Changed, "{change:?}");
    }
    let all = b.list("key/").await.found;
    assert_eq!(all.len(), 1);
    assert_eq!(
        (&all[0].1.value[..], all[0].1.version),
        (&b"second"[..], second)
    );
}

pub(super) async fn a_transaction_happens_whole_or_not_at_all(body: Body) {
    let [a, b] = [body.patient(0), body.patient(1)];
    let first = a.put("key/1", 0, "1").await;
    let half_wrong = vec![
        Change::put("key/0", 0, "new"),
        Change::remove("key/1", first + 100),
        Change::put("key/2", 0, "new"),
    ];
    let refused = b.change(half_wrong).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Changed);
    assert_eq!(b.values("key/").await, [("key/1".into(), "1".into())]);
    let right = vec![
        Change::put("key/0", 0, "new"),
        Change::remove("key/1", first),
        Change::put("key/2", 0, "new"),
    ];
    let version = b.change(right).await.unwrap();
    let all = a.list("key/").await.found;
    let versions: Vec<_> = all
        .iter()
        .map(|(key, fact)| (&key[..], fact.version))
        .collect();
    assert_eq!(versions, [("key/0", version), ("key/2", version)]);
}

pub(super) async fn a_transaction_can_depend_on_keys_that_it_leaves_alone(body: Body) {
    let [a, b] = [body.patient(0), body.patient(1)];
    let guard = a.put("key/guard", 0, "me").await;
    let guarded = |guard, expected, value: &'static str| {
        vec![
            Change::keep("key/guard", guard),
            Change::put("key/1", expected, value),
        ]
    };
    let version = a.change(guarded(guard, 0, "mine")).await.unwrap();
    let taken = b.put("key/guard", guard, "other").await;
    let refused = a.change(guarded(guard, version, "mine again")).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Changed);
    assert_eq!(a.get("key/1").await.unwrap().version, version);
    // Only to look is a transaction as well, and has the revision of the look.
    let looked = a.change(vec![Change::keep("key/guard", taken)]).await;
    assert!(looked.unwrap() >= taken);
    let looked = a.change(vec![Change::keep("key/2", 0)]).await;
    assert!(looked.unwrap() >= taken);
    assert_eq!(a.get("key/guard").await.unwrap().version, taken);
}

pub(super) async fn to_remove_what_does_not_exist_changes_nothing(body: Body) {
    let a = body.patient(0);
    let version = a.put("key/1", 0, "1").await;
    a.change(vec![Change::remove("key/2", 0)]).await.unwrap();
    assert_eq!(a.get("key/2").await, None);
    assert_eq!(a.get("key/1").await.unwrap().version, version);
}

pub(super) async fn a_list_has_the_keys_of_its_prefix_in_order(body: Body) {
    let a = body.patient(0);
    let keys = ["list", "list/", "list/10", "list/9", "list/é", "list0", "m"];
    for key in keys.iter().rev() {
        a.put(key, 0, key).await;
    }
    let listed = |prefix: &'static str| {
        let a = a.clone();
        async move {
            let found = a.list(prefix).await.found.into_iter();
            found.map(|(key, _)| key).collect::<Vec<_>>()
        }
    };
    assert_eq!(listed("list/").await, keys[1..5]);
    assert_eq!(listed("list").await, keys[..6]);
    assert_eq!(listed("list/1").await, keys[2..3]);
    assert!(listed("lisu").await.is_empty());
    assert_eq!(listed("").await, keys);
}

pub(super) async fn a_change_that_was_answered_is_seen_by_everybody(body: Body) {
    let mut version = 0;
    for round in 0..30 {
        let writer = body.patient(round % 3);
        version = writer.put("key/1", version, &round.to_string()).await;
        for reader in 0..3 {
            let found = body.patient(reader).reading("key/1").await;
            assert!(found.revision >= version);
            assert_eq!(found.found.unwrap().version, version, "round {round}");
        }
    }
}

/// Each process appends its own words to one value.
pub(super) async fn changes_at_the_same_time_happen_one_after_the_other(body: Body) {
    const WORDS: usize = 15;
    let writers = (0..3).map(|process| {
        let patient = body.patient(process);
        async move {
            for number in 0..WORDS {
                let word = format!("{process}.{number} ");
                loop {
                    let now = patient.get("key/words").await;
                    let (text, version) = now.map_or((String::new(), 0), |fact| {
                        let text = String::from_utf8(fact.value.to_vec()).unwrap();
                        (text, fact.version)
                    });
                    if text.contains(&word) {
                        // An attempt with an unknown outcome.
                        break;
                    }
                    let change = Change::put("key/words", version, text + &word);
                    match patient.store.transaction(vec![change]).await {
                        Ok(_) => break,
                        Err(error) if error.kind() == ErrorKind::Changed => {}
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable),
                    }
                    let pause = body_pause(&patient.world);
                    patient.world.sleep(pause).await;
                }
            }
        }
    });
    join_all(writers).await;
    let text = body.patient(0).get("key/words").await.unwrap().value;
    let text = String::from_utf8(text.to_vec()).unwrap();
    let words: BTreeSet<&str> = text.split_whitespace().collect();
    assert_eq!(words.len(), 3 * WORDS);
    assert_eq!(text.split_whitespace().count(), 3 * WORDS, "none twice");
    for process in 0..3 {
        let own = text.split_whitespace();
        let own = own.filter(|word| word.starts_with(&format!("{process}.")));
        let expected = (0..WORDS).map(|number| format!("{process}.{number}"));
        assert!(own.eq(expected), "each process's words are in order");
    }
}

fn body_pause(world: &world::World) -> Duration {
    Duration::from_millis(world.random_u64() % 20)
}

pub(super) async fn a_change_whose_caller_goes_away_happens_whole_or_not_at_all(body: Body) {
    let [a, b] = [body.patient(0), body.patient(1)];
    for round in 0..10u64 {
        let keys = [format!("key/{round}/1"), format!("key/{round}/2")];
        let changes = keys.iter().map(|key| Change::put(key.clone(), 0, "x"));
        let change = a.store.transaction(changes.collect());
        let _unknown = body
            .world
            .timeout(Duration::from_millis(round), change)
            .await;
        // What arrives late can't do harm any more once the versions are others.
        let changes: Vec<Change> = loop {
            let found = b.list(&format!("key/{round}/")).await.found;
            assert!(found.is_empty() || found.len() == 2, "all or nothing");
            let version = |key| {
                let found = found.iter().find(|(name, _)| name == key);
                found.map_or(0, |(_, fact)| fact.version)
            };
            let changes: Vec<Change> = keys
                .iter()
                .map(|key| Change::put(key.clone(), version(key), "y"))
                .collect();
            match b.change(changes.clone()).await {
                Ok(_) => break changes,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Changed),
            }
        };
        assert_eq!(changes.len(), 2);
        body.world.sleep(body.pace.late).await;
        for (_, value) in b.values(&format!("key/{round}/")).await {
            assert_eq!(value, "y");
        }
    }
}

pub(super) async fn what_is_too_large_is_refused_and_changes_nothing(body: Body) {
    let a = body.patient(0);
    let too_long = "k".repeat(KEY_BYTES_MAX + 1);
    let too_many = (0..=CHANGES_MAX).map(|number| Change::put(format!("key/{number}"), 0, "x"));
    let twice = vec![Change::put("key/1", 0, "x"), Change::keep("key/1", 0)];
    let invalid = [
        vec![Change::put(too_long, 0, "x")],
        vec![Change::put("", 0, "x")],
        too_many.collect(),
        twice,
    ];
    for changes in invalid {
        let refused = a.change(changes).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }
    let large = Bytes::from(vec![1; STATE_BYTES_MAX]);
    let changes = vec![Change::put("key/1", 0, "x"), Change::put("key/2", 0, large)];
    let refused = a.change(changes).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert!(a.list("").await.found.is_empty());
    let most = (0..CHANGES_MAX).map(|number| Change::put(format!("key/{number}"), 0, "x"));
    a.change(most.collect()).await.unwrap();
    a.put(&"k".repeat(KEY_BYTES_MAX), 0, "").await;
}

pub(super) async fn ids_are_given_out_once(body: Body) {
    const SESSIONS: usize = 150;
    let takers = (0..3).map(|process| {
        let patient = body.patient(process);
        async move {
            let mut sessions = BTreeSet::new();
            let mut nsds = BTreeSet::new();
            while sessions.len() < SESSIONS {
                if let Ok(session) = patient.store.next_session().await {
                    assert!(sessions.insert(session), "{session} was given out twice");
                }
            }
            while nsds.len() < 3 {
                if let Ok(nsd) = patient.store.next_nsd(NsdId(7)).await {
                    assert!(nsds.insert(nsd), "{nsd} was given out twice");
                    assert!(nsd > NsdId(7));
                }
            }
            (sessions, nsds)
        }
    });
    let taken = join_all(takers).await;
    // The processes of a store may be one (clones share its block); ids are given out once all the
    // same.
    let sessions: BTreeSet<_> = taken.iter().flat_map(|taken| &taken.0).collect();
    assert_eq!(sessions.len(), 3 * SESSIONS);
    let nsds: BTreeSet<_> = taken.iter().flat_map(|taken| &taken.1).collect();
    assert_eq!(nsds.len(), 9);
    let below = loop {
        if let Ok(below) = body.processes[0].sessions_taken_below().await {
            break below;
        }
    };
    assert!(sessions.iter().all(|session| **session < below));
}
