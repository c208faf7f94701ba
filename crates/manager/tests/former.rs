//! How long the manager before is waited for.

use manager::{Action, Event, Manager, Moment, Resigned, Start};
use model::member::{Heartbeat, HeartbeatReply, Member, Membership, Role, Standing, Term, Verdict};
use model::{NodeId, NodeRun};
use std::time::Duration;

fn run(node: u32) -> NodeRun {
    NodeRun {
        node: NodeId(node),
        incarnation: 1,
    }
}

/// So many milliseconds after the second manager began.
fn after(milliseconds: u64) -> Moment {
    Moment(Duration::from_millis(100_000 + milliseconds))
}

/// Node 2 follows node 1 as the manager, and has stored its term at once. Node 1 has kept the place so long ago at least.
fn second(former_kept: Duration) -> Manager {
    let member = |node| Member {
        run: run(node),
        may_own: true,
        standing: Standing::In,
        nsds_away: false,
    };
    let record = Membership {
        term: Term(1),
        manager: Some(run(1)),
        members: [1, 2].map(|node| (NodeId(node), member(node))).into(),
        plan: None,
    };
    let start = Start {
        own: run(2),
        own_until: after(60_000),
        former_kept,
        record,
        version: 5,
        shards: Vec::new(),
        newest: Vec::new(),
        roles: manager::Roles::default(),
        dead: None,
    };
    let (mut manager, actions) = Manager::begin(start, after(0));
    assert!(matches!(actions[..], [Action::Store { .. }]));
    manager.on(Event::Stored(6), after(0));
    manager
}

fn expels_first(manager: &mut Manager, now: Moment) -> bool {
    let actions = manager.on(Event::Tick, now);
    let mut stored = actions.iter().filter_map(|action| match action {
        Action::Store { record, .. } => Some(record),
        _ => None,
    });
    stored.any(|record| record.has_ended(run(1)))
}

/// Would be broken if the rest of its lease were waited for longer than it can last, or not to its end.
#[test]
fn the_manager_before_is_expelled_when_its_lease_has_ended_since_it_kept_its_place() {
    for (kept_ago, rest) in [(1_000, 5_316), (4_000, 2_316), (4_750, 1_566)] {
        let mut manager = second(Duration::from_millis(kept_ago));
        assert!(!expels_first(&mut manager, after(rest - 10)), "{kept_ago}");
        assert!(expels_first(&mut manager, after(rest + 10)), "{kept_ago}");
    }
}

/// Would be broken if a manager that lives, and whose place was taken long after it was doubted, weren't waited for at all.
#[test]
fn the_manager_before_has_time_to_be_heard_however_long_ago_it_kept_its_place() {
    for kept_ago in [5, 6, 7, 60] {
        let mut silent = second(Duration::from_secs(kept_ago));
        assert!(!expels_first(&mut silent, after(1_490)), "{kept_ago}");
        assert!(expels_first(&mut silent, after(1_510)), "{kept_ago}");

        let mut heard = second(Duration::from_secs(kept_ago));
        let heartbeat = Heartbeat {
            role: Role::Owner,
            is_leaving: false,
            knows: 6,
            hosts: Vec::new(),
        };
        let from = run(1);
        let renewed = Action::Answer {
            to: from,
            reply: HeartbeatReply {
                term: Term(2),
                verdict: Verdict::Renewed,
            },
        };
        let event = Event::Heartbeat { from, heartbeat };
        assert_eq!(heard.on(event, after(1_400)), [renewed]);
        assert!(!expels_first(&mut heard, after(6_000)), "{kept_ago}");
    }
}

/// Would be broken if whoever keeps the place on a thread of its own had to do the manager's work there, or if that were
/// forgotten.
#[test]
fn keeping_the_place_begins_nothing_and_what_is_due_is_done_at_the_next_tick() {
    let mut manager = second(Duration::from_secs(1));
    let keep = |manager: &mut Manager, now| manager.on(Event::OwnLease(after(120_000)), now);
    // Node 1 is to be expelled.
    assert_eq!(keep(&mut manager, after(5_400)), []);
    assert!(expels_first(&mut manager, after(5_400)));
    // Its first time is over, and it goes on. The answer of coordination isn't there yet.
    assert_eq!(manager.on(Event::Tick, after(60_000)), []);
    assert_eq!(keep(&mut manager, after(120_000)), []);
    let over = manager.on(Event::Tick, after(120_000));
    assert_eq!(over, [Action::Resign(Resigned::LeaseOver)]);
}
