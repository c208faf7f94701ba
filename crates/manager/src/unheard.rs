//! Whether the manager is the one that can't be reached.
//!
//! A manager may reach coordination and no other node. Then it keeps its place, hears of nobody, and would expel all of them.
//! Who lives finds that out: a node that has asked the manager in vain for [`UNHEARD_AFTER`] asks a *jury* of members
//! ([`jury`]), the same ones whoever asks. If most of them have asked it in vain, too ([`Poll`]), the manager is told so where it
//! keeps its place, and gives that up. A jury that is dead, or that the node doesn't reach either, says nothing, so no node
//! can take a manager's place from it that only this one doesn't hear.

use model::member::Membership;
use model::{NodeId, NodeRun};
use std::collections::BTreeSet;
use std::time::Duration;

/// A node hears nothing of the manager when so long ago it sent a heartbeat, and nothing was answered since. One that is
/// later than a second may still come.
pub const UNHEARD_AFTER: Duration = Duration::from_millis(1_500);
/// Most members of a jury: so few that all can be asked by all, and so many that most of them say what most nodes would.
const JURY_MAX: usize = 15;
/// The golden section of all numbers of nodes: each multiple of it is far from the ones before.
const FAR: u32 = 0x9E37_79B9;

/// The members that are asked: quorum nodes before others. Of the others some of everywhere: nodes with numbers beside each other
/// may be of one rack, which isn't to decide for all.
#[must_use]
pub fn jury(members: &Membership, quorum: &BTreeSet<NodeId>) -> Vec<NodeRun> {
    let members = members.members.values();
    let members = members.filter(|member| member.standing.is_member());
    let mut jury: Vec<NodeRun> = members.map(|member| member.run).collect();
    jury.sort_by_key(|run| (!quorum.contains(&run.node), run.node.0.wrapping_mul(FAR)));
    jury.truncate(JURY_MAX);
    jury
}

/// What a jury says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Poll {
    size: usize,
    /// So many have asked the manager in vain.
    unheard: usize,
    /// So many may still say something.
    open: usize,
}

impl Poll {
    /// Of a jury that hasn't said anything.
    #[must_use]
    pub fn of(jury: &[NodeRun]) -> Self {
        Self {
            size: jury.len(),
            unheard: 0,
            open: jury.len(),
        }
    }

    /// Another one of the jury says whether it has asked the manager in vain; no answer says that it hasn't.
    pub fn says(&mut self, is_unheard: bool) {
        assert!(self.open > 0, "each of a jury says one thing");
        self.open -= 1;
        self.unheard += usize::from(is_unheard);
    }

    /// Whether most have asked it in vain, as soon as that is certain whatever the others say.
    #[must_use]
    pub fn outcome(self) -> Option<bool> {
        if self.unheard * 2 > self.size {
            return Some(true);
        }
        let may_be = (self.unheard + self.open) * 2 > self.size;
        (!may_be).then_some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::tests::run;
    use model::member::{Cause, Member, Standing};

    fn members(nodes: u32, expelled: u32) -> Membership {
        let member = |node| Member {
            run: run(node),
            may_own: true,
            standing: match node == expelled {
                true => Standing::Expelled(Cause::Silent),
                false => Standing::In,
            },
            nsds_away: false,
        };
        let members = (1..=nodes).map(|node| (NodeId(node), member(node)));
        Membership {
            members: members.collect(),
            ..Membership::default()
        }
    }

    #[test]
    fn a_jury_has_the_quorum_nodes_and_some_of_the_others() {
        let quorum = BTreeSet::from([NodeId(3), NodeId(40)]);
        let first: Vec<NodeRun> = jury(&members(4, 2), &quorum);
        assert_eq!(first, [3, 4, 1].map(run));
        let many = jury(&members(50, 0), &quorum);
        assert_eq!(many.len(), JURY_MAX);
        assert_eq!(many[..3], [40, 3, 34].map(run));
        assert!(jury(&Membership::default(), &quorum).is_empty());
    }

    /// Would be broken if a rack, whose nodes have numbers beside each other, could take the manager from all others.
    #[test]
    fn nodes_beside_each_other_are_most_of_a_jury_only_if_they_are_two_fifths_of_all() {
        for nodes in 16..=120_u32 {
            let jury = jury(&members(nodes, 0), &BTreeSet::new());
            let rack = (nodes * 2).div_ceil(5) - 1;
            for first in 1..=nodes - rack + 1 {
                let is_beside = |run: &&NodeRun| (first..first + rack).contains(&run.node.0);
                let says = jury.iter().filter(is_beside).count();
                assert!(says * 2 <= jury.len(), "{nodes} nodes, from {first} on");
            }
        }
    }

    /// The outcome when so many of a jury of this size hear nothing, and whether it was known before all had said something.
    fn asked(size: u32, unheard: u32) -> (bool, bool) {
        let jury: Vec<NodeRun> = (1..=size).map(run).collect();
        let mut outcomes = BTreeSet::new();
        let mut is_early = false;
        // In any order.
        for turn in 0..size.max(1) {
            let mut poll = Poll::of(&jury);
            let mut known = poll.outcome();
            for at in 0..size {
                is_early |= known.is_some();
                poll.says((at + turn) % size < unheard);
                let now = poll.outcome();
                assert!(known.is_none() || known == now, "{size}, {unheard}");
                known = now;
            }
            outcomes.insert(known.expect("all have said something"));
        }
        assert_eq!(outcomes.len(), 1, "{size}, {unheard}");
        (outcomes.contains(&true), is_early)
    }

    #[test]
    fn most_of_a_jury_decide_whoever_is_heard_first() {
        for size in 0..=JURY_MAX as u32 {
            for unheard in 0..=size {
                assert_eq!(asked(size, unheard).0, unheard * 2 > size);
            }
        }
        // Of two that don't hear each other neither has most; of three that one of them isn't heard by two is enough.
        assert!(!asked(2, 1).0 && asked(3, 2).0 && !asked(4, 2).0);
        assert!(asked(5, 5).1 && asked(5, 0).1, "nobody waits for the last");
    }

    /// Would be broken if two halves of a network could each find that the other half's manager isn't heard.
    #[test]
    fn of_parts_that_do_not_reach_each_other_one_at_most_has_most_of_a_jury() {
        for nodes in 1..=40_u32 {
            let jury = jury(&members(nodes, 0), &BTreeSet::new());
            for cut in 0..=nodes {
                let is_first = |run: &&NodeRun| run.node.0 <= cut;
                let parts = [
                    jury.iter().filter(is_first).count(),
                    jury.iter().filter(|run| !is_first(run)).count(),
                ];
                let decide = parts.map(|says| {
                    let mut poll = Poll::of(&jury);
                    for at in 0..jury.len() {
                        poll.says(at < says);
                    }
                    poll.outcome() == Some(true)
                });
                assert!(decide != [true, true], "{nodes} nodes, cut at {cut}");
            }
        }
    }
}
