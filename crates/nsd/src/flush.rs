//! Shared flushes: each flush serves all callers that were waiting when it began.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use world::{Disk, Driven};

type Flushed = Result<(), Arc<std::io::Error>>;

/// Runs one flush at a time; callers that come while it runs share the next one. Log puts need no
/// flush and don't wait for it.
#[derive(Default)]
pub(crate) struct Flusher {
    last: Mutex<Option<Round>>,
}

#[derive(Clone)]
struct Round {
    begun: Arc<AtomicBool>,
    done: Driven<Flushed>,
}

impl Flusher {
    /// When this returns, all writes completed before the call are durable. Once one has failed, all do.
    pub(crate) async fn flush(&self, disk: &Disk) -> Flushed {
        self.join(disk).wait().await
    }

    fn join(&self, disk: &Disk) -> Driven<Flushed> {
        let mut last = self.last.lock();
        if let Some(round) = &*last
            && !round.begun.load(Ordering::Acquire)
        {
            return round.done.clone();
        }
        let begun = Arc::new(AtomicBool::new(false));
        let before = last.take().map(|round| round.done);
        let (disk, begins) = (disk.clone(), begun.clone());
        let done = Driven::new(async move {
            if let Some(before) = before {
                // A flush that succeeds after one that failed doesn't prove that what was written before is durable:
                // Linux reports such an error once.
                before.wait().await?;
            }
            begins.store(true, Ordering::Release);
            disk.flush().await.map_err(Arc::new)
        });
        *last = Some(Round {
            begun,
            done: done.clone(),
        });
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use world::sim::Simulation;

    #[test]
    fn nothing_is_durable_after_a_flush_that_failed() {
        let simulation = Simulation::new(1);
        simulation.disk("d", 1 << 20);
        let faults = simulation.faults();
        simulation
            .run(async |world: world::World| {
                let disk = world.open_disk("d".as_ref()).unwrap();
                let flusher = Flusher::default();
                faults.fail("d");
                assert!(flusher.flush(&disk).await.is_err());
                faults.heal("d");
                disk.flush().await.unwrap();
                assert!(flusher.flush(&disk).await.is_err());
            })
            .finished();
    }

    #[test]
    fn many_waiting_callers_share_few_flushes() {
        let simulation = Simulation::new(1);
        simulation.disk("d", 1 << 20);
        simulation
            .run(async |world: world::World| {
                let disk = world.open_disk("d".as_ref()).unwrap();
                let flusher = Flusher::default();
                let all = (0..20).map(|_| flusher.flush(&disk));
                for done in futures::future::join_all(all).await {
                    done.unwrap();
                }
                flusher.flush(&disk).await.unwrap();
            })
            .finished();
        assert!(simulation.io_count() <= 3, "{}", simulation.io_count());
    }
}
