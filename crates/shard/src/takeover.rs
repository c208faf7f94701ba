//! Opening a shard = taking it over: raise the epoch, seal the log, record the old epoch's end,
//! bring the tail to the new view, replay.

use crate::{catalog::Catalog, log::Log, tree::{Tree, TreeCache}};
use coordination::Coordination;
use model::{CommitNumber, FamilyId, Result, SessionId, ShardEpoch, ShardId};
use pool::Pool;
use std::sync::Arc;
use world::World;

/// What a shard needs to be opened.
#[derive(Clone)]
pub struct Opening {
    /// The machine.
    pub world: World,
    /// Which shard.
    pub shard: ShardId,
    /// The family whose records it holds; table segments carry it.
    pub family: FamilyId,
    /// Who owns it, where its log is.
    pub coordination: Coordination,
    /// Where its tables are, and the NSDs of its log.
    pub pool: Arc<Pool>,
    /// Memory for table blocks.
    pub cache: TreeCache,
}

/// An open shard without its records' rules.
pub struct Opened {
    /// This owner's epoch.
    pub epoch: ShardEpoch,
    /// The owner's own session, new with each opening: table segments carry it.
    pub session: SessionId,
    /// The log.
    pub log: Log,
    /// The catalog of tables.
    pub catalog: Catalog,
    /// The records.
    pub tree: Arc<Tree>,
    /// The newest commit in the tree; 0 for a new shard.
    pub last_commit: CommitNumber,
}

/// Makes a shard that doesn't exist yet, empty. `Exists` if it does.
pub async fn create(opening: &Opening) -> Result<()> {
    let _ = opening;
    unimplemented!("take-over")
}

/// Takes a shard over and opens it. Every acknowledged commit is in the tree afterwards; the
/// owner before can't write any more. `NotFound`: it was never created.
pub async fn open(opening: Opening) -> Result<Opened> {
    let _ = opening;
    unimplemented!("take-over")
}
