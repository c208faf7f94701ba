//! How long nodes may act, by the manager's clock.
//!
//! The table lives in the manager's memory only. A new manager knows nobody's last heartbeat, so it
//! takes its own start for it: nobody is silent before a whole lease has passed since then. Only the manager before
//! has less: its lease counts from when it kept its place, so that much of it is over when another one has that.

use model::member::NODE_LEASE;
use model::{Moment, NodeRun};
use std::collections::BTreeMap;
use std::time::Duration;

/// Two clocks differ by at most one part in this many.
const DRIFT_PART: u32 = 20;

/// The span by this machine's clock after which `span` has passed by every other clock: one that runs
/// slower by a twentieth needs a nineteenth longer.
#[must_use]
pub const fn by_any_clock(span: Duration) -> Duration {
    let nanoseconds = span.as_nanos() as u64;
    let longer = nanoseconds.div_ceil(DRIFT_PART as u64 - 1);
    Duration::from_nanos(nanoseconds + longer)
}

/// A lease has ended by every clock when this has passed since its last heartbeat arrived.
pub const LEASE_BY_ANY_CLOCK: Duration = by_any_clock(NODE_LEASE);

/// When leases end by every clock.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Leases {
    ends: BTreeMap<NodeRun, Moment>,
}

impl Leases {
    /// A heartbeat arrived.
    pub(crate) fn renew(&mut self, run: NodeRun, now: Moment, lease: Duration) {
        self.ends.insert(run, now.plus(lease));
    }

    /// Begins to count for a run that was never heard, if it isn't known.
    pub(crate) fn expect_first(&mut self, run: NodeRun, since: Moment, lease: Duration) {
        self.ends.entry(run).or_insert(since.plus(lease));
    }

    /// The lease has ended; also of runs that have none.
    pub(crate) fn is_over(&self, run: NodeRun, now: Moment) -> bool {
        self.ends.get(&run).is_none_or(|end| *end <= now)
    }

    /// The run's lease is nobody's business any more.
    pub(crate) fn forget(&mut self, run: NodeRun) {
        self.ends.remove(&run);
    }

    /// The run has a lease, perhaps one that has ended.
    pub(crate) fn has(&self, run: NodeRun) -> bool {
        self.ends.contains_key(&run)
    }

    /// All runs whose leases have ended.
    pub(crate) fn over(&self, now: Moment) -> impl Iterator<Item = NodeRun> {
        let over = self.ends.iter().filter(move |(_, end)| **end <= now);
        over.map(|(run, _)| *run)
    }

    /// When the run's lease ends.
    pub(crate) fn end(&self, run: NodeRun) -> Option<Moment> {
        self.ends.get(&run).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_by_any_clock_has_passed_by_one_that_is_slower_by_a_twentieth() {
        let span = by_any_clock(NODE_LEASE);
        let slow = span.mul_f64(0.95);
        assert!(slow >= NODE_LEASE - Duration::from_nanos(1), "{slow:?}");
        assert!(span < NODE_LEASE.mul_f64(1.06), "{span:?} is too long");
    }
}
