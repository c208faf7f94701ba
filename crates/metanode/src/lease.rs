//! Until when this process may answer as an owner.
//!
//! Who keeps the node's lease extends this one ([`OwnerLease::extend`]) whenever the cluster's manager has
//! answered. Each answer to another node is given only while it lasts, looked at after the work, so that no
//! answer of an owner that may have been followed leaves; tokens are promised for no longer. A process that
//! is the whole cluster has an endless one.

use model::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use world::{Instant, World};

/// What is left of a lease without an end.
const ENDLESS: Duration = Duration::from_secs(u64::MAX / 4);

/// A lease, shared by all shards of a process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OwnerLease {
    /// `None`: it has no end.
    ends: Option<Arc<Mutex<Ends>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    /// `None` before the first one.
    at: Option<Instant>,
    /// It is never extended again.
    is_final: bool,
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
            ends: Some(Arc::default()),
        }
    }

    /// It lasts until then, at least.
    pub fn extend(&self, until: Instant) {
        if let Some(ends) = &self.ends {
            let mut ends = ends.lock();
            if !ends.is_final {
                ends.at = ends.at.max(Some(until));
            }
        }
    }

    /// It is over until it is extended again.
    pub fn void(&self) {
        if let Some(ends) = &self.ends {
            ends.lock().at = None;
        }
    }

    /// It is over, for good.
    pub fn end(&self) {
        if let Some(ends) = &self.ends {
            *ends.lock() = Ends {
                at: None,
                is_final: true,
            };
        }
    }

    /// For how long it lasts; zero if it is over.
    #[must_use]
    pub fn rest(&self, world: &World) -> Duration {
        match &self.ends {
            None => ENDLESS,
            Some(ends) => {
                let at = ends.lock().at;
                at.map_or(Duration::ZERO, |at| at.since(world.now()))
            }
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
