//! Mounts that stay although their node goes on in another way, as the member of a cluster: nobody looks after them for a moment,
//! and their requests are held meanwhile.

use super::{MAKING_MAX, Mounts, OneMount, name_in};
use crate::daemon::file_systems::OpenFileSystem;
use crate::options::Options;
use fuse::{Door, Held, Mount, Siblings};
use futures::future::try_join_all;
use model::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use world::Deadline;

/// Why none can be made, and none ended but by force.
pub(super) const GIVES_WAY: &str =
    "the node is becoming the first one of a cluster; try again in some seconds";

/// What those who wait are waiting for until all is handed over.
pub const HOLDS: &str =
    "requests that are under way must end, and all that they have changed be durable";

/// A mount whose requests are held. Dropped, it goes on as it was; it ends by force if nobody looks after it any more.
pub struct HeldMount {
    /// First: what waits then isn't answered by a client that is closed.
    mount: Arc<Mount>,
    held: Held,
    options: Options,
    siblings: Arc<Siblings>,
}

/// All mounts, with their requests held. As long as this exists none can be made, and only force ends them; dropped, they go on
/// as they were.
pub struct HeldMounts {
    all: Vec<HeldMount>,
    none_else: NoneElse,
}

/// Lets mounts be made again when it is dropped.
struct NoneElse(Arc<Mounts>);

impl Drop for NoneElse {
    fn drop(&mut self) {
        *self.0.held_since.lock() = None;
    }
}

impl HeldMounts {
    /// Nobody looks after them any more, and none can be made: others do, with [`Mounts::take_over`].
    pub fn hand_over(self) -> Vec<HeldMount> {
        let mounts = &self.none_else.0;
        mounts.is_over.store(true, Ordering::Release);
        // How many there are isn't told: a daemon that mounts on demand would end.
        for one in std::mem::take(&mut *mounts.list.lock()) {
            one.handed_over.notify_one();
        }
        self.all
    }
}

impl Mounts {
    /// Holds the requests of all mounts at the same time.
    ///
    /// # Errors
    /// `Busy`: a request of any of them is under way still after so long, or a mount is being made. They go on then.
    pub async fn hold_all(self: &Arc<Self>, most: Duration) -> Result<HeldMounts> {
        *self.held_since.lock() = Some(self.world.now());
        let none_else = NoneElse(self.clone());
        Ok(HeldMounts {
            all: self.hold_each(most).await?,
            none_else,
        })
    }

    async fn hold_each(&self, most: Duration) -> Result<Vec<HeldMount>> {
        let is_being_made = || {
            let text = "a mount is still being made; try again when it is done";
            Error::new(ErrorKind::Busy, text)
        };
        let making = self.world.timeout(MAKING_MAX, self.making.lock()).await;
        let _nobody_mounts = making.map_err(|_| is_being_made())?;
        if Arc::strong_count(&self.attempt) > 1 {
            // What it has begun is the former client's, which the other one would go on with.
            return Err(is_being_made());
        }
        let list = self.list.lock().clone();
        let alive = list.iter().filter(|one| !one.mount.is_ended());
        // At the same time: the programs of each wait as long as the requests of the last one take.
        let until = Deadline::after(&self.world, most);
        try_join_all(alive.map(|one| self.hold_one(one, until))).await
    }

    async fn hold_one(&self, one: &OneMount, until: Deadline) -> Result<HeldMount> {
        let held = one.mount.hold(until.rest(&self.world)).await?;
        if let Some(door) = one.mount.file_system::<Door>() {
            let released = until.bound(&self.world, door.until_released()).await;
            released.map_err(|_| {
                let text = "closed files are still being released; try again";
                Error::new(ErrorKind::Busy, text)
            })?;
        }
        Ok(HeldMount {
            mount: one.mount.clone(),
            held,
            options: one.options.clone(),
            siblings: self.siblings_of(&one.options),
        })
    }

    /// Looks after mounts from now on that were handed over with their requests held. They go on through another client, that of
    /// this file system. Returns their doors.
    pub fn take_over(
        self: &Arc<Self>,
        held: Vec<HeldMount>,
        file_system: &Arc<OpenFileSystem>,
    ) -> Vec<Arc<Door>> {
        let mut doors = Vec::new();
        for one in held {
            if let Some(door) = one.mount.file_system::<Door>() {
                door.go_on_with(file_system.client.clone());
                doors.push(door);
            }
            let name = name_in(&one.options);
            self.siblings.lock().insert(name, one.siblings);
            self.look_after(one.mount, one.options, file_system.clone());
            drop(one.held);
        }
        doors
    }
}
