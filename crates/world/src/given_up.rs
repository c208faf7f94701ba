//! Errands that nobody wants any more, because their programs were killed while they wait. Whoever waits for something that
//! may not come for long asks whether it still should ([`World::is_given_up`](crate::World::is_given_up)).

use crate::Errand;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The errands of a machine that are given up: at most as many as requests of programs wait there.
#[derive(Debug, Default)]
pub(crate) struct Unwanted {
    /// How many there are: looked at without the lock, since mostly there are none.
    count: AtomicUsize,
    traces: Mutex<BTreeSet<u64>>,
}

/// As long as this exists, an errand is given up.
#[derive(Debug)]
pub struct GivenUp {
    all: Arc<Unwanted>,
    trace: u64,
}

impl Unwanted {
    /// Gives an errand up.
    pub(crate) fn add(self: &Arc<Self>, errand: Errand) -> GivenUp {
        assert!(!errand.is_none(), "it is somebody's errand");
        let mut traces = self.traces.lock();
        assert!(traces.insert(errand.trace), "it is given up once");
        self.count.store(traces.len(), Ordering::Release);
        drop(traces);
        GivenUp {
            all: self.clone(),
            trace: errand.trace,
        }
    }

    /// Whether there are any.
    pub(crate) fn is_any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Whether an errand is among them. One of another node's program isn't, whatever its number is.
    pub(crate) fn has(&self, errand: Errand) -> bool {
        errand.from.is_none() && self.traces.lock().contains(&errand.trace)
    }
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        let mut traces = self.all.traces.lock();
        traces.remove(&self.trace);
        self.all.count.store(traces.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use crate::errand;
    use crate::sim::Simulation;
    use model::NodeId;

    /// Would be broken if another program's request ended, or work that several wait for, or if anything stayed behind.
    #[test]
    fn only_the_errand_that_is_given_up_hears_of_it() {
        let ran = Simulation::new(1).run(|world| async move {
            let outer = &world;
            errand::begin(async move {
                let world = outer;
                let own = world.errand();
                assert!(!world.is_given_up());
                let given_up = world.give_up(own);
                assert!(world.is_given_up());
                assert!(!errand::undisturbed(async { world.is_given_up() }).await);
                let other = async {
                    let _numbered = world.errand();
                    world.is_given_up()
                };
                assert!(!errand::begin(other).await);
                let served = errand::within(own.trace, NodeId(7), async { world.is_given_up() });
                assert!(!served.await, "that is another node's");
                assert!(world.is_given_up());
                drop(given_up);
                assert!(!world.is_given_up());
            })
            .await;
            assert!(!world.is_given_up(), "outside of any");
        });
        ran.finished();
    }
}
