//! Follows what coordination says of the cluster: peers' addresses, NSDs of other nodes, the map.
//!
//! A watch tells changes soon, but silence proves nothing: from time to time, and whenever a request finds that what is
//! known can't be right, coordination is asked for its revision. The roster is read anew only if that is a later one and
//! the watch doesn't tell of it.

mod fencing;

use super::Parts;
use coordination::{News, Roster};
use fencing::Fencing;
use metanode::DATA_POOL;
use model::{NodeId, NsdId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long a watch may say nothing until it is found out whether there is nothing to say.
const READ_EVERY: Duration = Duration::from_secs(2);
/// How long an answer of coordination is waited for until it is asked again.
const READ_MAX: Duration = Duration::from_secs(1);
/// Pause after coordination refused to answer.
const PAUSE: Duration = Duration::from_millis(200);

/// How long a watch may take to tell what a read has shown to be there.
const TELL_MAX: Duration = Duration::from_millis(200);

/// The task that keeps the roster.
pub(super) async fn follow(parts: Arc<Parts>) {
    let mut remote = BTreeMap::new();
    parts.use_homes(&mut remote);
    loop {
        let read = Roster::read(&parts.coordination);
        let mut roster = match parts.world.timeout(READ_MAX, read).await {
            Ok(Ok(roster)) => roster,
            Ok(Err(error)) => {
                tracing::warn!(%error, "coordination doesn't say what the cluster is like");
                parts.world.sleep(PAUSE).await;
                continue;
            }
            // A request or its answer was lost, perhaps; nothing else depends on this one.
            Err(_) => continue,
        };
        let mut watch = parts.coordination.watch("", roster.revision);
        // A later revision that the watch hasn't told of yet.
        let mut expected = None;
        loop {
            parts.publish(roster.clone());
            parts.use_homes(&mut remote);
            let patience = match expected {
                Some(_) => TELL_MAX,
                None => READ_EVERY,
            };
            let news = tokio::select! {
                news = watch.next(patience) => news,
                () = parts.ask.notified() => News::Quiet,
            };
            let is_known = match news {
                News::Changed { revision, events } => {
                    let changed = roster.change(revision, events);
                    if let Err(error) = &changed {
                        tracing::error!(%error, "a fact of the cluster can't be read");
                        parts.world.sleep(PAUSE).await;
                    }
                    expected = expected.filter(|expected| *expected > revision);
                    changed.is_ok()
                }
                // The watch is late, or all that is newer is somebody else's.
                News::Quiet if expected.is_some() => false,
                News::Quiet => {
                    let now = parts.world.timeout(READ_MAX, parts.coordination.revision());
                    match now.await {
                        Ok(Ok(now)) => {
                            expected = Some(now).filter(|now| *now > roster.revision);
                            true
                        }
                        // A read of all says why.
                        Ok(Err(_)) | Err(_) => false,
                    }
                }
                News::Lost => false,
            };
            if !is_known {
                break;
            }
        }
    }
}

/// The task that brings the pool's map up to date. It uses each map at once, because NSDs refuse what is put by an older
/// one than they know; NSDs that don't answer hold up only what they are told themselves.
pub(super) async fn follow_map(parts: Arc<Parts>) {
    let mut roster = parts.roster.subscribe();
    let pool = &parts.nsds.pool;
    let mut fencing = Fencing::of(pool);
    loop {
        let newest = {
            let roster = roster.borrow_and_update();
            let map = roster.pools.get(DATA_POOL);
            map.filter(|map| map.epoch > pool.map().epoch).cloned()
        };
        if let Some(map) = newest {
            let epoch = map.epoch.0;
            fencing.begin(pool.use_map(map));
            tracing::info!(epoch, "the pool has a new map");
        }
        tokio::select! {
            changed = roster.changed() => if changed.is_err() {
                return;
            },
            () = fencing.next() => {}
        }
    }
}

impl Parts {
    /// Shows a roster to all parts of the node, unless they know a newer one.
    fn publish(&self, roster: Roster) {
        let is_newer = self.roster.send_if_modified(|known| {
            let is_newer = roster.revision > known.revision;
            if roster.revision < known.revision {
                let (now, before) = (roster.revision, known.revision);
                tracing::error!(
                    now,
                    before,
                    "coordination has gone back; what it says isn't used"
                );
            }
            if is_newer {
                *known = Arc::new(roster);
            }
            is_newer
        });
        if is_newer {
            self.use_roster();
        }
    }

    /// Calls go to the newest addresses from now on, nodes that were expelled by hand are known, and owners keep to what the
    /// settings say.
    pub(super) fn use_roster(&self) {
        let roster = self.roster.borrow().clone();
        for (node, known) in &roster.addresses {
            self.peers.set_address(*node, known.address);
        }
        self.services.set_barred(&roster.barred);
        self.jobs.use_settings(&roster, self.world.now());
    }

    /// Reaches NSDs of other nodes where they are now. `used`: where they were reached so far.
    fn use_homes(&self, used: &mut BTreeMap<NsdId, NodeId>) {
        let roster = self.roster.borrow().clone();
        for (nsd, node) in &roster.homes {
            if *node == self.run.node {
                used.remove(nsd);
            } else if used.insert(*nsd, *node) != Some(*node) {
                let pool = &self.nsds.pool;
                pool.add_remote_nsd(*nsd, self.peers.to_needed(*node));
            }
        }
    }
}
