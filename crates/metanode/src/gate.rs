//! Lets operations through, or holds them for the moment in which a check looks at everything.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use world::World;

/// How often the one who closes looks whether the last operation is through.
const LOOK: Duration = Duration::from_millis(1);

/// Open almost always; two atomic counts per operation then.
#[derive(Default)]
pub(crate) struct Gate {
    closed: AtomicBool,
    inside: AtomicUsize,
    opened: Notify,
}

/// An operation that is going on.
pub(crate) struct Passing<'a>(&'a Gate);

/// The gate is closed until this is dropped.
pub(crate) struct Closed<'a>(&'a Gate);

impl Gate {
    /// Goes through as soon as the gate is open.
    pub(crate) async fn pass(&self) -> Passing<'_> {
        loop {
            self.inside.fetch_add(1, Ordering::SeqCst);
            if !self.closed.load(Ordering::SeqCst) {
                return Passing(self);
            }
            self.inside.fetch_sub(1, Ordering::SeqCst);
            let opened = self.opened.notified();
            tokio::pin!(opened);
            opened.as_mut().enable();
            if self.closed.load(Ordering::SeqCst) {
                opened.await;
            }
        }
    }

    /// Closes and waits until nobody is inside, at most for `patience`. One caller at a time.
    pub(crate) async fn close(&self, world: &World, patience: Duration) -> Option<Closed<'_>> {
        self.closed.store(true, Ordering::SeqCst);
        let closed = Closed(self);
        let until = world.now() + patience;
        while self.inside.load(Ordering::SeqCst) > 0 {
            if world.now() >= until {
                return None;
            }
            world.sleep(LOOK).await;
        }
        Some(closed)
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.closed.store(false, Ordering::SeqCst);
        self.0.opened.notify_waiters();
    }
}
