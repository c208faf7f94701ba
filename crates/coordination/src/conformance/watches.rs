//! Rules of watches.

use super::Body;
use super::patient::{Follower, PATIENCE, Patient};
use crate::{Change, Event, News};
use futures::future::join_all;
use model::ErrorKind;
use std::time::Duration;

fn put(key: &str, value: &str) -> Event {
    Event {
        key: key.to_owned(),
        value: Some(value.to_owned().into()),
    }
}

fn removed(key: &str) -> Event {
    Event {
        key: key.to_owned(),
        value: None,
    }
}

const END: &str = "key/end";

/// The last change that a watch of "key/" has to tell.
async fn end(patient: &Patient) {
    patient.put(END, 0, "").await;
}

/// What a watch tells before [`END`], unless it is lost; nothing comes after that.
async fn told(watch: &mut crate::Watch) -> Option<Vec<(u64, Vec<Event>)>> {
    let mut told = Vec::new();
    for _ in 0..240 {
        match watch.next(PATIENCE).await {
            News::Changed { events, .. } if events[0].key == END => {
                return match watch.next(PATIENCE).await {
                    News::Quiet => Some(told),
                    News::Lost => None,
                    News::Changed { .. } => panic!("a change after the last one"),
                };
            }
            News::Changed { revision, events } => told.push((revision, events)),
            News::Quiet => {}
            News::Lost => return None,
        }
    }
    panic!("the watch doesn't tell the last change");
}

pub(super) async fn a_watch_tells_everything_after_its_revision(body: Body) {
    let [a, b] = [body.patient(0), body.patient(1)];
    let first = a.put("key/1", 0, "one").await;
    let mut early = b.store.watch("key/", first);
    let second = a.put("key/2", 0, "two").await;
    a.put("other", 0, "unheard").await;
    let third = a.put("key/1", first, "one again").await;
    a.settle().await;
    let last = a.change(vec![Change::remove("key/2", second)]).await;
    let mut late = b.store.watch("key/", second);
    end(&a).await;
    let all = [
        (second, vec![put("key/2", "two")]),
        (third, vec![put("key/1", "one again")]),
    ];
    for (watch, all) in [(&mut early, &all[..]), (&mut late, &all[1..])] {
        let Some(told) = told(watch).await else {
            continue;
        };
        let (removal, puts) = told.split_last().unwrap();
        assert_eq!(puts, all);
        assert_eq!(removal.1, [removed("key/2")]);
        assert!(removal.0 > third && removal.0 <= *last.as_ref().unwrap());
    }
}

pub(super) async fn a_watch_tells_the_changes_of_a_transaction_together(body: Body) {
    let a = body.patient(0);
    let old = a.put("key/3", 0, "old").await;
    let mut watch = a.store.watch("key/", old);
    let changes = vec![
        Change::put("key/2", 0, "new"),
        Change::put("other", 0, "unheard"),
        Change::put("key/1", 0, "new"),
        Change::remove("key/3", old),
        Change::keep("key/4", 0),
    ];
    let version = a.change(changes).await.unwrap();
    end(&a).await;
    if let Some(mut told) = told(&mut watch).await {
        assert_eq!(told.len(), 1);
        let (revision, events) = &mut told[0];
        events.sort_by(|one, other| one.key.cmp(&other.key));
        assert_eq!(*revision, version);
        let all = [put("key/1", "new"), put("key/2", "new"), removed("key/3")];
        assert_eq!(*events, all);
    }
}

pub(super) async fn a_watch_without_news_is_quiet_when_patience_ends(body: Body) {
    let a = body.patient(0);
    let revision = a.list("").await.revision;
    let mut watch = a.store.watch("key/", revision);
    let begun = body.world.now();
    let patience = Duration::from_secs(1);
    if watch.next(patience).await == News::Quiet {
        assert!(body.world.now() - begun >= patience);
    }
    // Not even once.
    let mut watch = a.store.watch("key/", a.list("").await.revision);
    let news = watch.next(Duration::ZERO).await;
    assert!(matches!(news, News::Quiet | News::Lost), "{news:?}");
}

pub(super) async fn a_watch_that_is_dropped_while_it_waits_misses_nothing(body: Body) {
    let a = body.patient(0);
    let mut version = a.put("key/1", 0, "0").await;
    let mut watch = a.store.watch("key/", version);
    let mut heard = Vec::new();
    let mut versions = Vec::new();
    for round in 1..20u64 {
        version = a.put("key/1", version, &round.to_string()).await;
        versions.push(version);
        // Given up after less time than it takes to hear.
        let next = watch.next(PATIENCE);
        match body.world.timeout(Duration::from_millis(round), next).await {
            Ok(News::Changed { revision, .. }) => heard.push(revision),
            Ok(News::Lost) => return,
            Ok(News::Quiet) | Err(_) => {}
        }
    }
    end(&a).await;
    if let Some(rest) = told(&mut watch).await {
        heard.extend(rest.iter().map(|(revision, _)| *revision));
        assert_eq!(heard, versions);
    }
}

/// Two processes change keys, each process follows them.
pub(super) async fn a_follower_ends_up_with_what_is_stored(body: Body) {
    let writers = (0..2).map(|process| {
        let patient = body.patient(process);
        async move {
            for _ in 0..60 {
                let chance = patient.world.random_u64();
                let key = format!("key/{}", chance % 7);
                let now = patient.get(&key).await;
                let version = now.map_or(0, |fact| fact.version);
                let change = match chance >> 8 & 3 {
                    0 => Change::remove(key, version),
                    _ => Change::put(key, version, chance.to_string()),
                };
                if let Err(error) = patient.store.transaction(vec![change]).await {
                    let kind = error.kind();
                    assert!(matches!(kind, ErrorKind::Changed | ErrorKind::Unavailable));
                }
                let pause = Duration::from_millis(chance >> 32 & 63);
                patient.world.sleep(pause).await;
            }
        }
    });
    let followers = (0..3).map(|process| {
        let patient = body.patient(process);
        async move {
            let mut follower = Follower::new(&patient, "key/").await;
            for _ in 0..20 {
                follower.step().await;
            }
            follower
        }
    });
    let (_, followers) = futures::join!(join_all(writers), join_all(followers));
    // Changes of lost answers may still be on their way.
    body.world.sleep(body.pace.late).await;
    for mut follower in followers {
        follower.catch_up().await;
    }
}
