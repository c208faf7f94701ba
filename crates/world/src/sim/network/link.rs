//! The ways between machines: how long bytes take, and which ways are cut.

use super::HostNumber;
use crate::sim::random::RandomStream;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Arrivals fall on multiples of this, so that several can come together.
const GRAIN: u64 = 50_000;

/// How long bytes take on a way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Shortest time from sending to arrival.
    pub latency_min: Duration,
    /// Longest.
    pub latency_max: Duration,
    /// Bytes that one way carries in a second.
    pub bytes_per_second: u64,
}

impl Default for Link {
    /// Two machines on one switch, 10 Gbit/s.
    fn default() -> Self {
        Self {
            latency_min: Duration::from_micros(50),
            latency_max: Duration::from_micros(400),
            bytes_per_second: 1_250_000_000,
        }
    }
}

/// All ways. Each pair of machines has two, one in each direction.
#[derive(Clone, Default)]
pub(in crate::sim) struct Links {
    pub(in crate::sim) usual: Link,
    pub(in crate::sim) unusual: BTreeMap<(HostNumber, HostNumber), Link>,
    pub(in crate::sim) cut: BTreeSet<(HostNumber, HostNumber)>,
    /// Pairs of machines of which the first one is told that nobody listens at the second one.
    pub(in crate::sim) refusing: BTreeSet<(HostNumber, HostNumber)>,
    /// When the last bytes sent have left.
    busy_until: BTreeMap<(HostNumber, HostNumber), u64>,
    /// When the last letter arrives.
    last_letter: BTreeMap<(HostNumber, HostNumber), u64>,
}

impl Links {
    /// Whether what is sent from one machine reaches the other.
    pub(in crate::sim) fn is_open(&self, from: HostNumber, to: HostNumber) -> bool {
        from == to || !self.cut.contains(&(from, to))
    }

    pub(in crate::sim) fn is_open_both_ways(&self, one: HostNumber, other: HostNumber) -> bool {
        self.is_open(one, other) && self.is_open(other, one)
    }

    /// When `bytes` sent now arrive.
    pub(super) fn arrival(
        &mut self,
        now: u64,
        from: HostNumber,
        to: HostNumber,
        bytes: usize,
        random: &mut RandomStream,
    ) -> u64 {
        let link = self.unusual.get(&(from, to)).unwrap_or(&self.usual);
        let busy = self.busy_until.entry((from, to)).or_default();
        let takes = bytes as u128 * 1_000_000_000 / u128::from(link.bytes_per_second.max(1));
        let sent = now.max(*busy) + takes as u64;
        *busy = sent;
        let (min, max) = (link.latency_min.as_nanos(), link.latency_max.as_nanos());
        let spread = max.saturating_sub(min) as u64;
        let due = sent + min as u64 + random.below(spread + 1);
        due.div_ceil(GRAIN) * GRAIN
    }

    /// When a letter that could arrive at `due` does, so that letters arrive in order.
    pub(super) fn in_order(&mut self, from: HostNumber, to: HostNumber, due: u64) -> u64 {
        let last = self.last_letter.entry((from, to)).or_default();
        *last = due.max(*last);
        *last
    }
}
