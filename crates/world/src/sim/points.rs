//! Where programs of a simulation were (`world::Point`), and the interruption that waits for one of them.

use super::network::HostNumber;
use crate::{Interruption, Point};
use std::collections::BTreeMap;

/// Counts, and at most one interruption.
#[derive(Default)]
pub(super) struct Points {
    passed: BTreeMap<Point, u64>,
    armed: Option<Armed>,
    /// The machine that the last interruption met.
    met: Option<HostNumber>,
}

struct Armed {
    point: Point,
    /// Passes until it happens.
    after: u64,
    how: Interruption,
}

impl Points {
    pub(super) fn arm(&mut self, point: Point, after: u64, how: Interruption) {
        self.met = None;
        self.armed = Some(Armed { point, after, how });
    }

    pub(super) fn disarm(&mut self) -> Option<HostNumber> {
        self.armed = None;
        self.met.take()
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed.is_some()
    }

    pub(super) fn passed(&self) -> BTreeMap<Point, u64> {
        self.passed.clone()
    }

    pub(super) fn reach(&mut self, node: HostNumber, point: Point) -> Option<Interruption> {
        *self.passed.entry(point).or_default() += 1;
        let armed = self.armed.as_mut().filter(|it| it.point == point)?;
        if armed.after > 0 {
            armed.after -= 1;
            return None;
        }
        let how = armed.how;
        (self.armed, self.met) = (None, Some(node));
        Some(how)
    }
}
