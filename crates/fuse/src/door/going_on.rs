//! A door goes on with another client, which has taken over what the one before had.

use super::Door;
use arc_swap::Guard;
use client::{Client, Expired, Kernel, VALID_MAX};
use model::InodeId;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked whether the client has everything.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The client of a door.
pub(super) struct Current(Guard<Option<Arc<Client>>>);

impl Deref for Current {
    type Target = Arc<Client>;

    fn deref(&self) -> &Arc<Client> {
        let client: &Option<Arc<Client>> = &self.0;
        client.as_ref().expect("a deserted door is asked nothing")
    }
}

impl Door {
    /// The client now.
    pub(super) fn client(&self) -> Current {
        Current(self.client.load())
    }

    /// Releases inodes in the background, since no request waits for that.
    pub(super) fn let_go(&self, inodes: Vec<InodeId>) {
        if inodes.is_empty() {
            return;
        }
        let (client, releasing) = (self.client().clone(), self.releasing.clone());
        releasing.send_modify(|count| *count += 1);
        let world = client.world().clone();
        let release = async move {
            for inode in inodes {
                client.release(inode).await;
            }
            releasing.send_modify(|count| *count -= 1);
        };
        world.spawn("releases", release).detach();
    }

    /// Waits until nothing is released in the background any more: before the client leaves, or the one that goes on would hold
    /// that for ever. Nobody may ask anything meanwhile.
    pub async fn until_released(&self) {
        let mut releasing = self.releasing.subscribe();
        // The sender is here.
        let _ = releasing.wait_for(|count| *count == 0).await;
    }

    /// Asks another client from now on, which goes on in the session of the one before ([`Client::go_on`]). Nobody may ask
    /// anything meanwhile ([`Mount::hold`](crate::Mount::hold)); [`Door::until_accounted`] follows when they may again.
    pub fn go_on_with(&self, client: Arc<Client>) {
        self.client.store(Some(client));
    }

    /// Waits until what the kernel keeps of answers of a client that was there before is none, or counts as the new one's, so
    /// that it goes when others want to change it. Nobody has kept account of it, so no other client may come before.
    pub async fn until_accounted(&self) {
        let client = self.client();
        let world = client.world();
        // With everything comes whatever kernels have: all of it goes when that ends.
        let has_all = async {
            while !client.asked().is_alone() {
                world.sleep(LOOK_EVERY).await;
            }
        };
        if world.timeout(VALID_MAX, has_all).await.is_ok() {
            return;
        }
        // By now it believes no name or attribute that it was told by the client before.
        let Some(cached) = self.cached.get() else {
            return;
        };
        for inode in self.opens.inodes() {
            let all = Expired::Bytes {
                inode,
                from: 0,
                to: u64::MAX,
            };
            cached.expire(all).await;
        }
    }
}
