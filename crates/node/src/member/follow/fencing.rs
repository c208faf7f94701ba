//! Tells NSDs the versions of groups that a map has changed, while the map is in use already.
//!
//! Each NSD is told one thing at a time, and what has changed meanwhile together after that: so one that is silent keeps
//! no more here than its groups' newest versions. Nothing is told twice: whoever made the map sees to its fences, and
//! NSDs that didn't hear of it hear of it from writers.

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use model::nsd::GroupFence;
use model::{GroupId, GroupVersion, NsdId};
use pool::Pool;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is told to NSDs, and what they are told next. Dropping it ends that.
pub(super) struct Fencing {
    pool: Arc<Pool>,
    waiting: BTreeMap<NsdId, BTreeMap<GroupId, GroupVersion>>,
    /// NSDs that are told something now.
    busy: BTreeSet<NsdId>,
    telling: FuturesUnordered<BoxFuture<'static, NsdId>>,
}

impl Fencing {
    pub(super) fn of(pool: &Arc<Pool>) -> Self {
        Self {
            pool: pool.clone(),
            waiting: BTreeMap::new(),
            busy: BTreeSet::new(),
            telling: FuturesUnordered::new(),
        }
    }

    /// Begins to tell NSDs these versions; what they haven't been told yet of earlier maps goes along.
    pub(super) fn begin(&mut self, fences: BTreeMap<NsdId, Vec<GroupFence>>) {
        for (nsd, fences) in fences {
            let waiting = self.waiting.entry(nsd).or_default();
            for GroupFence { group, version } in fences {
                let newest = waiting.entry(group).or_insert(version);
                *newest = version.max(*newest);
            }
            self.tell(nsd);
        }
    }

    /// Waits until an NSD was told something, or didn't answer; for ever if nothing is told to any. Giving it up loses
    /// nothing.
    pub(super) async fn next(&mut self) {
        let Some(nsd) = self.telling.next().await else {
            return std::future::pending().await;
        };
        self.busy.remove(&nsd);
        self.tell(nsd);
    }

    /// Tells an NSD what waits for it, unless it is told something.
    fn tell(&mut self, nsd: NsdId) {
        if self.busy.contains(&nsd) {
            return;
        }
        let Some(waiting) = self.waiting.remove(&nsd) else {
            return;
        };
        self.busy.insert(nsd);
        let pool = self.pool.clone();
        let telling = async move {
            let fences = waiting.into_iter();
            let fences = fences.map(|(group, version)| GroupFence { group, version });
            let fences: Vec<GroupFence> = fences.collect();
            if let Err(error) = pool.fence(nsd, &fences).await {
                tracing::debug!(%nsd, %error, "an NSD doesn't know the new map");
            }
            nsd
        };
        self.telling.push(Box::pin(telling));
    }
}
