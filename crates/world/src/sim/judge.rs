//! The future outside all machines that drives a run of several of them.

use super::cluster::Shared;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// What a judge sees and waits with; cheap to clone. It is polled at most once in a simulated
/// millisecond, and has no runtime: timers and disks of a `World` are for programs only.
#[derive(Clone)]
pub struct Judge {
    shared: Arc<Shared>,
}

/// When the judge is to be woken.
#[derive(Default)]
pub(super) struct Timers {
    wakers: BTreeMap<(u64, u64), Waker>,
    next: u64,
}

impl Timers {
    pub(super) fn wake_due(&mut self, now: u64) {
        while let Some(first) = self.wakers.first_entry()
            && first.key().0 <= now
        {
            first.remove().wake();
        }
    }

    pub(super) fn clear(&mut self) {
        self.wakers.clear();
    }

    fn wake_at(&mut self, due: u64, waker: &Waker) {
        self.next += 1;
        self.wakers.insert((due, self.next), waker.clone());
    }
}

impl Judge {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Simulated time since the cluster was made. No machine's clock shows it.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.shared.now())
    }

    /// Waits while the programs run.
    pub async fn sleep(&self, duration: Duration) {
        let due = self.shared.now() + duration.as_nanos() as u64;
        poll_fn(|context| {
            if self.shared.now() >= due {
                return Poll::Ready(());
            }
            self.shared.timers.lock().wake_at(due, context.waker());
            Poll::Pending
        })
        .await;
    }

    /// Waits until `condition` holds; it is looked at after every millisecond.
    ///
    /// # Panics
    /// If it doesn't hold within `patience`, with what waits on each machine.
    pub async fn until(
        &self,
        promise: &str,
        patience: Duration,
        mut condition: impl FnMut() -> bool,
    ) {
        let holds = async {
            while !condition() {
                self.sleep(Duration::from_millis(1)).await;
            }
        };
        self.within(promise, patience, holds).await;
    }

    /// Waits for `future`.
    ///
    /// # Panics
    /// If it isn't ready within `patience`, with what waits on each machine.
    pub async fn within<F: Future>(
        &self,
        promise: &str,
        patience: Duration,
        future: F,
    ) -> F::Output {
        let (mut future, mut late) = (pin!(future), pin!(self.sleep(patience)));
        poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(output);
            }
            if late.as_mut().poll(context).is_ready() {
                let seed = self.shared.seed;
                let waiting = self.shared.machine.lock().describe_waiting();
                panic!("not within {patience:?}: {promise} (seed {seed}); {waiting}");
            }
            Poll::Pending
        })
        .await
    }
}
