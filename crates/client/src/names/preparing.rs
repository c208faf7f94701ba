//! Directories that are prepared for making files in them here, and creates that wait for that.
//!
//! Beside changes of this client nothing is learned of a directory, and no file is made in it here. Programs that make files in it
//! at the same time would keep it so for ever: one of them always waits for the owner. So creates of files wait while their
//! directory is prepared, and what is under way ends meanwhile.

use model::InodeId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use world::{Deadline, World};

/// Most directories that are prepared at the same time.
const PREPARING_MAX: usize = 64;
/// The longest that a create waits for what goes by; then it is sent. Preparing takes longer only if the owner answers slowly.
pub(super) const QUIET_MAX: Duration = Duration::from_secs(1);

/// The directories whose names are being learned, or for which a delegation or numbers are being asked for.
#[derive(Default)]
pub(super) struct Preparing(Arc<All>);

#[derive(Default)]
struct All {
    /// Until when creates wait for each.
    directories: Mutex<BTreeMap<InodeId, Deadline>>,
    /// Signals that one is prepared.
    ended: Notify,
}

/// One of them, until it is dropped.
pub(super) struct Prepared {
    all: Arc<All>,
    directory: InodeId,
}

impl Preparing {
    /// `None` if it is prepared already, or as many are as may be.
    pub(super) fn begin(&self, world: &World, directory: InodeId) -> Option<Prepared> {
        let mut directories = self.0.directories.lock();
        if directories.len() >= PREPARING_MAX || directories.contains_key(&directory) {
            return None;
        }
        directories.insert(directory, Deadline::after(world, QUIET_MAX));
        Some(Prepared {
            all: self.0.clone(),
            directory,
        })
    }

    /// Until when a create in a directory waits for what is prepared there; `None` if nothing is.
    pub(super) fn waits_until(&self, directory: InodeId) -> Option<Deadline> {
        self.0.directories.lock().get(&directory).copied()
    }

    /// Waits until nothing is prepared in a directory.
    pub(super) async fn until_ended(&self, directory: InodeId) {
        loop {
            // First: an end that follows isn't missed.
            let ended = self.0.ended.notified();
            if self.waits_until(directory).is_none() {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        self.all.directories.lock().remove(&self.directory);
        self.all.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::pin::pin;
    use world::sim::Simulation;

    const DIRECTORY: InodeId = InodeId(7);

    #[test]
    fn who_waits_until_a_directory_is_prepared_goes_on_then() {
        let ran = Simulation::new(1).run(|world| async move {
            let preparing = Preparing::default();
            assert!(preparing.until_ended(DIRECTORY).now_or_never().is_some());
            let prepared = preparing.begin(&world, DIRECTORY);
            assert!(prepared.is_some() && preparing.begin(&world, DIRECTORY).is_none());
            let other = preparing.begin(&world, InodeId(8));
            let mut waiting = pin!(preparing.until_ended(DIRECTORY));
            assert!(waiting.as_mut().now_or_never().is_none());
            drop(other);
            assert!(waiting.as_mut().now_or_never().is_none());
            drop(prepared);
            assert!(waiting.now_or_never().is_some());
            assert!(preparing.begin(&world, DIRECTORY).is_some());
        });
        ran.finished();
    }

    #[test]
    fn no_more_directories_are_prepared_at_the_same_time_than_may_be() {
        let ran = Simulation::new(2).run(|world| async move {
            let preparing = Preparing::default();
            let begin = |number| preparing.begin(&world, InodeId(number));
            let prepared: Vec<_> = (0..200).filter_map(begin).collect();
            assert_eq!(prepared.len(), PREPARING_MAX);
            drop(prepared);
            assert!(begin(0).is_some());
        });
        ran.finished();
    }
}
