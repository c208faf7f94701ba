//! Whom a node can't reach, as the node sees it, and whether it may come back that had to go for that.
//!
//! *A call to a node that is needed comes to no answer* ([`Reach::missed`]): that may have many reasons, so the node is
//! asked something that it answers at once, again and again, until it does ([`Reach::answered`]) or isn't needed any
//! more. Meanwhile, from some time on, it counts as one that isn't reached ([`Reach::unreached`]), which the manager is told.
//!
//! *The run before had to go* because it was apart from somebody: the new one asks all nodes that it needs whether they reach
//! it, and asks to join only when each has said so for a while ([`Reach::may_join`]). Otherwise it would have to go again at
//! once.

use model::{Moment, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Pause after an answer, or none.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// A node isn't reached when so long has passed since it was first asked in vain, ...
pub const UNREACHED_AFTER: Duration = Duration::from_secs(6);
/// ... and so often: the time may have passed while this machine stood still.
const IN_VAIN_MIN: u32 = 3;
/// Answers in a row by which a run that comes back knows that it reaches a node.
const ANSWERS_MIN: u32 = 5;
/// It waits for nobody when there has been no manager for so long: who is dead isn't expelled then, and it may be needed.
const UNMANAGED_MAX: Duration = Duration::from_secs(10);

/// What a run knows of the ways to other nodes.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Reach {
    asked: BTreeMap<NodeId, Asked>,
    /// The run before had to go, and this one waits.
    comes_back: bool,
    /// Since when there has been no manager, while it waits.
    unmanaged: Option<Moment>,
}

/// A node that is asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Asked {
    /// When it is asked next; `None` while an answer is waited for.
    next: Option<Moment>,
    /// Since when it hasn't answered, and how often.
    in_vain: Option<(Moment, u32)>,
    /// Answers since then.
    answers: u32,
}

impl Asked {
    fn due(now: Moment) -> Self {
        Self {
            next: Some(now),
            in_vain: None,
            answers: 0,
        }
    }
}

impl Reach {
    /// Of a run that comes back, if the run before had to go.
    #[must_use]
    pub fn begin(had_to_go: bool) -> Self {
        Self {
            comes_back: had_to_go,
            ..Self::default()
        }
    }

    /// The run may ask to join. Stays so.
    #[must_use]
    pub fn may_join(&self) -> bool {
        !self.comes_back
    }

    /// A call to a node that is needed came to no answer. Returns whether that is news: [`Reach::look`] is due.
    pub fn missed(&mut self, node: NodeId, now: Moment) -> bool {
        let is_news = !self.asked.contains_key(&node);
        self.asked.entry(node).or_insert(Asked::due(now));
        is_news
    }

    /// The nodes that are to be asked now; each counts as being asked until [`Reach::answered`] or [`Reach::unanswered`].
    /// `needed`: the members that own shards or serve NSDs. `has_manager`: coordination says that there is one.
    pub fn look(
        &mut self,
        needed: &BTreeSet<NodeId>,
        has_manager: bool,
        now: Moment,
    ) -> Vec<NodeId> {
        self.asked.retain(|node, _| needed.contains(node));
        if self.comes_back {
            for node in needed {
                self.asked.entry(*node).or_insert(Asked::due(now));
            }
            self.unmanaged = match has_manager {
                true => None,
                false => Some(self.unmanaged.unwrap_or(now)),
            };
            let has_no_other = self
                .unmanaged
                .is_some_and(|since| now >= since.plus(UNMANAGED_MAX));
            let mut all = self.asked.values();
            if has_no_other || all.all(|it| it.answers >= ANSWERS_MIN) {
                self.comes_back = false;
                self.unmanaged = None;
                self.asked.retain(|_, it| it.in_vain.is_some());
            }
        }
        let mut due = Vec::new();
        for (node, it) in &mut self.asked {
            if it.next.is_some_and(|next| next <= now) {
                it.next = None;
                due.push(*node);
            }
        }
        due
    }

    /// A node that was asked has answered.
    pub fn answered(&mut self, node: NodeId, now: Moment) {
        if !self.comes_back {
            self.asked.remove(&node);
        } else if let Some(it) = self.asked.get_mut(&node) {
            *it = Asked {
                next: Some(now.plus(ASK_EVERY)),
                in_vain: None,
                answers: it.answers.saturating_add(1),
            };
        }
    }

    /// It hasn't, in time or at all.
    pub fn unanswered(&mut self, node: NodeId, now: Moment) {
        if let Some(it) = self.asked.get_mut(&node) {
            let (since, times) = it.in_vain.unwrap_or((now, 0));
            *it = Asked {
                next: Some(now.plus(ASK_EVERY)),
                in_vain: Some((since, times.saturating_add(1))),
                answers: 0,
            };
        }
    }

    /// The nodes that aren't reached, and for how long; while the run waits until it may join also those that didn't answer
    /// the last time.
    #[must_use]
    pub fn unreached(&self, now: Moment) -> Vec<(NodeId, Duration)> {
        let asked = self.asked.iter();
        let unreached = asked.filter_map(|(node, it)| {
            let (since, times) = it.in_vain?;
            let time = now.since(since);
            let is_long = time >= UNREACHED_AFTER && times >= IN_VAIN_MIN;
            (is_long || self.comes_back).then_some((*node, time))
        });
        unreached.collect()
    }

    /// When time alone makes a difference next to [`Reach::look`] or [`Reach::unreached`], after `now`; `None`: not before
    /// something happens.
    #[must_use]
    pub fn next(&self, now: Moment) -> Option<Moment> {
        let asked = self.asked.values();
        let counts = |it: &Asked| Some(it.in_vain?.0.plus(UNREACHED_AFTER));
        let times = asked.flat_map(|it| [it.next, counts(it)]).flatten();
        // The manager, or a node that is needed, may be another one then.
        let again = self.comes_back.then_some(now.plus(ASK_EVERY));
        times.chain(again).filter(|time| *time > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: NodeId = NodeId(2);

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    fn needed(nodes: &[u32]) -> BTreeSet<NodeId> {
        nodes.iter().map(|node| NodeId(*node)).collect()
    }

    fn told(reach: &Reach, now: Moment) -> Vec<NodeId> {
        let unreached = reach.unreached(now).into_iter();
        unreached.map(|(node, _)| node).collect()
    }

    #[test]
    fn a_node_that_answers_nothing_for_six_seconds_is_not_reached_until_it_does() {
        let (mut reach, all) = (Reach::begin(false), needed(&[2, 3]));
        assert!(reach.may_join());
        assert_eq!(
            (reach.look(&all, true, at(10)), reach.next(at(10))),
            (vec![], None)
        );
        assert!(reach.missed(OTHER, at(10)));
        assert!(!reach.missed(OTHER, at(10)), "it is known");
        let mut asked = 0;
        for second in 10..30 {
            let due = reach.look(&all, true, at(second));
            assert!(reach.look(&all, true, at(second)).is_empty(), "once");
            for node in due {
                assert_eq!(node, OTHER);
                reach.unanswered(node, at(second));
                asked += 1;
            }
            let expected = match second {
                ..16 => vec![],
                _ => vec![OTHER],
            };
            assert_eq!(told(&reach, at(second)), expected, "second {second}");
            assert_eq!(reach.next(at(second)), Some(at(second + 1)));
        }
        assert_eq!(asked, 20);
        reach.answered(OTHER, at(30));
        assert_eq!((told(&reach, at(30)), reach.next(at(30))), (vec![], None));
        // It isn't needed any more.
        reach.missed(OTHER, at(40));
        assert!(reach.look(&needed(&[3]), true, at(40)).is_empty());
        reach.unanswered(OTHER, at(41));
        assert_eq!((told(&reach, at(60)), reach.next(at(60))), (vec![], None));
    }

    /// Would be broken if a machine that stood still took the others for unreachable when it goes on.
    #[test]
    fn one_attempt_in_vain_is_not_enough_however_long_ago() {
        let (mut reach, all) = (Reach::begin(false), needed(&[2]));
        reach.missed(OTHER, at(10));
        for (second, expected) in [(10, 0), (40, 0), (41, 1)] {
            assert_eq!(reach.look(&all, true, at(second)), [OTHER]);
            reach.unanswered(OTHER, at(second));
            assert_eq!(told(&reach, at(second)).len(), expected, "second {second}");
        }
    }

    #[test]
    fn a_run_that_comes_back_joins_when_it_has_reached_all_for_a_while() {
        let (mut reach, all) = (Reach::begin(true), needed(&[2, 3]));
        let mut joined = None;
        for second in 0..60 {
            for node in reach.look(&all, true, at(second)) {
                // The link to one of them heals late, and breaks once more.
                let is_cut = node == OTHER && (second < 20 || second == 23);
                match is_cut {
                    true => reach.unanswered(node, at(second)),
                    false => reach.answered(node, at(second)),
                }
            }
            let shown = told(&reach, at(second)).contains(&OTHER);
            assert_eq!(shown, second < 20 || second == 23, "second {second}");
            if reach.may_join() {
                joined.get_or_insert(second);
            }
        }
        // Answers at 24 to 28, and the next look.
        assert_eq!(joined, Some(29));
        assert_eq!(reach, Reach::default(), "nothing is asked any more");
    }

    #[test]
    fn a_run_that_comes_back_waits_for_nobody_who_is_gone_and_not_without_a_manager() {
        let mut reach = Reach::begin(true);
        assert_eq!(reach.look(&needed(&[2]), true, at(0)), [OTHER]);
        reach.unanswered(OTHER, at(1));
        reach.look(&needed(&[2]), true, at(2));
        assert!(!reach.may_join());
        reach.look(&BTreeSet::new(), true, at(3));
        assert!(reach.may_join(), "it was expelled, say");
        // Nobody expels those that are dead.
        let mut reach = Reach::begin(true);
        for (second, has_manager) in [(0, false), (8, true), (9, false), (18, false)] {
            reach.look(&needed(&[2]), has_manager, at(second));
            assert!(!reach.may_join(), "second {second}");
        }
        reach.look(&needed(&[2]), false, at(19));
        assert!(reach.may_join());
    }
}
