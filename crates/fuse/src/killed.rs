//! Requests whose programs were killed while they wait.
//!
//! Once the daemon has read a request, the kernel lets no program go before the answer comes, not even one that is killed. So
//! a wait for something that may be away for long (an owner, a lease, nodes with the data) ends when its program is killed, and
//! the request is answered at once. Only then: `INTERRUPT` comes for any signal, also for one that the program handles, and it
//! would see an error of something that has happened, or happens later. A program that dies can't.
//!
//! `INTERRUPT` only makes the look at the program come sooner. The kernel sends it once, for the first signal, and over io_uring
//! none for a signal that came before the request was handed over; so those that wait are looked at all the time.

use crate::signals::is_killed;
use crate::waiting::Waiting;
use std::time::Duration;
use world::World;

/// How often it is looked whether programs were killed, and how long their requests have waited then.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The program of a request has got a signal: ends its wait if that kills it.
pub(crate) fn end_if_killed(waiting: &Waiting, unique: u64, world: &World) {
    if let Some(mortal) = waiting.mortal(unique)
        && is_killed(mortal.pid)
    {
        waiting.give_up(unique, world);
    }
}

/// Ends the waits of all programs that were killed, if they have lasted for a while.
pub(crate) fn end_killed(waiting: &Waiting, world: &World) {
    let mortals = waiting.mortals(world.now(), LOOK_EVERY);
    for killed in mortals.into_iter().filter(|it| is_killed(it.pid)) {
        waiting.give_up(killed.unique, world);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{InHeader, opcode};
    use crate::request::Incoming;
    use crate::waiting::Mortal;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};
    use world::errand;
    use world::sim::Simulation;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn request(unique: u64, code: u32, pid: u32) -> Incoming<'static> {
        Incoming {
            header: InHeader {
                unique,
                opcode: code,
                pid,
                ..InHeader::default()
            },
            fixed: &[],
            rest: &[],
        }
    }

    /// Would be broken if an `INTERRUPT` that comes early or late did something, if a request were given up twice, or if it
    /// stayed given up when it has ended.
    #[test]
    fn a_request_is_given_up_while_it_waits_and_once() {
        let ran = Simulation::new(1).run(async |world: World| {
            let waiting = Waiting::default();
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(woken.clone());
            waiting.give_up(1, &world);
            assert_eq!(waiting.mortal(1), None, "it doesn't wait yet");
            errand::begin(async {
                let one = request(1, opcode::MKDIR, 7);
                waiting.begin(&one, world.now(), world.errand(), waker.clone());
                let other = request(2, opcode::READ, 8);
                let errand = errand::begin(async { world.errand() }).await;
                waiting.begin(&other, world.now(), errand, waker.clone());
                for (unique, code, pid) in [(3, opcode::FLUSH, 7), (4, opcode::READ, 0)] {
                    let kept = request(unique, code, pid);
                    let errand = errand::begin(async { world.errand() }).await;
                    waiting.begin(&kept, world.now(), errand, waker.clone());
                    assert_eq!(waiting.mortal(unique), None);
                }
                assert!(waiting.mortals(world.now(), LOOK_EVERY).is_empty());
                let mut mortals = waiting.mortals(world.now() + LOOK_EVERY, LOOK_EVERY);
                mortals.sort_unstable_by_key(|mortal| mortal.unique);
                let all = [(1, 7), (2, 8)].map(|(unique, pid)| Mortal { unique, pid });
                assert_eq!(mortals, all);
                assert!(!world.is_given_up());
                waiting.give_up(1, &world);
                waiting.give_up(1, &world);
                assert_eq!(woken.0.load(Ordering::Relaxed), 1);
                assert!(world.is_given_up());
                assert_eq!(waiting.mortal(1), None);
                assert_eq!(waiting.mortal(2), Some(all[1]));
                waiting.end(1, world.now());
                assert!(!world.is_given_up());
                waiting.give_up(1, &world);
                assert!(!world.is_given_up());
            })
            .await;
        });
        ran.finished();
    }
}
