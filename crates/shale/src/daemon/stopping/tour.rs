//! What the nodes of a cluster that is being stopped have said, and what follows from it: who is asked next, whether the
//! cluster goes on instead, and what people are told.

use crate::admin::MemberLine;
use crate::admin::stopping::{ClusterStopped, StepTaken, StopStep, StoppedNode};
use std::collections::BTreeMap;

/// What can be done about a node that gave no answer.
const SILENT_REMEDY: &str = "`shale down` there, or `shale down --kill` if its daemon doesn't answer there either; `--force` stops the others without it";
/// What can be done about a node that goes on.
const UP_REMEDY: &str = "`shale down` there";
/// What can be done about a node that wasn't seen to have ended.
const ENDS_REMEDY: &str = "look there whether its daemon has ended; `shale down` waits for it";

/// What became of a step on a node.
#[derive(Debug)]
pub enum Outcome {
    /// It was taken.
    Taken(StepTaken),
    /// It wasn't, or not as it should.
    Refused(String),
    /// The node didn't answer.
    Silent(String),
}

/// What comes after a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// The next step.
    GoOn,
    /// The cluster goes on, and nodes take back what they did.
    Back,
}

/// The members of the cluster, as they were when it began to be stopped.
pub struct Tour {
    force: bool,
    places: BTreeMap<u32, Place>,
}

struct Place {
    member: MemberLine,
    has_etcd: bool,
    /// The first step at which it gave no answer.
    silent_at: Option<StopStep>,
    /// What is wrong, in the order in which it was said.
    troubles: Vec<String>,
    left: Vec<String>,
    was_told_to_end: bool,
    has_ended: bool,
}

impl Tour {
    /// Of these members. `force`: what can't be unmounted or made durable doesn't hold it up.
    pub fn of(members: &[MemberLine], force: bool) -> Self {
        let place = |member: &MemberLine| Place {
            member: member.clone(),
            has_etcd: false,
            silent_at: None,
            troubles: Vec::new(),
            left: Vec::new(),
            was_told_to_end: false,
            has_ended: false,
        };
        let places = members.iter().map(|it| (it.node, place(it)));
        Self {
            force,
            places: places.collect(),
        }
    }

    /// Whether a node is one of them.
    pub fn has(&self, node: u32) -> bool {
        self.places.contains_key(&node)
    }

    /// Those that take the next step: all that have answered so far.
    pub fn asked(&self) -> Vec<u32> {
        self.which(|it| it.silent_at.is_none())
    }

    /// Those that may have taken a step: all that have answered once.
    pub fn reached(&self) -> Vec<u32> {
        self.which(|it| it.silent_at != Some(StopStep::Look))
    }

    /// Those that end before this node does: with a member of etcd, or without.
    pub fn others(&self, has_etcd: bool) -> Vec<u32> {
        self.which(|it| {
            let is_reached = it.silent_at != Some(StopStep::Look);
            is_reached && !it.member.is_here && it.has_etcd == has_etcd
        })
    }

    fn which(&self, is_meant: impl Fn(&Place) -> bool) -> Vec<u32> {
        let found = self.places.iter().filter(|(_, place)| is_meant(place));
        found.map(|(node, _)| *node).collect()
    }

    /// What nodes have said to a step.
    pub fn take_in(&mut self, step: StopStep, said: Vec<(u32, Outcome)>) -> Next {
        let may_go_back = matches!(step, StopStep::Unmount | StopStep::Sync);
        let mut next = Next::GoOn;
        for (node, outcome) in said {
            let Some(place) = self.places.get_mut(&node) else {
                continue;
            };
            let goes_on = match outcome {
                Outcome::Taken(taken) => place.take_in(step, taken),
                Outcome::Refused(why) => {
                    place.troubles.push(in_words(step, why));
                    // Something stands against the stop as such.
                    step != StopStep::Look && (self.force || !may_go_back)
                }
                // Whether it has ended is seen by looking at it.
                Outcome::Silent(_) if step == StopStep::End => {
                    place.was_told_to_end = true;
                    true
                }
                Outcome::Silent(why) => {
                    place.troubles.push(in_words(step, why));
                    place.silent_at.get_or_insert(step);
                    // It may be slow only, with something to make durable.
                    self.force || !(may_go_back || step == StopStep::Look)
                }
            };
            if !goes_on {
                next = Next::Back;
            }
        }
        next
    }

    /// These nodes have ended.
    pub fn note_ended(&mut self, nodes: &[u32]) {
        for node in nodes {
            if let Some(place) = self.places.get_mut(node) {
                place.has_ended = true;
            }
        }
    }

    /// What people are told: of all members, and of `more` nodes that weren't asked.
    pub fn report(self, stops: bool, more: Vec<StoppedNode>) -> ClusterStopped {
        let places = self.places.into_values();
        let mut nodes: Vec<_> = places.map(|place| place.report(stops)).collect();
        nodes.extend(more);
        ClusterStopped { stops, nodes }
    }
}

impl Place {
    /// Whether the next step may come.
    fn take_in(&mut self, step: StopStep, taken: StepTaken) -> bool {
        self.has_etcd = taken.has_etcd;
        self.left.extend(taken.left);
        self.was_told_to_end |= step == StopStep::End;
        let is_idle = taken.busy.is_empty();
        self.troubles.extend(taken.busy);
        is_idle
    }

    fn report(self, stops: bool) -> StoppedNode {
        let (state, remedy) = match stops {
            false if self.silent_at.is_some() => ("silent", Some(SILENT_REMEDY)),
            false => ("up", None),
            true if self.has_ended => ("ended", None),
            true if self.member.is_here && self.was_told_to_end => ("ends", None),
            true if self.was_told_to_end => ("ends", Some(ENDS_REMEDY)),
            true if self.silent_at.is_some() => ("silent", Some(SILENT_REMEDY)),
            true => ("up", Some(UP_REMEDY)),
        };
        let why = (!self.troubles.is_empty()).then(|| self.troubles.join("; "));
        let mut left = self.left;
        left.dedup();
        StoppedNode {
            node: self.member.node,
            name: self.member.name,
            is_here: self.member.is_here,
            state: state.into(),
            why,
            remedy: remedy.map(str::to_owned),
            left,
        }
    }
}

/// What is wrong if a step wasn't taken, for this reason.
fn in_words(step: StopStep, why: String) -> String {
    match step {
        StopStep::Sync | StopStep::CloseClients => {
            format!("not all that was written there is durable: {why}")
        }
        StopStep::CloseShards => format!("its shards aren't closed: {why}"),
        StopStep::Look
        | StopStep::Unmount
        | StopStep::Resume
        | StopStep::Retire
        | StopStep::End => why,
    }
}

/// Of a node that wasn't there when the others were asked first.
pub fn joined_meanwhile(member: &MemberLine) -> StoppedNode {
    let why = "it has joined meanwhile, and wasn't asked";
    not_asked(member, "up", why.into(), UP_REMEDY)
}

/// Of a node that was expelled, whose daemon may run.
pub fn was_expelled(member: &MemberLine) -> StoppedNode {
    let why = "it was expelled before";
    let remedy = "if its daemon runs, it waits for the cluster: `shale down` there";
    not_asked(member, "away", why.into(), remedy)
}

fn not_asked(member: &MemberLine, state: &str, why: String, remedy: &str) -> StoppedNode {
    StoppedNode {
        node: member.node,
        name: member.name.clone(),
        is_here: member.is_here,
        state: state.into(),
        why: Some(why),
        remedy: Some(remedy.into()),
        left: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes 1 to 3; the first one is asked by people.
    fn three(force: bool) -> Tour {
        let member = |node| MemberLine {
            node,
            name: format!("n{node}"),
            is_here: node == 1,
        };
        Tour::of(&[1, 2, 3].map(member), force)
    }

    fn taken() -> Outcome {
        Outcome::Taken(StepTaken::default())
    }

    fn has_etcd() -> Outcome {
        Outcome::Taken(StepTaken {
            has_etcd: true,
            ..StepTaken::default()
        })
    }

    fn refused() -> Outcome {
        Outcome::Refused("no".into())
    }

    fn silent() -> Outcome {
        Outcome::Silent("no answer".into())
    }

    /// What nodes 1 to 3 say.
    fn all(said: [Outcome; 3]) -> Vec<(u32, Outcome)> {
        (1..=3).zip(said).collect()
    }

    fn states(stopped: &ClusterStopped) -> Vec<&str> {
        let nodes = stopped.nodes.iter();
        nodes.map(|it| it.state.as_str()).collect()
    }

    #[test]
    fn members_of_etcd_end_after_the_others_and_the_asked_node_is_the_last_one() {
        let mut tour = three(false);
        let said = all([has_etcd(), has_etcd(), taken()]);
        assert_eq!(tour.take_in(StopStep::Look, said), Next::GoOn);
        assert_eq!(tour.asked(), [1, 2, 3]);
        assert_eq!((tour.others(false), tour.others(true)), (vec![3], vec![2]));
        for (node, said) in [(3, taken()), (2, silent()), (1, taken())] {
            let next = tour.take_in(StopStep::End, vec![(node, said)]);
            assert_eq!(next, Next::GoOn);
        }
        // The one that didn't answer any more has ended; the other one may have.
        tour.note_ended(&[2]);
        let stopped = tour.report(true, Vec::new());
        assert_eq!(states(&stopped), ["ends", "ended", "ends"]);
        assert_eq!(stopped.nodes[1].why, None);
        let remedies = stopped.nodes.iter().map(|it| it.remedy.is_some());
        assert_eq!(remedies.collect::<Vec<_>>(), [false, false, true]);
    }

    #[test]
    fn a_mount_in_use_keeps_all_nodes_up_and_is_named() {
        let mut tour = three(false);
        let busy = Outcome::Taken(StepTaken {
            busy: vec!["cat uses /mnt".into()],
            ..StepTaken::default()
        });
        let said = all([taken(), busy, taken()]);
        assert_eq!(tour.take_in(StopStep::Look, said), Next::Back);
        let stopped = tour.report(false, Vec::new());
        assert!(!stopped.stops);
        assert_eq!(states(&stopped), ["up"; 3]);
        assert_eq!(stopped.nodes[1].why.as_deref(), Some("cat uses /mnt"));
    }

    /// Would be broken if data were lost that a slow node still writes.
    #[test]
    fn until_all_is_durable_a_node_that_refuses_or_is_silent_has_the_cluster_go_on_unless_forced() {
        for step in [StopStep::Unmount, StopStep::Sync] {
            for said in [refused, silent] {
                let mut tour = three(false);
                tour.take_in(StopStep::Look, all([taken(), taken(), taken()]));
                let next = tour.take_in(step, all([taken(), taken(), said()]));
                assert_eq!(next, Next::Back, "{step:?}");
                // The silent one may have done it.
                assert_eq!(tour.reached(), [1, 2, 3]);
                let mut forced = three(true);
                let next = forced.take_in(step, all([taken(), taken(), said()]));
                assert_eq!(next, Next::GoOn, "{step:?}");
            }
        }
        // Too late.
        for step in [
            StopStep::CloseClients,
            StopStep::CloseShards,
            StopStep::Retire,
        ] {
            let mut tour = three(false);
            let next = tour.take_in(step, all([taken(), refused(), silent()]));
            assert_eq!(next, Next::GoOn, "{step:?}");
            assert_eq!(tour.asked(), [1, 2]);
            assert_eq!(tour.others(false), [2, 3], "both are told to end");
        }
    }

    #[test]
    fn a_node_that_never_answered_is_left_out_if_that_is_forced_and_one_that_objects_is_heard() {
        let mut slow = three(false);
        let next = slow.take_in(StopStep::Look, all([taken(), taken(), silent()]));
        assert_eq!(next, Next::Back, "it may have something that isn't durable");
        let mut tour = three(true);
        let next = tour.take_in(StopStep::Look, all([taken(), taken(), silent()]));
        assert_eq!(next, Next::GoOn);
        let asked = [tour.asked(), tour.reached()];
        assert_eq!(asked, [[1, 2], [1, 2]]);
        assert_eq!(tour.others(false), [2]);
        tour.take_in(StopStep::End, vec![(2, taken()), (1, taken())]);
        tour.note_ended(&[2]);
        let stopped = tour.report(true, Vec::new());
        assert_eq!(states(&stopped), ["ends", "ended", "silent"]);
        let remedy = stopped.nodes[2].remedy.as_deref().unwrap();
        assert!(remedy.contains("shale down --kill"), "{remedy}");
        // Another node stops the cluster already.
        for force in [false, true] {
            let said = all([taken(), taken(), refused()]);
            let next = three(force).take_in(StopStep::Look, said);
            assert_eq!(next, Next::Back);
        }
    }
}
