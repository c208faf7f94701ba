//! Nodes that were removed: their places among the members are for others, and their runs never join again.

use manager::{Action, Event, Manager, Moment, Roles, Start};
use model::member::{Heartbeat, MEMBERS_MAX, Member, Membership, Role, Standing, Term, Verdict};
use model::{NodeId, NodeRun};
use std::collections::BTreeSet;
use std::time::Duration;

const NODES: u32 = MEMBERS_MAX as u32;
/// The runs of these are over.
const GONE: u32 = 7;
const GONE_TOO: u32 = 9;
/// One that wants to join.
const NEW: u32 = NODES + 1;

fn run(node: u32) -> NodeRun {
    NodeRun {
        node: NodeId(node),
        incarnation: 1,
    }
}

/// So many milliseconds after the manager began.
fn after(milliseconds: u64) -> Moment {
    Moment(Duration::from_millis(100_000 + milliseconds))
}

/// A manager that knows as many nodes as there can be. All are members but two, which have left.
fn manager(removed: &[u32]) -> Manager {
    let member = |node| Member {
        run: run(node),
        may_own: true,
        standing: match node {
            GONE | GONE_TOO => Standing::Left,
            _ => Standing::In,
        },
        nsds_away: [GONE, GONE_TOO].contains(&node),
    };
    let record = Membership {
        term: Term(1),
        manager: Some(run(1)),
        members: (1..=NODES)
            .map(|node| (NodeId(node), member(node)))
            .collect(),
        plan: None,
    };
    let start = Start {
        own: run(1),
        own_until: after(60_000),
        former_kept: Duration::ZERO,
        record,
        version: 5,
        shards: Vec::new(),
        newest: Vec::new(),
        roles: Roles {
            removed: removed.iter().map(|node| NodeId(*node)).collect(),
            ..Roles::default()
        },
        dead: None,
    };
    let (mut manager, _) = Manager::begin(start, after(0));
    manager.on(Event::Stored(6), after(0));
    manager
}

/// What a node's heartbeat is answered.
fn told(manager: &mut Manager, node: u32, now: Moment) -> Verdict {
    told_run(manager, run(node), now)
}

/// What a run's heartbeat is answered.
fn told_run(manager: &mut Manager, from: NodeRun, now: Moment) -> Verdict {
    let heartbeat = Heartbeat {
        role: Role::Owner,
        is_leaving: false,
        knows: 6,
        hosts: Vec::new(),
    };
    let actions = manager.on(Event::Heartbeat { from, heartbeat }, now);
    match &actions[..] {
        [Action::Answer { reply, .. }] => reply.verdict,
        other => panic!("{other:?}"),
    }
}

/// The membership that is stored next, if any is.
fn stored(manager: &mut Manager, now: Moment) -> Option<Membership> {
    let actions = manager.on(Event::Tick, now);
    actions.into_iter().find_map(|action| match action {
        Action::Store { record, .. } => Some(record),
        _ => None,
    })
}

/// Would be broken if nodes that were removed counted for ever, and newcomers waited as long; or if the membership, which says
/// no more that their runs have ended, let one of these in.
#[test]
fn the_place_of_a_node_that_was_removed_is_anothers_and_its_own_run_never_joins_again() {
    let mut manager = manager(&[GONE]);
    assert_eq!(told(&mut manager, NEW, after(1_000)), Verdict::Wait);
    let members = stored(&mut manager, after(1_100)).expect("a place is free");
    assert!(members.is_member(run(NEW)));
    assert!(!members.members.contains_key(&NodeId(GONE)));
    assert_eq!(members.members.len(), MEMBERS_MAX);
    manager.on(Event::Stored(7), after(1_200));
    assert_eq!(told(&mut manager, NEW, after(1_300)), Verdict::Renewed);
    assert_eq!(told(&mut manager, GONE, after(1_300)), Verdict::Ended);
    assert_eq!(stored(&mut manager, after(1_400)), None);
}

/// Would be broken if news that are older than what a manager began with let a run join that had ended for good: its node's line
/// has gone, and nothing else says so.
#[test]
fn a_run_of_a_node_that_was_removed_never_joins_whatever_is_heard_late() {
    let mut manager = manager(&[GONE, GONE_TOO]);
    assert_eq!(told(&mut manager, NEW, after(1_000)), Verdict::Wait);
    let members = stored(&mut manager, after(1_100)).expect("a place is free");
    assert!(!members.members.contains_key(&NodeId(GONE)));
    manager.on(Event::Stored(7), after(1_200));
    // As it was before the first one of both was removed: there is a place for it.
    let roles = Roles {
        removed: BTreeSet::from([NodeId(GONE_TOO)]),
        ..Roles::default()
    };
    manager.on(Event::Roles(roles), after(1_250));
    assert_eq!(told(&mut manager, GONE, after(1_300)), Verdict::Ended);
    assert_eq!(stored(&mut manager, after(1_400)), None);
}

/// Would be broken if a daemon that started while its node was being removed became a member for the seconds for which it is
/// answered still, and got shards.
#[test]
fn a_newer_run_of_a_node_that_was_removed_does_not_join() {
    let mut manager = manager(&[GONE]);
    let newer = NodeRun {
        incarnation: 2,
        ..run(GONE)
    };
    manager.on(Event::Appeared(newer), after(900));
    assert_eq!(told_run(&mut manager, newer, after(1_000)), Verdict::Ended);
    assert_eq!(stored(&mut manager, after(1_100)), None);
}

#[test]
fn a_node_that_may_come_back_and_one_that_is_a_member_keep_their_places() {
    for removed in [&[][..], &[2]] {
        let mut manager = manager(removed);
        assert_eq!(told(&mut manager, NEW, after(1_000)), Verdict::Wait);
        assert_eq!(stored(&mut manager, after(1_100)), None, "{removed:?}");
    }
}
