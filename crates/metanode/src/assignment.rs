//! The assignment of a shard by a node that is alone in its cluster.

use coordination::Coordination;
use model::{NodeId, NodeRun, Result, ShardId};

/// The node of a cluster that has one.
const ONLY_NODE: NodeId = NodeId(1);

/// Begins a run of a node that is alone in its cluster, and assigns the shard to it: nobody else can
/// be serving it, and nobody else decides where it goes. A shard that doesn't exist yet is assigned
/// when it is created.
///
/// # Errors
/// `Unavailable` if coordination doesn't answer; begin again.
pub async fn begin_alone(coordination: &Coordination, shard: ShardId) -> Result<NodeRun> {
    let run = coordination.begin_run(ONLY_NODE).await?;
    if let Some(record) = coordination.shard(shard).await? {
        let before = record.value.assigned;
        coordination.assign_shard(shard, before, run).await?;
    }
    Ok(run)
}
