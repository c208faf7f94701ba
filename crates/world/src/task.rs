//! A spawned task that ends when its owner drops it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::task::JoinHandle;

/// A running task and the future of its result. Dropping it aborts the task at its next await
/// point; [`Task::detach`] lets it run on without an owner.
#[must_use = "dropping a task aborts it; detach it if nothing awaits it"]
pub struct Task<T> {
    handle: Option<JoinHandle<T>>,
}

impl<T> Task<T> {
    pub(crate) fn new(handle: JoinHandle<T>) -> Self {
        Self {
            handle: Some(handle),
        }
    }

    /// Lets the task run to its end (or the runtime's end) without an owner.
    pub fn detach(mut self) {
        self.handle = None;
    }

    /// Whether the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.handle.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Aborts the task and waits until it has ended and its destructors have run.
    pub async fn stop(mut self) {
        if let Some(handle) = self.handle.take() {
            handle.abort();
            // Finished, aborted or panicked: in each case it has ended.
            let _ = handle.await;
        }
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    /// Panics with the task's own panic if it panicked.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let handle = self
            .handle
            .as_mut()
            .expect("a detached task can't be awaited");
        let result = ready!(Pin::new(handle).poll(context));
        self.handle = None;
        match result {
            Ok(value) => Poll::Ready(value),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => panic!("a task was awaited after the runtime ended"),
            },
        }
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            handle.abort();
        }
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Task")
            .field("finished", &self.is_finished())
            .finish()
    }
}
