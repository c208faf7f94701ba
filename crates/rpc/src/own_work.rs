//! Short requests, which a connection's task runs itself, between receiving and sending. No I/O.
//!
//! If each had a task of its own, another thread would be woken as soon as two of them came, or ended, at the same time,
//! and each would send its answer by itself. Here all that have come begin in one go, one wake-up is enough for all whose
//! waits are over, and their answers leave together. (`FuturesUnordered` wakes its own task whenever it has gone through all
//! of them: that would run once more for each batch, on another thread.)

use futures::future::BoxFuture;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use world::Map;

/// Requests by their numbers, with outcomes of type `T`. One task takes them on and goes on with them.
pub(crate) struct OwnWork<T> {
    running: Mutex<Map<u64, Request<T>>>,
    woken: Arc<Woken>,
}

struct Request<T> {
    future: BoxFuture<'static, T>,
    bell: Arc<Bell>,
}

/// Tells the task that a request's wait is over.
struct Bell {
    number: u64,
    /// The request is among those that were woken.
    has_rung: AtomicBool,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken {
    /// Requests that can go on, each once.
    numbers: Mutex<Vec<u64>>,
    task: AtomicWaker,
}

impl<T> Default for OwnWork<T> {
    fn default() -> Self {
        Self {
            running: Mutex::default(),
            woken: Arc::default(),
        }
    }
}

impl<T> OwnWork<T> {
    /// Takes a request on. It begins with the next [`OwnWork::go_on`], which the caller sees to: the task isn't woken.
    pub(crate) fn begin(&self, number: u64, future: BoxFuture<'static, T>) {
        let bell = Arc::new(Bell {
            number,
            has_rung: AtomicBool::new(true),
            woken: self.woken.clone(),
        });
        self.running.lock().insert(number, Request { future, bell });
        self.woken.numbers.lock().push(number);
    }

    /// Goes on with each request that can, once, and gives the outcomes of those that end. The task of `context` is woken
    /// when there is more to do.
    pub(crate) fn go_on(&self, context: &mut Context<'_>, mut ended: impl FnMut(u64, T)) {
        // First: whoever can go on from here on wakes the task.
        self.woken.task.register(context.waker());
        let numbers = std::mem::take(&mut *self.woken.numbers.lock());
        for number in numbers {
            // Not locked while it runs. None: it was stopped.
            let Some(mut request) = self.running.lock().remove(&number) else {
                continue;
            };
            // Before it runs: what ends its next wait meanwhile rings again.
            request.bell.has_rung.swap(false, Ordering::AcqRel);
            let waker = Waker::from(request.bell.clone());
            match request
                .future
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
            {
                Poll::Ready(outcome) => ended(number, outcome),
                Poll::Pending => {
                    self.running.lock().insert(number, request);
                }
            }
        }
    }

    /// Drops a request, if it is here.
    pub(crate) fn stop(&self, number: u64) {
        let stopped = self.running.lock().remove(&number);
        // What it has is given back without the lock.
        drop(stopped);
    }

    /// Drops all of them.
    pub(crate) fn stop_all(&self) {
        let stopped = std::mem::take(&mut *self.running.lock());
        drop(stopped);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.has_rung.swap(true, Ordering::AcqRel) {
            self.woken.numbers.lock().push(self.number);
            self.woken.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::sync::atomic::AtomicUsize;
    use tokio::sync::oneshot;

    /// Counts how often the task is woken.
    #[derive(Default)]
    struct Alarms(AtomicUsize);

    impl Wake for Alarms {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    struct Scene {
        work: OwnWork<u32>,
        alarms: Arc<Alarms>,
    }

    impl Scene {
        fn new() -> Self {
            Self {
                work: OwnWork::default(),
                alarms: Arc::default(),
            }
        }

        /// A request that ends with what it is told.
        fn begin(&self, number: u64) -> oneshot::Sender<u32> {
            let (tell, told) = oneshot::channel();
            let request = async move { told.await.expect("it is told") };
            self.work.begin(number, request.boxed());
            tell
        }

        fn go_on(&self) -> Vec<(u64, u32)> {
            let waker = Waker::from(self.alarms.clone());
            let mut all = Vec::new();
            let ended = |number, outcome| all.push((number, outcome));
            self.work.go_on(&mut Context::from_waker(&waker), ended);
            all
        }

        fn alarms(&self) -> usize {
            self.alarms.0.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn many_that_can_go_on_end_in_one_go_and_each_of_them_once() {
        let scene = Scene::new();
        let tells: Vec<_> = (0..4).map(|number| scene.begin(number)).collect();
        assert_eq!(scene.alarms(), 0, "whoever takes it on goes on with it");
        assert_eq!(scene.go_on(), []);
        let mut tells = tells.into_iter();
        let last = tells.next_back().expect("there are four");
        for (tell, outcome) in tells.zip(10..) {
            tell.send(outcome).expect("it waits");
        }
        assert!(scene.alarms() >= 1);
        assert_eq!(scene.go_on(), [(0, 10), (1, 11), (2, 12)]);
        assert_eq!(scene.go_on(), []);
        let before = scene.alarms();
        last.send(13).expect("it waits");
        assert_eq!(
            scene.alarms(),
            before + 1,
            "also after a wait that was in vain"
        );
        assert_eq!(scene.go_on(), [(3, 13)]);
    }

    #[test]
    fn one_that_is_ready_at_once_ends_with_its_first_turn() {
        let scene = Scene::new();
        scene.work.begin(7, std::future::ready(1).boxed());
        assert_eq!(scene.go_on(), [(7, 1)]);
        assert_eq!(scene.alarms(), 0);
    }

    /// Would be lost if a wake-up counted for the turn in which it came.
    #[test]
    fn one_that_is_woken_while_it_runs_runs_again() {
        let scene = Scene::new();
        let mut turns = 0;
        let request = std::future::poll_fn(move |context| {
            turns += 1;
            context.waker().wake_by_ref();
            match turns {
                3 => Poll::Ready(turns),
                _ => Poll::Pending,
            }
        });
        scene.work.begin(1, request.boxed());
        assert_eq!(scene.go_on(), []);
        assert_eq!(scene.alarms(), 1);
        assert_eq!(scene.go_on(), []);
        assert_eq!(scene.alarms(), 2);
        assert_eq!(scene.go_on(), [(1, 3)]);
        assert_eq!(scene.go_on(), []);
    }

    #[test]
    fn one_that_is_stopped_is_dropped_and_the_others_go_on() {
        let scene = Scene::new();
        let [first, second, third] = [1, 2, 3].map(|number| scene.begin(number));
        assert_eq!(scene.go_on(), []);
        scene.work.stop(2);
        scene.work.stop(9);
        assert!(second.is_closed() && !first.is_closed());
        first.send(10).expect("it waits");
        scene.work.stop(1);
        assert_eq!(scene.go_on(), [], "it can't end any more");
        scene.work.stop_all();
        assert!(third.is_closed());
    }
}
