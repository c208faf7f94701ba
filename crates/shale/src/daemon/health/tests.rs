//! Every event: from which facts, how bad, and that it says what to do.

use super::*;
use model::{Error, Timestamp};
use std::path::PathBuf;

/// Any moment.
fn now() -> world::Instant {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let _inside = runtime.enter();
    world::World::real().now()
}

fn view(nsd: u32) -> NsdView {
    NsdView {
        nsd: NsdId(nsd),
        path: PathBuf::from("/n/1.region"),
        state: NsdState::Active,
        health: Some(NsdHealth::Online),
        refused: None,
        usage: model::nsd::NsdUsage::default(),
        is_suspect: false,
        read_latency: Duration::ZERO,
        damage_found: 0,
        rebuilt: 0,
        is_removed: false,
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
        pieces_mended: 0,
        metadata: None,
        mounts: MountFacts::default(),
        clock_lag: Duration::ZERO,
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
    facts.nsds[0] = NsdView {
        is_suspect: true,
        ..view(1)
    };
    assert!(only(&facts).message.contains("slow"));
    facts.nsds[0] = NsdView {
        read_latency: Duration::from_secs(1),
        ..view(1)
    };
    assert!(only(&facts).message.contains("1000 ms"));
    facts.nsds[0] = NsdView {
        is_removed: true,
        ..view(1)
    };
    assert!(only(&facts).message.contains("removed while in use"));
}

#[test]
fn space_is_told_from_ninety_percent_on_and_when_it_is_gone() {
    for (left, word, severity) in [
        (100, "90 %", WARNING),
        (1, "100 %", WARNING),
        (0, "full", CRITICAL),
    ] {
        let mut facts = well();
        facts.space.available_to_users = left;
        let event = only(&facts);
        assert!(event.message.contains(word), "{}", event.message);
        assert_eq!(event.severity, severity);
    }
    let mut facts = well();
    facts.space.available_to_users = 110;
    assert_eq!(History::default().judge(&facts).state, "healthy");
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
        events[0].message.contains("met 5 times"),
        "{}",
        events[0].message
    );
    assert!(events[0].message.contains("4 pieces were replaced"));
    facts.now = facts.now + TOLD_FOR;
    facts.wall = Timestamp(facts.wall.0 + TOLD_FOR.as_nanos() as i64);
    assert_eq!(history.judge(&facts).state, "healthy");
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
