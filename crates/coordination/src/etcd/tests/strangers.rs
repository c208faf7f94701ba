//! Servers that only claim to be an etcd, or one that is broken: what is asked how often, and that nobody
//! can fill memory. In simulated time, over simulated connections.

use super::{EtcdEndpoint, EtcdSettings};
use crate::{Change, Coordination, Export, LeaseId, News};
use futures::future::{join, join_all};
use model::ErrorKind;
use std::future::Future;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use world::sim::Simulation;
use world::{Connection, World};

const STATUS: &str =
    r#"{"header":{"cluster_id":"7","member_id":"1"},"version":"3.4.23","leader":"1"}"#;
const NO_LEADER: &str =
    r#"{"error":"etcdserver: no leader","message":"etcdserver: no leader","code":14}"#;
pub(super) const READ: &str = r#"{"header":{"cluster_id":"7","revision":"6"}}"#;
const DONE: &str = r#"{"header":{"cluster_id":"7","revision":"6"},"succeeded":true}"#;

/// What a stranger does with a request.
pub(super) enum Reply {
    Answer(u16, &'static str),
    /// These bytes, then the end.
    Raw(Vec<u8>),
    /// The first bytes once, the second ones for ever.
    Endless(&'static [u8], Vec<u8>),
    /// These bytes, and nothing more.
    Begin(&'static [u8]),
    Silence,
    Close,
    /// Answers, then closes the connection.
    Last(&'static str),
    /// Answers after a while.
    Late(Duration, u16, &'static str),
}

use Reply::{Answer, Begin, Close, Endless, Last, Late, Raw, Silence};

pub(super) struct Stranger {
    pub(super) endpoint: EtcdEndpoint,
    asked: Arc<Mutex<Vec<String>>>,
    written: Arc<AtomicUsize>,
    open: Arc<Open>,
}

/// Connections now, and the most at the same time.
#[derive(Default)]
struct Open {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Stranger {
    /// How often it was asked for this.
    pub(super) fn asked(&self, path: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|it| it.contains(path)).count()
    }
}

/// Answers each request as `reply` says; the question who it is as a member of etcd, unless `reply` is
/// asked for that as well.
pub(super) async fn stranger(
    world: &World,
    reply: impl Fn(&str) -> Reply + Send + Sync + 'static,
) -> Stranger {
    let listener = world.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let stranger = Stranger {
        endpoint: listener.address().to_string().parse().unwrap(),
        asked: Arc::default(),
        written: Arc::default(),
        open: Arc::default(),
    };
    let (asked, written) = (stranger.asked.clone(), stranger.written.clone());
    let open = stranger.open.clone();
    let (world, reply) = (world.clone(), Arc::new(reply));
    let serving = world.clone();
    let serve = async move {
        while let Ok(connection) = listener.accept().await {
            let (reply, asked, written) = (reply.clone(), asked.clone(), written.clone());
            let (open, clock) = (open.clone(), serving.clone());
            let talk = async move {
                let now = open.now.fetch_add(1, Ordering::Relaxed) + 1;
                open.most.fetch_max(now, Ordering::Relaxed);
                talk(&clock, connection, &*reply, &asked, &written).await;
                open.now.fetch_sub(1, Ordering::Relaxed);
            };
            serving.spawn("stranger's connection", talk).detach();
        }
    };
    world.spawn("stranger", serve).detach();
    stranger
}

async fn talk(
    world: &World,
    mut connection: Connection,
    reply: &(impl Fn(&str) -> Reply + Sync),
    asked: &Mutex<Vec<String>>,
    written: &AtomicUsize,
) {
    while let Some(path) = request(&mut connection).await {
        asked.lock().unwrap().push(path.clone());
        let text = |status: u16, body: &str| {
            let length = body.len();
            format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\n\r\n{body}")
        };
        let (bytes, goes_on) = match reply(&path) {
            Answer(status, body) => (text(status, body).into_bytes(), true),
            Last(body) => (text(200, body).into_bytes(), false),
            Late(after, status, body) => {
                world.sleep(after).await;
                (text(status, body).into_bytes(), true)
            }
            Raw(bytes) => (bytes, false),
            Close => return,
            Silence => return silence(connection).await,
            Begin(bytes) => {
                let _ = connection.write_all(bytes).await;
                return silence(connection).await;
            }
            Endless(begin, more) => {
                let mut rest = begin.to_vec();
                while connection.write_all(&rest).await.is_ok() {
                    written.fetch_add(rest.len(), Ordering::Relaxed);
                    rest.clone_from(&more);
                }
                return;
            }
        };
        if connection.write_all(&bytes).await.is_err() || !goes_on {
            return;
        }
    }
}

/// Says nothing until the other side has gone.
async fn silence(mut connection: Connection) {
    let mut nothing = [0];
    let _ = connection.read(&mut nothing).await;
}

/// The path of the next request, whose body is read.
async fn request(connection: &mut Connection) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    connection.read_exact(&mut body).await.ok()?;
    Some(head.split(' ').nth(1)?.to_owned())
}

/// A member as it should be.
pub(super) fn works(path: &str) -> Reply {
    Answer(
        200,
        match path {
            "/v3/maintenance/status" => STATUS,
            "/v3/kv/txn" => DONE,
            _ => READ,
        },
    )
}

/// How requests of a kind are answered.
type AnswersAs = fn() -> Reply;

/// A member that answers changes so, and all else as it should.
fn changes_as(reply: AnswersAs) -> impl Fn(&str) -> Reply + Copy + Send + Sync + 'static {
    move |path: &str| match path {
        "/v3/kv/txn" => reply(),
        path => works(path),
    }
}

fn store(world: &World, strangers: &[&Stranger]) -> Coordination {
    let settings = EtcdSettings {
        endpoints: strangers.iter().map(|it| it.endpoint.clone()).collect(),
        prefix: "/p/".to_owned(),
        tls: None,
        cluster: None,
    };
    Coordination::etcd(world, &settings).unwrap()
}

pub(super) fn run<F: Future<Output = ()>>(test: impl Fn(World) -> F) {
    for seed in 0..4 {
        Simulation::new(seed).run(&test).finished();
    }
}

fn change() -> Vec<Change> {
    vec![Change::put("key", 0, "x")]
}

#[test]
fn a_creation_that_may_have_happened_is_never_sent_again() {
    for fault in [
        || Close,
        || Silence,
        || Answer(200, "no etcd"),
        || {
            Answer(
                503,
                r#"{"message":"etcdserver: request timed out","code":14}"#,
            )
        },
        || Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_vec()),
        || Raw(vec![0xff; 100]),
    ] {
        run(|world| async move {
            let one = stranger(&world, changes_as(fault)).await;
            let two = stranger(&world, changes_as(fault)).await;
            let store = store(&world, &[&one, &two]);
            let begun = world.now();
            let unknown = store.transaction(change()).await.unwrap_err();
            assert_eq!(unknown.kind(), ErrorKind::Unavailable, "{unknown}");
            assert!(unknown.to_string().contains("unknown"), "{unknown}");
            assert!(world.now() - begun <= Duration::from_secs(6));
            world.sleep(Duration::from_secs(60)).await;
            assert_eq!(one.asked("txn") + two.asked("txn"), 1, "{unknown}");
        });
    }
}

/// A copy of [`guarded`] comes after another change of its key.
const CHANGED: &str = r#"{"header":{"cluster_id":"7","revision":"6"},"responses":[{"response_range":{"kvs":[{"key":"L3Ava2V5","mod_revision":"6"}]}}]}"#;

/// A change of a key that is there: no second copy of it can be made.
fn guarded() -> Vec<Change> {
    vec![Change::put("key", 3, "x"), Change::put("new", 0, "y")]
}

/// Would be broken if whoever changes what has been there waited for a member that lost its leader until that gives up.
#[test]
fn a_change_that_is_lost_with_the_leader_is_made_by_a_copy() {
    for fault in [|| Silence, || Close, || Answer(200, "no etcd")] {
        run(|world| async move {
            let one = stranger(&world, changes_as(fault)).await;
            let two = stranger(&world, works).await;
            let store = store(&world, &[&one, &two]);
            let begun = world.now();
            assert_eq!(store.transaction(guarded()).await.unwrap(), 6);
            assert!(world.now() - begun < Duration::from_secs(1));
            assert_eq!((one.asked("txn"), two.asked("txn")), (1, 1));
        });
    }
}

#[test]
fn a_copy_that_comes_too_late_says_nothing_of_the_change() {
    // Who was asked first, and what becomes of the change.
    let cases: [(AnswersAs, Result<u64, ErrorKind>); 4] = [
        (|| Silence, Err(ErrorKind::Unavailable)),
        (|| Close, Err(ErrorKind::Unavailable)),
        // It was slow, and answers while the copy's answer is weighed.
        (|| Late(Duration::from_millis(600), 200, DONE), Ok(6)),
        // Both have done nothing.
        (|| Answer(200, CHANGED), Err(ErrorKind::Changed)),
    ];
    for (first, expected) in cases {
        run(|world| async move {
            let one = stranger(&world, changes_as(first)).await;
            let two = stranger(&world, changes_as(|| Answer(200, CHANGED))).await;
            let store = store(&world, &[&one, &two]);
            let changed = store.transaction(guarded()).await;
            assert_eq!(changed.map_err(|error| error.kind()), expected);
            let copies = usize::from(expected != Err(ErrorKind::Changed));
            assert_eq!((one.asked("txn"), two.asked("txn")), (1, copies));
        });
    }
}

/// Would be broken if a change that others were quicker with had an unknown outcome whenever etcd's disk is slow.
#[test]
fn copies_that_have_all_found_another_version_have_changed_nothing() {
    const SLOW: Duration = Duration::from_millis(600);
    run(|world| async move {
        let one = stranger(&world, changes_as(|| Late(SLOW, 200, CHANGED))).await;
        let two = stranger(&world, changes_as(|| Answer(200, CHANGED))).await;
        let store = store(&world, &[&one, &two]);
        let changed = store.transaction(guarded()).await.unwrap_err();
        assert_eq!(changed.kind(), ErrorKind::Changed);
        assert_eq!((one.asked("txn"), two.asked("txn")), (1, 1));
    });
}

/// Would be broken if the change that fills etcd, which is made all the same, counted as not made because another copy has
/// found it.
#[test]
fn a_copy_that_found_the_change_of_a_full_etcd_says_nothing_of_it() {
    run(|world| async move {
        let found = || Late(Duration::from_millis(600), 200, CHANGED);
        let fills = || Late(Duration::from_millis(400), 429, FULL);
        let one = stranger(&world, changes_as(found)).await;
        let two = stranger(&world, changes_as(fills)).await;
        let store = store(&world, &[&one, &two]);
        let unknown = store.transaction(guarded()).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Unavailable);
        assert_eq!((one.asked("txn"), two.asked("txn")), (1, 1));
    });
}

/// Would be broken if the copies of some changes took the places of all requests: while etcd has no leader nothing could be
/// read for seconds, and no lease be kept.
#[test]
fn copies_leave_places_for_other_requests() {
    const CHANGES: usize = 20;
    run(|world| async move {
        let one = stranger(&world, changes_as(|| Silence)).await;
        let two = stranger(&world, changes_as(|| Silence)).await;
        let store = store(&world, &[&one, &two]);
        let changes = join_all((0..CHANGES).map(|_| store.transaction(guarded())));
        let reading = async {
            world.sleep(Duration::from_millis(2500)).await;
            let begun = world.now();
            store.get("key").await.unwrap();
            assert!(world.now() - begun < Duration::from_secs(1));
        };
        let (changed, ()) = join(changes, reading).await;
        assert!(changed.iter().all(Result::is_err));
    });
}

/// Would be broken if a copy that is lost at the member that answered a later one counted as that member's silence: the next
/// request would wait for one that may be dead.
#[test]
fn who_answers_a_copy_is_asked_first_although_an_earlier_one_is_lost_there() {
    run(|world| async move {
        let silent = changes_as(|| Silence);
        let one = stranger(&world, silent).await;
        // It hears of the next leader between the two.
        let asked = AtomicUsize::new(0);
        let two = stranger(&world, move |path| match path {
            "/v3/kv/txn" if asked.fetch_add(1, Ordering::Relaxed) == 0 => Silence,
            path => works(path),
        });
        let two = two.await;
        let three = stranger(&world, silent).await;
        let store = store(&world, &[&one, &two, &three]);
        store.transaction(guarded()).await.unwrap();
        assert_eq!(two.asked("txn"), 2);
        store.get("key").await.unwrap();
        assert_eq!((one.asked("range"), three.asked("range")), (0, 0));
    });
}

#[test]
fn no_more_than_a_few_copies_are_sent() {
    for fault in [|| Silence, || Close] {
        run(|world| async move {
            let one = stranger(&world, changes_as(fault)).await;
            let two = stranger(&world, changes_as(fault)).await;
            let store = store(&world, &[&one, &two]);
            let begun = world.now();
            let unknown = store.transaction(guarded()).await.unwrap_err();
            assert_eq!(unknown.kind(), ErrorKind::Unavailable);
            assert!(world.now() - begun <= Duration::from_secs(6));
            let asked = one.asked("txn") + two.asked("txn");
            assert!((2..=7).contains(&asked), "{asked}");
        });
    }
}

const FULL: &str = r#"{"error":"etcdserver: mvcc: database space exceeded","message":"etcdserver: mvcc: database space exceeded","code":8}"#;
/// The key of [`change`], made.
const MADE: &str = r#"{"header":{"cluster_id":"7","revision":"6"},"kvs":[{"key":"L3Ava2V5","mod_revision":"6","value":"eA=="}]}"#;
/// The mark of the import 1.
const MARKED: &str = r#"{"header":{"cluster_id":"7","revision":"6"},"kvs":[{"key":"L3AvaW1wb3J0ZWQ=","mod_revision":"6","value":"AwE="}]}"#;

/// A member that refuses all changes because it is full, and answers reads so.
fn full(read: AnswersAs) -> impl Fn(&str) -> Reply + Send + Sync + 'static {
    move |path: &str| match path {
        "/v3/kv/txn" => Answer(429, FULL),
        "/v3/kv/range" => read(),
        path => works(path),
    }
}

/// A member makes the change that fills its database, and answers as for those that it refuses from then on. Would be
/// broken if that were taken for not done: an owner would go on with the view of its log that its shard had before.
#[test]
fn a_change_that_a_full_etcd_refuses_is_not_made_only_if_its_key_is_as_it_was() {
    let cases: [(AnswersAs, ErrorKind); 3] = [
        (|| Answer(200, READ), ErrorKind::NoSpace),
        (|| Answer(200, MADE), ErrorKind::Unavailable),
        (|| Silence, ErrorKind::Unavailable),
    ];
    for (read, expected) in cases {
        run(|world| async move {
            let one = stranger(&world, full(read)).await;
            let store = store(&world, &[&one]);
            let refused = store.transaction(change()).await.unwrap_err();
            assert_eq!(refused.kind(), expected, "{refused}");
            assert!(refused.to_string().contains("space exceeded"), "{refused}");
            assert_eq!(one.asked("txn"), 1);
            // Nothing was to be changed, so nothing was.
            let keeps = vec![Change::keep("key", 0), Change::remove("other", 0)];
            let refused = store.transaction(keeps).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
        });
    }
}

#[test]
fn an_import_that_a_full_etcd_refuses_is_done_if_its_mark_is_there() {
    let cases: [(AnswersAs, Option<ErrorKind>); 3] = [
        (|| Answer(200, READ), Some(ErrorKind::NoSpace)),
        (|| Answer(200, MARKED), None),
        (|| Silence, Some(ErrorKind::Unavailable)),
    ];
    for (read, expected) in cases {
        run(|world| async move {
            let one = stranger(&world, full(read)).await;
            let store = store(&world, &[&one]);
            let (id, facts) = (1, vec![("key".to_owned(), "x".into())]);
            let imported = store.import(&Export { id, facts }).await;
            assert_eq!(imported.err().map(|error| error.kind()), expected);
        });
    }
}

#[test]
fn leases_are_revoked_by_one_request_and_granted_and_kept_alive_by_several() {
    run(|world| async move {
        let silent = |path: &str| match path.contains("lease") {
            true => Silence,
            false => works(path),
        };
        let [one, two] = [
            stranger(&world, silent).await,
            stranger(&world, silent).await,
        ];
        let store = store(&world, &[&one, &two]);
        let asked = |what: &str| (one.asked(what), two.asked(what));
        let unknown = store.grant(Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Unavailable);
        let (first, second) = asked("grant");
        assert!(first > 0 && second > 0 && first + second <= 7);
        let unknown = store.revoke(LeaseId(7)).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Unavailable);
        let (first, second) = asked("revoke");
        assert_eq!(first + second, 1);
        let unknown = store.keep_alive(LeaseId(7)).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::Unavailable);
        let (first, second) = asked("keepalive");
        assert!(first > 0 && second > 0);
    });
}

#[test]
fn a_member_that_certainly_did_nothing_is_left_for_the_next() {
    for refuses in [
        || Answer(503, NO_LEADER),
        || {
            Answer(
                200,
                r#"{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}"#,
            )
        },
        || {
            Answer(
                503,
                r#"{"code":14,"message":"etcdserver: rpc not supported for learner"}"#,
            )
        },
        || Answer(404, "404 page not found"),
    ] {
        run(|world| async move {
            let one = stranger(&world, move |path| match path {
                "/v3/maintenance/status" => works(path),
                _ => refuses(),
            });
            let (one, two) = (one.await, stranger(&world, works).await);
            let store = store(&world, &[&one, &two]);
            let kept = store.keep_alive(LeaseId(7)).await.unwrap_err();
            assert_eq!(kept.kind(), ErrorKind::NotFound);
            assert_eq!(store.transaction(change()).await.unwrap(), 6);
            assert_eq!(store.transaction(change()).await.unwrap(), 6);
            assert_eq!(two.asked("txn"), 2);
            assert_eq!(one.asked("keepalive"), 1);
            // The one that works is asked first from now on.
            assert_eq!(one.asked("txn"), 0);
        });
    }
}

#[test]
fn who_is_no_voting_member_of_the_same_recent_etcd_gets_no_requests() {
    for status in [
        "",
        "{}",
        r#"{"header":{"cluster_id":"7"},"version":"3.3.27","leader":"1"}"#,
        r#"{"header":{"cluster_id":"7"},"version":"3","leader":"1"}"#,
        r#"{"header":{"cluster_id":"7"},"version":"3.4.23","leader":"1","isLearner":true}"#,
        r#"{"header":{"cluster_id":"8"},"version":"3.4.23","leader":"1"}"#,
    ] {
        run(|world| async move {
            let right = Arc::new(AtomicUsize::new(0));
            let is_up = right.clone();
            // Goes away after a while, so that the other is asked.
            let one = stranger(&world, move |path| match is_up.load(Ordering::Relaxed) {
                0 => works(path),
                _ => Close,
            });
            let other = move |path: &str| match path {
                "/v3/maintenance/status" => Answer(200, status),
                path => works(path),
            };
            let (one, two) = (one.await, stranger(&world, other).await);
            let store = store(&world, &[&one, &two]);
            store.get("key").await.unwrap();
            right.store(1, Ordering::Relaxed);
            for _ in 0..2 {
                let failed = store.get("key").await.unwrap_err();
                assert_eq!(failed.kind(), ErrorKind::Unavailable);
                // Before it is sent: known not to have happened, and etcd's words say so.
                let failed = store.transaction(change()).await.unwrap_err();
                assert!(
                    failed.to_string().contains("the request wasn't made"),
                    "{failed}"
                );
            }
            assert!(two.asked("status") > 0);
            assert_eq!(two.asked("range") + two.asked("txn"), 0, "{status}");
        });
    }
}

#[test]
fn a_read_that_is_not_answered_is_asked_for_elsewhere_in_time() {
    for fault in [|| Silence, || Close, || Raw(b"SSH-2.0-x\r\n".to_vec())] {
        run(|world| async move {
            let one = stranger(&world, move |path| match path {
                "/v3/kv/range" => fault(),
                path => works(path),
            });
            let (one, two) = (one.await, stranger(&world, works).await);
            let store = store(&world, &[&one, &two]);
            let begun = world.now();
            assert_eq!(store.get("key").await.unwrap().revision, 6);
            assert!(world.now() - begun < Duration::from_secs(2));
            assert_eq!((one.asked("range"), two.asked("range")), (1, 1));
            store.get("key").await.unwrap();
            assert_eq!((one.asked("range"), two.asked("range")), (1, 2));
        });
    }
}

/// Would be broken if an endpoint was left only when a request ended by itself: callers wait for a second, and drop it.
#[test]
fn a_silent_member_is_left_although_its_callers_wait_for_less_than_a_request_may_take() {
    const CALLER: Duration = Duration::from_secs(1);
    run(|world| async move {
        let silent = |path: &str| match path {
            "/v3/maintenance/status" => works(path),
            _ => Silence,
        };
        // What may be asked twice is answered in the caller's time.
        let (one, two) = (
            stranger(&world, silent).await,
            stranger(&world, works).await,
        );
        let reads = store(&world, &[&one, &two]);
        let read = world.timeout(CALLER, reads.get("key")).await;
        assert_eq!(read.unwrap().unwrap().revision, 6);
        // A change isn't; the next one is.
        let changes = store(&world, &[&one, &two]);
        let asked = world.timeout(CALLER, changes.transaction(change())).await;
        assert!(asked.is_err(), "it may have been made");
        let asked = world.timeout(CALLER, changes.transaction(change())).await;
        assert_eq!(asked.unwrap().unwrap(), 6);
        assert_eq!((one.asked("txn"), two.asked("txn")), (1, 1));
        // Nor does a connection that nobody answers hold anybody up.
        let hangs = stranger(&world, |_| Silence).await;
        let reads = store(&world, &[&hangs, &two]);
        let read = world.timeout(CALLER, reads.get("key")).await;
        assert_eq!(read.unwrap().unwrap().revision, 6);
        // Who has asked for a moment only says nothing against anybody.
        let hurried = store(&world, &[&one, &two]);
        for _ in 0..3 {
            let moment = Duration::from_millis(100);
            let asked = world.timeout(moment, hurried.transaction(change())).await;
            assert!(asked.is_err());
        }
        assert_eq!(two.asked("txn"), 1);
    });
}

#[test]
fn when_all_members_are_slow_they_get_more_time_in_the_next_round() {
    run(|world| async move {
        let slow = |asked: Arc<AtomicUsize>| {
            move |path: &str| match path {
                // As a machine that needs a second for a read.
                "/v3/kv/range" if asked.fetch_add(1, Ordering::Relaxed) < 2 => Silence,
                path => works(path),
            }
        };
        let [one, two] = [
            stranger(&world, slow(Arc::default())).await,
            stranger(&world, slow(Arc::default())).await,
        ];
        let begun = world.now();
        let store = store(&world, &[&one, &two]);
        store.get("key").await.unwrap();
        let took = world.now() - begun;
        // 400 ms each, then 800 ms each.
        assert!(took >= Duration::from_millis(2_400), "{took:?}");
    });
}

#[test]
fn another_etcd_than_the_one_that_is_known_gets_no_requests_whoever_answers_first() {
    run(|world| async move {
        let one = stranger(&world, works).await;
        let mut settings = EtcdSettings {
            endpoints: vec![one.endpoint.clone()],
            prefix: "/p/".to_owned(),
            tls: None,
            cluster: Some(8),
        };
        let store = Coordination::etcd(&world, &settings).unwrap();
        let refused = store.get("key").await.unwrap_err().to_string();
        assert!(refused.contains("another etcd"), "{refused}");
        assert_eq!(one.asked("range"), 0);
        settings.cluster = None;
        let store = Coordination::etcd(&world, &settings).unwrap();
        assert_eq!(store.etcd_cluster(), None);
        store.get("key").await.unwrap();
        assert_eq!(store.etcd_cluster(), Some(7));
        // It is known from then on, wherever it is reached.
        let other = r#"{"header":{"cluster_id":"8"},"version":"3.4.23","leader":"1"}"#;
        let two = stranger(&world, move |path| match path {
            "/v3/maintenance/status" => Answer(200, other),
            path => works(path),
        });
        let two = two.await;
        settings.endpoints = vec![two.endpoint.clone()];
        store.reach(&settings).unwrap();
        store.get("key").await.unwrap_err();
        assert_eq!(two.asked("range"), 0);
    });
}

#[test]
fn an_older_state_than_etcd_has_shown_before_is_not_believed() {
    const OLD: &str = r#"{"header":{"cluster_id":"7","revision":"5"}}"#;
    const OLD_DONE: &str = r#"{"header":{"cluster_id":"7","revision":"5"},"succeeded":true}"#;
    run(|world| async move {
        let is_old = Arc::new(AtomicUsize::new(0));
        let goes_back = is_old.clone();
        let one = stranger(&world, move |path| {
            match (goes_back.load(Ordering::Relaxed), path) {
                (1, "/v3/kv/range") => Answer(200, OLD),
                (1, "/v3/kv/txn") => Answer(200, OLD_DONE),
                (_, path) => works(path),
            }
        });
        let (one, two) = (one.await, stranger(&world, works).await);
        let alone = store(&world, &[&one]);
        let both = store(&world, &[&one, &two]);
        for store in [&alone, &both] {
            assert_eq!(store.get("key").await.unwrap().revision, 6);
        }
        is_old.store(1, Ordering::Relaxed);
        let failed = alone.get("key").await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Unavailable);
        assert!(failed.to_string().contains("restored"), "{failed}");
        let failed = alone.transaction(change()).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Unavailable);
        // Another member may know better.
        assert_eq!(both.get("key").await.unwrap().revision, 6);
    });
}

#[test]
fn without_any_answer_a_request_ends_at_its_deadline() {
    run(|world| async move {
        let one = stranger(&world, |_| Silence).await;
        let nobody = stranger(&world, works).await;
        let port = nobody.endpoint.port;
        let mut nobody = nobody;
        // Nobody listens there.
        nobody.endpoint.port = if port < 60_000 {
            port + 1000
        } else {
            port - 1000
        };
        for endpoints in [vec![&one], vec![&nobody], vec![&one, &nobody]] {
            let store = store(&world, &endpoints);
            let begun = world.now();
            let failed = store.get("key").await.unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::Unavailable);
            let failed = store.transaction(change()).await.unwrap_err();
            assert!(
                failed.to_string().contains("the request wasn't made"),
                "{failed}"
            );
            let took = world.now() - begun;
            assert!(took >= Duration::from_secs(9), "{took:?}");
            assert!(took <= Duration::from_secs(11), "{took:?}");
        }
    });
}

#[test]
fn a_connection_that_was_closed_while_it_was_idle_fails_no_request() {
    run(|world| async move {
        let one = stranger(&world, |path| match path {
            "/v3/maintenance/status" => works(path),
            _ => Last(DONE),
        });
        let one = one.await;
        let store = store(&world, &[&one]);
        for _ in 0..5 {
            assert_eq!(store.transaction(change()).await.unwrap(), 6);
            world.sleep(Duration::from_secs(1)).await;
        }
        assert_eq!((one.asked("txn"), one.asked("status")), (5, 5));
    });
}

#[test]
fn connections_are_used_again_and_not_more_are_kept_than_needed() {
    run(|world| async move {
        let one = stranger(&world, works).await;
        let store = store(&world, &[&one]);
        for _ in 0..20 {
            store.get("key").await.unwrap();
        }
        assert_eq!((one.asked("range"), one.asked("status")), (20, 1));
        let many = (0..200).map(|_| store.get("key"));
        let all = futures::future::join_all(many).await;
        assert!(all.iter().all(Result::is_ok));
        // 64, and those that are being closed.
        assert!(one.open.most.load(Ordering::Relaxed) <= 80);
        let before = one.asked("status");
        store.get("key").await.unwrap();
        assert_eq!(one.asked("status"), before);
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(one.open.now.load(Ordering::Relaxed), 8);
    });
}

#[test]
fn watches_beyond_the_maximum_wait_for_others_to_end() {
    run(|world| async move {
        let one = stranger(&world, |path| match path {
            "/v3/watch" => Begin(CREATED),
            path => works(path),
        });
        let one = one.await;
        let store = store(&world, &[&one]);
        let mut watches: Vec<_> = (0..70).map(|_| store.watch("key", 5)).collect();
        for watch in &mut watches {
            assert_eq!(watch.next(Duration::from_millis(10)).await, News::Quiet);
        }
        assert_eq!(one.asked("watch"), 64);
        watches.truncate(3);
        let mut more = store.watch("key", 5);
        assert_eq!(more.next(Duration::from_secs(1)).await, News::Quiet);
        assert_eq!(one.asked("watch"), 65);
    });
}

/// More than is kept of any answer, and what connections buffer.
const BYTES_MAX: usize = 20 << 20;

#[test]
fn an_answer_without_end_fills_no_memory() {
    let line = vec![b'x'; 64 << 10];
    for (begin, more) in [
        (&b"HTTP/1.1 200 OK\r\n\r\n{\"kvs\":\""[..], line.clone()),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n",
            line.clone(),
        ),
        (b"HTTP/1.1 200 OK\r\n", b"x-header: y\r\n".repeat(100)),
        (b"HTTP/1.1 200 OK\r\nx-header: ", line.clone()),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
            b"x-trailer: y\r\n".repeat(100),
        ),
    ] {
        run(|world| {
            let more = more.clone();
            async move {
                let one = stranger(&world, move |path| match path {
                    "/v3/maintenance/status" => works(path),
                    _ => Endless(begin, more.clone()),
                });
                let one = one.await;
                let store = store(&world, &[&one]);
                let begun = world.now();
                let failed = store.transaction(change()).await.unwrap_err();
                assert_eq!(failed.kind(), ErrorKind::Unavailable, "{failed}");
                assert!(world.now() - begun <= Duration::from_secs(6));
                let written = one.written.load(Ordering::Relaxed);
                assert!(written < BYTES_MAX, "{written} bytes were taken");
            }
        });
    }
}

#[test]
fn a_watch_without_end_is_lost_and_fills_no_memory() {
    run(|world| async move {
        let one = stranger(&world, |path| match path {
            "/v3/watch" => Endless(
                b"HTTP/1.1 200 OK\r\n\r\n{\"result\":{",
                vec![b'x'; 64 << 10],
            ),
            path => works(path),
        });
        let one = one.await;
        let mut watch = store(&world, &[&one]).watch("key", 5);
        let news = watch.next(Duration::from_secs(60)).await;
        assert_eq!(news, News::Lost);
        assert_eq!(watch.next(Duration::from_secs(60)).await, News::Lost);
        assert!(one.written.load(Ordering::Relaxed) < BYTES_MAX);
    });
}

#[test]
fn a_watch_that_says_nothing_true_is_begun_again_after_pauses() {
    for fault in [
        || Close,
        || Answer(200, "garbage\n"),
        || Answer(200, ""),
        || Answer(503, NO_LEADER),
        || Raw(vec![0; 1000]),
    ] {
        run(|world| async move {
            let one = stranger(&world, move |path| match path {
                "/v3/watch" => fault(),
                path => works(path),
            });
            let one = one.await;
            let mut watch = store(&world, &[&one]).watch("key", 5);
            assert_eq!(watch.next(Duration::from_secs(60)).await, News::Quiet);
            let asked = one.asked("watch");
            assert!((10..100).contains(&asked), "{asked} times in a minute");
        });
    }
}

const CREATED: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n{\"result\":{\"created\":true}}\n";
const TOLD: &str = "{\"result\":{\"created\":true}}\n{\"result\":{\"events\":[{\"kv\":{\"key\":\
                    \"L3Ava2V5\",\"mod_revision\":\"6\",\"value\":\"eA==\"}}]}}\n";

#[test]
fn a_quiet_watch_moves_on_when_its_member_has_hung_and_stays_when_it_has_not() {
    for hangs in [false, true] {
        run(|world| async move {
            let asked = Arc::new(AtomicUsize::new(0));
            let one = stranger(&world, move |path| match path {
                "/v3/watch" => Begin(CREATED),
                "/v3/maintenance/status" if asked.fetch_add(1, Ordering::Relaxed) > 0 && hangs => {
                    Silence
                }
                path => works(path),
            });
            let two = stranger(&world, |path| match path {
                "/v3/watch" => Answer(200, TOLD),
                path => works(path),
            });
            let (one, two) = (one.await, two.await);
            let mut watch = store(&world, &[&one, &two]).watch("key", 5);
            let news = watch.next(Duration::from_secs(60)).await;
            match hangs {
                true => assert!(
                    matches!(news, News::Changed { revision: 6, .. }),
                    "{news:?}"
                ),
                false => assert_eq!(news, News::Quiet),
            }
            assert_eq!(two.asked("watch") > 0, hangs);
            assert_eq!(one.asked("watch"), 1);
        });
    }
}
