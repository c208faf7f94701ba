//! Who goes on with a stop of the cluster: the run whose people want it, as long as it has nodes take steps; then the first of
//! the members, in the order of their numbers, that takes part in it and lives.
//!
//! Each node finds out for itself, by asking the one whose turn it is. As long as that one is silent the others before the node
//! are asked too: once nobody is expelled any more, many may be off, and they are waited for together. Two nodes may come to
//! different results for a while. That does no harm: both ask all nodes how far the stop has come, and all steps can be taken
//! twice.

use crate::admin::stopping::StopPart;
use model::NodeRun;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a run is waited for whose turn it is, and that gives no answer or does nothing. Longer than it takes the cluster
/// to expel a silent one, after which that is known.
pub const TURN_MAX: Duration = Duration::from_secs(30);

/// Whose turn it is to have nodes take steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// This node's own.
    Own,
    /// Another run's, or that of this node while its own people stop the cluster: it is to be asked.
    Of(NodeRun),
}

/// What a run says of its part in the stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// This.
    Part(StopPart),
    /// Nothing: it has surely ended.
    Over,
    /// Nothing, and why isn't known.
    Silent,
}

/// What a node knows of those whose turn comes before its own.
pub struct Succession {
    own: NodeRun,
    by: NodeRun,
    /// Those whose turn is over.
    passed: BTreeSet<NodeRun>,
    /// Whose turn it is, and since when it has done nothing.
    idle: Option<(NodeRun, Duration)>,
    /// Those that gave no answer when they were asked last, and since when. One that answers may rightly do nothing until it
    /// is its turn; one that doesn't answer is waited for no longer because others are silent too.
    silent: BTreeMap<NodeRun, Duration>,
}

impl Succession {
    /// Of the node that runs as `own`, for the stop that `by` has begun.
    pub fn new(own: NodeRun, by: NodeRun) -> Self {
        Self {
            own,
            by,
            passed: BTreeSet::new(),
            idle: None,
            silent: BTreeMap::new(),
        }
    }

    /// Whose turn it is, if these are the members, in their order.
    pub fn turn(&self, members: &[NodeRun]) -> Turn {
        if !self.is_orphaned() {
            return Turn::Of(self.by);
        }
        let mut members = members.iter();
        let next = members.find(|run| **run == self.own || !self.has_passed(**run));
        match next {
            Some(run) if *run != self.own => Turn::Of(*run),
            _ => Turn::Own,
        }
    }

    /// Who is to be asked now, in this order: the run whose turn it is, and the others before this node as long as that one is
    /// silent. Those behind one that answers may be left out.
    pub fn asked(&self, members: &[NodeRun]) -> Vec<NodeRun> {
        let Turn::Of(first) = self.turn(members) else {
            return Vec::new();
        };
        let mut asked = vec![first];
        if self.silent.contains_key(&first) {
            let before = members.iter().take_while(|run| **run != self.own);
            asked.extend(before.filter(|run| **run != first && !self.has_passed(**run)));
        }
        asked
    }

    /// What those have said that were [asked](Self::asked), in that order, at a time since any beginning.
    pub fn take_in(&mut self, members: &[NodeRun], said: &[(NodeRun, Heard)], now: Duration) {
        let before = std::mem::take(&mut self.silent);
        let silent = said.iter().filter(|(_, heard)| *heard == Heard::Silent);
        // It counts anew for one that wasn't asked in between.
        self.silent = silent
            .map(|(run, _)| (*run, before.get(run).copied().unwrap_or(now)))
            .collect();
        for (run, heard) in said {
            if self.turn(members) == Turn::Of(*run) {
                self.hear(*run, *heard, now);
            }
        }
    }

    /// What the run has said whose turn it is.
    fn hear(&mut self, run: NodeRun, heard: Heard, now: Duration) {
        let may_act = match heard {
            Heard::Part(part) if part.drives => {
                self.idle = None;
                return;
            }
            // Whoever began it and doesn't drive it has done so.
            Heard::Part(part) => run != self.by && part.takes_part,
            Heard::Over => false,
            Heard::Silent => true,
        };
        let since = match self.idle {
            Some((known, since)) if known == run => since,
            _ => self.silent.get(&run).copied().unwrap_or(now),
        };
        self.idle = Some((run, since));
        if !may_act || now.saturating_sub(since) >= TURN_MAX {
            self.passed.insert(run);
        }
    }

    /// Whether a run's turn is over.
    pub fn has_passed(&self, run: NodeRun) -> bool {
        self.passed.contains(&run)
    }

    /// The run whose people want the stop doesn't go on with it.
    pub fn is_orphaned(&self) -> bool {
        self.has_passed(self.by)
    }
}

/// What is known for certain of a node's part in a stop, once the run that has begun that is gone: later steps of that run
/// change nothing about it. `None`: nothing yet.
pub fn settled(heard: Heard) -> Option<Option<StopPart>> {
    match heard {
        Heard::Over => Some(None),
        Heard::Part(part) if !part.takes_part => Some(None),
        Heard::Part(part) if part.is_orphaned => Some(Some(part)),
        Heard::Part(_) | Heard::Silent => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(node: u32) -> NodeRun {
        crate::daemon::stop_mark::run_of((node, 1))
    }

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    fn drives() -> Heard {
        Heard::Part(StopPart {
            drives: true,
            ..StopPart::default()
        })
    }

    fn takes_part() -> Heard {
        Heard::Part(StopPart {
            takes_part: true,
            ..StopPart::default()
        })
    }

    const NO_PART: Heard = Heard::Part(StopPart {
        run: 1,
        drives: false,
        takes_part: false,
        is_final: false,
        is_orphaned: false,
    });

    #[test]
    fn whoever_began_a_stop_has_its_turn_as_long_as_it_goes_on_with_it() {
        let members = [1, 2, 3, 4].map(run);
        let mut known = Succession::new(run(4), run(3));
        for second in 0..1000 {
            assert_eq!(known.turn(&members), Turn::Of(run(3)));
            known.hear(run(3), drives(), seconds(second));
        }
        // It is slow for less than the others would do without it.
        known.hear(run(3), Heard::Silent, seconds(1000));
        known.hear(run(3), Heard::Silent, seconds(1000) + TURN_MAX - seconds(1));
        known.hear(run(3), drives(), seconds(1000) + TURN_MAX);
        known.hear(run(3), Heard::Silent, seconds(1001) + TURN_MAX);
        assert!(!known.is_orphaned());
        // It has nothing done any more: a step of it was lost.
        known.hear(run(3), takes_part(), seconds(1002) + TURN_MAX);
        assert!(known.is_orphaned());
    }

    #[test]
    fn the_first_member_that_takes_part_and_lives_goes_on() {
        let members = [1, 2, 3, 4, 5, 6].map(run);
        let mut known = Succession::new(run(5), run(3));
        known.hear(run(3), Heard::Over, seconds(0));
        // One that ended, one that was started since.
        assert_eq!(known.turn(&members), Turn::Of(run(1)));
        known.hear(run(1), Heard::Over, seconds(1));
        assert_eq!(known.turn(&members), Turn::Of(run(2)));
        known.hear(run(2), NO_PART, seconds(2));
        // One that lives and finds out more slowly, and goes on, for as long as that takes.
        for second in 3..20 {
            assert_eq!(known.turn(&members), Turn::Of(run(4)));
            known.hear(run(4), takes_part(), seconds(second));
        }
        for second in 20..500 {
            assert_eq!(known.turn(&members), Turn::Of(run(4)));
            known.hear(run(4), drives(), seconds(second));
        }
        known.hear(run(4), Heard::Over, seconds(500));
        assert_eq!(known.turn(&members), Turn::Own);
        // Those behind it don't count; nor does it count whether it is known as a member.
        assert_eq!(known.turn(&members[..4]), Turn::Own);
    }

    #[test]
    fn one_that_does_nothing_is_waited_for_so_long_and_no_longer() {
        let members = [1, 2, 3].map(run);
        for idle in [Heard::Silent, takes_part()] {
            let mut known = Succession::new(run(2), run(3));
            known.hear(run(3), Heard::Over, seconds(0));
            known.hear(run(1), idle, seconds(7));
            known.hear(run(1), idle, seconds(6) + TURN_MAX);
            assert_eq!(known.turn(&members), Turn::Of(run(1)));
            known.hear(run(1), idle, seconds(7) + TURN_MAX);
            assert_eq!(known.turn(&members), Turn::Own);
        }
    }

    /// Would be broken if a node waited for each of many that are off as long as for one: 25 min for 50 of them.
    #[test]
    fn those_that_are_silent_are_waited_for_together() {
        let members: Vec<NodeRun> = (1..=51).map(run).collect();
        let mut known = Succession::new(run(51), run(3));
        let mut now = Duration::ZERO;
        while known.turn(&members) != Turn::Own {
            assert!(now <= TURN_MAX + seconds(4), "{:?}", known.turn(&members));
            let asked = known.asked(&members).into_iter();
            let said: Vec<_> = asked.map(|run| (run, Heard::Silent)).collect();
            known.take_in(&members, &said, now);
            now += seconds(2);
        }
        assert!(now > TURN_MAX);
    }

    #[test]
    fn the_turn_of_one_that_answers_begins_when_the_silent_ones_are_over() {
        let members = [1, 2, 3, 4].map(run);
        let mut known = Succession::new(run(4), run(3));
        known.take_in(&members, &[(run(3), Heard::Over)], seconds(0));
        let all = [(run(1), Heard::Silent), (run(2), takes_part())];
        known.take_in(&members, &all, seconds(1));
        assert_eq!(known.asked(&members), [run(1), run(2)]);
        known.take_in(&members, &all, seconds(1) + TURN_MAX);
        // From now on it could know that it is its turn.
        assert_eq!(known.turn(&members), Turn::Of(run(2)));
        assert_eq!(known.asked(&members), [run(2)], "it answers");
        let alone = &all[1..];
        known.take_in(&members, alone, 2 * TURN_MAX);
        assert_eq!(known.turn(&members), Turn::Of(run(2)));
        known.take_in(&members, alone, seconds(1) + 2 * TURN_MAX);
        assert_eq!(known.turn(&members), Turn::Own);
    }

    #[test]
    fn a_silence_that_ended_or_was_long_ago_counts_for_nothing() {
        let members = [1, 2, 3, 4].map(run);
        for between in [
            &[(run(1), drives()), (run(2), drives())][..],
            &[(run(1), drives())],
        ] {
            let mut known = Succession::new(run(4), run(3));
            known.take_in(&members, &[(run(3), Heard::Over)], seconds(0));
            let both = [1, 2].map(|node| (run(node), Heard::Silent));
            known.take_in(&members, &both, seconds(1));
            known.take_in(&members, between, seconds(2));
            known.take_in(&members, &[(run(1), Heard::Over)], seconds(500));
            known.take_in(&members, &both[1..], seconds(501));
            assert_eq!(known.turn(&members), Turn::Of(run(2)));
        }
    }

    /// Its own people's stop may have ended without an end: a step that failed, a fault of the program.
    #[test]
    fn a_node_whose_own_stop_broke_off_has_a_turn_like_the_others() {
        let members = [1, 2, 3].map(run);
        let mut known = Succession::new(run(2), run(2));
        assert_eq!(known.turn(&members), Turn::Of(run(2)));
        known.hear(run(2), takes_part(), seconds(0));
        assert_eq!(known.turn(&members), Turn::Of(run(1)));
        known.hear(run(1), Heard::Over, seconds(1));
        assert_eq!(known.turn(&members), Turn::Own);
    }

    #[test]
    fn a_part_counts_once_no_step_of_the_first_run_can_change_it() {
        assert_eq!(settled(Heard::Silent), None);
        assert_eq!(settled(takes_part()), None);
        assert_eq!(settled(Heard::Over), Some(None));
        assert_eq!(settled(NO_PART), Some(None));
        let part = StopPart {
            takes_part: true,
            is_orphaned: true,
            ..StopPart::default()
        };
        assert_eq!(settled(Heard::Part(part)), Some(Some(part)));
    }
}
