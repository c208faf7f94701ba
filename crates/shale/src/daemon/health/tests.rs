//! Every event: the facts that cause it, its severity, and that it says what to do.

use super::*;
use model::{Error, Timestamp};
use std::path::PathBuf;

/// An arbitrary moment.
fn now() -> world::Instant {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let _inside = runtime.enter();
    world::World::real().now()
}

fn view(nsd: u32) -> NsdView {
    NsdView {
        failure_group: None,
        nsd: NsdId(nsd),
        path: PathBuf::from("/n/1.region"),
        state: NsdState::Active,
        health: Some(NsdHealth::Online),
        refused: None,
        usage: model::nsd::NsdUsage::default(),
        failures: 0,
        read_time: None,
        read_latency: None,
        damage_found: 0,
        rebuilt: 0,
        is_removed: false,
        bytes_read: 0,
        bytes_written: 0,
    }
}

fn well() -> Facts {
    Facts {
        nsds: vec![view(1), view(2)],
        tolerance: 1,
        repair: metanode::RepairStatus::default(),
        space: pool::PoolUsage {
            capacity: 1000,
            available_to_users: 500,
            ..pool::PoolUsage::default()
        },
        unfreed: 0,
        pieces_mended: 0,
        metadata: None,
        lost: client::Losses::default(),
        mounts: MountFacts::default(),
        left_in_directory: None,
        left_for_etcd: None,
        clock_lag: Duration::ZERO,
        waiting: Vec::new(),
        cluster: None,
        now: now(),
        wall: Timestamp(1_000_000_000_000),
    }
}

/// The only event of these facts.
#[track_caller]
fn only(facts: &Facts) -> HealthEvent {
    let health = History::default().judge(facts);
    assert_eq!(health.events.len(), 1, "{:?}", health.events);
    let event = health.events[0].clone();
    assert!(event.remedy.len() > 10 && !event.subject.is_empty());
    let expected = if event.severity == CRITICAL {
        "critical"
    } else {
        "degraded"
    };
    assert_eq!(health.state, expected);
    event
}

#[test]
fn a_full_disk_under_the_directory_is_told_before_it_is_full() {
    let with = |left: u64| {
        let mut facts = well();
        facts.mounts.dir = "/var/lib/shale".into();
        facts.left_in_directory = Some(left);
        facts
    };
    let nearly = only(&with(100 << 20));
    assert_eq!(nearly.severity, WARNING);
    assert!(nearly.message.contains("nearly full: 100 MiB are left"));
    for left in [0, 10 << 20] {
        let full = only(&with(left));
        assert_eq!(full.severity, CRITICAL);
        assert!(full.message.starts_with("its disk is full: "));
        assert_eq!(full.subject, "directory /var/lib/shale");
        assert!(full.remedy.contains("`df -h /var/lib/shale`"));
        assert!(full.remedy.contains("more than 128 MiB are left"));
    }
    assert_eq!(History::default().judge(&with(1 << 30)).state, "healthy");
}

#[test]
fn a_full_disk_of_etcds_own_is_told_beside_that_of_the_directory() {
    let mut facts = well();
    facts.mounts.dir = "/var/lib/shale".into();
    facts.left_in_directory = Some(1 << 30);
    facts.left_for_etcd = Some(1 << 20);
    let full = only(&facts);
    assert_eq!(full.subject, "directory /var/lib/shale/etcd");
    assert!(full.message.contains("member of etcd ends"));
    facts.left_for_etcd = Some(1 << 30);
    assert_eq!(History::default().judge(&facts).state, "healthy");
    // A folder on the disk of its directory isn't told twice, and one that isn't there not at all.
    let home = tempfile::tempdir().unwrap();
    assert_eq!(left_apart(home.path(), home.path()), None);
    assert_eq!(left_apart(home.path(), &home.path().join("etcd")), None);
    let elsewhere = std::path::Path::new("/proc");
    assert_eq!(left_apart(home.path(), elsewhere), left_in(elsewhere));
    assert!(left_in(elsewhere).is_some());
}

/// Would be broken if each piece that comes to an NSD at the brink, or leaves it, were an event: soon no others would be kept.
#[test]
fn an_nsd_that_was_full_is_so_until_there_is_room_for_more() {
    let (history, mut facts) = (History::default(), well());
    facts.nsds[0].usage.capacity = 512 << 20;
    let told = |mib: u64| {
        facts.nsds[0].usage.available = mib << 20;
        history.judge(&facts).events.len()
    };
    let told = [9, 6, 9, 15, 16, 9, 6].map(told);
    assert_eq!(told, [0, 1, 1, 1, 0, 0, 1]);
}

#[test]
fn nothing_wrong_is_healthy() {
    let health = History::default().judge(&well());
    assert_eq!((health.state.as_str(), health.events.len()), ("healthy", 0));
}

#[test]
fn each_trouble_of_an_nsd_has_its_word_and_its_remedy() {
    for (kind, word, first) in [
        (ErrorKind::NotFound, "missing", "bring the file"),
        (ErrorKind::ReadOnly, "read-only", "make it writable"),
        (
            ErrorKind::AccessDenied,
            "not accessible",
            "change its rights",
        ),
        (ErrorKind::NotSupported, "newer version", "upgrade"),
        (ErrorKind::InvalidArgument, "refused", "right region"),
        (ErrorKind::Busy, "in use", "end what uses it"),
        (ErrorKind::Unavailable, "failed", "smartctl"),
    ] {
        let mut facts = well();
        facts.nsds[0].health = None;
        facts.nsds[0].refused = Some(Error::new(kind, "because"));
        let event = only(&facts);
        assert!(event.message.contains(word) && event.message.contains("because"));
        assert!(event.remedy.contains(first) && event.remedy.contains("shale nsd open 1"));
        assert_eq!(event.severity, WARNING);
        facts.tolerance = 0;
        assert_eq!(only(&facts).severity, CRITICAL, "more than is tolerated");
        facts.nsds[0].state = NsdState::Lost;
        assert_eq!(
            History::default().judge(&facts).state,
            "healthy",
            "given up"
        );
    }
    let mut facts = well();
    facts.nsds[0].health = Some(NsdHealth::Failed);
    assert!(only(&facts).message.contains("disk reported errors"));
    facts.nsds[0].health = Some(NsdHealth::Full);
    assert!(only(&facts).message.contains("full"));
    // It serves, and a block's piece doesn't fit any more.
    facts.nsds[0] = view(1);
    facts.nsds[0].usage.capacity = 512 << 20;
    facts.nsds[0].usage.available = 6 << 20;
    assert!(only(&facts).message.contains("full"));
    facts.nsds[0].usage.available = 9 << 20;
    assert_eq!(History::default().judge(&facts).state, "healthy");
    facts.nsds[0] = NsdView {
        is_removed: true,
        ..view(1)
    };
    assert!(only(&facts).message.contains("removed while in use"));
    assert_eq!(only(&facts).severity, WARNING, "the others have it, too");
    facts.tolerance = 0;
    assert_eq!(only(&facts).severity, CRITICAL);
}

/// NSDs with these read times in milliseconds: without and with queueing.
fn paced(times: &[(u64, u64)]) -> Facts {
    let mut facts = well();
    let views = times
        .iter()
        .enumerate()
        .map(|(index, (time, latency))| NsdView {
            read_time: Some(Duration::from_millis(*time)),
            read_latency: Some(Duration::from_millis(*latency)),
            ..view(index as u32 + 1)
        });
    facts.nsds = views.collect();
    facts
}

#[test]
fn an_nsd_is_slow_beside_the_others_and_busy_for_itself() {
    let slow = only(&paced(&[(2, 30), (2, 30), (80, 300), (3, 30)]));
    assert!(slow.subject.starts_with("NSD 3 ("));
    assert!(slow.message.contains("taken 80 ms") && slow.message.contains("2.0 ms"));
    assert!(slow.remedy.contains("shale nsd remove 3"));
    assert_eq!(slow.severity, WARNING);
    // Under load all of them are late, or the only one is; fast NSDs may differ.
    for times in [
        &[(90, 900), (100, 1000), (200, 2000)][..],
        &[(400, 9000)],
        &[(1, 10), (9, 60)],
    ] {
        let health = History::default().judge(&paced(times));
        assert_eq!(health.state, "healthy", "{:?}", health.events);
        for event in &health.events {
            assert_eq!(event.severity, HINT);
            assert!(event.message.contains("busy") && !event.remedy.contains("remove"));
        }
        let busy = times.iter().filter(|(_, latency)| *latency > 500).count();
        assert_eq!(health.events.len(), busy);
    }
    // An NSD that doesn't serve has its own event and isn't judged slow.
    let mut facts = paced(&[(2, 30), (2, 30), (80, 300)]);
    facts.nsds[2].state = NsdState::Lost;
    assert_eq!(History::default().judge(&facts).events.len(), 0);
}

#[test]
fn failed_requests_of_an_nsd_that_serves_are_told_for_ten_minutes() {
    let history = History::default();
    let mut facts = well();
    facts.nsds[1].failures = 3;
    let events = history.judge(&facts).events;
    assert_eq!((events.len(), events[0].severity.as_str()), (1, WARNING));
    assert!(events[0].message.contains("failed 3 requests"));
    facts.now = facts.now + FAILURES_TOLD_FOR;
    facts.wall = Timestamp(facts.wall.0 + FAILURES_TOLD_FOR.as_nanos() as i64);
    assert_eq!(history.judge(&facts).state, "healthy");
}

/// Two NSDs: that of this node, and one of node 3 with this standing.
fn with_home(absence: Option<Absence>) -> Facts {
    let home = HomeFacts {
        node: 3,
        name: Some("n3".into()),
        absence,
    };
    Facts {
        cluster: Some(ClusterFacts {
            has_lease: true,
            has_manager: true,
            homes: BTreeMap::from([(NsdId(2), home)]),
            ..ClusterFacts::default()
        }),
        ..well()
    }
}

/// Would be broken if people were sent to look at a disk whose node had died, or still were when it serves again.
#[test]
fn an_nsd_whose_node_is_away_is_told_with_the_node_until_it_serves_again() {
    let history = History::default();
    let died = || Some(Absence::Expelled("its daemon has ended".into()));
    let mut facts = with_home(died());
    // What was heard of it last is some seconds old, and its disk had failed requests before.
    facts.nsds[1].failures = 2;
    let told = |facts: &Facts| {
        let health = history.judge(facts);
        assert_eq!(health.events.len(), 1, "{:?}", health.events);
        health.events[0].clone()
    };
    told(&facts);
    facts.now = facts.now + Duration::from_secs(14);
    facts.wall = Timestamp(facts.wall.0 + 14_000_000_000);
    facts.nsds[1].health = None;
    let event = told(&facts);
    let said = "away: node 3 (n3) has been away for 14 s: its daemon has ended";
    assert_eq!(event.message, said);
    assert_eq!(event.severity, WARNING);
    assert!(event.remedy.contains("`shale up` there"), "{event:?}");
    let looks = ["smartctl", "dmesg", "shale nsd open"];
    let sends_to_the_disk = looks.iter().any(|look| event.remedy.contains(look));
    assert!(!sends_to_the_disk, "{event:?}");
    facts.tolerance = 0;
    assert_eq!(told(&facts).severity, CRITICAL);
    // Its disk failed nothing since, and serves.
    let mut back = with_home(None);
    back.now = facts.now + FAILURES_TOLD_FOR;
    back.wall = Timestamp(facts.wall.0 + FAILURES_TOLD_FOR.as_nanos() as i64);
    assert_eq!(history.judge(&back).events, []);
    // The next time is another one.
    let mut again = with_home(died());
    (again.now, again.wall) = (back.now, back.wall);
    assert!(told(&again).message.contains("for 0 s"));
}

#[test]
fn an_nsd_that_is_away_says_what_its_node_needs() {
    for (absence, said, remedy) in [
        (Some(Absence::Left), "it was stopped", "`shale up` there"),
        (Some(Absence::Barred), "by hand", "`shale node unexpel 3`"),
        (None, "is up and hasn't said", "`shale health --node 3`"),
    ] {
        let mut facts = with_home(absence);
        facts.nsds[1].health = None;
        let event = only(&facts);
        assert!(event.message.contains("node 3 (n3)"), "{event:?}");
        assert!(event.message.contains(said), "{event:?}");
        assert!(event.remedy.contains(remedy), "{event:?}");
        facts.cluster = None;
        let event = only(&facts);
        assert!(
            event.remedy.contains("start that node's daemon"),
            "{event:?}"
        );
    }
}

#[test]
fn an_expelled_node_is_told_with_what_brings_it_back_or_removes_it() {
    let event = only(&Facts {
        cluster: Some(ClusterFacts {
            has_lease: true,
            has_manager: true,
            expelled: vec![(3, "its daemon has ended".into())],
            ..ClusterFacts::default()
        }),
        ..well()
    });
    assert_eq!(event.severity, WARNING);
    assert_eq!(event.subject, "node 3");
    for command in ["`shale up`", "`shale node remove 3`"] {
        assert!(event.remedy.contains(command), "{event:?}");
    }
}

#[test]
fn data_that_cannot_be_read_is_critical_with_its_files_names() {
    let mut facts = well();
    let names: Vec<String> = (0..7).map(|number| format!("/d/{number}")).collect();
    let mut unreadable = metanode::UnreadableData {
        segments: 12,
        has_more: false,
        files: 7,
        names,
        is_named: true,
    };
    facts.repair.unreadable = unreadable.clone();
    let event = only(&facts);
    assert_eq!(
        (event.severity.as_str(), event.subject.as_str()),
        (CRITICAL, "data")
    );
    let said = "7 files can't be read: /d/0, /d/1, /d/2, /d/3, /d/4 and 2 more";
    assert_eq!(event.message, said);
    assert!(event.remedy.contains("backup") && event.remedy.contains("shale fs check"));
    unreadable.has_more = true;
    facts.repair.unreadable = unreadable;
    assert!(only(&facts).message.starts_with("at least 7 files"));
    facts.repair.unreadable = metanode::UnreadableData {
        segments: 3,
        ..Default::default()
    };
    assert!(only(&facts).message.contains("3 segments can't be read"));
    facts.repair.unreadable = metanode::UnreadableData {
        has_more: true,
        ..Default::default()
    };
    assert!(
        only(&facts)
            .message
            .contains("not all of them were looked at again")
    );
}

#[test]
fn space_is_told_from_ninety_percent_on_and_when_it_is_gone() {
    for (left, word, severity) in [
        (100, "90 %", WARNING),
        (15, "98 %", WARNING),
        (14, "full: only 14 B are left", CRITICAL),
        (0, "full: writes are refused", CRITICAL),
    ] {
        let mut facts = well();
        facts.space.available_to_users = left;
        let event = only(&facts);
        assert!(event.message.contains(word), "{}", event.message);
        assert_eq!(event.severity, severity);
    }
    // Space waiting to be freed is still available: no write is refused while freeing makes
    // progress.
    let mut facts = well();
    facts.space.available_to_users = 0;
    // Counted before most of it was freed.
    (facts.space.used, facts.unfreed) = (50, 600);
    let event = only(&facts);
    let said = ["full for the moment", "more of the 50 B"];
    let says_all = said.iter().all(|part| event.message.contains(part));
    assert!(says_all, "{}", event.message);
    assert_eq!(event.severity, WARNING);
    let mut facts = well();
    facts.space.available_to_users = 110;
    assert_eq!(History::default().judge(&facts).state, "healthy");
    // A huge pool with a little left isn't called 100 % used.
    facts.space.capacity = 1 << 60;
    facts.space.available_to_users = 1 << 30;
    assert!(only(&facts).message.contains("99 %"));
}

#[test]
fn space_that_waits_to_be_freed_is_told_when_it_is_most_of_what_is_used() {
    let mut facts = well();
    facts.space.used = 400;
    facts.unfreed = 150;
    assert_eq!(History::default().judge(&facts).events, []);
    facts.unfreed = 300;
    let health = History::default().judge(&facts);
    let [told] = &health.events[..] else {
        panic!("{:?}", health.events);
    };
    assert!(
        told.message.contains("300 B of the 400 B"),
        "{}",
        told.message
    );
    // Nothing is wrong: the space will be freed without the user.
    assert_eq!(health.state, "healthy");
    // The two are counted a moment apart.
    facts.unfreed = 500;
    let message = &History::default().judge(&facts).events[0].message;
    assert!(message.contains("400 B of the 400 B"), "{message}");
}

#[test]
fn lost_redundancy_data_metadata_and_mount_are_told_worst_first() {
    let mut facts = well();
    facts.repair.segments_degraded = 3;
    assert!(only(&facts).message.contains("3 segments lack pieces"));
    facts.repair = metanode::RepairStatus {
        log_copies_wanted: 2,
        log_copies: 1,
        ..Default::default()
    };
    assert!(only(&facts).message.contains("on 1 NSDs"));
    facts.repair = metanode::RepairStatus {
        narrow: true,
        ..Default::default()
    };
    assert!(only(&facts).message.contains("fewer copies"));
    facts.metadata = Some(Error::new(ErrorKind::Unavailable, "no NSD"));
    facts.mounts.lost = Some("/mnt".into());
    let events = History::default().judge(&facts).events;
    let severities: Vec<_> = events.iter().map(|event| event.severity.as_str()).collect();
    assert_eq!(severities, [CRITICAL, WARNING, WARNING]);
}

#[test]
fn damage_is_counted_over_openings_of_an_nsd_and_told_for_a_day() {
    let history = History::default();
    let mut facts = well();
    facts.nsds[1].damage_found = 2;
    history.note(&facts);
    facts.nsds[1].damage_found = 0;
    history.note(&facts);
    facts.nsds[1].damage_found = 3;
    facts.pieces_mended = 4;
    let events = history.judge(&facts).events;
    assert!(
        events[0].message.contains("found 5 times"),
        "{}",
        events[0].message
    );
    assert!(events[0].message.contains("4 pieces were replaced"));
    facts.now = facts.now + TOLD_FOR;
    facts.wall = Timestamp(facts.wall.0 + TOLD_FOR.as_nanos() as i64);
    assert_eq!(history.judge(&facts).state, "healthy");
}

#[test]
fn a_lost_session_is_told_for_a_day() {
    let history = History::default();
    let mut facts = well();
    facts.lost.sessions = 2;
    facts.lost.files_with_locks = 3;
    let event = history.judge(&facts).events[0].clone();
    assert_eq!(event.severity, WARNING);
    assert!(
        event.message.contains("session 2 times"),
        "{}",
        event.message
    );
    assert!(
        event.message.contains("locks on 3 files"),
        "{}",
        event.message
    );
    facts.now = facts.now + TOLD_FOR;
    facts.wall = Timestamp(facts.wall.0 + TOLD_FOR.as_nanos() as i64);
    assert_eq!(history.judge(&facts).state, "healthy");
}

/// Would be broken if only the first of several sessions that are lost on a day were an event.
#[test]
fn each_session_that_is_lost_is_told_once_with_what_is_gone() {
    let none = client::Losses::default();
    let first = client::Losses {
        sessions: 1,
        files_with_data: 2,
        ..none
    };
    let second = client::Losses {
        sessions: 2,
        files_with_locks: 3,
        ..first
    };
    assert_eq!(newly_lost(&none, &none), None);
    for (before, now, gone) in [
        (none, first, "written data of 2 files, locks on 0 files"),
        (first, second, "written data of 0 files, locks on 3 files"),
    ] {
        let told = newly_lost(&before, &now).unwrap();
        assert!(told.contains(gone), "{told}");
        assert_eq!(newly_lost(&now, &now), None);
    }
}

#[test]
fn a_clock_that_is_set_back_is_told() {
    let history = History::default();
    let mut facts = well();
    history.note(&facts);
    facts.now = facts.now + Duration::from_secs(10);
    facts.wall = Timestamp(facts.wall.0 + 9_500_000_000);
    assert_eq!(
        history.judge(&facts).state,
        "healthy",
        "it is being adjusted"
    );
    facts.wall = Timestamp(facts.wall.0 - 100_000_000_000);
    let events = history.judge(&facts).events;
    assert!(
        events[0].message.contains("set back by 100 s"),
        "{}",
        events[0].message
    );
    let mut facts = well();
    facts.clock_lag = Duration::from_secs(3600);
    assert!(only(&facts).message.contains("3600 s behind"));
}

#[test]
fn a_mount_that_could_not_be_made_yet_is_reported_with_the_reason() {
    let mut facts = well();
    facts.mounts.missing = Some(("/mnt/shale".into(), "no owner answers".into()));
    let event = only(&facts);
    assert_eq!(
        (event.severity.as_str(), event.subject.as_str()),
        ("warning", "mount /mnt/shale")
    );
    assert!(event.message.contains("no owner answers"), "{event:?}");
    assert!(event.remedy.contains("shale node list"), "{event:?}");
}

#[test]
fn a_mount_that_stays_dead_is_reported_with_the_reason_and_what_to_do() {
    let mut facts = well();
    facts.mounts.dir = "/node".into();
    facts.mounts.dead = vec![("/mnt/shale".into(), "no owner answers".into())];
    let event = only(&facts);
    assert_eq!(
        (event.severity.as_str(), event.subject.as_str()),
        ("warning", "mount /mnt/shale")
    );
    assert!(event.message.contains("no owner answers"), "{event:?}");
    let unmount = "shale umount --dir /node /mnt/shale";
    assert!(event.remedy.contains(unmount), "{event:?}");
}

#[test]
fn lost_members_of_etcd_a_full_one_and_its_complaints_are_reported() {
    let with = |etcd: EtcdFacts| Facts {
        cluster: Some(ClusterFacts {
            has_lease: true,
            has_manager: true,
            etcd: Some(etcd),
            ..ClusterFacts::default()
        }),
        ..well()
    };
    let members = |away: usize| {
        let member = |at: usize| {
            let trouble = (at < away).then(|| "nobody listens".to_string());
            (format!("https://10.0.0.{at}:7312"), trouble)
        };
        EtcdFacts {
            members: (0..3).map(member).collect(),
            ..EtcdFacts::default()
        }
    };
    assert!(
        History::default()
            .judge(&with(members(0)))
            .events
            .is_empty()
    );
    for (away, severity) in [(1, "warning"), (2, "critical")] {
        let event = only(&with(members(away)));
        assert_eq!(event.severity, severity);
        assert!(
            event
                .message
                .contains("https://10.0.0.0:7312 (nobody listens)"),
            "{event:?}"
        );
    }
    let full = EtcdFacts {
        is_full: true,
        ..members(0)
    };
    assert!(only(&with(full)).message.contains("full"));
    let complains = EtcdFacts {
        complaints: vec!["https://10.0.0.1:7312: its data differ".into()],
        ..members(0)
    };
    let event = only(&with(complains));
    assert_eq!(event.severity, "critical");
    assert!(event.message.contains("its data differ"), "{event:?}");
}

#[test]
fn unprotected_connections_and_keys_that_are_being_replaced_are_reported() {
    let with = |takes_plain, rotates, trouble: Option<&str>| Facts {
        cluster: Some(ClusterFacts {
            has_lease: true,
            has_manager: true,
            takes_plain,
            rotates,
            security_trouble: trouble.map(str::to_owned),
            ..ClusterFacts::default()
        }),
        ..well()
    };
    let health = History::default().judge(&with(false, false, None));
    assert!(health.events.is_empty());
    let event = only(&with(true, false, None));
    assert_eq!(event.severity, "warning");
    assert!(event.remedy.contains("cipher_list AUTHONLY"), "{event:?}");
    let health = History::default().judge(&with(false, true, None));
    assert_eq!(health.state, "healthy", "all is well meanwhile");
    let [event] = &health.events[..] else {
        panic!("{:?}", health.events);
    };
    assert_eq!(event.severity, "hint");
    assert!(event.remedy.contains("--finish"), "{event:?}");
    // Afterwards, until nobody trusts the old authority.
    let mut over = with(false, false, None);
    let cluster = over.cluster.as_mut().unwrap();
    cluster.still_trusting = (1..=7)
        .map(|node| format!("node {node} (n{node}, down)"))
        .collect();
    let health = History::default().judge(&over);
    assert_eq!(health.state, "healthy");
    let [event] = &health.events[..] else {
        panic!("{:?}", health.events);
    };
    assert_eq!(event.severity, "hint");
    let named = "node 5 (n5, down) and 2 more";
    assert!(event.message.contains(named), "{event:?}");
    assert!(event.remedy.contains("shale node remove"), "{event:?}");
    let event = only(&with(false, false, Some("nobody answers")));
    assert_eq!(
        (event.severity.as_str(), event.subject.as_str()),
        ("warning", "keys")
    );
    assert!(event.message.contains("nobody answers"), "{event:?}");
}

/// Would be broken if people were told of everything that isn't there any more.
#[test]
fn a_node_of_a_cluster_that_is_being_stopped_says_so_and_nothing_else() {
    let by = model::NodeRun {
        node: model::NodeId(4),
        incarnation: 1,
    };
    let with = |stage| {
        // It has no lease, and nobody is the manager.
        let cluster = ClusterFacts {
            stop: Some(Stop {
                by,
                stage,
                is_orphaned: false,
            }),
            unowned: vec![0],
            ..ClusterFacts::default()
        };
        Facts {
            cluster: Some(cluster),
            ..well()
        }
    };
    let stages = [
        (Stage::Unmounted, "the mounts here have ended"),
        (Stage::Ends, "ends"),
    ];
    for (stage, said) in stages {
        let event = only(&with(stage));
        assert_eq!(event.severity, WARNING);
        assert!(event.message.contains("node 4 stops the"), "{event:?}");
        assert!(event.message.contains(said), "{event:?}");
        assert!(event.remedy.contains("shale cluster stop"), "{event:?}");
    }
    // Once it goes on, people must hear of all else that is in the way.
    let health = History::default().judge(&with(Stage::GoesOn));
    let events = health.events.iter();
    let messages: Vec<_> = events.map(|event| event.message.as_str()).collect();
    assert!(messages.len() > 1, "{messages:?}");
    let is_said = |what: &str| messages.iter().any(|message| message.contains(what));
    assert!(is_said("being made again"), "{messages:?}");
    assert!(is_said("no lease"), "{messages:?}");
}

#[test]
fn a_certificate_that_could_not_be_renewed_is_reported_before_it_ends() {
    let with = |days: i64, trouble: Option<&str>| Facts {
        cluster: Some(ClusterFacts {
            has_lease: true,
            has_manager: true,
            certificate: Some(CertificateFacts {
                seconds_left: days * 24 * 60 * 60,
                is_due: days < 243,
                trouble: trouble.map(str::to_owned),
            }),
            ..ClusterFacts::default()
        }),
        ..well()
    };
    let healthy = [(700, None), (200, None), (700, Some("from earlier"))];
    for (days, trouble) in healthy {
        let health = History::default().judge(&with(days, trouble));
        assert!(health.events.is_empty(), "{:?}", health.events);
    }
    let why = Some("nobody answers");
    for (days, severity, said) in [
        (200, "warning", "ends in 200 days"),
        (29, "critical", "ends in 29 days"),
        (1, "critical", "ends in 24 hours"),
        (-1, "critical", "has ended"),
    ] {
        let event = only(&with(days, why));
        assert_eq!(event.severity, severity);
        assert!(event.message.contains(said), "{event:?}");
        assert!(event.message.contains("nobody answers"), "{event:?}");
    }
}

#[test]
fn programs_that_wait_for_long_are_reported_but_not_those_that_wait_for_locks() {
    let request = |request, seconds| WaitingRequest {
        request,
        inode: model::InodeId(5),
        pid: 77,
        since: Duration::from_secs(seconds),
        errand: world::Errand::NONE,
    };
    let with = |waiting: Vec<WaitingRequest>| Facts { waiting, ..well() };
    let short = with(vec![request("READ", 29), request("SETLKW", 4_000)]);
    assert!(History::default().judge(&short).events.is_empty());
    let long = with(vec![
        request("READ", 31),
        request("WRITE", 42),
        request("SETLKW", 4_000),
    ]);
    let event = only(&long);
    assert_eq!(
        (event.severity.as_str(), event.subject.as_str()),
        (WARNING, "programs")
    );
    assert!(event.message.starts_with("2 requests"), "{event:?}");
    assert!(
        event.message.contains("42 s: WRITE of process 77"),
        "{event:?}"
    );
    assert!(event.remedy.contains("shale waiters"), "{event:?}");
}

/// Would be broken if nobody were told why programs hang while their node becomes a cluster's.
#[test]
fn requests_that_are_held_are_told_with_what_can_be_done() {
    let mut facts = well();
    facts.mounts.held = Some("etcd is away");
    let event = only(&facts);
    assert_eq!(
        (event.severity.as_str(), event.subject.as_str()),
        (WARNING, "programs")
    );
    assert!(event.message.ends_with(": etcd is away"), "{event:?}");
    // The same if nothing else is known.
    let health = while_held("etcd is away");
    assert_eq!(health.state, "degraded");
    assert_eq!(health.events, [event]);
}
