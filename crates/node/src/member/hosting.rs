//! Hosts each shard while its record names this run, and only then.
//!
//! A supervisor follows the roster and starts a task for each shard that is assigned to this run. The
//! task takes its shard over, serves it, gives it up, and ends when the shard is neither here nor
//! assigned to this run. Shards know nothing of each other: one that can't be taken over holds up no
//! other.

use super::Parts;
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use metanode::Metanode;
use model::ShardId;
use model::limits::SHARDS_OF_PROCESS_MAX;
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use world::Point;

/// First and longest pause after a shard couldn't be taken over.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long shards that are given up together may take to end. What isn't durable by then is lost to
/// this node; the next owner has everything that was answered to other nodes.
const LEAVE_MAX: Duration = Duration::from_secs(10);
/// How long a client of this node that has a whole file system may take to give that back before. It needs less to hold all
/// that is left under tokens; what it hasn't published by then it publishes at the next owner.
const GIVE_BACK_MAX: Duration = Duration::from_secs(10);
/// How long it may take then until all that was answered is durable: sessions of this node that were shown more end with its
/// owner. With these two, the time in which a node learns of it, and that of ending, less than the manager waits for a shard
/// to be given up.
const DURABLE_MAX: Duration = Duration::from_secs(5);

/// The task that has a task for each shard of this run.
pub(super) async fn supervise(parts: Arc<Parts>) {
    let mut roster = parts.roster.subscribe();
    // Dropped with this one: the tasks end with it.
    let mut hosts = FuturesUnordered::new();
    let mut left_out = BTreeSet::new();
    loop {
        let assigned = roster.borrow_and_update().assigned_to(parts.run);
        let plan = plan(&assigned, &parts.lease.hosted());
        for shard in plan.starts {
            // First: what the task acts on is never newer than what the manager hears of it.
            parts.lease.hosts(shard);
            let host = parts
                .world
                .spawn("hosts a shard", host(parts.clone(), shard));
            hosts.push(async move {
                host.await;
                shard
            });
        }
        for shard in plan.left_out.difference(&left_out) {
            tracing::warn!(
                %shard,
                max = SHARDS_OF_PROCESS_MAX,
                "a shard isn't served: this node hosts as many as it may; assign it to another node"
            );
        }
        left_out = plan.left_out;
        tokio::select! {
            changed = roster.changed() => if changed.is_err() {
                return;
            },
            Some(ended) = hosts.next() => parts.lease.gave_up(ended),
        }
    }
}

/// What the supervisor does next.
#[derive(PartialEq, Eq, Debug)]
struct Plan {
    /// Shards that get a task.
    starts: Vec<ShardId>,
    /// Shards for which there is no room.
    left_out: BTreeSet<ShardId>,
}

/// What to do if these shards are assigned to this run, and these have a task.
fn plan(assigned: &[ShardId], running: &BTreeSet<ShardId>) -> Plan {
    let mut new: Vec<ShardId> = assigned.to_vec();
    new.retain(|shard| !running.contains(shard));
    let room = SHARDS_OF_PROCESS_MAX.saturating_sub(running.len());
    let left_out = new.split_off(room.min(new.len()));
    Plan {
        starts: new,
        left_out: left_out.into_iter().collect(),
    }
}

/// The task that takes one shard over and gives it up.
async fn host(parts: Arc<Parts>, shard: ShardId) {
    let mut roster = parts.roster.subscribe();
    let mut pause = PAUSE_MIN;
    loop {
        let record = roster.borrow_and_update().shards.get(&shard).cloned();
        let record = record.map(|record| record.value);
        // Whoever else is named already takes the log away.
        let is_taken = record
            .as_ref()
            .is_some_and(|record| record.assigned.is_some());
        let ours = record.filter(|record| record.assigned == Some(parts.run));
        let mut patience = None;
        let hosted = parts.services.hosted(shard);
        match (&hosted, ours) {
            // Runs to its end although the record may change meanwhile: whoever takes over next
            // raises the epoch, which ends it.
            (None, Some(record)) => {
                parts.world.at(Point::AssignmentSeen).await;
                match Metanode::open(parts.opening(shard, record.families[0])).await {
                    Ok(metanode) => {
                        metanode.start_background();
                        let epoch = metanode.shard_status().epoch.0;
                        tracing::info!(%shard, epoch, "the node owns a shard");
                        parts.services.host(shard, metanode);
                        pause = PAUSE_MIN;
                        continue;
                    }
                    Err(error) => {
                        let error = parts.nsds.blame(error);
                        tracing::warn!(%shard, %error, "the shard can't be taken over yet");
                        patience = Some(pause);
                        pause = (pause * 2).min(PAUSE_MAX);
                        parts.ask.notify_one();
                    }
                }
            }
            (Some(_), None) => {
                parts.world.at(Point::AssignmentLost).await;
                parts.leave_shard(shard, !is_taken).await;
                continue;
            }
            (Some(metanode), Some(record)) => {
                parts.part_with_expelled(metanode);
                metanode.meet(record.epoch).await;
            }
            (None, None) => return,
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
            () = superseded => parts.leave_shard(shard, false).await,
            () = pausing => {}
        }
    }
}

impl Parts {
    /// Gives up all shards that are here, at the same time.
    pub(super) async fn leave_shards(&self) {
        let hosted = self.services.all_hosted();
        let leaving = hosted
            .iter()
            .map(|(shard, _)| self.leave_shard(*shard, true));
        join_all(leaving).await;
    }

    /// Clients of expelled runs keep nothing from the others.
    fn part_with_expelled(&self, metanode: &Metanode) {
        let roster = self.roster.borrow().clone();
        metanode.part_with(|run| roster.end_of(run).is_some());
    }

    /// Refuses the shard's requests from now on and gives it up, if it is here. First, unless it is too late for that, a
    /// client of this node that has everything is served until it hasn't, or has the rest under tokens: no other node has
    /// anything to ask then.
    async fn leave_shard(&self, shard: ShardId, may_give_back: bool) {
        let hosted = self.services.hosted(shard).filter(|_| may_give_back);
        let ending = async {
            match &hosted {
                Some(metanode) => metanode.end_alone().await.map(Some),
                None => Ok(None),
            }
        };
        // Kept to the end, in time or not, so that nobody gets everything again.
        let mut ending = pin!(ending);
        let given_back = self.world.timeout(GIVE_BACK_MAX, ending.as_mut()).await;
        let is_served = match &given_back {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => {
                tracing::warn!(%shard, %error, "a client here may lose what it hasn't published with the shard");
                false
            }
            Err(_) => {
                tracing::info!(%shard, "a client here goes on publishing at the shard's next owner");
                true
            }
        };
        if let Some(metanode) = hosted.as_ref().filter(|_| is_served) {
            let durable = self.world.timeout(DURABLE_MAX, metanode.sync());
            if let Ok(Err(error)) = durable.await {
                tracing::debug!(%shard, %error, "what was answered isn't durable before the shard is given up");
            }
        }
        let Some(metanode) = self.services.leave(shard) else {
            return;
        };
        match self.world.timeout(LEAVE_MAX, metanode.close()).await {
            Ok(Ok(())) => tracing::info!(%shard, "the node gave a shard up"),
            // Its next owner has sealed the log, most likely.
            Ok(Err(error)) => tracing::info!(%shard, %error, "the node gave a shard up"),
            Err(_) => tracing::warn!(%shard, "a shard that was given up doesn't end"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(numbers: impl IntoIterator<Item = u32>) -> Vec<ShardId> {
        numbers.into_iter().map(ShardId).collect()
    }

    #[test]
    fn each_shard_of_the_run_gets_one_task_until_there_is_no_room() {
        let most = SHARDS_OF_PROCESS_MAX as u32;
        let running: BTreeSet<_> = shards([1, 3]).into_iter().collect();
        let planned = plan(&shards([1, 2, 5]), &running);
        assert_eq!(
            (planned.starts, planned.left_out.len()),
            (shards([2, 5]), 0)
        );
        let planned = plan(&shards(0..most + 2), &running);
        assert_eq!(planned.starts.len() + running.len(), SHARDS_OF_PROCESS_MAX);
        let left_out: Vec<_> = planned.left_out.into_iter().collect();
        assert_eq!(left_out, shards(most..most + 2));
        // A shard that is being given up takes its place until it has ended.
        let all: BTreeSet<_> = shards(0..most).into_iter().collect();
        let planned = plan(&shards([most]), &all);
        assert_eq!((planned.starts.len(), planned.left_out.len()), (0, 1));
    }
}
