//! What the manager tells people of the pool's jobs besides the planner's own numbers: when what owners rewrite will be
//! done, and which part each node has.

use manager::Moment;
use manager::jobs::Share;
use model::jobs::{NodePart, OwnersWork, REPORTED_NODES_MAX, Rebuilt};
use model::{GroupId, NodeId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// So many values are kept, and so much time lies between two of them.
const VALUES_MAX: usize = 60;
const VALUE_EVERY: Duration = Duration::from_secs(1);

/// Tells from what was left now and then when nothing will be.
#[derive(Default)]
pub(super) struct Countdown {
    /// Never more than before.
    values: VecDeque<(Moment, u64)>,
}

impl Countdown {
    /// So much is left now. `None`: nobody knows.
    pub(super) fn note(&mut self, now: Moment, left: Option<u64>) {
        let Some(left) = left else {
            self.values.clear();
            return;
        };
        match self.values.back().copied() {
            // More has come: how fast it went before says nothing.
            Some((_, before)) if before < left => self.values.clear(),
            Some((at, _)) if now.since(at) < VALUE_EVERY => return,
            _ => {}
        }
        self.values.push_back((now, left));
        if self.values.len() > VALUES_MAX {
            self.values.pop_front();
        }
    }

    /// When nothing is left, if it goes on as in the last minute. `None`: that isn't known, or nothing was done in that
    /// time.
    pub(super) fn done_in(&self) -> Option<Duration> {
        let (first, before) = self.values.front()?;
        let (last, left) = self.values.back()?;
        if *left == 0 {
            return Some(Duration::ZERO);
        }
        let millis = u64::try_from(last.since(*first).as_millis()).unwrap_or(u64::MAX);
        let done = before.saturating_sub(*left);
        let millis = left.saturating_mul(millis).checked_div(done);
        millis.map(Duration::from_millis)
    }
}

/// What all owners do together. Those that know another newest generation haven't counted for this one.
pub(super) fn sum_of_owners(all: impl Iterator<Item = OwnersWork>, newest: GroupId) -> OwnersWork {
    let mut sum = OwnersWork {
        newest,
        ..OwnersWork::default()
    };
    for work in all {
        sum.balancing = sum.balancing.saturating_add(work.balancing);
        if work.newest == newest {
            sum.counted = sum.counted.saturating_add(work.counted);
            sum.to_rewrite = sum.to_rewrite.saturating_add(work.to_rewrite);
        }
    }
    sum
}

/// What all nodes have rebuilt together.
pub(super) fn sum_of_rebuilt(all: &BTreeMap<NodeId, Rebuilt>) -> Rebuilt {
    let mut sum = Rebuilt::default();
    for rebuilt in all.values() {
        add(&mut sum, *rebuilt);
    }
    sum
}

/// Adds what was rebuilt.
pub(super) fn add(sum: &mut Rebuilt, more: Rebuilt) {
    sum.pieces = sum.pieces.saturating_add(more.pieces);
    sum.bytes = sum.bytes.saturating_add(more.bytes);
}

/// What each node does, and has rebuilt.
pub(super) fn parts_of_nodes(
    shares: &BTreeMap<NodeId, Share>,
    rebuilt: &BTreeMap<NodeId, Rebuilt>,
) -> Vec<NodePart> {
    let mut parts: BTreeMap<NodeId, (Share, Rebuilt)> = BTreeMap::new();
    for (node, share) in shares {
        parts.entry(*node).or_default().0 = *share;
    }
    for (node, rebuilt) in rebuilt {
        parts.entry(*node).or_default().1 = *rebuilt;
    }
    let part = |(node, (share, rebuilt)): (NodeId, (Share, Rebuilt))| NodePart {
        node,
        led: share.led as u64,
        taking_part: share.taking_part as u64,
        bytes_per_second: share.bytes_per_second,
        rebuilt,
    };
    let parts = parts.into_iter().take(REPORTED_NODES_MAX);
    parts.map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment(Duration::from_secs(seconds))
    }

    #[test]
    fn the_end_is_expected_from_the_last_minute() {
        let mut countdown = Countdown::default();
        assert_eq!(countdown.done_in(), None);
        countdown.note(at(0), Some(1_000));
        assert_eq!(countdown.done_in(), None, "nobody knows how fast it goes");
        countdown.note(at(10), Some(900));
        assert_eq!(countdown.done_in(), Some(Duration::from_secs(90)));
        // What was before the last minute isn't looked at any more.
        for second in 11..=80 {
            countdown.note(at(second), Some(900));
        }
        assert_eq!(countdown.done_in(), None, "nothing was done");
        countdown.note(at(81), Some(0));
        assert_eq!(countdown.done_in(), Some(Duration::ZERO));
        // Another change begins.
        countdown.note(at(82), Some(500));
        assert_eq!(countdown.done_in(), None);
        countdown.note(at(83), Some(400));
        assert_eq!(countdown.done_in(), Some(Duration::from_secs(4)));
        countdown.note(at(84), None);
        assert_eq!(countdown.done_in(), None);
        // A number that lies doesn't end the daemon.
        countdown.note(at(85), Some(u64::MAX));
        countdown.note(at(1_000), Some(u64::MAX - 1));
        assert!(countdown.done_in() > Some(Duration::from_secs(1 << 40)));
    }

    #[test]
    fn owners_that_know_another_map_have_not_counted() {
        let work = |newest: u32, to_rewrite: u64| OwnersWork {
            newest: GroupId(newest),
            counted: 1,
            to_rewrite,
            balancing: 1,
        };
        let all = [work(64, 5), work(32, 0), work(64, u64::MAX)];
        let sum = sum_of_owners(all.into_iter(), GroupId(64));
        assert_eq!((sum.counted, sum.balancing), (2, 3));
        assert_eq!(sum.to_rewrite, u64::MAX, "a number that lies does no harm");
    }

    #[test]
    fn each_node_that_does_or_did_something_has_a_part() {
        let share = Share {
            led: 2,
            taking_part: 5,
            bytes_per_second: 100,
        };
        let rebuilt = |pieces: u64| Rebuilt {
            pieces,
            bytes: 10 * pieces,
        };
        let shares = BTreeMap::from([(NodeId(1), share), (NodeId(3), Share::default())]);
        let done = BTreeMap::from([(NodeId(1), rebuilt(7)), (NodeId(2), rebuilt(1))]);
        assert_eq!(sum_of_rebuilt(&done), rebuilt(8));
        let parts = parts_of_nodes(&shares, &done);
        let shown = parts
            .iter()
            .map(|it| (it.node.0, it.led, it.rebuilt.pieces));
        let shown: Vec<_> = shown.collect();
        assert_eq!(shown, [(1, 2, 7), (2, 0, 1), (3, 0, 0)]);
        assert_eq!((parts[0].taking_part, parts[0].bytes_per_second), (5, 100));
    }
}
