//! What happens to many nodes, part by part, and what each part may cost.

use super::crowd::{Counted, Crowd, RACK};

/// What a manager may receive, send and store, for each node.
pub(crate) struct Bounds {
    /// Messages received for each node and second.
    pub(crate) received: f64,
    /// Messages sent for each node and second.
    pub(crate) sent: f64,
    /// Bytes of all of them for each node and second.
    pub(crate) bytes: f64,
    /// Memberships stored in a part.
    pub(crate) stored: u64,
    /// Bytes of the record of the members, for each node.
    pub(crate) record_bytes: u64,
}

/// A heartbeat every two seconds with its answer, and some more when something happens.
pub(crate) const BOUNDS: Bounds = Bounds {
    received: 0.6,
    sent: 0.7,
    bytes: 500.0,
    stored: 24,
    record_bytes: 12,
};

pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) counted: Counted,
}

impl Part {
    pub(crate) fn check(&self, nodes: u32, bounds: &Bounds) -> Result<(), String> {
        let Counted {
            seconds,
            received,
            sent,
            bytes,
            stored,
            record_bytes,
            ..
        } = self.counted;
        let each = |sum: u64| sum as f64 / seconds as f64 / f64::from(nodes);
        let is_within = each(received) <= bounds.received
            && each(sent) <= bounds.sent
            && each(bytes) <= bounds.bytes
            && stored <= bounds.stored
            && record_bytes <= bounds.record_bytes * u64::from(nodes);
        match is_within {
            true => Ok(()),
            false => Err(format!("{}: {:?}", self.name, self.counted)),
        }
    }
}

/// The parts, one after the other; `after` sees the crowd at the end of each.
pub(crate) fn story(crowd: &mut Crowd, mut after: impl FnMut(&mut Crowd)) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut last = crowd.counted;
    let mut part = |name, crowd: &mut Crowd, seconds| {
        for _ in 0..seconds {
            crowd.second();
        }
        let counted = crowd.counted.since(last);
        last = crowd.counted;
        after(crowd);
        parts.push(Part { name, counted });
    };
    let nodes = crowd.serving_max();
    part("all begin; every group is looked at", crowd, 220);
    assert_eq!(crowd.brain.planner.status().repairs, 0, "all was looked at");
    part("nothing happens", crowd, 20);
    assert_eq!((crowd.serving(), crowd.served()), (nodes, nodes));
    crowd.kill_rack(1);
    part("a rack dies", crowd, 20);
    let left = nodes - RACK as usize;
    assert_eq!((crowd.serving(), crowd.served()), (left, nodes));
    crowd.lose_rack(1);
    part("its NSDs are given up", crowd, 20);
    let before = crowd.brain.planner.status().degraded;
    assert!(before > 0, "slots move");
    crowd.change_manager();
    part("another manager, in the middle", crowd, 30);
    let after = crowd.brain.planner.status().degraded;
    assert!(after < before, "it goes on: {after} of {before}");
    assert_eq!((crowd.serving(), crowd.served()), (left, nodes));
    part("until all is repaired", crowd, 300);
    let status = crowd.brain.planner.status();
    assert_eq!((status.repairs, status.degraded), (0, 0));
    parts
}
