//! Mounts that are made again: those that the watchdog has aborted, and those that the last run of the node has left. Until then
//! they stay in their places, dead or refusing all requests, so that no program writes into the directories below them.
//!
//! A dead mount is tried often at first. If that has failed for some seconds it is told, once, and it goes on being tried,
//! with longer and longer pauses, until it is made: as long as this run lasts, the dead mount is in its place, and nothing is
//! mounted over it. Nobody waits for that, and between the attempts nothing of its file system is in use for it.

use super::{MAKING_MAX, Mounts, OneMount, real_path};
use crate::daemon::events::Events;
use crate::daemon::watchdog::{Again, Guard};
use crate::options::Options;
use fuse::DeadMount;
use futures::future::{BoxFuture, join_all};
use model::{Error, ErrorKind, Result};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The pause after each attempt at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// After so many failures it is told, or after one that took as long as the longest pause; and from then on each pause is twice as
/// long as the one before.
pub(super) const QUICK_MAX: u32 = 20;

/// A mount that a run of the node has left dead in its place.
pub struct LeftMount {
    mount: DeadMount,
    options: Options,
}

impl LeftMount {
    /// Where it is.
    pub fn place(&self) -> PathBuf {
        self.mount.place()
    }
}

/// A dead mount that is being made again.
pub(super) struct Dead {
    pub(super) mount: DeadMount,
    options: Options,
    /// Why it couldn't be made again, once that was told.
    pub(super) why: Mutex<Option<String>>,
    /// Nobody is to make it again.
    is_given_up: AtomicBool,
}

impl Dead {
    /// What is left of a mount; `None` if it isn't known in the mount table.
    pub(super) fn of(one: &OneMount) -> Option<Arc<Self>> {
        let (mount, options) = (one.mount.dead()?, one.options.clone());
        Some(Self::new(LeftMount { mount, options }))
    }

    fn new(left: LeftMount) -> Arc<Self> {
        Arc::new(Self {
            mount: left.mount,
            options: left.options,
            why: Mutex::default(),
            is_given_up: AtomicBool::new(false),
        })
    }

    fn to_leave(&self) -> LeftMount {
        LeftMount {
            mount: self.mount.clone(),
            options: self.options.clone(),
        }
    }
}

/// When a dead mount is tried again. Pure.
pub(super) struct Tries {
    failures: u32,
    pause: Duration,
}

impl Default for Tries {
    fn default() -> Self {
        Self {
            failures: 0,
            pause: PAUSE_MIN,
        }
    }
}

impl Tries {
    /// An attempt has failed, after so long. Whether that is to be told now.
    pub(super) fn failed(&mut self, took: Duration) -> bool {
        let before = self.failures;
        self.failures += 1;
        if took >= PAUSE_MAX {
            // An owner that doesn't answer is waited for: nobody would hear of so many attempts for many minutes.
            self.failures = self.failures.max(QUICK_MAX);
        }
        if self.failures >= QUICK_MAX {
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
        before < QUICK_MAX && self.are_told()
    }

    /// Whether it was told that they fail.
    fn are_told(&self) -> bool {
        self.failures >= QUICK_MAX
    }
}

impl Mounts {
    /// Makes a mount again that the watchdog has aborted, when the node has its lease. Whoever ends the node's mounts
    /// first takes away what is left of it. Returns when it is made, or when that takes long: then it is tried in the
    /// background.
    pub(super) fn mount_again<'a>(
        self: Arc<Self>,
        one: &'a OneMount,
        guard: &'a Guard,
        cause: &'a str,
    ) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            tell_aborted(&guard.again.events, &one.mount.place(), cause);
            let Some(dead) = Dead::of(one) else {
                return;
            };
            let mut tries = Tries::default();
            if self.make_dead_again(&dead, &guard.again, &mut tries).await {
                self.make_later(dead, tries);
            }
        })
    }

    /// Makes a dead mount again, where it is now; not if somebody unmounts it meanwhile, which may last until its file system's
    /// owner answers.
    ///
    /// # Errors
    /// As those of [`Mounts::add`]. `NotFound`: it was unmounted, or nobody is to make it any more.
    pub(super) async fn add_again(self: &Arc<Self>, dead: &Dead) -> Result<()> {
        let _attempt = self.attempt.clone();
        let made = self.make_in_place(dead).await;
        if made.is_err() {
            self.failed.notify_one();
        }
        made
    }

    async fn make_in_place(self: &Arc<Self>, dead: &Dead) -> Result<()> {
        self.check_mounts()?;
        // What follows ends soon; this may take as long as a client's patience, for which the end of the node doesn't wait.
        let prepared = tokio::select! {
            biased;
            error = self.until_unwanted(dead) => return Err(error),
            prepared = self.prepare(&dead.options) => prepared?,
        };
        let (place, id) = (dead.mount.place(), dead.mount.id());
        self.make_prepared(&place, &dead.options, prepared, Some(id))
            .await
    }

    /// Makes a dead mount again when the node has its lease, until it is made, or nobody wants that any more: then this is
    /// false. True, once, when it was just told that it fails: whoever goes on with it calls this again.
    pub(super) async fn make_dead_again(
        self: &Arc<Self>,
        dead: &Dead,
        again: &Again,
        tries: &mut Tries,
    ) -> bool {
        let subject = format!("the mount at {}", dead.mount.place().display());
        loop {
            // First: an end that follows isn't missed.
            let ends = self.dead_ends.notified();
            if !self.is_wanted(dead) {
                return false;
            }
            let mut is_news = false;
            if (again.may_serve)() {
                let begun = self.world.now();
                match self.add_again(dead).await {
                    Ok(()) => {
                        let told = "it is served again";
                        again.events.tell("mounted-again", &subject, told);
                        return false;
                    }
                    Err(error) if !self.is_wanted(dead) => {
                        tracing::info!(%error, "a dead mount isn't made again");
                        return false;
                    }
                    // It ends in a moment, unless the node goes on after all.
                    Err(error) if error.kind() == ErrorKind::ShuttingDown => {}
                    Err(error) => {
                        is_news = tries.failed(self.world.now() - begun);
                        tracing::warn!(%error, failures = tries.failures, "a dead mount can't be made again yet");
                        if tries.are_told() {
                            *dead.why.lock() = Some(error.to_string());
                        }
                        if is_news {
                            let told = format!(
                                "{error}; programs get errors there, and it is tried again until it is made: `shale health`"
                            );
                            again.events.tell("mount-stays-dead", &subject, &told);
                        }
                    }
                }
            }
            // Whoever ends it says so, or another one: then this one is tried earlier.
            let _ = self.world.timeout(tries.pause, ends).await;
            if is_news {
                return true;
            }
        }
    }

    /// Makes a dead mount again in the background: nobody waits for it.
    fn make_later(self: &Arc<Self>, dead: Arc<Dead>, mut tries: Tries) {
        self.left.lock().push(dead.clone());
        let mounts = self.clone();
        let make = async move {
            // What still runs of it ends with the run that had it.
            dead.mount.ended().await;
            if let Some(guard) = &mounts.guard {
                let again = &guard.again;
                while mounts.make_dead_again(&dead, again, &mut tries).await {}
            }
            let mut left = mounts.left.lock();
            left.retain(|other| !Arc::ptr_eq(other, &dead));
        };
        self.world.spawn("makes a mount again", make).detach();
    }

    /// Whether a dead mount is to be made again: this run lasts, and somebody who has unmounted it, or has mounted something
    /// there, doesn't want it back. What a run leaves is the next one's.
    fn is_wanted(&self, dead: &Dead) -> bool {
        let has_ended =
            self.is_over.load(Ordering::Acquire) || dead.is_given_up.load(Ordering::Acquire);
        !has_ended && dead.mount.is_on_top()
    }

    /// Waits until a dead mount isn't to be made again, as far as this daemon hears of that.
    async fn until_unwanted(&self, dead: &Dead) -> Error {
        loop {
            // First: an end that follows isn't missed.
            let ends = self.dead_ends.notified();
            if !self.is_wanted(dead) {
                let text = "the dead mount isn't to be made again any more";
                return Error::new(ErrorKind::NotFound, text);
            }
            ends.await;
        }
    }

    /// Those that could not be made again for some time and are still tried: where, and why the last attempt has failed.
    pub fn dead(&self) -> Vec<(PathBuf, String)> {
        let left = self.left.lock().clone();
        let dead = left.iter().filter_map(|dead| {
            let why = dead.why.lock().clone()?;
            self.is_wanted(dead).then(|| (dead.mount.place(), why))
        });
        dead.collect()
    }

    /// Whether a mount of this place is dead, and may be made again.
    pub fn is_dead(&self, mountpoint: &Path) -> bool {
        let real = real_path(mountpoint);
        let served = self.list.lock().clone();
        let left = self.left.lock().clone();
        let is_it = |mount: &DeadMount| mount.is_left() && mount.place() == real;
        let mut of_served = served.iter().filter_map(|one| one.mount.dead());
        of_served.any(|mount| is_it(&mount)) || left.iter().any(|dead| is_it(&dead.mount))
    }

    /// Ends the service of all mounts, because this run has ended, and leaves them in their places, their bind mounts too:
    /// programs get EIO there. Afterwards none can be made. Returns those that the next run is to make again.
    pub async fn leave_dead(self: &Arc<Self>) -> Vec<LeftMount> {
        self.is_over.store(true, Ordering::Release);
        self.dead_ends.notify_waiters();
        // The one that is being made is left as well.
        let making = self.world.timeout(MAKING_MAX, self.making.lock()).await;
        if making.is_err() {
            tracing::warn!("a mount is still being made, and isn't ended with the others");
        }
        // In this order: one that has just died may come from the first to the second, and be in both.
        let all = self.list.lock().clone();
        let left = std::mem::take(&mut *self.left.lock());
        let mut left: Vec<_> = left.iter().map(|dead| dead.to_leave()).collect();
        // All at once: a request of one that doesn't end keeps no program of another one waiting.
        let leaving = all.iter().cloned().map(|one| async move {
            if let Err(error) = one.mount.leave_refusing().await {
                tracing::warn!(%error, "a mount of a run that has ended couldn't be ended");
            }
        });
        join_all(leaving).await;
        for one in all {
            let Some(mount) = one.mount.dead() else {
                continue;
            };
            if left.iter().all(|other| other.mount.id() != mount.id()) {
                let options = one.options.clone();
                left.push(LeftMount { mount, options });
            }
        }
        left
    }

    /// Makes mounts again, in the background, that the last run of the node has left.
    pub fn make_left(self: &Arc<Self>, left: Vec<LeftMount>) {
        for left in left {
            self.make_later(Dead::new(left), Tries::default());
        }
    }

    /// Takes those away that are being made again in the background: nobody is to make them any more.
    pub(super) async fn end_left(&self) {
        let left = std::mem::take(&mut *self.left.lock());
        for dead in &left {
            dead.is_given_up.store(true, Ordering::Release);
        }
        self.dead_ends.notify_waiters();
        for dead in left {
            if let Err(error) = dead.mount.detach().await {
                tracing::warn!(%error, "a dead mount couldn't be taken away");
            }
        }
    }
}

/// Tells people that the watchdog has aborted a mount, and why.
pub(super) fn tell_aborted(events: &Events, place: &Path, cause: &str) {
    tracing::warn!(mountpoint = %place.display(), cause, "the watchdog has aborted this mount");
    let told = format!(
        "{cause}: the watchdog has aborted the mount, so that programs got errors instead of hanging"
    );
    let subject = format!("the mount at {}", place.display());
    events.tell("mount-aborted", &subject, &told);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(1);

    #[test]
    fn a_dead_mount_is_tried_often_at_first_then_it_is_told_and_pauses_grow() {
        let mut tries = Tries::default();
        for _ in 1..QUICK_MAX {
            assert!(!tries.failed(SOON) && !tries.are_told());
            assert_eq!(tries.pause, PAUSE_MIN);
        }
        assert!(tries.failed(SOON), "it is told");
        let mut pause = PAUSE_MIN * 2;
        for _ in 0..100 {
            assert!(tries.are_told());
            assert_eq!(tries.pause, pause);
            pause = (pause * 2).min(PAUSE_MAX);
            assert!(!tries.failed(SOON), "it is told once");
        }
        assert_eq!(tries.pause, PAUSE_MAX);
    }

    /// Would be broken if it was told only after twenty minutes that an owner doesn't answer.
    #[test]
    fn an_attempt_that_takes_long_is_told_at_once_and_only_once() {
        let mut tries = Tries::default();
        assert!(!tries.failed(SOON));
        assert!(tries.failed(PAUSE_MAX), "it is told");
        for _ in 0..QUICK_MAX {
            assert!(!tries.failed(PAUSE_MAX) && !tries.failed(SOON));
        }
    }
}
