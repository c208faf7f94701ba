//! Why connections are refused, and a log of it that no attacker can fill.

use parking_lot::Mutex;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;
use world::{Instant, World};

/// At most one line of each kind in this time, with the number of those in between.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Kinds of refusals: each has lines of its own, so that much of one doesn't hide another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// What came isn't TLS, or breaks its rules.
    Garbage,
    /// The handshake didn't come to its end in time, or broke off.
    Unfinished,
    /// The other side wants another mode or no suite that is allowed here.
    Mode,
    /// The other side can't prove that it is a node of this cluster, or the one that is meant.
    Identity,
    /// The other side refused this node.
    Refused,
    /// A machine may not join.
    Join,
    /// Whoever was let in sends what breaks the rules of frames, or speaks no version of them that is spoken here.
    Frames,
}

const KINDS: usize = 7;

/// A refused connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    pub(crate) kind: Kind,
    pub(crate) why: String,
}

impl Refusal {
    pub(crate) fn new(kind: Kind, why: impl Into<String>) -> Self {
        Self {
            kind,
            why: why.into(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// Counts refusals, and says which get a line.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    counts: Mutex<[Count; KINDS]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    last_line: Option<Instant>,
    /// Since the last line.
    silent: u64,
}

impl Refusals {
    /// Counts one. Gives the number of those that had no line if this one gets one.
    pub(crate) fn counted(&self, kind: Kind, now: Instant) -> Option<u64> {
        let mut counts = self.counts.lock();
        let count = &mut counts[kind as usize];
        if count
            .last_line
            .is_some_and(|last| now.since(last) < LINE_EVERY)
        {
            count.silent += 1;
            return None;
        }
        count.last_line = Some(now);
        Some(std::mem::take(&mut count.silent))
    }

    /// Counts one that somebody else opened, and logs it now and then.
    pub(crate) fn taken(&self, world: &World, from: Option<IpAddr>, refusal: &Refusal) {
        if let Some(before) = self.counted(refusal.kind, world.now()) {
            let (from, why) = (shown(from), &refusal.why);
            tracing::warn!(from, before, why, "a connection was refused");
        }
    }

    /// Counts one that this node opened, and logs it now and then, unless it just broke: nodes that
    /// start and stop aren't worth a line.
    pub(crate) fn opened(&self, world: &World, to: Option<IpAddr>, refusal: &Refusal) {
        if refusal.kind == Kind::Unfinished {
            return;
        }
        if let Some(before) = self.counted(refusal.kind, world.now()) {
            let (to, why) = (shown(to), &refusal.why);
            tracing::warn!(to, before, why, "a connection couldn't be made");
        }
    }
}

fn shown(address: Option<IpAddr>) -> String {
    address.map_or_else(|| "unknown".into(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use world::sim::Simulation;

    #[test]
    fn a_flood_of_refusals_is_a_line_every_ten_seconds() {
        let lines = Simulation::new(1).run(|world| async move {
            let refusals = Refusals::default();
            let mut lines = Vec::new();
            for _ in 0..3000 {
                lines.extend(refusals.counted(Kind::Garbage, world.now()));
                world.sleep(Duration::from_millis(10)).await;
            }
            assert_eq!(refusals.counted(Kind::Identity, world.now()), Some(0));
            lines
        });
        let lines = lines.finished();
        assert_eq!(lines.len(), 3, "in 30 s: {lines:?}");
        assert!(lines[1] > 900 && lines[1] + lines[2] < 2999, "{lines:?}");
    }
}
