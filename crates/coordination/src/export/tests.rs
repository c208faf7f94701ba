//! That what is exported is what is found afterwards, and that no step of a move does harm when it is
//! taken twice or cut short.

use super::*;
use crate::etcd::tests::servers::{self, Servers, in_real_time};
use crate::{Change, Coordination, EMBEDDED_REGION_BYTES};
use model::{NsdId, SessionId};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use world::World;
use world::sim::{Simulation, for_every_cut};

const DISK: &str = "coordination";

async fn open(world: &World) -> Coordination {
    let disk = world.open_disk(Path::new(DISK)).unwrap();
    Coordination::embedded(world, disk).await.unwrap()
}

fn machine(seed: u64) -> Simulation {
    let simulation = Simulation::new(seed);
    simulation.disk(DISK, EMBEDDED_REGION_BYTES);
    simulation
}

/// An embedded store with these facts and a leased one, which has given out `sessions` sessions and an NSD;
/// its export and the last ids.
fn exported(
    seed: u64,
    facts: &BTreeMap<String, Vec<u8>>,
    sessions: usize,
) -> (Export, SessionId, NsdId) {
    let facts = facts.clone();
    let run = |world: World| async move {
        let store = open(&world).await;
        for (key, value) in facts {
            let change = Change::put(key, 0, value);
            store.transaction(vec![change]).await.unwrap();
        }
        let lease = store.grant(Duration::from_secs(60)).await.unwrap().id;
        let leased = Change::put_leased("manager", 0, "x", lease);
        store.transaction(vec![leased]).await.unwrap();
        let mut session = SessionId(0);
        for _ in 0..sessions {
            session = store.next_session().await.unwrap();
        }
        let nsd = store.next_nsd(NsdId(7)).await.unwrap();
        assert_eq!(store.exported(), None);
        let export = store.export().await.unwrap();
        assert_eq!(store.exported(), Some(export.id));
        // What the process holds in reserve is given out still.
        if !sessions.is_multiple_of(64) {
            session = store.next_session().await.unwrap();
        }
        (export, session, nsd)
    };
    machine(seed).run(run).finished()
}

#[test]
fn the_bytes_of_a_mark_are_those_of_the_format_table() {
    assert_eq!(mark(300)[..], [3, 0xac, 2]);
    assert_eq!(id_of(IMPORTED, &mark(u128::MAX)).unwrap(), u128::MAX);
}

/// What a store has without the marks.
async fn values(store: &Coordination) -> Vec<(String, Bytes)> {
    let found = store.list("").await.unwrap().found.into_iter();
    found
        .filter(|(key, _)| !is_mark(key))
        .map(|(key, fact)| (key, fact.value))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_is_exported_is_what_is_found_and_ids_go_on(
        seed in any::<u64>(),
        facts in proptest::collection::btree_map(
            "(config|pool|fs|é)/[a-z/0-9]{1,12}",
            proptest::collection::vec(any::<u8>(), 0..300),
            0..40,
        ),
        sessions in 0usize..150,
    ) {
        let (export, last_session, last_nsd) = exported(seed, &facts, sessions);
        let (counters, found): (Vec<_>, Vec<_>) =
            export.facts.iter().cloned().partition(|(key, _)| key.ends_with("/next"));
        prop_assert!(counters.len() <= 2);
        prop_assert!(found.iter().map(|(key, value)| (key, &value[..])).eq(
            facts.iter().map(|(key, value)| (key, &value[..]))
        ));
        let settings = servers::one().settings_of_its_own();
        in_real_time(async |world| {
            let store = Coordination::etcd(&world, &settings).unwrap();
            store.import(&export).await.unwrap();
            assert_eq!(values(&store).await, export.facts);
            assert!(store.next_session().await.unwrap() > last_session);
            assert!(store.next_nsd(NsdId(0)).await.unwrap() > last_nsd);
        });
    }
}

#[test]
fn an_import_that_is_done_again_changes_nothing_and_another_is_refused() {
    let facts = BTreeMap::from([("config/a".to_owned(), b"1".to_vec())]);
    let (export, ..) = exported(1, &facts, 3);
    let (other, ..) = exported(2, &facts, 3);
    assert_ne!(export.id, other.id);
    let settings = servers::one().settings_of_its_own();
    let mut within = settings.clone();
    within.prefix.push_str("config/");
    in_real_time(async |world| {
        let store = Coordination::etcd(&world, &settings).unwrap();
        store.import(&export).await.unwrap();
        store.import(&export).await.unwrap();
        let fact = store.get("config/a").await.unwrap().found.unwrap();
        let newer = vec![
            Change::put("config/a", fact.version, "2"),
            Change::put("config/b", 0, "new"),
        ];
        store.transaction(newer).await.unwrap();
        let before = store.list("").await.unwrap().found;
        // The cluster runs; an attempt whose outcome was unknown comes late.
        store.import(&export).await.unwrap();
        for (into, export) in [
            (&store, &other),
            (&Coordination::etcd(&world, &within).unwrap(), &export),
        ] {
            let refused = into.import(export).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Exists, "{refused}");
        }
        assert_eq!(store.list("").await.unwrap().found, before);
    });
}

#[test]
fn a_store_that_was_exported_takes_no_changes_until_the_export_is_cancelled() {
    let machine = machine(3);
    let first = machine.run(|world| async move {
        let store = open(&world).await;
        let lease = store.grant(Duration::from_secs(60)).await.unwrap().id;
        store
            .transaction(vec![Change::put("a", 0, "1")])
            .await
            .unwrap();
        let export = store.export().await.unwrap();
        assert_eq!(store.export().await.unwrap(), export);
        for changes in [
            vec![Change::put("a", 3, "2")],
            vec![Change::put("b", 0, "2")],
            vec![],
        ] {
            let refused = store.transaction(changes).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable);
        }
        let refused = store.grant(Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        // Leases end as ever.
        store.keep_alive(lease).await.unwrap();
        store.revoke(lease).await.unwrap();
        export
    });
    let first = first.finished();
    machine
        .run(|world| async move {
            let store = open(&world).await;
            assert_eq!(store.exported(), Some(first.id));
            assert_eq!(store.export().await.unwrap(), first);
            let wrong = store.cancel_export(first.id ^ 1).await.unwrap_err();
            assert_eq!(wrong.kind(), ErrorKind::Changed);
            store.cancel_export(first.id).await.unwrap();
            store
                .transaction(vec![Change::put("b", 0, "2")])
                .await
                .unwrap();
            let second = store.export().await.unwrap();
            assert_ne!(second.id, first.id);
            assert_eq!(second.facts.len(), 2);
        })
        .finished();
}

#[test]
fn a_power_cut_leaves_a_store_exported_or_not_and_the_export_is_the_same_again() {
    let run = |simulation: &Simulation| {
        simulation.disk(DISK, EMBEDDED_REGION_BYTES);
        simulation.run(|world| async move {
            let store = open(&world).await;
            store
                .transaction(vec![Change::put("a", 0, "1")])
                .await
                .unwrap();
            store.export().await.unwrap();
        })
    };
    let both = std::cell::Cell::new([0, 0]);
    for_every_cut(7, 10_000, |simulation| {
        if !run(simulation).is_crashed() {
            return;
        }
        let check = |world: World| async move {
            let store = open(&world).await;
            let before = store.exported();
            let export = store.export().await.unwrap();
            assert!(before.is_none_or(|id| id == export.id));
            before.is_some()
        };
        let was_exported = simulation.run(check).finished();
        let mut counts = both.get();
        counts[usize::from(was_exported)] += 1;
        both.set(counts);
    });
    assert!(both.get().iter().all(|count| *count > 0), "{both:?}");
}

#[test]
fn what_is_too_much_for_one_transaction_is_refused_and_says_why() {
    let export = |count: usize| Export {
        id: 1,
        facts: (0..count)
            .map(|number| (format!("fact/{number:05}"), Bytes::from_static(b"value")))
            .collect(),
    };
    let settings = servers::one().settings_of_its_own();
    in_real_time(async |world| {
        let store = Coordination::etcd(&world, &settings).unwrap();
        let refused = store
            .import(&export(EXPORT_FACTS_MAX + 1))
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        let mut large = export(100);
        for (_, value) in &mut large.facts {
            *value = vec![1; 20_000].into();
        }
        let refused = store.import(&large).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        assert!(store.list("").await.unwrap().found.is_empty());
        let most = export(EXPORT_FACTS_MAX);
        store.import(&most).await.unwrap();
        assert_eq!(values(&store).await, most.facts);
    });
    // An etcd that was started by somebody else, with the usual limit.
    let usual = Servers::start(1, &["--max-txn-ops=128"]);
    in_real_time(async |world| {
        let settings = usual.settings_of_its_own();
        let store = Coordination::etcd(&world, &settings).unwrap();
        let refused = store.import(&export(128)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert!(refused.to_string().contains("--max-txn-ops"), "{refused}");
        store.import(&export(127)).await.unwrap();
        assert_eq!(values(&store).await.len(), 127);
    });
}

#[test]
fn only_embedded_stores_are_exported_and_only_etcd_imports() {
    let settings = servers::one().settings_of_its_own();
    in_real_time(async |world| {
        let store = Coordination::etcd(&world, &settings).unwrap();
        assert_eq!(store.exported(), None);
        let refused = store.export().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotSupported);
        let refused = store.cancel_export(1).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotSupported);
    });
    let (export, ..) = exported(4, &BTreeMap::new(), 1);
    let run = |world: World| async move {
        let refused = open(&world).await.import(&export).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotSupported);
    };
    machine(5).run(run).finished();
}
