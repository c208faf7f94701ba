//! Hosts the shard while its record names this run, and only then.

use super::Parts;
use crate::ROOT_SHARD;
use metanode::Metanode;
use std::sync::Arc;
use std::time::Duration;

/// First and longest pause after the shard couldn't be taken over.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long a shard that is given up may take to end. What isn't durable by then is lost to this
/// node; the next owner has everything that was answered to other nodes.
const LEAVE_MAX: Duration = Duration::from_secs(10);

/// The task that takes the shard over and gives it up.
pub(super) async fn host(parts: Arc<Parts>) {
    let mut roster = parts.roster.subscribe();
    let mut pause = PAUSE_MIN;
    loop {
        let is_ours = roster.borrow_and_update().assigned(ROOT_SHARD) == Some(parts.run);
        let mut patience = None;
        let hosted = parts.services.hosted();
        match (&hosted, is_ours) {
            // Runs to its end although the record may change meanwhile: whoever takes over next
            // raises the epoch, which ends it.
            (None, true) => match Metanode::open(parts.opening()).await {
                Ok(metanode) => {
                    metanode.start_background();
                    let epoch = metanode.shard_status().epoch.0;
                    tracing::info!(shard = ROOT_SHARD.0, epoch, "the node owns a shard");
                    parts.services.host(metanode);
                    pause = PAUSE_MIN;
                    continue;
                }
                Err(error) => {
                    let error = parts.nsds.blame(error);
                    tracing::warn!(shard = ROOT_SHARD.0, %error, "the shard can't be taken over yet");
                    patience = Some(pause);
                    pause = (pause * 2).min(PAUSE_MAX);
                    parts.ask.notify_one();
                }
            },
            (Some(_), false) => {
                parts.leave_shard().await;
                continue;
            }
            (Some(metanode), true) => {
                let record = parts.roster.borrow().shards.get(&ROOT_SHARD).cloned();
                if let Some(record) = record {
                    metanode.meet(record.value.epoch).await;
                }
            }
            (None, false) => {}
        }
        let superseded = async {
            match &hosted {
                Some(metanode) => metanode.superseded().await,
                None => std::future::pending().await,
            }
        };
        let pausing = async {
            match patience {
                Some(patience) => parts.world.sleep(patience).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = roster.changed() => if changed.is_err() {
                return;
            },
            () = superseded => parts.leave_shard().await,
            () = pausing => {}
        }
    }
}

impl Parts {
    /// Refuses the shard's requests from now on and gives it up, if it is here.
    pub(super) async fn leave_shard(&self) {
        let Some(metanode) = self.services.leave() else {
            return;
        };
        match self.world.timeout(LEAVE_MAX, metanode.close()).await {
            Ok(Ok(())) => tracing::info!(shard = ROOT_SHARD.0, "the node gave a shard up"),
            // Its next owner has sealed the log, most likely.
            Ok(Err(error)) => {
                tracing::info!(shard = ROOT_SHARD.0, %error, "the node gave a shard up");
            }
            Err(_) => {
                tracing::warn!(
                    shard = ROOT_SHARD.0,
                    "a shard that was given up doesn't end"
                );
            }
        }
    }
}
