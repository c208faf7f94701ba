//! A manager that reaches coordination, and other nodes that it doesn't reach, or that don't reach it: who goes, how soon, and
//! that all others go on.

use super::cluster::Cluster;
use super::judged;
use manager::{Action, Event, Manager, Moment, Resigned, Roles, Start};
use model::member::{Cause, Heartbeat, Member, Membership, Role, Standing, Term};
use model::{NodeId, NodeRun};
use std::collections::BTreeSet;
use std::time::Duration;

/// From a cut on, until all shards are served by those that hear each other.
const GO_ON_MAX: Duration = Duration::from_secs(15);
/// The same if it must be found out that calls reach nobody although those of the others arrive.
const PART_MAX: Duration = Duration::from_secs(40);
/// Longer than it would take to expel one node after the other.
const LONG: Duration = Duration::from_secs(120);
/// Once all reach each other again.
const BACK_MAX: Duration = Duration::from_secs(20);

/// So many nodes at rest, with two shards each. The first one is the manager.
fn at_rest(nodes: u32) -> Cluster {
    let drifts: Vec<i32> = (0..nodes).map(|at| [24, -24, 0][at as usize % 3]).collect();
    let mut cluster = Cluster::new(&drifts, nodes * 2, None).looking().spread();
    cluster.calm(Duration::from_secs(20));
    judged::rest(&cluster).expect("nothing is broken");
    assert_eq!(manager(&cluster), Some(1), "the first one that looked");
    cluster
}

/// The node that has the manager's place.
fn manager(cluster: &Cluster) -> Option<u32> {
    cluster.store.place.map(|(run, _)| run.node.0)
}

/// The nodes whose runs aren't members.
fn away(cluster: &Cluster) -> Vec<u32> {
    let members = &cluster.store.membership;
    let nodes = cluster.nodes.iter().map(|node| node.run);
    let away = nodes.filter(|run| !members.is_member(*run));
    away.map(|run| run.node.0).collect()
}

/// All shards are served by other nodes than these.
fn is_served_without(cluster: &Cluster, without: &[u32]) -> bool {
    let others = cluster.nodes.iter();
    let others = others.filter(|node| !without.contains(&node.run.node.0));
    let others: Vec<_> = others.collect();
    let mut shards = cluster.store.shards.keys();
    shards.all(|shard| others.iter().any(|node| cluster.serves(node, *shard)))
}

/// Until exactly these nodes are away, and all shards are served by the others.
#[track_caller]
fn until_only_away(cluster: &mut Cluster, nodes: &[u32], most: Duration) {
    let begun = cluster.now;
    while away(cluster) != nodes || !is_served_without(cluster, nodes) {
        cluster.calm_tick();
        cluster.check().expect("right at every moment");
        let time = cluster.now - begun;
        assert!(time <= most, "away: {:?}", away(cluster));
    }
}

/// It stays so for long that only these nodes are away, and nobody is expelled any more.
#[track_caller]
fn stays_so(cluster: &mut Cluster, nodes: &[u32]) {
    let expelled = cluster.expelled;
    for _ in 0..LONG.as_secs() {
        cluster.calm(Duration::from_secs(1));
        assert_eq!(
            (away(cluster).as_slice(), cluster.expelled),
            (nodes, expelled)
        );
    }
}

/// All links are whole: until all are members, and all shards are served.
#[track_caller]
fn until_whole(cluster: &mut Cluster) {
    cluster.cuts.clear();
    cluster.refusals.clear();
    let begun = cluster.now;
    while let Err(why) = judged::rest(cluster) {
        cluster.calm_tick();
        cluster.check().expect("right at every moment");
        assert!(cluster.now - begun <= BACK_MAX, "{why}");
    }
}

/// Would be broken if a manager that only coordination hears kept its place, and expelled everybody.
#[test]
fn a_manager_that_no_other_node_hears_is_followed_and_goes_alone() {
    for nodes in [3, 4, 5, 9, 20] {
        // At any moment between two heartbeats.
        let step = if nodes < 6 { 450 } else { 1_700 };
        for late in (0..2_000).step_by(step) {
            let mut cluster = at_rest(nodes);
            cluster.calm(Duration::from_millis(late));
            let before: Vec<NodeRun> = cluster.nodes.iter().map(|node| node.run).collect();
            cluster.cuts.extend((2..=nodes).map(|other| (1, other)));
            until_only_away(&mut cluster, &[1], GO_ON_MAX);
            assert_ne!(manager(&cluster), Some(1), "{nodes} nodes");
            stays_so(&mut cluster, &[1]);
            assert_eq!(cluster.expelled, 1, "{nodes} nodes");
            until_whole(&mut cluster);
            let after = cluster.nodes.iter().map(|node| node.run);
            let others: Vec<NodeRun> = after.skip(1).collect();
            assert_eq!(others, before[1..], "{nodes} nodes: nobody else went");
        }
    }
}

/// Would be broken if one node could take the place of a manager that all others hear.
#[test]
fn of_a_manager_and_one_node_that_do_not_hear_each_other_the_other_one_goes() {
    for nodes in [2, 3, 5] {
        let mut cluster = at_rest(nodes);
        cluster.cuts.insert((1, 2));
        until_only_away(&mut cluster, &[2], GO_ON_MAX);
        stays_so(&mut cluster, &[2]);
        assert_eq!((manager(&cluster), cluster.expelled), (Some(1), 1));
        until_whole(&mut cluster);
    }
}

#[test]
fn a_manager_that_most_hear_keeps_its_place_and_one_that_most_do_not_hear_gives_it_up() {
    let mut cluster = at_rest(5);
    cluster.cuts.extend([(1, 2), (1, 3)]);
    until_only_away(&mut cluster, &[2, 3], GO_ON_MAX);
    stays_so(&mut cluster, &[2, 3]);
    assert_eq!((manager(&cluster), cluster.expelled), (Some(1), 2));
    until_whole(&mut cluster);

    let mut cluster = at_rest(5);
    cluster.cuts.extend([(1, 2), (1, 3), (1, 4)]);
    until_only_away(&mut cluster, &[1], GO_ON_MAX);
    stays_so(&mut cluster, &[1]);
    assert_eq!(cluster.expelled, 1);
    until_whole(&mut cluster);
}

/// Two nodes of three are dead, or can't say anything. Would be broken if the last one waited for ever.
#[test]
fn a_manager_that_is_left_alone_goes_on_when_nobody_has_said_that_it_is_not_heard() {
    let mut cluster = at_rest(3);
    // Coordination neither hears them.
    cluster.cuts.extend([(1, 2), (1, 3), (0, 2), (0, 3)]);
    until_only_away(&mut cluster, &[2, 3], GO_ON_MAX);
    assert_eq!(manager(&cluster), Some(1));
    until_whole(&mut cluster);
}

/// A firewall: the manager's port is closed, and it reaches all others. Would be broken if it kept its place or came back to be
/// expelled again, because it reaches all.
#[test]
fn a_manager_that_nobody_can_call_goes_and_comes_back_when_the_others_can() {
    let mut cluster = at_rest(5);
    cluster.refusals.extend((2..=5).map(|other| (other, 1)));
    until_only_away(&mut cluster, &[1], PART_MAX);
    stays_so(&mut cluster, &[1]);
    assert_eq!(cluster.expelled, 1);
    until_whole(&mut cluster);
}

/// Would be broken if a manager that reaches nobody stayed because it hears all, or took those for dead that refuse its
/// connections.
#[test]
fn a_manager_that_can_call_nobody_goes_although_it_hears_all() {
    let mut cluster = at_rest(5);
    cluster.refusals.extend((2..=5).map(|other| (1, other)));
    until_only_away(&mut cluster, &[1], PART_MAX);
    stays_so(&mut cluster, &[1]);
    assert_eq!(cluster.expelled, 1);
    until_whole(&mut cluster);
}

/// Would be broken if a manager before which a filter of packets stands took all those for dead whose connections broke and are
/// refused, which it hears: it would cost the programs of all others what they have open.
#[test]
fn a_manager_whose_connections_break_and_are_refused_goes_and_expels_nobody() {
    for late in (0..2_000).step_by(300) {
        let mut cluster = at_rest(5);
        cluster.calm(Duration::from_millis(late));
        cluster.refusals.extend((2..=5).map(|other| (1, other)));
        (1..5).for_each(|other| cluster.break_connection(other));
        until_only_away(&mut cluster, &[1], PART_MAX);
        assert_eq!(cluster.expelled, 1, "after {late} ms");
        until_whole(&mut cluster);
    }
}

/// Would be broken if the node that goes came back because it reaches the other one, which doesn't reach it.
#[test]
fn a_node_that_one_other_cannot_call_goes_once() {
    for (from, to) in [(1, 2), (3, 2), (2, 3)] {
        let mut cluster = at_rest(5);
        cluster.refusals.insert((from, to));
        let begun = cluster.now;
        while cluster.expelled == 0 {
            cluster.calm_tick();
            cluster.check().expect("right at every moment");
            assert!(cluster.now - begun <= PART_MAX, "{from} and {to}");
        }
        let gone = away(&cluster);
        assert_eq!(gone.len(), 1, "{from} and {to}");
        until_only_away(&mut cluster, &gone, GO_ON_MAX);
        stays_so(&mut cluster, &gone);
        until_whole(&mut cluster);
    }
}

/// Members 1 to 3, of which the first one is the manager since a second.
fn established() -> Manager {
    let member = |node| Member {
        run: run(node),
        may_own: true,
        standing: Standing::In,
        nsds_away: false,
    };
    let record = Membership {
        term: Term(1),
        manager: None,
        members: [1, 2, 3].map(|node| (NodeId(node), member(node))).into(),
        plan: None,
    };
    let start = Start {
        own: run(1),
        own_until: Moment(Duration::from_secs(1_000)),
        former_kept: Duration::ZERO,
        record,
        version: 5,
        shards: Vec::new(),
        newest: Vec::new(),
        roles: Roles::default(),
        dead: None,
    };
    let (mut manager, actions) = Manager::begin(start, at(0));
    assert!(matches!(actions[..], [Action::Store { .. }]));
    manager.on(Event::Stored(6), at(1_000));
    manager
}

fn run(node: u32) -> NodeRun {
    NodeRun {
        node: NodeId(node),
        incarnation: 1,
    }
}

fn at(milliseconds: u64) -> Moment {
    Moment(Duration::from_millis(milliseconds))
}

fn hear(manager: &mut Manager, node: u32, now: Moment) {
    let heartbeat = Heartbeat {
        role: Role::Owner,
        is_leaving: false,
        knows: 6,
        hosts: Vec::new(),
    };
    let from = run(node);
    let actions = manager.on(Event::Heartbeat { from, heartbeat }, now);
    assert!(matches!(actions[..], [Action::Answer { .. }]));
}

/// The runs that what is stored expels, and why.
fn expelled(actions: &[Action]) -> Vec<(u32, Cause)> {
    let stored = actions.iter().filter_map(|action| match action {
        Action::Store { record, .. } => Some(record),
        _ => None,
    });
    let members = stored.flat_map(|record| record.members.values());
    let expelled = members.filter_map(|it| match it.standing {
        Standing::Expelled(cause) => Some((it.run.node.0, cause)),
        _ => None,
    });
    expelled.collect()
}

/// All refuse the manager's connections then, too. Would be broken if they were never found.
#[test]
fn all_other_members_that_are_killed_at_once_are_found_by_their_silence() {
    let mut cluster = at_rest(3);
    (1..3).for_each(|other| cluster.kill(other));
    until_only_away(&mut cluster, &[2, 3], GO_ON_MAX);
    assert_eq!(manager(&cluster), Some(1));
    assert!(is_served_without(&cluster, &[2, 3]));
}

/// Would be broken if a manager expelled one node after the other while they find out that they don't hear it.
#[test]
fn most_members_at_once_are_expelled_for_silence_only_when_they_had_time_to_say_that_they_live() {
    let mut manager = established();
    // The last heartbeats before all is silent; the first lease is over at 8.3 s.
    hear(&mut manager, 2, at(2_000));
    hear(&mut manager, 3, at(4_000));
    for milliseconds in (4_100..13_300).step_by(100) {
        hear(&mut manager, 1, at(milliseconds));
        let actions = manager.on(Event::Tick, at(milliseconds));
        assert!(actions.is_empty(), "{milliseconds}: {actions:?}");
    }
    let actions = manager.on(Event::Tick, at(13_500));
    let silent = [2, 3].map(|node| (node, Cause::Silent));
    assert_eq!(expelled(&actions), silent);
}

#[test]
fn one_of_several_is_expelled_for_silence_as_soon_as_its_lease_is_over() {
    let mut manager = established();
    hear(&mut manager, 2, at(2_000));
    for second in [2, 4, 6, 8] {
        hear(&mut manager, 1, at(second * 1_000));
        hear(&mut manager, 3, at(second * 1_000));
    }
    let actions = manager.on(Event::Tick, at(8_200));
    assert!(actions.is_empty(), "{actions:?}");
    let actions = manager.on(Event::Tick, at(8_400));
    assert_eq!(expelled(&actions), [(2, Cause::Silent)]);
}

/// Would be broken if a manager that no other node reaches took its own heartbeats, or old ones, for a sign that it is heard.
#[test]
fn a_manager_has_heard_most_when_so_many_spoke_since_that_the_others_can_not_outvote_it() {
    let mut manager = established();
    let quorum = BTreeSet::new();
    hear(&mut manager, 2, at(1_500));
    hear(&mut manager, 3, at(1_500));
    assert!(manager.has_heard_most(&quorum, at(1_500)));
    hear(&mut manager, 1, at(2_500));
    assert!(!manager.has_heard_most(&quorum, at(2_000)), "only itself");
    hear(&mut manager, 3, at(3_000));
    assert!(manager.has_heard_most(&quorum, at(2_000)), "two of three");
    assert!(!manager.has_heard_most(&quorum, at(3_100)));
    manager.on(Event::Unheard, at(3_200));
    assert!(!manager.has_heard_most(&quorum, at(2_000)), "it resigned");
}

#[test]
fn a_manager_that_is_told_that_it_is_not_heard_resigns() {
    let mut manager = established();
    hear(&mut manager, 2, at(1_500));
    let actions = manager.on(Event::Unheard, at(2_000));
    assert_eq!(actions, [Action::Resign(Resigned::Unheard)]);
}

/// Would be broken if a node that is heard were expelled, again and again, because it refuses the manager's connections; or
/// if a new manager didn't find those who died before it began.
#[test]
fn refused_connections_prove_the_death_of_a_run_that_is_not_heard() {
    let refused = |manager: &mut Manager, now: u64| {
        let mut actions = manager.on(Event::Unconnected(run(2)), at(now));
        for _ in 0..2 {
            if !matches!(actions[..], [Action::Probe { .. }]) {
                break;
            }
            let probed = Event::Probed {
                run: run(2),
                is_refused: true,
            };
            actions = manager.on(probed, at(now));
        }
        expelled(&actions)
    };
    let dead = [(2, Cause::Refused)];
    let mut manager = established();
    assert_eq!(refused(&mut manager, 1_600), dead, "it was never heard");

    let mut manager = established();
    hear(&mut manager, 2, at(2_000));
    for milliseconds in (2_000..6_000).step_by(500) {
        assert_eq!(refused(&mut manager, milliseconds), []);
    }
    assert_eq!(refused(&mut manager, 6_100), dead);
}

/// What the manager does when an attempt to connect to the second node ended.
fn probed(manager: &mut Manager, is_refused: bool, now: u64) -> Vec<Action> {
    let run = run(2);
    manager.on(Event::Probed { run, is_refused }, at(now))
}

/// The pause before the attempt that is wanted, in milliseconds.
fn wanted(actions: &[Action]) -> Option<u128> {
    match actions {
        [Action::Probe { after, .. }] => Some(after.as_millis()),
        _ => None,
    }
}

/// Would be broken if the death of a process whose connections are closed before what it listens on weren't found before it
/// counts as unheard, four seconds after its last heartbeat.
#[test]
fn a_run_whose_connection_broke_is_tried_until_it_refuses() {
    let mut manager = established();
    hear(&mut manager, 2, at(2_000));
    let actions = manager.on(Event::Broke(run(2)), at(2_100));
    assert_eq!(wanted(&actions), Some(0));
    // One that is refused between others proves nothing.
    for (now, is_refused, pause) in [
        (2_110, false, 100),
        (2_210, true, 300),
        (2_510, false, 100),
        (2_610, true, 300),
    ] {
        let actions = probed(&mut manager, is_refused, now);
        assert_eq!(wanted(&actions), Some(pause), "{now}");
    }
    let actions = probed(&mut manager, true, 2_910);
    assert_eq!(expelled(&actions), [(2, Cause::Refused)]);
}

/// Would be broken if a run were tried for ever, or if two tried at the same time made the time between attempts shorter.
#[test]
fn a_run_whose_connection_broke_is_tried_once_at_a_time_until_it_is_heard_or_silent() {
    let mut manager = established();
    hear(&mut manager, 2, at(2_000));
    manager.on(Event::Broke(run(2)), at(2_100));
    assert_eq!(wanted(&probed(&mut manager, true, 2_110)), Some(300));
    hear(&mut manager, 2, at(2_120));
    // The attempt of before is still under way.
    let actions = manager.on(Event::Broke(run(2)), at(2_200));
    assert_eq!(wanted(&actions), None);
    assert_eq!(wanted(&probed(&mut manager, false, 2_410)), Some(100));
    hear(&mut manager, 2, at(2_420));
    assert_eq!(wanted(&probed(&mut manager, true, 2_510)), None);
    let actions = manager.on(Event::Broke(run(2)), at(3_000));
    assert_eq!(wanted(&actions), Some(0));
    for other in [1, 3] {
        hear(&mut manager, other, at(5_000));
    }
    assert_eq!(wanted(&probed(&mut manager, false, 6_300)), Some(100));
    // That it isn't heard is judged by whether connections can be made from now on.
    let actions = probed(&mut manager, false, 6_500);
    assert!(actions.is_empty(), "{actions:?}");
}

/// Would be broken if an attempt that was refused before a heartbeat counted against the run after it: one more would expel a
/// run that lives.
#[test]
fn an_attempt_from_before_a_heartbeat_proves_nothing_after_it() {
    let mut manager = established();
    hear(&mut manager, 2, at(2_000));
    manager.on(Event::Broke(run(2)), at(2_100));
    hear(&mut manager, 2, at(2_120));
    let actions = manager.on(Event::Broke(run(2)), at(2_130));
    assert_eq!(wanted(&actions), None, "one is under way");
    for (now, pause) in [(2_140, 0), (2_150, 300)] {
        assert_eq!(wanted(&probed(&mut manager, true, now)), Some(pause));
    }
    let actions = probed(&mut manager, true, 2_450);
    assert_eq!(expelled(&actions), [(2, Cause::Refused)]);
}
