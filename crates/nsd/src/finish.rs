//! A future that always completes: if its caller goes away, it continues as a task.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use world::World;

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Runs on the caller's thread as long as the caller polls; spawned as a task when dropped.
///
/// A dropped disk write may still happen, so its range must not be reused before the write has
/// ended.
pub(crate) struct Finish<T: Send + 'static> {
    work: Option<Work<T>>,
    world: World,
}

impl<T: Send + 'static> Finish<T> {
    pub(crate) fn new(world: &World, work: impl Future<Output = T> + Send + 'static) -> Self {
        Self {
            work: Some(Box::pin(work)),
            world: world.clone(),
        }
    }
}

impl<T: Send + 'static> Future for Finish<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let work = self.work.as_mut().expect("not polled after completion");
        let result = work.as_mut().poll(context);
        if result.is_ready() {
            self.work = None;
        }
        result
    }
}

impl<T: Send + 'static> Drop for Finish<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.world.spawn("nsd: finish", work).detach();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    #[test]
    fn work_whose_caller_went_away_is_finished() {
        let simulation = world::sim::Simulation::new(1);
        let done = std::sync::Arc::new(AtomicBool::new(false));
        let seen = done.clone();
        simulation
            .run(async |world: World| {
                let sleeper = world.clone();
                let work = Finish::new(&world, async move {
                    sleeper.sleep(Duration::from_secs(5)).await;
                    done.store(true, Ordering::SeqCst);
                });
                assert!(world.timeout(Duration::from_secs(1), work).await.is_err());
                assert!(!seen.load(Ordering::SeqCst));
                world.sleep(Duration::from_secs(5)).await;
                assert!(seen.load(Ordering::SeqCst));
            })
            .finished();
    }
}
