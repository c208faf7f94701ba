//! Work that several tasks wait for, driven by one of them.

use futures::future::{BoxFuture, Either, FutureExt, select};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use tokio::sync::{Mutex, Notify};

/// Work without a task of its own: one of the tasks that wait for it polls it. If that task stops
/// waiting (it has its result, or is dropped), the next one polls instead; without waiting tasks
/// the work rests. Cheap to clone.
///
/// `futures::future::Shared` wouldn't do: it wakes all waiting tasks and relies on each of them
/// polling again. A wake-up during a poll reaches the other tasks too early, and is lost if the
/// polling task then goes away.
pub struct Driven<T> {
    inner: Arc<Inner<T>>,
}

struct Inner<T> {
    /// The task that holds the lock drives the work. Releasing it wakes the next task, which polls
    /// at once and so needs no earlier wake-up. `None` once the work is done.
    work: Mutex<Option<BoxFuture<'static, T>>>,
    output: OnceLock<T>,
    done: Notify,
}

impl<T> Clone for Driven<T> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<T: Clone + Send + Sync + 'static> Driven<T> {
    /// Work that rests until a task waits for it.
    #[must_use]
    pub fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self {
            inner: Arc::new(Inner {
                work: Mutex::new(Some(work.boxed())),
                output: OnceLock::new(),
                done: Notify::new(),
            }),
        }
    }

    /// Waits until the work is done, driving it if no other task does.
    pub async fn wait(&self) -> T {
        let mut done = pin!(self.inner.done.notified());
        done.as_mut().enable();
        if let Some(output) = self.inner.output.get() {
            return output.clone();
        }
        match select(pin!(self.inner.drive()), done).await {
            Either::Left((output, _)) => output,
            Either::Right(_) => self.inner.output(),
        }
    }
}

impl<T: Clone> Inner<T> {
    async fn drive(&self) -> T {
        let mut work = self.work.lock().await;
        if let Some(future) = work.as_mut() {
            let output = future.await;
            *work = None;
            self.output.get_or_init(|| output);
            drop(work);
            self.done.notify_waiters();
        }
        self.output()
    }

    fn output(&self) -> T {
        self.output
            .get()
            .expect("finished work has its output")
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::pin::Pin;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    /// A task that is polled when woken, like on a runtime.
    struct Waiting {
        future: BoxFuture<'static, u32>,
        woken: Arc<Woken>,
    }

    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    impl Waiting {
        fn new(work: &Driven<u32>) -> Self {
            let work = work.clone();
            Self {
                future: async move { work.wait().await }.boxed(),
                woken: Arc::new(Woken(AtomicBool::new(true))),
            }
        }

        /// Polls until it is no longer woken, or ready.
        fn run(&mut self) -> Option<u32> {
            while self.woken.0.swap(false, Ordering::SeqCst) {
                let waker = Waker::from(self.woken.clone());
                let mut context = Context::from_waker(&waker);
                if let Poll::Ready(output) = self.future.as_mut().poll(&mut context) {
                    return Some(output);
                }
            }
            None
        }
    }

    /// Becomes ready in the middle of its first poll, and calls `then` before that poll is over.
    struct ReadyMeanwhile<F> {
        polls: usize,
        then: F,
    }

    impl<F: FnMut() + Unpin> Future for ReadyMeanwhile<F> {
        type Output = u32;

        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<u32> {
            self.polls += 1;
            if self.polls > 1 {
                return Poll::Ready(7);
            }
            context.waker().wake_by_ref();
            (self.then)();
            Poll::Pending
        }
    }

    #[test]
    fn a_wake_up_isnt_lost_when_the_polling_task_goes_away() {
        let other: Arc<Mutex<Option<Waiting>>> = Arc::default();
        let polled = other.clone();
        let work = Driven::new(ReadyMeanwhile {
            polls: 0,
            // Woken together with the polling task while that task is still polling.
            then: move || {
                let mut other = polled.lock();
                let other = other.as_mut().expect("the test has set it");
                other.woken.0.store(true, Ordering::SeqCst);
                assert_eq!(other.run(), None);
            },
        });
        *other.lock() = Some(Waiting::new(&work));
        let first = Waiting::new(&work);
        let waker = Waker::from(first.woken.clone());
        let mut future = first.future;
        assert!(
            future
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        drop(future);
        let output = other.lock().as_mut().and_then(Waiting::run);
        assert_eq!(output, Some(7));
    }

    #[test]
    fn many_wait_and_it_is_done_once() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_time()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            for _ in 0..200 {
                let times = Arc::new(AtomicUsize::new(0));
                let counted = times.clone();
                let work = Driven::new(async move {
                    for _ in 0..20 {
                        tokio::task::yield_now().await;
                    }
                    counted.fetch_add(1, Ordering::SeqCst) + 1
                });
                let waits = (0..8).map(|number| {
                    let work = work.clone();
                    tokio::spawn(async move {
                        if number % 3 == 0 {
                            // Stops waiting halfway.
                            let soon = tokio::task::yield_now();
                            select(pin!(work.wait()), pin!(soon)).await;
                            return 1;
                        }
                        work.wait().await
                    })
                });
                let all = futures::future::join_all(waits).await;
                assert!(all.into_iter().all(|output| matches!(output, Ok(1))));
                assert_eq!(times.load(Ordering::SeqCst), 1);
            }
        });
    }
}
