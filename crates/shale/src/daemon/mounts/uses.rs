//! Who uses the mounts of a node, for people who want to end them; and ending all of them for a while.

use super::{Mounts, OneMount};
use crate::daemon::users::who_uses;
use crate::options::Options;
use futures::future::join_all;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A look at all processes takes milliseconds, unless one of them is stuck.
const PROCESSES_MAX: Duration = Duration::from_secs(3);
/// Most places that a message names; the rest is counted.
const PLACES_MAX: usize = 5;

impl Mounts {
    /// Who uses the mounts, a sentence for each that is used, as far as this process may see. Ends nothing.
    pub async fn uses(&self) -> Vec<String> {
        let list: Vec<Arc<OneMount>> = self.list.lock().clone();
        let attached = list.into_iter().filter(|one| one.mount.is_attached());
        // At the same time: each look may be stuck, and a node that takes long counts as one that gives no answer.
        let looking = attached.map(|one| async move {
            let place = one.mount.place();
            let bound = match one.mount.copies() {
                Ok(bound) => (!bound.is_empty()).then(|| by_bind_mounts(&bound)),
                // Who isn't known uses it.
                Err(error) => Some(format!(
                    "whether bind mounts show {} isn't known: {error}",
                    place.display()
                )),
            };
            let users = self.users_of(&place).await;
            bound.into_iter().chain(users).collect::<Vec<_>>()
        });
        join_all(looking).await.concat()
    }

    /// The mounts that are served, with their options.
    pub fn served(&self) -> Vec<(PathBuf, Options)> {
        let list = self.list.lock();
        let attached = list.iter().filter(|one| one.mount.is_attached());
        attached
            .map(|one| (one.mount.place(), one.options.clone()))
            .collect()
    }

    /// Mounts can be made again after [`Mounts::end_all`].
    pub fn reopen(&self) {
        self.closed.store(false, Ordering::Release);
    }

    /// Who uses a mount, in words; `None`: nobody, as far as this process may see.
    pub(super) async fn users_of(&self, mountpoint: &Path) -> Option<String> {
        let inside = match fuse::mounted_below(mountpoint) {
            Ok(inside) => inside,
            Err(error) => {
                return Some(format!(
                    "whether other file systems are mounted in {} isn't known: {error}",
                    mountpoint.display()
                ));
            }
        };
        if !inside.is_empty() {
            return Some(format!(
                "other file systems are mounted in {}: {}; unmount them first, or use --force",
                mountpoint.display(),
                shown(&inside)
            ));
        }
        let place = mountpoint.to_path_buf();
        let found =
            self.look_at_processes(async { self.world.blocking(move || who_uses(&place)).await });
        let users = found.await.unwrap_or_default();
        (!users.is_empty()).then(|| by_programs(mountpoint, &users))
    }

    /// Runs a look at all processes with a deadline. The kernel blocks it on a process that is
    /// being started and closes files of a file system that doesn't answer, perhaps forever. In
    /// that case no users are named, and the look ends when the process does.
    pub(super) async fn look_at_processes<T>(&self, look: impl Future<Output = T>) -> Option<T> {
        let found = self.world.timeout(PROCESSES_MAX, look).await;
        found
            .inspect_err(|_| tracing::warn!("looking at all processes timed out"))
            .ok()
    }
}

/// What is said of a mount that programs use; `users`: which, if that is known.
pub(super) fn by_programs(mountpoint: &Path, users: &str) -> String {
    let users = match users.is_empty() {
        true => String::new(),
        false => format!(": {users}"),
    };
    format!(
        "programs still use {}{users}; end them (`fuser -vm {0}` shows them), or use --force",
        mountpoint.display()
    )
}

/// What is said of mounts with bind mounts at these places.
pub(super) fn by_bind_mounts(places: &[PathBuf]) -> String {
    format!(
        "bind mounts still show the file system at {}; unmount them with `umount`, or use --force",
        shown(places)
    )
}

fn shown(places: &[PathBuf]) -> String {
    let named = places
        .iter()
        .take(PLACES_MAX)
        .map(|it| it.display().to_string());
    let named = named.collect::<Vec<_>>().join(", ");
    match places.len().saturating_sub(PLACES_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}
