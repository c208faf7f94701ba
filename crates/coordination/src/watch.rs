//! Watches: the changes after a revision, in order.

use crate::Backend;
use crate::etcd::Following;
use crate::history::{Batch, Event, Next};
use std::time::Duration;

/// What a watch has to tell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    /// Its keys changed. All changes of one revision come together.
    Changed {
        /// The revision, which is the version of the keys that weren't removed.
        revision: u64,
        /// The changes.
        events: Vec<Event>,
    },
    /// Nothing was heard for the time that the caller was willing to wait. Proves nothing.
    Quiet,
    /// Changes may have been missed (etcd: the revision was compacted): list again, and watch after
    /// the revision of that list. This watch never tells anything else.
    Lost,
}

/// Tells the changes of some keys after a revision.
///
/// Changes are kept for a while only (embedded: the last 1,024; etcd: until a compaction), so a
/// watch that isn't asked for long is lost. One of etcd takes a connection, from the first time that
/// it is asked.
pub struct Watch {
    backend: Backend,
    prefix: String,
    /// Everything up to this revision was told or didn't concern the keys.
    after: u64,
    /// What reads etcd's stream.
    following: Option<Following>,
}

impl Watch {
    pub(crate) fn new(backend: Backend, prefix: &str, after: u64) -> Self {
        Self {
            backend,
            prefix: prefix.to_owned(),
            after,
            following: None,
        }
    }

    /// The next change; waits for at most `patience`. If the future is dropped, nothing is missed:
    /// the next call tells it.
    pub async fn next(&mut self, patience: Duration) -> News {
        let Self {
            backend,
            prefix,
            after,
            following,
        } = self;
        match backend {
            Backend::Embedded(store) => store.news(prefix, after, patience).await,
            Backend::Simulated(handle) => handle.news(prefix, after, patience).await,
            Backend::Etcd(store) => {
                let store = store.load_full();
                let following = following.get_or_insert_with(|| store.follow(prefix, *after));
                match following.next(store.world(), *after, patience).await {
                    Next::Forgotten => News::Lost,
                    Next::Nothing(_) => News::Quiet,
                    Next::Batch(batch) => {
                        *after = batch.revision;
                        batch.into()
                    }
                }
            }
        }
    }
}

impl From<Batch> for News {
    fn from(batch: Batch) -> Self {
        Self::Changed {
            revision: batch.revision,
            events: batch.events,
        }
    }
}
