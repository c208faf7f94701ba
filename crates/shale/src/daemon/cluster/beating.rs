//! The beats of a daemon that can run, for its watchdog.
//!
//! They come from a task of the runtime that keeps the node's lease, and only while the threads that serve the mounts get
//! anywhere. A daemon that is stopped or swapped out, whose runtime hangs, or whose mounts' threads have met a lock that nobody
//! lets go, doesn't beat. One that waits for other nodes, disks or a lease does: that is shown by `shale waiters`.

use crate::daemon::member::InCluster;
use crate::daemon::serving::Serving;
use crate::daemon::watchdog::{BEAT_EVERY, Watchdog};
use std::sync::Arc;
use std::time::Duration;
use world::World;

/// A request that holds its thread for so long without waiting for anything doesn't end any more.
const RUN_MAX: Duration = Duration::from_secs(20);

/// Beats while a run serves. Never returns.
pub(crate) async fn beat(serving: Arc<Serving>, here: Arc<InCluster>, watchdog: Arc<Watchdog>) {
    let mut was_stuck = false;
    loop {
        let longest = serving.mounts.longest_run();
        let is_stuck = longest >= RUN_MAX;
        if is_stuck && !was_stuck {
            tracing::error!(
                seconds = longest.as_secs(),
                "a thread that serves a mount doesn't go on: the watchdog will abort the mounts; restart the daemon with \
                 `shale down --kill` and `shale up`, and report this log"
            );
        }
        was_stuck = is_stuck;
        if !is_stuck {
            watchdog.beat(here.member().lease_ends());
        }
        here.member().world().sleep(BEAT_EVERY).await;
    }
}

/// Beats while no run serves: what the last one has left refuses all requests, and needs no lease for that. Never returns.
pub(crate) async fn beat_between_runs(world: World, watchdog: Arc<Watchdog>) {
    loop {
        watchdog.beat(world.now());
        world.sleep(BEAT_EVERY).await;
    }
}
