//! Mounts that stay although their node goes on in another way, as the member of a cluster: nobody looks after them for a moment,
//! and their requests are held meanwhile.

use super::{MAKING_MAX, Mounts, name_in};
use crate::daemon::file_systems::OpenFileSystem;
use crate::options::Options;
use fuse::{Door, Held, Mount, Siblings};
use model::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A mount whose requests are held. Dropped, it goes on as it was; it ends by force if nobody looks after it any more.
pub struct HeldMount {
    /// First: what waits then isn't answered by a client that is closed.
    mount: Arc<Mount>,
    held: Held,
    options: Options,
    siblings: Arc<Siblings>,
}

impl Mounts {
    /// Holds the requests of all mounts; until [`Mounts::let_go`] none can be made.
    ///
    /// # Errors
    /// `Busy`: a request is under way still after so long, or a mount is being made. They go on then.
    pub async fn hold_all(&self, most: Duration) -> Result<Vec<HeldMount>> {
        self.closed.store(true, Ordering::Release);
        let held = self.hold_each(most).await;
        if held.is_err() {
            self.let_go();
        }
        held
    }

    async fn hold_each(&self, most: Duration) -> Result<Vec<HeldMount>> {
        let making = self.world.timeout(MAKING_MAX, self.making.lock()).await;
        let Ok(_nobody_mounts) = making else {
            let text = "a mount is still being made; try again when it is done";
            return Err(Error::new(ErrorKind::Busy, text));
        };
        let list = self.list.lock().clone();
        let mut all = Vec::new();
        for one in list.iter().filter(|one| !one.mount.is_ended()) {
            let held = one.mount.hold(most).await?;
            if let Some(door) = one.mount.file_system::<Door>() {
                let released = self.world.timeout(most, door.until_released()).await;
                released.map_err(|_| {
                    let text =
                        "files that programs have closed are still being released; try again";
                    Error::new(ErrorKind::Busy, text)
                })?;
            }
            all.push(HeldMount {
                mount: one.mount.clone(),
                held,
                options: one.options.clone(),
                siblings: self.siblings_of(&one.options),
            });
        }
        Ok(all)
    }

    /// Mounts can be made again.
    pub fn let_go(&self) {
        self.closed.store(false, Ordering::Release);
    }

    /// Looks after no mount any more: others do, with [`Mounts::take_over`].
    pub fn hand_over(&self) {
        // How many there are isn't told: a daemon that mounts on demand would end.
        for one in std::mem::take(&mut *self.list.lock()) {
            one.handed_over.notify_one();
        }
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
