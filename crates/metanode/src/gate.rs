//! Lets operations through, or holds them for the moment in which a check looks at everything.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use world::World;

/// Counters, so that threads that work at the same time rarely share one.
const COUNTERS: usize = 16;

/// How often the one who closes looks whether the last operation is through.
const LOOK: Duration = Duration::from_millis(1);

/// Open almost always; two counts per operation then, in memory that other threads don't touch.
#[derive(Default)]
pub(crate) struct Gate {
    closed: AtomicBool,
    inside: [Counter; COUNTERS],
    opened: Notify,
}

/// Operations inside that came through one counter, alone in its cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Counter(AtomicUsize);

/// An operation that is going on.
pub(crate) struct Passing<'a>(&'a Counter);

/// The gate is closed until this is dropped.
pub(crate) struct Closed<'a>(&'a Gate);

impl Gate {
    /// Goes through as soon as the gate is open.
    pub(crate) async fn pass(&self) -> Passing<'_> {
        let counter = &self.inside[number_of_thread() % COUNTERS];
        loop {
            // Each side writes its own and then reads the other's, in one order for all: either
            // who closes sees this operation, or it sees the gate closed.
            counter.0.fetch_add(1, Ordering::SeqCst);
            if !self.closed.load(Ordering::SeqCst) {
                return Passing(counter);
            }
            counter.0.fetch_sub(1, Ordering::SeqCst);
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
        while self.is_anybody_inside() {
            if world.now() >= until {
                return None;
            }
            world.sleep(LOOK).await;
        }
        Some(closed)
    }

    /// Once closed, no counter grows for longer than a moment, so one by one is enough.
    fn is_anybody_inside(&self) -> bool {
        self.inside
            .iter()
            .any(|counter| counter.0.load(Ordering::SeqCst) > 0)
    }
}

/// A number for each thread, given out at its first call.
fn number_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.closed.store(false, Ordering::SeqCst);
        self.0.opened.notify_waiters();
    }
}
