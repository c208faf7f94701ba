//! Mounts that are made again: those that the watchdog has aborted, and those that the last run of the node has left dead.
//! Until then they stay dead in their places, so that no program writes into the directories below them.

use super::{MAKING_MAX, Mounts, OneMount};
use crate::daemon::watchdog::Guard;
use futures::future::BoxFuture;
use model::{ErrorKind, Result};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often it is looked whether a dead mount can be made again.
const AGAIN_EVERY: Duration = Duration::from_millis(200);
/// How often making it may fail.
const AGAIN_MAX: u32 = 20;

/// A mount that a run of the node has left dead in its place.
pub struct LeftMount(Arc<OneMount>);

impl LeftMount {
    /// Where it is.
    pub fn place(&self) -> PathBuf {
        self.0.mount.place()
    }
}

impl Mounts {
    /// Makes a mount again that the watchdog has aborted, when the node has its lease. Whoever ends the node's mounts
    /// first takes away what is left of it.
    pub(super) fn mount_again<'a>(
        self: Arc<Self>,
        one: &'a OneMount,
        guard: &'a Guard,
        cause: &'a str,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let place = one.mount.place();
            tracing::warn!(mountpoint = %place.display(), cause, "the watchdog has aborted this mount");
            let told = format!(
                "{cause}: the watchdog has aborted the mount, so that programs got errors instead of hanging"
            );
            let subject = format!("the mount at {}", place.display());
            guard.events.tell("mount-aborted", &subject, &told);
            self.make_dead_again(one, guard).await;
        })
    }

    /// Makes a dead mount again, where it is now; not if somebody unmounts it meanwhile, which may last until its file system's
    /// owner answers.
    ///
    /// # Errors
    /// As those of [`Mounts::add`]. `NotFound`: it was unmounted.
    pub(super) async fn add_again(self: &Arc<Self>, one: &OneMount) -> Result<()> {
        self.add_to(&one.mount.place(), &one.options, one.mount.id())
            .await
    }

    /// Makes a dead mount again when the node has its lease, unless somebody unmounts it, or this run ends.
    async fn make_dead_again(self: &Arc<Self>, one: &OneMount, guard: &Guard) {
        let subject = format!("the mount at {}", one.mount.place().display());
        let mut failures = 0;
        // Whoever has unmounted it doesn't want it back. What a run leaves is the next one's.
        while one.mount.is_left_dead() && !self.is_over.load(Ordering::Acquire) {
            if (guard.may_serve)() {
                match self.add_again(one).await {
                    Ok(()) => {
                        let told = "it is served again";
                        guard.events.tell("mounted-again", &subject, told);
                        return;
                    }
                    Err(error)
                        if error.kind() == ErrorKind::NotFound && !one.mount.is_left_dead() =>
                    {
                        tracing::info!(%error, "a dead mount isn't made again");
                        return;
                    }
                    Err(error) => {
                        failures += 1;
                        tracing::warn!(%error, failures, "a dead mount can't be made again yet");
                        if failures == AGAIN_MAX {
                            let told = format!("{error}; mount it by hand: `shale mount`");
                            guard.events.tell("mount-lost", &subject, &told);
                            return;
                        }
                    }
                }
            }
            self.world.sleep(AGAIN_EVERY).await;
        }
    }

    /// Ends the service of all mounts, because this run has ended, and leaves them dead in their places, their bind mounts
    /// too: programs get errors there. Afterwards none can be made. Returns those that the next run is to make again.
    pub async fn leave_dead(self: &Arc<Self>) -> Vec<LeftMount> {
        self.is_over.store(true, Ordering::Release);
        // The one that is being made is left as well.
        let making = self.world.timeout(MAKING_MAX, self.making.lock()).await;
        if making.is_err() {
            tracing::warn!("a mount is still being made, and isn't ended with the others");
        }
        let all = self.list.lock().clone();
        let mut left = std::mem::take(&mut *self.left.lock());
        for one in all {
            if let Err(error) = one.mount.leave_dead().await {
                tracing::warn!(%error, "a mount of a run that has ended couldn't be ended");
            }
            left.push(LeftMount(one));
        }
        left
    }

    /// Makes mounts again, in the background, that the last run of the node has left.
    pub fn make_left(self: &Arc<Self>, left: Vec<LeftMount>) {
        for LeftMount(one) in left {
            self.left.lock().push(LeftMount(one.clone()));
            let mounts = self.clone();
            let make = async move {
                // What still runs of it ends with the run that had it.
                one.mount.ended().await;
                if let Some(guard) = &mounts.guard {
                    mounts.make_dead_again(&one, guard).await;
                }
                let mut left = mounts.left.lock();
                left.retain(|other| !Arc::ptr_eq(&other.0, &one));
            };
            self.world.spawn("makes a mount again", make).detach();
        }
    }

    /// Takes those away that the last run has left and that nobody is to make again.
    pub(super) async fn end_left(&self) {
        let left = std::mem::take(&mut *self.left.lock());
        for LeftMount(one) in left {
            if let Err(error) = one.mount.detach_dead().await {
                tracing::warn!(%error, "a dead mount couldn't be taken away");
            }
        }
    }
}
