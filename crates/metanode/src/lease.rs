//! Until when this process may answer as an owner.
//!
//! Who keeps the node's lease extends this one ([`OwnerLease::extend`]) whenever the cluster's manager has
//! answered. Each answer to another node is given only while it lasts, looked at after the work, so that no
//! answer of an owner that may have been followed leaves; tokens are promised for no longer. A process that
//! is the whole cluster has an endless one.

use model::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use world::{Instant, World};

/// What is left of a lease without an end.
const ENDLESS: Duration = Duration::from_secs(u64::MAX / 4);

/// The end of a lease that is over until it is extended.
const OVER: u64 = 0;
/// The end of one that is never extended again.
const FINAL: u64 = u64::MAX;

/// A lease, shared by all shards of a process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OwnerLease {
    /// When it ends, in nanoseconds since the machine started; [`OVER`] or [`FINAL`]. `None`: it has no end. Every answer
    /// of this process looks at it, so that must not write to shared memory.
    ends: Option<Arc<AtomicU64>>,
}

impl OwnerLease {
    /// One that lasts for ever.
    #[must_use]
    pub fn endless() -> Self {
        Self { ends: None }
    }

    /// One that has to be extended first.
    #[must_use]
    pub fn not_yet() -> Self {
        Self {
            ends: Some(Arc::new(AtomicU64::new(OVER))),
        }
    }

    /// It lasts until then, at least.
    pub fn extend(&self, until: Instant) {
        let until = nanoseconds(until).min(FINAL - 1);
        self.change(|end| end.max(until));
    }

    /// It is over until it is extended again.
    pub fn void(&self) {
        self.change(|_| OVER);
    }

    /// It is over, for good.
    pub fn end(&self) {
        self.change(|_| FINAL);
    }

    /// Changes the end of a lease that has one, unless that is final.
    fn change(&self, change: impl Fn(u64) -> u64) {
        if let Some(ends) = &self.ends {
            let change = |end: u64| (end != FINAL).then(|| change(end));
            // Nothing changes what is final.
            let _ = ends.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
        }
    }

    /// For how long it lasts; zero if it is over.
    #[must_use]
    pub fn rest(&self, world: &World) -> Duration {
        let Some(ends) = &self.ends else {
            return ENDLESS;
        };
        match ends.load(Ordering::SeqCst) {
            FINAL | OVER => Duration::ZERO,
            end => Duration::from_nanos(end.saturating_sub(nanoseconds(world.now()))),
        }
    }

    /// Whether an answer may leave now.
    ///
    /// # Errors
    /// `OldEpoch`: another owner may have followed; who asked looks for it, and asks it the same.
    pub fn check(&self, world: &World) -> Result<()> {
        if self.rest(world) > Duration::ZERO {
            return Ok(());
        }
        let text = "the owner's lease is over: another node may own the shard by now";
        Err(Error::new(ErrorKind::OldEpoch, text))
    }
}

fn nanoseconds(time: Instant) -> u64 {
    u64::try_from(time.since_start().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use world::sim::Simulation;

    #[test]
    fn a_lease_lasts_until_its_newest_end_and_never_again_after_its_last() {
        let ended = Simulation::new(1).run(|world| async move {
            let second = Duration::from_secs(1);
            OwnerLease::endless().check(&world).unwrap();
            let lease = OwnerLease::not_yet();
            assert_eq!(lease.check(&world).unwrap_err().kind(), ErrorKind::OldEpoch);
            lease.extend(world.now() + second * 2);
            lease.extend(world.now() + second);
            world.sleep(second).await;
            lease.clone().check(&world).unwrap();
            assert_eq!(lease.rest(&world), second);
            world.sleep(second).await;
            lease.check(&world).unwrap_err();
            lease.extend(world.now() + second);
            lease.check(&world).unwrap();
            lease.void();
            lease.check(&world).unwrap_err();
            lease.extend(world.now() + second);
            lease.check(&world).unwrap();
            lease.end();
            lease.extend(world.now() + second);
            lease.check(&world).unwrap_err();
        });
        ended.finished();
    }
}
