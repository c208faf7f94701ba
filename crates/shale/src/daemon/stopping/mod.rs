//! `shale cluster stop`: the node that is asked has all members take the same steps, and no member takes one before all
//! have taken the one before.
//!
//! *Look*: who uses the mounts. *Unmount*. *Sync*: all that was written is durable. Until then nothing is lost if the cluster
//! goes on: a node that refuses, or doesn't answer, has all of them mount again. From then on there is no way back.
//! *Clients* are closed while their owners answer, *shards* where they are: nothing moves to other nodes, because all of
//! them end. *Nobody is the manager* any more, so nobody expels those that end first. Then daemons *end*: those without a
//! member of etcd, those with one, and at last the one that was asked, which sees how the others end.
//!
//! `tour` decides, from what nodes say; `part` is what each node does; `drive` is who asks. It goes on when whoever asked the
//! daemon goes away. *If the daemon dies*, another node goes on in its place (`succession` says which one, `following` is
//! that): the stop is called off, or finished if one of the nodes has begun to close its clients.
//!
//! A step is for one run of a node: the one that has taken the steps before. What is known of a stop is in memory: a daemon
//! that is started has no part in one that was under way.

mod drive;
mod following;
mod part;
mod succession;
#[cfg(test)]
mod tests;
mod tour;

use super::serving::Serving;
use crate::admin::stopping::{ClusterStopped, StopStep};
use drive::Drive;
use model::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;
use tour::Tour;

pub use following::look_after;

/// Where a node is asked by others to take a step.
pub const PATH: &str = "/v1/stop";
/// Where a node is asked by others what part it has in a stop.
pub const PART_PATH: &str = "/v1/stop/part";

/// How long a node may take for a step: somewhat longer than all that has a deadline there.
const fn patience(step: StopStep) -> Duration {
    Duration::from_secs(match step {
        StopStep::Look | StopStep::Retire => 10,
        StopStep::Unmount | StopStep::Resume => 60,
        StopStep::Sync | StopStep::CloseClients => 120,
        StopStep::CloseShards => 45,
        StopStep::End => 30,
    })
}

/// Stops the whole cluster, or nothing. This node ends last, after the answer.
///
/// # Errors
/// `NotSupported` on a node that is alone; `Busy`: it stops the cluster already, for its own people or in the place of
/// another node. What other nodes say, or that they don't, is in the answer.
pub(crate) async fn stop_cluster(serving: Arc<Serving>, force: bool) -> Result<ClusterStopped> {
    let here = serving.running.in_cluster()?.clone();
    let Some(_driving) = serving.stop.drive() else {
        let text =
            "this node stops its cluster already; `shale node list` shows which nodes are up";
        return Err(Error::new(ErrorKind::Busy, text));
    };
    let own = here.member().run();
    let tour = Tour::of(&here.member_lines(), own.node.0, force);
    let drive = Drive {
        serving: serving.clone(),
        here,
        by: own,
        force,
    };
    Ok(drive.run(tour).await)
}
