//! Keeps what owners rewrite below a limit, when nothing is lost if it takes longer: after a change of the scheme, and to
//! make shares equal. Cleaning, which programs may wait for, and data that lacks redundancy don't wait.
//!
//! What was read and written is owed, and time pays it: while more than a second's worth is owed, a round rewrites
//! nothing and does its other work. So nothing sleeps in a round, which would hold up freeing. All owners of a node
//! owe together: the limit is of each node.

use crate::background::{Pace, Surveys};
use crate::host::Host;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use world::{Debt, Instant};

/// While more is owed than this takes, nothing is rewritten.
const OWED_MAX: Duration = Duration::from_secs(1);

/// What the owners on a node of a cluster hear of the servers that look through the pool's groups, and what these owners
/// may rewrite together.
#[derive(Default, Debug)]
pub struct Servers {
    is_calm: AtomicBool,
    limited: Mutex<Limited>,
}

#[derive(Default, Debug)]
struct Limited {
    /// 0: there is no limit.
    bytes_per_second: u64,
    /// What was read and written and isn't paid yet.
    debt: Debt,
}

impl Limited {
    /// Time has passed.
    fn pay(&mut self, now: Instant) {
        self.debt.pay(now, self.bytes_per_second);
    }
}

impl Servers {
    /// Whether no repair is under way or was never tried, as the manager said last. Owners balance only then.
    pub fn set_calm(&self, is_calm: bool) {
        self.is_calm.store(is_calm, Ordering::Relaxed);
    }

    pub(super) fn is_calm(&self) -> bool {
        self.is_calm.load(Ordering::Relaxed)
    }

    /// What the owners here may read and write together from now on, when they move data that is safe where it is. 0: as
    /// much as they can, as before the first call.
    pub fn limit(&self, bytes_per_second: u64, now: Instant) {
        let mut limited = self.limited.lock();
        limited.pay(now);
        let before = limited.bytes_per_second;
        if bytes_per_second < before {
            // What the higher limit allowed isn't paid at the lower one.
            limited.debt.change_pace(before, bytes_per_second);
        }
        limited.bytes_per_second = bytes_per_second;
    }

    /// How many bytes may be read and written now at once. 0: what was is to be paid first.
    fn allowed(&self, now: Instant) -> u64 {
        let mut limited = self.limited.lock();
        if limited.bytes_per_second == 0 {
            return u64::MAX;
        }
        limited.pay(now);
        match limited.debt.rest(limited.bytes_per_second) <= OWED_MAX {
            true => limited.bytes_per_second,
            false => 0,
        }
    }

    /// These bytes are read or written.
    fn owe(&self, bytes: u64, now: Instant) {
        let mut limited = self.limited.lock();
        if limited.bytes_per_second > 0 {
            limited.pay(now);
            limited.debt.owe(bytes);
        }
    }
}

/// What one owner's jobs may rewrite.
#[derive(Clone)]
pub(super) struct Allowance {
    host: Arc<Host>,
    surveys: Surveys,
}

impl Allowance {
    pub(super) fn new(host: Arc<Host>, surveys: Surveys) -> Self {
        Self { host, surveys }
    }

    /// How many bytes of files a round may rewrite now. 0: none until what was rewritten before is paid.
    pub(super) fn of_round(&self, pace: Pace) -> u64 {
        let (Surveys::ByServers(servers), Pace::Gentle) = (&self.surveys, pace) else {
            return u64::MAX;
        };
        let allowed = servers.allowed(self.host.world().now());
        let (data, all) = self.pieces();
        // Each byte is read, and written with its redundancy.
        match allowed {
            0 => 0,
            allowed => (allowed / (data + all)).saturating_mul(data).max(1),
        }
    }

    /// Bytes were read, and such that files have are written with redundancy.
    pub(super) fn take(&self, read: u64, of_files: u64) {
        if let Surveys::ByServers(servers) = &self.surveys {
            let (data, all) = self.pieces();
            let written = of_files.saturating_mul(all).div_ceil(data);
            let now = self.host.world().now();
            servers.owe(read.saturating_add(written), now);
        }
    }

    /// How many pieces a new segment has with data, and in all.
    fn pieces(&self) -> (u64, u64) {
        let scheme = self.host.pool().map().scheme();
        (scheme.data_pieces() as u64, scheme.width() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use world::World;
    use world::sim::Simulation;

    /// Runs with any point of time, which only a world has.
    fn at_a_time(test: impl Fn(Instant)) {
        let simulation = Simulation::new(1);
        let ran = simulation.run(|world: World| async move { test(world.now()) });
        ran.finished();
    }

    #[test]
    fn what_was_rewritten_is_paid_for_before_more_is() {
        at_a_time(|begun| {
            let at = |millis| begun + Duration::from_millis(millis);
            let servers = Servers::default();
            servers.owe(1 << 40, at(0));
            assert_eq!(servers.allowed(at(0)), u64::MAX, "nobody set a limit");
            servers.limit(1_000, at(0));
            assert_eq!(servers.allowed(at(0)), 1_000);
            // Two owners.
            servers.owe(2_000, at(0));
            servers.owe(1_000, at(500));
            assert_eq!(servers.allowed(at(1_999)), 0);
            assert_eq!(servers.allowed(at(2_000)), 1_000);
            servers.owe(1_001, at(2_000));
            assert_eq!(servers.allowed(at(3_000)), 0);
            assert_eq!(servers.allowed(at(3_001)), 1_000);
            // Whoever has rested has saved nothing.
            servers.owe(3_000, at(60_000));
            assert_eq!(servers.allowed(at(61_999)), 0);
            assert_eq!(servers.allowed(at(62_000)), 1_000);
        });
    }

    #[test]
    fn a_new_limit_counts_at_once() {
        at_a_time(|begun| {
            let at = |millis| begun + Duration::from_millis(millis);
            let servers = Servers::default();
            servers.limit(1_000, at(0));
            servers.owe(1_000_000, at(0));
            servers.limit(1_000_000, at(1));
            assert_eq!(servers.allowed(at(1)), 1_000_000);
            // What was allowed isn't paid for by minutes of a lower limit.
            servers.owe(1_000_000, at(2_000));
            servers.owe(1_000_000, at(2_000));
            servers.limit(1_000, at(2_000));
            assert_eq!(servers.allowed(at(2_999)), 0);
            assert_eq!(servers.allowed(at(3_000)), 1_000);
            servers.limit(0, at(3_000));
            assert_eq!(servers.allowed(at(3_000)), u64::MAX);
            // A number that lies does no harm.
            servers.limit(u64::MAX, at(3_000));
            servers.owe(u64::MAX, at(3_000));
            servers.limit(u64::MAX - 1, at(4_000));
            assert_eq!(servers.allowed(at(9_000)), u64::MAX - 1);
        });
    }
}
