//! Lets the requests of a mount begin, or has them wait while somebody exchanges what answers them.
//!
//! *A request* enters before it asks the file system, and leaves with its answer. *Who holds the gate* ([`Held`]) lets none
//! begin, and waits until none is inside. A wait for another program's lock may last for ever: it is broken off, leaves, and
//! asks again when it may enter again. A request whose program is killed before it has entered is answered without. *A gate that
//! refuses* lets none in any more: what answers them has gone.
//!
//! They are counted in parts, so that threads don't wait for each other's writes. Who enters counts and then looks whether the
//! gate is shut; who shuts it does that and then counts. Both in one order that all threads agree on: one of them sees the other.

use crate::locks::LockWaits;
use model::{Error, ErrorKind, Result};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::Notify;
use world::World;

/// Parts of the count.
const PARTS: usize = 64;

/// Requests enter.
const OPEN: u8 = 0;
/// They wait: somebody holds the gate.
const SHUT: u8 = 1;
/// None enters any more.
const REFUSES: u8 = 2;

/// The part of the next thread.
static NEXT_PART: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// In which part the requests count that enter on this thread.
    static OWN_PART: usize = NEXT_PART.fetch_add(1, Ordering::Relaxed) % PARTS;
}

/// Requests inside, as some threads have counted them.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Part(AtomicUsize);

/// The gate of one mount.
#[derive(Debug)]
pub(crate) struct Gate {
    parts: [Part; PARTS],
    state: AtomicU8,
    /// Signals that a request has left while it wasn't open.
    left: Notify,
    /// Signals that it was opened, or refuses.
    changed: Notify,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            parts: std::array::from_fn(|_| Part::default()),
            state: AtomicU8::new(OPEN),
            left: Notify::new(),
            changed: Notify::new(),
        }
    }
}

/// A request that is inside; dropped, it has left.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    gate: &'a Gate,
    part: usize,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.gate.parts[self.part].0.fetch_sub(1, Ordering::SeqCst);
        if self.gate.state() != OPEN {
            self.gate.left.notify_waiters();
        }
    }
}

/// As long as this exists, no request of a mount begins, and none is under way: see [`crate::Mount::hold`].
#[derive(Debug)]
pub struct Held {
    gate: Arc<Gate>,
    waits: Arc<LockWaits>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.waits.go_on();
        // Unless it refuses by now.
        if self.gate.turn(SHUT, OPEN).is_ok() {
            self.gate.changed.notify_waiters();
        }
    }
}

impl Gate {
    fn state(&self) -> u8 {
        self.state.load(Ordering::SeqCst)
    }

    /// From one state to another, if it is in that one.
    ///
    /// # Errors
    /// In which it is.
    fn turn(&self, from: u8, to: u8) -> std::result::Result<u8, u8> {
        let order = Ordering::SeqCst;
        self.state.compare_exchange(from, to, order, order)
    }

    /// Waits until the gate is open, and enters. `None`: its program was killed while it waited, or the gate refuses.
    pub(crate) async fn enter<'a>(&'a self, world: &World) -> Option<Inside<'a>> {
        match self.enter_now() {
            Some(inside) => Some(inside),
            // Boxed because it is rare: otherwise every request's future would contain it.
            None => Box::pin(self.enter_later(world)).await,
        }
    }

    async fn enter_later<'a>(&'a self, world: &World) -> Option<Inside<'a>> {
        loop {
            // First: that it is opened then isn't missed.
            let mut changed = pin!(self.changed.notified());
            if let Some(inside) = self.enter_now() {
                return Some(inside);
            }
            // Whoever gives a request up wakes it.
            let has_changed = poll_fn(|context| match world.is_given_up() || self.refuses() {
                true => Poll::Ready(false),
                false => changed.as_mut().poll(context).map(|()| true),
            });
            if !has_changed.await {
                return None;
            }
        }
    }

    /// Enters, unless somebody holds it, or it refuses.
    pub(crate) fn enter_now(&self) -> Option<Inside<'_>> {
        let part = OWN_PART.with(|own| *own);
        self.parts[part].0.fetch_add(1, Ordering::SeqCst);
        let inside = Inside { gate: self, part };
        (self.state() == OPEN).then_some(inside)
    }

    /// Lets none in any more, and who waits before it goes. Those inside are still to leave: see [`Gate::until_empty`].
    pub(crate) fn refuse(&self) {
        self.state.store(REFUSES, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Whether it lets none in any more.
    pub(crate) fn refuses(&self) -> bool {
        self.state() == REFUSES
    }

    /// Waits until it lets none in any more.
    pub(crate) async fn until_refusing(&self) {
        until(&self.changed, || self.refuses()).await;
    }

    /// Shuts the gate until the result is dropped, breaks waits for locks off, and waits until no request is inside.
    ///
    /// # Errors
    /// `Busy`: some are still inside after so long, and it is open again; or somebody else holds it, or it refuses.
    pub(crate) async fn hold(
        self: &Arc<Self>,
        waits: &Arc<LockWaits>,
        world: &World,
        most: Duration,
    ) -> Result<Held> {
        if let Err(state) = self.turn(OPEN, SHUT) {
            let text = match state {
                REFUSES => "its requests are refused",
                _ => "its requests are held already",
            };
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let held = Held {
            gate: self.clone(),
            waits: waits.clone(),
        };
        waits.break_off();
        let emptied = world.timeout(most, self.until_empty()).await;
        emptied.map(|()| held).map_err(|_| {
            let text = "requests of programs wait for something; `shale waiters` shows them";
            Error::new(ErrorKind::Busy, text)
        })
    }

    /// Waits until no request is inside. To be called when none can enter.
    pub(crate) async fn until_empty(&self) {
        until(&self.left, || self.is_empty()).await;
    }

    fn is_empty(&self) -> bool {
        let count = |part: &Part| part.0.load(Ordering::SeqCst);
        self.parts.iter().all(|part| count(part) == 0)
    }
}

/// Waits until something holds, of which `signal` tells.
async fn until(signal: &Notify, holds: impl Fn() -> bool) {
    loop {
        // First: what is told then isn't missed.
        let told = signal.notified();
        if holds() {
            return;
        }
        told.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use world::sim::Simulation;

    const SOON: Duration = Duration::from_secs(1);

    fn new() -> (Arc<Gate>, Arc<LockWaits>) {
        (Arc::default(), Arc::default())
    }

    /// Would be broken if a request began while what answers it is exchanged, or if none began any more afterwards.
    #[test]
    fn no_request_begins_while_somebody_holds_the_gate() {
        let ran = Simulation::new(1).run(async |world: World| {
            let (gate, waits) = new();
            let held = gate.hold(&waits, &world, SOON).await.unwrap();
            let twice = gate.hold(&waits, &world, SOON).await.unwrap_err();
            assert_eq!(twice.kind(), ErrorKind::Busy);
            let entered = world.timeout(SOON, gate.enter(&world)).await;
            assert!(entered.is_err(), "also after somebody else has tried");
            let begun = world.now();
            let let_go = async {
                world.sleep(SOON).await;
                drop(held);
            };
            let (inside, ()) = tokio::join!(gate.enter(&world), let_go);
            assert_eq!(world.now() - begun, SOON);
            assert!(inside.is_some());
            drop(inside);
            drop(gate.enter(&world).await);
        });
        ran.finished();
    }

    /// Would be broken if what answers requests were exchanged while one is under way.
    #[test]
    fn who_holds_the_gate_waits_for_requests_that_are_inside() {
        let ran = Simulation::new(2).run(async |world: World| {
            let (gate, waits) = new();
            let (first, second) = (gate.enter(&world).await, gate.enter(&world).await);
            let refused = gate.hold(&waits, &world, SOON).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Busy);
            drop((gate.enter(&world).await, first));
            let begun = world.now();
            let leaves = async {
                world.sleep(SOON).await;
                drop(second);
            };
            let (held, ()) = tokio::join!(gate.hold(&waits, &world, SOON * 2), leaves);
            assert_eq!(world.now() - begun, SOON);
            drop(held.unwrap());
        });
        ran.finished();
    }

    /// Would be broken if a request asked what has gone, also after a pause, if one waited for it for ever, or if what is left of
    /// a mount were given up under a request.
    #[test]
    fn nobody_enters_a_gate_that_refuses_and_who_waits_before_it_goes() {
        let ran = Simulation::new(3).run(async |world: World| {
            let (gate, waits) = new();
            let held = gate.hold(&waits, &world, SOON).await.unwrap();
            let refuses = async {
                world.sleep(SOON).await;
                gate.refuse();
            };
            let (entered, (), ()) =
                tokio::join!(gate.enter(&world), gate.until_refusing(), refuses);
            assert!(entered.is_none());
            drop(held);
            assert!(gate.refuses() && gate.enter(&world).await.is_none());
            let refused = gate.hold(&waits, &world, SOON).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Busy);

            let (gate, _) = new();
            let inside = gate.enter(&world).await;
            assert!(inside.is_some());
            gate.refuse();
            let begun = world.now();
            let leaves = async {
                world.sleep(SOON).await;
                drop(inside);
            };
            tokio::join!(gate.until_empty(), leaves);
            assert_eq!(world.now() - begun, SOON);
        });
        ran.finished();
    }
}
