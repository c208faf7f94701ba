//! Who goes, case by case, and when.

use super::*;
use crate::balance::tests::run;
use model::member::Member;

/// Members 1 to 9 at most, of which the first one is the manager.
struct Scene {
    record: Membership,
    roles: Roles,
    living: BTreeMap<NodeId, NodeRun>,
    owners: BTreeSet<NodeRun>,
}

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

impl Scene {
    fn of(nodes: u32) -> Self {
        let member = |node| Member {
            run: run(node),
            may_own: true,
            standing: Standing::In,
            nsds_away: false,
        };
        Self {
            record: Membership {
                manager: Some(run(1)),
                members: (1..=nodes)
                    .map(|node| (NodeId(node), member(node)))
                    .collect(),
                ..Membership::default()
            },
            roles: Roles {
                tolerance: 1,
                ..Roles::default()
            },
            living: (1..=nodes).map(|node| (NodeId(node), run(node))).collect(),
            owners: BTreeSet::new(),
        }
    }

    fn quorum(mut self, nodes: &[u32]) -> Self {
        self.roles.quorum = nodes.iter().map(|node| NodeId(*node)).collect();
        self
    }

    /// Each in a failure group of its own.
    fn servers(mut self, nodes: &[u32]) -> Self {
        let server = |node: &u32| (NodeId(*node), BTreeSet::from([FailureGroupId(*node)]));
        self.roles.servers = nodes.iter().map(server).collect();
        self
    }

    fn owners(mut self, nodes: &[u32]) -> Self {
        self.owners = nodes.iter().map(|node| run(*node)).collect();
        self
    }

    /// The node's lease is over.
    fn dead(mut self, node: u32) -> Self {
        self.living.remove(&NodeId(node));
        self
    }

    /// The node was removed.
    fn barred(mut self, node: u32) -> Self {
        self.roles.barred.insert(NodeId(node));
        self
    }

    /// The node had to go.
    fn gone(mut self, node: u32, other: u32) -> Self {
        let member = self.record.members.get_mut(&NodeId(node)).unwrap();
        member.standing = Standing::Expelled(Cause::Apart(NodeId(other)));
        self.dead(node)
    }

    fn view(&self) -> View<'_> {
        View {
            own: run(1),
            record: &self.record,
            roles: &self.roles,
            living: self.living.clone(),
            owners: self.owners.clone(),
        }
    }

    /// The node that goes when these reports are old enough: each a node, and whom it doesn't reach.
    #[track_caller]
    fn goes(&self, reports: &[(u32, &[u32])]) -> Option<u32> {
        let mut found = Vec::new();
        // In any order.
        for turn in 0..reports.len() {
            let mut apart = Apart::begin(&Membership::default(), at(0));
            for which in 0..reports.len() {
                let (from, unreached) = reports[(which + turn) % reports.len()];
                let unreached = unreached.iter().map(|node| run(*node)).collect();
                apart.hear(run(from), unreached, at(0));
            }
            let is_manager = apart.advance(&self.view(), at(0).plus(GATHER));
            let going = apart.going().or(is_manager.then_some(run(1)));
            found.push(going.map(|going| going.node.0));
        }
        assert!(found.windows(2).all(|two| two[0] == two[1]), "{found:?}");
        found[0]
    }
}

#[test]
fn of_two_the_less_important_one_goes() {
    let scene = || Scene::of(5);
    // Nothing tells them apart: whoever complains, or the younger one.
    assert_eq!(scene().goes(&[(2, &[3])]), Some(2));
    assert_eq!(scene().goes(&[(3, &[2])]), Some(3));
    assert_eq!(scene().goes(&[(2, &[3]), (3, &[2])]), Some(3));
    // A client of an owner; an owner without NSDs beside a server of some; a quorum node beside one that has everything else.
    assert_eq!(scene().owners(&[3]).goes(&[(3, &[2])]), Some(2));
    let owner = scene().owners(&[2]).servers(&[3]);
    assert_eq!(owner.goes(&[(3, &[2])]), Some(2));
    let quorum = scene().owners(&[3]).servers(&[3]).quorum(&[1, 2, 4]);
    assert_eq!(quorum.goes(&[(2, &[3])]), Some(3));
    // Of several pairs the least important of all goes first.
    let pairs = scene().owners(&[2, 3, 4]);
    assert_eq!(pairs.goes(&[(2, &[3]), (4, &[5])]), Some(5));
}

#[test]
fn who_is_apart_from_several_goes_whatever_it_is() {
    let important = || Scene::of(5).owners(&[2]).servers(&[2]).quorum(&[2, 4, 5]);
    assert_eq!(important().goes(&[(3, &[2]), (4, &[2])]), Some(2));
    assert_eq!(
        important().goes(&[(2, &[3, 4])]),
        Some(2),
        "it says so itself"
    );
    // One had to go for it already.
    assert_eq!(important().gone(3, 2).goes(&[(4, &[2])]), Some(2));
    // Two that are each apart from two others: the less important one.
    let halves = Scene::of(7).owners(&[2]);
    assert_eq!(halves.goes(&[(2, &[4, 5]), (3, &[4, 5])]), Some(3));
    let three = Scene::of(7).owners(&[5, 6, 7]);
    let sides: [(u32, &[u32]); 2] = [(2, &[5, 6, 7]), (3, &[5, 6, 7])];
    assert_eq!(three.goes(&sides), Some(3), "the smaller side");
}

#[test]
fn nobody_goes_who_may_be_needed() {
    // One of the last quorum nodes; then the other one of the pair.
    let quorum = || Scene::of(5).quorum(&[2, 3, 4]).dead(4);
    assert_eq!(quorum().goes(&[(2, &[3])]), None);
    assert_eq!(quorum().owners(&[5]).goes(&[(2, &[5])]), Some(5));
    // A server of NSDs while others' are away, as many as may be.
    let servers = || Scene::of(6).servers(&[2, 3, 4]);
    assert_eq!(servers().goes(&[(2, &[3])]), Some(2));
    assert_eq!(servers().dead(4).goes(&[(2, &[3])]), None);
    assert_eq!(servers().dead(4).goes(&[(2, &[5])]), Some(5));
    let mut one_rack = servers().dead(4);
    for groups in one_rack.roles.servers.values_mut() {
        *groups = BTreeSet::from([FailureGroupId(7)]);
    }
    assert_eq!(one_rack.goes(&[(2, &[3])]), Some(2), "they fail together");
    let mut none_to_spare = servers();
    none_to_spare.roles.tolerance = 0;
    assert_eq!(none_to_spare.goes(&[(2, &[3])]), None);
    // So many that the rest isn't most.
    assert_eq!(Scene::of(2).goes(&[(1, &[2])]), None);
    assert_eq!(Scene::of(3).goes(&[(2, &[3])]), Some(2));
    let half = || Scene::of(5).gone(4, 1).gone(5, 1);
    assert_eq!(half().goes(&[(2, &[3])]), None);
    assert_eq!(half().barred(4).barred(5).goes(&[(2, &[3])]), Some(2));
    // Who is gone already, or never was a member.
    assert_eq!(Scene::of(5).dead(3).goes(&[(2, &[3])]), None);
    assert_eq!(Scene::of(5).goes(&[(2, &[9])]), None);
    assert_eq!(Scene::of(5).goes(&[(9, &[2])]), None);
}

/// Would be broken if programs got errors for as long as the manager is the one that doesn't reach the others.
#[test]
fn the_manager_goes_as_others_do_and_last_of_those_that_are_apart_from_as_many() {
    // The other one of a pair, whatever it is and whoever complains.
    let quorum = || Scene::of(5).quorum(&[2, 3, 4]).owners(&[2]).servers(&[2]);
    assert_eq!(quorum().goes(&[(1, &[2])]), Some(2));
    assert_eq!(quorum().goes(&[(2, &[1])]), Some(2));
    // That one may be needed.
    assert_eq!(quorum().dead(4).goes(&[(2, &[1])]), Some(1));
    // It is apart from most.
    assert_eq!(Scene::of(5).goes(&[(1, &[2, 3])]), Some(1));
    assert_eq!(Scene::of(5).goes(&[(2, &[1]), (3, &[1])]), Some(1));
    // The same holds for it as for others.
    let needed = Scene::of(5).quorum(&[1, 2, 3]).dead(3);
    assert_eq!(needed.goes(&[(1, &[2, 4])]), None);
    assert_eq!(Scene::of(2).goes(&[(1, &[2])]), None);
    // Nobody else goes meanwhile: its successor decides.
    let scene = Scene::of(5);
    let mut apart = Apart::begin(&scene.record, at(0));
    for second in 0..10 {
        apart.hear(run(1), vec![run(2), run(3)], at(second));
        let is_manager = apart.advance(&scene.view(), at(second));
        assert_eq!(is_manager, second >= 4, "second {second}");
        assert_eq!(apart.going(), None);
    }
}

/// Would be broken if a node that was removed from the cluster counted for ever against the one that it didn't reach.
#[test]
fn who_went_and_never_comes_back_counts_against_nobody() {
    let owner = || Scene::of(6).owners(&[2]).servers(&[2]);
    assert_eq!(owner().gone(3, 2).goes(&[(4, &[2])]), Some(2));
    assert_eq!(owner().gone(3, 2).barred(3).goes(&[(4, &[2])]), Some(4));
}

/// Would be broken if a link that comes and goes made both its ends go in turn, or one of them without end.
#[test]
fn a_link_that_comes_and_goes_costs_the_same_node_each_time_and_not_often() {
    let mut scene = Scene::of(5).owners(&[2]);
    let mut apart = Apart::begin(&scene.record, at(100));
    let mut went = Vec::new();
    let mut last = None;
    for second in 100..400 {
        // Four seconds of seven it is cut, and nobody tells more than the manager waits for.
        let unreached = match second % 7 {
            0..4 => vec![run(2)],
            _ => Vec::new(),
        };
        apart.hear(run(3), unreached, at(second));
        assert!(!apart.advance(&scene.view(), at(second)));
        assert_eq!(apart.going, None, "second {second}: it is back in time");
    }
    for second in 400..1_000 {
        apart.hear(run(3), vec![run(2)], at(second));
        assert!(!apart.advance(&scene.view(), at(second)));
        // What they are changes meanwhile.
        scene.owners = BTreeSet::from([run(2 + (second / 40 % 2) as u32)]);
        if let Some((run, other)) = apart.going {
            assert!(apart.is_going(run) && !apart.is_going(other));
            assert_eq!(apart.cause_of(run), Cause::Apart(other.node));
            assert_eq!(apart.cause_of(other), Cause::Silent);
            went.push((second, run.node.0));
            // It is back before it was expelled.
            apart.hear(self::run(3), Vec::new(), at(second));
            assert!(!apart.advance(&scene.view(), at(second)));
            assert_eq!(apart.going, None);
            assert!(apart.is_calm());
            let since: u64 = second - last.replace(second).unwrap_or(0);
            assert!(since >= HOLD_OFF.as_secs(), "{went:?}");
        }
    }
    assert!(went.len() > 5, "{went:?}");
    assert!(went.iter().all(|(_, node)| *node == went[0].1), "{went:?}");
}

/// Would be broken if an owner that is broken, or lies, cost one client after the other, each of which is soon back.
#[test]
fn whoever_cost_a_node_that_is_back_goes_itself_for_the_next_one() {
    let scene = Scene::of(6).owners(&[2]).servers(&[2]);
    let mut apart = Apart::begin(&scene.record, at(100));
    let mut went = Vec::new();
    for second in 100..400 {
        // For a minute of each, and of the first one once more.
        let missed = [5, 5, 4, 3][((second - 100) / 60).min(3) as usize];
        apart.hear(run(2), vec![run(missed)], at(second));
        let before = apart.going();
        assert!(!apart.advance(&scene.view(), at(second)));
        let going = apart.going().filter(|going| before != Some(*going));
        went.extend(going.map(|going| going.node.0));
    }
    assert_eq!(went, [5, 2, 2]);
}

#[test]
fn a_report_counts_for_as_long_as_a_lease_and_a_new_manager_waits_for_others() {
    let scene = Scene::of(5);
    let mut apart = Apart::begin(&scene.record, at(10));
    apart.hear(run(2), vec![run(3)], at(10));
    assert!(!apart.advance(&scene.view(), at(13)));
    assert_eq!(apart.going, None, "others may say something, too");
    // It isn't repeated.
    assert!(!apart.advance(&scene.view(), at(16)));
    assert!(apart.is_calm());
    // It is, and counts from the first time.
    apart.hear(run(2), vec![run(3)], at(20));
    apart.hear(run(2), vec![run(3)], at(23));
    assert!(!apart.advance(&scene.view(), at(24)));
    assert!(apart.is_going(run(2)));
    // The manager before decided lately, perhaps.
    let scene = scene.gone(5, 4);
    let mut apart = Apart::begin(&scene.record, at(100));
    for second in 100..140 {
        apart.hear(run(2), vec![run(3)], at(second));
        assert!(!apart.advance(&scene.view(), at(second)));
        let waited = Duration::from_secs(second - 100);
        assert_eq!(apart.is_going(run(2)), waited >= HOLD_OFF, "{waited:?}");
    }
}

#[test]
fn a_report_names_no_more_than_it_may() {
    let mut apart = Apart::default();
    apart.hear(run(2), (3..1_000).map(run).collect(), at(1));
    assert_eq!(apart.reports[&run(2)].first.len(), UNREACHED_MAX);
}
